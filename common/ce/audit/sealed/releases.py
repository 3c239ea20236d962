"""Releases: what a sealed job opens to all its sites, drawn as a job draws it.

Attacks are judged over several draws of the noise and over several jobs. The tables of a job are the pooled tables plus
discrete Gaussian noise of every site, and the model follows from them; so these are drawn here without the protocol,
and `tests/audit/test_sealed_attacks.py` compares them with recorded jobs.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import numpy as np

from ce.audit.sealed.pooled_labels import PooledLabels
from ce.job import EXACT, Job
from ce.pair_tables import SEALED_TOLERANCE, TableLayout, fit_pairs
from ce.privacy.discrete_gaussian import DiscreteGaussian
from ce.privacy.ring_words import Stream
from ce.privacy.zcdp import Noise, epsilon_of, noise_of, rho_of
from ce.ring import Reals


@dataclass(frozen=True, eq=False)
class Release:
    """The opened tables of one job, and the model that everybody fits to them."""

    layout: TableLayout
    tables: Reals = field(repr=False)  # (D, D)
    sd: float  # of the noise in each cell
    weights: Reals = field(repr=False)  # (k,)
    beta: Reals = field(repr=False)  # (D, k)


def noise_for(labels: PooledLabels, job: Job, epsilon: float) -> Noise:
    """The noise of this job with another epsilon."""
    present = {column: sites for column, sites in labels.holders.items() if sites}
    unit: Any = job.unit  # one of `Unit`, as the job has checked
    return noise_of(present, labels.sites, epsilon=epsilon, delta=job.delta, unit=unit, collusion=job.collusion)


def share_of_budget(epsilon: float, delta: float, jobs: int) -> float:
    """The epsilon of each of several jobs that together spend what one job of this epsilon spends."""
    return epsilon_of(rho_of(epsilon, delta) / jobs, delta)


def noisy_tables(labels: PooledLabels, job: Job, epsilon: float | str, draw: Sequence[object]) -> tuple[Reals, float]:
    """The tables that a job with this epsilon opens, and the deviation of their noise. `draw` names the noise: equal
    names give equal noise."""
    if epsilon == EXACT:
        return labels.tables, 0.0
    layout, sites = labels.layout, labels.sites
    noise = noise_for(labels, job, float(epsilon))
    key = hashlib.sha256(repr((job.seed, *draw)).encode()).digest()
    cells = DiscreteGaussian(noise.site_variance).sample(Stream(key), layout.n_cells * len(sites))
    added = cells.reshape(len(sites), layout.n_cells).sum(axis=0).astype(np.float64)
    return labels.tables + layout.unpacked(added).astype(np.float64), noise.opened_sd


@lru_cache(maxsize=8)
def draw_release(
    labels: PooledLabels, job: Job, draw: tuple[object, ...], *, epsilon: float | str | None = None
) -> Release:
    """A job over these labels, with another epsilon if one is given."""
    tables, sd = noisy_tables(labels, job, job.epsilon if epsilon is None else epsilon, draw)
    assert job.clusters is not None
    fit = fit_pairs(tables, labels.layout, job.clusters, sd=sd, tolerance=SEALED_TOLERANCE)
    return Release(labels.layout, tables, sd, fit.weights, fit.beta)
