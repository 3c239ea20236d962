"""What masks are bound to: all that the contributors of totals must agree on, as each of them computes it itself.

The streams of a round cancel only between sites that have the same job, epoch and roster, that contribute the same
arrays, and for each of these the same contributors, objects in the same order or columns with the same categories,
name, shape, scale, round and step, and that were sent the same arrays before they answered. Whatever two sites are sent
about objects or columns that both hold is bound into every mask between them, also those of globals. If two sites are
sent inconsistent views, none of their masks cancel, and the totals are noise.

The streams of a round run through its arrays in this order: by contributors, then by name.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ce.errors import AlteredTotals
from ce.privacy.derivation import derive, joined, number
from ce.privacy.mac import MAC_WORDS, PRIME, from_words, mac_key, tag, to_words
from ce.privacy.masks import Keystream, Masks, Part, set_stream_key, unmask
from ce.protocol.attempt import Attempt
from ce.protocol.messages.array_names import COLUMNS, EVERYTHING, ArrayName, Scope
from ce.protocol.messages.task import Answer, Array, Task
from ce.protocol.topology.site_view import SiteView
from ce.protocol.topology.topology import Rows
from ce.ring import SentWords

#: From scopes to a digest of what was sent about them, and about everything.
ViewDigest = Callable[[tuple[Scope, ...]], bytes]


def object_digests(objects: NDArray[np.generic], rows: Mapping[int, Rows]) -> dict[int, bytes]:
    """SHA-256 of each block's pseudonyms, in the order that its members share."""
    return {block: hashlib.sha256(_as_bytes(objects[positions])).digest() for block, positions in rows.items()}


def _as_bytes(objects: NDArray[np.generic]) -> bytes:
    if objects.dtype.kind == "U":  # ids, on one machine: two tables may store the same ones in different widths
        return joined(*(name.encode() for name in objects.tolist()))
    return np.ascontiguousarray(objects).tobytes()


def view_digest(task: Task) -> ViewDigest:
    """What a site was sent in this task: the header, the globals, and the arrays of the given scopes."""
    header = joined(
        task.step.encode(),
        number(task.stage),
        number(task.iteration),
        joined(*map(number, task.starts)),
        joined(*map(number, task.retry)),
        *([number(task.resume)] if task.resume else []),
    )
    known: dict[tuple[Scope, ...], bytes] = {}

    def of(scopes: tuple[Scope, ...]) -> bytes:
        if scopes not in known:
            wanted = tuple(scope.prefix for scope in (EVERYTHING, *scopes))
            names = sorted(name for name in task.arrays if name.startswith(wanted))
            arrays = [part for name in names for part in (name.encode(), task.hashes[name])]
            known[scopes] = hashlib.sha256(joined(b"ce view 1", header, *arrays)).digest()
        return known[scopes]

    return of


def _as_words(array: Array) -> SentWords:
    """The words of an answer, of the width in which they are sent."""
    return array.astype(np.int32, copy=False) if array.dtype == np.int32 else array.astype(np.int64, copy=False)


#: Shape, fraction bits, bits of a word.
_Spec = tuple[tuple[int, ...], int, int]
_TAG: _Spec = ((MAC_WORDS,), 0, 64)


def _spec(words: SentWords, fraction_bits: int) -> _Spec:
    return words.shape, fraction_bits, 8 * words.dtype.itemsize


@dataclass(frozen=True)
class _Part:
    """Arrays of a round that the same sites contribute to, by name."""

    contributors: tuple[str, ...]
    names: tuple[ArrayName, ...]
    described: bytes  # what each of them is

    @cached_property
    def scopes(self) -> tuple[Scope, ...]:
        """The blocks and groups that these arrays are about, which all contributors are sent something about."""
        return tuple(sorted({name.scope for name in self.names} - {EVERYTHING}))


class MaskBinding:
    """Masks one site's answers in one attempt at a job. `enrolment_digest` is that of all enrolments it was sent."""

    def __init__(
        self,
        attempt: Attempt,
        site: str,
        view: SiteView,
        objects: Mapping[int, bytes],
        pair_keys: Mapping[str, bytes],
        enrolment_digest: bytes = b"",
    ) -> None:
        self._view = view
        self._site = site
        self._objects = objects
        # The blocks and groups that both of a pair are sent something about, whichever arrays are masked.
        self._common = {peer: self._shared_with(peer) for peer in pair_keys}
        bound = {peer: derive(key, b"ce blocks 1", self._blocks_of(peer)) for peer, key in pair_keys.items()}
        self._masks = Masks(site, bound)
        self._attempt = hashlib.sha256(joined(*attempt.context, enrolment_digest)).digest()
        self._identities: dict[str, bytes] = {}
        # The arrays of most rounds are those of the round before.
        self._asked: Mapping[ArrayName, _Spec] = {}
        self._made: list[_Part] = []
        # Other contributors by what their masks are bound to, mostly the same for all: the scopes in common, and the
        # parts that they contribute to, by position.
        self._peers: dict[tuple[tuple[Scope, ...], tuple[int, ...]], list[str]] = {}
        #: Keys that the contributors of a total share, by contributors; none in "masked".
        self.set_keys: dict[tuple[str, ...], bytes] = {}

    def _shared_with(self, peer: str) -> tuple[Scope, ...]:
        blocks = (block for block in self._view.blocks.values() if block.shared and peer in block.members)
        groups = (group for group in self._view.groups.values() if peer in group.holders)
        scopes = (*(Scope.of_block(b.index) for b in blocks), *(Scope.of_columns(g.index) for g in groups))
        return tuple(sorted(scopes))

    def _blocks_of(self, peer: str) -> bytes:
        """SHA-256 of all blocks that this site and a peer are both in: number, members, objects."""
        parts = []
        for scope in self._common[peer]:
            if scope.startswith(COLUMNS.prefix):
                continue
            block = self._view.blocks[scope.block]
            members = joined(*(site.encode() for site in block.members))
            parts.append(joined(scope.encode(), members, self._objects[block.index]))
        return hashlib.sha256(joined(*parts)).digest()

    def mask(self, answer: Answer, digest: ViewDigest) -> Answer:
        """The same answer, its words masked; where the contributors of totals share keys, with a tag of each scope."""
        words = {ArrayName(text): _as_words(own) for text, own in answer.arrays.items()}
        bits: dict[str, int] = {name: answer.fraction_bits[name] for name in words}
        asked = {name: _spec(own, bits[name]) for name, own in words.items()}
        if self.set_keys:
            tags = [name.mac for name in words]
            bits.update(dict.fromkeys(tags, 0))
            asked.update(dict.fromkeys(tags, _TAG))
        parts = self._parts(asked)
        pairs = self._pair_contexts(parts, answer.round, digest)
        streams = {}
        for part in parts if self.set_keys else ():
            context = self._set_context(part, answer.round, digest)
            others = {peer: pairs[peer] for peer in part.contributors if peer != self._site}
            for name, value in self._tags(part, words, context).items():
                share = self._masks.share_of_zero(others, name.encode(), PRIME)
                words[name] = to_words((value + share) % PRIME)
            if part.contributors[0] == self._site:
                streams[part.contributors] = set_stream_key(self.set_keys[part.contributors], context)
        given = [Part(part.contributors, [words[name] for name in part.names]) for part in parts]
        masked = self._masks.mask(answer.round, given, pairs, streams)
        named = {
            n: own
            for part, arrays in zip(parts, masked, strict=True)
            for n, own in zip(part.names, arrays, strict=True)
        }
        return replace(answer, arrays={name: named[name] for name in asked}, fraction_bits=bits)

    def unmask(
        self, totals: Mapping[str, SentWords], bits: Mapping[str, int], round_: int, digest: ViewDigest
    ) -> dict[ArrayName, SentWords]:
        """The totals of a round without the masks of their contributors. Raises AlteredTotals if one of them is not
        what the contributors have added up."""
        given = {ArrayName(text): total for text, total in totals.items()}
        parts = self._parts({name: _spec(total, bits[name]) for name, total in given.items()})
        found: dict[ArrayName, SentWords] = {}
        for part in parts:
            context, key = self._set_context(part, round_, digest), self.set_keys[part.contributors]
            found.update(zip(part.names, unmask([given[name] for name in part.names], key, context), strict=True))
            for name, value in self._tags(part, found, context).items():
                if name not in found or from_words(found.pop(name)) != value:
                    raise AlteredTotals(name.scope)
        return found

    def _tags(self, part: _Part, words: Mapping[ArrayName, SentWords], context: bytes) -> dict[ArrayName, int]:
        """The tags of the arrays of a part, by the name that each is sent under."""
        coefficients = Keystream(mac_key(self.set_keys[part.contributors], context))
        tags: dict[ArrayName, int] = {}
        for name in part.names:
            if not name.is_mac:
                tags[name.mac] = (tags.get(name.mac, 0) + tag(words[name], coefficients)) % PRIME
        return tags

    def _pair_contexts(self, parts: list[_Part], round_: int, digest: ViewDigest) -> dict[str, bytes]:
        """By other contributor: what this site and that one agree on, about the arrays that both contribute to."""
        found: dict[str, bytes] = {}
        for (common, theirs), peers in self._peers.items():
            arrays = (parts[at].described for at in theirs)
            found |= dict.fromkeys(peers, mask_context(self._attempt, round_, digest(common), *arrays))
        return found

    def _set_context(self, part: _Part, round_: int, digest: ViewDigest) -> bytes:
        """What all contributors of some arrays agree on, about these."""
        return mask_context(self._attempt, round_, digest(part.scopes), part.described)

    def _parts(self, asked: Mapping[ArrayName, _Spec]) -> list[_Part]:
        """The arrays of a round in the order in which streams run through them."""
        if asked != self._asked:
            by_contributors: dict[tuple[str, ...], list[ArrayName]] = {}
            for name in sorted(asked):
                by_contributors.setdefault(name.contributors(self._view), []).append(name)
            self._made = [
                _Part(contributors, tuple(names), b"".join(self._describe(n, *asked[n]) for n in names))
                for contributors, names in sorted(by_contributors.items())
            ]
            self._peers = self._peers_of(self._made)
            self._asked = asked
        return self._made

    def _peers_of(self, parts: list[_Part]) -> dict[tuple[tuple[Scope, ...], tuple[int, ...]], list[str]]:
        theirs: dict[str, list[int]] = {}
        for at, part in enumerate(parts):
            for peer in part.contributors:
                if peer != self._site:
                    theirs.setdefault(peer, []).append(at)
        found: dict[tuple[tuple[Scope, ...], tuple[int, ...]], list[str]] = {}
        for peer, own in theirs.items():
            found.setdefault((self._common[peer], tuple(own)), []).append(peer)
        return found

    def _describe(self, name: ArrayName, shape: tuple[int, ...], bits: int, word_bits: int) -> bytes:
        return described(self._identity(name), name, shape, bits, word_bits)

    def _identity(self, name: ArrayName) -> bytes:
        """Whose array it is, and over what, as this site computes it itself."""
        if name not in self._identities:
            members = joined(*(site.encode() for site in name.contributors(self._view)))
            over: list[bytes] = []
            if name.kind == "block":
                over = [self._objects[name.number]]
                if name.column is not None:
                    over.append(self._view.column(name.column).name.encode())
            elif name.kind == "columns":
                for column in self._view.groups[name.number].columns:
                    categories = joined(*(str(category).encode() for category in column.categories))
                    over += [column.name.encode(), categories]
            self._identities[name] = hashlib.sha256(joined(name.kind.encode(), members, *over)).digest()
        return self._identities[name]


def mask_context(attempt: bytes, round_: int, digest: bytes, *arrays: bytes) -> bytes:
    """32 bytes: all that a mask is bound to. `attempt` is SHA-256 of job digest, epoch, roster and enrolments; `arrays`
    are as in `described`, in order."""
    parts = joined(b"ce mask context 2", attempt, number(round_), digest)
    return hashlib.sha256(b"".join((parts, *arrays))).digest()


def described(identity: bytes, name: str, shape: tuple[int, ...], bits: int, word_bits: int = 64) -> bytes:
    """What an array is, for a mask context."""
    width = [] if word_bits == 64 else [number(word_bits)]
    return joined(identity, name.encode(), joined(*map(number, shape)), number(bits), *width)
