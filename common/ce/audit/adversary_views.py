"""What an adversary sees, and nothing else: an attack is given a view and questions, never a label of other sites.

The coordinator sees every word that passes through it; what the words mean depends on the mode. A curious site sees its
tasks, its own labels and its own sums; in `blind` also the totals of its blocks and columns. Views also say how many
labels a column has, which a real adversary would have to guess: this makes the test harder to pass.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ce.audit.recording import Exchange, Recording
from ce.labels import LabelTable
from ce.protocol.engine.starting_parameters import Starts
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.steps import Step
from ce.protocol.messages.task import Task
from ce.protocol.topology.site_view import Block, ColumnGroup, TopologyColumn, column_groups
from ce.protocol.topology.topology import Rows, Topology
from ce.ring import Reals, Scale, Words
from ce.steps.model import Model, stage_of

#: What attacks return. A guess has one group per object of the block.
Guess = NDArray[np.intp]
#: The steps that ask for the object sums of an iteration.
ITERATIONS: tuple[Step, ...] = ("sums", "objects")
#: Values of a guess that are no groups: the attack failed on this object, or was not tried on it.
NO_IDEA, NOT_ASKED = -2, -3
#: Numbers of objects by label, and these by (site, index of the column).
Counts = NDArray[np.int64]
Histograms = dict[tuple[str, int], Counts]
#: An object's labels in a group of columns; -1: none.
Row = tuple[int, ...]


@dataclass(frozen=True)
class Question:
    """What an adversary wants to know: the labels of one column in one shared block that one site holds."""

    block: int
    column: int
    holder: str
    groups: int  # how many labels there are

    @property
    def key(self) -> tuple[int, int]:
        return self.block, self.column


Guesses = dict[Question, list[Guess]]


@dataclass(frozen=True)
class BlockRound:
    """The object sums of one block in one exchange."""

    stage: int
    iteration: int
    starts: tuple[int, ...]
    message: Reals | None = field(repr=False)  # (starts, k, n) from which the sums were computed; None: not known
    total: Words = field(repr=False)  # (starts, k, n)
    parts: Mapping[str, Words] = field(repr=False)


@dataclass(frozen=True)
class ColumnRound:
    """The column sums of one group of shared columns in one exchange."""

    stage: int
    iteration: int
    beta: Reals | None = field(repr=False)  # (starts, k, categories) from which the sums were computed; None: not known
    total: Words = field(repr=False)
    parts: Mapping[str, Words] = field(repr=False)


# Views are compared by identity, so that what is computed from a view can be cached by it.


@dataclass(frozen=True, eq=False)
class CoordinatorView:
    """All that passes through the coordinator, and what it knows about the job: names, sizes, options, the seed."""

    mode: str
    topology: Topology
    model: Model
    seed: int
    exchanges: Sequence[Exchange] = field(repr=False)
    pseudonyms: Mapping[int, NDArray[Any]] = field(repr=False)
    public_starts: Starts | None = field(default=None, repr=False)  # None: starts are secret, as in every real job

    @classmethod
    def of(cls, recording: Recording, seed: int, *, public_starts: bool = False) -> CoordinatorView:
        starts = next(iter(recording.starts.values())) if public_starts else None
        return cls(
            recording.mode,
            recording.topology,
            recording.model,
            seed,
            recording.exchanges,
            recording.pseudonyms,
            starts,
        )

    @property
    def shared_blocks(self) -> list[Block]:
        return [block for block in self.topology.blocks if block.shared]

    @property
    def groups(self) -> dict[int, ColumnGroup]:
        return column_groups(self.topology.columns)

    def rounds(self, block: int) -> Sequence[BlockRound]:
        """All exchanges of object sums, in order."""
        return _rounds(self, block)

    def flat_rounds(self, block: int) -> list[BlockRound]:
        """Object sums of steps that are no iteration. No message is sent for these: all objects have the same one."""
        found = []
        for exchange in self.exchanges:
            name, task = ArrayName.of_block(block, "sums"), exchange.task
            total = None if exchange.step in ITERATIONS else exchange.total(name)
            if total is not None:
                found.append(BlockRound(task.stage, task.iteration, task.starts, None, total, exchange.parts(name)))
        return found

    def column_rounds(self, group: int) -> list[ColumnRound]:
        """All exchanges of column sums, in order."""
        found = []
        for exchange in self.exchanges:
            name, task = ArrayName.of_columns(group, "sums"), exchange.task
            total = exchange.total(name)
            if total is not None:
                beta = exchange.sent(ArrayName.of_columns(group, "beta"))
                found.append(ColumnRound(task.stage, task.iteration, beta, total, exchange.parts(name)))
        return found

    def opening(self, name: str) -> tuple[Words | None, dict[str, Words]]:
        """An array that is sent once, before the first iteration: its total, and each site's part."""
        for exchange in self.exchanges:
            total = exchange.total(name)
            if total is not None:
                return total, exchange.parts(name)
        return None, {}

    def scale(self, stage: int, what: str) -> Scale:
        return scale_of(self.model, self.topology, stage, what)


@dataclass(frozen=True, eq=False)
class CuriousSiteView:
    """What one site knows: its own labels, column parameters and sums, and what it is sent."""

    mode: str
    name: str
    topology: Topology  # names and sizes; a real site is sent less of what it does not hold
    model: Model
    tasks: Sequence[Task] = field(repr=False)
    site_rounds: Sequence[BlockRound] = field(repr=False)  # of `block`; both `total` and `parts` are this site's sums
    totals: Sequence[BlockRound] | None = field(repr=False)  # of `block`, in blind; None: a site must infer them
    block: int
    labels: Mapping[int, Guess] = field(repr=False)  # of the site's columns in the block, by column
    memberships: Reals = field(repr=False)  # (k, n) of the block: the site's result
    rows: Rows = field(repr=False)  # of the site's table: the objects of the block, which the site knows by name
    flat_totals: Sequence[BlockRound] = field(repr=False)  # of `block`, in blind; `parts` has this site's

    @classmethod
    def of(cls, recording: Recording, plain: Recording, site: str, table: LabelTable, block: int) -> CuriousSiteView:
        """`plain` is a recording of the same job with plain sums: it has the site's sums before they are masked, and
        the totals that a site reads in `blind`."""
        seen = CoordinatorView.of(plain, 0).rounds(block)
        rows = recording.rows[site][block]
        names = {column.name: column.index for column in recording.topology.columns}
        totals = [BlockRound(r.stage, r.iteration, r.starts, r.message, r.total, {}) for r in seen]
        part = [BlockRound(r.stage, r.iteration, r.starts, None, r.parts[site], {site: r.parts[site]}) for r in seen]
        blind = recording.mode == "blind"
        flat = CoordinatorView.of(plain, 0).flat_rounds(block) if blind else []
        # In blind a site computes, from the totals, what the home would send it: the same bits as in plain.
        source = plain if blind else recording
        tasks = [exchange.tasks[site] for exchange in source.exchanges]
        return cls(
            mode=recording.mode,
            name=site,
            topology=recording.topology,
            model=recording.model,
            tasks=tasks,
            site_rounds=part,
            totals=totals if blind else None,
            block=block,
            labels={names[c.name]: c.likeliest[rows].astype(np.intp) for c in table.columns if c.name in names},
            memberships=np.ascontiguousarray(recording.memberships[site][rows].T),
            rows=rows,
            flat_totals=[replace(r, parts={site: r.parts[site]}) for r in flat],
        )

    def scale(self, stage: int, what: str) -> Scale:
        return scale_of(self.model, self.topology, stage, what)


@dataclass(frozen=True)
class HolderView:
    """What one holder of shared columns can know about their sums: the totals, and its own part.

    In `masked` a holder is sent beta, from which totals follow only in part. Here it is given the totals: this makes
    the test harder to pass.
    """

    name: str
    topology: Topology
    model: Model
    rounds: Mapping[int, ColumnRound] = field(repr=False)  # the first one, by group

    @classmethod
    def of(cls, plain: Recording, site: str) -> HolderView:
        view = CoordinatorView.of(plain, 0)
        first = {}
        for group in view.groups.values():
            if site in group.holders and (rounds := view.column_rounds(group.index)):
                seen = rounds[0]
                part = {site: seen.parts[site]}
                first[group.index] = ColumnRound(seen.stage, seen.iteration, seen.beta, seen.total, part)
        return cls(site, plain.topology, plain.model, first)


@lru_cache(maxsize=4)
def _rounds(view: CoordinatorView, block: int) -> Sequence[BlockRound]:
    found = []
    for exchange in view.exchanges:
        if exchange.step not in ITERATIONS:
            continue
        name, task = ArrayName.of_block(block, "sums"), exchange.task
        total = exchange.total(name)
        if total is not None:
            message = exchange.sent(ArrayName.of_block(block, "message"))
            found.append(BlockRound(task.stage, task.iteration, task.starts, message, total, exchange.parts(name)))
    return found


def scale_of(model: Model, topology: Topology, stage: int, what: str) -> Scale:
    """The fixed point of an array; it follows from the sizes of the job, which are not secret."""
    return stage_of(model, stage).scales(topology.sizes)[what]


def holders_in(topology: Topology, block: int, column: TopologyColumn) -> list[str]:
    """The members of a block that may hold cells of a column."""
    return [site for site in column.holders if site in topology.blocks[block].members]
