"""The steps of a sealed job: one table that says what each step brings, what a site does, and which steps may follow.

As `ce.protocol.messages.steps` of jobs over totals. The arrays of each step, with sizes, follow from the job's terms:
`ce.protocol.sealed.schedule`. Coordinator, sites and documentation read this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from ce.errors import MessageError
from ce.protocol.messages.steps import SealedStep, Step

#: Where a sealed job stands, as its status says.
Phase = Literal["seeding", "products", "opening", "fitting", "scoring"]
PHASES: tuple[Phase, ...] = get_args(Phase)
SEALED_STEPS: tuple[SealedStep, ...] = get_args(SealedStep)


@dataclass(frozen=True)
class SealedRule:
    """One row of the table."""

    phase: Phase
    brings: str  # what the task has, for documentation
    about: str  # what a site does, and answers
    follows: tuple[SealedStep, ...] = ()


SEALED_TABLE: Mapping[SealedStep, SealedRule] = {
    "meet": SealedRule(
        "seeding",
        "The number of categories of every column.",
        "Tells every other site, encrypted, how far this job has come here in earlier attempts; the first member of "
        "each shared block adds a fresh key of the block.",
        ("mask", "release"),
    ),
    "mask": SealedRule(
        "seeding",
        "What the others told.",
        "Where nobody has opened a share: reserves budget, sends the dealer a fresh seed and the members of each "
        "shared block its masked rows. A share that was never opened is deleted first.",
        ("verify",),
    ),
    "verify": SealedRule(
        "products",
        "Masked rows of the other members, and the dealt words of each pair in which this site is the second.",
        "Multiplies, and sends the first site of each pair what it needs to check the dealer.",
        ("commit",),
    ),
    "commit": SealedRule(
        "products",
        "The messages that check the dealer.",
        "Checks the dealer, adds products, local counts, noise and masks to its share of the tables, writes it down, "
        "and answers a commitment to it.",
        ("release",),
    ),
    "release": SealedRule(
        "opening",
        "All commitments; or, where somebody has opened a share in an earlier attempt, what the others told.",
        "Charges the budget and opens its share: once in a job, and later only the same bytes again.",
        ("score",),
    ),
    "score": SealedRule(
        "scoring",
        "All shares, and the model that the coordinator has fitted to their sum.",
        "Checks commitments, tables and model; sends a fresh seed to the dealer, and as the first member of a block "
        "the order of its rows.",
        ("compare", "settle", "finish"),
    ),
    "compare": SealedRule(
        "scoring",
        "Openings of the other members; corrections of the dealer for the last member.",
        "The next opening of the tournament: five of each level.",
        ("compare", "settle", "finish"),
    ),
    "settle": SealedRule(
        "scoring",
        "The last openings of the tournament.",
        "Writes down its share of the winners, and answers a commitment for each block.",
        ("prove", "finish"),
    ),
    "prove": SealedRule(
        "scoring",
        "All commitments of the block.",
        "Enters the objects in the ledger, once, and opens the dummy rows.",
        ("reveal", "finish"),
    ),
    "reveal": SealedRule(
        "scoring",
        "The dummy rows of the other members.",
        "Where all dummies are right: opens the real rows; in a second round, a digest of the labels.",
        ("reveal", "finish"),
    ),
    "finish": SealedRule(
        "scoring",
        "The digests of the other members.",
        "Compares them; the answer is a receipt.",
    ),
}


def is_sealed(step: Step) -> bool:
    return step in SEALED_TABLE


class SealedOrder:
    """Checks that the tasks of a sealed job follow each other as the table says, in rounds that follow each other."""

    def __init__(self) -> None:
        self._last: SealedStep | None = None
        self._round = 0

    @property
    def last(self) -> SealedStep | None:
        """The step that was taken last."""
        return self._last

    def take(self, step: Step, round_: int) -> SealedStep:
        """That a step may come now, in this round. Raises MessageError with expected and got."""
        allowed: tuple[SealedStep, ...] = ("meet",) if self._last is None else SEALED_TABLE[self._last].follows
        for one in allowed:
            if one == step:
                break
        else:
            raise MessageError(f"step: expected {' or '.join(allowed) or 'nothing more'}, got {step}")
        if self._round and round_ != self._round + 1:
            raise MessageError(f"round: expected {self._round + 1}, got {round_}")
        self._last, self._round = one, round_
        return one
