"""The model that a job asks for."""

from __future__ import annotations

from collections.abc import Sequence

from ce.errors import ConfigError
from ce.job import Job
from ce.labels import LabelTable
from ce.models.bc3e import BC3E
from ce.models.bce import BCE
from ce.models.mixture import Mixture
from ce.protocol.topology.site_view import Categories
from ce.steps.model import Model


def model_of(job: Job, tables: Sequence[LabelTable]) -> tuple[Model, Categories]:
    """The model, and the names of the classes (bc3e) as the job gives them or the classifiers of `tables` use them."""
    if job.model == "bce":
        return BCE(
            job.clusters or 0,
            n_init=job.restarts,
            max_iter=_iterations(job),
            tol=job.tolerance,
            smoothing=job.smoothing,
            schedule="joint" if job.schedule == "joint" else "newton",
            local_loops=job.local_loops,
        ).steps(), ()
    if job.model == "mixture":
        return Mixture(
            job.clusters or 0,
            n_init=job.restarts,
            max_iter=_iterations(job),
            tol=job.tolerance,
            smoothing=job.smoothing,
        ).steps(), ()
    estimator = _bc3e(job)
    classes = estimator.resolve_classes(tables)
    return estimator.steps(len(classes)), classes


def model_without_labels(job: Job) -> tuple[Model, Categories]:
    """The same for somebody who holds no labels: the job must say what the classes are."""
    if job.model != "bc3e":
        return model_of(job, [])
    if job.classes is None:
        raise ConfigError("classes is missing: a job over several organisations names its classes, or their number")
    classes: Categories = tuple(range(job.classes)) if isinstance(job.classes, int) else job.classes
    return _bc3e(job).steps(len(classes)), classes


def _bc3e(job: Job) -> BC3E:
    return BC3E(
        None if isinstance(job.classes, int) else job.classes,
        job.classes if isinstance(job.classes, int) else None,
        posterior="joint" if job.posterior == "joint" else "factorised",
        start="diffused" if job.start == "diffused" else "votes",
        max_iter=_iterations(job),
        tol=job.tolerance,
        smoothing=job.smoothing,
        local_loops=job.local_loops,
    )


def _iterations(job: Job) -> int:
    assert job.max_iterations is not None  # a job fills it in
    return job.max_iterations
