"""When a start has converged, and which start wins."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from ce.protocol.engine.snapshots import Snapshot

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
