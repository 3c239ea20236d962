"""Which starts of a stage still run, what each does next, and which one wins.

Starts run together, one leading axis on every array. After a global step each start goes on, goes back (its last step
is taken back), or stops: because it converged, at the iteration limit, or because it is dropped. That is decided once,
by the home or, in blind, by the first site by name, and the others follow the decision.

Hopeless starts are dropped by halving: whenever the model says of all starts that it is time, only the better half of
them goes on. A dropped start never wins.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ce.protocol.engine.object_state import select
from ce.protocol.engine.snapshots import Snapshot, by_number, numbered
from ce.ring import Reals, Words
from ce.steps.model import GlobalDecision, Model, Rest, State

Flags = NDArray[np.bool_]

#: Bounds this close, relative to the best, are a tie; the lowest-numbered start wins.
TIE = 1e-6


@dataclass
class BoundPath:
    """The accepted iterates of one start: their bounds, and for how long its labels have been at rest."""

    bounds: list[float] = field(default_factory=list)
    still: int = 0
    converged: bool = False
    dropped: bool = False

    @property
    def iterations(self) -> int:
        return len(self.bounds) - 1

    def snapshot(self) -> Snapshot:
        return {"bounds": self.bounds, "still": self.still, "converged": self.converged, "dropped": self.dropped}

    def accept(self, bound: float, moved: float) -> None:
        """`moved`: how many labels have, beyond those that may at rest."""
        self.bounds.append(bound)
        self.still = 0 if moved > 0 else self.still + 1

    def has_converged(self, tol: float, rest: Rest) -> bool:
        """Relative change of the bound below `tol`, or labels at rest and a small change. Never with tol = 0."""
        if tol <= 0 or len(self.bounds) < 2:
            return False
        change = abs(self.bounds[-1] - self.bounds[-2])
        size = max(abs(self.bounds[-1]), 1e-300)
        return change < tol * size or (self.still >= rest.iterations and change < rest.tolerance * size)


def winner(paths: Mapping[int, BoundPath]) -> int:
    """The lowest-numbered start whose last bound is within TIE, relative, of the best; none that was dropped."""
    paths = {start: path for start, path in paths.items() if not path.dropped}
    best = max(path.bounds[-1] for path in paths.values())
    if not math.isfinite(best):
        return min(paths)
    return min(start for start, path in paths.items() if path.bounds[-1] >= best - TIE * abs(best))


@dataclass(frozen=True)
class StartDecisions:
    """What follows from a global step, for each start that took part, in order."""

    bound: Reals  # (starts,) of the state that entered the iteration
    globals: State
    retry: Flags  # the last step lowered the bound: go back, with these globals
    converged: Flags
    stopped: Flags  # at the iteration limit, or because the model says so
    dropped: Flags  # others are better

    @property
    def stop(self) -> Flags:
        return self.converged | self.stopped | self.dropped


class StartSelection:
    """The starts of one stage."""

    def __init__(self, n_starts: int, halving: bool = False) -> None:
        """`halving`: hopeless starts are dropped."""
        self._halving = halving
        self.running: tuple[int, ...] = tuple(range(n_starts))
        self.retry: tuple[int, ...] = ()
        self.stopping: tuple[int, ...] = ()  # those that the last decision stopped
        self.paths = {start: BoundPath() for start in self.running}
        self._halvings = 0
        self._globals: dict[int, State] = {}  # of the starts that have stopped

    def decide(self, model: Model, found: GlobalDecision, moved: Words, objects: int) -> StartDecisions:
        """From a global step and the number of objects, of so many, whose most likely cluster moved."""
        self._accept(model, found.bound, found.retry, moved, objects)
        converged = np.zeros(len(self.running), dtype=bool)
        stopped = np.zeros(len(self.running), dtype=bool) if found.stop is None else found.stop.copy()
        may_stop = np.ones(len(self.running), dtype=bool) if found.may_stop is None else found.may_stop
        for position, start in enumerate(self.running):
            if not found.retry[position]:
                path = self.paths[start]
                converged[position] = may_stop[position] and path.has_converged(model.tol, model.rest)
                stopped[position] |= path.iterations >= model.max_iter
        # A start that goes back does not stop with the step that is taken back.
        dropped = self._hopeless(found.halvings) & ~(converged | stopped | found.retry)
        return StartDecisions(found.bound, found.globals, found.retry, converged, stopped, dropped)

    def follow(self, model: Model, decisions: StartDecisions, moved: Words, objects: int) -> None:
        """Take over what another party has decided."""
        self._accept(model, decisions.bound, decisions.retry, moved, objects)

    def _hopeless(self, due: Reals | None) -> Flags:
        """Which of the running starts are among the worse half, when it is time to compare them."""
        hopeless = np.zeros(len(self.running), dtype=bool)
        if not self._halving or due is None or float(np.minimum.reduce(due)) <= self._halvings:
            return hopeless
        self._halvings += 1
        hopeful = sorted(
            (start for start, path in self.paths.items() if not path.dropped),
            key=lambda start: (-self.paths[start].bounds[-1], start),
        )
        better = hopeful[: max(1, len(hopeful) // 2)]
        return np.array([start not in better for start in self.running])

    def apply(self, decisions: StartDecisions, globals_: State) -> NDArray[np.intp]:
        """Put aside the starts that stop, with the globals that they end with. The positions of those that go on."""
        stops, retries = decisions.stop.tolist(), decisions.retry.tolist()
        converged, dropped = decisions.converged.tolist(), decisions.dropped.tolist()
        for position, start in enumerate(self.running):
            path = self.paths[start]
            if not retries[position]:
                path.converged = converged[position]
            path.dropped = dropped[position]
            if stops[position]:
                self._globals[start] = select(globals_, np.array([position]))
        surviving = [position for position, stops_now in enumerate(stops) if not stops_now]
        self.stopping = tuple(start for start, stops_now in zip(self.running, stops, strict=True) if stops_now)
        self.retry = tuple(self.running[position] for position in surviving if retries[position])
        self.running = tuple(self.running[position] for position in surviving)
        return np.array(surviving, dtype=np.intp)

    def end(self) -> int:
        """All starts have stopped: the winner is the only one that the last steps are about."""
        best = winner(self.paths)
        self.running, self.retry = (best,), ()
        return best

    def globals_of(self, start: int) -> State:
        """Of a start that has stopped; axis of starts kept (length 1)."""
        return self._globals[start]

    @property
    def best_bound(self) -> float:
        return max(path.bounds[-1] for path in self.paths.values() if path.bounds)

    @property
    def bound_path(self) -> tuple[float, ...]:
        """The best bound of all starts after each iteration of this stage so far, as it was reported then."""
        paths = [path.bounds for path in self.paths.values() if path.bounds]
        longest = max(map(len, paths), default=0)
        return tuple(max(bounds[min(at, len(bounds) - 1)] for bounds in paths) for at in range(longest))

    def snapshot(self) -> Snapshot:
        return {
            "running": self.running,
            "retry": self.retry,
            "stopping": self.stopping,
            "paths": {str(start): path.snapshot() for start, path in self.paths.items()},
            "globals": numbered(self._globals),
            "halvings": self._halvings,
        }

    @classmethod
    def restored(cls, snapshot: Mapping[str, object], halving: bool) -> StartSelection:
        values: Snapshot = dict(snapshot)
        starts = cls(0, halving)
        starts.running, starts.retry = tuple(values["running"]), tuple(values["retry"])
        starts.stopping = tuple(values["stopping"])
        starts.paths = {start: BoundPath(**path) for start, path in by_number(values["paths"]).items()}
        starts._globals, starts._halvings = by_number(values["globals"]), values["halvings"]
        return starts

    def _accept(self, model: Model, bound: Reals, retry: Flags, moved: Words, objects: int) -> None:
        """A step that is taken back is no iteration: the one that replaces it is."""
        for position, start in enumerate(self.running):
            if not retry[position]:
                self.paths[start].accept(float(bound[position]), moved[position] - model.rest.share * objects)
