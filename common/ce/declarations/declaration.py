"""A model in one place: its name, its steps and estimator, the job options it reads, and what is reported of it.

    DECLARATION = ModelDeclaration(
        name="my_model",
        title="what it does, in a line of a help text",
        steps="my_package.steps:steps_of_job",      # (job, k) -> ce.steps.model.Model
        estimator="my_package.estimator:MyModel",   # a class with fit(...)
        parameters=("weights",),
    )

A package offers it as an entry point of the group `ce.models`; docs/adding-a-model.md shows a complete one. What the
engine, the rules and the audit must know of the mathematics (phases, linear, votes) are attributes of the steps.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Literal

from ce.declarations.capacity_facts import CapacityFacts
from ce.errors import BrokenModel

#: Keys of a job that a model may read, or ignore. The other keys are read by the engine, whatever the model.
JOB_OPTIONS = (
    "restarts",
    "max_iterations",
    "tolerance",
    "smoothing",
    "schedule",
    "local_loops",
    "posterior",
    "start",
    "halving",
    "precision",
)
_NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
_REFERENCE = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")


@dataclass(frozen=True, kw_only=True)
class ModelDeclaration:
    """All that ce knows of a model before it computes."""

    #: As jobs, policies and commands spell it: small letters, digits and "_", at most 40.
    name: str
    #: What it is, in a few words of a help text.
    title: str
    #: "module:function", a function of (job, k) that returns the `ce.steps.model.Model` of a job; "" if `sealed`.
    steps: str
    #: "module:class", its estimator.
    estimator: str
    #: What a job of this model names: a number of clusters, or classes, on which classifiers vote.
    outcome: Literal["clusters", "classes"] = "clusters"
    #: Which of JOB_OPTIONS its steps read. Without "restarts" it has one start.
    options: tuple[str, ...] = ("restarts", "max_iterations", "tolerance", "smoothing")
    #: How many iterations a job has that does not say.
    max_iterations: int = 300
    #: The same of starts, of passes per iteration over columns that one site holds, and of pseudo-counts in beta.
    restarts: int = 5
    local_loops: int = 1
    smoothing: float = 0.01
    #: Whether `max_iterations` is where the model is meant to stop: reaching it is then worth no warning.
    meant_to_stop: bool = False
    #: The globals that are its parameters, as results and the operator's report name them ...
    parameters: tuple[str, ...] = ()
    #: ... and those among them that are one number. The others are one number for each cluster.
    scalars: tuple[str, ...] = ()
    #: Starts whose rounds nobody has analysed for what totals give away: a site refuses them in masked jobs.
    unanalysed_starts: tuple[str, ...] = ()
    #: Whether its jobs run in the mode "sealed", and in no other: it has no steps.
    sealed: bool = False
    #: Whether it can find the number of clusters: a job may say clusters = "auto".
    counts_clusters: bool = False
    #: The most clusters that it can have; None: as many as a job may name.
    most_clusters: int | None = None
    #: For `ce capacity`; None: it cannot say what a job of this model takes.
    capacity: CapacityFacts | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise BrokenModel("a model's name has small letters, digits and '_', begins with a letter, and at most 40")
        if self.sealed and self.steps:
            raise BrokenModel(f"model {self.name}: a sealed model has no steps")
        for key in ("estimator",) if self.sealed else ("steps", "estimator"):
            if not _REFERENCE.fullmatch(getattr(self, key)):
                raise BrokenModel(f"model {self.name}: {key} is a text like 'package.module:name'")
        if self.outcome not in ("clusters", "classes"):
            raise BrokenModel(f"model {self.name}: outcome is clusters or classes")
        unknown = sorted(set(self.options) - set(JOB_OPTIONS))
        if unknown:
            raise BrokenModel(
                f"model {self.name}: options are among {', '.join(JOB_OPTIONS)}; got {', '.join(map(str, unknown))}"
            )
        if set(self.scalars) - set(self.parameters):
            raise BrokenModel(f"model {self.name}: scalars are among its parameters")

    @property
    def takes_classes(self) -> bool:
        return self.outcome == "classes"

    def load_steps(self) -> Any:
        """The function of (job, k) that makes the steps."""
        return self._load(self.steps)

    def load_estimator(self) -> Any:
        """The estimator class."""
        return self._load(self.estimator)

    def _load(self, reference: str) -> Any:
        module, _, name = reference.partition(":")
        try:
            return getattr(import_module(module), name)
        except Exception as error:  # a module of another package may raise anything when it is imported
            raise BrokenModel(
                f"model {self.name}: {reference} cannot be loaded ({type(error).__name__}: {error}); install its "
                "package again"
            ) from error
