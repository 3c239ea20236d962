"""Letters as messages of the wire contract, and back: one encrypted box for each other site, up and down alike."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from ce.errors import MessageError
from ce.protocol.attempt import Attempt
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.rooms import Bytes
from ce.protocol.messages.task import Array
from ce.transport.array_chunks import chunk_of, to_chunks
from ce_proto.v1 import arrays_pb2
from ce_proto.v1 import site_pb2 as pb


def letters_up(
    attempt: Attempt, revision: int, stage: int, boxes: Mapping[str, bytes], vocabularies: Mapping[str, int]
) -> Iterator[pb.SiteFrame]:
    """What a site writes. `boxes`: by receiver. `vocabularies`: sizes, by column."""
    header = _header(attempt, revision, stage)
    header.vocabularies.extend(pb.Vocabulary(column=c, categories=n) for c, n in sorted(vocabularies.items()))
    arrays = {site: np.frombuffer(box, np.uint8) for site, box in boxes.items()}
    for at, chunks in enumerate(_chunks(attempt, arrays)):
        if at == 0:
            header.chunks.CopyFrom(chunks)
            yield pb.SiteFrame(letters=header)
        else:
            yield pb.SiteFrame(more=pb.More(job=attempt.job, epoch=attempt.epoch, chunks=chunks))


def letters_down(
    attempt: Attempt, revision: int, stage: int, boxes: Mapping[str, Bytes]
) -> Iterator[pb.CoordinatorFrame]:
    """What a site is sent. `boxes`: by sender."""
    header = _header(attempt, revision, stage)
    for at, chunks in enumerate(_chunks(attempt, boxes)):
        if at == 0:
            header.chunks.CopyFrom(chunks)
            yield pb.CoordinatorFrame(letters=header)
        else:
            yield pb.CoordinatorFrame(more=pb.More(job=attempt.job, epoch=attempt.epoch, chunks=chunks))


def read_boxes(arrays: Mapping[str, Array]) -> dict[str, bytes]:
    """By the other site."""
    found = {}
    for text, array in arrays.items():
        name = ArrayName(text)
        if name.kind != "box" or array.dtype != np.uint8 or array.ndim != 1:
            raise MessageError("letters: expected boxes of bytes, and nothing else")
        found[name.what] = array.tobytes()
    return found


def read_vocabularies(message: pb.Letters) -> dict[str, int]:
    """How many categories take part, by column."""
    found = {entry.column: entry.categories for entry in message.vocabularies}
    if len(found) < len(message.vocabularies):
        raise MessageError("vocabularies: a column occurs twice")
    return found


def _header(attempt: Attempt, revision: int, stage: int) -> pb.Letters:
    return pb.Letters(job=attempt.job, epoch=attempt.epoch, revision=revision, stage=stage)


def _chunks(attempt: Attempt, boxes: Mapping[str, Bytes]) -> Iterator[arrays_pb2.ArrayChunks]:
    named: dict[str, Array] = {ArrayName.of_box(site): box for site, box in boxes.items()}
    return to_chunks(named, chunk=chunk_of(len(attempt.roster)))
