"""Checks an alignment against what the sites themselves have signed.

A site believes nothing here that it can check: which sites hold each of its columns and which categories take part,
how many columns and objects there can be, and which of its objects each other site has enrolled, as far as the two have
compared them. Whatever is left, its masks are bound to: if two sites are sent inconsistent alignments, their masks do
not cancel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import numpy as np

from ce.errors import MessageError, Refused
from ce.protocol.keys.letters import Overlap
from ce.protocol.messages.array_names import rows_array
from ce.protocol.messages.task import Array
from ce.protocol.topology.enrolment import Enrolment, EnrolmentSummary
from ce.protocol.topology.other_columns import checked_other_columns
from ce.protocol.topology.site_view import Block, Categories, Kind, SiteView, TopologyColumn
from ce.protocol.topology.topology import Rows
from ce.steps.model import Sizes
from ce.transport.alignment_codec import AlignmentHeader

Summaries = Mapping[str, EnrolmentSummary]

#: The rule that an alignment breaks that is not what the sites have found between them.
OVERLAP = "overlap of sites"


def private_objects(header: AlignmentHeader, summaries: Summaries, site: str, view: SiteView) -> dict[str, int]:
    """How many objects each site holds alone, as the coordinator says; this site's number is known here."""
    if len(header.private_objects) != len(summaries):
        raise MessageError("alignment: private_objects are not those of all sites")
    sent = dict(zip(summaries, header.private_objects, strict=True))
    mine = sum(block.size for block in view.blocks.values() if not block.shared)
    if sent[site] != mine or any(sent[name] > summary.objects for name, summary in summaries.items()):
        raise MessageError("alignment: private_objects are not those of the blocks")
    return sent


def checked_view(
    header: AlignmentHeader,
    site: str,
    enrolment: Enrolment,
    summaries: Summaries,
    vocabularies: Mapping[str, Categories],
    *,
    sealed: bool = False,
) -> SiteView:
    """This site's part of the topology; in a `sealed` job with all columns of the others.

    `vocabularies`: what the holders of its shared clusterings have agreed on.
    """
    blocks = _checked_blocks(header, site, summaries)
    columns = _checked_columns(header, enrolment, summaries, vocabularies)
    shared = {block.members for block in blocks.values() if block.shared}
    if not header.needs_two_exchanges and any(
        c.shared and c.kind == "clustering" and set(c.holders) & set(members) for c in columns for members in shared
    ):
        raise MessageError("alignment: needs_two_exchanges is not what this site's own blocks and columns say")
    _check_sizes(header.sizes, summaries, columns)
    flags = (header.needs_two_exchanges, header.shared_by_all)
    view = SiteView(tuple(summaries), header.sizes, blocks, columns, *flags)
    if sealed:
        counts = header.other_category_counts
        others = checked_other_columns(header.other_columns, counts, columns, summaries, header.sizes.categories)
        return replace(view, other_columns=others)
    if header.other_columns:
        raise MessageError("alignment: other_columns are for sealed jobs")
    return view


def checked_rows(arrays: Mapping[str, Array], view: SiteView, objects: int, *, sealed: bool = False) -> dict[int, Rows]:
    """Positions of each block's objects; together every object of this site exactly once.

    In a `sealed` job in ascending order, which is that of their pseudonyms, as this site has enrolled them: the labels
    of a block are kept under a digest of its objects in their order, and there must be one such order.
    """
    if set(arrays) != {rows_array(block) for block in view.blocks}:
        raise MessageError("alignment: not one array of rows for each block")
    rows = {}
    seen = np.zeros(objects, dtype=bool)
    for index, block in view.blocks.items():
        positions = arrays[rows_array(index)]
        outside = ((positions < 0) | (positions >= objects)).any()
        if positions.dtype != np.int64 or positions.shape != (block.size,) or outside:
            raise MessageError("alignment: rows are not positions of this site's objects")
        if sealed and block.shared and (np.diff(positions) <= 0).any():
            raise MessageError("alignment: rows of a sealed job are not in the order of the pseudonyms")
        rows[index] = positions.astype(np.intp)
        seen[rows[index]] = True
    if not seen.all() or sum(block.size for block in view.blocks.values()) != objects:
        raise MessageError("alignment: not every object of this site, each in one block")
    return rows


def check_overlaps(overlaps: Mapping[str, Overlap], view: SiteView, rows: Mapping[int, Rows]) -> None:
    """That the alignment says of each other site what the two have found: which of this site's objects it has enrolled.

    Raises Refused, naming that site, for any difference.
    """
    objects = sum(len(positions) for positions in rows.values())
    for peer, overlap in overlaps.items():
        said = np.zeros(objects, dtype=bool)
        for index, block in view.blocks.items():
            if peer in block.members:
                said[rows[index]] = True
        wrong = int((said[overlap.compared] != overlap.common).sum())
        if wrong:
            raise Refused(
                OVERLAP,
                f"of {wrong:,} of {len(overlap.compared):,} objects the coordinator says something else about whether "
                f"{peer} has enrolled them than {peer} and this site have found between them: the coordinator, or "
                f"{peer}, does not say the truth",
            )


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


def _checked_columns(
    header: AlignmentHeader, enrolment: Enrolment, summaries: Summaries, vocabularies: Mapping[str, Categories]
) -> tuple[TopologyColumn, ...]:
    """The columns of this site, with their categories."""
    claims = {claim.name: claim for claim in enrolment.columns}
    found = []
    for column, count in zip(header.columns, header.category_counts, strict=True):
        claim = claims.get(column.name)
        if claim is None or claim.kind != column.kind:
            raise MessageError("alignment: a column that this site did not enrol")
        holders = tuple(site for site, summary in summaries.items() if column.name in summary.kinds)
        if column.holders != holders:
            raise MessageError("alignment: holders of a column are not the sites that have enrolled it")
        categories = claim.categories if len(holders) == 1 else vocabularies.get(column.name, ())
        if count != len(categories):
            raise MessageError("alignment: a column has another number of categories than its holders have agreed on")
        found.append(replace(column, categories=categories))
    if sorted(column.name for column in header.columns) != sorted(claims):
        raise MessageError("alignment: not all columns of this site, each once")
    if len({column.index for column in header.columns}) < len(header.columns):
        raise MessageError("alignment: two columns have one number")
    return tuple(found)


def _check_sizes(sizes: Sizes, summaries: Summaries, columns: tuple[TopologyColumn, ...]) -> None:
    counts: dict[str, list[int]] = {}
    for summary in summaries.values():
        for column in summary.columns:
            if column.kind == "clustering":
                counts.setdefault(column.name, []).append(column.categories)
    known = {column.name: len(column.categories) for column in columns}
    # Of columns with one holder all categories take part, of others' shared ones none to all.
    least = {name: known.get(name, found[0] if len(found) == 1 else 0) for name, found in counts.items()}
    most = {name: known.get(name, sum(found)) for name, found in counts.items()}
    objects = [summary.objects for summary in summaries.values()]
    fits = (
        max(objects) <= sizes.objects <= sum(objects)
        and sizes.clusterings == len(counts)
        and sizes.classifiers == len(_names(summaries.values(), "classifier"))
        and sum(least.values()) <= sizes.categories <= sum(most.values())
    )
    if not fits:
        raise MessageError("alignment: sizes are not those of what the sites have enrolled")


def _names(summaries: Iterable[EnrolmentSummary], kind: Kind) -> set[str]:
    return {column.name for summary in summaries for column in summary.columns if column.kind == kind}
