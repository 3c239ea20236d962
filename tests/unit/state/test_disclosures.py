"""The budget of definitions: how many have opened totals of each object, and what is refused."""

from __future__ import annotations

import hashlib
import stat
import tempfile
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ce.errors import ConfigError, JobFailed, Refused
from ce_client.state.disclosures import DIRECTORY, Budget, Disclosure, Disclosures, definition_key, disclosure_of

SECRET = b"\x07" * 32
MODES = ("plain", "masked", "blind")  # the first shows totals to the most viewers
A, B, C = (definition_key(name) for name in (b"a", b"b", b"c"))


class Notes:
    """A ledger that only remembers what it was told."""

    def __init__(self) -> None:
        self.disclosures: list[tuple[str, str, str, int, str]] = []
        self.allowed: list[tuple[str, str, str]] = []

    def disclosure(self, job: str, definition: str, mode: str, objects: int, sha256: str) -> bytes:
        self.disclosures.append((job, definition, mode, objects, sha256))
        return bytes(32)

    def allow_definition(self, job: str, definition: str, mode: str) -> bytes:
        self.allowed.append((job, definition, mode))
        return bytes(32)


class Killed(Notes):
    """A daemon that is killed before the line is written."""

    def disclosure(self, job: str, definition: str, mode: str, objects: int, sha256: str) -> bytes:
        raise JobFailed("killed")


def of(definition: str, mode: str, objects: Iterable[int], secret: bytes = SECRET) -> Disclosure:
    return disclosure_of(definition, mode, secret, [f"object {number}" for number in objects])


# The count.


def naive(before: list[tuple[int, str, frozenset[int]]], definition: int, mode: str, object_: int) -> tuple[int, int]:
    """Definitions of an object before, and what one more disclosure costs it: each mode that shows the totals of one
    definition to a new viewer."""
    counted, costs = 0, 1
    shown: dict[int, int] = {}
    for other, other_mode, objects in before:
        if object_ in objects and MODES.index(other_mode) < shown.get(other, len(MODES)):
            counted, shown[other] = counted + 1, MODES.index(other_mode)
    if MODES.index(mode) >= shown.get(definition, len(MODES)):
        costs = 0
    return counted, costs


_JOBS = st.lists(
    st.tuples(st.integers(0, 3), st.sampled_from(MODES), st.frozensets(st.integers(0, 7), max_size=8)), max_size=12
)


@pytest.mark.promise("Totals of an object are opened by as many definitions as the policy allows, over all jobs.")
@settings(max_examples=60, deadline=None)
@given(jobs=_JOBS, limit=st.integers(1, 4))
def test_the_count_of_every_object_is_that_of_a_naive_model(
    jobs: list[tuple[int, str, frozenset[int]]], limit: int
) -> None:
    with tempfile.TemporaryDirectory() as state:
        done: list[tuple[int, str, frozenset[int]]] = []
        for definition, mode, objects in jobs:
            expected = [naive(done, definition, mode, object_) for object_ in sorted(objects)]
            disclosure = of(definition_key(str(definition).encode()), mode, objects)
            budget = Disclosures(Path(state)).budget(disclosure, limit)
            assert budget.objects == len(objects)
            assert budget.used == max((before for before, _ in expected), default=0)
            assert budget.after == max((before + costs for before, costs in expected), default=0)
            assert budget.over == sum(costs and before + costs > limit for before, costs in expected)
            if budget.over:
                with pytest.raises(Refused):
                    Disclosures(Path(state)).record("job", disclosure, limit, Notes())
            else:
                Disclosures(Path(state)).record("job", disclosure, limit, Notes())
                done.append((definition, mode, objects))
        counts = [naive(done, -1, "blind", object_)[0] for object_ in range(8)]
        usage = {number: counts.count(number) for number in sorted(set(counts), reverse=True) if number}
        assert Disclosures(Path(state)).usage() == usage


@pytest.mark.parametrize(
    ("first", "second", "costs"),
    [
        ("masked", "masked", 0),
        ("masked", "blind", 0),
        ("plain", "masked", 0),
        ("plain", "blind", 0),
        ("blind", "masked", 1),
        ("masked", "plain", 1),
        ("blind", "plain", 1),
    ],
)
def test_the_same_definition_costs_only_where_somebody_new_sees_its_totals(
    tmp_path: Path, first: str, second: str, costs: int
) -> None:
    disclosures = Disclosures(tmp_path)
    disclosures.record("one", of(A, first, range(9)), 1, Notes())
    budget = disclosures.budget(of(A, second, range(9)), 1)
    assert (budget.used, budget.after, budget.over) == (1, 1 + costs, 9 * costs)


def test_a_refusal_says_how_much_and_what_to_do_and_names_no_object(tmp_path: Path) -> None:
    disclosures, notes = Disclosures(tmp_path), Notes()
    disclosures.record("one", of(A, "masked", range(9)), 1, notes)
    with pytest.raises(Refused) as refused:
        disclosures.record("two", of(B, "masked", range(6, 12)), 1, notes)
    assert refused.value.rule == "max_definitions"
    said = str(refused.value)
    assert "totals of 3 objects" in said
    assert "1 definition so far, and this site allows 1" in said
    assert "submit the same definition as before, under any name" in said
    assert "ce-client allow-definition two" in said
    assert "object 6" not in said
    assert [line[:4] for line in notes.disclosures] == [("one", A, "masked", 9)]
    assert disclosures.usage() == {1: 9}
    disclosures.record("three", of(B, "masked", range(9, 12)), 1, notes)  # of objects that no job has opened
    assert disclosures.usage() == {1: 12}


def test_nothing_is_counted_where_no_object_is_shared(tmp_path: Path) -> None:
    disclosures, notes = Disclosures(tmp_path), Notes()
    disclosures.record("one", of(A, "masked", ()), 1, notes)
    assert not notes.disclosures
    assert disclosures.usage() == {}
    assert not (tmp_path / DIRECTORY).exists()


@pytest.mark.promise("Totals of an object are opened by as many definitions as the policy allows, over all jobs.")
def test_of_jobs_that_begin_at_the_same_time_no_more_than_the_limit_are_counted(tmp_path: Path) -> None:
    def begin(number: int) -> bool:
        try:
            disclosure = of(definition_key(str(number).encode()), "masked", range(50))
            Disclosures(tmp_path).record(f"job {number}", disclosure, 2, Notes())
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(begin, range(16))) == 2
    assert Disclosures(tmp_path).usage() == {2: 50}


# Files.


def test_files_have_no_id_and_only_their_owner_reads_them(tmp_path: Path) -> None:
    notes = Notes()
    Disclosures(tmp_path).record("one", of(A, "masked", range(9)), 1, notes)
    (path,) = (tmp_path / DIRECTORY).iterdir()
    assert path.name == f"{A}.ids"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    content = path.read_bytes()
    assert b"object" not in content
    plain_hashes = [hashlib.sha256(f"object {number}".encode()).digest()[:16] for number in range(9)]
    assert not any(own in content for own in plain_hashes), "without the site's secret an id cannot be tested"
    assert hashlib.sha256(content).hexdigest() == notes.disclosures[0][4] == Disclosures(tmp_path).digest(A)
    assert Disclosures(tmp_path).digest(B) is None


def test_a_kill_before_the_line_of_the_ledger_loses_no_count(tmp_path: Path) -> None:
    disclosures, notes = Disclosures(tmp_path), Notes()
    with pytest.raises(JobFailed):
        disclosures.record("one", of(A, "masked", range(9)), 1, Killed())
    with pytest.raises(Refused):
        disclosures.record("two", of(B, "masked", range(9)), 1, notes)
    disclosures.record("one", of(A, "masked", range(9)), 1, notes)
    assert [line[0] for line in notes.disclosures] == ["one"], "the next attempt writes the line that is missing"


@pytest.mark.parametrize("damage", [b"", b"x", b"\0" * 100])
def test_a_damaged_file_is_an_error_and_frees_nothing(tmp_path: Path, damage: bytes) -> None:
    disclosures = Disclosures(tmp_path)
    disclosures.record("one", of(A, "masked", range(9)), 1, Notes())
    path = tmp_path / DIRECTORY / f"{A}.ids"
    content = path.read_bytes()
    for written in (damage, content[:-17], content[:-1] + b"?", content[:-49] + content[-32:]):
        path.write_bytes(written)
        for definition in (A, B):
            with pytest.raises(ConfigError, match="is damaged"):
                disclosures.record("two", of(definition, "masked", range(9)), 1, Notes())
        with pytest.raises(ConfigError, match="is damaged"):
            disclosures.usage()


def test_another_secret_frees_nothing(tmp_path: Path) -> None:
    disclosures = Disclosures(tmp_path)
    disclosures.record("one", of(A, "masked", range(9)), 1, Notes())
    with pytest.raises(ConfigError, match="another secret"):
        disclosures.record("two", of(B, "masked", range(9), b"\x08" * 32), 1, Notes())


# Allowances.


def test_an_allowance_is_for_one_definition_in_its_mode_or_a_stronger_one(tmp_path: Path) -> None:
    disclosures, notes = Disclosures(tmp_path), Notes()
    disclosures.record("one", of(A, "masked", range(9)), 1, notes)
    assert disclosures.allow(B, "masked", "two")
    assert not disclosures.allow(B, "masked", "again")
    for definition, mode in ((B, "plain"), (C, "masked")):
        with pytest.raises(Refused):
            disclosures.record("other", of(definition, mode, range(9)), 1, notes)
    assert not notes.allowed
    disclosures.record("another name", of(B, "blind", range(9)), 1, notes)
    disclosures.record("another name", of(B, "masked", range(9)), 1, notes)
    assert notes.allowed == [("two", B, "masked")], "the first use is recorded, once"
    assert disclosures.usage() == {3: 9}, "what is allowed is counted"
    with pytest.raises(Refused, match="3 definitions so far"):
        disclosures.record("three", of(C, "masked", range(9)), 1, notes)


@pytest.mark.parametrize("damage", ["{", "7", "[7]", '[{"definition": "x"}]'])
def test_damaged_allowances_are_an_error(tmp_path: Path, damage: str) -> None:
    Disclosures(tmp_path).allow(A, "masked", "one")
    (tmp_path / DIRECTORY / "allowed.json").write_text(damage)
    with pytest.raises(ConfigError, match="is damaged"):
        Disclosures(tmp_path).allowed(A, "masked")


def test_a_budget_says_what_it_is() -> None:
    budget = Budget(A, "masked", 300, used=1, after=2, limit=1, over=300, allowed=False)
    said = "that open totals of 300 objects that other sites hold too: 1 before this job, 2 with it, 1 allowed"
    assert (budget.sentence, budget.refuses) == (said, True)
    allowed = Budget(A, "masked", 300, used=1, after=2, limit=1, over=300, allowed=True)
    assert (allowed.sentence, allowed.refuses) == (f"{said}; this one was allowed here", False)
