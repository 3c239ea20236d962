"""Enrolments as messages of the wire contract, and back: columns, pseudonyms, signature; and what all sites are sent.

Decoding checks the form: kinds, names, numbers within their bounds. What a party accepts beyond that (limits,
revisions, signatures) is its own matter.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ce.errors import InputError, MessageError
from ce.privacy.pseudonyms import SIZE as TOKEN_SIZE
from ce.protocol.attempt import Attempt
from ce.protocol.messages.task import Array
from ce.protocol.topology.enrolment import (
    MOST_SHOWN,
    ColumnClaim,
    ColumnSummary,
    Enrolment,
    EnrolmentSummary,
    Written,
)
from ce.protocol.topology.exclusions import ExclusionCount
from ce.protocol.topology.site_view import Kind
from ce.protocol.topology.vocabularies import MOST_OBJECTS_ASKED, MOST_SITES_ASKED, Wishes
from ce.transport.array_chunks import LARGEST_HEADER, to_chunks
from ce.transport.frames import one_line
from ce_proto.v1 import site_pb2 as pb

#: Characters of a site's name, at most.
LONGEST_NAME = 63
#: More objects than any table has.
_MOST_OBJECTS = 2**40
#: Characters of a column's name.
LONGEST_COLUMN_NAME = 200
#: Rules by which a site leaves something out, and characters of a rule's name.
MOST_EXCLUSIONS, LONGEST_RULE = 100, 100
#: Categories of one enrolment, in all its columns together.
MOST_CATEGORIES = 150_000
#: Bytes of the salt of a site's pseudonyms, of the commitment to the job key and of a digest.
SALT_SIZE, COMMITMENT_SIZE, DIGEST_SIZE = 16, 32, 32
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


#: By site: what it has enrolled, and its signature.
Signed = Mapping[str, tuple[EnrolmentSummary, bytes]]


# A site's own enrolment, up.


def enrolment_header(
    attempt: Attempt,
    enrolment: Enrolment,
    summary: EnrolmentSummary,
    salt: bytes,
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
                category_count=len(claim.categories),
                labels=claim.labels,
            )
            for claim in enrolment.columns
        ],
        pseudonym_digest=summary.pseudonym_digest,
        signature=signature,
        revision=summary.revision,
        min_cluster=min_cluster,
        excluded=exclusion_messages(excluded),
        pseudonym_salt=salt,
        key_commitment=summary.key_commitment,
        min_sites=summary.wishes.min_sites,
        min_objects=summary.wishes.min_objects,
    )
    categories = sum(len(claim.categories) for claim in enrolment.columns)
    if header.ByteSize() > LARGEST_HEADER or categories > MOST_CATEGORIES:
        raise InputError(
            f"{categories:,} categories in {len(enrolment.columns):,} columns are more than fit in an enrolment: leave "
            "out columns, such as those with a category for nearly every object"
        )
    return header


def enrolment_frames(header: pb.Enrolment, enrolment: Enrolment, chunk: int | None = None) -> Iterator[pb.SiteFrame]:
    """The header and the pseudonyms, one frame at a time."""
    for at, chunks in enumerate(to_chunks({PSEUDONYMS: pseudonym_bytes(enrolment)}, chunk=chunk)):
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
    room = MOST_CATEGORIES
    for claim in claims:
        if not 0 < len(claim.name) <= LONGEST_COLUMN_NAME or claim.name in columns:
            raise MessageError(f"columns: expected different names of 1 to {LONGEST_COLUMN_NAME} characters")
        kind, written = read_kind(claim.kind), read_written(claim.categories_are)
        room -= _checked_count(claim.category_count, claim.labels)
        if room < 0:
            raise MessageError(f"columns: expected at most {MOST_CATEGORIES:,} categories, all columns together")
        numbers = tuple(range(claim.category_count))
        columns[claim.name] = ColumnClaim(claim.name, kind, claim.soft, numbers, written, claim.labels)
    if not columns:
        raise MessageError("columns: expected at least one")
    return tuple(columns.values())


def exclusion_messages(excluded: Iterable[ExclusionCount]) -> list[pb.Exclusion]:
    """What a site has left out, by rule."""
    return [
        pb.Exclusion(rule=count.rule, objects=count.objects, columns=count.columns, labels=count.labels)
        for count in excluded
    ]


def read_exclusions(messages: Sequence[pb.Exclusion]) -> tuple[ExclusionCount, ...]:
    """What a site has left out, by rule. Names of rules are printed: only short, printable ones are accepted."""
    rules = [message.rule for message in messages]
    if len(rules) > MOST_EXCLUSIONS or len(set(rules)) < len(rules):
        raise MessageError(f"excluded: expected at most {MOST_EXCLUSIONS} rules, each of them once")
    if not all(0 < len(rule) <= LONGEST_RULE and rule.isprintable() for rule in rules):
        raise MessageError(f"excluded: expected names of rules of 1 to {LONGEST_RULE} printable characters")
    return tuple(ExclusionCount(m.rule, m.objects, m.columns, m.labels) for m in messages)


def _checked_count(categories: int, labels: int) -> int:
    """The number of categories of a column."""
    if labels > MOST_SHOWN:
        raise MessageError(f"columns: expected labels of at most {MOST_SHOWN}, which stands for more, got {labels:,}")
    return categories


def read_wishes(message: pb.Enrolment | pb.EnrolmentSummary) -> Wishes:
    wishes = Wishes(message.min_sites, message.min_objects)
    if not wishes.within_bounds:
        raise MessageError(
            f"min_objects: expected 1 to {MOST_OBJECTS_ASKED:,}, and min_sites 1 to {MOST_SITES_ASKED:,}, "
            f"got {message.min_objects:,} and {message.min_sites:,}"
        )
    return wishes


def check_sizes(message: pb.Enrolment) -> None:
    """That salt, digest and commitment have the sizes that they must have."""
    sizes = (len(message.pseudonym_salt), len(message.pseudonym_digest), len(message.key_commitment))
    if sizes != (SALT_SIZE, DIGEST_SIZE, COMMITMENT_SIZE):
        raise MessageError(
            f"enrolment: expected a salt of {SALT_SIZE} bytes, a digest of {DIGEST_SIZE} and a key_commitment of "
            f"{COMMITMENT_SIZE}, got {', '.join(f'{size:,}' for size in sizes)}"
        )


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
                labels=column.labels,
            )
            for column in summary.columns
        ],
        pseudonym_digest=summary.pseudonym_digest,
        signature=signature,
        revision=summary.revision,
        key_commitment=summary.key_commitment,
        min_sites=summary.wishes.min_sites,
        min_objects=summary.wishes.min_objects,
    )


def introduction_frame(attempt: Attempt, signed: Signed, revision: int) -> pb.CoordinatorFrame:
    """What every site has enrolled."""
    enrolments = [summary_message(site, *signed[site]) for site in attempt.roster]
    introduction = pb.Introduction(job=attempt.job, epoch=attempt.epoch, revision=revision, enrolments=enrolments)
    return pb.CoordinatorFrame(introduction=introduction)


def read_introduction(message: pb.Introduction) -> dict[str, tuple[EnrolmentSummary, bytes]]:
    """What each site has enrolled, and its signature, which is not checked here."""
    found = {}
    for summary in message.enrolments:
        try:
            found[summary.site] = read_summary(summary)
        except MessageError as error:
            raise MessageError(f"enrolment of {one_line(summary.site, LONGEST_NAME)}: {error}") from error
    return found


def read_summary(message: pb.EnrolmentSummary) -> tuple[EnrolmentSummary, bytes]:
    """The summary, and its signature, which is not checked here."""
    columns = []
    names = [column.name for column in message.columns]
    if len(set(names)) < len(names) or not all(0 < len(name) <= LONGEST_COLUMN_NAME for name in names):
        raise MessageError(f"columns: expected different names of 1 to {LONGEST_COLUMN_NAME} characters")
    for column in message.columns:
        kind = read_kind(column.kind)
        categories = _checked_count(column.categories, column.labels)
        written = read_written(column.categories_are)
        columns.append(ColumnSummary(column.name, kind, column.soft, written, categories, column.labels))
    if sum(column.categories for column in columns) > MOST_CATEGORIES or not 0 < message.objects < _MOST_OBJECTS:
        raise MessageError("expected numbers of objects and categories that can be")
    summary = EnrolmentSummary(
        message.objects,
        tuple(columns),
        message.pseudonym_digest,
        message.revision,
        message.key_commitment,
        read_wishes(message),
    )
    return summary, message.signature
