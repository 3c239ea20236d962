"""Which arrays each step of a sealed job has, by site: what the coordinator waits for, and what a site checks.

Both sides compute it from the job's terms and from blocks; a coordinator that asks for anything else is refused before
anything is computed. From `score` on: `ce.protocol.sealed.label_rounds`. Also the codec of what a site tells at `meet`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ce.errors import MessageError
from ce.pair_tables import MOST_CLUSTERS
from ce.privacy.dealt_products import ProductBlock, check_size, dealt_size, masked_rows_size, partners
from ce.privacy.ring_words import SEED_SIZE
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.steps import Arrays, ArraySpec, SealedStep
from ce.protocol.sealed.channel import BLOCK_KEY_SIZE, OVERHEAD, Bytes
from ce.protocol.sealed.records import LabelRecord, LabelState, ReleaseRecord, ReleaseState
from ce.protocol.sealed.terms import Terms, block_digest
from ce.protocol.topology.site_view import Block, SiteView

DIGEST_SIZE = NONCE_SIZE = 32
#: Bytes that a site tells the coordinator at `meet`.
STATE_SIZE = 2
#: What arrays hold.
STATE, MASKED, COMMITMENT, NONCE, SHARE, MODEL = "state", "masked", "commitment", "nonce", "share", "model"
PRODUCT_SEED, ARGMAX_SEED = "product_seed", "argmax_seed"
CATEGORIES, WEIGHTS, BETA = "categories", "weights", "beta"

#: Shared blocks by number, each with its digest.
Blocks = Mapping[int, tuple[Block, bytes]]
#: What sites have sent in a round, by sender and name.
Received = Mapping[tuple[str, ArrayName], Bytes]
#: What a round's tasks bring, by site.
Brought = dict[str, dict[ArrayName, Bytes]]

_RELEASE_STATES: Final[tuple[ReleaseState | None, ...]] = (None, "committed", "opening", "failed")
_LABEL_STATES: Final[tuple[LabelState | None, ...]] = (None, "settled", "entered")
_HEAD = struct.Struct("<BQ")  # state, epoch of origin


@dataclass(frozen=True)
class ReleaseStatus:
    """How far the release has come at one site, as it tells the others."""

    state: ReleaseState | None = None
    origin: int = 0
    commitments: tuple[bytes, ...] = field(default=(), repr=False)  # of all sites in order, where "opening"

    @classmethod
    def of(cls, record: ReleaseRecord | None, sites: tuple[str, ...]) -> ReleaseStatus:
        if record is None:
            return cls()
        opening = record.state == "opening"
        return cls(record.state, record.origin, tuple(record.commitments[s] for s in sites) if opening else ())

    def encoded(self, sites: int) -> bytes:
        return _encoded(_RELEASE_STATES.index(self.state), self.origin, self.commitments, sites)


@dataclass(frozen=True)
class LabelStatus:
    """How far the labels of one block have come at one member, as it tells the other members."""

    state: LabelState | None = None
    origin: int = 0
    commitments: tuple[bytes, ...] = field(default=(), repr=False)  # of all members in order, where "entered"

    @classmethod
    def of(cls, record: LabelRecord | None, members: tuple[str, ...]) -> LabelStatus:
        if record is None:
            return cls()
        entered = record.state == "entered"
        return cls(record.state, record.origin, tuple(record.commitments[s] for s in members) if entered else ())

    def encoded(self, members: int) -> bytes:
        return _encoded(_LABEL_STATES.index(self.state), self.origin, self.commitments, members)


def _encoded(state: int, origin: int, commitments: tuple[bytes, ...], of: int) -> bytes:
    return _HEAD.pack(state, origin) + (b"".join(commitments) or bytes(DIGEST_SIZE * of))


def _decoded(content: bytes, with_commitments: int, last: int) -> tuple[int, int, tuple[bytes, ...]]:
    """State, origin, and the commitments where the state is the one that has them."""
    state, origin = _HEAD.unpack_from(content)
    if state > last:
        raise MessageError("state: expected how far a job has come, got another number")
    parts = content[_HEAD.size :]
    found = tuple(parts[at : at + DIGEST_SIZE] for at in range(0, len(parts), DIGEST_SIZE))
    return state, origin, found if state == with_commitments else ()


@dataclass(frozen=True)
class Told:
    """What one site tells another at `meet`."""

    release: ReleaseStatus
    labels: Mapping[int, LabelStatus]  # of each common block
    keys: Mapping[int, bytes] = field(repr=False)  # fresh keys of the common blocks whose first member the sender is


class Schedule:
    """Arrays of a sealed job, for all sites whose blocks are known: the coordinator knows all, a site its own."""

    def __init__(self, terms: Terms, blocks: Blocks) -> None:
        self._terms = terms
        self._blocks = dict(sorted(blocks.items()))
        #: In the order that all parties share.
        self.products = [ProductBlock(digest, b.size, b.members) for b, digest in self._blocks.values()]

    def asked(self, step: SealedStep, site: str, accepted: int = 0) -> Arrays:
        """What a site answers in a step before `score`. `accepted`: clusters of the model that it has accepted in an
        earlier attempt; 0: none."""
        match step:
            case "meet":
                boxes = {peer: self.told_size(site, peer) for peer in self._terms.sites if peer != site}
                sizes = {ArrayName.of_box(peer): size + OVERHEAD for peer, size in boxes.items()}
                sizes[ArrayName.of_broadcast(STATE, site)] = STATE_SIZE
            case "mask":
                sizes = {
                    ArrayName.of_members(index, MASKED, site): self.masked_size(index, site) + OVERHEAD
                    for index in self.blocks_of(site)
                }
                if sizes:
                    sizes[ArrayName.to_dealer(PRODUCT_SEED)] = SEED_SIZE
            case "verify":
                firsts = [name for name in partners(self.products, site) if name < site]
                sizes = {ArrayName.of_box(first): self.check_size(first, site) + OVERHEAD for first in firsts}
            case "commit":
                sizes = {ArrayName.of_broadcast(COMMITMENT, site): DIGEST_SIZE}
            case "release":
                sizes = {ArrayName.of_broadcast(NONCE, site): NONCE_SIZE}
                sizes[ArrayName.of_broadcast(SHARE, site)] = self.share_size
                if accepted:
                    sizes[ArrayName.of_broadcast(MODEL, site)] = self.model_size(accepted)
            case _:
                raise MessageError(f"step: expected one before score, got {step}")
        return {name: ArraySpec((size,)) for name, size in sizes.items()}

    # Sizes, in bytes, before encryption.

    @property
    def share_size(self) -> int:
        return self._terms.ring.packed_size(self._terms.layout.n_cells)

    def model_size(self, clusters: int) -> int:
        return 8 * clusters * (1 + self._terms.layout.width)

    def masked_size(self, block: int, site: str) -> int:
        return masked_rows_size(self._terms.ring, self._blocks[block][0].size, self._terms.widths[site])

    def check_size(self, first: str, second: str) -> int:
        return check_size(self._terms.ring, self.products, first, second, self._terms.widths[first])

    def dealt_size(self, first: str, second: str) -> int:
        return dealt_size(self._terms.ring, self._terms.widths[first], self._terms.widths[second])

    # Who is in what.

    def blocks_of(self, site: str) -> list[int]:
        return [index for index, (block, _) in self._blocks.items() if site in block.members]

    def common_blocks(self, site: str, peer: str) -> list[int]:
        return [index for index in self.blocks_of(site) if peer in self._blocks[index][0].members]

    # What sites tell at `meet`.

    def told_size(self, sender: str, peer: str) -> int:
        size = _HEAD.size + DIGEST_SIZE * len(self._terms.sites)
        for index in self.common_blocks(sender, peer):
            members = self._blocks[index][0].members
            size += _HEAD.size + DIGEST_SIZE * len(members) + (BLOCK_KEY_SIZE if members[0] == sender else 0)
        return size

    def encode_told(self, sender: str, peer: str, told: Told) -> bytes:
        parts = [told.release.encoded(len(self._terms.sites))]
        for index in self.common_blocks(sender, peer):
            members = self._blocks[index][0].members
            parts += [told.labels[index].encoded(len(members)), told.keys[index] if members[0] == sender else b""]
        return b"".join(parts)

    def decode_told(self, sender: str, peer: str, content: bytes) -> Told:
        """What `sender` has told `peer`, of `told_size` bytes. Raises MessageError for anything else."""
        at = _HEAD.size + DIGEST_SIZE * len(self._terms.sites)
        opening = _RELEASE_STATES.index("opening")
        state, origin, commitments = _decoded(content[:at], opening, len(_RELEASE_STATES) - 1)
        release = ReleaseStatus(_RELEASE_STATES[state], origin, commitments)
        labels: dict[int, LabelStatus] = {}
        keys: dict[int, bytes] = {}
        for index in self.common_blocks(sender, peer):
            members = self._blocks[index][0].members
            end = at + _HEAD.size + DIGEST_SIZE * len(members)
            entered = _LABEL_STATES.index("entered")
            state, origin, commitments = _decoded(content[at:end], entered, len(_LABEL_STATES) - 1)
            labels[index] = LabelStatus(_LABEL_STATES[state], origin, commitments)
            at = end
            if members[0] == sender:
                keys[index] = content[at : at + BLOCK_KEY_SIZE]
                at += BLOCK_KEY_SIZE
        return Told(release, labels, keys)


def encode_state(release: ReleaseStatus, accepted: int) -> bytes:
    """What a site tells the coordinator, which must know which step comes next: how far the release has come, and the
    number of clusters of the model that the site has accepted (0: none)."""
    return bytes((_RELEASE_STATES.index(release.state), accepted))


def decode_state(site: str, content: bytes) -> tuple[ReleaseState | None, int]:
    """The same again. Raises MessageError for anything else."""
    release, accepted = content
    if release >= len(_RELEASE_STATES) or accepted > MOST_CLUSTERS:
        raise MessageError(f"{site}: state: expected how far the job has come, got another number")
    return _RELEASE_STATES[release], accepted


def shared_blocks(job_digest: bytes, view: SiteView, objects: Mapping[int, bytes]) -> dict[int, tuple[Block, bytes]]:
    """The shared blocks of a view, with their digests. `objects`: by block, the digest of its objects in order."""
    shared = sorted((index, block) for index, block in view.blocks.items() if block.shared)
    return {index: (block, block_digest(job_digest, block, objects[index])) for index, block in shared}


def relayed(received: Received, sites: tuple[str, ...], blocks: Blocks) -> Brought:
    """What the coordinator passes on: boxes to their receivers, the rest under the same name to all others that it is
    for. What is for the dealer or the coordinator itself is not passed on."""
    brought: Brought = {site: {} for site in sites}
    for (sender, name), content in received.items():
        match name.kind:
            case "box":
                brought[name.what][ArrayName.of_box(sender)] = content
            case "all" if name.what not in (STATE, MODEL):
                for site in sites:
                    if site != sender:
                        brought[site][name] = content
            case "members":
                for site in blocks[name.number][0].members:
                    if site != sender:
                        brought[site][name] = content
            case _:
                pass
    return brought
