"""Letters: what each two sites tell each other before they are aligned, through a coordinator that cannot read it.

In two stages, for each revision of their enrolments:

    first     the sender's objects, blinded; the categories that count at it, of each clustering that both hold
    second    the receiver's objects, blinded again

Then a site knows which of its objects each other site has enrolled (`ce.privacy.set_intersection`), and holds the
coordinator's alignment against it. And the holders of a column know which categories take part
(`ce.protocol.topology.vocabularies`). A letter's size follows from what all sites have enrolled: the coordinator, which
checks it, learns nothing from it. In sealed jobs no objects are compared (`NOT_COMPARED`): what members of a block send
each other is bound to their objects, and nothing that depends on an object is opened to anybody else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ce.errors import MessageError
from ce.job import Job
from ce.labels import LabelTable
from ce.privacy.derivation import joined, number, split
from ce.privacy.list_lengths import POINT_SIZE, list_length
from ce.privacy.pair_keys import NONCE_SIZE, EncryptedBox, decrypt, encrypt
from ce.privacy.pseudonyms import SIZE as TOKEN_SIZE
from ce.privacy.set_intersection import BlindedItems, Comparison
from ce.protocol.attempt import Attempt
from ce.protocol.topology.enrolment import ColumnSummary, EnrolmentSummary
from ce.protocol.topology.site_view import Categories
from ce.protocol.topology.vocabularies import Enough, agreed, counting, names_of

FIRST, SECOND = 1, 2
_TAG_SIZE = 16
_LETTER = b"ce letter 1"

Summaries = Mapping[str, EnrolmentSummary]


@dataclass(frozen=True)
class Overlap:
    """What two sites have found about the objects of one of them."""

    compared: NDArray[np.intp] = field(repr=False)  # positions of the objects that were compared
    common: NDArray[np.bool_] = field(repr=False)  # which of these the other site has too


class ObjectComparison(Protocol):
    """One site's part in the comparison of its objects with those of a peer: see `Comparison`."""

    cutoff: int
    points: bytes

    def answer(self, cutoff: int, points: bytes, length: int) -> bytes: ...

    def common(self, returned: bytes) -> tuple[NDArray[np.intp], NDArray[np.bool_]]: ...


class ObjectLists(Protocol):
    """Which objects letters compare. Sites and coordinator take it from the job (`object_lists`)."""

    def length(self, objects: int, peers: int) -> int:
        """How many of its objects a site compares with each of its peers."""

    def comparison(
        self, blinded: BlindedItems, pair_key: bytes, objects: NDArray[np.uint8], length: int
    ) -> ObjectComparison: ...


class ComparedObjects:
    """All objects, or a sample of many."""

    def length(self, objects: int, peers: int) -> int:
        return list_length(objects, peers)

    def comparison(
        self, blinded: BlindedItems, pair_key: bytes, objects: NDArray[np.uint8], length: int
    ) -> ObjectComparison:
        return Comparison(blinded, pair_key, objects, length)


class ObjectsNotCompared:
    """None: the lists are empty."""

    cutoff = 0
    points = b""

    def length(self, objects: int, peers: int) -> int:
        return 0

    def comparison(
        self, blinded: BlindedItems, pair_key: bytes, objects: NDArray[np.uint8], length: int
    ) -> ObjectComparison:
        return self

    def answer(self, cutoff: int, points: bytes, length: int) -> bytes:
        if cutoff or points:
            raise MessageError("expected no list of objects: this job compares none")
        return b""

    def common(self, returned: bytes) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
        if returned:
            raise MessageError("expected no list of objects: this job compares none")
        return np.empty(0, dtype=np.intp), np.empty(0, dtype=bool)


COMPARED, NOT_COMPARED = ComparedObjects(), ObjectsNotCompared()


def object_lists(job: Job) -> ObjectLists:
    """What letters of this job compare."""
    return NOT_COMPARED if job.sealed else COMPARED


def shared_clusterings(mine: EnrolmentSummary, theirs: EnrolmentSummary) -> list[ColumnSummary]:
    """The clusterings of one site that another one holds too, in order of name."""
    others = {column.name for column in theirs.columns if column.kind == "clustering"}
    return sorted((c for c in mine.columns if c.kind == "clustering" and c.name in others), key=lambda c: c.name)


def holders_of(column: str, summaries: Summaries) -> list[str]:
    """The sites that have enrolled a clustering of this name."""
    return [site for site, summary in summaries.items() if summary.kinds.get(column) == "clustering"]


def box_size(
    stage: int, sender: EnrolmentSummary, receiver: EnrolmentSummary, peers: int, lists: ObjectLists = COMPARED
) -> int:
    """Bytes of a letter, encrypted. `peers`: how many other sites each site has."""
    around = NONCE_SIZE + _TAG_SIZE + 8
    if stage == SECOND:
        return around + POINT_SIZE * lists.length(receiver.objects, peers)
    columns = sum(
        8 + len(column.name.encode()) + 8 + 8 + TOKEN_SIZE * column.categories
        for column in shared_clusterings(sender, receiver)
    )
    return around + 8 + 8 + POINT_SIZE * lists.length(sender.objects, peers) + 8 + columns


class SiteLetters:
    """One site's letters for one revision of the enrolments, and what it learns from those of the others."""

    def __init__(
        self,
        attempt: Attempt,
        site: str,
        revision: int,
        summaries: Summaries,
        pair_keys: Mapping[str, bytes],
        job_key: bytes,
        lists: ObjectLists = COMPARED,
    ) -> None:
        self.revision = revision
        #: Of each shared clustering, the tokens of the categories that take part; only after `answer`.
        self.vocabularies: dict[str, Categories] = {}
        #: By peer; only after `end`.
        self.overlaps: dict[str, Overlap] = {}
        self._attempt = attempt
        self._site = site
        self._summaries = summaries
        # Two sites that were sent different enrolments cannot read each other's letters.
        parts = (part for name, summary in summaries.items() for part in (name.encode(), summary.signed_bytes()))
        self._introduction = hashlib.sha256(joined(*parts)).digest()
        self._pair_keys = pair_keys
        self._job_key = job_key
        self._lists = lists
        self._counting: dict[str, Categories] = {}  # of each shared clustering, what counts here
        self._enough: dict[str, Enough] = {}
        self._comparisons: dict[str, ObjectComparison] = {}

    @property
    def _mine(self) -> EnrolmentSummary:
        return self._summaries[self._site]

    def _length(self, site: str) -> int:
        return self._lists.length(self._summaries[site].objects, len(self._pair_keys))

    def begin(self, blinded: BlindedItems, objects: NDArray[np.uint8], table: LabelTable) -> dict[str, bytes]:
        """The letters of the first stage, by receiver. `objects`: the pseudonyms that this site has enrolled."""
        for column in table.clusterings:
            holders = holders_of(column.name, self._summaries)
            if len(holders) > 1:
                enough = self._enough[column.name] = Enough.of(self._summaries[site].wishes for site in holders)
                self._counting[column.name] = counting(column, names_of(column, self._job_key), enough)
        letters = {}
        for peer, key in self._pair_keys.items():
            comparison = self._lists.comparison(blinded, key, objects, self._length(self._site))
            self._comparisons[peer] = comparison
            columns = shared_clusterings(self._mine, self._summaries[peer])
            told = joined(*(part for c in columns for part in (c.name.encode(), self._padded(c))))
            letters[peer] = self._encrypted(FIRST, peer, joined(number(comparison.cutoff), comparison.points, told))
        return letters

    def answer(self, boxes: Mapping[str, bytes]) -> dict[str, bytes]:
        """The letters of the second stage, given those of the first; both by the other site."""
        letters = {}
        told: dict[str, list[Categories]] = {name: [mine] for name, mine in self._counting.items()}
        for peer, content in self._decrypted(FIRST, boxes):
            with _from(peer):
                cutoff, points, columns = _of_length(split(content), 3)
                answered = self._comparisons[peer].answer(_read_number(cutoff), points, self._length(peer))
                for name, categories in self._read_columns(peer, columns):
                    told[name].append(categories)
            letters[peer] = self._encrypted(SECOND, peer, joined(answered))
        self.vocabularies = {name: agreed(lists, self._enough[name]) for name, lists in told.items()}
        return letters

    def end(self, boxes: Mapping[str, bytes]) -> None:
        """The letters of the second stage have come."""
        for peer, content in self._decrypted(SECOND, boxes):
            with _from(peer):
                (returned,) = _of_length(split(content), 1)
                self.overlaps[peer] = Overlap(*self._comparisons[peer].common(returned))

    def _padded(self, column: ColumnSummary) -> bytes:
        """What counts here, as long as if all categories did: the coordinator sees the length."""
        found = self._counting[column.name]
        tokens = b"".join(bytes.fromhex(str(token)) for token in found)
        return number(len(found)) + tokens.ljust(TOKEN_SIZE * column.categories, b"\0")

    def _read_columns(self, peer: str, content: bytes) -> Iterator[tuple[str, Categories]]:
        """Each clustering that this site and a peer hold, and what counts at the peer."""
        columns = shared_clusterings(self._summaries[peer], self._mine)
        parts = _of_length(split(content), 2 * len(columns))
        for column, name, padded in zip(columns, parts[::2], parts[1::2], strict=True):
            count, tokens = _read_number(padded[:8]), padded[8:]
            if name != column.name.encode() or len(tokens) != TOKEN_SIZE * column.categories:
                raise MessageError("expected the columns that both sites hold, with as many categories as enrolled")
            found = tuple(tokens[at : at + TOKEN_SIZE].hex() for at in range(0, len(tokens), TOKEN_SIZE))[:count]
            if count > column.categories or len(set(found)) < count or any(tokens[TOKEN_SIZE * count :]):
                raise MessageError("expected different tokens of categories, then zeros")
            yield column.name, found

    def _context(self, stage: int, sender: str, receiver: str) -> tuple[bytes, ...]:
        where = (self._introduction, number(self.revision), number(stage), sender.encode(), receiver.encode())
        return (_LETTER, *self._attempt.context, *where)

    def _encrypted(self, stage: int, peer: str, content: bytes) -> bytes:
        box = encrypt(self._pair_keys[peer], content, *self._context(stage, self._site, peer))
        return box.nonce + box.ciphertext

    def _decrypted(self, stage: int, boxes: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
        if boxes.keys() != self._pair_keys.keys():
            raise MessageError("letters: expected one from each other site")
        for peer, key in self._pair_keys.items():
            box = EncryptedBox(boxes[peer][:NONCE_SIZE], boxes[peer][NONCE_SIZE:])
            yield peer, decrypt(key, box, *self._context(stage, peer, self._site), sender=peer)


@contextmanager
def _from(peer: str) -> Iterator[None]:
    """Errors name the site that has written the letter."""
    try:
        yield
    except MessageError as error:
        raise MessageError(f"letter of {peer}: {error}") from error


def _of_length(parts: list[bytes], length: int) -> list[bytes]:
    if len(parts) != length:
        raise MessageError(f"expected {length:,} parts, got {len(parts):,}")
    return parts


def _read_number(content: bytes) -> int:
    if len(content) != 8:
        raise MessageError("expected a number of 8 bytes")
    return int.from_bytes(content, "big")
