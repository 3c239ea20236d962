"""Pairs: a latent class model of pair tables as an estimator.

No iteration over objects: labels are counted once, pairs of columns by pairs, and everything else happens in the
tables. It is the model of sealed jobs, which open the tables with noise and no number of any object.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ce.consensus_file import hard_labels
from ce.declarations.pairs import DECLARATION
from ce.errors import InputError, LabelError
from ce.labels import LabelTable
from ce.models.base import Estimator, not_negative, positive
from ce.models.convergence import ended_too_early, warn_of_early_end
from ce.models.pair_columns import PairColumns
from ce.pair_tables import fit_pairs, log_scores, pair_tables
from ce.protocol.engine.aggregator import Progress
from ce.ring import Reals


class Pairs(Estimator):
    """Latent classes from tables of pairs of columns: how often label a of one meets label b of another.

    The tables are fitted by EM from one spectral start, and each object gets the cluster under which its labels are
    likeliest. Clusters are found also where most columns are never seen together, as long as a chain of columns links
    them.

    Parameters
    ----------
    n_clusters : number of consensus clusters, at most 31; or "auto": one more than the eigenvalues of the residuals
        that independent columns would not have. On real data "auto" is rather too many than too few.
    max_iter, tol : at most so many iterations; stop when one gains less than `tol` nats per object. tol=0 runs
        max_iter iterations; else a fit that max_iter ends warns (`ce.errors.ConvergenceWarning`).
    smoothing : pseudo-count of every chance of a label, in counts of the pair tables; None: half a count for each other
        column, and 1/500 of the objects.
    random_state : seed of the spectral start's k-means; equal seeds give equal bits on one machine.
    progress : as for `BCE`; the objective stands for the bound.

    Attributes
    ----------
    labels_ : (n,) consensus cluster of each object, -1 for an object without a label.
    memberships_ : (n, k) how likely each cluster is; an object without a label has the weights.
    weights_, categories_, n_clusters_ : pi (k,), the categories of each clustering, and the number of clusters.
    eigenvalues_ : the largest eigenvalues of the standardised residuals, largest first, at most 32.
    log_composite_, n_iter_, converged_ : 1/2 sum P ln Q plus the prior, and how it was reached.

    The chances of the labels are not an attribute: pairs alone do not identify them, and they serve to score objects.
    """

    declaration = DECLARATION

    weights_: Reals
    categories_: list[NDArray[Any]]
    n_clusters_: int
    eigenvalues_: Reals
    log_composite_: float

    _columns: PairColumns
    _beta: Reals  # (D, k), in the order of `_columns`

    def __init__(
        self,
        n_clusters: int | Literal["auto"] = 8,
        *,
        max_iter: int = DECLARATION.max_iterations,
        tol: float = 1e-5,
        smoothing: float | None = None,
        random_state: Any = None,
        progress: bool | Callable[[Progress], None] = False,
    ) -> None:
        self.n_clusters = n_clusters
        self.max_iter = max_iter
        self.tol = tol
        self.smoothing = smoothing
        self.random_state = random_state
        self.progress = progress

    def fit(self, labels: Any, y: Any = None) -> Self:
        """Find the consensus of `labels`: (n, m) array or table, rows are objects, columns are clusterings."""
        table = LabelTable.from_arrays(labels)
        columns = PairColumns.of(table)
        max_iter = positive("max_iter", self.max_iter, smallest=0)
        tol = not_negative("tol", self.tol)
        fitted = fit_pairs(
            pair_tables(columns.labels(table), columns.layout),
            columns.layout,
            self.n_clusters,
            seed=self._seed() & (2**64 - 1),
            tolerance=tol,
            smoothing=None if self.smoothing is None else not_negative("smoothing", self.smoothing),
            max_iterations=max_iter,
            on_iteration=self._on_iteration(max_iter),
        )
        self._columns, self._beta = columns, fitted.beta
        self.weights_ = fitted.weights
        self.n_clusters_ = fitted.n_clusters
        self.eigenvalues_ = fitted.eigenvalues
        self.log_composite_ = fitted.log_composite
        self.n_iter_ = fitted.n_iter
        self.converged_ = fitted.converged
        self.categories_ = [np.array(column.categories) for column in table.clusterings]
        self._names = [column.name for column in table.clusterings]
        self.memberships_, unlabelled = self._score(table)
        self.labels_ = hard_labels(self.memberships_, unlabelled)
        if ended_too_early(self.declaration, converged=fitted.converged, max_iter=max_iter, tol=tol):
            warn_of_early_end(max_iter, stacklevel=2)
        return self

    def fit_predict(self, labels: Any, y: Any = None) -> NDArray[Any]:
        """Fit and return `labels_`."""
        return self.fit(labels).labels_

    def predict(self, new: Any) -> NDArray[np.intp]:
        """The most likely cluster of new objects, given the fitted parameters; -1 without a label."""
        memberships, unlabelled = self._score(self._known(new))
        return hard_labels(memberships, unlabelled)

    def predict_proba(self, new: Any) -> Reals:
        """(n, k) memberships of new objects. Those of fitted objects are `memberships_`."""
        memberships, _ = self._score(self._known(new))
        return memberships

    def _known(self, new: Any) -> LabelTable:
        """A table of new objects in the columns and categories of the fit."""
        if not hasattr(self, "weights_"):
            raise InputError("this Pairs is not fitted yet: call fit first")
        table = LabelTable.from_arrays(new)
        found = [column.name for column in table.clusterings]
        if found != self._names:
            raise LabelError(f"expected the columns of the fit, {', '.join(self._names)}; found {', '.join(found)}")
        columns = [
            column.recode(tuple(seen.tolist()))
            for column, seen in zip(table.clusterings, self.categories_, strict=True)
        ]
        return LabelTable(table.ids, tuple(columns), table.source)

    def _score(self, table: LabelTable) -> tuple[Reals, NDArray[np.bool_]]:
        """(n, k) memberships, and which objects have no label."""
        scores = log_scores(self._columns.labels(table), self._columns.layout, self.weights_, self._beta)
        scores -= scores.max(axis=1, keepdims=True)
        memberships: Reals = np.exp(scores)
        memberships /= memberships.sum(axis=1, keepdims=True)
        unlabelled = ~np.any([column.observed for column in table.clusterings], axis=0)
        memberships[unlabelled] = self.weights_
        return memberships, unlabelled

    def _on_iteration(self, max_iter: int) -> Callable[[int, float], None] | None:
        report = self._reporter()
        if report is None:
            return None
        return lambda iteration, value: report(Progress(0, iteration, max_iter, 1, value, True))
