"""An enrolment as frames: columns, tokens of categories, pseudonyms of objects, and the site's signature."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ce.errors import InputError
from ce.privacy.pseudonyms import SIZE as TOKEN_SIZE
from ce.protocol.keys.handshake import Attempt, Summary
from ce.protocol.topology.topology import Enrolment
from ce.transport.array_chunks import LARGEST_HEADER, to_chunks
from ce_client.attempt.check_alignment import KIND_NUMBERS, WRITTEN
from ce_proto.v1 import site_pb2 as pb


def enrolment_header(
    attempt: Attempt, enrolment: Enrolment, summary: Summary, signature: bytes, min_cluster: int
) -> pb.Enrolment:
    """The first frame without the pseudonyms. Raises InputError if it does not fit in a frame."""
    header = pb.Enrolment(
        job=attempt.job,
        epoch=attempt.epoch,
        objects=len(enrolment.objects),
        columns=[
            pb.ColumnClaim(
                name=claim.name,
                kind=KIND_NUMBERS[claim.kind],
                soft=claim.soft,
                categories_are=WRITTEN[claim.written],
                categories=[bytes.fromhex(str(token)) for token in claim.categories],
                labels=claim.labels,
            )
            for claim in enrolment.columns
        ],
        pseudonym_digest=summary.pseudonym_digest,
        signature=signature,
        revision=summary.revision,
        min_cluster=min_cluster,
    )
    if header.ByteSize() > LARGEST_HEADER:
        categories = sum(len(claim.categories) for claim in enrolment.columns)
        raise InputError(
            f"{categories:,} categories in {len(enrolment.columns):,} columns are more than fit in an enrolment: leave "
            "out columns, such as those with a category for nearly every object"
        )
    return header


def enrolment_frames(header: pb.Enrolment, enrolment: Enrolment) -> Iterator[pb.SiteFrame]:
    """The header and the pseudonyms, one frame at a time."""
    tokens = enrolment.objects.view(np.uint8).reshape(-1, TOKEN_SIZE)
    for at, chunks in enumerate(to_chunks({"pseudonyms": tokens})):
        if at == 0:
            header.chunks.CopyFrom(chunks)
            yield pb.SiteFrame(enrolment=header)
        else:
            yield pb.SiteFrame(more=pb.More(job=header.job, epoch=header.epoch, chunks=chunks))
