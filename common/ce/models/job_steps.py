"""The steps of the built-in models for a job, whose values are checked already. No estimator is imported for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from ce.ring import Precision
from ce.steps.bc3e import BC3ESteps, DiffusedBC3E
from ce.steps.bce import ANNEAL_ALPHA, ANNEAL_ITER, BCESteps
from ce.steps.mixture import MixtureSteps
from ce.steps.model import Model

if TYPE_CHECKING:
    from ce.job import Job


def precision_of(job: Job) -> Precision:
    """For steps, whose types name the choices."""
    return "single" if job.precision == "single" else "double"


def bce_steps(job: Job, k: int) -> Model:
    return BCESteps(
        k,
        job.restarts,
        max_iter=job.max_iterations,
        tol=job.tolerance,
        smoothing=job.smoothing,
        alpha=np.array(ANNEAL_ALPHA),
        learn_alpha=True,
        hold_iter=ANNEAL_ITER,
        schedule="joint" if job.schedule == "joint" else "newton",
        local_loops=job.local_loops,
        halving=job.halving,
        precision=precision_of(job),
    )


def mixture_steps(job: Job, k: int) -> Model:
    return MixtureSteps(
        k,
        job.restarts,
        max_iter=job.max_iterations,
        tol=job.tolerance,
        smoothing=job.smoothing,
        halving=job.halving is not False,
        precision=precision_of(job),
    )


def bc3e_steps(job: Job, k: int) -> Model:
    model = BC3ESteps(
        k,
        max_iter=job.max_iterations,
        tol=job.tolerance,
        smoothing=job.smoothing,
        posterior="joint" if job.posterior == "joint" else "factorised",
        sigma2=None,
        delta2=None,
        local_loops=job.local_loops,
        precision=precision_of(job),
    )
    return DiffusedBC3E(model) if job.start == "diffused" else model
