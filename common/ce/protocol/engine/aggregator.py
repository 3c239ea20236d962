"""What adds up a job's rounds: a home, which reads the totals, or the coordinator of a blind job, which cannot.

while tasks := aggregator.tasks():
    for site, answer in transport.exchange(tasks):
        add_answer(aggregator, site, answer)
    aggregator.advance()
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Protocol

from ce.errors import MessageError
from ce.protocol.engine.accumulators import Accumulators
from ce.protocol.engine.snapshots import Snapshot
from ce.protocol.engine.start_selection import BoundPath
from ce.protocol.messages.steps import Arrays, ArraySpec, Step
from ce.protocol.messages.task import Answer, Task, chunks
from ce.ring import Reals, Words
from ce.steps.model import State


@dataclass(frozen=True)
class Progress:
    """Where a job stands after an iteration."""

    stage: int
    iteration: int
    max_iter: int
    running: int  # starts that have not stopped
    bound: float  # the best so far
    has_bound: bool  # whether this stage's bound means anything


@dataclass(frozen=True)
class Outcome:
    """What the home knows at the end."""

    winner: int
    globals: State  # of the winner, axis of starts kept (length 1)
    paths: dict[int, BoundPath]
    iterations: int
    exchanges: int
    #: Do the clusterings follow the classes? Of the objects that one site alone holds; None where there is none with
    #: labels and votes, and for models without votes.
    kappa: float | None
    sizes: Words | None  # (k,) objects by most likely cluster, those without a label left out; None in blind
    beta: dict[str, Reals]  # (k, categories) of the shared columns; those with one holder stay there


@dataclass(frozen=True)
class OpenRound:
    """One round: what was asked of whom, and what has arrived."""

    number: int
    step: Step
    arrays: Arrays  # the totals of this round
    asked: Mapping[str, Mapping[str, ArraySpec]]  # by site: the arrays that it must answer with
    accumulators: Accumulators
    resume: int = 0  # the origin of the checkpoint that the sites are to go on from, in a round that was restored

    @property
    def waiting(self) -> Collection[str]:
        """Sites that have not answered yet."""
        return self.accumulators.waiting

    @property
    def opening(self) -> bool:
        """Whether the sites check the counts: one may still leave objects out."""
        return self.step == "counts"

    def require_complete(self) -> None:
        if self.waiting:
            raise MessageError(f"{len(self.waiting)} sites have not answered round {self.number}")

    def refuse_other(self, site: str, answer: Answer, starts: tuple[int, ...]) -> None:
        """That an answer is one to this round."""
        expected, got = (self.number, self.step, starts), (answer.round, answer.step, answer.starts)
        if expected != got:
            raise MessageError(f"{site}: expected an answer to round, step and starts {expected}, got {got}")


class Aggregator(Protocol):
    """Opens rounds, adds up answers and goes on when all have answered."""

    #: Blind: sites whose state differs from the first site's in the last round; worth a warning in the log.
    diverged: tuple[str, ...]

    @property
    def open_round(self) -> OpenRound | None:
        """None: the job is over."""

    @property
    def exchanges(self) -> int:
        """Finished rounds, the last one, which brings the results, not counted."""

    @property
    def rounds(self) -> int:
        """The number of the open round, or of the last one."""

    @property
    def begins_iteration(self) -> bool:
        """Whether the open round is one of which a checkpoint can be written."""

    @property
    def advances_at_once(self) -> bool:
        """Whether `advance` and `tasks` do a fixed number of operations with each number of the totals, and no more."""

    @property
    def bound_path(self) -> tuple[float, ...]:
        """The best bound after each iteration so far; nothing in blind."""

    @property
    def result(self) -> Outcome | None:
        """The end result, after the last round; None in blind, where only the sites know it."""

    def tasks(self, checkpoint: int = 0) -> dict[str, Task]:
        """The task that each site gets now; none when the job is over. `checkpoint`: see `Task`."""

    def begin(self, site: str, answer: Answer) -> None:
        """A site begins its answer, or begins it again; its arrays follow as chunks."""

    def advance(self) -> object:
        """All have answered: prepare the next round."""

    def snapshot(self) -> Snapshot:
        """All that the open round and what follows build on, beside the view."""

    def restore(self, snapshot: Snapshot, origin: int = 0) -> None:
        """Open the round of a snapshot again; with an `origin` its tasks ask the sites to go on from theirs."""


def open_totals(aggregator: Aggregator) -> Accumulators:
    """What the answers of the open round are added to. Raises MessageError when there is none."""
    round_ = aggregator.open_round
    if round_ is None:
        raise MessageError("answer: the job is over")
    return round_.accumulators


def add_answer(aggregator: Aggregator, site: str, answer: Answer) -> None:
    """Add one site's whole answer to the totals."""
    aggregator.begin(site, answer)
    totals = open_totals(aggregator)
    for chunk in chunks(answer):
        totals.add(site, chunk)
    totals.end(site)
