"""BC3E: classifiers and clusterings together, as an estimator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ce.consensus_file import class_labels
from ce.declarations.bc3e import DECLARATION
from ce.errors import InputError, LabelError
from ce.labels import Column, LabelTable
from ce.models.base import HERE, Estimator, not_negative, one_of, positive
from ce.models.classes import classes_of
from ce.protocol.engine.aggregator import Progress
from ce.protocol.engine.starting_parameters import SeededStarts
from ce.protocol.topology.site_view import Categories
from ce.ring import Reals
from ce.steps.bc3e import LARGEST_LOGIT, SMALLEST_VARIANCE, BC3ESteps, DiffusedBC3E
from ce.steps.model import Model

#: Logits are in nats: a larger variance means nothing, and would leave the declared bounds of the sums.
LARGEST_VARIANCE = 1000.0

Start = Literal["votes", "diffused"] | Mapping[str, Any]


class BC3E(Estimator):
    """Refined classification from the votes of classifiers and from base clusterings, by variational EM.

    Parameters
    ----------
    classes, n_classes : the class names, or their number (names 0, 1, ...); by default those that the votes use.
    posterior : "joint", q(y, theta), or "factorised", the paper's q(y) q(theta), which mutes the clusterings.
    start : "votes"; "diffused", the votes spread over the clusterings, unless those do not follow the classes; or
        {"mu": (n, k), "eps": (n, k)}.
    delta2, sigma2 : learnt, or fixed when given.
    max_iter : 10 by default, where it is meant to stop without a warning; run long, with soft votes, sigma² can
        collapse.
    tol, smoothing, local_loops, n_threads, progress : as for `BCE`. `random_state` is not used: nothing is random.

    Attributes
    ----------
    labels_ : (n,) class names; -1, or "" among text, for an object without any label or vote.
    class_proba_ : (n, k) softmax(mu_n); classes_ : the columns' names.
    mu_, sigma2_, delta2_, beta_, categories_ : the model's parameters.
    posterior_ : {"mu", "eps", "s", "d", "r"}, (n, k) each: q's means, variances and covariances.
    kappa_ : Cohen's kappa between what the clusterings alone say and the votes. Near zero, clusters do not follow
        classes, and the votes alone may do better. None if no object has both labels and votes.
    lower_bound_, bound_path_, n_iter_, converged_ : the bound of exactly these parameters, and how it was reached.
    """

    declaration = DECLARATION

    class_proba_: Reals
    classes_: NDArray[Any]
    mu_: Reals
    sigma2_: Reals
    delta2_: float
    beta_: list[Reals]
    categories_: list[NDArray[Any]]
    posterior_: dict[str, Reals]
    kappa_: float | None

    def __init__(
        self,
        classes: Sequence[Any] | None = None,
        n_classes: int | None = None,
        *,
        posterior: Literal["joint", "factorised"] = "joint",
        start: Start = "votes",
        delta2: float | None = None,
        sigma2: float | None = None,
        max_iter: int = DECLARATION.max_iterations,
        tol: float = 1e-6,
        smoothing: float = 0.01,
        local_loops: int = 1,
        random_state: Any = None,
        n_threads: int | None = None,
        progress: bool | Callable[[Progress], None] = False,
    ) -> None:
        self.classes = classes
        self.n_classes = n_classes
        self.posterior = posterior
        self.start = start
        self.delta2 = delta2
        self.sigma2 = sigma2
        self.max_iter = max_iter
        self.tol = tol
        self.smoothing = smoothing
        self.local_loops = local_loops
        self.random_state = random_state
        self.n_threads = n_threads
        self.progress = progress

    def fit(self, clusterings: Any, classifications: Any = None) -> Self:
        """Refine the votes `classifications` ((n, L) class labels or (n, L, k) probabilities) by `clusterings` (n, m).

        A LabelTable that has classifier columns may stand for both.
        """
        table = self._pooled(clusterings, classifications)
        classes = self.resolve_classes([table])
        given: dict[str, Reals] = {}
        if isinstance(self.start, Mapping):
            given = _given(self.start, (table.n_objects, len(classes)))
        result = self._run_here(self.steps(len(classes)), table, SeededStarts(0), classes=classes, given=given)
        site, globals_ = result.sites[HERE], result.outcome.globals
        self.classes_ = np.array(classes)
        self.class_proba_ = self.memberships_
        self.labels_ = class_labels(self.class_proba_, classes, result.sites[HERE].unlabelled)
        self.mu_, self.sigma2_ = globals_["mu"][0], globals_["sigma2"][0]
        self.delta2_ = float(globals_["delta2"][0, 0])
        self.posterior_ = {name: site.object_state(name) for name in ("mu", "eps", "s", "d", "r")}
        tables = result.beta()
        self.beta_ = [tables[column.name] for column in table.clusterings]
        self.categories_ = [np.array(column.categories) for column in table.clusterings]
        self.kappa_ = result.outcome.kappa
        return self

    def fit_predict(self, clusterings: Any, classifications: Any = None) -> NDArray[Any]:
        """Fit and return `labels_`."""
        return self.fit(clusterings, classifications).labels_

    def steps(self, k: int) -> Model:
        """The model that the engine runs, with this estimator's parameters."""
        model = BC3ESteps(
            k,
            max_iter=positive("max_iter", self.max_iter, smallest=0),
            tol=not_negative("tol", self.tol),
            smoothing=not_negative("smoothing", self.smoothing),
            posterior=one_of("posterior", self.posterior, "joint", "factorised"),
            sigma2=None if self.sigma2 is None else _variance("sigma2", self.sigma2),
            delta2=None if self.delta2 is None else _variance("delta2", self.delta2),
            local_loops=positive("local_loops", self.local_loops),
        )
        if isinstance(self.start, Mapping):
            return model
        start = one_of("start", self.start, "votes", "diffused", also='{"mu": (n, k), "eps": (n, k)}')
        return DiffusedBC3E(model) if start == "diffused" else model

    def resolve_classes(self, tables: Sequence[LabelTable]) -> Categories:
        """The classes in order: as given, 0 ... n_classes - 1, or all that the classifiers of these tables use."""
        if self.classes is not None and self.n_classes not in (None, len(self.classes)):
            raise InputError("classes and n_classes contradict each other: give one of them")
        given: Categories | None = None
        if self.classes is not None:
            given = tuple(np.asarray(self.classes).tolist())
        elif self.n_classes is not None:
            given = tuple(range(positive("n_classes", self.n_classes)))
        return classes_of(given, tables)

    def _pooled(self, clusterings: Any, classifications: Any) -> LabelTable:
        table = LabelTable.from_arrays(clusterings)
        if classifications is None:
            return table
        if isinstance(classifications, LabelTable):
            classifications = _same_objects(classifications, table)
        votes = self._votes(classifications)
        if votes[0].observed.shape[0] != table.n_objects:
            raise LabelError("clusterings and classifications have different numbers of objects")
        taken = {column.name for column in table.clusterings}
        renamed = tuple(
            Column(
                f"clf:{column.name}" if column.name in taken else column.name,
                "classifier",
                column.categories,
                column.codes,
                column.probabilities,
            )
            for column in votes
        )
        return LabelTable(table.ids, (*table.clusterings, *renamed), table.source)

    def _votes(self, classifications: Any) -> tuple[Column, ...]:
        if getattr(classifications, "ndim", None) != 3:
            return LabelTable.from_arrays(classifications).columns
        probabilities = np.asarray(classifications, dtype=np.float64)
        if 0 in probabilities.shape:
            raise LabelError("classifications are (objects, classifiers, classes), at least one of each")
        k = probabilities.shape[2]
        names = tuple(range(k)) if self.classes is None else tuple(np.asarray(self.classes).tolist())
        if len(names) != k:
            raise LabelError(f"classifications have {k} classes, {len(names)} are given")
        silent = np.isnan(probabilities).all(axis=2)
        total = probabilities.sum(axis=2)
        proper = (probabilities >= 0).all(axis=2) & (np.abs(total - 1.0) <= 1e-3)
        if not (proper | silent).all():
            row, voter = np.argwhere(~(proper | silent))[0]
            raise LabelError(
                "a row of class probabilities is not negative and sums to 1, or is NaN throughout",
                row=int(row),
                column=f"classifier {voter}",
            )
        order = np.argsort(np.array(names))
        soft = (probabilities / np.where(silent, 1.0, total)[:, :, None])[:, :, order]
        categories = tuple(sorted(names))
        return tuple(
            Column(f"clf{voter}", "classifier", categories, None, np.ascontiguousarray(soft[:, voter]))
            for voter in range(soft.shape[1])
        )


def _same_objects(votes: LabelTable, table: LabelTable) -> LabelTable:
    """The votes in the order of the table's objects."""
    order = np.argsort(votes.ids)
    place = order[np.minimum(np.searchsorted(votes.ids, table.ids, sorter=order), len(order) - 1)]
    if votes.n_objects != table.n_objects or (votes.ids[place] != table.ids).any():
        raise LabelError("clusterings and classifications name different objects")
    return votes.select(place)


def _given(start: Mapping[str, Any], shape: tuple[int, int]) -> dict[str, Reals]:
    try:
        arrays = {name: np.asarray(array, dtype=np.float64) for name, array in start.items()}
    except (TypeError, ValueError):
        arrays = {}
    if set(arrays) != {"mu", "eps"} or any(array.shape != shape for array in arrays.values()):
        raise InputError(f'a given start is {{"mu": ..., "eps": ...}}, numbers of shape {shape}')
    if not all((np.abs(array) <= LARGEST_LOGIT / 2).all() for array in arrays.values()):
        raise InputError(f"a given start has logits within ±{LARGEST_LOGIT / 2:g}")
    return {name: np.ascontiguousarray(array.T) for name, array in arrays.items()}


def _variance(name: str, value: Any) -> float:
    number = not_negative(name, value)
    if not SMALLEST_VARIANCE <= number <= LARGEST_VARIANCE:
        raise InputError(f"{name} is between {SMALLEST_VARIANCE:g} and {LARGEST_VARIANCE:g}")
    return number
