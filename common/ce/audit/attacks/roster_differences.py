"""Roster differences: the totals of the same labels under two rosters differ by one site's part.

A job that goes on, or is run again, without one of its sites has the same starts for the other sites. The difference of
the first totals is then the missing site's part: exactly where sums do not depend on messages, and nearly in BCE, where
an object starts at the same point under both rosters but its message is a little less sharp with fewer labels.
Differences of histograms and of numbers of labels are exact whatever the starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from ce.audit.adversary_views import NOT_ASKED, CoordinatorView, Guess, Guesses, Histograms, Question
from ce.audit.attacks.equal_rows import likelihood_rows
from ce.audit.attacks.histograms import total_histograms
from ce.audit.attacks.linear_unmix import largest_sum, unmixed_columns
from ce.audit.partitions import Groups, k_means, nearly_equal_rows, principal
from ce.ring import Reals, decode
from ce.steps.model import stage_of

_TOLERANCE = 1e-9


@dataclass(frozen=True)
class RosterView:
    """Two jobs as the coordinator sees them; the second lacks one site."""

    all_sites: CoordinatorView = field(repr=False)
    without: CoordinatorView = field(repr=False)
    missing: str


def differences(view: RosterView, questions: Sequence[Question]) -> Guesses:
    """Guess the columns of the missing site from its part: cluster the rows of the part divided by the message.

    Where the part is exact, the guesses are equal rows and, as there may be several columns, what unmixing finds.
    """
    guesses: Guesses = {}
    for block in {q.block for q in questions if q.holder == view.missing}:
        asked = [q for q in questions if q.block == block and q.holder == view.missing]
        part = _difference(view, block)
        known = np.flatnonzero(~np.isnan(part[0, 0]))
        part = part[..., known]
        first = view.all_sites.rounds(block)[0]
        if stage_of(view.all_sites.model, first.stage).phases == 2:
            rows = part.reshape(-1, len(known)).T
            exact = [nearly_equal_rows(rows, _TOLERANCE), *unmixed_columns([part], largest_sum(view.all_sites))]
            found = dict.fromkeys(asked, exact)
        else:
            message = None if first.message is None else first.message[..., known]
            rows = principal(likelihood_rows(part, message))
            found = {question: [k_means(rows, question.groups)] for question in asked}
        size = view.all_sites.topology.blocks[block].size
        guesses |= {question: [_at(known, groups, size) for groups in found[question]] for question in asked}
    return guesses


def _at(known: Groups, groups: Groups, size: int) -> Guess:
    guess = np.full(size, NOT_ASKED, dtype=np.intp)
    guess[known] = groups
    return guess


def _difference(view: RosterView, block: int) -> Reals:
    """(starts, k, n) the first total of all sites minus that of the others; NaN for objects that they do not share."""
    names = view.all_sites.pseudonyms[block]
    part = _first_total(view.all_sites, block)
    shared = np.zeros(len(names), dtype=bool)
    for other in view.without.shared_blocks:
        _, here, there = np.intersect1d(names, view.without.pseudonyms[other.index], return_indices=True)
        if len(here):
            part[..., here] -= _first_total(view.without, other.index)[..., there]
            shared[here] = True
    part[..., ~shared] = np.nan
    return part


def histogram_differences(view: RosterView) -> Histograms:
    """The histograms of the missing site: those of all sites minus those of the others."""
    columns = {column.name: column for column in view.without.topology.columns}
    others = total_histograms(view.without)
    found: Histograms = {}
    for index, counts in total_histograms(view.all_sites).items():
        column = view.all_sites.topology.columns[index]
        other = columns.get(column.name)
        if view.missing not in column.holders or other is None or other.index not in others:
            continue
        place = {category: at for at, category in enumerate(column.categories)}
        if set(other.categories) <= set(place):  # otherwise the jobs have different keys, and labels other tokens
            difference = counts.copy()
            difference[[place[category] for category in other.categories]] -= others[other.index]
            found[view.missing, index] = difference
    return found


def _first_total(view: CoordinatorView, block: int) -> Reals:
    """(starts, k, n) the first totals as real numbers, because the two jobs may have different fixed points."""
    first = view.rounds(block)[0]
    return decode(first.total, view.scale(first.stage, "objects"))
