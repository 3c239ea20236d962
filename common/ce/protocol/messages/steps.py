"""The steps of a job: one table that says what each step asks for, of whom, and which steps may follow it.

The home opens a round with a step, every contributor answers with the arrays that the table lists, and the party
that adds them (a home, or a coordinator that cannot read them) waits for exactly these. Home, sites, preview and
documentation read this table; docs/site-computation.md says what a site computes in each step.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from ce.errors import MessageError
from ce.privacy.mac import MAC_WORDS
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.topology.site_view import Block, SiteView
from ce.ring import Scale
from ce.steps.model import Model

StepOfTotals = Literal[
    "open", "sums", "objects", "columns", "clusterings_only", "finish", "keys", "decide", "shares", "votes", "counts"
]
#: Of jobs that open no total: `ce.protocol.messages.sealed_steps`.
SealedStep = Literal[
    "meet", "mask", "verify", "commit", "release", "score", "compare", "settle", "prove", "reveal", "finish"
]
Step = StepOfTotals | SealedStep
STEPS: tuple[StepOfTotals, ...] = get_args(StepOfTotals)

#: Sides of a shape: a number, or what it is counted in.
Side = Literal["starts", "k", "k*k", "objects", "categories"] | int
#: In `Asked.what`: every total that the model's global step needs in this iteration, with the model's own shapes.
SHARES = "SHARE"
#: In `StepRule.follows`: the step that begins an iteration, of this stage or the next ...
BEGINS_ITERATION = "begins iteration"
#: ... and the step after the last iteration.
AFTER_THE_LAST = "after the last"
#: Only of models whose classifiers vote.
VOTES_ONLY = "votes"


class ArraySpec(NamedTuple):
    """Shape and fixed point of an array, and the bits of its words, 64 or 32."""

    shape: tuple[int, ...]
    fraction_bits: int = 0
    word_bits: int = 64

    @classmethod
    def of(cls, array: NDArray[Any], fraction_bits: int) -> ArraySpec:
        """That of an array as it is sent."""
        return cls(array.shape, fraction_bits, 32 if array.dtype == np.int32 else 64)

    @classmethod
    def summed(cls, name: ArrayName, shape: tuple[int, ...], scales: Mapping[str, Scale]) -> ArraySpec:
        """That of the array of this name, whose scale is one of these."""
        return cls(shape, name.fraction_bits(scales), name.word_bits(scales))

    def __str__(self) -> str:
        width = " in 32-bit words" if self.word_bits == 32 else ""
        return f"shape {self.shape} with {self.fraction_bits} fraction bits{width}"


Arrays = dict[ArrayName, ArraySpec]


@dataclass(frozen=True)
class Asked:
    """Arrays that a step asks of every contributor: one for each shared block, contested cell, group, or for all."""

    scope: Literal["block", "claims", "columns", "global"]
    what: str
    shape: tuple[Side, ...]
    votes_only: bool = False


@dataclass(frozen=True)
class StepRule:
    """One row of the table."""

    about: str  # for documentation
    asks: tuple[Asked, ...] = ()
    follows: tuple[str, ...] = ()  # steps, or BEGINS_ITERATION, AFTER_THE_LAST
    blind_only: bool = False
    #: Blind: what shared blocks that not all sites hold add to `global/` arrays follows in an exchange of its own.
    owes_shares: bool = False
    #: Blind: the first site by name decides what comes next.
    decided: bool = False


_ITERATION = (
    Asked("block", "sums", ("starts", "k", "objects")),
    Asked("global", SHARES, ("starts",)),
    Asked("global", "bound", ("starts",)),
    Asked("global", "moved", ("starts",)),
)
_COLUMN_SUMS = Asked("columns", "sums", ("starts", "k", "categories"))

TABLE: Mapping[Step, StepRule] = {
    "keys": StepRule(
        "Keys that the contributors of a total share, encrypted for each of them.",
        follows=("open", BEGINS_ITERATION),
        blind_only=True,
    ),
    "open": StepRule(
        "Counts: labels of each shared object, those in columns with one holder (hidden), ballots, claims on contested "
        "cells, private objects that have a label.",
        asks=(
            Asked("global", "objects", (1,)),
            Asked("block", "labels", ("objects",)),
            Asked("block", "hidden", ("objects",)),
            Asked("block", "ballots", ("objects",), votes_only=True),
            Asked("claims", "claims", ("objects",)),
        ),
        follows=("counts",),
        owes_shares=True,
    ),
    "counts": StepRule(
        "Sends the members the counts of their objects and asks for nothing: a site may leave out objects with too few "
        "labels, and then all are aligned anew.",
        follows=(VOTES_ONLY, BEGINS_ITERATION),
    ),
    "votes": StepRule(
        "What the ballots of each shared object say.",
        asks=(Asked("block", "votes", ("k", "objects"), votes_only=True),),
        follows=(BEGINS_ITERATION,),
    ),
    "sums": StepRule(
        "One iteration in one exchange: object sums, column sums, shares of the globals and the bound, and how many "
        "objects' most likely cluster moved.",
        asks=(*_ITERATION, _COLUMN_SUMS),
        follows=(BEGINS_ITERATION, AFTER_THE_LAST),
        owes_shares=True,
        decided=True,
    ),
    "objects": StepRule(
        "Two-phase models where a shared block has cells of a shared column: object sums and shares; columns follows.",
        asks=_ITERATION,
        follows=("columns", BEGINS_ITERATION, AFTER_THE_LAST),
        owes_shares=True,
        decided=True,
    ),
    "columns": StepRule(
        "Column sums, from the messages that this task brings.", asks=(_COLUMN_SUMS,), follows=(BEGINS_ITERATION,)
    ),
    "shares": StepRule(
        "Shares of blocks that not all sites hold, which their members know after the last exchange.", blind_only=True
    ),
    "decide": StepRule(
        "To the first site by name: the totals of the last exchange; it answers what all must do alike.",
        blind_only=True,
    ),
    "clusterings_only": StepRule(
        "Of the objects that one site alone holds: the classes that their clusterings and their votes say, counted. "
        "Nothing of an object that several sites hold: under a flat message its sums are linear in the labels.",
        asks=(Asked("global", "agreement", (1, "k*k")),),
        follows=("finish",),
    ),
    "finish": StepRule(
        "The winner's globals and, of shared blocks, memberships and which objects have a label; the answer is a "
        "receipt, with the sizes of the clusters among the private objects.",
        asks=(Asked("global", "sizes", ("k",)),),
    ),
}


def first_step(model: Model, view: SiteView) -> Step:
    """The step that begins an iteration."""
    return "objects" if model.phases == 2 and view.needs_two_exchanges else "sums"


def expected_arrays(
    step: Step, view: SiteView, model: Model, scales: Mapping[str, Scale], starts: int, iteration: int
) -> Arrays:
    """Name, shape and fixed point of every array of a round, as far as this view reaches."""
    sides: dict[Side, int] = {"starts": starts, "k": model.k, "k*k": model.k**2}
    found: Arrays = {}
    for asked in TABLE[step].asks:
        if asked.votes_only and not model.uses_votes:
            continue
        for name, more in _instances(asked, view, model, iteration):
            shape = tuple(side if isinstance(side, int) else {**sides, **more}[side] for side in asked.shape)
            shape += _share_shape(asked, name, model, iteration)
            found[name] = ArraySpec.summed(name, shape, scales)
    return found


@dataclass(frozen=True)
class _Asked:
    """The arrays of the last round of one step, and what they follow from."""

    model: Model
    scales: Mapping[str, Scale]
    starts: int
    share_shapes: Mapping[str, tuple[int, ...]]
    arrays: Arrays


class AskedArrays:
    """`expected_arrays` of one view, or of these the ones that a site contributes to. They are the same in most rounds
    of a step, and are made anew only when something has changed: the same object says that nothing has. Nobody changes
    what is returned."""

    def __init__(self, view: SiteView, site: str | None = None) -> None:
        self._view = view
        self._site = site
        self._known: dict[Step, _Asked] = {}

    def of(self, step: Step, model: Model, scales: Mapping[str, Scale], starts: int, iteration: int) -> Arrays:
        known, shapes = self._known.get(step), model.share_shapes(iteration)
        if (
            known is None
            or known.model is not model
            or known.scales is not scales
            or known.starts != starts
            or known.share_shapes != shapes
        ):
            arrays = self._made(step, model, scales, starts, iteration)
            known = self._known[step] = _Asked(model, scales, starts, shapes, arrays)
        return known.arrays

    def _made(self, step: Step, model: Model, scales: Mapping[str, Scale], starts: int, iteration: int) -> Arrays:
        arrays = expected_arrays(step, self._view, model, scales, starts, iteration)
        if self._site is None:
            return arrays
        return {name: own for name, own in arrays.items() if self._site in name.contributors(self._view)}


class TaggedArrays(AskedArrays):
    """Blind: the same with the tags that travel with the arrays."""

    def _made(self, step: Step, model: Model, scales: Mapping[str, Scale], starts: int, iteration: int) -> Arrays:
        return with_macs(super()._made(step, model, scales, starts, iteration))


def _instances(
    asked: Asked, view: SiteView, model: Model, iteration: int
) -> Iterator[tuple[ArrayName, dict[Side, int]]]:
    """The arrays that one entry of the table stands for, and the sides that depend on which."""
    match asked.scope:
        case "block":
            for block in _shared(view):
                yield ArrayName.of_block(block.index, asked.what), {"objects": block.size}
        case "claims":
            for block in _shared(view):
                for column in view.contested(block):
                    yield ArrayName.of_claims(block.index, column.index), {"objects": block.size}
        case "columns":
            for group in view.groups.values():
                yield ArrayName.of_columns(group.index, asked.what), {"categories": group.width}
        case "global":
            names = model.share_shapes(iteration) if asked.what == SHARES else (asked.what,)
            for name in names:
                yield ArrayName.of_all(name), {}


def _share_shape(asked: Asked, name: ArrayName, model: Model, iteration: int) -> tuple[int, ...]:
    return model.share_shapes(iteration)[name.what] if asked.what == SHARES else ()


def _shared(view: SiteView) -> Iterator[Block]:
    return (block for block in view.blocks.values() if block.shared)


def totals_over_all(arrays: Arrays) -> Arrays:
    """Of these, the totals over all objects: what the members of a shared block still owe when they alone know it."""
    return {name: spec for name, spec in arrays.items() if name.kind == "global"}


def with_macs(arrays: Arrays) -> Arrays:
    """Blind: these arrays, and the tags that travel with them."""
    return arrays | {name.mac: ArraySpec((MAC_WORDS,)) for name in arrays}


def following_steps(step: Step, model: Model, view: SiteView) -> tuple[Step, ...]:
    """The steps that may follow a step of this model, in a stage of this model or the first of the next stage."""
    found: list[Step] = []
    following = model.next_stage()
    for entry in TABLE[step].follows:
        if entry == VOTES_ONLY:
            if model.uses_votes:
                return ("votes",)
        elif entry == BEGINS_ITERATION:
            found.append(first_step(model, view))
            if following is not None and TABLE[step].decided:
                found.append(first_step(following, view))
        elif entry == AFTER_THE_LAST:
            if following is None:
                found.append("clusterings_only" if model.uses_votes else "finish")
        elif entry == "columns" or entry in STEPS:
            found.append(entry)  # type: ignore[arg-type]
    return tuple(dict.fromkeys(found))


class StepOrder:
    """Checks that the tasks that a site is sent follow each other as the table says."""

    def __init__(self, view: SiteView) -> None:
        self._view = view
        self._last: Step | None = None
        # What may follow, and which step of which model; in most rounds the same as in the round before.
        self._allowed: tuple[Step, ...] = ("open",)
        self._after: tuple[Step | None, Model | None] = (None, None)

    @property
    def begun(self) -> bool:
        """Whether any step was taken."""
        return self._last is not None

    def check(self, step: Step, model: Model) -> None:
        """That a step may come now; `model` is that of the present stage. Raises MessageError with expected and got."""
        if self._last is not None and self._after != (self._last, model):
            self._allowed = following_steps(self._last, model, self._view)
            self._after = (self._last, model)
        if step not in self._allowed:
            expected = " or ".join(self._allowed) or "nothing more"
            raise MessageError(f"step: expected {expected}, got {step}")

    def taken(self, step: Step) -> None:
        """The step was answered."""
        self._last = step

    def resume(self, model: Model) -> None:
        """The state of an answered step that begins an iteration is restored."""
        self._last = first_step(model, self._view)


def check_asked(asked: Mapping[str, ArraySpec], expected: Mapping[ArrayName, ArraySpec]) -> None:
    """That a task asks for the arrays that this site computes itself. Raises MessageError with expected and got."""
    if asked == expected:
        return
    for name, spec in expected.items():
        found = asked.get(name)
        if found is None:
            raise MessageError(f"asked: expected {name}, {spec}; the task does not ask for it")
        if tuple(found) != tuple(spec):
            raise MessageError(f"asked: {name}: expected {spec}, got {ArraySpec(*found)}")
    if len(asked) > len(expected):
        raise MessageError(f"asked: {len(asked) - len(expected)} arrays that this step does not have")
