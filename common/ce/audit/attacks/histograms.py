"""Histograms: what column sums say about the labels of a site whose objects nobody else sees.

    sum_h n_hjr = number of objects with label r in column j         phi sums to 1 per cell

so one site's column sums are its label histograms, exactly. In `masked` only the total over all holders is seen, which
one holder can reduce by its own: with two holders, the other's histogram.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ce.audit.adversary_views import CoordinatorView, HolderView, scale_of
from ce.protocol.topology.topology import column_groups
from ce.ring import Words

Counts = NDArray[np.int64]
#: (site, column number) -> number of objects by label.
Histograms = dict[tuple[str, int], Counts]


def site_histograms(view: CoordinatorView) -> Histograms:
    """Read each holder's own column sums."""
    found: Histograms = {}
    for group in view.groups.values():
        rounds = view.column_rounds(group.index)
        if not rounds:
            continue
        bits = view.scale(rounds[0].stage, "columns").bits
        for site, words in rounds[0].parts.items():
            found |= {(site, c): counts for c, counts in _counted(words, group.slices, bits).items()}
    return found


def shared_out(view: CoordinatorView) -> Histograms:
    """Guess that the total's histogram is every holder's, in proportion: the best that a total allows."""
    found: Histograms = {}
    sizes = {s: sum(b.size for b in view.topology.blocks if s in b.members) for s in view.topology.sites}
    for index, counts in total_histograms(view).items():
        holders = view.topology.columns[index].holders
        everybody = sum(sizes[site] for site in holders)
        for site in holders:
            share = counts.astype(np.float64) * sizes[site] / max(everybody, 1)
            found[site, index] = np.rint(share).astype(np.int64)
    return found


def total_histograms(view: CoordinatorView) -> dict[int, Counts]:
    """Of all holders together, by column."""
    found: dict[int, Counts] = {}
    for group in view.groups.values():
        if rounds := view.column_rounds(group.index):
            bits = view.scale(rounds[0].stage, "columns").bits
            found |= _counted(rounds[0].total, group.slices, bits)
    return found


def others_histograms(view: HolderView) -> Histograms:
    """What a holder finds for the others: the total's histogram less its own, in full for each other holder."""
    found: Histograms = {}
    for group in column_groups(view.topology.columns).values():
        seen = view.rounds.get(group.index)
        if seen is None:
            continue
        bits = scale_of(view.model, view.topology, seen.stage, "columns").bits
        for column, counts in _counted(seen.total - seen.parts[view.name], group.slices, bits).items():
            found |= {(other, column): counts for other in group.holders if other != view.name}
    return found


def _counted(words: Words, slices: Mapping[int, slice], bits: int) -> dict[int, Counts]:
    """Of the first start: its column sums over all clusters, as whole numbers."""
    sums = words[0].sum(axis=0).astype(np.float64) * 2.0**-bits
    return {column: np.rint(sums[where]).astype(np.int64) for column, where in slices.items()}
