"""The operator's result of a sealed job: what follows from the noisy tables, never a number of single objects.

Sizes of clusters are not in it: nobody counts them, and the sites see their own. Weights are the model's, from tables
with noise.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ce.job import Job
from ce.protocol.topology.exclusions import JobExclusions
from ce_coordinator.core.modes.sealed_rounds import SealedRounds
from ce_coordinator.core.report import job_facts


def sealed_report(job: Job, rounds: SealedRounds, exclusions: JobExclusions, left_behind: Sequence[str]) -> bytes:
    """A JSON object."""
    facts = job_facts(job, rounds.topology, exclusions, rounds.exchanges, rounds.bytes, left_behind)
    return json.dumps(facts | _release(job, rounds) | _fit(rounds)).encode()


def _release(job: Job, rounds: SealedRounds) -> dict[str, Any]:
    return {
        "epsilon": job.epsilon,
        "delta": job.delta,
        "unit": job.unit,
        "collusion": job.collusion,
        "noise_sd": rounds.terms.sd,
        "clusters": rounds.n_clusters,
        "warnings": list(rounds.warnings),
        "unlabelled": rounds.unlabelled,
        "sizes": None,
        "about_sizes": "sizes of clusters are not counted in a sealed job: each site has the labels of its objects",
    }


def _fit(rounds: SealedRounds) -> dict[str, Any]:
    """Of the fit; nothing where the sites have kept the model of an earlier attempt, before a restart."""
    fit = rounds.fit
    if fit is None:
        return {}
    return {
        "weights": [float(weight) for weight in fit.weights],
        "eigenvalues": [float(value) for value in fit.eigenvalues],
        "converged": bool(fit.converged),
    }
