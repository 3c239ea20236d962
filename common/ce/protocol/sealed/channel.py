"""Encrypted bytes between the sites of a sealed job, passed on by a coordinator that can neither read nor move them.

Every box is bound to the job, the epoch, the roster, the enrolments, sender and receiver, the step and round in which
it was sent, and to the transcript: a running hash of all that was sent to all (and, within a block, to its members)
before. Two sites that were sent different things before cannot read each other. In each task a site first opens what
has come, then binds what all have in common, then encrypts what it sends.

A block's messages go under one key for all its members, drawn by the first of them in every attempt.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from numpy.typing import NDArray

from ce.errors import MessageError
from ce.privacy.derivation import derive, joined, number
from ce.privacy.pair_keys import NONCE_SIZE
from ce.protocol.attempt import Attempt
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.steps import Step
from ce.protocol.messages.task import Array, Task
from ce.protocol.topology.site_view import Block

Bytes = NDArray[np.uint8]
#: Gives so many random bytes: `os.urandom`; tests give others.
Entropy = Callable[[int], bytes]

#: Bytes that encryption adds: nonce and tag.
OVERHEAD = NONCE_SIZE + 16
BLOCK_KEY_SIZE = 32


class _Moment(NamedTuple):
    """When something was sent."""

    step: Step
    round: int


class Channel:
    """One site's end of all encrypted bytes of one attempt."""

    def __init__(
        self,
        attempt: Attempt,
        site: str,
        enrolment_digest: bytes,
        pair_keys: Mapping[str, bytes],
        blocks: Mapping[int, tuple[Block, bytes]],
        entropy: Entropy,
    ) -> None:
        """`blocks`: the shared blocks of this site, each with its digest (`terms.block_digest`)."""
        self.site = site
        self._pair_keys = dict(pair_keys)
        self._blocks = dict(blocks)
        self._entropy = entropy
        self._block_keys: dict[int, bytes] = {}
        self._transcript = hashlib.sha256(
            joined(b"ce sealed transcript 1", *attempt.context, enrolment_digest)
        ).digest()
        self._of_block = {index: digest for index, (_, digest) in blocks.items()}
        self._sent: _Moment | None = None
        self._before: _Moment | None = None

    # What is bound.

    @property
    def transcript(self) -> bytes:
        """What all sites have in common so far."""
        return self._transcript

    def begin(self, task: Task) -> None:
        """A task has come: what it brings was sent in the round before."""
        self._before, self._sent = self._sent, _Moment(task.step, task.round)

    def bind(self, *parts: bytes) -> None:
        """All sites know these bytes from now on."""
        self._transcript = hashlib.sha256(joined(self._transcript, *parts)).digest()

    def bind_block(self, block: int, *parts: bytes) -> None:
        """All members of a block know these bytes from now on."""
        self._of_block[block] = hashlib.sha256(joined(self._of_block[block], *parts)).digest()

    # To one other site.

    def to_peer(self, peer: str, content: bytes) -> Bytes:
        key = derive(self._pair_keys[peer], b"ce sealed box 1", self.site.encode(), peer.encode())
        return self._encrypt(key, content, self._context(self._sent))

    def from_peer(self, peer: str, task: Task, size: int) -> bytes:
        """What a peer has encrypted for this site, of so many bytes. Raises MessageError if it is not there, or was
        sent in another job, attempt, step or round, or after another transcript."""
        key = derive(self._pair_keys[peer], b"ce sealed box 1", peer.encode(), self.site.encode())
        return self._decrypt(key, ArrayName.of_box(peer), task, size, self._context(self._before))

    # To the members of a block.

    def set_block_key(self, block: int, fresh: bytes) -> None:
        """The key that the first member has drawn. The key in use also follows from members and objects."""
        if len(fresh) != BLOCK_KEY_SIZE:
            raise MessageError(f"block key: expected {BLOCK_KEY_SIZE} bytes, got {len(fresh)}")
        self._block_keys[block] = derive(fresh, b"ce sealed block key 1", self._blocks[block][1])

    def to_block(self, block: int, what: str, content: bytes) -> Bytes:
        """For all other members, as the array `ArrayName.of_members(block, what, this site)`."""
        return self._encrypt(self._key_of(block, what, self.site), content, self._context(self._sent, block))

    def from_block(self, block: int, what: str, sender: str, task: Task, size: int) -> bytes:
        """What a member has sent to all others in the round before, of so many bytes. Raises MessageError."""
        name = ArrayName.of_members(block, what, sender)
        key = self._key_of(block, what, sender)
        return self._decrypt(key, name, task, size, self._context(self._before, block))

    # How.

    def _key_of(self, block: int, what: str, sender: str) -> bytes:
        if block not in self._block_keys:
            raise MessageError("block key: expected before anything of the block")
        return derive(self._block_keys[block], b"ce sealed members 1", what.encode(), sender.encode())

    def _context(self, moment: _Moment | None, block: int | None = None) -> bytes:
        if moment is None:
            raise MessageError("boxes: nothing was sent before this task")
        of_block = () if block is None else (self._blocks[block][1], self._of_block[block])
        return joined(self._transcript, moment.step.encode(), number(moment.round), *of_block)

    def _encrypt(self, key: bytes, content: bytes, context: bytes) -> Bytes:
        nonce = self._entropy(NONCE_SIZE)
        return np.frombuffer(nonce + ChaCha20Poly1305(key).encrypt(nonce, content, context), dtype=np.uint8)

    def _decrypt(self, key: bytes, name: ArrayName, task: Task, size: int, context: bytes) -> bytes:
        box = received(task.arrays, name, size + OVERHEAD)
        try:
            return ChaCha20Poly1305(key).decrypt(box[:NONCE_SIZE], box[NONCE_SIZE:], context)
        except InvalidTag as error:
            raise MessageError(
                f"{name}: was not encrypted for this site, job, epoch and round, or its sender was sent other things "
                "than this site: the sender or the coordinator, which relays it, has made it wrong"
            ) from error


def received(arrays: Mapping[str, Array], name: ArrayName, size: int) -> bytes:
    """The bytes that a task or an answer has under a name. Raises MessageError if there are not so many."""
    array = arrays.get(name)
    if array is None:
        raise MessageError(f"{name}: expected {size:,} bytes, got nothing")
    if array.dtype != np.uint8 or array.shape != (size,):
        raise MessageError(f"{name}: expected {size:,} bytes, got {array.dtype.name} of shape {array.shape}")
    return array.tobytes()


def as_array(content: bytes) -> Bytes:
    """Bytes as an array of an answer or a task."""
    return np.frombuffer(content, dtype=np.uint8)
