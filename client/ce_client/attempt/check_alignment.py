"""What the coordinator says about who shares what, read and checked against what the sites themselves have signed.

A site believes nothing here that it can check: that every site enrolled what is shown of it, who holds each of its
columns, how many columns and objects there can be. What it cannot check, which of its objects others hold too, its
masks are bound to: where two sites were told different things, their sums come to nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from ce.errors import MessageError
from ce.protocol.topology.enrolment import ColumnSummary, EnrolmentSummary
from ce.protocol.messages.task import Array
from ce.protocol.minimums import Enrolled
from ce.protocol.topology.site_view import Block, Kind, SiteView, TopologyColumn
from ce.protocol.topology.enrolment import Enrolment
from ce.steps.model import Sizes
from ce_proto.v1 import site_pb2 as pb

KIND_NUMBERS = {"clustering": pb.COLUMN_KIND_CLUSTERING, "classifier": pb.COLUMN_KIND_CLASSIFIER}
WRITTEN = {None: pb.CATEGORY_KIND_UNSPECIFIED, "integers": pb.CATEGORY_KIND_INTEGER, "text": pb.CATEGORY_KIND_TEXT}
_KINDS: dict[int, Kind] = {pb.COLUMN_KIND_CLUSTERING: "clustering", pb.COLUMN_KIND_CLASSIFIER: "classifier"}
_WRITTEN_NAMES: dict[int, Literal["integers", "text"] | None] = {
    pb.CATEGORY_KIND_UNSPECIFIED: None,
    pb.CATEGORY_KIND_INTEGER: "integers",
    pb.CATEGORY_KIND_TEXT: "text",
}


def shown_enrolments(message: pb.Alignment) -> dict[str, tuple[EnrolmentSummary, bytes]]:
    """Every site's enrolment and its signature, as the coordinator shows them."""
    shown = {}
    for own in message.enrolments:
        columns = []
        for column in own.columns:
            if column.kind not in _KINDS or column.categories_are not in _WRITTEN_NAMES:
                raise MessageError("enrolments: a column of an unknown kind")
            columns.append(
                ColumnSummary(
                    column.name,
                    _KINDS[column.kind],
                    column.soft,
                    _WRITTEN_NAMES[column.categories_are],
                    column.categories,
                    column.categories_digest,
                    column.labels,
                )
            )
        summary = EnrolmentSummary(own.objects, tuple(columns), own.pseudonym_digest, own.revision)
        shown[own.site] = (summary, own.signature)
    return shown


def private_objects(message: pb.Alignment, site: str, view: SiteView) -> dict[str, int]:
    """How many objects each site holds alone. Of the others this site hears; its own it knows."""
    told = {own.site: own.private_objects for own in message.enrolments}
    mine = sum(block.size for block in view.blocks.values() if not block.shared)
    if told[site] != mine or any(own.private_objects > own.objects for own in message.enrolments):
        raise MessageError("enrolments: private_objects are not those of the blocks")
    return told


def enrolled(summaries: Mapping[str, EnrolmentSummary], private: Mapping[str, int]) -> dict[str, Enrolled]:
    """The same, as the rules look at it."""
    return {
        site: Enrolled(
            summary.objects,
            private[site],
            {column.name: column.kind for column in summary.columns},
            {column.name: column.labels for column in summary.columns},
        )
        for site, summary in summaries.items()
    }


def read_view(message: pb.Alignment, site: str, own: Enrolment, summaries: Mapping[str, EnrolmentSummary]) -> SiteView:
    """This site's part of the topology."""
    roster = tuple(summaries)
    blocks = _blocks(message, site, summaries, message.shared_by_all)
    columns = _columns(message, site, own, summaries)
    shared = {block.members for block in blocks.values() if block.shared}
    if not message.needs_two_exchanges and any(
        c.shared and c.kind == "clustering" and set(c.holders) & set(members) for c in columns for members in shared
    ):
        raise MessageError("alignment: needs_two_exchanges is not what this site's own blocks and columns say")
    return SiteView(
        roster, _sizes(message, summaries), blocks, columns, message.needs_two_exchanges, message.shared_by_all
    )


def _blocks(message: pb.Alignment, site: str, summaries: Mapping[str, EnrolmentSummary], together: bool) -> dict[int, Block]:
    blocks: dict[int, Block] = {}
    for view in message.blocks:
        members = tuple(view.members)
        if site not in members or list(members) != sorted(set(members)) or not set(members) <= set(summaries):
            raise MessageError("alignment: members of a block are not sites of the roster, this one among them")
        if view.size > min(summaries[member].objects for member in members):
            raise MessageError("alignment: a block is larger than what one of its members has enrolled")
        if together and 1 < len(members) < len(summaries):
            raise MessageError("alignment: shared_by_all is not what this site's own blocks say")
        blocks[view.index] = Block(view.index, members, view.size)
    if len(blocks) != len(message.blocks) or len({block.members for block in blocks.values()}) != len(blocks):
        raise MessageError("alignment: two blocks are one")
    return blocks


def _columns(
    message: pb.Alignment, site: str, own: Enrolment, summaries: Mapping[str, EnrolmentSummary]
) -> tuple[TopologyColumn, ...]:
    claims = {claim.name: claim for claim in own.columns}
    known = {s: {column.name: column for column in summary.columns} for s, summary in summaries.items()}
    columns = []
    for column in message.columns:
        claim = claims.get(column.name)
        if claim is None or KIND_NUMBERS[claim.kind] != column.kind:
            raise MessageError("alignment: a column that this site did not enrol")
        holders = tuple(s for s in sorted(summaries) if column.name in known[s])
        if tuple(column.holders) != holders:
            raise MessageError("alignment: holders of a column are not the sites that have enrolled it")
        counts = [known[s][column.name].categories for s in holders]
        categories = tuple(token.hex() for token in column.categories)
        if len(set(categories)) < len(categories) or not set(map(str, claim.categories)) <= set(categories):
            raise MessageError("alignment: categories of a column lack one that this site enrolled")
        if not max(counts) <= len(categories) <= sum(counts):
            raise MessageError("alignment: categories of a column are not those that its holders have enrolled")
        columns.append(TopologyColumn(column.index, column.name, claim.kind, categories, holders))
    if sorted(column.name for column in columns) != sorted(claims):
        raise MessageError("alignment: not all columns of this site, each once")
    if len({column.index for column in columns}) < len(columns):
        raise MessageError("alignment: two columns have one number")
    return tuple(columns)


def _sizes(message: pb.Alignment, summaries: Mapping[str, EnrolmentSummary]) -> Sizes:
    s = message.sizes
    sizes = Sizes(s.objects, s.clusterings, s.classifiers, s.categories)
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
    return sizes


def _names(summaries: Iterable[EnrolmentSummary], kind: Kind) -> set[str]:
    return {column.name for summary in summaries for column in summary.columns if column.kind == kind}


def read_rows(arrays: Mapping[str, Array], view: SiteView, objects: int) -> dict[int, Any]:
    """Positions of each block's objects; together every object of this site exactly once."""
    if set(arrays) != {f"rows/{block}" for block in view.blocks}:
        raise MessageError("alignment: not one array of rows for each block")
    rows = {}
    seen = np.zeros(objects, dtype=bool)
    for index, block in view.blocks.items():
        own = arrays[f"rows/{index}"]
        if own.dtype != np.int64 or own.shape != (block.size,) or ((own < 0) | (own >= objects)).any():
            raise MessageError("alignment: rows are not positions of this site's objects")
        seen[own] = True
        rows[index] = own.astype(np.intp)
    if not seen.all() or sum(block.size for block in view.blocks.values()) != objects:
        raise MessageError("alignment: not every object of this site, each in one block")
    return rows
