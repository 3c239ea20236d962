"""A run that is cut off at any checkpoint and taken up by other processes ends with the bits of an undisturbed one.

Nothing survives a cut but what was kept: snapshots, as bytes. Keys, masks and everything else are new.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.problems import TOPOLOGIES, Problem, deal, problem
from support.runs import PROBLEMS, models

from ce.errors import MessageError
from ce.job import MODES_OF_TOTALS
from ce.labels import LabelTable
from ce.models import BCE, Mixture
from ce.protocol.attempt import Attempt
from ce.protocol.engine.aggregator import Outcome, add_answer
from ce.protocol.engine.home import Home
from ce.protocol.engine.site import Site
from ce.protocol.engine.starting_parameters import SecretStarts
from ce.protocol.local_alignment import local_pair_keys
from ce.protocol.messages.task import Task
from ce.protocol.modes.blind_coordinator import BlindCoordinator
from ce.protocol.modes.contributor import Contributor, contributor
from ce.protocol.topology.enrolment import enrol, with_tokens
from ce.protocol.topology.topology import align, block_pseudonyms
from ce.service.checkpoints import CheckpointFailed, CheckpointFiles, CheckpointId, Checkpoints, MemoryCheckpoints
from ce.steps.model import Model

KEY = bytes(32)
CONTEXT = b"context"


class Processes:
    """A home and its sites: one attempt at a job. Only checkpoints outlive it."""

    def __init__(
        self,
        model: Model,
        tables: Mapping[str, LabelTable],
        classes: Any,
        privacy: str,
        kept: Mapping[str, Checkpoints],
    ) -> None:
        enrolments = {site: enrol(table, model.uses_votes, KEY) for site, table in tables.items()}
        topology, rows = align(enrolments)
        self.sites = {
            s: Site(
                s,
                with_tokens(table, KEY),
                topology.view(s),
                rows[s],
                model,
                SecretStarts.of(s.encode(), KEY, b"job"),
                classes=classes,
            )
            for s, table in sorted(tables.items())
        }
        attempt = Attempt("job", b"", 1, topology.sites)
        keys = local_pair_keys(attempt) if privacy != "plain" else {s: {} for s in self.sites}
        self.members: dict[str, Contributor] = {
            s: contributor(
                privacy, attempt, site, topology.view(s), model, enrolments[s].objects, rows[s], keys[s], b"story"
            )
            for s, site in self.sites.items()
        }
        known = block_pseudonyms(topology, enrolments, rows)
        self.home = (BlindCoordinator if privacy == "blind" else Home)(topology.whole(), model, pseudonyms=known)
        self.kept = kept

    def resume(self) -> CheckpointId | None:
        labels = [set(own.ids("job", CONTEXT)) for own in self.kept.values()]
        common = set.intersection(*labels)
        if not common:
            return None
        label = max(common)
        self.home.restore(self.kept["home"].load("job", CONTEXT, label), label.origin)
        return label

    def run(self, keep_every: int, most_rounds: int) -> bool:
        """Whether the job is over; False: it was cut off after so many rounds."""
        for _ in range(most_rounds):
            home = self.home
            keep = 1 if keep_every and home.begins_iteration and home.rounds % keep_every == 0 else 0
            if keep:
                self.kept["home"].save("job", CONTEXT, CheckpointId(1, home.rounds), home.snapshot())
            tasks = home.tasks(0 if any(task.resume for task in home.tasks().values()) else keep)
            if not tasks:
                return True
            for site, task in tasks.items():
                add_answer(home, site, self.answer(site, task))
            home.advance()
        return not self.home.tasks()

    def answer(self, site: str, task: Task) -> Any:
        own = self.members[site]
        if task.resume:
            return own.resume(task, self.kept[site].load("job", CONTEXT, CheckpointId(task.resume, task.round)))
        answer = own.answer(task)
        if task.checkpoint:
            assert own.checkpoint is not None
            self.kept[site].save("job", CONTEXT, CheckpointId(task.checkpoint, task.round), own.checkpoint)
        return answer

    @property
    def outcome(self) -> Outcome:
        if isinstance(self.home, Home):
            return self.home.result
        return next(iter(self.members.values())).home.result  # type: ignore[attr-defined, no-any-return]


def assert_same(one: Processes, other: Processes) -> None:
    for name, site in one.sites.items():
        np.testing.assert_array_equal(other.sites[name].memberships(), site.memberships())
        np.testing.assert_array_equal(other.sites[name].unlabelled, site.unlabelled)
        for column in site.columns:
            np.testing.assert_array_equal(other.sites[name].beta(column.index), site.beta(column.index))
    assert other.outcome.paths == one.outcome.paths
    assert (other.outcome.winner, other.outcome.kappa) == (one.outcome.winner, one.outcome.kappa)
    for name, value in one.outcome.globals.items():
        np.testing.assert_array_equal(other.outcome.globals[name], value, err_msg=name)


def keepers(tables: Mapping[str, LabelTable]) -> dict[str, Checkpoints]:
    return {name: MemoryCheckpoints() for name in ("home", *tables)}


def dealt(example: Problem, model: Model, topology: str, sites: int, seed: int) -> dict[str, LabelTable] | None:
    tables = deal(
        example.table, TOPOLOGIES[topology](example.table, sites, np.random.default_rng(seed)), lists_all=True
    )
    tables = {site: table for site, table in tables.items() if model.uses_votes or table.clusterings}
    if model.uses_votes and not any(table.classifiers for table in tables.values()):
        return None
    return tables


@pytest.mark.promise("kill -9 of any process at any moment ends with the same bits.")
@pytest.mark.parametrize("privacy", MODES_OF_TOTALS)
@pytest.mark.parametrize("name", models(2))
@settings(max_examples=4, deadline=None, derandomize=True)
@given(
    example=PROBLEMS,
    topology=st.sampled_from(sorted(TOPOLOGIES)),
    sites=st.integers(2, 4),
    seed=st.integers(0, 2**32),
    keep_every=st.integers(1, 4),
    cuts=st.lists(st.integers(1, 9), min_size=1, max_size=3),
)
def test_a_run_that_is_cut_off_ends_with_the_same_bits(
    name: str,
    privacy: str,
    example: Problem,
    topology: str,
    sites: int,
    seed: int,
    keep_every: int,
    cuts: list[int],
) -> None:
    model = models(example.k)[name]
    tables = dealt(example, model, topology, sites, seed)
    if tables is None:
        return
    undisturbed = Processes(model, tables, example.classes, privacy, keepers(tables))
    assert undisturbed.run(0, 10_000)
    kept = keepers(tables)
    for cut in (*cuts, 10_000):
        own = Processes(models(example.k)[name], tables, example.classes, privacy, kept)
        own.resume()
        if own.run(keep_every, cut):
            break
    assert_same(undisturbed, own)


@pytest.mark.parametrize("privacy", MODES_OF_TOTALS)
def test_what_was_done_is_not_done_again_and_lost_checkpoints_cost_only_time(privacy: str) -> None:
    example = problem(5, k=3, clusterings=6, missing=0.2, n=80)
    model = BCE(3, n_init=3, anneal_iter=5, max_iter=30, tol=0).steps()
    tables = dealt(example, model, "ragged", 4, 5)
    assert tables is not None
    undisturbed = Processes(model, tables, (), privacy, keepers(tables))
    assert undisturbed.run(0, 10_000)
    kept = keepers(tables)
    first = Processes(model, tables, (), privacy, kept)
    assert not first.run(1, 20)
    second = Processes(model, tables, (), privacy, kept)
    label = second.resume()
    assert label is not None
    assert label.round > 20 - (1 if privacy != "blind" else 3)  # exchanges of one iteration
    assert not second.run(1, 4)
    # A site whose newest state is gone, and then all of them: the one before it, then the beginning.
    site = next(iter(tables))
    newest = kept[site].ids("job", CONTEXT)[-1]
    del kept[site]._saved["job"][newest]  # type: ignore[attr-defined]
    third = Processes(model, tables, (), privacy, kept)
    older = third.resume()
    assert older is not None
    assert older < newest
    assert third.run(3, 10_000)
    assert_same(undisturbed, third)
    kept[site].remove("job")
    fourth = Processes(model, tables, (), privacy, kept)
    assert fourth.resume() is None
    assert fourth.run(0, 10_000)
    assert_same(undisturbed, fourth)


def test_a_site_goes_on_from_its_state_only_with_the_task_that_it_was_kept_for() -> None:
    example = problem(5, k=2, clusterings=4, missing=0.0, n=40)
    model = Mixture(2, n_init=2, max_iter=6, tol=0).steps()
    tables = dealt(example, model, "columns", 3, 5)
    assert tables is not None
    kept = keepers(tables)
    first = Processes(model, tables, (), "masked", kept)
    first.run(2, 7)
    second = Processes(model, tables, (), "masked", kept)
    label = second.resume()
    assert label is not None
    site, task = next(iter(second.home.tasks().items()))
    state = kept[site].load("job", CONTEXT, label)
    for lie in ({"iteration": task.iteration + 1}, {"starts": (0,)}, {"step": "clusterings_only"}):
        with pytest.raises(MessageError, match="resume: expected the task whose answer"):
            second.members[site].resume(Task(**{**vars(task), **lie}), state)
    second.members[site].resume(task, state)
    with pytest.raises(MessageError, match="resume: expected as the first task"):
        second.members[site].resume(task, state)


# Files.


def files(path: Path, key: bytes = KEY, largest: int = 2**30) -> CheckpointFiles:
    return CheckpointFiles(path, key, largest)


SNAPSHOT = {
    "numbers": [1, -2.5, float("inf"), None, True],
    "text": "x",
    "bytes": b"\x00\xff",
    "arrays": {
        "big": np.arange(400_000).reshape(2, 200_000),
        "none": np.zeros((0, 3)),
        "flags": np.array([True, False]),
    },
}


def test_files_give_back_what_was_kept_and_keep_two(tmp_path: Path) -> None:
    own = files(tmp_path)
    assert own.ids("demo", CONTEXT) == []
    for label in (CheckpointId(1, 3), CheckpointId(1, 9), CheckpointId(2, 4)):
        own.save("demo", CONTEXT, label, SNAPSHOT | {"round": label.round})
    own.save("other", CONTEXT, CheckpointId(1, 1), {"a": 1})
    assert own.ids("demo", CONTEXT) == [CheckpointId(1, 9), CheckpointId(2, 4)]
    found = files(tmp_path).load("demo", CONTEXT, CheckpointId(2, 4))
    assert found["round"] == 4
    assert found["numbers"] == SNAPSHOT["numbers"]
    assert found["bytes"] == SNAPSHOT["bytes"]
    for name, array in SNAPSHOT["arrays"].items():  # type: ignore[attr-defined]
        np.testing.assert_array_equal(found["arrays"][name], array)
        assert found["arrays"][name].dtype == array.dtype
    own.remove("demo")
    assert own.ids("demo", CONTEXT) == []
    assert own.ids("other", CONTEXT) == [CheckpointId(1, 1)]
    own.remove("never there")


def test_files_are_of_one_key_one_job_and_one_alignment_and_show_nothing(tmp_path: Path) -> None:
    files(tmp_path).save("demo", CONTEXT, CheckpointId(1, 3), SNAPSHOT | {"text": "canary-4711"})
    assert files(tmp_path, bytes([1]) * 32).ids("demo", CONTEXT) == []
    assert files(tmp_path).ids("demo", b"another") == []
    with pytest.raises(CheckpointFailed):
        files(tmp_path).load("demo", b"another", CheckpointId(1, 3))
    [path] = tmp_path.rglob("*.checkpoint")
    assert b"canary" not in path.read_bytes()
    assert "demo" not in str(path)
    assert path.stat().st_mode & 0o077 == 0
    path.rename(path.with_name("1-4.checkpoint"))  # another moment
    assert files(tmp_path).ids("demo", CONTEXT) == []


@settings(max_examples=60, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_damaged_file_is_as_good_as_none(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    directory = tmp_path_factory.mktemp("kept")
    own = files(directory)
    own.save("demo", CONTEXT, CheckpointId(1, 3), {"a": np.arange(10), "b": "x"})
    [path] = directory.rglob("*.checkpoint")
    content = bytearray(path.read_bytes())
    how = data.draw(st.sampled_from(["flip", "cut", "more", "replace"]))
    at = data.draw(st.integers(0, len(content) - 1))
    if how == "flip":
        content[at] ^= 1 << data.draw(st.integers(0, 7))
    elif how == "cut":
        del content[at:]
    elif how == "more":
        content += data.draw(st.binary(min_size=1, max_size=40))
    else:
        content = bytearray(data.draw(st.binary(max_size=100)))
    path.write_bytes(content)
    assert own.ids("demo", CONTEXT) == []
    with pytest.raises(CheckpointFailed):
        own.load("demo", CONTEXT, CheckpointId(1, 3))


def test_frames_that_are_cut_off_at_their_ends_are_noticed(tmp_path: Path) -> None:
    own = files(tmp_path)
    own.save("demo", CONTEXT, CheckpointId(1, 3), {"a": np.zeros(400_000)})
    [path] = tmp_path.rglob("*.checkpoint")
    content = path.read_bytes()
    head = 6 + 2 + 16
    path.write_bytes(content[: head + 4 + 2**20 + 16])  # whole frames, but not all
    assert own.ids("demo", CONTEXT) == []


def test_what_is_too_large_or_has_no_room_is_not_kept_and_the_older_ones_stay(tmp_path: Path) -> None:
    own = files(tmp_path, largest=1000)
    own.save("demo", CONTEXT, CheckpointId(1, 3), {"a": np.zeros(10)})
    with pytest.raises(CheckpointFailed, match="larger than 1,000 bytes"):
        own.save("demo", CONTEXT, CheckpointId(1, 4), {"a": np.zeros(1000)})
    if Path("/dev/full").exists():
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("os.fsync", _full)
            with pytest.raises(CheckpointFailed, match="No space left"):
                own.save("demo", CONTEXT, CheckpointId(1, 4), {"a": np.zeros(10)})
    assert own.ids("demo", CONTEXT) == [CheckpointId(1, 3)]
    assert [p.name for p in tmp_path.rglob("*") if p.is_file()] == ["1-3.checkpoint"]


def _full(_: int) -> None:
    raise OSError(28, "No space left on device")
