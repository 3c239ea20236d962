"""A computation ends soon after its cancellation was requested, wherever it is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Timer

import numpy as np
import pytest

import ce
from ce.cancellation import BATCH, Cancellation, ComputationCancelled, cancellable, check_cancelled, checked
from ce.consensus_file import write_consensus
from ce.privacy.masks import Masks, Part
from ce.privacy.pseudonyms import pseudonyms

TABLE = ce.LabelTable.from_arrays(np.random.default_rng(0).integers(0, 3, (60, 4)))


def fit(path: Path, **options: int) -> None:
    sites = {"a": TABLE, "b": ce.LabelTable.from_arrays(np.zeros((3, 1), dtype=int), ids=["x", "y", "z"])}
    ce.simulate(ce.Job(name="a", clusters=3, sites=("a", "b"), privacy="plain", tolerance=0.0, **options), sites)


LONG: dict[str, Callable[[Path], object]] = {
    "local loops": lambda path: fit(path, local_loops=1_000_000, restarts=1),
    "iterations": lambda path: fit(path, max_iterations=1_000_000, restarts=1),
    "pseudonyms": lambda path: pseudonyms(bytes(32), [str(i) for i in range(1_000_000)]),
    "masks": lambda path: Masks("a", {f"b{i}": bytes(32) for i in range(20)}).mask(
        1,
        [Part(("a", *(f"b{i}" for i in range(20))), [np.zeros(2**23, dtype=np.int64)])],
        {f"b{i}": bytes(32) for i in range(20)},
    ),
    "result files": lambda path: write_consensus(
        path / "consensus.csv", np.full(500_000, "a"), np.zeros(500_000, dtype=int), np.ones((500_000, 1)), ()
    ),
}


@pytest.mark.parametrize("what", LONG)
def test_a_long_computation_ends_when_it_is_cancelled(what: str, tmp_path: Path) -> None:
    cancellation = Cancellation()
    timer = Timer(0.05, cancellation.request)
    timer.start()
    with cancellable(cancellation), pytest.raises(ComputationCancelled):
        LONG[what](tmp_path)
    assert not list(tmp_path.iterdir())


def test_only_what_was_begun_under_a_cancellation_ends() -> None:
    cancellation = Cancellation()
    cancellation.request()
    check_cancelled()
    with cancellable(cancellation), cancellable(Cancellation()):
        check_cancelled()
    with cancellable(cancellation), pytest.raises(ComputationCancelled):
        check_cancelled()
    check_cancelled()


def test_a_loop_is_checked_now_and_then() -> None:
    cancellation, seen = Cancellation(), iter(range(10 * BATCH))
    cancellation.request()
    with cancellable(cancellation), pytest.raises(ComputationCancelled):
        list(checked(seen))
    assert next(seen) == 1
    with cancellable(Cancellation()):
        assert list(checked(range(2 * BATCH))) == list(range(2 * BATCH))
