"""Agreement of two labelings of the same objects.

Every measure is a function of the contingency table n_ij, the number of objects with the i-th label of A and the j-th
label of B:

    n_i = sum_j n_ij      n_j = sum_i n_ij      n = sum_ij n_ij
    H(A) = sum_i (n_i/n) ln(n/n_i)              H(A|B) = sum_ij (n_ij/n) ln(n_j/n_ij)
    I(A,B) = H(A) - H(A|B)                      H(A,B) = H(A) + H(B|A)

An object whose label is missing in one labeling is left out of both. Missing is a negative number, NaN, None, and what
pandas and numpy use in their place (NA, NaT). Logarithms are natural. Only `cohen_kappa` depends on what labels are
called.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, xlogy

from ce.errors import InputError

__all__ = [
    "ami",
    "ari",
    "cohen_kappa",
    "contingency",
    "f1_nbce",
    "kappa_from_table",
    "micro_precision",
    "nmi",
    "nvi1",
    "nvi2",
    "pair_f",
    "purity",
    "rand_index",
    "vi",
]

Labels: TypeAlias = Iterable[Any]
"""One label per object: a list, an array or a Series of integers, strings or any hashable objects."""

Counts: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Average: TypeAlias = Literal["geometric", "arithmetic", "min", "max"]

_MAX_CELLS = 2**26
"""Largest contingency table, half a gigabyte: a larger one means that ids were passed as labels."""

_TAIL = 50.0
"""Hypergeometric tails below 2 exp(-50) are left out of expectations: they are far below one rounding error."""


def contingency(a: Labels, b: Labels) -> Counts:
    """Table n_ij of two labelings: (r, c) int64, rows are the labels of `a`, columns those of `b`.

    Only objects labelled in both are counted, so no row and no column is empty. Rows and columns are in the
    order of their labels, or of first appearance where labels cannot be sorted. Raises InputError when the
    labelings differ in length, when no object is labelled in both, or when one is not a vector of labels.
    """
    return _cross(a, b).table


def micro_precision(truth: Labels, clusters: Labels) -> float:
    """Fraction of objects in the class of their cluster: (1/n) sum_j max_i n_ij, i a class, j a cluster.

    Each cluster takes the class with which it overlaps most: the measure of the BCE paper. In (0, 1]. Not
    symmetric, and 1 for singleton clusters: compare only at equal numbers of clusters.
    """
    table = contingency(truth, clusters)
    return int(table.max(axis=0).sum()) / int(table.sum())


def purity(truth: Labels, clusters: Labels) -> float:
    """Purity, (1/n) sum_j max_i n_ij: another name of `micro_precision`."""
    return micro_precision(truth, clusters)


def nmi(a: Labels, b: Labels, average: Average | Literal["joint"] = "arithmetic") -> float:
    """Normalised mutual information: I(A,B) / mean(H(A), H(B)), in [0, 1].

    `average` names the mean: "arithmetic" (scikit-learn's default), "geometric" (Strehl and Ghosh), "min" or
    "max"; "joint" divides by H(A,B). 1 when both labelings are a single cluster, 0 when only one of them is.
    """
    info = _information(contingency(a, b))
    ceiling = _ceiling(info, average, choices=tuple(_CEILINGS))
    if info.h_a == 0 and info.h_b == 0:
        return 1.0
    return min(1.0, info.mutual / ceiling) if ceiling > 0 else 0.0


def ami(a: Labels, b: Labels, average: Average = "arithmetic") -> float:
    """Mutual information adjusted for chance: (I - E[I]) / (mean(H(A), H(B)) - E[I]).

    E[I] is over all labelings with the cluster sizes of A and B (Vinh, Epps and Bailey). `average` as in
    `nmi`, but not "joint", which differs between those labelings. At most 1; 0 on average for unrelated
    partitions. When either is a single cluster or all singletons, I is always E[I]: then 1 if the partitions
    are equal and 0 if not.
    """
    table = contingency(a, b)
    info = _information(table)
    ceiling = _ceiling(info, average, choices=("arithmetic", "geometric", "min", "max"))
    if info.vi == 0:
        return 1.0
    if not {1, int(table.sum())}.isdisjoint(table.shape):
        return 0.0
    expected = _expected_mutual_information(table.sum(axis=1), table.sum(axis=0))
    return (info.mutual - expected) / (ceiling - expected)


def vi(a: Labels, b: Labels) -> float:
    """Variation of information (Meila): H(A|B) + H(B|A), in nats. A metric: 0 for equal partitions only."""
    return _information(contingency(a, b)).vi


def nvi1(a: Labels, b: Labels) -> float:
    """Variation of information, normalised: VI(A,B) / H(A,B) = 1 - I(A,B) / H(A,B), in [0, 1].

    A metric (Kraskov et al.; Vinh, Epps and Bailey); 0 when both labelings are a single cluster.
    """
    info = _information(contingency(a, b))
    return min(1.0, info.vi / info.joint) if info.joint > 0 else 0.0


def nvi2(a: Labels, b: Labels) -> float:
    """Variation of information, normalised by the larger entropy: 1 - I(A,B) / max(H(A), H(B)), in [0, 1].

    A metric, the normalised information distance of Vinh, Epps and Bailey; 0 when both labelings are a single
    cluster.
    """
    info = _information(contingency(a, b))
    largest = max(info.h_a, info.h_b)
    # max(H(A), H(B)) - I is the larger conditional entropy, which is exactly 0 for equal partitions.
    return min(1.0, max(info.h_a_given_b, info.h_b_given_a) / largest) if largest > 0 else 0.0


def rand_index(a: Labels, b: Labels) -> float:
    """Fraction of pairs that both labelings join or both separate: (P + 2 S - S_A - S_B) / P, in [0, 1].

    P = C(n,2), S = sum_ij C(n_ij,2), S_A = sum_i C(n_i,2), S_B = sum_j C(n_j,2). 1 for a single object.
    """
    pairs = _pairs(contingency(a, b))
    if pairs.total == 0:
        return 1.0
    return (pairs.total + 2 * pairs.both - pairs.in_a - pairs.in_b) / pairs.total


def ari(a: Labels, b: Labels) -> float:
    """Rand index adjusted for chance: (S - S_A S_B / P) / ((S_A + S_B)/2 - S_A S_B / P) (Hubert and Arabie).

    Letters as in `rand_index`. At most 1, for equal partitions only; 0 on average for unrelated ones.
    """
    pairs = _pairs(contingency(a, b))
    # Numerator and denominator times 2 P, in Python's integers: int64 would overflow from n = 1e5 on.
    chance = 2 * pairs.in_a * pairs.in_b
    span = (pairs.in_a + pairs.in_b) * pairs.total - chance
    return (2 * pairs.both * pairs.total - chance) / span if span else 1.0


def pair_f(a: Labels, b: Labels) -> float:
    """F-measure of the pairs joined: 2 S / (S_A + S_B), in [0, 1]; 1 when neither labeling joins any pair.

    Letters as in `rand_index`. Equation (1.4) of the survey computes this, under the name of the Rand index.
    """
    pairs = _pairs(contingency(a, b))
    joined = pairs.in_a + pairs.in_b
    return 2 * pairs.both / joined if joined else 1.0


def f1_nbce(a: Labels, b: Labels) -> float:
    """Best F1 of each set of A among the sets of B, averaged: (1/h) sum_i max_j 2 n_ij / (n_i + n_j).

    h is the number of sets of A. The measure of the NBCE paper, corrected to average over the h sets of A. In (0, 1].
    Not symmetric. Every set of A has the same weight, whatever its size.
    """
    table = contingency(a, b)
    f1 = 2 * table / (table.sum(axis=1, keepdims=True) + table.sum(axis=0, keepdims=True))
    return float(f1.max(axis=1).mean())


def cohen_kappa(a: Labels, b: Labels) -> float:
    """Cohen's kappa, (p_o - p_e) / (1 - p_e), over the union of the labels of `a` and `b`.

    p_o = sum_c n_cc / n is the observed agreement and p_e = sum_c n_c. n_.c / n² that of chance. Equal labels
    mean the same category: 1 and 1.0 are equal, 1 and "1" are not. 1 when both are constant and equal.
    """
    cross = _cross(a, b)
    column_of = {label: j for j, label in enumerate(cross.columns)}
    shared = [(i, column_of[label]) for i, label in enumerate(cross.rows) if label in column_of]
    # Labels that only one labeling has cannot agree with any, not even by chance: they count only in n.
    i, j = np.array(shared, dtype=np.intp).reshape(-1, 2).T
    agreed = int(cross.table[i, j].sum())
    chance = int(cross.table.sum(axis=1)[i] @ cross.table.sum(axis=0)[j])
    return _kappa(agreed, chance, int(cross.table.sum()))


def kappa_from_table(table: ArrayLike) -> float:
    """Cohen's kappa of a (k, k) table whose rows and columns are the same categories in the same order.

    Counts or weights; see `cohen_kappa`. Raises InputError for a table that is not square, not numbers,
    negative somewhere or zero everywhere.
    """
    cells = np.asarray(table)
    if cells.ndim != 2 or cells.shape[0] != cells.shape[1]:
        raise InputError(
            f"kappa needs a square table of the same categories in rows and columns, not shape {cells.shape}"
        )
    if cells.dtype.kind not in "biuf":
        raise InputError(f"kappa needs a table of counts, not of type {cells.dtype}")
    cells = cells.astype(np.float64 if cells.dtype.kind == "f" else np.int64)
    if not (np.isfinite(cells).all() and (cells >= 0).all() and cells.any()):
        raise InputError("kappa needs a table of finite, non-negative counts that are not all zero")
    chance = (cells.sum(axis=1) @ cells.sum(axis=0)).item()
    return _kappa(np.trace(cells).item(), chance, cells.sum().item())


def _kappa(agreed: float, chance: float, n: float) -> float:
    # Numerator and denominator of kappa times n²; exact for integers. The span is 0 only if one cell has all objects.
    span = n * n - chance
    return (n * agreed - chance) / span if span else 1.0


class _Cross(NamedTuple):
    table: Counts
    rows: list[Any]
    columns: list[Any]


def _cross(a: Labels, b: Labels) -> _Cross:
    """The contingency table and the labels of its rows and columns."""
    codes_a, labels_a = _encode(a)
    codes_b, labels_b = _encode(b)
    if len(codes_a) != len(codes_b):
        raise InputError(
            f"the two labelings differ in length, {len(codes_a)} and {len(codes_b)}: "
            "both must label the same objects in the same order"
        )
    known = (codes_a >= 0) & (codes_b >= 0)
    if not known.any():
        raise InputError(f"none of the {len(known)} objects is labelled in both labelings: there is nothing to compare")
    codes_a, rows = _used(codes_a[known], labels_a)
    codes_b, columns = _used(codes_b[known], labels_b)
    shape = len(rows), len(columns)
    if math.prod(shape) > _MAX_CELLS:
        raise InputError(
            f"a table of {shape[0]} by {shape[1]} labels is too large: check that neither is a column of ids"
        )
    table = np.bincount(codes_a * shape[1] + codes_b, minlength=math.prod(shape))
    return _Cross(table.reshape(shape).astype(np.int64, copy=False), rows, columns)


def _encode(labels: Labels) -> tuple[Counts, list[Any]]:
    """The index of each object's label among the sorted distinct labels, -1 where missing; and those labels."""
    # Lists become arrays of objects: numpy would turn ["a", nan] and [1, "1"] into strings. A str is not a list.
    whole = hasattr(labels, "__array__") or isinstance(labels, str)
    column = np.asarray(labels) if whole else np.fromiter(labels, dtype=object)
    if column.ndim != 1:
        raise InputError(f"a labeling is a vector with one label per object, not of shape {column.shape}")
    if column.dtype.kind in "biufMm":
        values, codes = np.unique(column, return_inverse=True)
        distinct = list(values)
    else:
        seen: dict[Any, int] = {}
        try:
            positions = (seen.setdefault(label, len(seen)) for label in column.tolist())
            codes = np.fromiter(positions, dtype=np.int64, count=len(column))
        except TypeError as error:
            raise InputError("labels must be numbers, strings or other hashable objects") from error
        distinct = list(seen)
    present = [position for position, label in enumerate(distinct) if not _is_missing(label)]
    with suppress(TypeError):
        present = sorted(present, key=distinct.__getitem__)
    rank = np.full(len(distinct), -1, dtype=np.int64)
    rank[present] = np.arange(len(present))
    return rank[codes], [distinct[position] for position in present]


def _is_missing(label: object) -> bool:
    if label is None:
        return True
    if isinstance(label, int | float | np.integer | np.floating):
        return not label >= 0
    try:
        return bool(label != label)
    except TypeError:
        # pandas.NA cannot be compared, not even with itself.
        return True


def _used(codes: Counts, labels: list[Any]) -> tuple[Counts, list[Any]]:
    """Renumber codes, leaving out labels that do not occur."""
    occurs = np.bincount(codes, minlength=len(labels)) > 0
    return (np.cumsum(occurs) - 1)[codes], [labels[i] for i in np.flatnonzero(occurs)]


class _Pairs(NamedTuple):
    both: int
    in_a: int
    in_b: int
    total: int


def _pairs(table: Counts) -> _Pairs:
    """Pairs of objects that are together in both labelings, in A, in B, and all pairs."""
    # Each sum is at most C(n,2), computed in int64 up to n = 3e9; products of two do not fit, hence int.
    return _Pairs(
        *(int((sizes * (sizes - 1) // 2).sum()) for sizes in (table, table.sum(axis=1), table.sum(axis=0), table.sum()))
    )


class _Information(NamedTuple):
    h_a: float
    h_b: float
    h_a_given_b: float
    h_b_given_a: float

    @property
    def vi(self) -> float:
        return self.h_a_given_b + self.h_b_given_a

    @property
    def mutual(self) -> float:
        return max(0.0, (self.h_a + self.h_b - self.vi) / 2)

    @property
    def joint(self) -> float:
        return (self.h_a + self.h_b + self.vi) / 2


def _information(table: Counts) -> _Information:
    """Entropies in nats. No term is negative, so equal partitions have conditional entropies of exactly 0."""
    n = int(table.sum())
    sizes_a, sizes_b = table.sum(axis=1), table.sum(axis=0)
    i, j = np.nonzero(table)
    cells = table[i, j]
    return _Information(
        h_a=float(sizes_a @ np.log(n / sizes_a)) / n,
        h_b=float(sizes_b @ np.log(n / sizes_b)) / n,
        h_a_given_b=float(cells @ np.log(sizes_b[j] / cells)) / n,
        h_b_given_a=float(cells @ np.log(sizes_a[i] / cells)) / n,
    )


_CEILINGS: dict[str, Callable[[_Information], float]] = {
    "arithmetic": lambda info: (info.h_a + info.h_b) / 2,
    "geometric": lambda info: math.sqrt(info.h_a * info.h_b),
    "min": lambda info: min(info.h_a, info.h_b),
    "max": lambda info: max(info.h_a, info.h_b),
    "joint": lambda info: info.joint,
}


def _ceiling(info: _Information, average: str, choices: tuple[str, ...]) -> float:
    """What the mutual information is divided by."""
    if average not in choices:
        raise InputError(f"there is no average {average!r}: choose one of {', '.join(choices)}")
    return _CEILINGS[average](info)


def _expected_mutual_information(sizes_a: Counts, sizes_b: Counts) -> float:
    """E[I] over all labelings with these cluster sizes: each pair of clusters adds its cell's mean term.

    That mean depends on the two sizes alone, so each pair of distinct sizes is computed once.
    """
    n = int(sizes_a.sum())
    sides = [np.unique(sizes, return_counts=True) for sizes in (sizes_a, sizes_b)]
    (few, few_times), (many, many_times) = sorted(sides, key=lambda side: len(side[0]))
    return math.fsum(
        times * float(_expected_terms(size, many, n) @ many_times)
        for size, times in zip(few.tolist(), few_times.tolist(), strict=True)
    )


def _expected_terms(n_h: int, n_l: Counts, n: int) -> Floats:
    """E[(x/n) ln(n x / (n_h n_l))] for each size n_l, x hypergeometric: n_l of n count, n_h are drawn.

    The inner sum of the survey's (1.10), with its upper limit corrected to min(n_h, n_l).
    """
    # Bernstein's inequality, which holds without replacement too (Hoeffding): less than 2 exp(-_TAIL) lies
    # beyond `reach` from the mean. Sums of a million terms become sums of a few thousand.
    mean = n_h * n_l / n
    reach = _TAIL / 3 + np.sqrt((_TAIL / 3) ** 2 + 2 * _TAIL * mean)
    first = np.maximum(np.maximum(0, n_h + n_l - n), np.floor(mean - reach).astype(np.int64))
    last = np.minimum(np.minimum(n_h, n_l), np.ceil(mean + reach).astype(np.int64))

    # One flat vector with all x of all sizes, one size after the other.
    widths = last - first + 1
    starts = np.cumsum(widths) - widths
    x = np.arange(widths.sum()) - np.repeat(starts - first, widths)
    size = np.repeat(n_l, widths)
    log_p = -(gammaln(x + 1) + gammaln(n_h - x + 1) + gammaln(size - x + 1) + gammaln(n - n_h - size + x + 1))
    # Factors without x would cost digits. They are left out, and restored by dividing by the sum.
    p = np.exp(log_p - np.repeat(np.maximum.reduceat(log_p, starts), widths))
    terms = xlogy(x / n, x / np.repeat(mean, widths))
    expected: Floats = np.add.reduceat(p * terms, starts) / np.add.reduceat(p, starts)
    return expected
