"""What one model sends and holds, as numbers: `ce.capacity` turns them into bytes."""

from __future__ import annotations

from typing import NamedTuple

#: Bytes of a number on the wire and in memory.
WORD = 8


class Arrays(NamedTuple):
    """What is held for each object: arrays of (starts, clusters, objects), arrays of (starts, objects), bytes."""

    full: float
    per_start: float = 0.0
    bytes: float = 0.0

    def of(self, objects: int, starts: int, clusters: int) -> float:
        return objects * (WORD * starts * (self.full * clusters + self.per_start) + self.bytes)


class CapacityFacts(NamedTuple):
    """What depends on the model. A width (a, b) stands for a k + b numbers for each start, in a + b arrays."""

    globals_sent: tuple[int, int]  # width of the globals in a task
    shares_answered: tuple[int, int]  # width of the shares of the globals in an answer, at most
    decision: tuple[int, int]  # width of what the first site sends to the others in blind
    shares: int  # arrays that the shares are in, at most
    at_home: Arrays  # in memory at the coordinator, for shared objects, at most
    private: Arrays  # in memory at a site, for objects that it alone holds, at most
    blind: Arrays  # in memory at a site that is a home itself, for shared objects, at most
    checkpoint_at_home: Arrays  # of shared objects
    checkpoint_at_site: Arrays  # of the objects that the site alone holds
    working: int  # arrays that a stretch of objects takes while it is worked on, at most
    largest_term: float = 1.0  # of one label, in the sums of its object
    phases: int = 1  # passes over the cells in an iteration (`ce.steps.model.Model.phases`)
