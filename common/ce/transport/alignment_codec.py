"""Alignments as messages of the wire contract, and back: what one site is sent of the topology.

Decoding checks the form only; a site checks the content against what all sites have signed
(`ce_client.attempt.check_alignment`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ce.protocol.attempt import Attempt
from ce.protocol.messages.array_names import rows_array
from ce.protocol.topology.site_view import Block, SiteView, TopologyColumn
from ce.protocol.topology.topology import Rows, Topology
from ce.steps.model import Sizes
from ce.transport.array_chunks import chunk_of, to_chunks
from ce.transport.enrolment_codec import kind_number, read_kind
from ce_proto.v1 import site_pb2 as pb


def alignment_frames(
    attempt: Attempt, view: SiteView, rows: Mapping[int, Rows], private: Mapping[str, int], revision: int
) -> Iterator[pb.CoordinatorFrame]:
    """What one site is sent, one frame at a time. `rows` are the positions of its objects, by block; `private` says
    how many objects each site holds alone."""
    header = pb.Alignment(
        job=attempt.job,
        epoch=attempt.epoch,
        sizes=pb.Sizes(
            objects=view.sizes.objects,
            clusterings=view.sizes.clusterings,
            classifiers=view.sizes.classifiers,
            categories=view.sizes.categories,
        ),
        blocks=[pb.BlockView(index=b.index, members=b.members, size=b.size) for b in view.blocks.values()],
        columns=[_column(column) for column in view.columns],
        other_columns=[_column(column) for column in view.other_columns],
        revision=revision,
        private_objects=[private[site] for site in attempt.roster],
        needs_two_exchanges=view.needs_two_exchanges,
        shared_by_all=view.shared_by_all,
    )
    arrays = {rows_array(block): positions.astype(np.int64) for block, positions in rows.items()}
    for at, chunks in enumerate(to_chunks(arrays, chunk=chunk_of(len(attempt.roster)))):
        if at == 0:
            header.chunks.CopyFrom(chunks)
            yield pb.CoordinatorFrame(alignment=header)
        else:
            yield pb.CoordinatorFrame(more=pb.More(job=attempt.job, epoch=attempt.epoch, chunks=chunks))


def _column(column: TopologyColumn) -> pb.ColumnView:
    return pb.ColumnView(
        index=column.index,
        name=column.name,
        kind=kind_number(column.kind),
        holders=column.holders,
        category_count=len(column.categories) if column.kind == "clustering" else 0,
    )


def largest_header(topology: Topology) -> int:
    """Bytes of the largest header of an introduction, alignment or task of a job, rather too many than too few."""
    header = dict.fromkeys(topology.sites, _introduction_size(topology))
    for block in topology.blocks:
        # A task asks for up to three counts and for claims on contested columns, each of some 40 bytes.
        contested = sum(len(set(column.holders) & set(block.members)) > 1 for column in topology.columns)
        for site in block.members:
            header[site] += 40 * (4 + contested) + sum(len(member) + 2 for member in block.members)
    for column in topology.columns:
        for site in column.holders:
            header[site] += _column_size(column)
    return max(header.values())


def sealed_largest_header(topology: Topology) -> int:
    """The same of a sealed job, whose sites are told all columns; a task asks for a box to every other site, and for at
    most one array of each block."""
    columns = sum(_column_size(column) for column in topology.columns)
    header = dict.fromkeys(topology.sites, _introduction_size(topology) + columns + 128 * len(topology.sites))
    for block in topology.blocks:
        for site in block.members:
            header[site] += 128 + sum(len(member) + 2 for member in block.members)
    return max(header.values())


def _introduction_size(topology: Topology) -> int:
    enrolled = sum((64 + len(column.name.encode())) * len(column.holders) for column in topology.columns)
    return enrolled + 256 * len(topology.sites)


def _column_size(column: TopologyColumn) -> int:
    return 32 + len(column.name.encode()) + sum(len(holder) + 2 for holder in column.holders)


@dataclass(frozen=True)
class AlignmentHeader:
    """An alignment as it was sent, without the positions of objects. Its columns have no categories: only their number
    is sent."""

    revision: int
    sizes: Sizes
    blocks: tuple[Block, ...]
    columns: tuple[TopologyColumn, ...]
    category_counts: tuple[int, ...]  # of each column
    needs_two_exchanges: bool
    shared_by_all: bool
    private_objects: tuple[int, ...]  # of each site, in order of name
    other_columns: tuple[TopologyColumn, ...] = ()  # sealed: those that the site does not hold ...
    other_category_counts: tuple[int, ...] = ()  # ... and how many categories each of them has


def read_alignment(message: pb.Alignment) -> AlignmentHeader:
    sizes = message.sizes
    return AlignmentHeader(
        message.revision,
        Sizes(sizes.objects, sizes.clusterings, sizes.classifiers, sizes.categories),
        tuple(Block(block.index, tuple(block.members), block.size) for block in message.blocks),
        _read_columns(message.columns),
        tuple(column.category_count for column in message.columns),
        message.needs_two_exchanges,
        message.shared_by_all,
        tuple(message.private_objects),
        _read_columns(message.other_columns),
        tuple(column.category_count for column in message.other_columns),
    )


def _read_columns(columns: Iterable[pb.ColumnView]) -> tuple[TopologyColumn, ...]:
    return tuple(
        TopologyColumn(column.index, column.name, read_kind(column.kind), (), tuple(column.holders))
        for column in columns
    )
