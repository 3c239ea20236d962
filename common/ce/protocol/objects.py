"""The object side of one block, wherever it is at home: at its only site, or at the home of a shared block.

Holds the objects' state, runs the object step on totals, and forms the block's shares of the global totals. The same
code at both places, so that the place cannot matter.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ce.errors import MessageError
from ce.protocol.snapshots import Snapshot, by_number, numbered
from ce.ring import Reals, Scale, Words, decode, encode, weighted_total
from ce.steps.model import Model, Opening, State


def select(state: State, starts: NDArray[np.intp]) -> State:
    """The same state for some of its starts."""
    return {name: array[starts] for name, array in state.items()}


class ObjectBlock:
    """State of a block's objects, for all starts that still run."""

    def __init__(self, opening: Opening, weights: Words | None) -> None:
        self.opening = opening
        self.weights = weights
        self._stopped: dict[int, State] = {}

    def begin(self, model: Model, scales: Mapping[str, Scale], globals_: State, before: State | None) -> None:
        """Start a stage; `before` is the result of the preceding one."""
        self._model = model
        self._scales = scales
        self._stopped = {}
        self.state = model.start_objects(self.opening, globals_, before)
        self._accepted: Words | None = None
        self._sums: Words | None = None
        self._labels = self._hard_labels()
        self._moved = np.zeros_like(self._labels)

    def snapshot(self) -> Snapshot:
        return {
            "state": self.state,
            "accepted": self._accepted,
            "sums": self._sums,
            "labels": self._labels,
            "moved": self._moved,
            "stopped": numbered(self._stopped),
        }

    def restore(self, model: Model, scales: Mapping[str, Scale], kept: Snapshot) -> None:
        """Go on in the middle of a stage."""
        self._model = model
        self._scales = scales
        self.state, self._accepted, self._sums = kept["state"], kept["accepted"], kept["sums"]
        self._labels, self._moved, self._stopped = kept["labels"], kept["moved"], by_number(kept["stopped"])

    @property
    def message(self) -> Reals:
        return self._model.message(self.state)

    def receive(self, sums: Words, globals_: State) -> None:
        """Take the block's total of object sums. Two-phase models run their object step at once."""
        self._sums = sums
        if self._model.phases == 2:
            self._step(decode(sums, self._scales["objects"]), globals_)

    def shares(self, globals_: State, iteration: int) -> dict[str, Words]:
        """The block's part of every global total, the bound and the number of objects whose label moved."""
        assert self._sums is not None
        if not self._sums.shape[-1]:
            shapes = {**self._model.share_shapes(iteration), "bound": (), "moved": ()}
            return {name: np.zeros((len(self._sums), *shape), dtype=np.int64) for name, shape in shapes.items()}
        sums = decode(self._sums, self._scales["objects"])
        shares = self._model.shares(self.state, sums, self.opening, globals_, iteration)
        totals = {
            name: weighted_total(
                encode(terms, self._scales["object_bound" if name == "bound" else name], name), self.weights
            )
            for name, terms in shares.items()
        }
        totals["moved"] = weighted_total(self._moved.astype(np.int64), self.weights)
        return totals

    def update(self, kept: NDArray[np.intp], retry: NDArray[np.bool_], globals_: State) -> None:
        """One-phase models: the object step for the starts `kept`; those of `retry` go back to their last sums."""
        self.keep(kept)
        assert self._sums is not None
        if retry.any():
            if self._accepted is None:
                raise MessageError("retry: no step was taken that could be taken back")
            self._sums = np.where(retry[:, None, None], self._accepted, self._sums)
        self._accepted = self._sums
        self._step(decode(self._sums, self._scales["objects"]), globals_)

    def keep(self, kept: NDArray[np.intp]) -> None:
        """Go on with some of the starts only."""
        if len(kept) == len(self._labels):
            return
        self.state = select(self.state, kept)
        self._labels = self._labels[kept]
        self._moved = self._moved[kept]
        self._sums = None if self._sums is None else self._sums[kept]
        self._accepted = None if self._accepted is None else self._accepted[kept]

    def stop(self, position: int, start: int) -> None:
        """Put aside the state of a start that has converged."""
        self._stopped[start] = select(self.state, np.array([position]))

    def result(self, start: int) -> State:
        """The final state of a start, its axis of starts kept (length 1)."""
        return self._stopped[start]

    def _step(self, sums: Reals, globals_: State) -> None:
        if not sums.shape[-1]:
            return
        self.state = self._model.objects(sums, self.state, self.opening, globals_)
        labels = self._hard_labels()
        self._moved = labels != self._labels
        self._labels = labels

    def _hard_labels(self) -> NDArray[np.intp]:
        labels: NDArray[np.intp] = self._model.memberships(self.state).argmax(axis=1)
        return labels


def cluster_sizes(likeliest: NDArray[np.intp], weights: Words | None, k: int) -> Words:
    """(k,) how many objects belong to each cluster most likely."""
    sizes = np.zeros(k, dtype=np.int64)
    np.add.at(sizes, likeliest, 1 if weights is None else weights)
    return sizes
