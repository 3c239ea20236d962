"""A site's labels, cut into blocks and tiles, and the passes of the cell step over them.

The only place of the engine that reads labels. In a block that one site alone holds, equal rows of labels become one
row with a weight: weights multiply integers, so nothing else can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ce.kernels.cells import ColumnCells, tiles
from ce.labels import Column, LabelTable, equal_rows
from ce.protocol.topology import Block, Categories, Rows, SharedColumn, Topology
from ce.ring import Reals, Scale, Words, encode
from ce.steps.model import Model

#: Doubles per (starts, k, tile) array: a handful of such arrays should fit in a core's own cache.
_TILE_ENTRIES = 32768
_NARROWEST_TILE = 64

Tables = Mapping[int, Reals]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Tile:
    """Some objects of a block, and their labels in each clustering that has any there."""

    objects: slice
    columns: tuple[int, ...]
    cells: list[ColumnCells]


@dataclass(frozen=True)
class Holding:
    """A block as this site holds it: `entries` are the distinct rows, `rows` all of them."""

    block: Block
    rows: Rows  # of the site's table, in the order that all members share
    entries: Rows  # of the site's table: one per distinct row in a private block, all in a shared one
    inverse: Rows  # from rows to entries
    weights: Words | None  # how many rows each entry stands for; None: one each
    tiles: list[Tile]

    @property
    def width(self) -> int:
        return len(self.entries)


class Holdings:
    """All that a site holds in one job."""

    def __init__(
        self,
        table: LabelTable,
        topology: Topology,
        rows: Mapping[int, Rows],
        model: Model,
        *,
        classes: Categories,
        given: Mapping[str, Reals],
        threads: int,
    ) -> None:
        held = {column.name: column for column in table.columns}
        self.clusterings: list[SharedColumn] = [c for c in topology.clusterings if c.name in held]
        self._labels = {c.index: held[c.name].recode(c.categories) for c in self.clusterings}
        self._votes = (
            [held[c.name].recode(classes) for c in topology.classifiers if c.name in held]
            if model.uses_votes
            else []
        )
        self._observed = {c.index: held[c.name].observed for c in topology.columns if c.name in held}
        self._topology = topology
        self._given = given
        self._pool = ThreadPoolExecutor(threads) if threads > 1 else None
        width = max(_TILE_ENTRIES // (model.n_starts * model.k), _NARROWEST_TILE)
        self.blocks = [self._hold(topology.blocks[index], rows[index], width) for index in sorted(rows)]

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()

    # What is known before the first iteration.

    def label_counts(self, holding: Holding) -> Words:
        """(entries,) how many cluster labels each object has here."""
        counts = np.zeros(holding.width, dtype=np.int64)
        for column in self._labels.values():
            counts += column.observed[holding.entries]
        return counts

    def votes(self, holding: Holding, k: int, scale: Scale) -> Words:
        """(k, entries) the sum of the classifiers' votes, hard or soft, rounded per vote."""
        total = np.zeros((k, holding.width), dtype=np.int64)
        for column in self._votes:
            total += encode(_ballots(column, holding.entries), scale, "votes")
        return total

    def claims(self, holding: Holding) -> dict[int, Words]:
        """Per contested column: which objects have a label here."""
        return {
            column.index: self._observed[column.index][holding.entries].astype(np.int64)
            for column in self._topology.contested(holding.block)
            if column.index in self._observed
        }

    def given(self, holding: Holding) -> dict[str, Reals]:
        """The block's part of a start that the user gave."""
        return {name: np.ascontiguousarray(array[:, holding.entries]) for name, array in self._given.items()}

    # Passes over the cells of a block. Column sums are added into `sums`.

    def pass_once(
        self,
        model: Model,
        scales: Mapping[str, Scale],
        holding: Holding,
        message: Reals,
        tables: Tables,
        sums: Mapping[int, Words],
    ) -> tuple[Words, Words]:
        """One-phase models: object sums (starts, k, entries) and the cells' share of the bound (starts,)."""
        objects = np.empty(message.shape, dtype=np.int64)
        bound = np.zeros(message.shape[0], dtype=np.int64)

        def work(tile: Tile) -> tuple[list[Words], Words]:
            part = np.ascontiguousarray(message[:, :, tile.objects])
            result = model.cells(part, [tables[c] for c in tile.columns], tile.cells, scales)
            objects[:, :, tile.objects] = result.objects
            return result.columns, result.bound

        for tile, (columns, share) in self._over(holding.tiles, work):
            bound += share
            _add(sums, tile, columns)
        return objects, bound

    def first_pass(
        self, model: Model, scales: Mapping[str, Scale], holding: Holding, tables: Tables, starts: int
    ) -> Words:
        """Two-phase models: object sums (starts, k, entries)."""
        objects = np.zeros((starts, model.k, holding.width), dtype=np.int64)

        def work(tile: Tile) -> None:
            if tile.cells:
                width = tile.objects.stop - tile.objects.start
                objects[:, :, tile.objects] = model.object_sums(
                    [tables[c] for c in tile.columns], tile.cells, width, scales
                )

        for _ in self._over(holding.tiles, work):
            pass
        return objects

    def second_pass(
        self,
        model: Model,
        scales: Mapping[str, Scale],
        holding: Holding,
        message: Reals,
        sums: Mapping[int, Words],
    ) -> None:
        """Two-phase models: column sums from the new message."""

        def work(tile: Tile) -> list[Words]:
            return model.column_sums(np.ascontiguousarray(message[:, :, tile.objects]), tile.cells, scales)

        for tile, columns in self._over(holding.tiles, work):
            _add(sums, tile, columns)

    def _over(
        self, tiles_: Sequence[Tile], work: Callable[[Tile], Result]
    ) -> Iterable[tuple[Tile, Result]]:
        results = map(work, tiles_) if self._pool is None else self._pool.map(work, tiles_)
        return zip(tiles_, results, strict=True)

    def _hold(self, block: Block, rows: Rows, width: int) -> Holding:
        entries, inverse, weights = rows, np.arange(len(rows)), None
        if not block.shared and len(rows):
            parts: list[NDArray[Any]] = [
                _as_rows(column)[rows] for column in (*self._labels.values(), *self._votes)
            ]
            parts += [array.T[rows] for array in self._given.values()]
            first, inverse, weights = equal_rows(parts)
            entries = rows[first]
            if len(entries) == len(rows):
                weights = None
        pieces = []
        for objects in tiles(len(entries), width):
            inside = entries[objects]
            present = tuple(c for c, column in self._labels.items() if column.observed[inside].any())
            weight = None if weights is None else weights[objects]
            pieces.append(
                Tile(objects, present, [ColumnCells.of(self._labels[c], inside, weight) for c in present])
            )
        return Holding(block, rows, entries, inverse, weights, pieces)


def _add(sums: Mapping[int, Words], tile: Tile, columns: list[Words]) -> None:
    for c, counts in zip(tile.columns, columns, strict=True):
        np.add(sums[c], counts, out=sums[c])


def _ballots(column: Column, rows: Rows) -> Reals:
    """(classes, rows) a classifier's votes: one for its class, or its probabilities; zero where it is silent."""
    if column.probabilities is not None:
        return np.ascontiguousarray(np.nan_to_num(column.probabilities[rows], nan=0.0).T)
    assert column.codes is not None
    classes = np.arange(len(column.categories))
    return (column.codes[rows] == classes[:, None]).astype(np.float64)


def _as_rows(column: Column) -> NDArray[Any]:
    """(n, width) the column's labels, such that equal rows mean equal labels."""
    if column.probabilities is not None:
        return column.probabilities
    assert column.codes is not None
    return column.codes[:, None]
