"""Histograms: what column sums say about the labels of a site, even of objects that no other site holds.

    sum_h n_hjr = number of objects with label r in column j         because phi sums to 1 per cell

So one site's column sums give its label histograms, exactly. In `masked` only the total over all holders can be read.
A holder can subtract its own histogram from it: with two holders, what remains is the other's.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ce.audit.adversary_views import CoordinatorView, Counts, Histograms, HolderView, scale_of
from ce.protocol.topology.site_view import column_groups
from ce.ring import Words


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


def proportional_histograms(view: CoordinatorView) -> Histograms:
    """Share the total's histogram out to the holders in proportion to their objects: the best that a total allows."""
    found: Histograms = {}
    sizes = {s: sum(b.size for b in view.topology.blocks if s in b.members) for s in view.topology.sites}
    for index, counts in total_histograms(view).items():
        holders = view.topology.columns[index].holders
        objects = sum(sizes[site] for site in holders)
        for site in holders:
            share = counts.astype(np.float64) * sizes[site] / max(objects, 1)
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
    """A holder's guess for each of the others: the total's histogram minus its own."""
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
    """By column: the sums of the first start over all clusters, as whole numbers."""
    sums = words[0].sum(axis=0).astype(np.float64) * 2.0**-bits
    return {column: np.rint(sums[where]).astype(np.int64) for column, where in slices.items()}
