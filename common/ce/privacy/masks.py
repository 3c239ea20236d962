"""Masks: random words that hide a site's sums, and that cancel in a total or are removed by the contributors.

Each two sites share one keystream (AES-256-CTR) for each round that no other party can compute. It runs through all
arrays of the round that both contribute to, in an order that both know: the first by name adds it, the other subtracts
it, modulo 2^64, or 2^32 for words of 32 bits, so that the sum over all contributors is exact. In `blind` one site of
each set of contributors adds one more stream, under a key that they all share: the coordinator sees random totals.

The key of a stream is HKDF-SHA256(pair or set key, context). The context binds everything that its users must agree on,
including the round and the list of arrays (`ce.protocol.modes.mask_context`), so that no two rounds have the same
stream. A `Masks` object, which exists as long as the ephemeral keys, also checks this: it masks every round once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any, NamedTuple

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from ce.cancellation import check_cancelled
from ce.errors import MessageError
from ce.privacy.derivation import derive, expand, extract

#: Words of 64 or of 32 bits; their masks have as many.
Words = NDArray[np.int64] | NDArray[np.int32]
#: Streams, and what each does to words: np.add or np.subtract.
_Steps = Sequence[tuple["Keystream", Callable[..., Words]]]

#: The types of words as masks see them, by their bytes.
_WORDS: dict[int, np.dtype[Any]] = {8: np.dtype("<i8"), 4: np.dtype("<i4")}
#: Bytes of keystream made at a time: two such blocks fit in the cache of one core.
BLOCK = 2**17
#: A buffer for a keystream is so much larger than what is written to it.
AES_BLOCK = 16
_ZEROS = memoryview(bytes(BLOCK))
_CTR = modes.CTR(bytes(AES_BLOCK))  # constant, because every key is used for one stream only


class Keystream:
    """One stream of bytes, of which words of either width are made, little-endian: AES-256-CTR over zeros, from the
    beginning."""

    def __init__(self, key: bytes) -> None:
        self._encryptor = Cipher(algorithms.AES256(key), _CTR).encryptor()

    def into(self, room: bytearray, size: int) -> None:
        """Write the next `size` bytes, at most BLOCK, into `room`, which has BLOCK + 16."""
        self._encryptor.update_into(_ZEROS[:size], room)


class Part(NamedTuple):
    """Arrays of one round with the same contributors, in the order in which streams run through them."""

    contributors: tuple[str, ...]
    arrays: Sequence[Words]


def set_stream_key(set_key: bytes, context: bytes) -> bytes:
    """The key of the stream that all contributors of some totals share, for one round."""
    return derive(set_key, b"ce set mask 2", context)


class Masks:
    """One site's masks in one attempt at a job, made from its pair keys. Each round is masked once."""

    def __init__(self, site: str, pair_keys: Mapping[str, bytes]) -> None:
        self._site = site
        # The first half of the key derivation is the same for all streams of a pair.
        self._extracted = {peer: extract(key) for peer, key in pair_keys.items()}
        self._round = 0

    def mask(
        self,
        round_: int,
        parts: Sequence[Part],
        contexts: Mapping[str, bytes],
        set_streams: Mapping[tuple[str, ...], bytes] | None = None,
    ) -> list[list[Words]]:
        """The site's words of a round with its masks, as new arrays. `contexts` has, for each other contributor, 32
        bytes that both compute; `set_streams` the keys of the streams of those sets of contributors for which this
        site adds one."""
        self._use_once(round_)
        streams: dict[str, Keystream] = {}
        masked = []
        for contributors, arrays in parts:
            steps: list[tuple[Keystream, Callable[..., Words]]] = []
            for peer in contributors:
                if peer != self._site:
                    if peer not in streams:
                        streams[peer] = Keystream(expand(self._extracted[peer], b"ce mask 2", contexts[peer]))
                    steps.append((streams[peer], np.add if self._site < peer else np.subtract))
            if set_streams and contributors in set_streams:
                steps.append((Keystream(set_streams[contributors]), np.add))
            masked.append(_with_streams(arrays, steps))
        return masked

    def share_of_zero(self, contexts: Mapping[str, bytes], name: bytes, modulus: int) -> int:
        """This site's share of zero modulo a number of at most 128 bits: uniform, and with the shares of the other
        contributors it adds up to a multiple of the modulus. `contexts` as in `mask`, of the other contributors; each
        is used for one share of each name only."""
        share = 0
        for peer, context in contexts.items():
            drawn = int.from_bytes(expand(self._extracted[peer], b"ce mac share 2", context, name), "big") % modulus
            share += drawn if self._site < peer else -drawn
        return share % modulus

    def _use_once(self, round_: int) -> None:
        if round_ <= self._round:
            raise MessageError(f"round: the masks of round {round_} were used before, and no mask is used twice")
        self._round = round_


def unmask(totals: Sequence[Words], set_key: bytes, context: bytes) -> list[Words]:
    """The totals of a round that have the same contributors, in order, without the mask that these share."""
    return _with_streams(totals, [(Keystream(set_stream_key(set_key, context)), np.subtract)])


def _with_streams(arrays: Sequence[Words], steps: _Steps) -> list[Words]:
    """The arrays, one after another, with streams that run through them, modulo 2 to the power of their words' bits."""
    found: list[Words] = []
    for kind, alike in groupby(arrays, key=_kind):
        found += _with_streams_of_one_width(list(alike), kind, steps)
    return found


def _kind(words: Words) -> np.dtype[Any]:
    return _WORDS[words.dtype.itemsize]


def _with_streams_of_one_width(arrays: Sequence[Words], kind: np.dtype[Any], steps: _Steps) -> list[Words]:
    """Block by block: all streams of a block while the block is in the cache."""
    sources: list[Any] = [words.astype(kind, copy=False).reshape(-1) for words in arrays]
    ends = list(accumulate(map(len, sources)))
    size, width = ends[-1], BLOCK // kind.itemsize
    result: Any = np.empty(size, dtype=kind)
    room = bytearray(min(BLOCK, result.nbytes) + AES_BLOCK)
    keystream: Any = np.frombuffer(room, dtype=kind, count=len(room) // kind.itemsize)
    which, at = 0, 0  # the next word to take
    for begin in range(0, size, width):
        check_cancelled()
        end = min(begin + width, size)
        pieces, part = [], result[begin:end]
        if part.nbytes == result.nbytes:
            begin, pieces = end, sources
        while begin < end:
            take = min(end - begin, len(sources[which]) - at)
            pieces.append(sources[which][at : at + take])
            begin, at = begin + take, at + take
            if at == len(sources[which]):
                which, at = which + 1, 0
        given = pieces[0] if len(pieces) == 1 and steps else np.concatenate(pieces, out=part)
        drawn = keystream[: len(part)]
        for stream, combine in steps:
            stream.into(room, part.nbytes)
            given = combine(given, drawn, out=part)
    begins = [0, *ends[:-1]]
    return [result[a:b].reshape(words.shape) for words, a, b in zip(arrays, begins, ends, strict=True)]
