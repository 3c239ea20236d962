"""Which starts of a job go on: the hold that ends when labels are calm, and hopeless starts that are dropped."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.problems import problem

import ce
from ce.labels import LabelTable
from ce.models import BCE, Mixture
from ce.protocol.engine import start_selection
from ce.protocol.engine.aggregator import Progress
from ce.protocol.engine.start_selection import BoundPath, StartSelection
from ce.splits import split
from ce.steps.bce import ANNEAL_ITER, CALM_ITERATIONS, CALM_SHARE, SHORTEST_HOLD, BCESteps
from ce.steps.model import GlobalDecision, Rest, Sizes, State

STARTS = 5


def paths_of(estimator: Any, table: LabelTable, monkeypatch: pytest.MonkeyPatch) -> dict[int, BoundPath]:
    """The paths of all starts of a fit."""
    found: list[StartSelection] = []
    end = StartSelection.end
    with monkeypatch.context() as patch:
        patch.setattr(StartSelection, "end", lambda self: found.append(self) or end(self))
        estimator.fit(table)
    return found[-1].paths


@pytest.mark.parametrize("model", ["bce", "mixture"])
@pytest.mark.parametrize("seed", range(4))
def test_dropped_starts_are_the_worse_ones_and_change_nothing_of_the_others(
    model: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = problem(seed, k=4, clusterings=9, n=150, missing=0.1).table

    def fit(halving: bool) -> dict[int, BoundPath]:
        keys: dict[str, Any] = {"n_init": STARTS, "halving": halving, "random_state": seed, "tol": 1e-9}
        if model == "bce":
            return paths_of(BCE(4, local_loops=3, **keys), table, monkeypatch)
        return paths_of(Mixture(4, **keys), table, monkeypatch)

    every, halved = fit(False), fit(True)
    dropped = {start for start, path in halved.items() if path.dropped}
    assert not any(path.dropped for path in every.values())
    assert dropped
    assert start_selection.winner(halved) not in dropped
    for start, path in halved.items():
        # The same bits as in the company of all, to the end or as far as it went.
        assert path.bounds == every[start].bounds[: len(path.bounds)]
        assert start in dropped or path.bounds == every[start].bounds
    # When the first were dropped, all that went on were better.
    first = min(len(halved[start].bounds) for start in dropped)
    least = min(path.bounds[min(first, len(path.bounds)) - 1] for s, path in halved.items() if s not in dropped)
    assert all(halved[s].bounds[-1] <= least for s in dropped if len(halved[s].bounds) == first)


def test_half_of_the_starts_stop_each_time_and_one_is_left() -> None:
    selection = StartSelection(STARTS, halving=True)
    model = BCE(2, n_init=STARTS).steps()
    running, bounds = [], np.array([-5.0, -4.0, -3.0, -2.0, -1.0])
    for halvings in (0.0, 1.0, 1.0, 2.0, 3.0, 4.0):
        starts = list(selection.running)
        none = np.zeros(len(starts), dtype=bool)
        due = np.full(len(starts), halvings)
        found = GlobalDecision(bounds[starts], {}, none, may_stop=none, halvings=due)
        selection.apply(selection.decide(model, found, np.full(len(starts), 9), 10), {})
        running.append(selection.running)
    assert running == [(0, 1, 2, 3, 4), (3, 4), (3, 4), (4,), (4,), (4,)]


def test_a_dropped_start_never_wins_not_even_a_tie() -> None:
    paths = {0: BoundPath([-1.0], dropped=True), 1: BoundPath([-1.0]), 2: BoundPath([-1.0])}
    assert start_selection.winner(paths) == 1


def test_a_start_that_goes_back_is_not_dropped_with_the_step_that_is_taken_back() -> None:
    selection = StartSelection(2, halving=True)
    retry = np.array([True, False])
    found = GlobalDecision(np.array([-9.0, -1.0]), {}, retry, halvings=np.ones(2))
    selection.paths[0].bounds.append(-5.0)
    decisions = selection.decide(BCE(2, n_init=2).steps(), found, np.array([9, 9]), 10)
    assert decisions.dropped.tolist() == [False, False]
    assert decisions.retry.tolist() == [True, False]


#: Layout, further keys of the job, and whether starts are dropped.
DROPPED: list[tuple[str, Mapping[str, Any], bool]] = [
    ("columns:3", {}, True),
    ("columns:3", {"local_loops": 1}, False),
    ("columns:3", {"halving": False}, False),
    ("rows:3", {}, False),
    ("blocks:4", {}, False),
    ("rows:3", {"halving": True}, True),
    ("blocks:4", {"halving": True}, True),
]


@pytest.mark.promise("plain, masked and blind give the same bits.")
@pytest.mark.parametrize(("how", "keys", "dropped"), DROPPED, ids=str)
def test_starts_are_dropped_where_columns_loop_or_the_job_says_so_in_every_mode_alike(
    how: str, keys: Mapping[str, Any], dropped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tables = split(problem(3, k=3, clusterings=6, n=90, missing=0.0).table, how, seed=1)
    job = ce.Job(clusters=3, restarts=4, tolerance=0.0, max_iterations=24, seed=2, **keys)
    ended: list[StartSelection] = []
    end = StartSelection.end
    monkeypatch.setattr(StartSelection, "end", lambda self: ended.append(self) or end(self))
    found = {}
    for privacy in ("plain", "masked", "blind"):
        ended.clear()
        result = ce.simulate(job, tables, privacy=privacy)
        [gone] = {tuple(s for s, path in home.paths.items() if path.dropped) for home in ended}
        assert bool(gone) == dropped
        memberships = [site.memberships.tobytes() for site in result.sites.values()]
        found[privacy] = (gone, result.bound_path.tobytes(), memberships)
    assert found["plain"] == found["masked"] == found["blind"]


@settings(max_examples=25, deadline=None)
@given(moved=st.lists(st.integers(0, 30), min_size=60, max_size=60))
def test_a_hold_ends_when_labels_are_calm_and_not_before_the_shortest_hold(moved: list[int]) -> None:
    objects = 1000
    steps = BCE(2, n_init=1).steps()
    sizes = Sizes(objects, 4, 0, 8)
    globals_ = steps.start_globals(sizes, None)
    held = 0
    for iteration in range(1, 61):
        totals: State = {
            name: np.ones((1, *shape)) for name, shape in steps.share_shapes(iteration).items() if name != "mean_log"
        }
        totals |= {"mean_log": np.full((1, 2), -50.0 * objects), "moved": np.array([float(moved[iteration - 1])])}
        globals_ = steps.global_step(np.array([-1.0]), totals, globals_, sizes, iteration).globals
        held += int(globals_["learning"][0] == 0)
        assert steps.can_have(globals_, iteration + 1)
    calm = [
        sum(m <= CALM_SHARE * objects for m in moved[t - CALM_ITERATIONS : t]) == CALM_ITERATIONS for t in range(61)
    ]
    ends = next((t for t in range(SHORTEST_HOLD, ANNEAL_ITER) if calm[t]), ANNEAL_ITER)
    assert held == ends - 1


def test_a_site_takes_no_start_for_one_that_learns_before_the_shortest_hold() -> None:
    steps: BCESteps = BCE(2, n_init=2).steps()
    alpha = np.full((2, 2), 3.0)
    for iteration in range(1, 30):
        for learning in (0.0, 0.5, 1.0, float(iteration), -1.0):
            allowed = learning == 0.0 or (learning >= 1.0 and learning <= iteration - SHORTEST_HOLD)
            state = {"alpha": alpha, "learning": np.array([0.0, learning])}
            assert steps.can_have(state, iteration) == allowed, (iteration, learning)


def test_rest_is_a_small_share_of_labels_for_some_iterations_and_a_small_change_of_the_bound() -> None:
    rest = Rest(iterations=3, share=0.1, tolerance=1e-3)
    path = BoundPath()
    for bound, moved in ((-100.0, 5.0), (-99.0, -1.0), (-98.99, 0.0), (-98.98, -0.5)):
        assert not path.has_converged(1e-9, rest)
        path.accept(bound, moved)
    assert path.has_converged(1e-9, rest)
    assert not path.has_converged(0.0, rest)
    path.accept(-97.0, -1.0)
    assert not path.has_converged(1e-9, rest)


def test_progress_counts_the_starts_that_run() -> None:
    seen: list[Progress] = []
    table = problem(1, k=3, clusterings=6, n=80, missing=0.0).table
    BCE(3, n_init=4, halving=True, max_iter=20, tol=0, random_state=0, progress=seen.append).fit(table)
    running = [p.running for p in seen]
    assert running[: SHORTEST_HOLD - 1] == [4] * (SHORTEST_HOLD - 1)
    assert running == sorted(running, reverse=True)
    assert set(running[SHORTEST_HOLD:-1]) == {2}
