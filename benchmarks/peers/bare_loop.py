"""The arithmetic that a cell pass cannot avoid, as a numba loop: a product, a sum over clusters, a division.

The same loop over objects, columns and clusters as the product's, on one thread, without rounding to integers, column
sums and the bound. The posteriors of an object's labels are added up as floats, else a compiler would leave them out.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from peers.iterations import now, since

_WIDTH = 8


@cache
def _compiled() -> Any:
    import numba

    @numba.njit(error_model="numpy", nogil=True)
    def loop(message, table, codes, sums):  # type: ignore[no-untyped-def]
        n, m = codes.shape
        width = message.shape[1]
        joint = np.zeros(width)
        total_of = np.zeros(width)
        for i in range(n):
            total_of[:] = 0.0
            for c in range(m):
                code = codes[i, c]
                total = 0.0
                for lane in range(0, width, 8):
                    for h in range(lane, lane + 8):
                        joint[h] = message[i, h] * table[code, h]
                    for h in range(lane, lane + 8):
                        total += joint[h]
                factor = 1.0 / total
                for lane in range(0, width, 8):
                    for h in range(lane, lane + 8):
                        total_of[h] += joint[h] * factor
            for h in range(width):
                sums[i, h] = total_of[h]

    return loop


def cell_pass(labels: NDArray[np.int32], k: int) -> dict[str, float]:
    """Seconds of one pass over the labels."""
    widths = labels.max(axis=0) + 1
    codes = np.ascontiguousarray(labels + (np.cumsum(widths) - widths).astype(np.int32))
    rng = np.random.default_rng(0)
    width = -(-k // _WIDTH) * _WIDTH
    message, table = np.zeros((len(labels), width)), np.zeros((int(widths.sum()), width))
    message[:, :k], table[:, :k] = rng.random((len(labels), k)) + 0.5, rng.random((len(table), k)) + 0.5
    sums = np.empty_like(message)
    loop = _compiled()
    loop(message[:64], table, codes[:64], sums[:64])
    begin = now()
    loop(message, table, codes, sums)
    return since(begin)
