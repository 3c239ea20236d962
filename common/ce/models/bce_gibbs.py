"""BCE by collapsed Gibbs sampling: what its estimator makes of the chains."""

from __future__ import annotations

import math
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ce.consensus_file import hard_labels
from ce.errors import InputError
from ce.labels import LabelTable
from ce.models.base import checked_threads, positive
from ce.models.convergence import warning_category
from ce.ring import Reals
from ce.samplers.bce_chain import BCEChain
from ce.samplers.chains import Estimate, SamplerProgress, Schedule, run_chains
from ce.samplers.hard_labels import HardLabels

#: Chains whose R-hat is below this agree.
AGREEMENT = 1.1
#: Some arrays are (k, k).
MOST_CLUSTERS = 1000
#: Pseudo-counts beyond these are lost in rounding.
LEAST_COUNT = 1e-6
#: Seconds between two lines of progress.
LINE_S = 1.0


class _Parameters(Protocol):
    """Those of the estimator."""

    n_clusters: int
    max_iter: int
    burn_in: int | None
    thin: int
    n_threads: int | None
    progress: Any

    def _seed(self) -> int: ...


@dataclass(frozen=True)
class SampledBCE:
    """The posterior's means."""

    estimate: Estimate = field(repr=False)
    labels: NDArray[np.intp] = field(repr=False)  # -1 without a label
    memberships: Reals = field(repr=False)
    gamma: Reals = field(repr=False)
    beta: list[Reals] = field(repr=False)

    @property
    def converged(self) -> bool:
        """Whether all chains agree."""
        return bool(self.estimate.used.all()) and self.estimate.r_hat < AGREEMENT


def sample_bce(parameters: _Parameters, table: LabelTable, alpha: float, omega: float, chains: int) -> SampledBCE:
    """Raises InputError for values that a sampler cannot use."""
    k = positive("n_clusters", parameters.n_clusters)
    if k > MOST_CLUSTERS:
        raise InputError(
            f'inference="gibbs" takes at most {MOST_CLUSTERS:,} clusters; inference="vb" has no such limit'
        )
    for name, value in (("alpha", alpha), ("omega", omega)):
        if not LEAST_COUNT <= value <= 1 / LEAST_COUNT:
            raise InputError(f'inference="gibbs" takes an {name} between {LEAST_COUNT:g} and {1 / LEAST_COUNT:g}')
    labels = HardLabels.of(table)
    streams = np.random.SeedSequence(parameters._seed() % 2**128).spawn(chains)
    schedule = _schedule(parameters)
    begun = [BCEChain(labels, k, alpha, omega, np.random.default_rng(stream)) for stream in streams]
    estimate = run_chains(begun, schedule, checked_threads(parameters.n_threads), _reporter(parameters.progress))
    gamma = np.full((table.n_objects, k), alpha)
    gamma[labels.labelled] += estimate.objects
    tables = []
    for begin, width in zip(labels.begins.tolist(), labels.widths.tolist(), strict=True):
        counts = omega + estimate.categories[begin : begin + width].T
        tables.append(counts / counts.sum(axis=1, keepdims=True) if width else counts)
    memberships = gamma / gamma.sum(axis=1, keepdims=True)
    found = hard_labels(memberships, ~labels.labelled)
    return SampledBCE(estimate, found, memberships, gamma, tables)


def _schedule(parameters: _Parameters) -> Schedule:
    sweeps = positive("max_iter", parameters.max_iter)
    thin = min(positive("thin", parameters.thin), sweeps)
    if parameters.burn_in is None:
        return Schedule(sweeps, min(sweeps // 2, sweeps - thin), thin)
    burn_in = positive("burn_in", parameters.burn_in, smallest=0)
    if burn_in + thin > sweeps:
        raise InputError(f"burn_in = {burn_in:,} and thin = {thin:,} leave no draw of max_iter = {sweeps:,} sweeps")
    return Schedule(sweeps, burn_in, thin)


def warn_of_chains(estimate: Estimate, stacklevel: int) -> None:
    """Warn, in the line of code so many levels above, where chains do not agree, or the run was interrupted."""
    told = []
    if estimate.interrupted:
        told.append(f"interrupted after {estimate.sweeps:,} sweeps: the fit has the draws so far")
    if left_out := int((~estimate.used).sum()):
        of = len(estimate.used)
        told.append(f"{left_out} of {of} chains sit in a less likely mode, and are left out: raise max_iter")
    if math.isnan(estimate.r_hat):
        told.append("too few draws to say whether the chains agree: raise max_iter")
    elif estimate.r_hat >= AGREEMENT:
        told.append(f"the chains do not agree yet (R-hat {estimate.r_hat:.2f}): raise max_iter")
    if told:
        warnings.warn("; ".join(told), warning_category(), stacklevel=stacklevel + 1)


def _reporter(progress: Any) -> Callable[[SamplerProgress], None] | None:
    if callable(progress):
        found: Callable[[SamplerProgress], None] = progress
        return found
    return _Lines() if progress else None


class _Lines:
    """A line on standard error, at most once a second."""

    def __init__(self) -> None:
        self._last = time.monotonic()

    def __call__(self, where: SamplerProgress) -> None:
        if time.monotonic() - self._last < LINE_S and where.sweep < where.sweeps:
            return
        self._last = time.monotonic()
        print(
            f"sweep {where.sweep} of {where.sweeps}: {where.chains} chains, log joint {where.log_joint:.6f}",
            file=sys.stderr,
            flush=True,
        )
