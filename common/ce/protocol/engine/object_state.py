"""The object side of one block: at its only site, or at the home of a shared block.

Holds the objects' state, runs the object step on totals, and forms the block's shares of the totals over all objects.
Both places run the same code, so that results do not depend on the place. Objects are processed in stretches of
`STRETCH` numbers: no object's numbers depend on its neighbours, and temporary arrays stay small and in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ce.cancellation import check_cancelled
from ce.errors import MessageError
from ce.kernels.special import encoded_total, likeliest
from ce.protocol.engine.snapshots import Snapshot, by_number, numbered
from ce.ring import Reals, Scale, SentWords, Words, decode, weighted_total
from ce.steps.agreement import agreement
from ce.steps.model import Model, Opening, State
from ce.steps.precision import SentMessage, as_sent

#: Numbers of one array that are worked on at a time.
STRETCH = 2**16

Result = TypeVar("Result")


def select(state: State, starts: NDArray[np.intp]) -> State:
    """The same state for some of its starts."""
    return {name: array[starts] for name, array in state.items()}


class ObjectState:
    """State of a block's objects, for all starts that still run."""

    def __init__(self, opening: Opening, weights: Words | None, pool: Executor | None = None) -> None:
        """With a `pool`, its threads work on stretches side by side."""
        self._pool = pool
        self.opening = opening
        self.weights = weights
        self._stopped: dict[int, State] = {}
        self._stepped = False  # the state was made by a step, and no other object refers to it
        self._sent: SentMessage | None = None  # the last message: it may still be on its way to a site
        self._on_trial = False  # the step of this iteration may be taken back in the next

    def begin(self, model: Model, scales: Mapping[str, Scale], globals_: State, before: State | None) -> None:
        """Start a stage; `before` is the result of the preceding one."""
        self._model = model
        self._scales = scales
        self._stopped = {}
        self._stepped = False
        self.state = model.start_objects(self.opening, globals_, before)
        self.opening = replace(self.opening, given={})  # of the beginning, and of no use after it
        self._accepted: SentWords | None = None
        self._sums: SentWords | None = None
        self._labels = self._hard_labels()
        self._moved = np.zeros_like(self._labels)

    def snapshot(self) -> Snapshot:
        return {
            "state": self.state,
            "accepted": self._accepted,
            "sums": self._sums,
            "on_trial": self._on_trial,
            "labels": self._labels,
            "moved": self._moved,
            "stopped": numbered(self._stopped),
        }

    def restore(self, model: Model, scales: Mapping[str, Scale], snapshot: Snapshot) -> None:
        """Go on in the middle of a stage."""
        self._model = model
        self._scales = scales
        self.state, self._accepted, self._sums = snapshot["state"], snapshot["accepted"], snapshot["sums"]
        self._on_trial = snapshot["on_trial"]
        self._labels, self._moved = snapshot["labels"], snapshot["moved"]
        self._stopped = by_number(snapshot["stopped"])

    @property
    def message(self) -> SentMessage:
        self._sent = as_sent(self._model.message(self.state), self._model.precision)
        return self._sent

    def receive(self, sums: SentWords, globals_: State) -> None:
        """Take the block's total of object sums. Two-phase models run their object step at once."""
        self._sums = sums
        if self._model.phases == 2:
            self._step(sums, globals_)

    def shares(self, globals_: State, iteration: int) -> dict[str, Words]:
        """The block's part of every global total, the bound and the number of objects whose label moved."""
        assert self._sums is not None
        self._on_trial = self._model.takes_trial_steps(iteration)
        if not self._sums.shape[-1]:
            shapes = {**self._model.share_shapes(iteration), "bound": (), "moved": ()}
            return {name: np.zeros((len(self._sums), *shape), dtype=np.int64) for name, shape in shapes.items()}
        sums_of_all = self._sums

        def work(part: slice) -> dict[str, Words]:
            sums = decode(sums_of_all[..., part], self._scales["objects"])
            state = _part(self.state, part)
            terms = self._model.shares(state, sums, self._opening(part), globals_, iteration)
            if self._model.precision == "single":
                terms["bound"] = terms["bound"] + self._model.rounding_of_bound(self._model.message(state), sums)
            return {name: self._total(name, reals, part) for name, reals in terms.items()}

        shapes = self._model.share_shapes(iteration)
        totals = {name: np.zeros((len(sums_of_all), *shape), dtype=np.int64) for name, shape in shapes.items()}
        for shares in self._each(self._stretches(), work):
            for name, words in shares.items():
                totals[name] = totals[name] + words if name in totals else words  # "bound" is in no shape
        totals["moved"] = weighted_total(self._moved.astype(np.int64), self.weights)
        return totals

    def _total(self, name: str, reals: Reals, part: slice) -> Words:
        return encoded_total(
            reals, self._scales["object_bound" if name == "bound" else name], name, self._weights(part)
        )

    def agreement(self, sums: Words) -> Words:
        """(starts, k*k): the block's objects by what their clusterings say, given as sums, and what their votes say."""
        total: Words = np.zeros((len(sums), self._model.k**2), dtype=np.int64)
        for part in self._stretches(self._model.k):
            seen = agreement(decode(sums[..., part], self._scales["objects"]), self._opening(part))
            total += weighted_total(seen.astype(np.int64), self._weights(part))
        return total

    def update(self, surviving: NDArray[np.intp], retry: NDArray[np.bool_], globals_: State) -> None:
        """One-phase models: the object step for the surviving starts; those of `retry` go back to their last sums."""
        self.select_starts(surviving)
        assert self._sums is not None
        if retry.any():
            if self._accepted is None:
                raise MessageError("retry: the last step of this start cannot be taken back")
            self._sums = np.where(retry[:, None, None], self._accepted, self._sums)
        self._accepted = self._sums if self._on_trial else None
        self._step(self._sums, globals_)
        self._sums = None

    def select_starts(self, surviving: NDArray[np.intp]) -> None:
        """Go on with some of the starts only."""
        if len(surviving) == len(self._labels):
            return
        # Those that have just stopped hold on to the arrays of all.
        for state in self._stopped.values():
            state |= {name: array.copy() for name, array in state.items() if array.base is not None}
        self.state = select(self.state, surviving)
        self._labels = self._labels[surviving]
        self._moved = self._moved[surviving]
        self._sums = None if self._sums is None else self._sums[surviving]
        self._accepted = None if self._accepted is None else self._accepted[surviving]

    def stop(self, position: int, start: int) -> None:
        """Put aside the state of a start that has converged."""
        self._stopped[start] = {name: array[position : position + 1] for name, array in self.state.items()}

    def result(self, start: int) -> State:
        """The final state of a start, its axis of starts kept (length 1)."""
        return self._stopped[start]

    def _step(self, sums: SentWords, globals_: State) -> None:
        """In place, but for what may still be on its way to a site."""
        if not sums.shape[-1]:
            return
        state: State = {}
        labels = np.empty_like(self._labels)

        def work(part: slice) -> None:
            reals = decode(sums[..., part], self._scales["objects"])
            new = self._model.objects(reals, _part(self.state, part), self._opening(part), globals_)
            labels[:, part] = likeliest(self._model.memberships(new))
            for name, array in new.items():
                if name not in state:
                    state[name] = self._room(name, array)
                state[name][..., part] = array

        stretches = list(self._stretches())
        if self._stepped:
            state |= {name: self._room(name, array) for name, array in self.state.items()}
        else:
            work(stretches.pop(0))  # makes room for the new state
        for _ in self._each(stretches, work):
            pass
        self._stepped = True
        self.state = state
        self._moved = labels != self._labels
        self._labels = labels

    def _room(self, name: str, like: Reals) -> Reals:
        """Where an array of the new state goes: over the old one, if that is this block's alone."""
        if self._stepped and not (self._sent is not None and np.may_share_memory(self.state[name], self._sent)):
            return self.state[name]
        return np.empty((*like.shape[:-1], self._labels.shape[-1]))

    def _hard_labels(self) -> NDArray[np.intp]:
        return likeliest(self._model.memberships(self.state))

    def _weights(self, part: slice) -> Words | None:
        return None if self.weights is None else self.weights[part]

    def _stretches(self, wider: int = 1) -> Iterator[slice]:
        """All objects, some at a time; no stretch is empty. `wider`: by so much than one number for each cluster."""
        starts, n = self._labels.shape
        size = max(1, STRETCH // (max(starts, 1) * self._model.k * wider))
        for begin in range(0, n, size):
            check_cancelled()
            yield slice(begin, min(begin + size, n))

    def _each(self, parts: Iterable[slice], work: Callable[[slice], Result]) -> Iterator[Result]:
        """Stretch by stretch, results in order."""
        for result in map(work, parts) if self._pool is None else self._pool.map(work, parts):
            check_cancelled()
            yield result

    def _opening(self, part: slice) -> Opening:
        return Opening(self.opening.labels[part], self.opening.votes[:, part], _part(self.opening.given, part))


def _part(state: State, part: slice) -> State:
    """The same state for some of its objects."""
    return {name: array[..., part] for name, array in state.items()}


def cluster_sizes(likeliest: NDArray[np.intp], weights: Words | None, k: int) -> Words:
    """(k,) how many objects belong to each cluster most likely."""
    sizes = np.zeros(k, dtype=np.int64)
    np.add.at(sizes, likeliest, 1 if weights is None else weights)
    return sizes
