"""What the models of categorical labels share: smoothed column parameters, and the cell step of one-phase models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ce.kernels.cells import CellSums, TileCells, posterior_sums
from ce.ring import Reals, Scale, Words, decode
from ce.steps.model import Model, Sizes
from ce.steps.precision import rounding_of_bound


class SmoothedBeta(Model):
    """A column's beta is one distribution per cluster, with a pseudo-count `smoothing` on every category."""

    smoothing: float

    def column(self, sums: Words, scale: Scale) -> Reals:
        """beta_h(r) = (n_hr + s) / (sum_r n_hr + s k_c). With s = 0 a row without labels is zero: it is left unchanged.

        The sum over categories adds words and so is exact: the order of the categories does not matter.
        """
        raised = decode(sums, scale) + self.smoothing
        total = (decode(sums.sum(axis=-1), scale) + self.smoothing * sums.shape[-1])[..., None]
        rows: Reals = np.divide(raised, total, out=np.zeros_like(raised), where=total > 0)
        return rows

    def columns(self, sums: Words, widths: Sequence[int], scale: Scale) -> Reals:
        """The same numbers as `column`, entry by entry, for all columns in one pass."""
        if 0 in widths:
            return super().columns(sums, widths, scale)
        sizes, begins = _layout(tuple(widths))
        counts = np.add.reduceat(sums, begins, axis=-1)
        totals = np.repeat(decode(counts, scale) + self.smoothing * sizes, sizes, axis=-1)
        raised = decode(sums, scale) + self.smoothing
        rows: Reals = np.divide(raised, totals, out=np.zeros_like(raised), where=totals > 0)
        return rows

    def prior(self, beta: Reals) -> Reals:
        """s ln beta_h(r)."""
        if self.smoothing == 0.0:
            return np.zeros_like(beta)
        terms: Reals = self.smoothing * np.log(beta)
        return terms


@lru_cache(64)
def _layout(widths: tuple[int, ...]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Of columns whose categories are side by side: how many each has, and where they begin."""
    sizes = np.array(widths)
    return sizes, np.cumsum(sizes) - sizes


class PosteriorCells(SmoothedBeta):
    """One-phase models: phi_ich ∝ message_ih beta_ch(x_ic), summed over columns and over objects in one pass."""

    phases = 1
    normalised = True

    def cell_scales(self, sizes: Sizes) -> dict[str, Scale]:
        """Of object sums and column sums: the same fraction bits, because phi of a cell is rounded once for both.

        In single precision those that leave 32-bit words to the object sums, if there are enough. Column sums, whose
        totals run over all objects, then have 64-bit words, unless there are no more objects than clusterings.
        """
        objects = Scale.for_sum(sizes.clusterings, 1.0, self.precision)
        both = Scale.for_sum(max(sizes.objects, sizes.clusterings), 1.0, self.precision)
        if objects.word_bits == 64 or both == objects:
            return {"objects": both, "columns": both}
        return {"objects": objects, "columns": Scale(objects.bits, objects.limit)}

    def rounding_of_bound(self, message: Reals, sums: Reals) -> Reals:
        return rounding_of_bound(message, sums)

    def cells(self, message: Reals, betas: list[Reals], cells: TileCells, scales: Mapping[str, Scale]) -> CellSums:
        return posterior_sums(message, betas, cells, scales["objects"], scales["bound"])
