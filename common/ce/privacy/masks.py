"""Masks: random words that hide a site's sums, and that cancel in a total or are removed by the contributors.

Each two contributors to a total share a keystream (AES-256-CTR) that no other party can compute: the first by name adds
it, the other subtracts it, modulo 2^64, so that the sum over all contributors is exact. In `blind` one contributor adds
one more stream, under a key that all contributors of the total share: the coordinator sees a random total.

The key of a stream is HKDF-SHA256(pair or set key, context). The context binds everything that the contributors must
agree on, including the round (`ce.protocol.modes.mask_context`), so that no two arrays have the same stream. A `Masks`
object, which exists as long as the ephemeral keys, also checks this: it refuses a round below the last one, and an
array that was already masked in a round.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from ce.cancellation import check_cancelled
from ce.errors import MessageError
from ce.privacy.derivation import derive, expand, extract

Words = NDArray[np.int64]

#: Bytes of keystream made at a time: two such blocks fit in the cache of one core.
BLOCK = 2**18
#: A buffer for a keystream is so much larger than what is written to it.
AES_BLOCK = 16
_ZEROS = memoryview(bytes(BLOCK))
_NONCE = bytes(AES_BLOCK)  # constant, because every key is used for one stream only


class Keystream:
    """One stream of words: AES-256-CTR over zeros, little-endian, from the beginning."""

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(algorithms.AES256(key), modes.CTR(_NONCE)).encryptor()

    def into(self, room: bytearray, size: int) -> None:
        """Write the next `size` bytes, at most BLOCK, into `room`, which has BLOCK + 16."""
        self._encryptor.update_into(_ZEROS[:size], room)


def set_stream_key(set_key: bytes, context: bytes) -> bytes:
    """The key of the stream that all contributors of a total share, for one array of one round."""
    return derive(set_key, b"ce set mask 1", context)


class Masks:
    """One site's masks in one attempt at a job, made from its pair keys. Each mask is used once."""

    def __init__(self, site: str, pair_keys: Mapping[str, bytes]) -> None:
        self._site = site
        # The first half of the key derivation is the same for all streams of a pair.
        self._extracted = {peer: extract(key) for peer, key in pair_keys.items()}
        self._round = 0
        self._masked: set[str] = set()

    def mask(
        self,
        round_: int,
        name: str,
        words: Words,
        contexts: Mapping[str, bytes],
        set_stream: bytes | None = None,
    ) -> Words:
        """The site's words with its masks, as a new array. `contexts` has, for each other contributor, 32 bytes that
        both compute; `set_stream` is the key of the stream shared by all contributors, if this site adds it."""
        self._use_once(round_, name)
        plus: list[Keystream] = []
        minus: list[Keystream] = []
        for peer, context in contexts.items():
            stream = Keystream(expand(self._extracted[peer], b"ce mask 1", context))
            (plus if self._site < peer else minus).append(stream)
        if set_stream is not None:
            plus.append(Keystream(set_stream))
        return _with_streams(words, plus, minus)

    def share_of_zero(self, contexts: Mapping[str, bytes], modulus: int) -> int:
        """This site's share of zero modulo a number of at most 128 bits: uniform, and with the shares of the other
        contributors it adds up to a multiple of the modulus. `contexts` as in `mask`, each used for one share only."""
        share = 0
        for peer, context in contexts.items():
            drawn = int.from_bytes(expand(self._extracted[peer], b"ce mac share 1", context), "big") % modulus
            share += drawn if self._site < peer else -drawn
        return share % modulus

    def _use_once(self, round_: int, name: str) -> None:
        if round_ > self._round:
            self._round = round_
            self._masked.clear()
        if round_ < self._round or name in self._masked:
            raise MessageError(f"round: the masks of round {round_} were used before, and no mask is used twice")
        self._masked.add(name)


def unmask(total: Words, set_key: bytes, context: bytes) -> Words:
    """A total without the mask that its contributors share."""
    return _with_streams(total, [], [Keystream(set_stream_key(set_key, context))])


def _with_streams(words: Words, plus: Sequence[Keystream], minus: Sequence[Keystream]) -> Words:
    """words + plus - minus, modulo 2^64, block by block: all streams of a block while the block is in the cache."""
    source = np.ascontiguousarray(words, dtype="<i8").reshape(-1)
    result = np.empty_like(source)
    room = bytearray(min(BLOCK, source.nbytes) + AES_BLOCK)
    keystream: Words = np.frombuffer(room, dtype="<i8", count=len(room) // 8)
    steps = [*((stream, np.add) for stream in plus), *((stream, np.subtract) for stream in minus)]
    if not steps:
        result[:] = source
    for begin in range(0, len(source), BLOCK // 8):
        check_cancelled()
        part, into = source[begin : begin + BLOCK // 8], result[begin : begin + BLOCK // 8]
        for stream, combine in steps:
            stream.into(room, part.nbytes)
            part = combine(part, keystream[: len(part)], out=into)
    return result.reshape(words.shape)
