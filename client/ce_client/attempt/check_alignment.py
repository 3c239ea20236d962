"""An alignment, read and checked against the enrolments that the sites have signed.

A site checks everything that it can: that every site signed the enrolment that is sent for it, which sites hold each
column, how many columns and objects there can be. It cannot check which of its objects other sites hold too; its masks
are bound to that. If two sites are sent inconsistent views, their masks do not cancel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import numpy as np

from ce.errors import MessageError
from ce.protocol.keys.handshake import ColumnSummary, Summary
from ce.protocol.messages.task import Array
from ce.protocol.minimums import Enrolled
from ce.protocol.topology.topology import Block, Enrolment, Kind, SiteView, TopologyColumn
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


def sent_enrolments(message: pb.Alignment) -> dict[str, tuple[Summary, bytes]]:
    """Every site's enrolment and its signature, as the coordinator sends them."""
    sent = {}
    for enrolment in message.enrolments:
        columns = []
        for column in enrolment.columns:
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
        summary = Summary(enrolment.objects, tuple(columns), enrolment.pseudonym_digest, enrolment.revision)
        sent[enrolment.site] = (summary, enrolment.signature)
    return sent


def private_objects(message: pb.Alignment, site: str, view: SiteView) -> dict[str, int]:
    """How many objects each site holds alone, as the coordinator says; checked for this site."""
    private = {enrolment.site: enrolment.private_objects for enrolment in message.enrolments}
    expected = sum(block.size for block in view.blocks.values() if not block.shared)
    if private[site] != expected or any(sent.private_objects > sent.objects for sent in message.enrolments):
        raise MessageError("enrolments: private_objects are not those of the blocks")
    return private


def enrolled(summaries: Mapping[str, Summary], private: Mapping[str, int]) -> dict[str, Enrolled]:
    """The enrolments of all sites, as the rules use them."""
    return {
        site: Enrolled(
            summary.objects,
            private[site],
            {column.name: column.kind for column in summary.columns},
            {column.name: column.labels for column in summary.columns},
        )
        for site, summary in summaries.items()
    }


def read_view(message: pb.Alignment, site: str, enrolment: Enrolment, summaries: Mapping[str, Summary]) -> SiteView:
    """This site's view of the topology."""
    roster = tuple(summaries)
    blocks = _blocks(message, site, summaries, message.shared_by_all)
    columns = _columns(message, site, enrolment, summaries)
    shared = {block.members for block in blocks.values() if block.shared}
    if not message.needs_two_exchanges and any(
        c.shared and c.kind == "clustering" and set(c.holders) & set(members) for c in columns for members in shared
    ):
        raise MessageError("alignment: needs_two_exchanges is not what this site's blocks and columns say")
    return SiteView(
        roster, _sizes(message, summaries), blocks, columns, message.needs_two_exchanges, message.shared_by_all
    )


def _blocks(message: pb.Alignment, site: str, summaries: Mapping[str, Summary], together: bool) -> dict[int, Block]:
    blocks: dict[int, Block] = {}
    for view in message.blocks:
        members = tuple(view.members)
        if site not in members or list(members) != sorted(set(members)) or not set(members) <= set(summaries):
            raise MessageError("alignment: members of a block are not sites of the roster, this one among them")
        if view.size > min(summaries[member].objects for member in members):
            raise MessageError("alignment: a block is larger than what one of its members has enrolled")
        if together and 1 < len(members) < len(summaries):
            raise MessageError("alignment: shared_by_all is not what this site's blocks say")
        blocks[view.index] = Block(view.index, members, view.size)
    if len(blocks) != len(message.blocks) or len({block.members for block in blocks.values()}) != len(blocks):
        raise MessageError("alignment: two blocks are one")
    return blocks


def _columns(
    message: pb.Alignment, site: str, enrolment: Enrolment, summaries: Mapping[str, Summary]
) -> tuple[TopologyColumn, ...]:
    claims = {claim.name: claim for claim in enrolment.columns}
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


def _sizes(message: pb.Alignment, summaries: Mapping[str, Summary]) -> Sizes:
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


def _names(summaries: Iterable[Summary], kind: Kind) -> set[str]:
    return {column.name for summary in summaries for column in summary.columns if column.kind == kind}


def read_rows(arrays: Mapping[str, Array], view: SiteView, objects: int) -> dict[int, Any]:
    """Positions of each block's objects; together every object of this site exactly once."""
    if set(arrays) != {f"rows/{block}" for block in view.blocks}:
        raise MessageError("alignment: not one array of rows for each block")
    rows = {}
    seen = np.zeros(objects, dtype=bool)
    for index, block in view.blocks.items():
        positions = arrays[f"rows/{index}"]
        inside = (positions >= 0) & (positions < objects)
        if positions.dtype != np.int64 or positions.shape != (block.size,) or not inside.all():
            raise MessageError("alignment: rows are not positions of this site's objects")
        seen[positions] = True
        rows[index] = positions.astype(np.intp)
    if not seen.all() or sum(block.size for block in view.blocks.values()) != objects:
        raise MessageError("alignment: not every object of this site, each in one block")
    return rows
