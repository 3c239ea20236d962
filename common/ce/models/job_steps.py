"""The steps of the built-in models for a job, whose values are checked already. No estimator is imported for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ce.steps.bc3e import BC3ESteps, DiffusedBC3E
from ce.steps.bce import ANNEAL_ALPHA, ANNEAL_ITER, BCESteps
from ce.steps.mixture import MixtureSteps
from ce.steps.model import Model

if TYPE_CHECKING:
    from ce.job import Job


def bce_steps(job: Job, k: int) -> Model:
    return BCESteps(
        k,
        job.restarts,
        max_iter=job.iterations,
        tol=job.tolerance,
        smoothing=job.smoothing,
        alpha=np.array(ANNEAL_ALPHA),
        learn_alpha=True,
        hold_iter=ANNEAL_ITER,
        schedule="joint" if job.schedule == "joint" else "newton",
        local_loops=job.local_loops,
    )


def mixture_steps(job: Job, k: int) -> Model:
    return MixtureSteps(k, job.restarts, max_iter=job.iterations, tol=job.tolerance, smoothing=job.smoothing)


def bc3e_steps(job: Job, k: int) -> Model:
    model = BC3ESteps(
        k,
        max_iter=job.iterations,
        tol=job.tolerance,
        smoothing=job.smoothing,
        posterior="joint" if job.posterior == "joint" else "factorised",
        sigma2=None,
        delta2=None,
        local_loops=job.local_loops,
    )
    return DiffusedBC3E(model) if job.start == "diffused" else model
