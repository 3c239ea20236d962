"""What each mask is bound to: all that the contributors of a total must agree on, as each of them computes it itself.

A mask cancels only between sites that have the same job, epoch and roster, and for this array the same contributors,
objects in the same order or columns with the same categories, name, shape, scale, round and step, and that were sent
the same arrays before they answered. Whatever two sites are sent about objects that both hold is bound into every mask
between them, also those of columns and of globals. If two sites are sent inconsistent views, their masks do not cancel,
and the total is noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ce.errors import AlteredTotals
from ce.privacy.derivation import derive, joined, number
from ce.privacy.mac import MAC_WORDS, PRIME, from_words, mac_key, tag, to_words
from ce.privacy.masks import Masks, set_stream_key, unmask
from ce.protocol.attempt import Attempt
from ce.protocol.messages.array_names import EVERYTHING, ArrayName, Scope
from ce.protocol.messages.task import Answer, Array, Task
from ce.protocol.topology.site_view import SiteView
from ce.protocol.topology.topology import Rows
from ce.ring import Words

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


def _scopes(name: ArrayName) -> tuple[Scope, ...]:
    """The block or group that all contributors of an array are sent something about; nothing for totals over all."""
    return () if name.scope == EVERYTHING else (name.scope,)


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
        # The blocks that both of a pair are sent something about, whichever array is masked.
        self._common = {peer: self._shared_with(peer) for peer in pair_keys}
        bound = {peer: derive(key, b"ce blocks 1", self._blocks_of(peer)) for peer, key in pair_keys.items()}
        self._masks = Masks(site, bound)
        self._attempt = hashlib.sha256(joined(*attempt.context, enrolment_digest)).digest()
        self._identities: dict[str, bytes] = {}
        #: Keys that the contributors of a total share, by contributors; none in "masked".
        self.set_keys: dict[tuple[str, ...], bytes] = {}

    def _shared_with(self, peer: str) -> tuple[Scope, ...]:
        blocks = (block for block in self._view.blocks.values() if block.shared and peer in block.members)
        return tuple(sorted(Scope.of_block(block.index) for block in blocks))

    def _blocks_of(self, peer: str) -> bytes:
        """SHA-256 of all blocks that this site and a peer are both in: number, members, objects."""
        parts = []
        for scope in self._common[peer]:
            block = self._view.blocks[scope.block]
            members = joined(*(site.encode() for site in block.members))
            parts.append(joined(scope.encode(), members, self._objects[block.index]))
        return hashlib.sha256(joined(*parts)).digest()

    def mask(self, answer: Answer, digest: ViewDigest) -> Answer:
        """The same answer, its words masked; where the contributors of totals share keys, with a tag of each scope."""
        masked: dict[str, Array] = {}
        bits = dict(answer.fraction_bits)
        tags: dict[ArrayName, int] = {}
        for text, words in answer.arrays.items():
            name, own = ArrayName(text), words.astype(np.int64, copy=False)
            common, contexts = self._contexts(name, words.shape, bits[text], answer.round, digest)
            key = self._set_key(name)
            if key is not None:
                tags[name.mac] = tags.get(name.mac, 0) + tag(own, mac_key(key, common))
            masked[name] = self._masks.mask(answer.round, name, own, contexts, self._set_stream(name, common))
        for name, value in tags.items():
            common, contexts = self._contexts(name, (MAC_WORDS,), 0, answer.round, digest)
            words = to_words((value + self._masks.share_of_zero(contexts, PRIME)) % PRIME)
            masked[name] = self._masks.mask(answer.round, name, words, contexts, self._set_stream(name, common))
            bits[name] = 0
        return replace(answer, arrays=masked, fraction_bits=bits)

    def unmask(
        self, totals: Mapping[str, Words], bits: Mapping[str, int], round_: int, digest: ViewDigest
    ) -> dict[ArrayName, Words]:
        """The totals of a round without the masks of their contributors. Raises AlteredTotals if one of them is not
        what the contributors have added up."""
        found: dict[ArrayName, Words] = {}
        tags: dict[ArrayName, int] = {}
        for text, total in totals.items():
            name = ArrayName(text)
            context = self._context(name, total.shape, bits[text], round_, digest(_scopes(name)))
            key = self.set_keys[name.contributors(self._view)]
            found[name] = unmask(total, key, context)
            if not name.is_mac:
                tags[name.mac] = tags.get(name.mac, 0) + tag(found[name], mac_key(key, context))
        for name, value in tags.items():
            if name not in found or from_words(found.pop(name)) != value % PRIME:
                raise AlteredTotals(name.scope)
        return found

    def _set_key(self, name: ArrayName) -> bytes | None:
        """The key that the contributors of a total share; None in "masked"."""
        return self.set_keys[name.contributors(self._view)] if self.set_keys else None

    def _set_stream(self, name: ArrayName, context: bytes) -> bytes | None:
        """The key of the stream of all contributors, if this site is the one that adds it."""
        key = self._set_key(name)
        adds = name.contributors(self._view)[0] == self._site
        return set_stream_key(key, context) if key is not None and adds else None

    def _contexts(
        self, name: ArrayName, shape: tuple[int, ...], bits: int, round_: int, digest: ViewDigest
    ) -> tuple[bytes, dict[str, bytes]]:
        """What all contributors of an array have in common; and, by peer, what this site and the peer have."""
        scopes = _scopes(name)
        common = self._context(name, shape, bits, round_, digest(scopes))
        contexts = {}
        for peer in name.contributors(self._view):
            if peer != self._site:
                both = tuple(sorted({*scopes, *self._common[peer]}))
                same = both == scopes
                contexts[peer] = common if same else self._context(name, shape, bits, round_, digest(both))
        return common, contexts

    def _context(self, name: ArrayName, shape: tuple[int, ...], bits: int, round_: int, digest: bytes) -> bytes:
        return mask_context(self._attempt, self._identity(name), name, shape, bits, round_, digest)

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


def mask_context(
    attempt: bytes, identity: bytes, name: str, shape: tuple[int, ...], bits: int, round_: int, digest: bytes
) -> bytes:
    """32 bytes: all that a mask is bound to. `attempt` is SHA-256 of job digest, epoch, roster and enrolments."""
    parts = (attempt, identity, name.encode(), joined(*map(number, shape)), number(bits), number(round_), digest)
    return hashlib.sha256(joined(b"ce mask context 1", *parts)).digest()
