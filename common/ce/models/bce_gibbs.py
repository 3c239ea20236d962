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
from ce.labels import LabelTable
from ce.models.base import checked_threads, positive
from ce.models.convergence import warning_category
from ce.ring import Reals
from ce.samplers.bce_chain import BCEChain
from ce.samplers.chains import Estimate, SamplerProgress, Schedule, run_chains
from ce.samplers.hard_labels import HardLabels

#: Chains whose R-hat is below this agree.
AGREEMENT = 1.1
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
        return self.estimate.r_hat < AGREEMENT


def sample_bce(parameters: _Parameters, table: LabelTable, alpha: float, omega: float, chains: int) -> SampledBCE:
    k = positive("n_clusters", parameters.n_clusters)
    labels = HardLabels.of(table)
    sweeps = positive("max_iter", parameters.max_iter)
    burn_in = sweeps // 2 if parameters.burn_in is None else positive("burn_in", parameters.burn_in, smallest=0)
    thin = positive("thin", parameters.thin)
    schedule = Schedule(sweeps, min(burn_in, sweeps - thin), thin)
    streams = np.random.SeedSequence(parameters._seed()).spawn(chains)
    begun = [BCEChain(labels, k, alpha, omega, np.random.default_rng(stream)) for stream in streams]
    estimate = run_chains(begun, schedule, checked_threads(parameters.n_threads), _reporter(parameters.progress))
    gamma = alpha + estimate.objects
    tables = []
    for begin, width in zip(labels.begins.tolist(), labels.widths.tolist(), strict=True):
        counts = omega + estimate.categories[begin : begin + width].T
        tables.append(counts / counts.sum(axis=1, keepdims=True))
    memberships = gamma / gamma.sum(axis=1, keepdims=True)
    found = hard_labels(memberships, labels.counts == 0)
    return SampledBCE(estimate, found, memberships, gamma, tables)


def warn_of_chains(estimate: Estimate, stacklevel: int) -> None:
    """Warn, in the line of code so many levels above, where chains do not agree, or the run was interrupted."""
    left_out = int((~estimate.used).sum())
    also = f"; {left_out} of {len(estimate.used)} chains sit in a less likely mode, and are left out" * (left_out > 0)
    if estimate.interrupted:
        text = f"interrupted after {estimate.sweeps:,} sweeps: the fit has the draws so far{also}"
    elif estimate.r_hat < AGREEMENT:
        return
    elif math.isnan(estimate.r_hat):
        text = f"too few draws to say whether the chains agree: raise max_iter, or lower thin or burn_in{also}"
    else:
        text = f"the chains do not agree yet (R-hat {estimate.r_hat:.2f}): raise max_iter{also}"
    warnings.warn(text, warning_category(), stacklevel=stacklevel + 1)


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
