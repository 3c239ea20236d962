"""Meet in the middle: find the choice per column that adds up to a given total.

All sums of the first half of the columns, sorted, are compared with the total minus all sums of the second half. This
takes the square root of the work of trying every combination. Vectors are compared by one number each, a fixed random
combination of their entries (modulo 2^64 for words); a match is then checked entry by entry.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ce.ring import Reals, Words

Vectors = Words | Reals

#: With more sums than this in one half there is no search: it would take too long.
MOST_SUMS = 300_000


class SumSearch:
    """All sums of one choice per column, in which many totals are looked up.

    `options` are (choices, width) arrays, one per column, of words or of real numbers.
    """

    def __init__(self, options: Sequence[Vectors]) -> None:
        self._options = options
        self._half = _halfway([len(option) for option in options])
        if self._half is None:
            return
        rng = np.random.default_rng(0)
        width = options[0].shape[1]
        self._weights: NDArray[Any]
        if options[0].dtype == np.int64:
            self._weights = rng.integers(1, 2**62, (width,), dtype=np.int64) * 2 + 1
        else:
            self._weights = rng.normal(size=(width,))
        self._hashed = [option @ self._weights for option in options]
        # Both are sorted, so that consecutive look-ups hit the same cache lines.
        self._left, self._left_order = _sorted(_sums(self._hashed[: self._half]))
        self._right, self._right_order = _sorted(_sums(self._hashed[self._half :]))

    def find(self, total: Vectors, tolerance: float) -> list[int] | None:
        """The first combination whose sum is the total, to within `tolerance` in every entry; None if there is none."""
        if self._half is None:
            return None
        wanted = (total @ self._weights) - self._left
        slack = tolerance * float(np.abs(self._weights).sum()) if tolerance else 0
        first = np.searchsorted(self._right, wanted - slack, "left")
        near = self._right[np.minimum(first, len(self._right) - 1)]
        matches = near == wanted if tolerance == 0 else near <= wanted + slack
        for at in np.flatnonzero(matches & (first < len(self._right))).tolist():
            last = np.searchsorted(self._right, wanted[at] + slack, "right")
            one = _choices(self._hashed[: self._half], int(self._left_order[at]))
            for hit in self._right_order[first[at] : last].tolist():
                chosen = [*one, *_choices(self._hashed[self._half :], hit)]
                reached: Any = sum(option[c] for option, c in zip(self._options, chosen, strict=True))
                if np.abs(reached - total).max() <= tolerance:
                    return chosen
        return None


def _halfway(sizes: Sequence[int]) -> int | None:
    """Where to cut so that the larger half has fewest sums; None if it has more than MOST_SUMS in any case."""
    if not sizes:
        return None

    def larger(at: int) -> float:
        return max(float(np.prod(sizes[:at], dtype=float)), float(np.prod(sizes[at:], dtype=float)))

    best = min(range(1, len(sizes) + 1), key=larger)
    return best if larger(best) <= MOST_SUMS else None


def _sums(hashed: Sequence[NDArray[Any]]) -> NDArray[Any]:
    """All sums of one choice per column, the last column's choices running fastest."""
    total: NDArray[Any] = np.zeros(1, dtype=hashed[0].dtype if hashed else np.int64)
    for values in hashed:
        total = (total[:, None] + values[None, :]).reshape(-1)
    return total


def _sorted(sums: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.intp]]:
    order = np.argsort(sums, kind="stable")
    return sums[order], order


def _choices(hashed: Sequence[NDArray[Any]], at: int) -> list[int]:
    chosen = []
    for values in reversed(hashed):
        at, choice = divmod(at, len(values))
        chosen.append(choice)
    return chosen[::-1]
