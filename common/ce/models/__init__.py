"""Estimators: BCE, BC3E, Mixture, Pairs. The first three are their four steps (`ce.steps`), run by the engine on one
site; Pairs counts pairs of labels, and fits the tables of counts (`ce.pair_tables`).

Names are loaded when they are first used: the steps of a job need no estimator.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ce.models.bc3e import BC3E
    from ce.models.bce import BCE
    from ce.models.mixture import Mixture
    from ce.models.pairs import Pairs
    from ce.models.registry import estimator_of

__all__ = ["BC3E", "BCE", "Mixture", "Pairs", "estimator_of"]

_MODULES = {
    "BC3E": "ce.models.bc3e",
    "BCE": "ce.models.bce",
    "Mixture": "ce.models.mixture",
    "Pairs": "ce.models.pairs",
    "estimator_of": "ce.models.registry",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(_MODULES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
