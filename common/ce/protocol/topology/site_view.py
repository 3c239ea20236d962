"""The topology as one party is sent it: blocks, columns, groups of columns and sizes.

A site is sent the blocks that it is a member of and the columns that it holds, and of the rest sizes only; in sealed
jobs also which other columns there are. The home sees everything (`ce.protocol.topology.topology`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal

import numpy as np

from ce.steps.model import Sizes

Kind = Literal["clustering", "classifier"]
Categories = tuple[int, ...] | tuple[str, ...]


@dataclass(frozen=True)
class Block:
    """Objects held by exactly the same sites."""

    index: int
    members: tuple[str, ...]
    size: int

    @property
    def shared(self) -> bool:
        return len(self.members) > 1


@dataclass(frozen=True)
class TopologyColumn:
    """A column over all sites; `holders` in order of name.

    Categories are tokens at the sites. The coordinator knows their number, and has numbers in their place.
    """

    index: int
    name: str
    kind: Kind
    categories: Categories = field(repr=False)
    holders: tuple[str, ...]

    @property
    def shared(self) -> bool:
        return len(self.holders) > 1


@dataclass(frozen=True)
class SiteView:
    """The topology as one party sees it: a site its own blocks and columns, of the rest sizes only; the home all."""

    sites: tuple[str, ...]  # of the whole job
    sizes: Sizes
    blocks: dict[int, Block]
    columns: tuple[TopologyColumn, ...]
    needs_two_exchanges: bool  # Topology.needs_two_exchanges
    shared_by_all: bool  # Topology.shared_by_all
    #: Sealed: the columns that this site does not hold, by number. Their categories are numbered, not known.
    other_columns: tuple[TopologyColumn, ...] = ()

    @property
    def all_columns(self) -> tuple[TopologyColumn, ...]:
        """The columns of the job, by number, which is the order of their names: at the home, and at sealed sites."""
        return tuple(sorted((*self.columns, *self.other_columns), key=lambda column: column.index))

    @property
    def clusterings(self) -> tuple[TopologyColumn, ...]:
        return tuple(column for column in self.columns if column.kind == "clustering")

    @property
    def classifiers(self) -> tuple[TopologyColumn, ...]:
        return tuple(column for column in self.columns if column.kind == "classifier")

    @cached_property
    def groups(self) -> dict[int, ColumnGroup]:
        """Shared clusterings by the sites that hold them."""
        return column_groups(self.columns)

    def contested(self, block: Block) -> tuple[TopologyColumn, ...]:
        """Columns of which two members of this block may hold cells: their claims are added up in the opening."""
        return tuple(c for c in self.columns if len(set(c.holders) & set(block.members)) > 1)

    def column(self, index: int) -> TopologyColumn:
        """The column of this number."""
        return next(column for column in self.columns if column.index == index)


@dataclass(frozen=True)
class ColumnGroup:
    """Shared clusterings with the same holders: their sums and parameters travel as one array, side by side."""

    index: int  # that of its first column
    columns: tuple[TopologyColumn, ...]

    @property
    def holders(self) -> tuple[str, ...]:
        return self.columns[0].holders

    @cached_property
    def widths(self) -> tuple[int, ...]:
        """Categories of each of its columns."""
        return tuple(len(column.categories) for column in self.columns)

    @property
    def width(self) -> int:
        """Categories of all its columns."""
        return sum(self.widths)

    @cached_property
    def slices(self) -> dict[int, slice]:
        """Where each column's categories are, by the column's number."""
        ends = np.cumsum([len(column.categories) for column in self.columns]).tolist()
        return {c.index: slice(end - len(c.categories), end) for c, end in zip(self.columns, ends, strict=True)}


def column_groups(columns: Iterable[TopologyColumn]) -> dict[int, ColumnGroup]:
    """The groups of these columns, by number. A holder of one of a group's columns holds them all, and finds it too."""
    by_holders: dict[tuple[str, ...], list[TopologyColumn]] = {}
    for column in columns:
        if column.shared and column.kind == "clustering":
            by_holders.setdefault(column.holders, []).append(column)
    groups = (sorted(group, key=lambda column: column.index) for group in by_holders.values())
    return {
        group[0].index: ColumnGroup(group[0].index, tuple(group)) for group in sorted(groups, key=lambda g: g[0].index)
    }
