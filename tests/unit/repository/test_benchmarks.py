"""The arithmetic of the benchmarks: medians, ratios, exponents, verdicts, comparisons of versions. No timing."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

BENCHMARKS = Path(__file__).parents[3] / "benchmarks"
OWN = ("harness", "schedules")


@pytest.fixture(autouse=True)
def _on_the_path(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The folder's modules can be imported within a test, and are forgotten after it."""
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield
    for name in [name for name in sys.modules if name.split(".")[0] in OWN]:
        del sys.modules[name]


@pytest.fixture(name="harness")
def _harness() -> ModuleType:
    return import_module("harness.measurement")


@pytest.fixture(name="schedules")
def _schedules() -> ModuleType:
    return import_module("schedules")


def numbers(*values: float) -> Any:
    """What a subject returns, turn by turn."""
    left = iter(values)
    return lambda: next(left)


def played(harness: ModuleType, claims: Any, warm_up: int = 0, **subjects: Any) -> Any:
    turns = 3
    found = tuple(harness.Subject(name, turn) for name, turn in subjects.items())
    return harness.play(harness.Measurement("m", "", "s", found, tuple(claims), turns=turns, warm_up=warm_up))


def test_a_ratio_is_the_median_of_the_ratios_within_a_turn(harness: ModuleType) -> None:
    """Not the ratio of medians: a turn in which the machine is slow slows down both."""
    claim = harness.Ratio("", of="a", to="b")
    result = played(harness, [claim], a=numbers(2.0, 20.0, 9.0), b=numbers(1.0, 10.0, 3.0))
    assert result.verdicts[0].found == 2.0
    assert harness.Ratio("", of="a", to="b", threads=2).found(result.values) == 4.0
    assert harness.median_ratio([2.0, 20.0, 9.0], [1.0, 10.0, 3.0]) == 2.0


def test_warm_up_does_not_count(harness: ModuleType) -> None:
    result = played(harness, [], warm_up=1, a=numbers(100.0, 1.0, 2.0, 3.0))
    assert result.values == {"a": [1.0, 2.0, 3.0]}


@pytest.mark.parametrize(
    ("limits", "found", "state"),
    [
        ({"most": 2.0}, 2.0, "kept"),
        ({"most": 2.0}, 2.1, "NOT kept"),
        ({"least": 8.0, "goal": 10.0}, 8.0, "kept"),
        ({"least": 8.0, "goal": 10.0}, 7.9, "NOT kept"),
        ({}, 7.9, ""),
    ],
)
def test_a_promise_is_kept_at_its_limit(harness: ModuleType, limits: Any, found: float, state: str) -> None:
    claim = harness.Level("", of="a", **limits)
    assert claim.verdict({"a": [found]}).state == state


def test_what_cannot_be_measured_is_neither_kept_nor_not_kept(harness: ModuleType) -> None:
    """A peer that fails in its second turn has no values; the others have all of theirs."""

    def fails() -> float:
        if next(calls) == 1:
            raise RuntimeError("gone\nwith a log of many lines")
        return 1.0

    calls = iter(range(9))
    claim = harness.Ratio("", most=1.0, of="a", to="b")
    result = played(harness, [claim], a=numbers(1.0, 2.0, 3.0), b=fails)
    assert result.values == {"a": [1.0, 2.0, 3.0]}
    assert result.missing == {"b": "RuntimeError: gone"}
    assert result.verdicts[0].state == "not measured"


def test_a_subject_may_return_several_numbers(harness: ModuleType) -> None:
    claim = harness.Ratio("", of="job: CPU", to="job: wall")
    result = played(harness, [claim], job=lambda: {"wall": 2.0, "CPU": 3.0})
    assert result.medians() == {"job: wall": 2.0, "job: CPU": 3.0}
    assert result.verdicts[0].found == 1.5


@pytest.mark.parametrize("power", [0.5, 1.0, 1.2, 2.0])
def test_an_exponent_is_the_slope_of_logarithms(harness: ModuleType, power: float) -> None:
    sizes = [1e3, 1e4, 1e6]
    assert harness.exponent(sizes, [3.0 * n**power for n in sizes]) == pytest.approx(power)
    claim = harness.Growth("", most=1.15, sizes={str(n): n for n in sizes})
    verdict = claim.verdict({str(n): [3.0 * n**power] * 3 for n in sizes})
    assert verdict.found == pytest.approx(power)
    assert (verdict.state == "kept") == (power < 1.15)


def test_a_report_names_each_promise_and_its_verdict(harness: ModuleType) -> None:
    report = import_module("harness.report")
    claims = [harness.Ratio("twice", most=2.0, of="a", to="b"), harness.Ratio("peer", least=1.0, of="a", to="gone")]
    result = played(harness, claims, a=numbers(3.0, 3.0, 3.0), b=numbers(1.0, 1.0, 1.0))
    text = report.table([result], report.machine())
    assert "| m: twice | 3 | at most 2 | **NOT kept** |" in text
    assert "| m: peer | - | at least 1 | not measured (no value) |" in text
    assert "0 kept, 1 not kept, 1 not measured." in text
    assert json.loads(json.dumps(result.line()))["claims"][0]["verdict"] == "NOT kept"


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(0.0015, "s", "1.5 ms"), (12.0, "s", "12 s"), (0.0, "s", "0 ns"), (14.0, "MB", "14.0 MB"), (0.9124, "", "0.912")],
)
def test_amounts_are_written_for_people(value: float, unit: str, text: str) -> None:
    assert import_module("harness.report").amount(value, unit) == text


def lines(exchanges: list[int], ari: float, nmi: float, labels: str = "x", kind: str = "planted") -> list[Any]:
    return [
        {
            "case": f"case {at}",
            "group": "planted",
            "kind": kind,
            "labels": labels,
            "exchanges": count,
            "bytes_sent": 10 * count,
            "nmi": nmi,
            "ari": ari,
            "cpu_s": 1.0,
        }
        for at, count in enumerate(exchanges)
    ]


def test_versions_are_compared_case_by_case(schedules: ModuleType) -> None:
    before, after = lines([100, 200, 300], 0.9, 0.8), lines([20, 100, 100], 0.85, 0.801)
    found = {verdict.what: verdict for verdict in schedules.verdicts(schedules.pairs_of(before, after))}
    assert found[schedules.EXCHANGES].found == pytest.approx(1 / 3)
    assert found[schedules.EXCHANGES].kept
    assert not found[schedules.BYTES].kept
    assert found[schedules.NMI_LOSS].found == pytest.approx(-0.001)
    assert found[schedules.NMI_LOSS].kept
    assert found[schedules.ARI_LOSS].found == pytest.approx(0.05)
    assert not found[schedules.ARI_LOSS].kept


def test_cases_with_other_labels_are_not_compared(schedules: ModuleType) -> None:
    assert schedules.pairs_of(lines([1], 1, 1), lines([1], 1, 1, labels="y")) == []


def test_a_loss_of_ari_counts_where_the_truth_is_planted(schedules: ModuleType) -> None:
    pairs = schedules.pairs_of(lines([1], 0.9, 0.8, kind="data"), lines([1], 0.1, 0.8, kind="data"))
    assert {v.what: v.kept for v in schedules.verdicts(pairs)}[schedules.ARI_LOSS]


def test_planted_ensembles_are_those_of_the_baseline(schedules: ModuleType) -> None:
    """Else a promise about the last release would silently compare nothing."""
    written = (BENCHMARKS / "baselines" / "schedules.jsonl").read_text(encoding="utf-8").splitlines()
    baseline = {line["case"]: line["labels"] for line in map(json.loads, written)}
    cases = [case for case in schedules.planted(1) if len(case.truth) == 60]
    assert {case.name: baseline[case.name] for case in cases} == {c.name: schedules.digest(c.codes) for c in cases}


def test_labels_like_those_of_k_means_have_equal_rows() -> None:
    labels = import_module("harness.labels")
    alike, planted = labels.like_k_means(2000, 20, 7), labels.planted(2000, 20, 7)[1]
    assert len(np.unique(alike, axis=0)) < 1000
    assert len(np.unique(planted, axis=0)) > 1990


def test_every_part_can_be_asked_for() -> None:
    """A part that is not listed is never run."""
    written = (BENCHMARKS / "run.py").read_text(encoding="utf-8")
    parts = [path.stem for path in (BENCHMARKS / "parts").glob("*.py") if path.stem != "__init__"]
    assert [name for name in parts if f'"{name}"' not in written] == []
