"""What sealed jobs have cost: counted once per job and object, whatever is killed when, and never beyond the policy."""

from __future__ import annotations

import math
import os
import sqlite3
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ce.errors import CeError, ConfigError, JobFailed, Refused
from ce.labels import LabelTable
from ce.policy import Policy
from ce.privacy.zcdp import epsilon_of, rho_of
from ce.protocol.sealed.records import ReleaseRequest
from ce_client.state.ledger import FILE_NAME as LEDGER
from ce_client.state.ledger import Ledger, entries
from ce_client.state.releases import database
from ce_client.state.releases.database import FILE_NAME, ReleaseDatabase
from ce_client.state.releases.job_records import JobRecords, SealedJob
from ce_client.state.releases.keyed_ids import keyed_objects
from ce_client.state.releases.store import Releases

SECRET = bytes(32)
DELTA = 1e-6
RHO = rho_of(1.0, DELTA)  # of a job of epsilon 1
COMMITMENTS = {"east": b"e" * 32, "north": b"n" * 32}


class Lines:
    """A ledger in memory."""

    def __init__(self) -> None:
        self.lines: list[tuple[Any, ...]] = []

    def about_release(self, kind: str, job: str, **values: Any) -> bytes:
        self.lines.append((kind, job, *values.values()))
        return b""

    @property
    def kinds(self) -> Counter[str]:
        return Counter(line[0] for line in self.lines)


def table(ids: range, shift: int = 0, columns: tuple[str, ...] = ("a", "b")) -> LabelTable:
    """Labels that follow from the ids, columns and `shift`."""
    cells = np.array([[(i + ord(name) + shift) % 3 for name in columns] for i in ids])
    return LabelTable.from_arrays(cells, ids=[f"object {i}" for i in ids], columns=list(columns))


def sealed(name: str, labels: LabelTable, definition: str = "", secret: bytes = SECRET) -> SealedJob:
    return SealedJob(name.encode().hex(), name, definition or f"definition of {name}", keyed_objects(secret, labels))


def request(n: int, rho: float = RHO, shared: int = 0) -> ReleaseRequest:
    """Of n objects, of which the first are shared."""
    return ReleaseRequest(rho, DELTA, np.arange(n), np.arange(shared))


def records(
    state: Path, name: str, labels: LabelTable, ledger: Any = None, policy: Policy | None = None, **keys: Any
) -> JobRecords:
    return Releases(state).records(sealed(name, labels, **keys), policy or Policy(), ledger or Lines())


def opened(state: Path, name: str, labels: LabelTable, *, rho: float = RHO, shared: int = 0, **keys: Any) -> JobRecords:
    """A job whose tables were opened."""
    found = records(state, name, labels, **keys)
    found.reserve(request(labels.n_objects, rho, shared))
    found.commit(1, b"context", b"nonce", b"share")
    found.open(COMMITMENTS)
    return found


def rounded(usage: dict[float | None, int]) -> dict[float | None, int]:
    return {None if epsilon is None else round(epsilon, 6): objects for epsilon, objects in usage.items()}


def test_a_share_is_charged_once_and_given_back_as_it_was_written(tmp_path: Path) -> None:
    ledger = Lines()
    found = opened(tmp_path, "first", table(range(10)), ledger=ledger)
    found.open({"another": b""})
    again = records(tmp_path, "first", table(range(10)), ledger)
    release = again.release()
    assert release is not None
    assert (release.origin, release.context, release.state) == (1, b"context", "opening")
    assert (release.nonce, release.share, release.commitments, release.model) == (b"nonce", b"share", COMMITMENTS, b"")
    for method, arguments in (("commit", (2, b"", b"", b"other")), ("discard", ()), ("fail", (2, b""))):
        with pytest.raises(JobFailed, match=r"release of this job: expected .*, got opening"):
            getattr(again, method)(*arguments)
    with pytest.raises(JobFailed):
        again.reserve(request(10))
    assert rounded(Releases(tmp_path).budget(DELTA).spent) == {1.0: 10}
    assert ledger.kinds == {"charge": 1, "release": 1}
    charge = next(line for line in ledger.lines if line[0] == "charge")
    assert charge[1:4] == ("first", 10, RHO)
    assert (charge[4], charge[5], charge[7]) == (pytest.approx(1.0), DELTA, "opening")


def test_two_label_files_with_common_objects_compose(tmp_path: Path) -> None:
    """Ten objects are in both files, with other columns: what is told about them adds up."""
    opened(tmp_path, "first", table(range(20)))
    second = records(tmp_path, "second", table(range(10, 40), columns=("x", "y", "z")))
    cost = second.cost(request(30))
    assert cost.before == pytest.approx(1.0)
    assert cost.epsilon == pytest.approx(1.0)
    assert cost.after == pytest.approx(epsilon_of(2 * RHO, DELTA))
    assert (cost.over, cost.refuses) == (0, False)
    opened(tmp_path, "second", table(range(10, 40), columns=("x", "y", "z")))
    both = epsilon_of(2 * RHO, DELTA)
    assert rounded(Releases(tmp_path).budget(DELTA).spent) == {round(both, 6): 10, 1.0: 30}
    third = records(tmp_path, "third", table(range(15, 16)))
    cost = third.cost(request(1, rho_of(1.9, DELTA)))
    assert (cost.over, cost.limit) == (1, 2.0)
    with pytest.raises(Refused, match="rule: max_epsilon") as refused:
        third.reserve(request(1, rho_of(1.9, DELTA)))
    assert "object 15" not in str(refused.value)
    # Objects that were in one of them only have room.
    records(tmp_path, "fourth", table(range(5))).reserve(request(5))


def test_the_epsilon_of_the_policy_is_allowed_and_not_a_bit_more(tmp_path: Path) -> None:
    records(tmp_path, "exactly", table(range(5))).reserve(request(5, rho_of(2.0, DELTA)))
    with pytest.raises(Refused, match="rule: max_epsilon"):
        records(tmp_path, "more", table(range(10, 15))).reserve(request(5, rho_of(2.01, DELTA)))
    with pytest.raises(Refused, match="rule: max_epsilon"):
        records(tmp_path, "nothing", table(range(10, 15)), policy=Policy(max_epsilon=0.0)).reserve(request(5, 1e-9))


def test_exact_tables_have_no_limit_and_later_jobs_of_these_objects_are_refused(tmp_path: Path) -> None:
    exact = Policy(allow_exact=True)
    ledger = Lines()
    opened(tmp_path, "exact", table(range(5)), rho=math.inf, policy=exact, ledger=ledger)
    assert ledger.lines[0][3:5] == (None, None)
    assert rounded(Releases(tmp_path).budget(DELTA).spent) == {None: 5}
    records(tmp_path, "noisy", table(range(5)), policy=exact).reserve(request(5))
    noisy = records(tmp_path, "noisy 2", table(range(5)))
    assert noisy.cost(request(5)).before is None
    with pytest.raises(Refused, match="rule: max_epsilon"):
        noisy.reserve(request(5))


# Reservations.


def test_reservations_count_until_they_are_freed(tmp_path: Path) -> None:
    rho = rho_of(1.5, DELTA)
    first, second = (records(tmp_path, name, table(range(10))) for name in ("first", "second"))
    first.reserve(request(10, rho))
    first.reserve(request(10, rho))  # the same job once more replaces it
    with pytest.raises(Refused, match="rule: max_epsilon"):
        second.reserve(request(10, rho))
    first.commit(1, b"", b"nonce", b"share")
    with pytest.raises(Refused, match="rule: max_epsilon"):
        second.reserve(request(10, rho))
    assert rounded(Releases(tmp_path).budget(DELTA).spent) == {}
    assert rounded(Releases(tmp_path).budget(DELTA).reserved) == {round(1.5, 6): 10}
    first.discard()
    assert first.release() is None
    second.reserve(request(10, rho))
    Releases(tmp_path).over("second")
    first.reserve(request(10, rho))
    Releases(tmp_path).begin((), Lines(), DELTA)
    assert Releases(tmp_path).budget(DELTA).jobs == ()


def test_of_jobs_in_parallel_only_as_many_reserve_as_there_is_room_for(tmp_path: Path) -> None:
    def reserve(number: int) -> bool:
        try:
            records(tmp_path, f"job {number}", table(range(20))).reserve(request(20, RHO / 2))
        except Refused:
            return False
        return True

    with ThreadPoolExecutor(8) as pool:
        reserved = sum(pool.map(reserve, range(16)))
    room = int(rho_of(2.0, DELTA) / (RHO / 2))
    assert reserved == room
    assert rounded(Releases(tmp_path).budget(DELTA).reserved) == {round(epsilon_of(room * RHO / 2, DELTA), 6): 20}


def test_a_failed_check_of_the_dealer_is_charged(tmp_path: Path) -> None:
    ledger = Lines()
    found = records(tmp_path, "first", table(range(10)), ledger)
    found.reserve(request(10, shared=10))
    found.fail(3, b"context")
    found.fail(3, b"context")
    release = found.release()
    assert release is not None
    assert (release.state, release.origin, release.share) == ("failed", 3, b"")
    assert rounded(Releases(tmp_path).budget(DELTA).spent) == {1.0: 10}
    assert ledger.kinds == {"charge": 1}
    assert ledger.lines[0][-1] == "failed"
    # Nothing was labelled: another job may do it.
    assert records(tmp_path, "second", table(range(10))).cost(request(10, shared=10)).labelled == 0


# Labels.


def labelled(found: JobRecords, block: bytes, rows: range) -> None:
    found.settle(block, 1, b"share", b"key", b"nonce", 3)
    found.enter(block, np.array(rows), COMMITMENTS)


@pytest.mark.promise("An object is labelled together with other sites once for the same own labels, over all jobs.")
def test_an_object_is_labelled_once_with_the_same_labels_over_all_files_and_jobs(tmp_path: Path) -> None:
    rho = RHO / 8
    ledger = Lines()
    first = opened(tmp_path, "first", table(range(10)), rho=rho, shared=6, ledger=ledger)
    labelled(first, b"block", range(6))
    first.enter(b"block", np.arange(6), {})
    assert [line[:4] for line in ledger.lines if line[0] == "labelling"] == [("labelling", "first", b"block".hex(), 6)]
    found = first.labels(b"block")
    assert found is not None
    assert (found.state, found.share, found.key, found.nonce) == ("entered", b"share", b"key", b"nonce")
    assert (found.commitments, found.n_clusters) == (COMMITMENTS, 3)
    # Another file, the columns in another order, some objects more: the same labels of the same objects.
    same = table(range(5, 15)).select(columns=["b", "a"])
    second = records(tmp_path, "second", same)
    assert second.cost(request(10, rho, shared=10)).labelled == 1
    with pytest.raises(Refused, match="rule: one labelling"):
        second.reserve(request(10, rho, shared=10))
    second.reserve(request(10, rho))  # objects that no other site holds are labelled at home
    second.discard()
    # Another label of each object: another row.
    other = records(tmp_path, "third", table(range(5, 15), shift=1))
    assert other.cost(request(10, rho, shared=10)).labelled == 0
    budget = Releases(tmp_path).budget(DELTA)
    assert (budget.labelled, budget.relabelled) == (6, 0)
    labelled(opened(tmp_path, "fourth", table(range(4, 8), shift=1), rho=rho, shared=4), b"another", range(4))
    budget = Releases(tmp_path).budget(DELTA)
    assert (budget.labelled, budget.relabelled) == (8, 2)


def test_an_object_is_labelled_once_in_one_job_whatever_the_block(tmp_path: Path) -> None:
    """A coordinator that orders the objects of a block otherwise gets another digest, and no other labels."""
    releases, ledger = Releases(tmp_path), Lines()
    found = opened(tmp_path, "first", table(range(10)), shared=8, ledger=ledger)
    labelled(found, b"block", range(6))
    for rows in (range(6), range(5, -1, -1), range(5, 8)):
        found.settle(b"another order", 2, b"share", b"key", b"nonce", 3)
        with pytest.raises(Refused, match="rule: one labelling"):
            found.enter(b"another order", np.array(rows), COMMITMENTS)
        record = found.labels(b"another order")
        assert record is not None
        assert record.state == "settled"
        found.discard_labels(b"another order")
    labelled(found, b"other objects", range(6, 8))
    assert ledger.kinds["labelling"] == 2
    # Nobody can allow it: an allowance is for what other jobs have labelled.
    releases.over("first")
    releases.allow("same", "second")
    second = opened(tmp_path, "second", table(range(10)), rho=RHO / 8, shared=8, definition="same")
    labelled(second, b"block", range(6))
    second.settle(b"another order", 2, b"share", b"key", b"nonce", 3)
    with pytest.raises(Refused, match="rule: one labelling"):
        second.enter(b"another order", np.arange(6), COMMITMENTS)


def test_the_right_to_a_labelling_is_reserved_with_the_tables_and_spent_when_they_are_opened(tmp_path: Path) -> None:
    rho = RHO / 8
    first, second = (records(tmp_path, name, table(range(10))) for name in ("first", "second"))
    first.reserve(request(10, rho, shared=4))
    with pytest.raises(Refused, match="rule: one labelling"):
        second.reserve(request(10, rho, shared=4))
    first.discard()
    second.reserve(request(10, rho, shared=4))
    second.commit(1, b"", b"", b"share")
    second.open(COMMITMENTS)
    Releases(tmp_path).over("second")  # without having labelled anything
    with pytest.raises(Refused, match="rule: one labelling"):
        first.reserve(request(10, rho, shared=4))


def test_labels_are_only_entered_for_objects_that_were_reserved_and_after_a_share_is_written(tmp_path: Path) -> None:
    found = opened(tmp_path, "first", table(range(10)), shared=4)
    assert found.labels(b"block") is None
    with pytest.raises(JobFailed, match="labels of this job: expected settled or entered, got none"):
        found.enter(b"block", np.arange(4), {})
    found.settle(b"block", 1, b"share", b"key", b"nonce", 3)
    with pytest.raises(JobFailed, match="expected none, got settled"):
        found.settle(b"block", 2, b"share", b"key", b"nonce", 3)
    with pytest.raises(JobFailed, match="of other objects than this site has reserved"):
        found.enter(b"block", np.arange(5), {})
    found.discard_labels(b"block")
    assert found.labels(b"block") is None
    labelled(found, b"block", range(4))
    with pytest.raises(JobFailed, match="expected none or settled, got entered"):
        found.discard_labels(b"block")


def test_one_model_is_accepted_in_a_job(tmp_path: Path) -> None:
    ledger = Lines()
    found = records(tmp_path, "first", table(range(3)), ledger)
    with pytest.raises(JobFailed, match="expected opening, got none"):
        found.accept_model(b"model")
    found = opened(tmp_path, "first", table(range(3)), ledger=ledger)
    found.accept_model(b"model")
    found.accept_model(b"model")
    with pytest.raises(JobFailed, match="accepted another one"):
        found.accept_model(b"other")
    release = records(tmp_path, "first", table(range(3))).release()
    assert release is not None
    assert release.model == b"model"
    assert ledger.kinds == {"charge": 1, "release": 1, "model": 1}


# Allowances.


def test_an_allowance_is_for_one_release_of_one_definition_under_any_name(tmp_path: Path) -> None:
    rho, releases, ledger = rho_of(1.5, DELTA), Releases(tmp_path), Lines()
    opened(tmp_path, "first", table(range(4)), rho=rho, shared=4)
    assert releases.allow("same", "second")
    assert not releases.allow("same", "second")
    assert releases.allowed("same")
    second = records(tmp_path, "second", table(range(4)), definition="same", ledger=ledger)
    third = records(tmp_path, "third", table(range(4)), definition="same")
    with pytest.raises(Refused):
        records(tmp_path, "other", table(range(4))).reserve(request(4, rho))
    second.reserve(request(4, rho, shared=4))
    assert not releases.allowed("same")
    with pytest.raises(Refused):
        third.reserve(request(4, rho))
    second.discard()  # never opened: the allowance is not used
    third.reserve(request(4, rho, shared=4))
    releases.over("third")
    second.reserve(request(4, rho, shared=4))
    second.commit(1, b"", b"", b"")
    second.open(COMMITMENTS)
    labelled(second, b"block", range(4))
    assert ledger.kinds == {"allow-release": 1, "charge": 1, "release": 1, "labelling": 1}
    with pytest.raises(Refused):
        third.reserve(request(4, rho))
    assert rounded(releases.budget(DELTA).spent) == {round(epsilon_of(2 * rho, DELTA), 6): 4}


# The end of a job, and other files.


def test_bytes_of_shares_are_deleted_when_a_job_ends_and_what_it_cost_stays(tmp_path: Path) -> None:
    found = opened(tmp_path, "first", table(range(5)), shared=3)
    labelled(found, b"block", range(2))
    found.settle(b"other block", 1, b"share", b"key", b"nonce", 3)
    before = Releases(tmp_path).budget(DELTA)
    Releases(tmp_path).over("first")
    Releases(tmp_path).over("first")
    after = Releases(tmp_path).budget(DELTA)
    assert (after.spent, after.labelled) == (before.spent, before.labelled)
    assert (rounded(after.spent), after.labelled) == ({1.0: 5}, 2)
    with pytest.raises(Refused, match="rule: finished job"):
        found.release()
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        assert database.execute("SELECT count(*) FROM labels").fetchone() == (1,)
        assert database.execute("SELECT share, nonce, model FROM releases").fetchone() == (b"", b"", b"")


def test_ids_and_labels_cannot_be_read_from_the_file(tmp_path: Path) -> None:
    found = opened(tmp_path, "first", table(range(5)), shared=5)
    labelled(found, b"block", range(5))
    for path in tmp_path.iterdir():
        assert b"object" not in path.read_bytes().replace(b"objects", b"")
        assert path.stat().st_mode & 0o077 == 0
    other = keyed_objects(b"other" * 7, table(range(5)))
    assert not set(other.objects.tolist()) & set(keyed_objects(SECRET, table(range(5))).objects.tolist())
    with pytest.raises(JobFailed, match="another secret"):
        records(tmp_path, "second", table(range(5)), secret=b"other" * 7).reserve(request(5))


def test_a_missing_label_leaves_no_trace_in_a_row() -> None:
    with_empty = LabelTable.from_arrays(
        np.array([[0, -1], [1, -1]]), ids=["object 0", "object 1"], columns=["a", "never"]
    )
    without = LabelTable.from_arrays(np.array([[0], [1]]), ids=["object 0", "object 1"], columns=["a"])
    renamed = LabelTable.from_arrays(np.array([[0], [1]]), ids=["object 0", "object 1"], columns=["b"])
    rows = [keyed_objects(SECRET, one).labellings.tolist() for one in (with_empty, without, renamed)]
    assert rows[0] == rows[1]
    assert not set(rows[1]) & set(rows[2])


class _Counted(sqlite3.Connection):
    opened = 0

    def __init__(self, *arguments: Any, **keys: Any) -> None:
        _Counted.opened += 1
        super().__init__(*arguments, **keys)


def test_the_rounds_of_a_job_open_the_file_once_and_see_what_others_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (records(tmp_path, name, table(range(10))) for name in ("first", "second"))
    monkeypatch.setattr(_Counted, "opened", 0)
    monkeypatch.setattr(ReleaseDatabase, "connection_class", _Counted)
    first.keep_open()
    with pytest.raises(JobFailed, match="expected reserved, got none"):
        first.commit(1, b"", b"", b"")
    first.reserve(request(10))
    first.commit(1, b"context", b"nonce", b"bytes of the share")
    first.open(COMMITMENTS)
    assert first.release() is not None
    assert _Counted.opened == 2  # after an error once more
    second.reserve(request(10, RHO / 8))
    assert rounded(Releases(tmp_path).budget(DELTA).spent) == {1.0: 10}
    Releases(tmp_path).over("first")
    with pytest.raises(Refused, match="rule: finished job"):
        first.release()
    first.close()
    # The last to close it writes the log back: nothing that was deleted stays in a file beside it.
    assert [path.name for path in tmp_path.iterdir()] == [FILE_NAME]
    assert b"bytes of the share" not in (tmp_path / FILE_NAME).read_bytes()
    with pytest.raises(Refused, match="rule: finished job"):
        first.release()


def test_a_file_that_is_replaced_during_a_job_is_the_one_that_counts(tmp_path: Path) -> None:
    found = records(tmp_path, "first", table(range(10)))
    found.keep_open()
    found.reserve(request(10))
    (tmp_path / FILE_NAME).rename(tmp_path / "archive.sqlite")
    with pytest.raises(JobFailed, match="expected reserved, got none"):
        found.commit(1, b"", b"nonce", b"share")
    found.close()


@pytest.mark.parametrize("lock", ["exclusive", "immediate"])
def test_a_file_that_another_process_holds_is_not_called_damaged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lock: str
) -> None:
    """With an exclusive lock it cannot even be opened; with the other one there is no transaction."""
    records(tmp_path, "first", table(range(10))).reserve(request(10))
    monkeypatch.setattr(database, "_BUSY_S", 0.0)
    holder = sqlite3.connect(tmp_path / FILE_NAME, isolation_level=None)
    if lock == "exclusive":
        holder.execute("PRAGMA locking_mode = EXCLUSIVE")
    holder.execute(f"BEGIN {lock}")
    try:
        with pytest.raises(ConfigError if lock == "exclusive" else JobFailed, match="another process holds it") as held:
            records(tmp_path, "second", table(range(10))).reserve(request(10))
    finally:
        holder.close()
    assert "backup, or" not in str(held.value)


def test_a_command_beside_a_job_leaves_it_its_log(tmp_path: Path) -> None:
    """Another process that opens and closes the file must not take it for its own while a job has it open."""
    found = records(tmp_path, "first", table(range(10)))
    found.keep_open()
    found.reserve(request(10))
    records(tmp_path, "second", table(range(20, 25))).reserve(request(5))  # another job of this process
    program = "import sqlite3, sys; d = sqlite3.connect(sys.argv[1]); d.execute('SELECT * FROM site'); d.close()"
    subprocess.run([sys.executable, "-c", program, str(tmp_path / FILE_NAME)], check=True, timeout=60)
    found.commit(1, b"context", b"nonce", b"share")
    assert records(tmp_path, "first", table(range(10))).release() is not None
    found.close()
    release = records(tmp_path, "first", table(range(10))).release()
    assert release is not None
    assert release.state == "committed"


@pytest.mark.parametrize("content", [b"no database at all", b"SQLite format 3\0" + bytes(84)], ids=["text", "header"])
def test_a_damaged_file_is_an_error_and_never_an_empty_budget(tmp_path: Path, content: bytes) -> None:
    (tmp_path / FILE_NAME).write_bytes(content)
    with pytest.raises(ConfigError, match=r"releases\.sqlite"):
        Releases(tmp_path).budget(DELTA)


def test_the_database_of_another_program_is_left_alone(tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        database.execute("CREATE TABLE theirs (x)")
    with pytest.raises(ConfigError, match="of another program"):
        Releases(tmp_path).budget(DELTA)
    with sqlite3.connect(tmp_path / FILE_NAME) as database:
        assert database.execute("SELECT name FROM sqlite_master").fetchall() == [("theirs",)]


# Crashes.


class _Killed(sqlite3.Connection):
    """Ends the process, as kill -9 would, before the statement of this number that writes something."""

    left = 0

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        if not arguments[0].startswith(("PRAGMA", "BEGIN", "SELECT")):
            if _Killed.left == 0:
                os._exit(9)
            _Killed.left -= 1
        return super().execute(*arguments)


def append(path: Path, content: bytes) -> None:
    with path.open("ab") as file:
        file.write(content)


def play(state: Path) -> None:
    """A whole job at a site, taken up wherever its records are, as `SealedSite` does it."""
    with Ledger(state / LEDGER, "north") as ledger:
        found = records(state, "first", table(range(6)), ledger)
        found.keep_open()
        release = found.release()
        if release is None or release.state == "committed":
            found.discard()
            found.reserve(request(6, shared=4))
            found.commit(1, b"context", b"nonce", os.urandom(8))
            release = found.release()
        assert release is not None
        if release.state == "committed":
            found.open(COMMITMENTS)
        append(state / "sent", release.share)
        if not release.model:
            found.accept_model(b"model")
        labels = found.labels(b"block")
        if labels is None or labels.state == "settled":
            found.discard_labels(b"block")
            found.settle(b"block", 1, os.urandom(8), b"key", b"nonce", 3)
        found.enter(b"block", np.arange(4), COMMITMENTS)
        labels = found.labels(b"block")
        assert labels is not None
        append(state / "labels", labels.share)
        found.close()


def in_a_process_that_is_killed(state: Path, statement: int) -> bool:
    """Play until so many statements were executed; whether the job came to its end before."""
    child = os.fork()
    if child == 0:
        try:
            _Killed.left = statement
            ReleaseDatabase.connection_class = _Killed
            play(state)
        except BaseException:
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, 9)
    return code == 0


@pytest.mark.parametrize("stride", [pytest.param(1, marks=pytest.mark.slow), 5])
def test_a_process_that_is_killed_at_any_statement_charges_once_and_opens_the_same_bytes(
    tmp_path: Path, stride: int
) -> None:
    statement, finished = 0, False
    while not finished:
        state = tmp_path / str(statement)
        state.mkdir()
        finished = in_a_process_that_is_killed(state, statement)
        play(state)
        play(state)  # and once more, as a later attempt
        budget = Releases(state).budget(DELTA)
        assert rounded(budget.spent) == {1.0: 6}
        assert (budget.labelled, len(budget.jobs)) == (4, 1)
        for what in ("sent", "labels"):
            content = (state / what).read_bytes()
            assert {content[at : at + 8] for at in range(0, len(content), 8)} == {content[:8]}
        kinds = Counter(line["kind"] for line in entries(state / LEDGER))
        # A line may be there twice: then the process was killed between the line and the note that it is written.
        assert all(1 <= kinds[kind] <= 2 for kind in ("charge", "release", "model", "labelling"))
        assert sum(kinds[kind] == 2 for kind in ("charge", "release", "model", "labelling")) <= 2
        statement += stride
    assert statement > 20


def test_the_ledger_gets_its_lines_from_the_next_daemon_also_if_the_job_is_not_offered_again(tmp_path: Path) -> None:
    class Full(Lines):
        def about_release(self, kind: str, job: str, **values: Any) -> bytes:
            raise JobFailed("the ledger of this site cannot be written")

    with pytest.raises(JobFailed):
        opened(tmp_path, "first", table(range(3)), ledger=Full())
    ledger = Lines()
    Releases(tmp_path).begin((), ledger, DELTA)
    assert ledger.kinds == {"charge": 1, "release": 1}
    Releases(tmp_path).begin((), ledger, DELTA)
    assert ledger.kinds == {"charge": 1, "release": 1}


# Many jobs over overlapping files, against a model in plain Python.


@dataclass
class _Job:
    ids: range
    shared: int
    rho: float
    state: str = "none"


@dataclass
class _Naive:
    """The same rules, object by object."""

    jobs: dict[str, _Job] = field(default_factory=dict)

    def rho(self, object_: int, but: str = "", *, spent: bool = False) -> float:
        states = ("opening", "failed") if spent else ("reserved", "committed", "opening", "failed")
        return sum(
            job.rho for name, job in self.jobs.items() if name != but and job.state in states and object_ in job.ids
        )

    def taken(self, object_: int, but: str) -> bool:
        return any(
            name != but and job.state in ("reserved", "committed", "opening") and object_ in job.ids[: job.shared]
            for name, job in self.jobs.items()
        )

    def refuses(self, name: str) -> bool:
        job = self.jobs[name]
        over = any(epsilon_of(self.rho(i, name) + job.rho, DELTA) > 2.0 * (1 + 1e-6) for i in job.ids)
        return over or any(self.taken(i, name) for i in job.ids[: job.shared])


class ManyJobs(RuleBasedStateMachine):
    """Jobs begin, open, fail and end in any order."""

    @initialize()
    def begin(self) -> None:
        self.directory = TemporaryDirectory()
        self.state = Path(self.directory.name)
        self.naive = _Naive()
        self.over: set[str] = set()

    def teardown(self) -> None:
        self.directory.cleanup()

    def records(self, name: str) -> JobRecords:
        return records(self.state, name, table(self.naive.jobs[name].ids))

    def names(self, *states: str) -> list[str]:
        return [name for name, job in self.naive.jobs.items() if job.state in states and name not in self.over]

    @rule(
        start=st.integers(0, 8), n=st.integers(1, 8), share=st.integers(0, 8), epsilon=st.sampled_from([0.2, 0.9, 1.4])
    )
    def new_job(self, start: int, n: int, share: int, epsilon: float) -> None:
        name = f"job {len(self.naive.jobs)}"
        self.naive.jobs[name] = _Job(range(start, start + n), min(share, n), rho_of(epsilon, DELTA))

    @precondition(lambda self: self.names("none", "reserved"))
    @rule(data=st.data())
    def reserve(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.names("none", "reserved")))
        job = self.naive.jobs[name]
        refused = self.naive.refuses(name)
        try:
            self.records(name).reserve(request(len(job.ids), job.rho, job.shared))
        except Refused:
            assert refused
        else:
            assert not refused
            job.state = "reserved"

    @precondition(lambda self: self.names("reserved"))
    @rule(data=st.data(), failed=st.booleans())
    def commit_or_fail(self, data: st.DataObject, failed: bool) -> None:
        name = data.draw(st.sampled_from(self.names("reserved")))
        if failed:
            self.records(name).fail(1, b"")
        else:
            self.records(name).commit(1, b"", b"nonce", b"share")
        self.naive.jobs[name].state = "failed" if failed else "committed"

    @precondition(lambda self: self.names("committed"))
    @rule(data=st.data())
    def open(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.names("committed")))
        self.records(name).open(COMMITMENTS)
        self.naive.jobs[name].state = "opening"

    @precondition(lambda self: self.names("reserved", "committed"))
    @rule(data=st.data(), ends=st.booleans())
    def discard(self, data: st.DataObject, ends: bool) -> None:
        name = data.draw(st.sampled_from(self.names("reserved", "committed")))
        if ends:
            Releases(self.state).over(name)
        else:
            self.records(name).discard()
        self.naive.jobs[name].state = "none"

    @precondition(lambda self: self.names("opening", "failed"))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(self.names("opening", "failed")))
        Releases(self.state).over(name)
        self.over.add(name)

    @precondition(lambda self: self.names("none", "committed"))
    @rule(data=st.data())
    def wrong(self, data: st.DataObject) -> None:
        """What does not fit the state changes nothing."""
        name = data.draw(st.sampled_from(self.names("none", "committed")))
        with pytest.raises(CeError):
            self.records(name).fail(1, b"")

    @invariant()
    def counts_are_those_of_the_model(self) -> None:
        expected: Counter[float] = Counter()
        for object_ in range(20):
            if rho := self.naive.rho(object_, spent=True):
                expected[round(epsilon_of(rho, DELTA), 9)] += 1
        found = Releases(self.state).budget(DELTA).spent
        assert {round(epsilon or 0.0, 9): n for epsilon, n in found.items()} == dict(expected)


ManyJobs.TestCase.settings = settings(max_examples=8, stateful_step_count=15, deadline=None)
TestManyJobs = ManyJobs.TestCase
