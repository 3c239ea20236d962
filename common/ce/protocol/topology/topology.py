"""Who holds what: row blocks and column groups, derived from what the sites enrol, never from a switch.

A *block* is all objects held by the same set of sites; a *column* is one clustering or classifier, shared when two
sites give it the same name. Objects are opaque tokens here: whoever derives the topology need not know an id.

Rules, applied before any round runs:
- an object belongs to every site that lists it; one without a label at any of them is left out of the fit, as soon as
  the opening sums show it, and gets the model's prior memberships and no label;
- a column that is a classifier here and a clustering there, soft here and hard there, or has integer categories here
  and text there, is refused (rule "clashing column");
- a cell that two sites claim is refused (rule "overlapping cells"), as soon as the opening sums show it;
- the categories of a shared column are the union of what its holders have seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ce.errors import InputError, Refused
from ce.steps.model import Sizes

Layout = Literal["one", "row", "column", "arbitrary"]
Rows = NDArray[np.intp]
Kind = Literal["clustering", "classifier"]
Categories = tuple[int, ...] | tuple[str, ...]


@dataclass(frozen=True)
class ColumnClaim:
    """A column as one site enrols it."""

    name: str
    kind: Kind
    soft: bool
    categories: Categories = field(repr=False)
    written: Literal["integers", "text"] | None = None  # how the site writes categories; None: it has seen none
    labels: int = 0  # of its objects that have one, as far as the site shows it


@dataclass(frozen=True)
class Enrolment:
    """What a site says it holds: one token per object (in its own order), and its columns."""

    objects: NDArray[Any] = field(repr=False)
    columns: tuple[ColumnClaim, ...]


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
    """A column over all sites; `holders` in order of name."""

    index: int
    name: str
    kind: Kind
    categories: Categories = field(repr=False)
    holders: tuple[str, ...]

    @property
    def shared(self) -> bool:
        return len(self.holders) > 1


@dataclass(frozen=True)
class Topology:
    """The whole picture, without labels: all that the home needs to know."""

    sites: tuple[str, ...]
    blocks: tuple[Block, ...]
    columns: tuple[TopologyColumn, ...]

    @property
    def clusterings(self) -> tuple[TopologyColumn, ...]:
        return tuple(column for column in self.columns if column.kind == "clustering")

    @property
    def classifiers(self) -> tuple[TopologyColumn, ...]:
        return tuple(column for column in self.columns if column.kind == "classifier")

    @property
    def sizes(self) -> Sizes:
        return Sizes(
            objects=sum(block.size for block in self.blocks),
            clusterings=len(self.clusterings),
            classifiers=len(self.classifiers),
            categories=sum(len(column.categories) for column in self.clusterings),
        )

    @property
    def layout(self) -> Layout:
        """The papers' name for this topology."""
        if len(self.sites) == 1:
            return "one"
        if not any(block.shared for block in self.blocks) and all(column.shared for column in self.columns):
            return "row"
        one_block = len(self.blocks) == 1 and len(self.blocks[0].members) == len(self.sites)
        if one_block and not any(column.shared for column in self.columns):
            return "column"
        return "arbitrary"

    @property
    def needs_two_exchanges(self) -> bool:
        """Whether a shared block may have cells of a shared clustering: two-phase models then need two exchanges."""
        return any(
            column.shared and set(column.holders) & set(block.members)
            for block in self.blocks
            if block.shared
            for column in self.clusterings
        )

    @property
    def shared_by_all(self) -> bool:
        """Whether every shared block is held by all sites, so that each knows the totals of all shared objects."""
        return all(len(block.members) == len(self.sites) for block in self.blocks if block.shared)

    def whole(self) -> SiteView:
        """What the home is told: everything."""
        blocks = {block.index: block for block in self.blocks}
        return SiteView(self.sites, self.sizes, blocks, self.columns, self.needs_two_exchanges, self.shared_by_all)

    def view(self, site: str) -> SiteView:
        """What one site is told."""
        return SiteView(
            self.sites,
            self.sizes,
            {block.index: block for block in self.blocks if site in block.members},
            tuple(column for column in self.columns if site in column.holders),
            self.needs_two_exchanges,
            self.shared_by_all,
        )


@dataclass(frozen=True)
class SiteView:
    """The topology as one party sees it: a site its own blocks and columns, of the rest sizes only; the home all."""

    sites: tuple[str, ...]  # of the whole job
    sizes: Sizes
    blocks: dict[int, Block]
    columns: tuple[TopologyColumn, ...]
    needs_two_exchanges: bool  # Topology.needs_two_exchanges
    shared_by_all: bool  # Topology.shared_by_all

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

    def contributors(self, name: str) -> tuple[str, ...]:
        """The sites, in order of name, whose sums make up the total of an array."""
        kind, *rest = name.split("/")
        if kind == "global":
            return self.sites
        if kind == "columns":
            return self.groups[int(rest[0])].holders
        members = self.blocks[int(rest[0])].members
        if rest[1] != "claims":
            return members
        holders = next(c.holders for c in self.columns if c.index == int(rest[2]))
        return tuple(site for site in members if site in holders)


@dataclass(frozen=True)
class ColumnGroup:
    """Shared clusterings with the same holders: their sums and tables travel as one array, side by side."""

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


def align(enrolments: Mapping[str, Enrolment]) -> tuple[Topology, dict[str, dict[int, Rows]]]:
    """Derive the topology, and for each site the rows of its own table in each of its blocks, in the common order."""
    if not enrolments:
        raise InputError("no site: at least one is needed")
    sites = tuple(sorted(enrolments))
    blocks, rows = _blocks(sites, [enrolments[site].objects for site in sites])
    return Topology(sites, blocks, _columns(sites, enrolments)), rows


def block_pseudonyms(
    topology: Topology, enrolments: Mapping[str, Enrolment], rows: Mapping[str, Mapping[int, Rows]]
) -> dict[int, NDArray[Any]]:
    """The objects of each shared block, in the order that its members share."""
    first = {block.index: block.members[0] for block in topology.blocks if block.shared}
    return {index: enrolments[site].objects[rows[site][index]] for index, site in first.items()}


def _blocks(
    sites: tuple[str, ...], objects: Sequence[NDArray[Any]]
) -> tuple[tuple[Block, ...], dict[str, dict[int, Rows]]]:
    if len(sites) == 1:
        everything: Rows = np.arange(len(objects[0]))
        return (Block(0, sites, len(everything)),), {sites[0]: {0: everything}}
    tokens, position = np.unique(np.concatenate(objects), return_inverse=True)
    holds = np.zeros((len(tokens), len(sites)), dtype=bool)
    row_of = np.full((len(sites), len(tokens)), -1, dtype=np.intp)
    begin = 0
    for s, own in enumerate(objects):
        where = position[begin : begin + len(own)]
        holds[where, s] = True
        row_of[s, where] = np.arange(len(own))
        begin += len(own)
    # Sites first by name, so that block numbers do not depend on the order in which sites are given.
    patterns, block_of = np.unique(~holds, axis=0, return_inverse=True)
    block_of = block_of.reshape(-1)
    blocks = []
    rows: dict[str, dict[int, Rows]] = {site: {} for site in sites}
    for index, absent in enumerate(patterns):
        members = np.flatnonzero(~absent)
        inside = np.flatnonzero(block_of == index)
        blocks.append(Block(index, tuple(sites[s] for s in members), len(inside)))
        for site in members.tolist():
            rows[sites[site]][index] = row_of[site, inside]
    return tuple(blocks), rows


def _columns(sites: tuple[str, ...], enrolments: Mapping[str, Enrolment]) -> tuple[TopologyColumn, ...]:
    claims: dict[str, dict[str, ColumnClaim]] = {}
    for site in sites:
        for claim in enrolments[site].columns:
            claims.setdefault(claim.name, {})[site] = claim
    columns = []
    for index, name in enumerate(sorted(claims)):
        by_site = claims[name]
        _refuse_clashes(name, by_site)
        first = next(iter(by_site.values()))
        columns.append(TopologyColumn(index, name, first.kind, _union(by_site.values()), tuple(by_site)))
    return tuple(columns)


def _union(claims: Iterable[ColumnClaim]) -> Categories:
    union: set[Any] = set()
    for claim in claims:
        union.update(claim.categories)
    return tuple(sorted(union))


def _refuse_clashes(name: str, by_site: Mapping[str, ColumnClaim]) -> None:
    def differ(what: str, values: Mapping[str, str], remedy: str) -> None:
        if len(set(values.values())) > 1:
            listed = ", ".join(f"{value} at {site}" for site, value in values.items())
            raise Refused("clashing column", f"column {name!r} differs in its {what}: {listed}; {remedy}")

    differ("kind", {s: c.kind for s, c in by_site.items()}, "rename the column at one of the sites")
    differ(
        "labels",
        {s: "soft labels" if c.soft else "hard labels" for s, c in by_site.items()},
        "rename the column at one of the sites",
    )
    differ(
        "categories",
        {s: c.written for s, c in by_site.items() if c.written is not None},
        "write them in the same way at every site, or rename the column",
    )
