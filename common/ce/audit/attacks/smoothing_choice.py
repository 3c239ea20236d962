"""Smoothing: the operator picks the largest smoothing that sites allow, and as many starts as there are labels.

Smoothing s adds s to every count of a column's parameters. With s far above the counts all parameters are nearly equal,
and sums at known weights become linear in the labels (`ce.audit.attacks.indicator_search`). Each start then has k - 1
dimensions, so that enough starts show every label. The ceilings `max_smoothing` and `max_restarts` limit it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ce.audit.adversary_views import Question
from ce.audit.attacks.alternation import labels_of
from ce.job import Job
from ce.policy import Policy
from ce.steps.model import Model

#: More does not help: sums have 53 bits.
_LARGEST = 1e4
#: Parameters are smoothed from the second exchange on; later ones tell the same.
_ITERATIONS = 5


def smoothed_job(job: Job, model: Model, policy: Policy, questions: Iterable[Question]) -> Job:
    """The job that an operator would choose whose sites allow what `policy` allows."""
    labels = labels_of(questions)
    starts = -(-(sum(labels) - len(labels)) // max(model.k - 1, 1)) + 2
    restarts = job.restarts if model.uses_votes else max(job.restarts, min(starts, policy.max_restarts))
    return replace(
        job,
        smoothing=max(job.smoothing, min(policy.max_smoothing, _LARGEST)),
        restarts=restarts,
        max_iterations=_ITERATIONS,
    )
