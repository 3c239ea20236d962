"""ce: a consensus over private labels.

table = ce.LabelTable.from_csv("labels.csv")
ce.models.BCE(n_clusters=5, random_state=0).fit(table).labels_
ce.simulate(ce.Job(clusters=5), {"north": table_of_north, "south": table_of_south})
"""

from ce import errors, metrics, models
from ce.job import Job
from ce.labels import LabelTable
from ce.simulation import Simulation, simulate

__version__ = "0.1.0"

__all__ = ["Job", "LabelTable", "Simulation", "__version__", "errors", "metrics", "models", "simulate"]
