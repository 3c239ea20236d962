"""Objects are gone over in stretches, and their state is renewed in place: neither may be seen in any result."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.problems import TOPOLOGIES, Problem, deal, problem
from support.runs import PROBLEMS, assert_equal_runs, fit_in_mode, models

from ce.kernels import backend
from ce.models import BCE
from ce.protocol.engine import object_state as objects
from ce.protocol.engine.home import Home
from ce.protocol.engine.starting_parameters import SeededStarts
from ce.protocol.local_run import run
from ce.protocol.messages.task import Task
from ce.steps.model import Opening, Sizes, no_votes


@pytest.mark.promise("The number of threads, the size of tiles and the order of rows, columns and sites change no bit.")
@pytest.mark.parametrize("name", models(2))
@settings(max_examples=4, deadline=None, derandomize=True)
@given(
    example=PROBLEMS,
    topology=st.sampled_from(list(TOPOLOGIES)),
    sites=st.integers(1, 4),
    seed=st.integers(0, 2**32),
    stretch=st.integers(1, 60),
)
def test_the_length_of_a_stretch_changes_no_bit(
    name: str, example: Problem, topology: str, sites: int, seed: int, stretch: int
) -> None:
    model = models(example.k)[name]
    tables = deal(example.table, TOPOLOGIES[topology](example.table, sites, np.random.default_rng(seed)))
    tables = {site: table for site, table in tables.items() if model.uses_votes or table.clusterings}
    if model.uses_votes and not any(table.classifiers for table in tables.values()):
        return
    whole = fit_in_mode(model, tables, "plain", classes=example.classes)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(objects, "STRETCH", stretch)
        assert_equal_runs(whole, fit_in_mode(models(example.k)[name], tables, "plain", classes=example.classes), tables)


def test_starts_that_stop_one_by_one_keep_their_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """A start that has stopped must not be written over by those that go on."""
    example = problem(5, k=3, clusterings=6, missing=0.2, n=80)
    tables = deal(example.table, TOPOLOGIES["ragged"](example.table, 3, np.random.default_rng(5)))
    starts = {site: SeededStarts(3) for site in tables}
    model = BCE(3, n_init=5, anneal_iter=5, max_iter=60).steps()
    together = run(model, tables, starts)
    assert len({path.iterations for path in together.outcome.paths.values()}) > 2
    monkeypatch.setattr(objects, "STRETCH", 7)
    assert_equal_runs(together, run(model, tables, starts), tables)


@pytest.mark.parametrize("name", models(2))
def test_what_was_sent_is_not_written_over(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A slow stream may read the arrays of a task when the home is rounds further."""
    example = problem(6, k=3, clusterings=6, missing=0.2, n=80, classifiers=3)
    tables = deal(example.table, TOPOLOGIES["columns"](example.table, 3, np.random.default_rng(6)))
    model = models(example.k)[name]
    sent: list[tuple[str, np.ndarray, np.ndarray]] = []
    tasks = Home.tasks

    def recorded(home: Home, keep: int = 0) -> dict[str, Task]:
        found = tasks(home, keep)
        sent.extend((n, array, np.array(array)) for task in found.values() for n, array in task.arrays.items())
        return found

    monkeypatch.setattr(Home, "tasks", recorded)
    fit_in_mode(model, tables, "plain", classes=example.classes)
    assert len({id(array) for own, array, _ in sent if own.endswith("/message")}) > 3
    for own, array, before in sent:
        np.testing.assert_array_equal(array, before, err_msg=own)


def test_the_first_step_goes_over_the_arrays_of_the_beginning_unless_others_refer_to_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pytest.importorskip("numba")  # numpy's kernels return parts of larger arrays, which are left alone
    monkeypatch.setattr(backend, "_chosen", "numba")
    monkeypatch.setattr(objects, "STRETCH", 7)
    model = BCE(3, n_init=2).steps()
    sizes = Sizes(20, 4, 0, 12)
    globals_ = model.start_globals(sizes, None)
    for shared in (False, True):
        opening = Opening(np.full(20, 4.0), no_votes(3, 20))
        state = objects.ObjectState(opening, None)
        state.begin(model, model.scales(sizes), globals_, None)
        first = dict(state.state)
        if shared:
            assert not objects._refer_to_nothing({**first, "also": first["gamma"]}, opening)
            assert not objects._refer_to_nothing({"part": first["gamma"][:1]}, opening)
            assert not objects._refer_to_nothing({"votes": (own := np.zeros((3, 20)))}, Opening(opening.labels, own))
            message = state.message  # on its way to a site: its array is left alone
            before = message.copy()
        state.receive(np.ones((2, 3, 20), dtype=np.int64), globals_)
        state.shares(globals_, 1)
        state.update(np.arange(2), np.zeros(2, dtype=bool), globals_)
        assert state.state["gamma"] is first["gamma"]
        assert (state.state["message"] is first["message"]) == (not shared)
        if shared:
            np.testing.assert_array_equal(message, before)
