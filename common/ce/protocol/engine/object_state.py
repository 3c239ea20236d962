"""The object side of one block: at its only site, or at the home of a shared block.

Holds the objects' state, runs the object step on totals, and forms the block's shares of the totals over all objects.
Both places run the same code, so that results do not depend on the place. Objects are processed in stretches of
`STRETCH` numbers: no object's numbers depend on its neighbours, and temporary arrays stay small and in the cache.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import NamedTuple, TypeVar

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


class _Stretch(NamedTuple):
    """Some objects, and what does not change about them during a stage."""

    part: slice
    opening: Opening
    weights: Words | None


class ObjectState:
    """State of a block's objects, for all starts that still run."""

    def __init__(self, opening: Opening, weights: Words | None, pool: Executor | None = None) -> None:
        """With a `pool`, its threads work on stretches side by side."""
        self._pool = pool
        self.opening = opening
        self.weights = weights
        self._stopped: dict[int, State] = {}
        self._stepped = False  # the state was made by a step, stretch by stretch
        self._alone = False  # no other object refers to the arrays of the state
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
        self._alone = _refer_to_nothing(self.state, self.opening)
        self._accepted: SentWords | None = None
        self._sums: SentWords | None = None
        self._labels = likeliest(model.memberships(self.state))
        self._moved = np.zeros(self._labels.shape, dtype=bool)
        self._stretches = self._cut()

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
        self._stretches = self._cut()

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
        sums_of_all, found = self._sums, dict[str, Words]()

        def work(stretch: _Stretch) -> dict[str, Words]:
            part, opening, weights = stretch
            sums = decode(sums_of_all[..., part], self._scales["objects"])
            state = _part(self.state, part)
            terms = self._model.shares(state, sums, opening, globals_, iteration)
            if self._model.precision == "single":
                terms["bound"] = terms["bound"] + self._model.rounding_of_bound(self._model.message(state), sums)
            return {name: self._total(name, reals, weights) for name, reals in terms.items()}

        for shares in self._each(self._stretches, work):
            for name, words in shares.items():
                found[name] = found[name] + words if name in found else words
        starts, shapes = len(sums_of_all), {**self._model.share_shapes(iteration), "bound": ()}
        totals = {  # zero is the total of no objects, and of what no start needs
            name: found[name] if name in found else np.zeros((starts, *shape), dtype=np.int64)
            for name, shape in shapes.items()
        }
        totals["moved"] = weighted_total(self._moved.astype(np.int64), self.weights)
        return totals

    def _total(self, name: str, reals: Reals, weights: Words | None) -> Words:
        return encoded_total(reals, self._scales["object_bound" if name == "bound" else name], name, weights)

    def agreement(self, sums: Words) -> Words:
        """(starts, k*k): the block's objects by what their clusterings say, given as sums, and what their votes say."""
        total: Words = np.zeros((len(sums), self._model.k**2), dtype=np.int64)
        for part, opening, weights in self._cut(self._model.k):
            check_cancelled()
            seen = agreement(decode(sums[..., part], self._scales["objects"]), opening)
            total += weighted_total(seen.astype(np.int64), weights)
        return total

    def update(self, surviving: NDArray[np.intp], retry: NDArray[np.bool_], globals_: State) -> None:
        """One-phase models: the object step for the surviving starts; those of `retry` go back to their last sums."""
        self.select_starts(surviving)
        assert self._sums is not None
        if np.count_nonzero(retry):
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
        self._stretches = self._cut()

    def stop(self, position: int, start: int) -> None:
        """Put aside the state of a start that has converged."""
        self._stopped[start] = {name: array[position : position + 1] for name, array in self.state.items()}

    def result(self, start: int) -> State:
        """The final state of a start, its axis of starts kept (length 1)."""
        return self._stopped[start]

    def _step(self, sums: SentWords, globals_: State) -> None:
        if not sums.shape[-1]:
            return
        labels = np.empty(self._labels.shape, dtype=np.intp)

        def work(stretch: _Stretch) -> State:
            part, opening, _ = stretch
            reals = decode(sums[..., part], self._scales["objects"])
            new = self._model.objects(reals, _part(self.state, part), opening, globals_)
            labels[:, part] = likeliest(self._model.memberships(new))
            return new

        if len(self._stretches) == 1:
            new = work(self._stretches[0])
            check_cancelled()
            self.state = {name: np.ascontiguousarray(array, dtype=np.float64) for name, array in new.items()}
            self._stepped = self._alone = False
        else:
            self._step_in_place(work)
        self._moved = labels != self._labels
        self._labels = labels

    def _step_in_place(self, work: Callable[[_Stretch], State]) -> None:
        """Every stretch of the new state goes over the old one, but for what may still be on its way to a site."""
        state: State = {}

        def work_in_place(stretch: _Stretch) -> None:
            for name, array in work(stretch).items():
                if name not in state:
                    state[name] = self._room(name, array)
                state[name][..., stretch.part] = array

        stretches = list(self._stretches)
        if self._stepped:
            state |= {name: self._room(name, array) for name, array in self.state.items()}
        else:
            work_in_place(stretches.pop(0))  # makes room for the new state
        for _ in self._each(stretches, work_in_place):
            pass
        self._stepped = self._alone = True
        self.state = state

    def _room(self, name: str, like: Reals) -> Reals:
        """Where an array of the new state goes: over the old one, if that is this block's alone."""
        old, shape = self.state.get(name), (*like.shape[:-1], self._labels.shape[-1])
        on_its_way = old is not None and self._sent is not None and np.may_share_memory(old, self._sent)
        if old is None or old.shape != shape or on_its_way or not self._alone:
            return np.empty(shape)
        return old

    def _cut(self, wider: int = 1) -> list[_Stretch]:
        """All objects, some at a time; no stretch is empty. `wider`: by so much than one number for each cluster."""
        starts, n = self._labels.shape
        size = max(1, STRETCH // (max(starts, 1) * self._model.k * wider))
        parts = (slice(begin, min(begin + size, n)) for begin in range(0, n, size))
        return [self._stretch(part) for part in parts]

    def _stretch(self, part: slice) -> _Stretch:
        known, weights = self.opening, self.weights
        opening = Opening(known.labels[part], known.votes[:, part], _part(known.given, part))
        return _Stretch(part, opening, None if weights is None else weights[part])

    def _each(self, stretches: Sequence[_Stretch], work: Callable[[_Stretch], Result]) -> Iterator[Result]:
        """Stretch by stretch, results in order."""
        pool = self._pool if len(stretches) > 1 else None
        for result in map(work, stretches) if pool is None else pool.map(work, stretches):
            check_cancelled()
            yield result


def _refer_to_nothing(state: State, opening: Opening) -> bool:
    """Whether no array of the state is part of another one, or of what is known from the opening."""
    arrays = list(state.values())
    known = (opening.labels, opening.votes)
    return len(set(map(id, arrays))) == len(arrays) and all(
        array.flags.owndata
        and array.flags.carray
        and array.dtype == np.float64
        and not any(np.may_share_memory(array, other) for other in known)
        for array in arrays
    )


def _part(state: State, part: slice) -> State:
    """The same state for some of its objects."""
    return {name: array[..., part] for name, array in state.items()}


def cluster_sizes(likeliest: NDArray[np.intp], weights: Words | None, k: int) -> Words:
    """(k,) how many objects belong to each cluster most likely."""
    sizes = np.zeros(k, dtype=np.int64)
    np.add.at(sizes, likeliest, 1 if weights is None else weights)
    return sizes
