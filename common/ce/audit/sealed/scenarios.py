"""Jobs that a curious site can have: one, several over the same labels, with an edited file, on another roster.

Each function returns what the site knows after jobs that together spend what its peers' policies allow. Winners come
from the first job only: a site opens them once per object.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from ce.audit.sealed.pooled_labels import Codes, PooledLabels
from ce.audit.sealed.releases import Release, draw_release, noisy_tables, share_of_budget
from ce.audit.sealed.site_knowledge import Seen, SiteKnowledge
from ce.job import EXACT, Job
from ce.pair_tables import TableLayout

#: Jobs among which the budget is shared. More jobs of less budget each tell the same.
JOBS = 4
#: Jobs whose noise is averaged where nothing would refuse them.
UNBOUNDED = 10_000
#: Objects that get a category of their own in a chosen file.
SINGLED_OUT = 150
#: The part of its objects that a site labels anew when it edits its file.
EDITED = 0.25


@dataclass(frozen=True)
class Budget:
    """What the sites' policies allow in all jobs together, and the draw of the noise."""

    job: Job
    epsilon: float | str
    draw: int

    def of_each(self, jobs: int) -> float | str:
        if self.epsilon == EXACT:
            return EXACT
        return share_of_budget(float(self.epsilon), self.job.delta, jobs)


@lru_cache(maxsize=32)
def one_job(labels: PooledLabels, site: str, budget: Budget) -> SiteKnowledge:
    """The job as it is."""
    release = draw_release(labels, budget.job, ("one job", budget.draw), epsilon=budget.of_each(1))
    return _known(labels, site, [Seen(release, _own(labels, site))])


def repeated_jobs(labels: PooledLabels, site: str, budget: Budget, jobs: int = JOBS) -> SiteKnowledge:
    """Several jobs, or attempts, over the same labels: the mean of their tables, which is all that they tell."""
    first, *others = [
        draw_release(labels, budget.job, ("repeated", number, budget.draw), epsilon=budget.of_each(jobs))
        for number in range(jobs)
    ]
    tables = np.mean([first.tables, *(other.tables for other in others)], axis=0)
    mean = Release(labels.layout, tables, first.sd / np.sqrt(jobs), first.weights, first.beta)
    return _known(labels, site, [Seen(mean, _own(labels, site))], first)


def unbounded_jobs(labels: PooledLabels, site: str, budget: Budget) -> SiteKnowledge:
    """So many jobs of a whole budget each that hardly any noise is left: what no ledger would allow."""
    first = draw_release(labels, budget.job, ("one job", budget.draw), epsilon=budget.of_each(1))
    rng = np.random.default_rng([budget.job.seed, budget.draw])
    cells = rng.normal(scale=first.sd / np.sqrt(UNBOUNDED), size=labels.layout.n_cells)
    tables = labels.tables + labels.layout.unpacked(cells).astype(np.float64)
    mean = Release(labels.layout, tables, first.sd / np.sqrt(UNBOUNDED), first.weights, first.beta)
    return _known(labels, site, [Seen(mean, _own(labels, site))], first)


def exact_tables(labels: PooledLabels, site: str, budget: Budget) -> SiteKnowledge:
    """A job without noise, which a policy has to allow."""
    return one_job(labels, site, replace(budget, epsilon=EXACT))


def edited_own_file(labels: PooledLabels, site: str, budget: Budget) -> SiteKnowledge:
    """The attacker enters other labels in each further job, drawn at random: every job asks other questions."""
    each = budget.of_each(JOBS)
    first = draw_release(labels, budget.job, ("edited", 0, budget.draw), epsilon=each)
    seen = [Seen(first, _own(labels, site))]
    rng = np.random.default_rng([budget.job.seed, budget.draw, 1])
    for number in range(1, JOBS):
        codes = labels.codes[site].copy()
        for j in _exclusive(labels, site):
            codes[labels.held[site], j] = rng.integers(0, labels.layout.categories[j], labels.held[site].sum())
        edited = labels.edited(site, codes)
        seen.append(_seen(edited, site, budget, each, ("edited", number, budget.draw), first))
    return _known(labels, site, seen)


def chosen_file(labels: PooledLabels, site: str, budget: Budget) -> SiteKnowledge:
    """In a second job each object, up to a number, has a category of its own in every column of the attacker."""
    each = budget.of_each(2)
    first = draw_release(labels, budget.job, ("chosen", 0, budget.draw), epsilon=each)
    # The columns of the second file are the attacker's to choose, with their categories.
    held = np.flatnonzero(labels.held[site])
    shared = np.sum([labels.held[other][held] for other in labels.sites], axis=0) > 1
    single = held[shared][:SINGLED_OUT]
    mine = _exclusive(labels, site)
    sizes = tuple(len(single) if j in mine else k for j, k in enumerate(labels.layout.categories))
    codes = labels.codes[site].copy()
    for j in mine:
        codes[:, j] = -1
        codes[single, j] = np.arange(len(single))
    layout = TableLayout(labels.layout.names, sizes)
    other = replace(labels, layout=layout, codes={**labels.codes, site: codes})
    second = _seen(other, site, budget, each, ("chosen", 1, budget.draw), first)
    return _known(labels, site, [Seen(first, _own(labels, site)), second])


def two_rosters(labels: PooledLabels, site: str, missing: str, budget: Budget) -> tuple[SiteKnowledge, SiteKnowledge]:
    """A job with and one without a site: both together about the sites that stay, and the difference of their tables,
    which is the part of the missing site alone."""
    each = budget.of_each(2)
    first = draw_release(labels, budget.job, ("rosters", 0, budget.draw), epsilon=each)
    rest = labels.without(missing)
    second = _seen(rest, site, budget, each, ("rosters", 1, budget.draw), first)
    own = _own(labels, site)
    together = _known(labels, site, [Seen(first, own), second])
    staying = tuple(target for target in together.targets if target.holder != missing)
    sd = float(np.hypot(first.sd, second.release.sd))
    part = Release(labels.layout, first.tables - second.release.tables, sd, first.weights, first.beta)
    holders = {name: tuple(h for h in (site, missing) if h in sites) for name, sites in labels.holders.items()}
    alone = replace(_known(labels, site, [Seen(part, own)], first), holders=holders)
    # What the attacker itself entered is in both tables, and not in their difference.
    mine = [j for j in alone.own_columns if j not in alone.exclusive_columns]
    blank = own.copy()
    blank[:, mine] = -1
    gone = tuple(target for target in alone.targets if target.holder == missing)
    alone = replace(alone, seen=[Seen(part, blank)], targets=gone)
    return replace(together, targets=staying), alone


def edited_foreign_file(
    labels: PooledLabels, site: str, holder: str, budget: Budget
) -> tuple[PooledLabels, SiteKnowledge, SiteKnowledge]:
    """Another site labels some objects anew between two jobs: the labels after it, and what the attacker knows from the
    second job, and from the difference of the two."""
    each = budget.of_each(2)
    first = draw_release(labels, budget.job, ("edits", 0, budget.draw), epsilon=each)
    rng = np.random.default_rng([budget.job.seed, 2])
    codes = labels.codes[holder].copy()
    changed = rng.random(codes.shape) < EDITED
    for j, k in enumerate(labels.layout.categories):
        drawn = rng.integers(0, k, len(codes))
        codes[:, j] = np.where(changed[:, j] & (codes[:, j] >= 0), drawn, codes[:, j])
    after = labels.edited(holder, codes)
    second = draw_release(after, budget.job, ("edits", 1, budget.draw), epsilon=each)
    own = _own(labels, site)
    sd = float(np.hypot(first.sd, second.sd))
    part = Release(labels.layout, second.tables - first.tables, sd, second.weights, second.beta)
    # Winners are those of the first job: they are not opened again, except of the objects whose rows have changed.
    known = _known(labels, site, [Seen(second, own), Seen(first, own)], first)
    known = replace(known, targets=tuple(target for target in known.targets if target.holder == holder))
    return after, known, replace(known, seen=[Seen(part, own)])


def _known(labels: PooledLabels, site: str, seen: list[Seen], first: Release | None = None) -> SiteKnowledge:
    """`first`: the release of the job that gave the winners, if it is not the first one seen."""
    release = seen[0].release if first is None else first
    return SiteKnowledge.of(labels, site, seen, labels.winners(release.weights, release.beta))


def _seen(
    labels: PooledLabels, site: str, budget: Budget, epsilon: float | str, draw: tuple[object, ...], first: Release
) -> Seen:
    """A further job. Its model tells nothing more than its tables."""
    tables, sd = noisy_tables(labels, budget.job, epsilon, draw)
    return Seen(Release(labels.layout, tables, sd, first.weights, first.beta), _own(labels, site))


def _own(labels: PooledLabels, site: str) -> Codes:
    return labels.codes[site][labels.held[site]]


def _exclusive(labels: PooledLabels, site: str) -> list[int]:
    return [j for j, name in enumerate(labels.layout.names) if labels.holders[name] == (site,)]
