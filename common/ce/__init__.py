"""ce: a consensus over private labels.

table = ce.LabelTable.from_csv("labels.csv")
ce.models.BCE(n_clusters=5, random_state=0).fit(table).labels_
ce.simulate(ce.Job(clusters=5), {"north": table_of_north, "south": table_of_south})

Names are loaded when they are first used: most commands of the daemons, and every completion of a shell, need none of
the numerical libraries.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from ce import errors

if TYPE_CHECKING:
    from ce import metrics, models
    from ce.job import Job
    from ce.labels import LabelTable
    from ce.simulation import Simulation, simulate

__version__ = "0.1.0"

__all__ = ["Job", "LabelTable", "Simulation", "__version__", "errors", "metrics", "models", "simulate"]

_MODULES = {"Job": "job", "LabelTable": "labels", "Simulation": "simulation", "simulate": "simulation"}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _MODULES:
        value = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        globals()[name] = value
        return value
    return import_module(f"{__name__}.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
