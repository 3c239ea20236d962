"""Checks an alignment against what the sites themselves have signed.

A site believes nothing here that it can check: that every site enrolled what is shown of it, which sites hold each of
its columns, how many columns and objects there can be. What it cannot check, which of its objects others hold too, its
masks are bound to: if two sites are sent inconsistent alignments, their masks do not cancel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from ce.errors import MessageError
from ce.protocol.messages.array_names import rows_array
from ce.protocol.messages.task import Array
from ce.protocol.topology.enrolment import Enrolment, EnrolmentSummary
from ce.protocol.topology.site_view import Block, Kind, SiteView, TopologyColumn
from ce.protocol.topology.topology import Rows
from ce.steps.model import Sizes
from ce.transport.alignment_codec import AlignmentHeader

Summaries = Mapping[str, EnrolmentSummary]


def private_objects(summaries: Summaries, site: str, view: SiteView) -> dict[str, int]:
    """How many objects each site holds alone, as the coordinator says; this site's number is known here."""
    sent = {name: summary.private_objects for name, summary in summaries.items()}
    mine = sum(block.size for block in view.blocks.values() if not block.shared)
    if sent[site] != mine or any(summary.private_objects > summary.objects for summary in summaries.values()):
        raise MessageError("enrolments: private_objects are not those of the blocks")
    return sent


def checked_view(header: AlignmentHeader, site: str, enrolment: Enrolment, summaries: Summaries) -> SiteView:
    """This site's part of the topology."""
    blocks = _checked_blocks(header, site, summaries)
    columns = _checked_columns(header, enrolment, summaries)
    shared = {block.members for block in blocks.values() if block.shared}
    if not header.needs_two_exchanges and any(
        c.shared and c.kind == "clustering" and set(c.holders) & set(members) for c in columns for members in shared
    ):
        raise MessageError("alignment: needs_two_exchanges is not what this site's own blocks and columns say")
    _check_sizes(header.sizes, summaries)
    flags = (header.needs_two_exchanges, header.shared_by_all)
    return SiteView(tuple(summaries), header.sizes, blocks, columns, *flags)


def checked_rows(arrays: Mapping[str, Array], view: SiteView, objects: int) -> dict[int, Rows]:
    """Positions of each block's objects; together every object of this site exactly once."""
    if set(arrays) != {rows_array(block) for block in view.blocks}:
        raise MessageError("alignment: not one array of rows for each block")
    rows = {}
    seen = np.zeros(objects, dtype=bool)
    for index, block in view.blocks.items():
        positions = arrays[rows_array(index)]
        outside = ((positions < 0) | (positions >= objects)).any()
        if positions.dtype != np.int64 or positions.shape != (block.size,) or outside:
            raise MessageError("alignment: rows are not positions of this site's objects")
        rows[index] = positions.astype(np.intp)
        seen[rows[index]] = True
    if not seen.all() or sum(block.size for block in view.blocks.values()) != objects:
        raise MessageError("alignment: not every object of this site, each in one block")
    return rows


def _checked_blocks(header: AlignmentHeader, site: str, summaries: Summaries) -> dict[int, Block]:
    blocks: dict[int, Block] = {}
    for block in header.blocks:
        members = block.members
        if site not in members or list(members) != sorted(set(members)) or not set(members) <= set(summaries):
            raise MessageError("alignment: members of a block are not sites of the roster, this one among them")
        if block.size > min(summaries[member].objects for member in members):
            raise MessageError("alignment: a block is larger than what one of its members has enrolled")
        if header.shared_by_all and 1 < len(members) < len(summaries):
            raise MessageError("alignment: shared_by_all is not what this site's own blocks say")
        blocks[block.index] = block
    if len(blocks) != len(header.blocks) or len({block.members for block in blocks.values()}) != len(blocks):
        raise MessageError("alignment: two blocks are one")
    return blocks


def _checked_columns(header: AlignmentHeader, enrolment: Enrolment, summaries: Summaries) -> tuple[TopologyColumn, ...]:
    claims = {claim.name: claim for claim in enrolment.columns}
    known = {site: {column.name: column for column in summary.columns} for site, summary in summaries.items()}
    for column in header.columns:
        claim = claims.get(column.name)
        if claim is None or claim.kind != column.kind:
            raise MessageError("alignment: a column that this site did not enrol")
        holders = tuple(site for site in sorted(summaries) if column.name in known[site])
        if column.holders != holders:
            raise MessageError("alignment: holders of a column are not the sites that have enrolled it")
        counts = [known[site][column.name].categories for site in holders]
        categories = set(column.categories)
        if len(categories) < len(column.categories) or not set(map(str, claim.categories)) <= categories:
            raise MessageError("alignment: categories of a column lack one that this site enrolled")
        if not max(counts) <= len(categories) <= sum(counts):
            raise MessageError("alignment: categories of a column are not those that its holders have enrolled")
    if sorted(column.name for column in header.columns) != sorted(claims):
        raise MessageError("alignment: not all columns of this site, each once")
    if len({column.index for column in header.columns}) < len(header.columns):
        raise MessageError("alignment: two columns have one number")
    return header.columns


def _check_sizes(sizes: Sizes, summaries: Summaries) -> None:
    counts: dict[str, list[int]] = {}
    for summary in summaries.values():
        for column in summary.columns:
            if column.kind == "clustering":
                counts.setdefault(column.name, []).append(column.categories)
    objects = [summary.objects for summary in summaries.values()]
    fits = (
        max(objects) <= sizes.objects <= sum(objects)
        and sizes.clusterings == len(counts)
        and sizes.classifiers == len(_names(summaries.values(), "classifier"))
        and sum(map(max, counts.values())) <= sizes.categories <= sum(map(sum, counts.values()))
    )
    if not fits:
        raise MessageError("alignment: sizes are not those of what the sites have enrolled")


def _names(summaries: Iterable[EnrolmentSummary], kind: Kind) -> set[str]:
    return {column.name for summary in summaries for column in summary.columns if column.kind == kind}
