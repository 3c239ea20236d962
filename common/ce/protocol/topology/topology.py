"""Who holds what: row blocks and column groups, derived from what the sites enrol, never from a switch.

A *block* is all objects held by the same set of sites; a *column* is one clustering or classifier, shared when two
sites give it the same name. Objects are opaque tokens here: the party that derives the topology need not know an id.

Rules, applied before any round runs:
- an object belongs to every site that lists it; one without a label at any of them is left out of the fit, as soon as
  the opening sums show it, and gets the model's prior memberships and no label;
- a column that is a classifier here and a clustering there, soft here and hard there, or has integer categories here
  and text there, is refused (rule "clashing column");
- a cell that two sites claim is refused (rule "overlapping cells"), as soon as the opening sums show it;
- the categories of a shared column are those that its holders have agreed on (`vocabularies`); without an agreement,
  the union of what they have seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from ce.errors import InputError, Refused
from ce.protocol.topology.enrolment import ColumnClaim, Enrolment
from ce.protocol.topology.site_view import Block, Categories, SiteView, TopologyColumn
from ce.steps.model import Sizes

Layout = Literal["one", "row", "column", "arbitrary"]
Rows = NDArray[np.intp]


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
        """What the home sees: everything."""
        blocks = {block.index: block for block in self.blocks}
        return SiteView(self.sites, self.sizes, blocks, self.columns, self.needs_two_exchanges, self.shared_by_all)

    def view(self, site: str) -> SiteView:
        """What one site is sent."""
        return SiteView(
            self.sites,
            self.sizes,
            {block.index: block for block in self.blocks if site in block.members},
            tuple(column for column in self.columns if site in column.holders),
            self.needs_two_exchanges,
            self.shared_by_all,
        )

    def sealed_view(self, site: str) -> SiteView:
        """What one site of a sealed job is sent: of the columns that it does not hold how many categories there are."""
        others = tuple(numbered(column) for column in self.columns if site not in column.holders)
        return replace(self.view(site), other_columns=others)


def numbered(column: TopologyColumn) -> TopologyColumn:
    """The column as one knows it who is told the number of its categories only."""
    return replace(column, categories=tuple(range(len(column.categories))))


def align(
    enrolments: Mapping[str, Enrolment], vocabularies: Mapping[str, Categories] | None = None
) -> tuple[Topology, dict[str, dict[int, Rows]]]:
    """Derive the topology, and for each site the rows of its own table in each of its blocks, in the common order.

    `vocabularies`: the categories of each shared clustering, by name; without it, all that its holders have enrolled.
    """
    if not enrolments:
        raise InputError("no site: at least one is needed")
    sites = tuple(sorted(enrolments))
    blocks, rows = _blocks(sites, [enrolments[site].objects for site in sites])
    return Topology(sites, blocks, _columns(sites, enrolments, vocabularies or {})), rows


def refuse_clashing_columns(enrolments: Mapping[str, Enrolment]) -> None:
    """Raises Refused where two sites give a column the same name but not the same kind of labels."""
    _columns(tuple(sorted(enrolments)), enrolments, {})


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
    for s, tokens_of_site in enumerate(objects):
        where = position[begin : begin + len(tokens_of_site)]
        holds[where, s] = True
        row_of[s, where] = np.arange(len(tokens_of_site))
        begin += len(tokens_of_site)
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


def _columns(
    sites: tuple[str, ...], enrolments: Mapping[str, Enrolment], vocabularies: Mapping[str, Categories]
) -> tuple[TopologyColumn, ...]:
    claims: dict[str, dict[str, ColumnClaim]] = {}
    for site in sites:
        for claim in enrolments[site].columns:
            claims.setdefault(claim.name, {})[site] = claim
    columns = []
    for index, name in enumerate(sorted(claims)):
        by_site = claims[name]
        _refuse_clashes(name, by_site)
        first = next(iter(by_site.values()))
        categories = vocabularies[name] if name in vocabularies else _union(by_site.values())
        columns.append(TopologyColumn(index, name, first.kind, categories, tuple(by_site)))
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
