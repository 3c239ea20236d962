"""The model that a job asks for, as the engine runs it; and estimators by the name of their model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ce.declarations.declaration import ModelDeclaration
from ce.declarations.registry import find_model
from ce.errors import BrokenModel, ConfigError
from ce.job import Job
from ce.labels import LabelTable
from ce.models.classes import classes_of
from ce.protocol.topology.site_view import Categories
from ce.steps.model import Model


def model_of(job: Job, tables: Sequence[LabelTable]) -> tuple[Model, Categories]:
    """The model, and the names of its classes as the job gives them or the classifiers of `tables` use them."""
    declaration = find_model(job.model)
    if not declaration.takes_classes:
        return _steps(declaration, job, job.clusters if isinstance(job.clusters, int) else 0), ()
    classes = classes_of(_given_classes(job), tables)
    return _steps(declaration, job, len(classes)), classes


def model_without_labels(job: Job) -> tuple[Model, Categories]:
    """The same for a process that holds no labels: the job must name the classes."""
    declaration = find_model(job.model)
    if not declaration.takes_classes:
        return model_of(job, [])
    classes = _given_classes(job)
    if classes is None:
        raise ConfigError("classes is missing: a job over several organisations names its classes, or their number")
    return _steps(declaration, job, len(classes)), classes


def estimator_of(model: str) -> Any:
    """The estimator class of a model, built in or of an installed package, by the model's name."""
    return find_model(model).load_estimator()


def _given_classes(job: Job) -> Categories | None:
    return tuple(range(job.classes)) if isinstance(job.classes, int) else job.classes


def _steps(declaration: ModelDeclaration, job: Job, k: int) -> Model:
    if declaration.sealed:
        raise ConfigError(f"model {declaration.name} runs in sealed jobs only: it has no steps of its own")
    model = declaration.load_steps()(job, k)
    if not isinstance(model, Model):
        raise BrokenModel(f"model {declaration.name}: {declaration.steps} returns no ce.steps.model.Model")
    if model.uses_votes != declaration.takes_classes:
        raise BrokenModel(
            f"model {declaration.name}: its outcome is {declaration.outcome}, but uses_votes of its steps is "
            f"{model.uses_votes}; a model of classes uses votes, and no other does"
        )
    return model
