"""The estimator: parameters untouched in `__init__`, the work in `fit`, results with an underscore."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ce.labels import LabelTable
from ce.models.base import HERE, Estimator, not_negative, positive
from ce.protocol.engine.aggregator import Progress
from ce.protocol.engine.starting_parameters import SeededStarts
from ce.ring import Reals
from hard_mixture.steps import HardMixtureSteps


class HardMixture(Estimator):
    """Mixture model with one cluster per object. Parameters are those of `ce.models.Mixture`."""

    weights_: Reals
    beta_: list[Reals]

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        n_init: int = 5,
        max_iter: int = 300,
        tol: float = 1e-6,
        smoothing: float = 0.01,
        random_state: Any = None,
        n_threads: int | None = None,
        progress: bool | Callable[[Progress], None] = False,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.smoothing = smoothing
        self.random_state = random_state
        self.n_threads = n_threads
        self.progress = progress

    def fit(self, labels: Any, y: Any = None) -> Self:
        """Find the consensus of `labels`: (n, m) array or table, rows are objects, columns are clusterings."""
        table = LabelTable.from_arrays(labels)
        steps = HardMixtureSteps(
            positive("n_clusters", self.n_clusters),
            positive("n_init", self.n_init),
            max_iter=positive("max_iter", self.max_iter, smallest=0),
            tol=not_negative("tol", self.tol),
            smoothing=not_negative("smoothing", self.smoothing),
        )
        # Sets memberships_, lower_bound_, bound_path_, n_iter_ and converged_.
        result = self._run_here(steps, table, SeededStarts.of(self._seed(), [table]))
        self.labels_ = np.where(result.sites[HERE].unlabelled, -1, self.memberships_.argmax(axis=1))
        self.weights_ = result.outcome.globals["weights"][0]
        beta = result.beta()
        self.beta_ = [beta[column.name] for column in table.clusterings]
        return self

    def fit_predict(self, labels: Any, y: Any = None) -> NDArray[Any]:
        """Fit and return `labels_`."""
        return self.fit(labels).labels_
