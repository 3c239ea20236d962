"""When a fit that stopped at its limit of iterations is worth a warning, and the warning itself."""

from __future__ import annotations

import sys
import warnings
from functools import cache

from ce.declarations.declaration import ModelDeclaration
from ce.errors import ConvergenceWarning


def ended_too_early(declaration: ModelDeclaration | None, *, converged: bool, max_iter: int, tol: float) -> bool:
    """Whether a fit stopped at max_iter although it was asked to converge.

    tol = 0 asks for max_iter iterations, max_iter = 0 for none. A model that is meant to stop at its default number of
    iterations (`ModelDeclaration.meant_to_stop`) has converged as far as it should when it does.
    """
    if converged or tol == 0 or max_iter == 0:
        return False
    return declaration is None or not declaration.meant_to_stop or max_iter != declaration.max_iterations


def warn_of_early_end(max_iter: int, stacklevel: int) -> None:
    """Warn in the line of code so many levels above this function."""
    warnings.warn(
        f"the fit stopped after max_iter = {max_iter} iterations before it had converged: raise max_iter, or tol",
        warning_category(),
        stacklevel=stacklevel + 1,
    )


def warning_category() -> type[ConvergenceWarning]:
    """Our warning; where scikit-learn is loaded, one that filters for scikit-learn's warning catch as well."""
    loaded = sys.modules.get("sklearn.exceptions")
    return ConvergenceWarning if loaded is None else _both(loaded.ConvergenceWarning)


@cache
def _both(theirs: type[Warning]) -> type[ConvergenceWarning]:
    return type(
        "ConvergenceWarning",
        (ConvergenceWarning, theirs),
        {"__doc__": ConvergenceWarning.__doc__, "__module__": ConvergenceWarning.__module__},
    )
