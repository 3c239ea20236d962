"""The last step of bc3e, which compares clusterings and votes, tells nothing of an object that several sites hold.

Under a flat message the object sums are linear in the labels. With classes - 1 >= sum of (labels - 1) the totals span
the indicators of every label, and least squares reads every column.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from ce.audit.attacks.linear_unmix import unmixed_columns
from ce.audit.recording import Recording, record, secrets_of
from ce.errors import MessageError
from ce.job import Job
from ce.labels import Column, LabelTable
from ce.metrics import ari
from ce.models import BC3E
from ce.protocol.engine.home import Home
from ce.protocol.engine.site import Site
from ce.protocol.engine.starting_parameters import SeededStarts
from ce.protocol.local_run import run
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.steps import ArraySpec, expected_arrays
from ce.ring import decode

CLASSES = tuple(f"class {c:02}" for c in range(12))
SITES = tuple(f"site{s}" for s in range(5))


def tables(objects: int = 300, private: int = 0) -> dict[str, LabelTable]:
    """Five sites with one clustering of three labels and one classifier each, over the same objects and over some that
    each of them holds alone: 12 - 1 >= 5 * (3 - 1)."""
    found = {}
    truth = np.random.default_rng(0).integers(0, 12, objects)
    for s, site in enumerate(SITES):
        rng = np.random.default_rng(s + 1)
        classes = np.append(truth, rng.integers(0, 12, private))
        ids = np.array([f"o{i}" for i in range(objects)] + [f"{site} {i}" for i in range(private)])
        labels = _noisy(rng.permutation(np.arange(12) % 3)[classes], 3, rng)
        votes = _noisy(classes, 12, rng)
        found[site] = LabelTable(
            ids,
            (
                Column(f"c{s}", "clustering", (0, 1, 2), labels, None),
                Column(f"v{s}", "classifier", CLASSES, votes, None),
            ),
        )
    return found


def _noisy(codes: NDArray[np.int64], below: int, rng: np.random.Generator) -> NDArray[np.int32]:
    wrong = rng.random(len(codes)) < 0.25
    return np.where(wrong, rng.integers(0, below, len(codes)), codes).astype(np.int32)


def job(privacy: str) -> Job:
    return Job(name="votes", sites=SITES, model="bc3e", classes=CLASSES, privacy=privacy, max_iterations=4)


def recorded(labels: dict[str, LabelTable], privacy: str) -> Recording:
    return record(job(privacy), labels, privacy, secrets_of(job(privacy), labels))


def best_scores(recording: Recording, labels: dict[str, LabelTable], totals: list[Any]) -> list[float]:
    """For each column, the best agreement of any partition that least squares finds in these totals of the block."""
    scale = recording.model.scales(recording.topology.sizes)["objects"]
    guesses = unmixed_columns([decode(total, scale) for total in totals], 1.0 + recording.topology.sizes.clusterings)
    found = []
    for site, table in labels.items():
        codes = table.clusterings[0].likeliest[recording.rows[site][0]]
        found.append(max((ari(codes, guess) for guess in guesses), default=0.0))
    return found


@pytest.mark.promise("Nothing but masked sums leaves a site in masked, and nothing but random words in blind.")
def test_the_coordinator_reads_no_column_from_the_last_step_in_masked() -> None:
    labels = tables()
    recording = recorded(labels, "masked")
    [last] = [exchange for exchange in recording.exchanges if exchange.step == "clusterings_only"]
    totals = [total for total in [last.total(ArrayName.of_block(0, "sums"))] if total is not None]
    assert max(best_scores(recording, labels, totals)) < 0.05
    for answer in last.answers.values():
        assert list(answer.arrays) == ["global/agreement"]


def test_linear_totals_of_this_layout_are_read_by_the_attack() -> None:
    """The attack that the other tests use works: sums under a flat message, as the step once sent them."""
    labels = tables()
    recording = recorded(labels, "masked")
    total = np.zeros((1, len(CLASSES), 300), dtype=np.int64)
    unit = recording.model.scales(recording.topology.sizes)["objects"].unit
    for site, table in labels.items():
        beta = recording.final_beta[table.clusterings[0].name]
        codes = recording.coded(site, recording.topology.clusterings[SITES.index(site)], table)[recording.rows[site][0]]
        total[0] += np.rint((beta / beta.sum(axis=0))[:, codes] * unit).astype(np.int64)
    assert min(best_scores(recording, labels, [total])) > 0.95


@pytest.mark.promise("Nothing but masked sums leaves a site in masked, and nothing but random words in blind.")
def test_a_member_reads_no_column_from_the_last_step_in_blind(monkeypatch: pytest.MonkeyPatch) -> None:
    labels = tables()
    read: list[tuple[str | None, dict[str, Any]]] = []
    fill = Home.fill

    def watched(home: Home, totals: Any) -> None:
        read.append((home.open_round and home.open_round.step, dict(totals)))
        fill(home, totals)

    monkeypatch.setattr(Home, "fill", watched)
    recording = recorded(labels, "blind")
    last = [totals for step, totals in read if step == "clusterings_only"]
    assert len(last) == len(SITES)
    per_object = [words for totals in last for name, words in totals.items() if ArrayName(name).kind == "block"]
    assert max(best_scores(recording, labels, per_object[:1])) < 0.05
    assert all(list(totals) == ["global/agreement"] for totals in last)
    # The coordinator adds one array of this step and its tag, and no exchange of shares follows.
    steps = [exchange.step for exchange in recording.exchanges]
    assert steps[-2:] == ["clusterings_only", "finish"]
    assert {name for answer in recording.exchanges[-2].answers.values() for name in answer.arrays} == {
        "global/agreement",
        "global/mac",
    }


@pytest.mark.parametrize("privacy", ["plain", "masked", "blind"])
def test_kappa_is_that_of_the_objects_that_one_site_holds(privacy: str) -> None:
    model = BC3E(max_iter=4, tol=0).steps(12)
    alike = {site: SeededStarts(3) for site in SITES}
    shared = run(model, tables(60), alike, classes=CLASSES, privacy=privacy)
    assert shared.outcome.kappa is None
    some = run(model, tables(60, private=40), alike, classes=CLASSES, privacy=privacy)
    assert some.outcome.kappa is not None
    assert some.outcome.kappa > 0.1


def test_a_site_refuses_to_send_sums_of_shared_objects_in_the_last_step(monkeypatch: pytest.MonkeyPatch) -> None:
    answer = Site.answer
    refused: list[str] = []

    def asked_for_more(site: Site, task: Any) -> Any:
        if task.step == "clusterings_only":
            more = {**task.asked, ArrayName.of_block(0, "sums"): ArraySpec((1, 12, 60), 40)}
            with pytest.raises(MessageError) as error:
                answer(site, replace(task, asked=more))
            refused.append(str(error.value))
        return answer(site, task)

    monkeypatch.setattr(Site, "answer", asked_for_more)
    run(BC3E(max_iter=2, tol=0).steps(12), tables(60), {s: SeededStarts(3) for s in SITES}, classes=CLASSES)
    assert refused == ["asked: 1 arrays that this step does not have"] * 5


def test_the_table_asks_for_nothing_of_single_objects_in_the_last_step() -> None:
    model = BC3E(max_iter=2).steps(12)
    result = run(model, tables(60, private=20), {s: SeededStarts(3) for s in SITES}, classes=CLASSES)
    view = result.topology.whole()
    names = expected_arrays("clusterings_only", view, model, model.scales(view.sizes), 1, 0)
    assert [name.kind for name in names] == ["global"]
