"""What the engine costs: an iteration against the arithmetic it cannot avoid, and sites against one site.

Run by `make bench`. Prints ratios, measured in this run.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from ce.labels import LabelTable
from ce.models import BCE
from ce.protocol.engine.starting_parameters import SeededStarts
from ce.protocol.local_run import run
from ce.splits import split

N, COLUMNS, K, STARTS, ITERATIONS = 20_000, 20, 7, 5, 8


def best(work: Callable[[], object], repeats: int = 3) -> float:
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        work()
        times.append(time.perf_counter() - begin)
    return min(times)


def labels() -> LabelTable:
    rng = np.random.default_rng(0)
    truth = rng.integers(0, K, N)
    codes = np.stack([rng.permutation(9)[truth] for _ in range(COLUMNS)], axis=1)
    wrong = rng.random(codes.shape) < 0.3
    codes[wrong] = rng.integers(0, 9, wrong.sum())
    return LabelTable.from_arrays(codes)


def arithmetic() -> None:
    """One multiplication, one sum over clusters and one division per cell, start and cluster, in cache-sized pieces."""
    chunk = np.random.default_rng(0).random((STARTS, K, 936)) + 0.5
    out = np.empty_like(chunk)
    for _ in range(N // 936 * COLUMNS):
        np.multiply(chunk, chunk, out=out)
        np.divide(out, out.sum(axis=1)[:, None], out=out)


def fit(tables: dict[str, LabelTable]) -> None:
    model = BCE(K, n_init=STARTS, anneal_iter=ITERATIONS, max_iter=ITERATIONS, tol=0).steps()
    run(model, tables, {site: SeededStarts(0) for site in tables})


def main() -> None:
    table = labels()
    cells = N * COLUMNS * STARTS * K
    limit = best(arithmetic)
    one = best(lambda: fit({"one": table})) / (ITERATIONS + 1)
    print(
        f"{N:,} objects, {COLUMNS} columns, {K} clusters, {STARTS} starts: {cells / 1e6:.0f} million phi per iteration"
    )
    print(f"an iteration on one site / bare multiply-sum-divide of its cells   {one / limit:5.1f}")
    for how in ("rows:4", "columns:4", "blocks:6"):
        tables = split(table, how)
        many = best(lambda t=tables: fit(t)) / (ITERATIONS + 1)  # type: ignore[misc]
        print(f"all sites of {how:<10} one after the other / one site            {many / one:5.2f}")


if __name__ == "__main__":
    main()
