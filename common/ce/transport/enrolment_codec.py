"""Enrolments as messages of the wire contract, and back: columns, tokens, pseudonyms, signature.

Decoding checks the form: kinds, names, tokens. What a party accepts beyond that (limits, revisions, signatures) is its
own matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ce.errors import InputError, MessageError
from ce.privacy.pseudonyms import SIZE as TOKEN_SIZE
from ce.protocol.attempt import Attempt
from ce.protocol.messages.task import Array
from ce.protocol.topology.enrolment import ColumnClaim, ColumnSummary, Enrolment, EnrolmentSummary, Written
from ce.protocol.topology.exclusions import ExclusionCount
from ce.protocol.topology.site_view import Kind
from ce.transport.array_chunks import LARGEST_HEADER, to_chunks
from ce_proto.v1 import site_pb2 as pb

#: Characters of a column's name.
LONGEST_COLUMN_NAME = 200
#: Rules by which a site leaves something out, and characters of a rule's name.
MOST_EXCLUSIONS, LONGEST_RULE = 100, 100
#: The one array of an enrolment.
PSEUDONYMS = "pseudonyms"

_KINDS: dict[Kind, pb.ColumnKind] = {
    "clustering": pb.COLUMN_KIND_CLUSTERING,
    "classifier": pb.COLUMN_KIND_CLASSIFIER,
}
_WRITTEN: dict[Written, pb.CategoryKind] = {
    None: pb.CATEGORY_KIND_UNSPECIFIED,
    "integers": pb.CATEGORY_KIND_INTEGER,
    "text": pb.CATEGORY_KIND_TEXT,
}
_KIND_NAMES: dict[int, Kind] = {int(number): kind for kind, number in _KINDS.items()}
_WRITTEN_NAMES: dict[int, Written] = {int(number): written for written, number in _WRITTEN.items()}


def kind_number(kind: Kind) -> pb.ColumnKind:
    return _KINDS[kind]


def read_kind(number: int) -> Kind:
    if number not in _KIND_NAMES:
        raise MessageError(f"columns: expected a clustering or a classifier, got kind {number}")
    return _KIND_NAMES[number]


def read_written(number: int) -> Written:
    if number not in _WRITTEN_NAMES:
        raise MessageError(f"columns: expected categories that are integers or text, got kind {number}")
    return _WRITTEN_NAMES[number]


# A site's own enrolment, up.


def enrolment_header(
    attempt: Attempt,
    enrolment: Enrolment,
    summary: EnrolmentSummary,
    signature: bytes,
    min_cluster: int,
    excluded: Iterable[ExclusionCount] = (),
) -> pb.Enrolment:
    """All but the pseudonyms. Raises InputError when it is more than fits in a frame."""
    header = pb.Enrolment(
        job=attempt.job,
        epoch=attempt.epoch,
        objects=len(enrolment.objects),
        columns=[
            pb.ColumnClaim(
                name=claim.name,
                kind=_KINDS[claim.kind],
                soft=claim.soft,
                categories_are=_WRITTEN[claim.written],
                categories=[bytes.fromhex(str(token)) for token in claim.categories],
                labels=claim.labels,
            )
            for claim in enrolment.columns
        ],
        pseudonym_digest=summary.pseudonym_digest,
        signature=signature,
        revision=summary.revision,
        min_cluster=min_cluster,
        excluded=[
            pb.Exclusion(rule=count.rule, objects=count.objects, columns=count.columns, labels=count.labels)
            for count in excluded
        ],
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
    for at, chunks in enumerate(to_chunks({PSEUDONYMS: pseudonym_bytes(enrolment)})):
        if at == 0:
            header.chunks.CopyFrom(chunks)
            yield pb.SiteFrame(enrolment=header)
        else:
            yield pb.SiteFrame(more=pb.More(job=header.job, epoch=header.epoch, chunks=chunks))


def pseudonym_bytes(enrolment: Enrolment) -> NDArray[np.uint8]:
    """(objects, 16)."""
    return enrolment.objects.view(np.uint8).reshape(-1, TOKEN_SIZE)


def read_claims(claims: Iterable[pb.ColumnClaim]) -> tuple[ColumnClaim, ...]:
    """The columns of an enrolment, in its order; at least one."""
    columns: dict[str, ColumnClaim] = {}
    for claim in claims:
        if not 0 < len(claim.name) <= LONGEST_COLUMN_NAME or claim.name in columns:
            raise MessageError(f"columns: expected different names of 1 to {LONGEST_COLUMN_NAME} characters")
        tokens = tuple(token.hex() for token in claim.categories)
        if len(set(tokens)) < len(tokens) or any(len(token) != 2 * TOKEN_SIZE for token in tokens):
            raise MessageError(f"columns: expected categories as different tokens of {TOKEN_SIZE} bytes")
        kind, written = read_kind(claim.kind), read_written(claim.categories_are)
        columns[claim.name] = ColumnClaim(claim.name, kind, claim.soft, tokens, written, claim.labels)
    if not columns:
        raise MessageError("columns: expected at least one")
    return tuple(columns.values())


def read_exclusions(messages: Sequence[pb.Exclusion]) -> tuple[ExclusionCount, ...]:
    """What a site has left out, by rule. Names of rules are printed: only short, printable ones are accepted."""
    rules = [message.rule for message in messages]
    if len(rules) > MOST_EXCLUSIONS or len(set(rules)) < len(rules):
        raise MessageError(f"excluded: expected at most {MOST_EXCLUSIONS} rules, each of them once")
    if not all(0 < len(rule) <= LONGEST_RULE and rule.isprintable() for rule in rules):
        raise MessageError(f"excluded: expected names of rules of 1 to {LONGEST_RULE} printable characters")
    return tuple(ExclusionCount(m.rule, m.objects, m.columns, m.labels) for m in messages)


def read_pseudonyms(tokens: Array, objects: int) -> NDArray[np.void]:
    """(objects,) all different."""
    if tokens.dtype != np.uint8 or tokens.shape != (objects, TOKEN_SIZE):
        raise MessageError(f"{PSEUDONYMS}: expected {TOKEN_SIZE} bytes for each of {objects:,} objects")
    found = tokens.view(f"V{TOKEN_SIZE}").reshape(-1)
    if len(np.unique(found)) < len(found):
        raise MessageError(f"{PSEUDONYMS}: two are equal")
    return found


# What every site may know of an enrolment, down.


def summary_message(site: str, summary: EnrolmentSummary, signature: bytes) -> pb.EnrolmentSummary:
    return pb.EnrolmentSummary(
        site=site,
        objects=summary.objects,
        columns=[
            pb.ColumnSummary(
                name=column.name,
                kind=_KINDS[column.kind],
                soft=column.soft,
                categories_are=_WRITTEN[column.written],
                categories=column.categories,
                categories_digest=column.categories_digest,
                labels=column.labels,
            )
            for column in summary.columns
        ],
        pseudonym_digest=summary.pseudonym_digest,
        signature=signature,
        revision=summary.revision,
        private_objects=summary.private_objects,
    )


def read_summary(message: pb.EnrolmentSummary) -> tuple[EnrolmentSummary, bytes]:
    """The summary, and its signature, which is not checked here."""
    columns = tuple(
        ColumnSummary(
            column.name,
            read_kind(column.kind),
            column.soft,
            read_written(column.categories_are),
            column.categories,
            column.categories_digest,
            column.labels,
        )
        for column in message.columns
    )
    identity = (message.objects, columns, message.pseudonym_digest, message.revision, message.private_objects)
    return EnrolmentSummary(*identity), message.signature
