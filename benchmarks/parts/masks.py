"""What masks cost: 8 MB of sums with three peers, against the AES-256-CTR keystreams alone and against memcpy."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from harness.measurement import Level, Measurement, Ratio, Subject
from harness.options import Options

from ce.privacy.mac import tag
from ce.privacy.masks import Keystream, Masks, Part

SITES = ("east", "north", "south", "west")
WORDS = 2**20
BLOCK = 2**18


@contextmanager
def part(options: Options) -> Iterator[list[Measurement]]:
    words = np.random.default_rng(0).integers(-(2**62), 2**62, WORDS)
    keys = {frozenset((a, b)): os.urandom(32) for a in SITES for b in SITES if a < b}
    masks = {s: Masks(s, {p: keys[frozenset((s, p))] for p in SITES if p != s}) for s in SITES}
    contexts = {s: {peer: bytes(32) for peer in SITES if peer != s} for s in SITES}
    rounds = count(1)
    copy, room, zeros = np.empty_like(words), bytearray(BLOCK + 16), bytes(BLOCK)

    parts = [Part(SITES, [words])]

    def mask() -> object:
        return masks["east"].mask(next(rounds), parts, contexts["east"])

    def keystreams() -> None:
        """Three streams, in pieces that stay in the cache."""
        for _ in SITES[1:]:
            stream = Cipher(algorithms.AES256(os.urandom(32)), modes.CTR(bytes(16))).encryptor()
            for _ in range(0, words.nbytes, BLOCK):
                stream.update_into(zeros, room)

    def error() -> float:
        now = next(rounds)
        total = sum(masks[s].mask(now, parts, contexts[s])[0][0] for s in SITES)
        return float(np.abs(total - len(SITES) * words).max())

    yield [
        Measurement(
            name="masks",
            what=f"{words.nbytes / 1e6:.1f} MB of sums, {len(SITES) - 1} peers: masking them, one thread. Keystreams: "
            "three AES-256-CTR streams of as many bytes, made by the same library and thrown away. Tag: the linear MAC "
            "of the same words, in blind. Error: of the total of four masked arrays.",
            unit="s",
            units={"error": "words"},
            subjects=(
                Subject("memcpy", _timed(lambda: np.copyto(copy, words)), "limit"),
                Subject("keystreams", _timed(keystreams), "limit"),
                Subject("masked", _timed(mask)),
                Subject("tag", _timed(lambda: tag(words, Keystream(bytes(32))))),
                Subject("total", lambda: {"error": error()}),
            ),
            claims=(
                Ratio("masking, of the keystreams' speed", least=0.6, of="keystreams", to="masked"),
                Level("error of a total", most=0, of="total: error"),
                Ratio("keystreams, in copies", of="keystreams", to="memcpy"),
                Ratio("masking, in copies", of="masked", to="memcpy"),
                Ratio("a tag, in copies", of="tag", to="memcpy"),
            ),
            turns=options.turns(25, 75),
        )
    ]


def _timed(work: Callable[[], object]) -> Callable[[], float]:
    def turn() -> float:
        begin = time.perf_counter()
        work()
        return time.perf_counter() - begin

    return turn
