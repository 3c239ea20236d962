"""Mixture: the mixture model of cluster ensembles as an estimator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ce.consensus_file import hard_labels
from ce.declarations.mixture import DECLARATION
from ce.labels import LabelTable
from ce.models.base import HERE, Estimator, not_negative, one_of, positive
from ce.models.start_tables import pairs_start
from ce.protocol.engine.aggregator import Progress
from ce.protocol.engine.starting_parameters import GivenStarts, SeededStarts, Starts
from ce.ring import Reals
from ce.steps.mixture import MixtureSteps


class Mixture(Estimator):
    """Mixture model of cluster ensembles: one latent class per object, by EM from random tables.

    Parameters
    ----------
    init : "random" (random tables) or "pairs" (the fit of the pair tables, `Pairs`; one start, at most 31 clusters).
    halving : drop hopeless starts: after 10 iterations, and again every 5, only the better half goes on, until one
        is left.
    n_clusters, n_init, max_iter, tol, smoothing, random_state, n_threads, progress : as for `BCE`.

    Attributes
    ----------
    labels_, memberships_ : as for `BCE`; an object without a label has the weights as memberships.
    weights_, beta_, categories_ : pi (k,), and per clustering the table (k, k_j) with its categories.
    lower_bound_, bound_path_, n_iter_, converged_ : the log-likelihood plus the prior, and how it was reached.
    """

    declaration = DECLARATION

    weights_: Reals
    beta_: list[Reals]
    categories_: list[NDArray[Any]]

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        n_init: int = DECLARATION.restarts,
        init: Literal["random", "pairs"] = "random",
        max_iter: int = DECLARATION.max_iterations,
        tol: float = 1e-6,
        smoothing: float = DECLARATION.smoothing,
        halving: bool = True,
        random_state: Any = None,
        n_threads: int | None = None,
        progress: bool | Callable[[Progress], None] = False,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_init = n_init
        self.init = init
        self.max_iter = max_iter
        self.tol = tol
        self.smoothing = smoothing
        self.halving = halving
        self.random_state = random_state
        self.n_threads = n_threads
        self.progress = progress

    def fit(self, labels: Any, y: Any = None) -> Self:
        """Find the consensus of `labels`: (n, m) array or table, rows are objects, columns are clusterings."""
        table = LabelTable.from_arrays(labels)
        steps = self.steps()
        result = self._run_here(steps, table, self._starts(table, steps))
        self.labels_ = hard_labels(self.memberships_, result.sites[HERE].unlabelled)
        self.weights_ = result.outcome.globals["weights"][0]
        tables = result.beta()
        self.beta_ = [tables[column.name] for column in table.clusterings]
        self.categories_ = [np.array(column.categories) for column in table.clusterings]
        return self

    def fit_predict(self, labels: Any, y: Any = None) -> NDArray[Any]:
        """Fit and return `labels_`."""
        return self.fit(labels).labels_

    def steps(self) -> MixtureSteps:
        """The model that the engine runs, with this estimator's parameters."""
        return MixtureSteps(
            positive("n_clusters", self.n_clusters),
            1 if one_of("init", self.init, "random", "pairs") == "pairs" else positive("n_init", self.n_init),
            max_iter=positive("max_iter", self.max_iter, smallest=0),
            tol=not_negative("tol", self.tol),
            smoothing=not_negative("smoothing", self.smoothing),
            halving=bool(self.halving),
        )

    def _starts(self, table: LabelTable, steps: MixtureSteps) -> Starts:
        """Where the fit begins. The pair tables also give the first weights."""
        if self.init == "pairs":
            steps.weights, tables = pairs_start(table, steps.k, self._seed())
            return GivenStarts(tables)
        return SeededStarts.of(self._seed(), [table])
