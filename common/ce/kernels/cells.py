"""The cell step: the only computation that reads labels, and so the only one that must run at the sites.

Arrays are (starts, k, objects): clusters before objects, so that every operation runs along contiguous objects.
A site cuts its objects into tiles that fit in the processor's cache. Objects are independent, so tiles, threads and
layouts do not change a bit of the result. No (objects, columns, k) array is formed, except for a small tile.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ce.kernels.special import over_clusters
from ce.labels import Column
from ce.ring import Reals, Scale, Words, encode, weighted_total

Number = TypeVar("Number", np.float64, np.int64)


@dataclass(frozen=True)
class ColumnCells:
    """One column's labels for the objects of one tile.

    A missing label has the code `n_categories`, one past the last: arrays that are looked up get a neutral entry there,
    and `observed` is zero, so that missing labels need no index arithmetic and contribute exactly nothing.
    """

    n_categories: int
    codes: NDArray[np.intp]
    observed: Reals | None  # None: no label is missing
    probabilities: Reals | None  # (categories, n) of a soft column, zero where missing; None: hard labels
    order: NDArray[np.intp]  # labelled objects sorted by category
    firsts: NDArray[np.intp]  # where each category of `present` begins in `order`
    present: NDArray[np.intp]
    weights: Words | None

    @classmethod
    def of(cls, column: Column, rows: NDArray[np.intp], weights: Words | None) -> ColumnCells:
        n_categories = len(column.categories)
        if column.probabilities is not None:
            soft = column.probabilities[rows]
            observed = column.observed[rows]
            probabilities = np.ascontiguousarray(np.where(observed[:, None], soft, 0.0).T)
            none = np.arange(0)
            codes = np.full(len(rows), n_categories, dtype=np.intp)
            seen = None if observed.all() else observed.astype(np.float64)
            return cls(n_categories, codes, seen, probabilities, none, none, none, weights)
        assert column.codes is not None
        codes = column.codes[rows].astype(np.intp)
        return cls.hard(np.where(codes < 0, n_categories, codes), n_categories, weights)

    @classmethod
    def hard(cls, codes: NDArray[np.intp], n_categories: int, weights: Words | None) -> ColumnCells:
        """From codes, those of missing labels being `n_categories`."""
        observed = codes < n_categories
        order = np.argsort(codes, kind="stable")
        present, firsts = np.unique(codes[order], return_index=True)
        labelled = present < n_categories
        seen = None if observed.all() else observed.astype(np.float64)
        order = order[: int(observed.sum())]
        return cls(n_categories, codes, seen, None, order, firsts[labelled], present[labelled], weights)

    def look_up(self, values: NDArray[Number], missing: Number) -> NDArray[Number]:
        """values (starts, k, categories) at each object's label: (starts, k, n); `missing` where there is none."""
        if self.observed is None:
            return np.take(values, self.codes, axis=-1)
        extended = np.empty((*values.shape[:-1], self.n_categories + 1), dtype=values.dtype)
        extended[..., :-1] = values
        extended[..., -1] = missing
        return np.take(extended, self.codes, axis=-1)

    def count(self, words: Words) -> Words:
        """Add up words (starts, k, n) by the objects' labels: (starts, k, categories)."""
        if self.weights is not None:
            words = words * self.weights
        counts = np.zeros((*words.shape[:-1], self.n_categories), dtype=np.int64)
        if self.order.size:
            counts[..., self.present] = np.add.reduceat(np.take(words, self.order, axis=-1), self.firsts, axis=-1)
        return counts


@dataclass(frozen=True)
class TileCells:
    """All columns' labels for the objects of one tile."""

    columns: list[ColumnCells]
    #: The same cells as one column of len(columns) * n entries whose categories are side by side. With few objects the
    #: number of calls determines the time, and this takes fewer calls. None where it would not fit in the cache.
    joined: ColumnCells | None = None

    @classmethod
    def of(cls, columns: list[ColumnCells], room: int) -> TileCells:
        """With `joined` if all labels are hard and there are at most `room` cells."""
        if len(columns) < 2 or any(column.probabilities is not None for column in columns):
            return cls(columns)
        if len(columns) * len(columns[0].codes) > room:
            return cls(columns)
        total = sum(column.n_categories for column in columns)
        ends = np.cumsum([column.n_categories for column in columns])
        codes = np.concatenate(
            [
                np.where(column.codes < column.n_categories, column.codes + end - column.n_categories, total)
                for column, end in zip(columns, ends, strict=True)
            ]
        )
        weights = columns[0].weights
        tiled = None if weights is None else np.tile(weights, len(columns))
        return cls(columns, ColumnCells.hard(codes, total, tiled))


@dataclass(frozen=True)
class CellSums:
    """The sums of one pass over a tile's cells."""

    objects: Words  # (starts, k, n): a_i, summed over the tile's columns
    columns: list[Words]  # per column (starts, k, categories): N_c, summed over the tile's objects
    bound: Words  # (starts,)


def posterior_sums(message: Reals, betas: list[Reals], cells: TileCells, phi: Scale, bound: Scale) -> CellSums:
    """phi_ich ∝ message_ih beta_ch(x_ic), rounded per cell: its sums over columns and objects, ln of its normaliser.

    A soft label is a probability-weighted set of hard labels: category r counts as p_r of a cell.
    """
    # encode() refuses ln 0.
    with np.errstate(divide="ignore"):
        if cells.joined is not None:
            return _joined_sums(message, betas, cells.joined, phi, bound)
        return _sums_by_column(message, betas, cells.columns, phi, bound)


def _sums_by_column(message: Reals, betas: list[Reals], cells: list[ColumnCells], phi: Scale, bound: Scale) -> CellSums:
    starts, k, n = message.shape
    objects = np.zeros((starts, k, n), dtype=np.int64)
    columns: list[Words] = []
    logs = np.zeros(starts, dtype=np.int64)
    for beta, column in zip(betas, cells, strict=True):
        if column.probabilities is None:
            joint = column.look_up(beta, np.float64(1.0))
            joint *= message
            words, log = _posterior(joint, column.observed, phi, bound)
            objects += words
            columns.append(column.count(words))
            logs += weighted_total(log, column.weights)
            continue
        counts = np.zeros((starts, k, column.n_categories), dtype=np.int64)
        for r, probability in enumerate(column.probabilities):
            words, log = _posterior(message * beta[:, :, r, None], probability, phi, bound)
            objects += words
            counts[..., r] = weighted_total(words, column.weights)
            logs += weighted_total(log, column.weights)
        columns.append(counts)
    return CellSums(objects, columns, logs)


def _joined_sums(message: Reals, betas: list[Reals], joined: ColumnCells, phi: Scale, bound: Scale) -> CellSums:
    """The same numbers, cell by cell, for all columns at once."""
    starts, k, n = message.shape
    joint = joined.look_up(np.concatenate(betas, axis=-1), np.float64(1.0)).reshape(starts, k, len(betas), n)
    joint *= message[:, :, None, :]
    words, log = _posterior(joint.reshape(starts, k, -1), joined.observed, phi, bound)
    counts = joined.count(words)
    columns, end = [], 0
    for beta in betas:
        columns.append(counts[..., end : end + beta.shape[-1]])
        end += beta.shape[-1]
    return CellSums(words.reshape(starts, k, len(betas), n).sum(axis=2), columns, weighted_total(log, joined.weights))


def _posterior(joint: Reals, share: Reals | None, phi: Scale, bound: Scale) -> tuple[Words, Words]:
    """Normalise joint (starts, k, n) over k, in place. `share` (n,) is the part of a cell that counts (None: all).

    Returns the words of share * posterior and of share * ln(normaliser). The latter is encoded first, because that
    refuses a normaliser of zero: a label that no cluster can produce.
    """
    normaliser = over_clusters(joint)
    if share is None:
        log = encode(np.log(normaliser), bound, "bound")
        joint *= (phi.unit / normaliser)[:, None, :]
    else:
        normaliser[:, share == 0.0] = 1.0
        log = encode(np.log(normaliser) * share, bound, "bound")
        joint *= (phi.unit * share / normaliser)[:, None, :]
    return np.rint(joint, out=joint).astype(np.int64), log


def lookup_sums(values: list[Reals], cells: TileCells, n: int, scale: Scale) -> Words:
    """sum_c values_ch(x_ic), rounded per cell: (starts, k, n). `values` has (starts, k, categories) per column."""
    starts, k = values[0].shape[:2]
    objects = np.zeros((starts, k, n), dtype=np.int64)
    for of_column, column in zip(values, cells.columns, strict=True):
        if column.probabilities is None:
            objects += column.look_up(encode(of_column, scale, "object sums"), np.int64(0))
        else:
            for r, probability in enumerate(column.probabilities):
                objects += encode(probability * of_column[:, :, r, None], scale, "object sums")
    return objects


def count_sums(message: Reals, cells: TileCells, scale: Scale) -> list[Words]:
    """sum_i message_ih 1(x_ic = r), rounded per cell: one (starts, k, categories) per column."""
    words = encode(message, scale, "column sums")
    columns: list[Words] = []
    for column in cells.columns:
        if column.probabilities is None:
            columns.append(column.count(words))
            continue
        counts = np.zeros((*message.shape[:2], column.n_categories), dtype=np.int64)
        for r, probability in enumerate(column.probabilities):
            counts[..., r] = weighted_total(encode(message * probability, scale, "column sums"), column.weights)
        columns.append(counts)
    return columns


def tiles(n: int, width: int) -> Iterator[slice]:
    """Cut n objects into slices of at most `width`."""
    for begin in range(0, n, width):
        yield slice(begin, min(begin + width, n))
