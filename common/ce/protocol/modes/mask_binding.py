"""What each mask is bound to: all that the contributors of a total must agree on, as each of them computes it itself.

A mask cancels only between sites that have the same job, epoch and roster, and for this array the same contributors,
objects in the same order or columns with the same categories, name, shape, scale, round and step, and that were told
the same things before they answered. Whatever two sites are told about objects that both hold is bound into every mask
between them, also those of columns and of globals. A coordinator that tells two sites different stories gets noise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ce.privacy.derivation import derive, joined, number
from ce.privacy.masks import Masks, set_stream_key, unmask
from ce.protocol.keys.handshake import Attempt
from ce.protocol.messages.task import Answer, Task
from ce.protocol.topology.topology import Rows, SiteView
from ce.ring import Words

#: From scopes ("block/3", "columns/0") to a digest of what was told about them, and about everything.
ViewDigest = Callable[[tuple[str, ...]], bytes]


def object_digests(objects: NDArray[np.generic], rows: Mapping[int, Rows]) -> dict[int, bytes]:
    """SHA-256 of each block's pseudonyms, in the order that its members share."""
    return {block: hashlib.sha256(_as_bytes(objects[own])).digest() for block, own in rows.items()}


def _as_bytes(objects: NDArray[np.generic]) -> bytes:
    if objects.dtype.kind == "U":  # ids, on one machine: two tables may store the same ones in different widths
        return joined(*(own.encode() for own in objects.tolist()))
    return np.ascontiguousarray(objects).tobytes()


def told(task: Task) -> ViewDigest:
    """What a site was told in this task: the header, the globals, and the arrays of the given scopes."""
    header = joined(
        task.step.encode(),
        number(task.stage),
        number(task.iteration),
        joined(*map(number, task.starts)),
        joined(*map(number, task.retry)),
        *([number(task.resume)] if task.resume else []),
    )
    known: dict[tuple[str, ...], bytes] = {}

    def of(scopes: tuple[str, ...]) -> bytes:
        if scopes not in known:
            wanted = ("global/", *(f"{scope}/" for scope in scopes))
            names = sorted(name for name in task.arrays if name.startswith(wanted))
            arrays = [part for name in names for part in (name.encode(), task.hashes[name])]
            known[scopes] = hashlib.sha256(joined(b"ce told 1", header, *arrays)).digest()
        return known[scopes]

    return of


def scope_of(name: str) -> str:
    """ "global", or the block or group that an array belongs to: what all its contributors are told about."""
    return "global" if name.startswith("global/") else "/".join(name.split("/")[:2])


def _scopes(name: str) -> tuple[str, ...]:
    scope = scope_of(name)
    return () if scope == "global" else (scope,)


class MaskBinding:
    """Puts masks on one site's answers, in one attempt at a job. `story` is what it was told that all enrolled."""

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
        # What both of a pair are told about the objects that they share, whichever array is masked.
        self._common = {peer: self._shared_with(peer) for peer in pair_keys}
        bound = {peer: derive(key, b"ce blocks 1", self._blocks_of(peer)) for peer, key in pair_keys.items()}
        self._masks = Masks(site, bound)
        self._attempt = hashlib.sha256(joined(*attempt.context, enrolment_digest)).digest()
        self._identities: dict[str, bytes] = {}
        #: Keys that the contributors of a total share, by contributors; none in "masked".
        self.set_keys: dict[tuple[str, ...], bytes] = {}

    def _shared_with(self, peer: str) -> tuple[str, ...]:
        blocks = (block for block in self._view.blocks.values() if block.shared and peer in block.members)
        return tuple(sorted(f"block/{block.index}" for block in blocks))

    def _blocks_of(self, peer: str) -> bytes:
        """SHA-256 of all blocks that this site and a peer are both in: number, members, objects."""
        parts = []
        for scope in self._common[peer]:
            block = self._view.blocks[int(scope.removeprefix("block/"))]
            members = joined(*(site.encode() for site in block.members))
            parts.append(joined(scope.encode(), members, self._objects[block.index]))
        return hashlib.sha256(joined(*parts)).digest()

    def mask(self, answer: Answer, binding: ViewDigest) -> Answer:
        """The same answer, its words masked."""
        hidden = {}
        for name, words in answer.arrays.items():
            shape, bits = words.shape, answer.fraction_bits[name]
            members = self._view.contributors(name)
            scope = _scopes(name)
            common_context = self._context(name, shape, bits, answer.round, binding(scope))
            contexts = {}
            for peer in members:
                if peer != self._site:
                    both = tuple(sorted({*scope, *self._common[peer]}))
                    same = both == scope
                    contexts[peer] = (
                        common_context if same else self._context(name, shape, bits, answer.round, binding(both))
                    )
            stream = None
            if members in self.set_keys and members[0] == self._site:
                stream = set_stream_key(self.set_keys[members], common_context)
            hidden[name] = self._masks.mask(answer.round, name, words.astype(np.int64, copy=False), contexts, stream)
        return replace(answer, arrays=hidden)

    def unmask(
        self, totals: Mapping[str, Words], bits: Mapping[str, int], round_: int, binding: ViewDigest
    ) -> dict[str, Words]:
        """The totals of a round without the masks of their contributors."""
        found = {}
        for name, total in totals.items():
            context = self._context(name, total.shape, bits[name], round_, binding(_scopes(name)))
            found[name] = unmask(total, self.set_keys[self._view.contributors(name)], context)
        return found

    def _context(self, name: str, shape: tuple[int, ...], bits: int, round_: int, told_: bytes) -> bytes:
        return mask_context(self._attempt, self._identity(name), name, shape, bits, round_, told_)

    def _identity(self, name: str) -> bytes:
        """Whose array it is, and over what, in this site's own words."""
        if name not in self._identities:
            members = joined(*(site.encode() for site in self._view.contributors(name)))
            kind, *rest = name.split("/")
            over: list[bytes] = []
            if kind == "block":
                over = [self._objects[int(rest[0])]]
                if rest[1] == "claims":
                    over += [column.name.encode() for column in self._view.columns if column.index == int(rest[2])]
            elif kind == "columns":
                for column in self._view.groups[int(rest[0])].columns:
                    categories = joined(*(str(category).encode() for category in column.categories))
                    over += [column.name.encode(), categories]
            self._identities[name] = hashlib.sha256(joined(kind.encode(), members, *over)).digest()
        return self._identities[name]


def mask_context(
    attempt: bytes, identity: bytes, name: str, shape: tuple[int, ...], bits: int, round_: int, told_: bytes
) -> bytes:
    """32 bytes: all that a mask is bound to. `attempt` is SHA-256 of job digest, epoch, roster and enrolments."""
    parts = (attempt, identity, name.encode(), joined(*map(number, shape)), number(bits), number(round_), told_)
    return hashlib.sha256(joined(b"ce mask context 1", *parts)).digest()
