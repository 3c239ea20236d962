"""The cell step: the only computation that reads labels, and so the only one that must run at the sites.

Arrays are (starts, k, objects): clusters before objects, so that every operation runs along contiguous objects.
A site cuts its objects into tiles that fit in the processor's cache. Objects are independent, so tiles, threads and
layouts do not change a bit of the result. No (objects, columns, k) array is formed, except for a small tile.

Tiles of hard labels go through `ce.kernels.compiled` where it is there. Soft labels, and all without it, go through
numpy, with the same bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from ce.errors import RingOverflow
from ce.kernels import backend
from ce.kernels.elementary import SMALLEST_NORMAL
from ce.kernels.special import log as log_of
from ce.kernels.special import over_clusters
from ce.labels import Column
from ce.ring import Reals, Scale, Words, encode, weighted_total

Number = TypeVar("Number", np.float64, np.int64)

#: Objects of a group, and clusters of a vector, of the compiled kernels.
LANES = 8


@dataclass(frozen=True)
class _ByCategory:
    """A column's labelled objects sorted by category, and where each category that is present begins."""

    order: NDArray[np.intp]
    firsts: NDArray[np.intp]
    present: NDArray[np.intp]


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
    weights: Words | None

    @classmethod
    def of(cls, column: Column, rows: NDArray[np.intp], weights: Words | None) -> ColumnCells:
        n_categories = len(column.categories)
        if column.probabilities is not None:
            soft = column.probabilities[rows]
            observed = column.observed[rows]
            probabilities = np.ascontiguousarray(np.where(observed[:, None], soft, 0.0).T)
            codes = np.full(len(rows), n_categories, dtype=np.intp)
            seen = None if observed.all() else observed.astype(np.float64)
            return cls(n_categories, codes, seen, probabilities, weights)
        assert column.codes is not None
        codes = column.codes[rows].astype(np.intp)
        return cls.hard(np.where(codes < 0, n_categories, codes), n_categories, weights)

    @classmethod
    def hard(cls, codes: NDArray[np.intp], n_categories: int, weights: Words | None) -> ColumnCells:
        """From codes, those of missing labels being `n_categories`."""
        observed = codes < n_categories
        seen = None if observed.all() else observed.astype(np.float64)
        return cls(n_categories, codes, seen, None, weights)

    @cached_property
    def by_category(self) -> _ByCategory:
        order = np.argsort(self.codes, kind="stable")
        present, firsts = np.unique(self.codes[order], return_index=True)
        labelled = present < self.n_categories
        observed = int((self.codes < self.n_categories).sum())
        return _ByCategory(order[:observed], firsts[labelled], present[labelled])

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
        by = self.by_category
        if by.order.size:
            counts[..., by.present] = np.add.reduceat(np.take(words, by.order, axis=-1), by.firsts, axis=-1)
        return counts


@dataclass(frozen=True)
class GroupedLabels:
    """A tile's labels as the compiled kernels read them, see `ce.kernels.compiled_cells`."""

    codes: NDArray[np.int32]  # (groups, columns, 8): rows of a table, the last of which is for missing labels
    ends: list[int]  # of each column's categories, which are side by side
    weights: Words

    @classmethod
    def of(cls, columns: list[ColumnCells]) -> GroupedLabels:
        n = len(columns[0].codes)
        ends = np.cumsum([column.n_categories for column in columns]).tolist()
        codes = np.full((len(columns), -(-n // LANES) * LANES), ends[-1], dtype=np.int32)
        for of_column, column, end in zip(codes, columns, ends, strict=True):
            missing = column.codes == column.n_categories
            of_column[:n] = np.where(missing, ends[-1], column.codes + end - column.n_categories)
        grouped = np.ascontiguousarray(codes.reshape(len(columns), -1, LANES).transpose(1, 0, 2))
        weights = columns[0].weights
        return cls(grouped, ends, np.ones(n, dtype=np.int64) if weights is None else weights)

    def table(self, values: list[NDArray[Number]]) -> NDArray[Number]:
        """(starts, rows, width) of each column's (starts, k, categories): clusters last, padded by zeros."""
        starts, k = values[0].shape[:2]
        table = np.zeros(self.shape(starts, k), dtype=values[0].dtype)
        np.concatenate(values, axis=-1, out=table[:, :-1, :k].transpose(0, 2, 1))
        return table

    def by_column(self, counts: Words, k: int) -> list[Words]:
        """The rows of a table, as one (starts, k, categories) per column."""
        begins = [0, *self.ends[:-1]]
        turned = counts[..., :k].transpose(0, 2, 1)
        return [turned[..., begin:end] for begin, end in zip(begins, self.ends, strict=True)]

    def shape(self, starts: int, k: int) -> tuple[int, int, int]:
        return starts, self.ends[-1] + 1, -(-k // LANES) * LANES


@dataclass(frozen=True)
class TileCells:
    """All columns' labels for the objects of one tile."""

    columns: list[ColumnCells]
    #: The same cells as one column of len(columns) * n entries whose categories are side by side. With few objects the
    #: number of calls determines the time, and this takes fewer calls. None where it would not fit in the cache.
    joined: ColumnCells | None = None
    #: The same cells for the compiled kernels.
    grouped: GroupedLabels | None = None

    @classmethod
    def of(cls, columns: list[ColumnCells], room: int) -> TileCells:
        """If all labels are hard: with `grouped` for the compiled kernels, else with `joined` if there are at most
        `room` cells."""
        if not columns or any(column.probabilities is not None for column in columns):
            return cls(columns)
        if backend.compiled() is not None:
            return cls(columns, grouped=GroupedLabels.of(columns))
        if len(columns) < 2 or len(columns) * len(columns[0].codes) > room:
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
    if cells.grouped is not None and (kernels := backend.compiled()) is not None:
        return _compiled_sums(kernels, message, betas, cells.grouped, phi, bound)
    if cells.joined is not None:
        return _joined_sums(message, betas, cells.joined, phi, bound)
    return _sums_by_column(message, betas, cells.columns, phi, bound)


def _compiled_sums(
    kernels: ModuleType, message: Reals, betas: list[Reals], labels: GroupedLabels, phi: Scale, bound: Scale
) -> CellSums:
    starts, k, _ = message.shape
    table = labels.table(betas)
    objects = np.empty(message.shape, dtype=np.int64)
    counts = np.zeros(table.shape, dtype=np.int64)
    logs = np.zeros(starts, dtype=np.int64)
    if not kernels.posterior_sums(
        backend.plain(message), table, labels.codes, labels.weights, phi.unit, bound.unit, objects, counts, logs
    ):
        raise _impossible_label()
    return CellSums(objects, labels.by_column(counts, k), logs)


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

    Returns the words of share * posterior and of share * ln(normaliser). No logarithm of a normal number is beyond the
    limit of `bound`.
    """
    normaliser = over_clusters(joint)
    if share is not None:
        normaliser[:, share == 0.0] = 1.0
    if normaliser.size and not normaliser.min() >= SMALLEST_NORMAL:
        raise _impossible_label()
    logs = log_of(normaliser)
    if share is None:
        log = np.rint(logs * bound.unit).astype(np.int64)
        joint *= (phi.unit / normaliser)[:, None, :]
    else:
        log = np.rint(logs * share * bound.unit).astype(np.int64)
        joint *= (phi.unit * share / normaliser)[:, None, :]
    return np.rint(joint, out=joint).astype(np.int64), log


def _impossible_label() -> RingOverflow:
    return RingOverflow("bound: a label that no cluster can produce, or a message that is not a number")


def lookup_sums(values: list[Reals], cells: TileCells, n: int, scale: Scale) -> Words:
    """sum_c values_ch(x_ic), rounded per cell: (starts, k, n). `values` has (starts, k, categories) per column."""
    starts, k = values[0].shape[:2]
    objects = np.zeros((starts, k, n), dtype=np.int64)
    if cells.grouped is not None and (kernels := backend.compiled()) is not None:
        words = [encode(of_column, scale, "object sums") for of_column in values]
        kernels.lookup_sums(cells.grouped.table(words), cells.grouped.codes, objects)
        return objects
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
    if cells.grouped is not None and (kernels := backend.compiled()) is not None:
        starts, k = words.shape[:2]
        counts = np.zeros(cells.grouped.shape(starts, k), dtype=np.int64)
        kernels.count_sums(words, cells.grouped.codes, cells.grouped.weights, counts)
        return cells.grouped.by_column(counts, k)
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
