"""What every estimator has in common: scikit-learn's conventions, without scikit-learn.

Parameters are stored untouched by `__init__`; `fit` does the work; results end in an underscore.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ce.declarations.declaration import ModelDeclaration
from ce.errors import InputError
from ce.labels import LabelTable
from ce.models.convergence import ended_too_early, warn_of_early_end
from ce.protocol.engine.aggregator import Progress
from ce.protocol.engine.starting_parameters import Starts
from ce.protocol.local_run import Run, run
from ce.protocol.topology.site_view import Categories
from ce.ring import Reals
from ce.steps.model import Model, last_stage

#: The one site of an estimator.
HERE = "here"


class Estimator:
    """Base class of the consensus estimators.

    A subclass calls `_run_here` in `fit`, with its steps and with starts, which `_seed` may seed.
    """

    #: What its model declares, which says among other things whether a fit is meant to stop at its default `max_iter`.
    declaration: ClassVar[ModelDeclaration | None] = None

    random_state: Any
    n_threads: int | None
    progress: bool | Callable[[Any], None]

    labels_: NDArray[Any]
    memberships_: Reals
    lower_bound_: float
    bound_path_: Reals
    n_iter_: int
    converged_: bool

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        """The parameters of this estimator, by name."""
        return {name: getattr(self, name) for name in self._parameter_names()}

    def set_params(self, **params: Any) -> Self:
        """Change parameters; an unknown name is an error."""
        known = self._parameter_names()
        for name, value in params.items():
            if name not in known:
                raise ValueError(f"{type(self).__name__} has no parameter {name!r}; it has {', '.join(known)}")
            setattr(self, name, value)
        return self

    @classmethod
    def _parameter_names(cls) -> list[str]:
        names = inspect.signature(cls.__init__).parameters
        return [name for name in names if name != "self"]

    def __repr__(self) -> str:
        defaults = inspect.signature(type(self).__init__).parameters
        changed = [
            f"{name}={value!r}"
            for name, value in self.get_params().items()
            if not (value is defaults[name].default or repr(value) == repr(defaults[name].default))
        ]
        return f"{type(self).__name__}({', '.join(changed)})"

    def _run_here(
        self,
        model: Model,
        table: LabelTable,
        starts: Starts,
        *,
        classes: Categories = (),
        given: Mapping[str, Reals] | None = None,
    ) -> Run:
        """Run the engine on one site, set what all models report, and warn if `max_iter` ended the fit."""
        result = run(
            model,
            {HERE: table},
            {HERE: starts},
            classes=classes,
            given=given,
            threads=checked_threads(self.n_threads),
            on_progress=self._reporter(),
        )
        path = result.outcome.paths[result.outcome.winner]
        self.memberships_ = result.sites[HERE].memberships()
        self.bound_path_ = np.array(path.bounds)
        self.lower_bound_ = path.bounds[-1]
        self.n_iter_ = result.outcome.iterations
        self.converged_ = path.converged
        last = last_stage(model)
        if ended_too_early(self.declaration, converged=path.converged, max_iter=last.max_iter, tol=last.tol):
            warn_of_early_end(last.max_iter, stacklevel=3)
        return result

    def _reporter(self) -> Callable[[Progress], None] | None:
        if callable(self.progress):
            return self.progress
        return _print_progress if self.progress else None

    def _seed(self) -> int:
        """An integer seed from `random_state`: an int, a numpy generator, or None for a fresh one."""
        state = self.random_state
        if state is None:
            return int(np.random.SeedSequence().generate_state(1, np.uint64)[0])
        if isinstance(state, (int, np.integer)) and not isinstance(state, bool):
            return int(state)
        if isinstance(state, np.random.Generator):
            return int(state.integers(2**63))
        if isinstance(state, np.random.RandomState):
            return int(state.randint(2**31))
        raise InputError("random_state is None, an integer, or a numpy random generator")


def positive(name: str, value: Any, *, smallest: int = 1) -> int:
    """A whole number of at least `smallest`, or an error that names the parameter."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < smallest:
        raise InputError(f"{name} is a whole number of at least {smallest}")
    return int(value)


def not_negative(name: str, value: Any) -> float:
    """A finite number of at least zero, or an error that names the parameter."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise InputError(f"{name} is a number of at least 0")
    if not 0 <= value < np.inf:
        raise InputError(f"{name} is a number of at least 0")
    return float(value)


def one_of(name: str, value: Any, *choices: str, also: str = "") -> Any:
    """One of the choices, or an error that lists them, and what else would do."""
    if not isinstance(value, str) or value not in choices:
        raise InputError(f"{name} is one of {', '.join(map(repr, choices))}{also and f', or {also}'}")
    return value


def checked_threads(n_threads: int | None) -> int:
    return 1 if n_threads is None else positive("n_threads", n_threads)


def _print_progress(progress: Progress) -> None:
    bound = f"bound {progress.bound:.6f}, " if progress.has_bound else ""
    print(
        f"iteration {progress.iteration}: {bound}{progress.running} starts running",
        file=sys.stderr,
        flush=True,
    )
