"""A site's labels, cut into tiles, and the passes of the cell step over them.

The only place of the engine that reads labels. A site's objects fall into two segments: those that it alone holds, and
those of its shared blocks, one after the other. In the private segment equal rows of labels become one row with a
weight: weights multiply integers, so nothing else can tell.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ce.cancellation import check_cancelled
from ce.kernels import backend
from ce.kernels.cells import CellSums, ColumnCells, TileCells, tiles
from ce.labels import Column, LabelTable, equal_rows
from ce.protocol.topology.site_view import Block, Categories, SiteView, TopologyColumn
from ce.protocol.topology.topology import Rows
from ce.ring import Reals, Scale, Words, encode
from ce.steps.model import Model
from ce.steps.precision import SentMessage

#: Doubles per (starts, k, tile) array: a handful of such arrays should fit in a core's own cache.
_TILE_ENTRIES = 32768
_NARROWEST_TILE = 64
#: Compiled kernels hold few objects at a time, whatever the tile: what counts is the work for each tile.
_WIDER_COMPILED = 4

Tables = Mapping[int, Reals]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Tile:
    """Some objects of a segment, and their labels in each clustering that has any there."""

    objects: slice
    columns: tuple[int, ...]
    cells: TileCells


@dataclass(frozen=True)
class Segment:
    """Objects as this site holds them: `entries` are what arrays are indexed by, `rows` all that they stand for."""

    rows: Rows  # of the site's table; private objects without a label are in none
    entries: Rows  # of the site's table: one per distinct row in the private segment, all in the shared one
    inverse: Rows  # from rows to entries
    weights: Words | None  # how many rows each entry stands for; None: one each
    blocks: dict[int, slice]  # of the entries, by block
    tiles: list[Tile]

    @property
    def width(self) -> int:
        return len(self.entries)


class CellPasses:
    """All that a site holds in one job."""

    def __init__(
        self,
        table: LabelTable,
        topology: SiteView,
        rows: Mapping[int, Rows],
        model: Model,
        *,
        classes: Categories,
        given: Mapping[str, Reals],
        threads: int,
    ) -> None:
        used = table.columns if model.uses_votes else table.clusterings
        held = {column.name: column for column in used}
        self.clusterings: list[TopologyColumn] = list(topology.clusterings)
        self._labels = {c.index: held[c.name].recode(c.categories) for c in self.clusterings}
        self._votes = [held[c.name].recode(classes) for c in topology.classifiers] if model.uses_votes else []
        self._observed = {c.index: held[c.name].observed for c in topology.columns}
        self._topology = topology
        self._given = given
        self.pool = ThreadPoolExecutor(threads) if threads > 1 else None
        self._threads = threads
        entries = _TILE_ENTRIES if backend.compiled() is None else _WIDER_COMPILED * _TILE_ENTRIES
        width = max(entries // (model.n_starts * model.k), _NARROWEST_TILE)
        blocks = [topology.blocks[index] for index in sorted(rows)]
        self.private = self._hold([b for b in blocks if not b.shared], rows, width)
        self.shared = self._hold([b for b in blocks if b.shared], rows, width)

    def close(self) -> None:
        """End the threads; those that work on a tile end after it, and nobody waits for them."""
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)

    # What is known before the first iteration.

    def label_counts(self, segment: Segment) -> Words:
        """(entries,) how many cluster labels each object has here."""
        return _count(self._labels.values(), segment)

    def hidden_counts(self, segment: Segment) -> Words:
        """(entries,) ... in columns that no other site holds, so that no other party knows their beta."""
        return _count((self._labels[c.index] for c in self.clusterings if not c.shared), segment)

    def ballots(self, segment: Segment) -> Words:
        """(entries,) how many votes each object has here."""
        return _count(self._votes, segment)

    def votes(self, segment: Segment, k: int, scale: Scale) -> Words:
        """(k, entries) the sum of the classifiers' votes, hard or soft, rounded per vote."""
        total = np.zeros((k, segment.width), dtype=np.int64)
        for column in self._votes:
            total += encode(_ballots(column, segment.entries), scale, "votes")
        return total

    def _labelled(self, rows: Rows) -> NDArray[np.bool_]:
        """Which objects have a label or vote here."""
        mask = np.zeros(len(rows), dtype=bool)
        for column in (*self._labels.values(), *self._votes):
            mask |= column.observed[rows]
        return mask

    def claims(self, block: int) -> dict[int, Words]:
        """Per contested column of a shared block: which objects have a label here."""
        objects = self.shared.entries[self.shared.blocks[block]]
        return {
            column.index: self._observed[column.index][objects].astype(np.int64)
            for column in self._topology.contested(self._topology.blocks[block])
            if column.index in self._observed
        }

    def given(self, segment: Segment) -> dict[str, Reals]:
        """The segment's part of a start that the user gave."""
        return {name: np.ascontiguousarray(array[..., segment.entries]) for name, array in self._given.items()}

    # Passes over the cells of a segment. Column sums are added into `sums`.

    def pass_once(
        self,
        model: Model,
        scales: Mapping[str, Scale],
        segment: Segment,
        message: SentMessage,
        tables: Tables,
        sums: Mapping[int, Words],
    ) -> tuple[Words, Words]:
        """One-phase models: object sums (starts, k, entries) and the cells' share of the bound (starts,)."""

        def work(tile: Tile) -> CellSums:
            part = np.ascontiguousarray(message[:, :, tile.objects], dtype=np.float64)
            return model.cells(part, [tables[c] for c in tile.columns], tile.cells, scales)

        if len(segment.tiles) == 1:  # nothing to put together
            [tile] = segment.tiles
            found = work(tile)
            check_cancelled()
            _add(sums, tile, found.columns)
            return found.objects, found.bound
        objects = np.empty(message.shape, dtype=np.int64)
        bound = np.zeros(message.shape[0], dtype=np.int64)
        for tile, found in self._over(segment.tiles, work):
            objects[:, :, tile.objects] = found.objects
            bound += found.bound
            _add(sums, tile, found.columns)
        return objects, bound

    def first_pass(
        self, model: Model, scales: Mapping[str, Scale], segment: Segment, tables: Tables, starts: int
    ) -> Words:
        """Two-phase models: object sums (starts, k, entries)."""
        objects = np.zeros((starts, model.k, segment.width), dtype=np.int64)

        def work(tile: Tile) -> None:
            if tile.columns:
                width = tile.objects.stop - tile.objects.start
                objects[:, :, tile.objects] = model.object_sums(
                    [tables[c] for c in tile.columns], tile.cells, width, scales
                )

        for _ in self._over(segment.tiles, work):
            pass
        return objects

    def second_pass(
        self,
        model: Model,
        scales: Mapping[str, Scale],
        segment: Segment,
        message: SentMessage,
        sums: Mapping[int, Words],
    ) -> None:
        """Two-phase models: column sums from the new message."""

        def work(tile: Tile) -> list[Words]:
            part = np.ascontiguousarray(message[:, :, tile.objects], dtype=np.float64)
            return model.column_sums(part, tile.cells, scales)

        for tile, columns in self._over(segment.tiles, work):
            _add(sums, tile, columns)

    def _over(self, tiles_: Sequence[Tile], work: Callable[[Tile], Result]) -> Iterator[tuple[Tile, Result]]:
        """Tile by tile, in order. A pool's threads end the tiles that they have begun when the work is cancelled."""
        results = map(work, tiles_) if self.pool is None else self.pool.map(work, tiles_)
        for done in zip(tiles_, results, strict=True):
            check_cancelled()
            yield done

    def _hold(self, blocks: Sequence[Block], rows: Mapping[int, Rows], width: int) -> Segment:
        positions: Rows = np.concatenate([rows[block.index] for block in blocks] or [np.arange(0)])
        entries, inverse, weights = positions, np.arange(len(positions)), None
        ends = np.cumsum([block.size for block in blocks], dtype=int).tolist()
        slices = {b.index: slice(end - b.size, end) for b, end in zip(blocks, ends, strict=True)}
        # A site has at most one private block, since a block is all objects with the same holders.
        if len(blocks) == 1 and not blocks[0].shared:
            positions = positions[self._labelled(positions)]
            parts: list[NDArray[Any]] = [
                _as_rows(column)[positions] for column in (*self._labels.values(), *self._votes)
            ]
            parts += [array.reshape(-1, array.shape[-1]).T[positions] for array in self._given.values()] or [
                np.zeros((len(positions), 1))
            ]
            first, inverse, weights = equal_rows(parts)
            entries = positions[first]
            slices = {blocks[0].index: slice(0, len(entries))}
            if len(entries) == len(positions):
                weights = None
        chunks = []
        for objects in tiles(len(entries), self._even(len(entries), width)):
            check_cancelled()
            inside = entries[objects]
            present = tuple(c for c, column in self._labels.items() if column.observed[inside].any())
            weight = None if weights is None else weights[objects]
            cells = [ColumnCells.of(self._labels[c], inside, weight) for c in present]
            chunks.append(Tile(objects, present, TileCells.of(cells, width)))
        return Segment(positions, entries, inverse, weights, slices, chunks)

    def _even(self, n: int, width: int) -> int:
        """The width of tiles, at most `width`, of which all threads get as many."""
        tiles_of_all = self._threads * -(-n // (width * self._threads))
        return max(-(-n // max(tiles_of_all, 1)), _NARROWEST_TILE)


def _count(columns: Iterable[Column], segment: Segment) -> Words:
    counts = np.zeros(segment.width, dtype=np.int64)
    for column in columns:
        counts += column.observed[segment.entries]
    return counts


def _add(sums: Mapping[int, Words], tile: Tile, columns: list[Words]) -> None:
    for c, counts in zip(tile.columns, columns, strict=True):
        np.add(sums[c], counts, out=sums[c])


def _ballots(column: Column, rows: Rows) -> Reals:
    """(classes, rows) a classifier's votes: one for its class, or its probabilities; zero where it is silent."""
    if column.probabilities is not None:
        return np.ascontiguousarray(np.nan_to_num(column.probabilities[rows], nan=0.0).T)
    assert column.codes is not None
    classes = np.arange(len(column.categories))
    ballots: Reals = (column.codes[rows] == classes[:, None]).astype(np.float64)
    return ballots


def _as_rows(column: Column) -> NDArray[Any]:
    """(n, width) the column's labels, such that equal rows mean equal labels."""
    if column.probabilities is not None:
        return column.probabilities
    assert column.codes is not None
    return column.codes[:, None]
