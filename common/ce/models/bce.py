"""BCE: the Bayesian cluster ensemble as an estimator."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ce.consensus_file import hard_labels
from ce.declarations.bce import DECLARATION
from ce.errors import InputError
from ce.labels import LabelTable
from ce.models.base import HERE, Estimator, not_negative, one_of, positive
from ce.models.bce_gibbs import sample_bce, warn_of_chains
from ce.models.prediction import infer
from ce.models.start_tables import base_start, pairs_start, seeds_start
from ce.protocol.engine.aggregator import Progress
from ce.protocol.engine.starting_parameters import GivenStarts, SeededStarts, Starts
from ce.ring import Reals
from ce.samplers.chains import SamplerProgress
from ce.steps.bce import ANNEAL_ALPHA, ANNEAL_ITER, BCESteps
from ce.steps.dirichlet import CEILING, FLOOR

Init = Literal["anneal", "dirichlet", "seeds++", "base", "pairs"] | Mapping[str, Any]

#: Attributes of one inference that the other does not have.
_OF_BOUND = ("lower_bound_", "bound_path_")
_OF_CHAINS = ("log_joint_", "r_hat_", "effective_draws_", "chains_used_")


class BCE(Estimator):
    """Bayesian cluster ensemble: one consensus clustering from several base clusterings, by variational EM or by Gibbs
    sampling.

    Parameters
    ----------
    n_clusters : number of consensus clusters.
    inference : "vb" (variational EM) or "gibbs" (collapsed Gibbs sampling: slower, needs hard labels, and says how
        certain it is of each object). With "gibbs" alpha is not learnt, and init, anneal_alpha, anneal_iter, tol,
        smoothing, learn_alpha, schedule, local_loops and halving are not used.
    n_init : number of starts; the one with the best bound wins. Gibbs: number of chains.
    halving : drop hopeless starts: after 8 iterations only the better half goes on. Saves time; with `local_loops=1`
        it may cost quality.
    init : "anneal" (random tables, alpha held at `anneal_alpha` until hardly a label moves, for at most `anneal_iter`
        iterations, then learnt),
        "dirichlet" (the same without holding), "seeds++" (label rows far from each other), "base" (one of the base
        clusterings), "pairs" (the fit of the pair tables, `Pairs`; one start, at most 31 clusters), or
        {"alpha": ..., "beta": [...], "gamma": ...} (alpha and gamma optional; one start).
    max_iter, tol : at most so many iterations; stop when the bound changes by less than `tol`, relative, or when at
        most one label in 2,000 (with local loops, in 1,000) has moved in each of 4 iterations and it changes by less
        than 1e-3 (without annealing: none in 5, and 1e-4). tol=0 runs max_iter iterations; else a fit that max_iter
        ends warns (`ce.errors.ConvergenceWarning`). Gibbs: sweeps of each chain.
    burn_in, thin : Gibbs: sweeps of each chain that are not drawn from (None: half of them), and after them every
        `thin`-th sweep is a draw.
    smoothing : pseudo-count of every table entry; its prior is part of the bound.
    omega : Gibbs: pseudo-count of every table entry, in place of `smoothing`; with 0.01 more chains end in a poor mode.
    alpha, learn_alpha : the starting value without annealing, and the value when it is not learnt.
    schedule : "joint" (alpha and objects together, after iterations of Newton: 3 after a hold, else 10) or "newton".
    local_loops : passes over the cells per iteration; 1 unless exchanges are dear.
    random_state, n_threads, progress : as usual; equal seeds give equal bits for any number of threads.

    Attributes
    ----------
    labels_ : (n,) consensus cluster of each object, -1 for an object without a label.
    memberships_ : (n, k) gamma divided by its row sum; an object without a label has the prior mean.
    gamma_, alpha_, beta_, categories_ : the posterior's and the model's parameters; beta_[j] is (k, k_j).
    lower_bound_, bound_path_, n_iter_, converged_ : the bound of exactly these parameters, and how it was reached.

    Gibbs: means over all draws. The clusters of a draw are matched to the sums of those before it, the clusters of a
    chain to the draw with the least expected Binder loss. `labels_` is the likeliest cluster over all draws. No bound,
    but
    log_joint_ : (chains, draws) ln p(labels, clusters), of all chains.
    chains_used_ : (chains,) False: a chain in a much less likely mode, which is left out of everything else.
    r_hat_, effective_draws_ : of log_joint_ of the chains that are used; converged_: whether all are, and R-hat
        is below 1.1.

    Ctrl-C ends the sampling, and the fit has the draws that there are.
    """

    declaration = DECLARATION

    gamma_: Reals
    alpha_: Reals
    beta_: list[Reals]
    categories_: list[NDArray[Any]]
    log_joint_: Reals
    r_hat_: float
    effective_draws_: float
    chains_used_: NDArray[np.bool_]

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        inference: Literal["vb", "gibbs"] = "vb",
        n_init: int = 5,
        init: Init = "anneal",
        anneal_alpha: float = ANNEAL_ALPHA,
        anneal_iter: int = ANNEAL_ITER,
        max_iter: int = DECLARATION.max_iterations,
        tol: float = 1e-6,
        burn_in: int | None = None,
        thin: int = 5,
        omega: float = 0.1,
        smoothing: float = 0.01,
        alpha: float | Reals = 1.0,
        learn_alpha: bool = True,
        schedule: Literal["joint", "newton"] = "joint",
        local_loops: int = 1,
        halving: bool = False,
        random_state: Any = None,
        n_threads: int | None = None,
        progress: bool | Callable[[Progress], None] | Callable[[SamplerProgress], None] = False,
    ) -> None:
        self.n_clusters = n_clusters
        self.inference = inference
        self.n_init = n_init
        self.init = init
        self.anneal_alpha = anneal_alpha
        self.anneal_iter = anneal_iter
        self.max_iter = max_iter
        self.tol = tol
        self.burn_in = burn_in
        self.thin = thin
        self.omega = omega
        self.smoothing = smoothing
        self.alpha = alpha
        self.learn_alpha = learn_alpha
        self.schedule = schedule
        self.local_loops = local_loops
        self.halving = halving
        self.random_state = random_state
        self.n_threads = n_threads
        self.progress = progress

    def fit(self, labels: Any, y: Any = None) -> Self:
        """Find the consensus of `labels`: (n, m) array or table, rows are objects, columns are clusterings."""
        table = LabelTable.from_arrays(labels)
        sampling = one_of("inference", self.inference, "vb", "gibbs") == "gibbs"
        for name in _OF_BOUND if sampling else _OF_CHAINS:  # of a fit before this one
            vars(self).pop(name, None)
        if sampling:
            return self._sample(table)
        steps = self.steps()
        starts, given = self._starts(table, steps)
        result = self._run_here(steps, table, starts, given=given)
        site = result.sites[HERE]
        unlabelled = site.unlabelled
        self.labels_ = hard_labels(self.memberships_, unlabelled)
        self.alpha_ = result.outcome.globals["alpha"][0]
        self.gamma_ = site.object_state("gamma")
        self.gamma_[unlabelled] = self.alpha_
        tables = result.beta()
        self.beta_ = [tables[column.name] for column in table.clusterings]
        self.categories_ = [np.array(column.categories) for column in table.clusterings]
        self.column_names_ = [column.name for column in table.clusterings]
        return self

    def _sample(self, table: LabelTable) -> Self:
        """`fit` by Gibbs sampling."""
        alpha, omega = _checked_alpha("alpha", self.alpha, self.n_clusters), not_negative("omega", self.omega)
        if alpha.ndim:
            raise InputError('inference="gibbs" needs one number alpha')
        chains = positive("n_init", self.n_init)
        sampled = sample_bce(self, table, float(alpha), omega, chains)
        estimate = sampled.estimate
        self.labels_, self.memberships_ = sampled.labels, sampled.memberships
        self.gamma_, self.alpha_, self.beta_ = sampled.gamma, np.full(self.n_clusters, float(alpha)), sampled.beta
        self.categories_ = [np.array(column.categories) for column in table.clusterings]
        self.column_names_ = [column.name for column in table.clusterings]
        self.log_joint_, self.chains_used_ = estimate.log_joint, estimate.used
        self.r_hat_, self.effective_draws_ = estimate.r_hat, estimate.effective_draws
        self.n_iter_ = estimate.sweeps
        self.converged_ = sampled.converged
        warn_of_chains(estimate, stacklevel=3)
        return self

    def fit_predict(self, labels: Any, y: Any = None) -> NDArray[Any]:
        """Fit and return `labels_`."""
        return self.fit(labels).labels_

    def predict(self, new: Any) -> NDArray[np.intp]:
        """The most likely cluster of new objects, given the fitted parameters; -1 without a label."""
        gamma, unlabelled, _ = self._infer(new)
        return hard_labels(gamma, unlabelled)

    def predict_proba(self, new: Any) -> Reals:
        """(n, k) memberships of new objects. For the fitted objects themselves, prefer `memberships_`."""
        gamma, _, _ = self._infer(new)
        proba: Reals = gamma / gamma.sum(axis=1, keepdims=True)
        return proba

    def perplexity(self, labels: Any) -> float:
        """exp(-bound on log p(labels) / number of labels) under the fitted parameters; never below 1."""
        _, _, per_label = self._infer(labels)
        return float(np.exp(-per_label))

    def _infer(self, new: Any) -> tuple[Reals, NDArray[np.bool_], float]:
        if not hasattr(self, "beta_"):
            raise InputError("this BCE is not fitted yet: call fit first")
        return infer(LabelTable.from_arrays(new), self.column_names_, self.categories_, self.beta_, self.alpha_)

    def steps(self) -> BCESteps:
        """The model that the engine runs, with this estimator's parameters."""
        given = isinstance(self.init, Mapping)
        if not given:
            one_of("init", self.init, "anneal", "dirichlet", "seeds++", "base", "pairs", also="a dict with beta")
        k = positive("n_clusters", self.n_clusters)
        anneal = not given and self.init == "anneal" and bool(self.learn_alpha)
        alpha = _checked_alpha("alpha", self.alpha, k)
        if anneal:
            alpha = _checked_alpha("anneal_alpha", self.anneal_alpha, k)
        elif isinstance(self.init, Mapping) and "alpha" in self.init:
            alpha = _checked_alpha("alpha of a given init", self.init["alpha"], k)
        if self.learn_alpha:
            # The box that a learnt alpha never leaves; to begin outside would lower the bound on entering it.
            alpha = np.clip(alpha, FLOOR, CEILING)
        return BCESteps(
            k,
            1 if given or self.init == "pairs" else positive("n_init", self.n_init),
            max_iter=positive("max_iter", self.max_iter, smallest=0),
            tol=not_negative("tol", self.tol),
            smoothing=not_negative("smoothing", self.smoothing),
            alpha=alpha,
            learn_alpha=bool(self.learn_alpha),
            hold_iter=positive("anneal_iter", self.anneal_iter, smallest=0) if anneal else 0,
            schedule=one_of("schedule", self.schedule, "joint", "newton"),
            local_loops=positive("local_loops", self.local_loops),
            halving=bool(self.halving),
        )

    def _starts(self, table: LabelTable, steps: BCESteps) -> tuple[Starts, dict[str, Reals]]:
        """Where the fit begins. The pair tables also give the first alpha, unless it is not learnt."""
        k = self.n_clusters
        if isinstance(self.init, Mapping):
            return self._given_start(table, self.init)
        if self.init == "seeds++":
            return GivenStarts(seeds_start(table, k, self.n_init, self._seed())), {}
        if self.init == "base":
            return GivenStarts(base_start(table, k, self.n_init, self._seed())), {}
        if self.init == "pairs":
            weights, tables = pairs_start(table, k, self._seed())
            if self.learn_alpha:
                steps.alpha = np.clip(steps.alpha.sum() * weights, FLOOR, CEILING)
            return GivenStarts(tables), {}
        return SeededStarts.of(self._seed(), [table]), {}

    def _given_start(self, table: LabelTable, init: Mapping[str, Any]) -> tuple[Starts, dict[str, Reals]]:
        if set(init) - {"alpha", "beta", "gamma"} or not isinstance(init.get("beta"), (list, tuple, np.ndarray)):
            raise InputError(
                'a given init is {"beta": [one table per clustering], "alpha": optional, "gamma": optional}'
            )
        beta = [_numbers("init: beta", b) for b in init["beta"]]
        expected = [(self.n_clusters, len(column.categories)) for column in table.clusterings]
        if [b.shape for b in beta] != expected:
            raise InputError(f"init: beta needs one table per clustering, of shapes {expected}")
        for column, b in zip(table.clusterings, beta, strict=True):
            if b.size and not ((b >= 0).all() and np.allclose(b.sum(axis=1), 1.0, rtol=0, atol=1e-6)):
                raise InputError(f"init: the rows of beta of column {column.name!r} are distributions, summing to 1")
            if not (b.max(axis=0, initial=0) > 0).all():
                raise InputError(f"init: beta of column {column.name!r} has a category that no cluster can produce")
        if self.smoothing > 0:
            # The prior of an impossible category is minus infinity; the smallest chance has the same effect.
            beta = [np.maximum(b, 1e-300) for b in beta]
        given: dict[str, Reals] = {}
        if "gamma" in init:
            gamma = _numbers("init: gamma", init["gamma"])
            if gamma.shape != (table.n_objects, self.n_clusters) or not ((gamma >= FLOOR) & (gamma <= 1e6)).all():
                raise InputError(f"init: gamma is (objects, n_clusters), each between {FLOOR} and 1e6")
            given["gamma"] = np.ascontiguousarray(gamma.T)
        names = (column.name for column in table.clusterings)
        return GivenStarts({name: b[None] for name, b in zip(names, beta, strict=True)}), given


def _checked_alpha(name: str, value: Any, k: int) -> Reals:
    alpha = _numbers(name, value)
    if alpha.shape not in ((), (k,)) or not (alpha > 0).all():
        raise InputError(f"{name} is a positive number, or n_clusters of them")
    return alpha


def _numbers(name: str, value: Any) -> Reals:
    """Finite numbers, or an error that names the parameter."""
    try:
        numbers = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        numbers = np.array(np.nan)
    if not np.isfinite(numbers).all():
        raise InputError(f"{name} is made of finite numbers")
    return numbers
