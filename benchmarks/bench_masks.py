"""What masks cost: 8 MB of sums with three peers, against the keystream alone and against the same job with plain sums.

Masking adds three AES-256-CTR keystreams; the first ratio is how much of the speed of the keystream itself, measured
beside it, is left. The second is a whole exchange over four site processes and mutual TLS, masked against plain, turn
by turn in the same run.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from bench_service import seconds_per_exchange
from support.processes import Deployment

import ce
from ce.privacy.mac import tag
from ce.privacy.masks import BLOCK, Keystream, Masks

SITES = ("east", "north", "south", "west")
STARTS, CLUSTERS, OBJECTS = 5, 4, 52_429  # 2^20 words, 8 MB
COLUMNS = 4
ITERATIONS = 8
TURNS = 5
KERNEL_PROMISE, JOB_PROMISE = 0.6, 1.3


def main() -> None:
    kernel()
    job()


def kernel() -> None:
    words = np.random.default_rng(0).integers(-(2**62), 2**62, (STARTS, CLUSTERS, OBJECTS))
    keys = {pair: os.urandom(32) for pair in (frozenset((a, b)) for a in SITES for b in SITES if a < b)}
    masks = {s: Masks(s, {p: keys[frozenset((s, p))] for p in SITES if p != s}) for s in SITES}
    contexts = {s: {peer: bytes(32) for peer in SITES if peer != s} for s in SITES}
    total = sum(masks[s].mask(1, "x", words, contexts[s]) for s in SITES)
    error = int(np.abs(total - 4 * words).max())
    room = bytearray(BLOCK + 16)

    def keystream() -> None:
        for key in list(keys.values())[:3]:
            stream = Keystream(key)
            for begin in range(0, words.nbytes, BLOCK):
                stream.into(room, min(BLOCK, words.nbytes - begin))

    rounds = iter(range(2, 1000))
    ratios = [
        _seconds(keystream) / _seconds(lambda: masks["east"].mask(next(rounds), "x", words, contexts["east"]))
        for _ in range(25)
    ]
    ratio = statistics.median(ratios)
    speed = 3 * words.nbytes / _seconds(keystream) / 1e9
    print(f"{words.nbytes / 1e6:.1f} MB of sums, {len(SITES) - 1} peers")
    print(f"  AES-256-CTR keystream alone                {speed:6.1f} GB/s   1.00")
    print(
        f"  masking, of the keystream's speed                        {ratio:5.2f}   {_verdict(ratio >= KERNEL_PROMISE)}"
    )
    tagging = statistics.median(_seconds(lambda: tag(words, bytes(32))) for _ in range(25))
    print(f"  tag of the words (blind)                   {1e9 * tagging / words.size:6.1f} ns for each word")
    print(f"  error of the total in the ring                       {error:9d}   {_verdict(error == 0)}")


def job() -> None:
    with tempfile.TemporaryDirectory() as directory, Deployment(Path(directory), SITES) as deployment:
        _write_labels(deployment)
        times: dict[str, list[float]] = {"plain": [], "masked": []}
        for turn in range(TURNS + 1):
            for privacy, found in times.items():
                name = f"{privacy}-{turn}"
                options = {"restarts": STARTS, "max_iterations": ITERATIONS, "tolerance": 0.0, "privacy": privacy}
                seconds, size = seconds_per_exchange(
                    deployment, ce.Job(name=name, clusters=CLUSTERS, sites=SITES, **options)
                )
                if turn:  # the first warms up
                    found.append(seconds)
    ratio = statistics.median(m / p for m, p in zip(times["masked"], times["plain"], strict=True))
    plain, masked = (statistics.median(found) for found in times.values())
    print(
        f"one exchange of a column-distributed job, {size / 1e6:.1f} MB up and down per site, medians of {TURNS} turns"
    )
    print(f"  plain   {plain * 1e3:8.1f} ms   1.00")
    print(f"  masked  {masked * 1e3:8.1f} ms   {ratio:.2f}   {_verdict(ratio <= JOB_PROMISE)}")


def _write_labels(deployment: Deployment) -> None:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, CLUSTERS, OBJECTS)
    ids = [f"o{i}" for i in range(OBJECTS)]
    for site in SITES:
        wrong = rng.random((OBJECTS, COLUMNS)) < 0.2
        cells = np.where(wrong, rng.integers(0, CLUSTERS, (OBJECTS, COLUMNS)), truth[:, None])
        names = [f"{site}_{j}" for j in range(COLUMNS)]
        deployment.write_labels(site, ce.LabelTable.from_arrays(cells, ids=ids, columns=names))


def _seconds(work: Callable[[], object]) -> float:
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _verdict(kept: bool) -> str:
    return "promise kept" if kept else "promise NOT kept"


if __name__ == "__main__":
    main()
