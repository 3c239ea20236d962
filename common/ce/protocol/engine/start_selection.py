"""Which starts of a stage still run, what each does next, and which one wins.

Starts run together, one leading axis on every array. After a global step each start goes on, goes back (its last step
is taken back), or stops: because it converged, or at the iteration limit. That is decided once, by the home or, in
blind, by the first site by name, and the others follow the decision.
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
from ce.steps.model import GlobalDecision, Model, State

Flags = NDArray[np.bool_]

#: The second way to converge: no hard label moved for this many iterations, and the bound hardly did.
STILL_ITERATIONS = 5
STILL_TOLERANCE = 1e-4
#: Bounds this close, relative to the best, are a tie; the lowest-numbered start wins.
TIE = 1e-6


@dataclass
class BoundPath:
    """The accepted iterates of one start: their bounds, and for how long no label has moved."""

    bounds: list[float] = field(default_factory=list)
    still: int = 0
    converged: bool = False

    @property
    def iterations(self) -> int:
        return len(self.bounds) - 1

    def snapshot(self) -> Snapshot:
        return {"bounds": self.bounds, "still": self.still, "converged": self.converged}

    def accept(self, bound: float, moved: int) -> None:
        self.bounds.append(bound)
        self.still = 0 if moved else self.still + 1

    def has_converged(self, tol: float) -> bool:
        """Relative change of the bound below `tol`, or labels at rest and a small change. Never with tol = 0."""
        if tol <= 0 or len(self.bounds) < 2:
            return False
        change = abs(self.bounds[-1] - self.bounds[-2])
        size = max(abs(self.bounds[-1]), 1e-300)
        return change < tol * size or (self.still >= STILL_ITERATIONS and change < STILL_TOLERANCE * size)


def winner(paths: Mapping[int, BoundPath]) -> int:
    """The lowest-numbered start whose last bound is within TIE, relative, of the best."""
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

    @property
    def stop(self) -> Flags:
        return self.converged | self.stopped


class StartSelection:
    """The starts of one stage."""

    def __init__(self, n_starts: int) -> None:
        self.running: tuple[int, ...] = tuple(range(n_starts))
        self.retry: tuple[int, ...] = ()
        self.stopping: tuple[int, ...] = ()  # those that the last decision stopped
        self.paths = {start: BoundPath() for start in self.running}
        self._globals: dict[int, State] = {}  # of the starts that have stopped

    def decide(self, model: Model, found: GlobalDecision, moved: Words) -> StartDecisions:
        """From a global step and the number of objects whose most likely cluster moved."""
        self._accept(found.bound, found.retry, moved)
        converged = np.zeros(len(self.running), dtype=bool)
        stopped = np.zeros(len(self.running), dtype=bool) if found.stop is None else found.stop.copy()
        for position, start in enumerate(self.running):
            if not found.retry[position]:
                path = self.paths[start]
                converged[position] = model.may_stop(path.iterations) and path.has_converged(model.tol)
                stopped[position] |= path.iterations >= model.max_iter
        return StartDecisions(found.bound, found.globals, found.retry, converged, stopped)

    def follow(self, decisions: StartDecisions, moved: Words) -> None:
        """Take over what another party has decided."""
        self._accept(decisions.bound, decisions.retry, moved)

    def apply(self, decisions: StartDecisions, globals_: State) -> NDArray[np.intp]:
        """Put aside the starts that stop, with the globals that they end with. The positions of those that go on."""
        goes_on = ~decisions.stop
        for position, start in enumerate(self.running):
            if not decisions.retry[position]:
                self.paths[start].converged = bool(decisions.converged[position])
            if not goes_on[position]:
                self._globals[start] = select(globals_, np.array([position]))
        surviving = np.flatnonzero(goes_on)
        self.stopping = tuple(start for start, goes in zip(self.running, goes_on, strict=True) if not goes)
        self.retry = tuple(self.running[position] for position in surviving if decisions.retry[position])
        self.running = tuple(self.running[position] for position in surviving)
        return surviving

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
        }

    @classmethod
    def restored(cls, snapshot: Mapping[str, object]) -> StartSelection:
        values: Snapshot = dict(snapshot)
        starts = cls(0)
        starts.running, starts.retry = tuple(values["running"]), tuple(values["retry"])
        starts.stopping = tuple(values["stopping"])
        starts.paths = {start: BoundPath(**path) for start, path in by_number(values["paths"]).items()}
        starts._globals = by_number(values["globals"])
        return starts

    def _accept(self, bound: Reals, retry: Flags, moved: Words) -> None:
        """A step that is taken back is no iteration: the one that replaces it is."""
        for position, start in enumerate(self.running):
            if not retry[position]:
                self.paths[start].accept(float(bound[position]), int(moved[position]))
