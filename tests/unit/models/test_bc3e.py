"""BC3E against MATH.md: the bound, each block's maximiser, the exact likelihood, and what the estimator promises.

The formulas below are written out from MATH.md, object by object; nothing in them calls the library.
"""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from sklearn.metrics import cohen_kappa_score
from support import reference

from ce.errors import InputError, LabelError
from ce.labels import Column, LabelTable
from ce.models import BC3E
from ce.protocol.engine import cell_passes as holdings
from ce.steps.bc3e import SWEEPS

laws = settings(deadline=None, max_examples=4, derandomize=True)

seeds = st.integers(0, 2**32 - 1)


# Problems.


def soft_around(rng: np.random.Generator, codes: np.ndarray, categories: int) -> np.ndarray:
    """Probabilities around hard labels; NaN where the label is missing."""
    p = 0.5 * rng.dirichlet(np.full(categories, 0.5), len(codes)) + 0.5 * np.eye(categories)[np.maximum(codes, 0)]
    p[codes < 0] = np.nan
    return p


def problem(seed: int, k: int, *, largest: int = 16, soft_votes: bool = False, soft_labels: bool = False) -> LabelTable:
    """Noisy clusterings and noisy votes of a planted partition into k classes.

    Votes and labels have gaps; some objects have votes only, some labels only, some nothing at all.
    """
    rng = np.random.default_rng(seed)
    n, m, voters = int(rng.integers(4, largest)), int(rng.integers(1, 6)), int(rng.integers(1, 5))
    truth = rng.integers(0, k, n)
    fate = rng.random(n)  # below 0.15 votes only, above 0.85 labels only, around 0.5 nothing
    fate[:2] = 0.3
    columns = []
    for j in range(m):
        categories = int(rng.integers(2, 5))
        codes = rng.integers(0, categories, k)[truth]
        codes = np.where(rng.random(n) < 0.3, rng.integers(0, categories, n), codes)
        codes[(rng.random(n) < rng.uniform(0.0, 0.5)) | (fate < 0.15) | (np.abs(fate - 0.5) < 0.03)] = -1
        if j == 0:
            codes[0] = max(codes[0], 0)
        name, names = f"{'zyxwv'[j]}{j}", tuple("pqrs"[:categories])
        if soft_labels and rng.random() < 0.5:
            columns.append(Column(name, "clustering", names, None, soft_around(rng, codes, categories)))
        else:
            columns.append(Column(name, "clustering", names, codes.astype(np.int32), None))
    for j in range(voters):
        codes = np.where(rng.random(n) < 0.3, rng.integers(0, k, n), truth)
        codes[(rng.random(n) < rng.uniform(0.0, 0.4)) | (fate > 0.85) | (np.abs(fate - 0.5) < 0.03)] = -1
        if j == 0:
            codes[0] = max(codes[0], 0)
        names = tuple(range(k))
        if soft_votes:
            columns.append(Column(f"vote{j}", "classifier", names, None, soft_around(rng, codes, k)))
        else:
            columns.append(Column(f"vote{j}", "classifier", names, codes.astype(np.int32), None))
    return LabelTable(np.array([f"o{i}" for i in range(n)]), tuple(columns))


def arrays(n: int = 60, k: int = 3, seed: int = 0, follow: bool = True) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """True classes, clusterings that follow them (or not), and votes that are right three times in four."""
    rng = np.random.default_rng(seed)
    truth = rng.permutation(np.arange(n) % k)
    source = truth if follow else rng.integers(0, k, n)
    clusterings = [np.where(rng.random(n) < 0.05, rng.integers(0, k, n), rng.permutation(k)[source]) for _ in range(5)]
    if not follow:
        clusterings = [rng.integers(0, k, n) for _ in range(5)]
    votes = [np.where(rng.random(n) < 0.25, rng.integers(0, k, n), truth) for _ in range(3)]
    return truth, np.stack(clusterings, axis=1), np.stack(votes, axis=1)


# MATH.md, object by object.


def state_of(model: BC3E, data: reference.BC3EData) -> reference.BC3EState:
    q = {name: array[data.rows] for name, array in model.posterior_.items()}
    return reference.BC3EState(
        q["mu"],
        q["eps"],
        q["s"],
        q["d"],
        q["r"],
        model.mu_,
        model.sigma2_,
        model.delta2_,
        [b.copy() for b in model.beta_],
    )


# The bound.

options = st.fixed_dictionaries(
    {
        "sigma2": st.sampled_from([None, 0.3, 9.0]),
        "delta2": st.sampled_from([None, 0.05, 2.0]),
        "smoothing": st.sampled_from([0.0, 0.01, 1.0]),
        "local_loops": st.sampled_from([1, 3]),
    }
)


def start_of(start: str, table: LabelTable, k: int, seed: int) -> Any:
    if start != "given":
        return start
    rng = np.random.default_rng(seed)
    mu = rng.normal(0.0, 1.5, (table.n_objects, k))
    return {"mu": mu, "eps": mu + rng.normal(0.0, 0.5, mu.shape)}


@pytest.mark.parametrize("start", ["votes", "diffused", "given"])
@pytest.mark.parametrize("posterior", ["joint", "factorised"])
@given(seed=seeds, k=st.integers(2, 4), soft_votes=st.booleans(), soft_labels=st.booleans(), extra=options)
@laws
def test_the_bound_never_decreases_and_is_the_one_of_the_text(
    posterior: str, start: str, seed: int, k: int, soft_votes: bool, soft_labels: bool, extra: dict[str, Any]
) -> None:
    table = problem(seed, k, soft_votes=soft_votes, soft_labels=soft_labels)
    model = BC3E(
        n_classes=k,
        posterior=posterior,  # type: ignore[arg-type]
        start=start_of(start, table, k, seed),
        max_iter=15,
        tol=0,
        **extra,
    ).fit(table)
    reference.assert_never_decreases(model.bound_path_)
    assert len(model.bound_path_) == 16
    assert model.bound_path_[-1] == model.lower_bound_
    data = reference.bc3e_data(table, k)
    assert model.lower_bound_ == pytest.approx(
        reference.bc3e_bound(data, state_of(model, data), extra["smoothing"]), rel=1e-9
    )
    if posterior == "factorised":
        assert not np.nan_to_num(model.posterior_["r"]).any()
    for name in ("sigma2", "delta2"):
        if extra[name] is not None:
            np.testing.assert_array_equal(getattr(model, f"{name}_"), extra[name])


@settings(laws, max_examples=10)
@given(seed=seeds, k=st.integers(2, 3), iterations=st.integers(0, 12), joint=st.booleans())
def test_the_bound_of_every_iterate_is_the_one_of_the_text(seed: int, k: int, iterations: int, joint: bool) -> None:
    table = problem(seed, k, soft_votes=True, soft_labels=True)
    posterior = "joint" if joint else "factorised"
    model = BC3E(n_classes=k, posterior=posterior, max_iter=iterations, tol=0).fit(table)  # type: ignore[arg-type]
    assert model.n_iter_ == iterations
    data = reference.bc3e_data(table, k)
    assert model.lower_bound_ == pytest.approx(reference.bc3e_bound(data, state_of(model, data), 0.01), rel=1e-9)


@pytest.mark.parametrize("posterior", ["joint", "factorised"])
@pytest.mark.parametrize("sigma2", [1e-3, 4.0, 600.0])
@pytest.mark.parametrize("delta2", [1e-3, 600.0])
def test_the_bound_never_decreases_for_any_fixed_variances(posterior: str, sigma2: float, delta2: float) -> None:
    for seed in range(2):
        table = problem(seed, 2)
        model = BC3E(
            n_classes=2,
            posterior=posterior,  # type: ignore[arg-type]
            sigma2=sigma2,
            delta2=delta2,
            max_iter=6,
            tol=0,
        )
        reference.assert_never_decreases(model.fit(table).bound_path_)


@pytest.mark.parametrize("posterior", ["joint", "factorised"])
@pytest.mark.parametrize("name", ["sigma2", "delta2"])
@pytest.mark.parametrize("value", [1e-7, 2000.0])
def test_fixed_variances_beyond_their_limits_are_refused(posterior: str, name: str, value: float) -> None:
    model = BC3E(n_classes=2, posterior=posterior, max_iter=6, **{name: value})  # type: ignore[arg-type]
    with pytest.raises(InputError, match=f"{name} is between 1e-06 and 1000"):
        model.fit(problem(0, 2))


# The steps.


def test_the_votes_start_is_the_one_of_the_text() -> None:
    table = problem(3, 3, soft_votes=True)
    data = reference.bc3e_data(table, 3)
    model = BC3E(n_classes=3, max_iter=0).fit(table)
    logits = np.log(data.votes + 0.5)
    logits -= logits.mean(axis=1, keepdims=True)
    for name in ("mu", "eps"):
        np.testing.assert_allclose(model.posterior_[name][data.rows], logits, rtol=1e-9, atol=1e-12)
    np.testing.assert_array_equal(model.sigma2_, np.full(3, 4.0))
    assert model.delta2_ == 0.05
    for column, b in zip(table.clusterings, model.beta_, strict=True):
        np.testing.assert_allclose(b, np.full((3, len(column.categories)), 1 / len(column.categories)))


def test_a_given_start_is_where_the_fit_begins() -> None:
    table = problem(4, 2)
    start = start_of("given", table, 2, 9)
    model = BC3E(n_classes=2, start=start, max_iter=0).fit(table)
    known = reference.bc3e_data(table, 2).rows
    for name in ("mu", "eps"):
        np.testing.assert_array_equal(model.posterior_[name][known], start[name][known])


def diffusion(data: reference.BC3EData, k: int, tables: Sequence[Column], rounds: int) -> np.ndarray:
    """v_n = c_n / r1_n; {h_mj = mean of v over the objects with label j; v_n = mean over its columns of h}."""
    v = data.votes / data.votes.sum(axis=1, keepdims=True)
    for _ in range(rounds):
        h = [np.zeros((k, len(column.categories))) for column in tables]
        size = [np.zeros(len(column.categories)) for column in tables]
        for n, cells in enumerate(data.cells):
            for cell in cells:
                h[cell.m][:, cell.j] += v[n]
                size[cell.m][cell.j] += 1.0
        means = [a / np.maximum(b, 1.0) for a, b in zip(h, size, strict=True)]
        v = np.array([np.mean([means[c.m][:, c.j] for c in cells], axis=0) for cells in data.cells])
    return v


def test_the_diffused_start_is_the_one_of_the_text() -> None:
    _, clusterings, votes = arrays(n=40, k=2)
    table = LabelTable.from_arrays(
        np.hstack([clusterings, votes]), columns=[*"abcde", "v0", "v1", "v2"], classifiers=["v*"]
    )
    data = reference.bc3e_data(table, 2)
    v = diffusion(data, 2, table.clusterings, 100)
    expected = 2.0 * (v - v.mean(axis=0)) / np.sqrt(((v - v.mean(axis=0)) ** 2).mean())
    model = BC3E(n_classes=2, start="diffused", max_iter=0).fit(table)
    np.testing.assert_allclose(model.posterior_["mu"], expected, rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(model.posterior_["eps"], expected, rtol=1e-6, atol=1e-9)


def test_clusterings_that_do_not_follow_the_classes_are_not_trusted_with_the_start() -> None:
    _, clusterings, votes = arrays(n=200, follow=False)
    diffused = BC3E(start="diffused").fit(clusterings, votes)
    plain = BC3E(start="votes").fit(clusterings, votes)
    np.testing.assert_array_equal(diffused.bound_path_, plain.bound_path_)
    np.testing.assert_array_equal(diffused.class_proba_, plain.class_proba_)


def successive(table: LabelTable, last: int, **parameters: Any) -> Iterator[tuple[int, BC3E, BC3E]]:
    """The fits after t and t + 1 iterations."""
    before = BC3E(max_iter=0, tol=0, **parameters).fit(table)
    for t in range(last):
        after = BC3E(max_iter=t + 1, tol=0, **parameters).fit(table)
        yield t, before, after
        before = after


@pytest.mark.parametrize("posterior", ["joint", "factorised"])
@settings(laws, max_examples=4)
@given(seed=seeds, k=st.integers(2, 3), smoothing=st.sampled_from([0.0, 0.01, 1.0]))
def test_the_engines_steps_are_the_updates_of_the_text(posterior: str, seed: int, k: int, smoothing: float) -> None:
    table = problem(seed, k, largest=8, soft_votes=True, soft_labels=True)
    data = reference.bc3e_data(table, k)
    counts = reference.bc3e_labels(data)
    sweep = reference.bc3e_joint_sweep if posterior == "joint" else reference.bc3e_factorised_sweep
    parameters = {"n_classes": k, "posterior": posterior, "smoothing": smoothing}
    for t, earlier, later in successive(table, 4, **parameters):
        before, after = state_of(earlier, data), state_of(later, data)
        phi = reference.bc3e_phi(data, before)
        for found, expected in zip(
            after.beta, reference.bc3e_column_step(data, phi, before.beta, smoothing), strict=True
        ):
            np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-14)
        if t == 0:  # the first object states are guesses: they teach the globals nothing
            np.testing.assert_array_equal(after.prior_mu, before.prior_mu)
            np.testing.assert_array_equal(after.sigma2, before.sigma2)
            assert after.delta2 == before.delta2
        else:
            mu = before.mu.mean(axis=0)
            np.testing.assert_allclose(after.prior_mu, mu, rtol=1e-9, atol=1e-12)
            sigma2 = (before.s + (before.mu - mu) ** 2).mean(axis=0)
            np.testing.assert_allclose(after.sigma2, np.maximum(sigma2, 1e-6), rtol=1e-8)
            delta2 = ((before.eps - before.mu) ** 2 + before.s + before.d - 2 * before.r).mean()
            assert after.delta2 == pytest.approx(max(delta2, 1e-6), rel=1e-8)
        sums = reference.bc3e_object_sums(data, phi, k)
        swept = replace(before, prior_mu=after.prior_mu, sigma2=after.sigma2, delta2=after.delta2)
        for n in range(len(data.rows)):
            for _ in range(SWEEPS):
                swept = sweep(swept, n, data.votes[n], sums[n], counts[n])
        for name in ("mu", "eps", "s", "d", "r"):
            np.testing.assert_allclose(getattr(after, name), getattr(swept, name), rtol=1e-6, atol=1e-9, err_msg=name)


def numerical_slopes(data: reference.BC3EData, state: reference.BC3EState, smoothing: float, name: str) -> np.ndarray:
    """Derivative of the bound in every entry of one array of q; phi, kappa and xi follow."""
    values = getattr(state, name)
    slopes = np.zeros_like(values)
    for at in np.ndindex(values.shape):
        width = 1e-5 * (1.0 if name in ("mu", "eps") else min(state.s[at], state.d[at]))
        ends = []
        for sign in (1, -1):
            moved = values.copy()
            moved[at] += sign * width
            ends.append(reference.bc3e_bound(data, replace(state, **{name: moved}), smoothing))
        slopes[at] = (ends[0] - ends[1]) / (2 * width)
    return slopes


@pytest.mark.parametrize("posterior", ["joint", "factorised"])
@pytest.mark.parametrize("seed", [2])
def test_at_convergence_every_numerical_gradient_vanishes(posterior: str, seed: int) -> None:
    table = problem(seed, 2, largest=6, soft_votes=True)
    data = reference.bc3e_data(table, 2)
    model = BC3E(
        n_classes=2,
        posterior=posterior,  # type: ignore[arg-type]
        sigma2=1.0,
        delta2=0.5,
        smoothing=1.0,
        max_iter=120,
        tol=0,
    ).fit(table)
    state = state_of(model, data)
    for name in ("mu", "eps", "s", "d", *(("r",) if posterior == "joint" else ())):
        scale = 1.0 if name in ("mu", "eps") else np.minimum(state.s, state.d)
        np.testing.assert_allclose(numerical_slopes(data, state, 1.0, name) * scale, 0.0, atol=1e-3, err_msg=name)
    # Columns and mean: fixed points of their steps. kappa, xi and phi: their own slopes vanish.
    phi = reference.bc3e_phi(data, state)
    for found, expected in zip(state.beta, reference.bc3e_column_step(data, phi, state.beta, 1.0), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-4)
    np.testing.assert_allclose(state.prior_mu, state.mu.mean(axis=0), atol=1e-3)
    kappa, xi = reference.bc3e_taylor_points(state)
    best = reference.bc3e_bound(data, state, 1.0)
    for step in (0.99, 1.01):
        assert reference.bc3e_bound(data, state, 1.0, points=(kappa * step, xi)) <= best + 1e-12 * abs(best)
        assert reference.bc3e_bound(data, state, 1.0, points=(kappa, xi * step)) <= best + 1e-12 * abs(best)
    for n, rows in enumerate(phi):
        for at in range(len(rows)):
            moved = [list(r) for r in phi]
            tilted = moved[n][at] * np.array([1.01, 0.99])
            moved[n][at] = tilted / tilted.sum()
            assert reference.bc3e_bound(data, state, 1.0, phi=moved) <= best + 1e-12 * abs(best)


# Joint, factorised and exact.


@settings(laws, max_examples=3)
@given(seed=seeds, k=st.integers(2, 3), sigma2=st.sampled_from([0.5, 4.0]), delta2=st.sampled_from([0.2, 1.0]))
def test_the_best_joint_bound_is_not_below_the_best_factorised_one(
    seed: int, k: int, sigma2: float, delta2: float
) -> None:
    table = problem(seed, k, largest=10)
    fixed: dict[str, Any] = {"n_classes": k, "sigma2": sigma2, "delta2": delta2, "max_iter": 150, "tol": 1e-10}
    factorised = BC3E(posterior="factorised", **fixed).fit(table)
    # From the factorised optimum too: a joint q contains every factorised one.
    start = {name: np.nan_to_num(factorised.posterior_[name]) for name in ("mu", "eps")}
    joint = max(BC3E(**fixed).fit(table).lower_bound_, BC3E(start=start, **fixed).fit(table).lower_bound_)
    assert joint >= factorised.lower_bound_ - 1e-9 * abs(factorised.lower_bound_)


def test_a_joint_posterior_improves_a_factorised_optimum_at_the_same_parameters() -> None:
    table = problem(2, 2, largest=8)
    data = reference.bc3e_data(table, 2)
    model = BC3E(n_classes=2, posterior="factorised", sigma2=2.0, delta2=0.3, max_iter=100, tol=0).fit(table)
    state = state_of(model, data)
    reached = reference.bc3e_bound(data, state, 0.01)
    assert reached == pytest.approx(model.lower_bound_, rel=1e-9)
    for _ in range(5):
        sums = reference.bc3e_object_sums(data, reference.bc3e_phi(data, state), 2)
        for n in range(len(data.rows)):
            state = reference.bc3e_joint_sweep(state, n, data.votes[n], sums[n], reference.bc3e_labels(data)[n])
        assert reference.bc3e_bound(data, state, 0.01) >= reached - 1e-9
        reached = reference.bc3e_bound(data, state, 0.01)
    assert reached > model.lower_bound_ + 0.1


def exact_log_likelihood(data: reference.BC3EData, state: reference.BC3EState) -> float:
    """ln p(votes, labels | mu, sigma², delta², beta) for two classes, whose softmax needs only differences.

    y_1 - y_2 ~ N(mu_1 - mu_2, sigma_1² + sigma_2²), theta_1 - theta_2 ~ N(y_1 - y_2, 2 delta²): a plane, summed
    on a grid, which is exact to many digits for smooth integrands that vanish at its border.
    """
    total = 0.0
    spread, tie = math.sqrt(state.sigma2.sum()), math.sqrt(2 * state.delta2)
    standard = np.linspace(-8.0, 8.0, 401)
    weight = np.exp(-(standard**2) / 2) * (standard[1] - standard[0]) / math.sqrt(2 * math.pi)
    y = (state.prior_mu[0] - state.prior_mu[1]) + spread * standard
    theta = y[:, None] + tie * standard[None, :]
    first = 1.0 / (1.0 + np.exp(-theta))
    for n, cells in enumerate(data.cells):
        votes = np.exp(-data.votes[n, 0] * np.logaddexp(0.0, -y) - data.votes[n, 1] * np.logaddexp(0.0, y))
        labels = np.ones_like(theta)
        for cell in cells:
            b = state.beta[cell.m][:, cell.j]
            labels *= (first * b[0] + (1.0 - first) * b[1]) ** cell.p
        total += math.log((weight * votes * (labels * weight).sum(axis=1)).sum())
    return total


@pytest.mark.parametrize("posterior", ["joint", "factorised"])
@settings(laws, max_examples=4)
@given(seed=seeds, learnt=st.booleans(), soft=st.booleans())
def test_the_bound_is_below_the_exact_log_likelihood(posterior: str, seed: int, learnt: bool, soft: bool) -> None:
    table = problem(seed, 2, largest=6, soft_votes=soft, soft_labels=soft)
    data = reference.bc3e_data(table, 2)
    fixed = {} if learnt else {"sigma2": 2.0, "delta2": 0.4}
    model = BC3E(n_classes=2, posterior=posterior, max_iter=25, tol=0, **fixed).fit(table)  # type: ignore[arg-type]
    state = state_of(model, data)
    exact = exact_log_likelihood(data, state)
    bound = model.lower_bound_ - reference.beta_log_prior(state.beta, 0.01)
    assert bound <= exact + 1e-9 * abs(exact)


# Names of classes, kinds of votes.


@pytest.mark.parametrize(
    ("names", "nothing"),
    [(["bad", "fair", "good"], ""), ([10, 20, 30], -1)],
    ids=["text", "integers"],
)
@pytest.mark.parametrize("declared", [False, True])
def test_classes_keep_their_names(names: Any, nothing: Any, declared: bool) -> None:
    truth, clusterings, votes = arrays()
    named = np.asarray(names)[votes]
    if named.dtype.kind == "U":
        named = named.astype(object)
        named[5] = None
    else:
        named[5] = -1
    clusterings[5] = -1
    model = BC3E(classes=names if declared else None).fit(clusterings, named)
    assert model.classes_.tolist() == list(names)
    assert model.labels_[5] == nothing
    known = np.arange(60) != 5
    assert set(model.labels_[known].tolist()) <= set(names)
    assert (model.labels_[known] == np.asarray(names)[truth][known]).mean() > 0.9
    np.testing.assert_array_equal(model.labels_[known], model.classes_[model.class_proba_.argmax(axis=1)][known])


def test_class_probabilities_are_the_softmax_of_mu() -> None:
    table = problem(6, 3)
    known = reference.bc3e_data(table, 3).rows
    model = BC3E(n_classes=3).fit(table)
    weights = np.exp(model.posterior_["mu"][known])
    np.testing.assert_allclose(model.class_proba_[known], weights / weights.sum(axis=1, keepdims=True), rtol=1e-9)
    np.testing.assert_allclose(model.class_proba_.sum(axis=1), 1.0, rtol=1e-12)


def test_an_object_without_votes_and_labels_has_no_class_and_the_prior() -> None:
    _, clusterings, votes = arrays()
    longer = [np.vstack([x, np.full((4, x.shape[1]), -1)]) for x in (clusterings, votes)]
    short, long = BC3E(n_classes=3).fit(clusterings, votes), BC3E(n_classes=3).fit(*longer)
    assert long.labels_[60:].tolist() == [-1] * 4
    prior = np.exp(long.mu_) / np.exp(long.mu_).sum()
    np.testing.assert_allclose(long.class_proba_[60:], np.tile(prior, (4, 1)), rtol=1e-12)
    np.testing.assert_allclose(long.bound_path_, short.bound_path_, rtol=1e-12)
    np.testing.assert_allclose(long.class_proba_[:60], short.class_proba_, rtol=1e-9)


def test_the_number_of_classes_may_exceed_those_that_are_voted_for() -> None:
    _, clusterings, votes = arrays(k=2)
    model = BC3E(n_classes=4).fit(clusterings, votes)
    assert model.classes_.tolist() == [0, 1, 2, 3]
    assert model.class_proba_.shape == (60, 4)
    assert set(model.labels_.tolist()) <= {0, 1}
    reference.assert_never_decreases(model.bound_path_)


def test_classes_may_be_given_in_any_order() -> None:
    _, clusterings, votes = arrays()
    names = np.array(["b", "c", "a"])
    one = BC3E(classes=["b", "c", "a"]).fit(clusterings, names[votes])
    other = BC3E(classes=["a", "b", "c"]).fit(clusterings, names[votes])
    assert one.classes_.tolist() == ["b", "c", "a"]
    np.testing.assert_array_equal(one.labels_, other.labels_)
    np.testing.assert_allclose(one.class_proba_, other.class_proba_[:, [1, 2, 0]], rtol=1e-9)
    # Probabilities come in the order in which the classes are given.
    certain = np.eye(3)[votes]
    soft = BC3E(classes=["b", "c", "a"]).fit(clusterings, certain)
    np.testing.assert_array_equal(soft.labels_, one.labels_)
    np.testing.assert_array_equal(soft.class_proba_, one.class_proba_)
    # So does a given start.
    logits = np.zeros((len(votes), 3))
    logits[:, 0] = 5.0
    begun = BC3E(classes=["b", "c", "a"], start={"mu": logits, "eps": logits}, max_iter=0)
    assert set(begun.fit(clusterings, names[votes]).labels_) == {"b"}


def test_votes_of_a_table_are_matched_by_id() -> None:
    _, clusterings, votes = arrays()
    ids = [f"o{i}" for i in range(len(votes))]
    labels = LabelTable.from_arrays(clusterings, ids=ids)
    turned = np.random.default_rng(0).permutation(len(votes))
    panel = LabelTable.from_arrays(votes[turned], ids=[ids[i] for i in turned])
    np.testing.assert_array_equal(BC3E().fit(labels, panel).labels_, BC3E().fit(clusterings, votes).labels_)
    with pytest.raises(InputError, match="different objects"):
        BC3E().fit(labels, LabelTable.from_arrays(votes))


@pytest.mark.parametrize("posterior", ["joint", "factorised"])
def test_probabilities_of_certain_votes_are_the_votes(posterior: str) -> None:
    _, clusterings, votes = arrays()
    votes[3:6, 1] = -1
    certain = np.eye(3)[np.maximum(votes, 0)]
    certain[votes < 0] = np.nan
    hard = BC3E(n_classes=3, posterior=posterior).fit(clusterings, votes)  # type: ignore[arg-type]
    soft = BC3E(n_classes=3, posterior=posterior).fit(clusterings, certain)  # type: ignore[arg-type]
    np.testing.assert_array_equal(hard.bound_path_, soft.bound_path_)
    np.testing.assert_array_equal(hard.class_proba_, soft.class_proba_)
    np.testing.assert_array_equal(hard.labels_, soft.labels_)


def test_a_table_with_classifier_columns_stands_for_both_arguments() -> None:
    _, clusterings, votes = arrays()
    both = LabelTable.from_arrays(
        np.hstack([clusterings, votes]), columns=[*"abcde", "v0", "v1", "v2"], classifiers=["v*"]
    )
    one, other = BC3E().fit(both), BC3E().fit(clusterings, votes)
    np.testing.assert_array_equal(one.bound_path_, other.bound_path_)
    np.testing.assert_array_equal(one.labels_, other.labels_)


def test_soft_votes_carry_confidence() -> None:
    truth, clusterings, _ = arrays(k=2)
    rng = np.random.default_rng(0)
    right = np.clip(rng.normal(0.6, 0.15, (60, 2)), 0.01, 0.99)
    proba = np.where((np.arange(2) == truth[:, None])[:, None, :], right[:, :, None], 1 - right[:, :, None])
    soft = BC3E().fit(clusterings, proba)
    assert (soft.labels_ == truth).mean() > 0.95
    reference.assert_never_decreases(soft.bound_path_)


# Do the clusterings follow the classes?


def test_kappa_is_high_when_clusters_follow_classes_and_near_0_when_they_are_random() -> None:
    _, clusterings, votes = arrays(n=120)
    assert BC3E().fit(clusterings, votes).kappa_ > 0.6
    values = [BC3E().fit(*arrays(n=150, seed=seed, follow=False)[1:]).kappa_ for seed in range(3)]
    assert abs(np.mean(values)) < 0.3


@settings(laws, max_examples=6)
@given(seed=seeds, k=st.integers(2, 3))
def test_kappa_is_cohens_between_the_clusterings_view_and_the_votes(seed: int, k: int) -> None:
    table = problem(seed, k, largest=30)
    data = reference.bc3e_data(table, k)
    model = BC3E(n_classes=k).fit(table)
    flat = replace(state_of(model, data), eps=np.zeros((len(data.rows), k)))
    view = reference.bc3e_object_sums(data, reference.bc3e_phi(data, flat), k)
    both = (data.votes.sum(axis=1) > 0) & (reference.bc3e_labels(data) > 0)
    if not both.any():
        assert model.kappa_ == 0.0
        return
    ranked = np.sort(view[both], axis=1)
    if (ranked[:, -1] - ranked[:, -2] < 1e-9).any():
        return  # a tie: either class is right
    said, voted = view[both].argmax(axis=1), data.votes[both].argmax(axis=1)
    if len({*said, *voted}) == 1:
        assert model.kappa_ == 1.0
        return
    assert model.kappa_ == pytest.approx(cohen_kappa_score(said, voted), abs=1e-9)


# Same bits.


def assert_same_bits(one: BC3E, other: BC3E, rows: Any = slice(None)) -> None:
    np.testing.assert_array_equal(one.bound_path_, other.bound_path_)
    np.testing.assert_array_equal(one.class_proba_[rows], other.class_proba_)
    np.testing.assert_array_equal(one.labels_[rows], other.labels_)
    np.testing.assert_array_equal(one.mu_, other.mu_)
    np.testing.assert_array_equal(one.sigma2_, other.sigma2_)
    assert (one.delta2_, one.kappa_, one.n_iter_) == (other.delta2_, other.kappa_, other.n_iter_)
    for name in ("mu", "eps", "s", "d", "r"):
        np.testing.assert_array_equal(one.posterior_[name][rows], other.posterior_[name])


@pytest.mark.parametrize("start", ["votes", "diffused"])
def test_nothing_is_random_and_neither_threads_nor_tiles_change_a_bit(
    start: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(1)
    clusterings, votes = rng.integers(-1, 4, (300, 5)), rng.integers(-1, 2, (300, 3))

    def fit(**extra: Any) -> BC3E:
        return BC3E(start=start, max_iter=3, **extra).fit(clusterings, votes)  # type: ignore[arg-type]

    one = fit()
    assert_same_bits(one, fit(random_state=4))
    monkeypatch.setattr(holdings, "_TILE_ENTRIES", 1)  # the narrowest tiles there are
    for threads in (1, 2, 3):
        assert_same_bits(one, fit(n_threads=threads))


@pytest.mark.parametrize(("start", "posterior"), [("votes", "joint"), ("diffused", "factorised")])
@given(seed=seeds, k=st.integers(2, 4))
@laws
def test_rows_and_columns_in_another_order_get_the_same_bits(start: str, posterior: str, seed: int, k: int) -> None:
    table = problem(seed, k, soft_votes=bool(seed % 2), soft_labels=True)
    rng = np.random.default_rng(seed)
    rows, names = rng.permutation(table.n_objects), [column.name for column in table.columns]
    shuffled = table.select(rows, [names[j] for j in rng.permutation(len(names))])
    model = BC3E(n_classes=k, start=start, posterior=posterior)  # type: ignore[arg-type]
    assert_same_bits(copy.deepcopy(model).fit(table), copy.deepcopy(model).fit(shuffled), rows)


@laws
@given(seed=seeds, k=st.integers(2, 3))
def test_equal_rows_get_equal_bits_and_counting_them_once_changes_nothing(seed: int, k: int) -> None:
    table = problem(seed, k, largest=10, soft_votes=bool(seed % 2))
    rows = np.repeat(np.arange(table.n_objects), np.random.default_rng(seed).integers(1, 5, table.n_objects))
    repeated = LabelTable(np.arange(len(rows)).astype(str), tuple(c.take(rows) for c in table.columns))
    merged = BC3E(n_classes=k).fit(repeated)
    with pytest.MonkeyPatch.context() as patch:

        def apart(parts: Sequence[np.ndarray]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
            n = len(parts[0])
            return np.arange(n), np.arange(n), np.ones(n, dtype=np.int64)

        patch.setattr(holdings, "equal_rows", apart)
        separate = BC3E(n_classes=k).fit(repeated)
    assert_same_bits(merged, separate)
    for i in range(table.n_objects):
        copies = merged.class_proba_[rows == i]
        np.testing.assert_array_equal(copies, np.tile(copies[0], (len(copies), 1)))


def test_renaming_classes_and_clusters_renames_the_result() -> None:
    _, clusterings, votes = arrays()
    order = np.array([2, 0, 1])  # class c becomes order[c]
    renamed = np.stack([order[column] for column in clusterings.T], axis=1)
    one, other = BC3E().fit(clusterings, votes), BC3E().fit(renamed, order[votes])
    assert one.lower_bound_ == pytest.approx(other.lower_bound_, rel=1e-9)
    np.testing.assert_allclose(other.class_proba_[:, order], one.class_proba_, rtol=1e-7, atol=1e-10)
    np.testing.assert_array_equal(other.labels_, order[one.labels_])


# The estimator.


def test_the_votes_of_an_object_can_be_overruled_by_its_clusters() -> None:
    truth, clusterings, votes = arrays(n=200)
    majority = np.array([np.bincount(row, minlength=3).argmax() for row in votes])
    model = BC3E().fit(clusterings, votes)
    assert (model.labels_ == truth).mean() > (majority == truth).mean() + 0.02


def test_objects_with_votes_only_or_labels_only_get_a_class() -> None:
    truth, clusterings, votes = arrays(n=150)
    votes[:40] = -1
    clusterings[40:60] = -1
    model = BC3E(n_classes=3).fit(clusterings, votes)
    assert np.isin(model.labels_, [0, 1, 2]).all()
    assert (model.labels_[:40] == truth[:40]).mean() > 0.9
    assert (model.labels_[40:60] == truth[40:60]).mean() > 0.6
    reference.assert_never_decreases(model.bound_path_)


def test_parameters_can_be_read_set_cloned_and_printed() -> None:
    model = BC3E(n_classes=3, posterior="factorised", delta2=0.5)
    assert set(model.get_params()) == {
        "classes",
        "n_classes",
        "posterior",
        "start",
        "delta2",
        "sigma2",
        "max_iter",
        "tol",
        "smoothing",
        "local_loops",
        "random_state",
        "n_threads",
        "progress",
    }
    assert model.set_params(n_classes=2) is model
    assert clone(model).get_params() == model.get_params()
    assert repr(model) == "BC3E(n_classes=2, posterior='factorised', delta2=0.5)"
    with pytest.raises(ValueError, match="n_clusters"):
        model.set_params(n_clusters=3)


def test_a_pickled_model_is_the_same() -> None:
    _, clusterings, votes = arrays()
    model = BC3E().fit(clusterings, votes)
    twin = pickle.loads(pickle.dumps(model))
    assert_same_bits(twin, model)
    assert twin.get_params() == model.get_params()
    np.testing.assert_array_equal(BC3E().fit_predict(clusterings, votes), model.labels_)


@pytest.mark.parametrize("iterations", [1, 14])
def test_without_tolerance_exactly_max_iter_iterations_run(iterations: int) -> None:
    _, clusterings, votes = arrays()
    model = BC3E(max_iter=iterations, tol=0).fit(clusterings, votes)
    assert model.n_iter_ == iterations
    assert len(model.bound_path_) == iterations + 1


BAD = [
    ("posterior", {"posterior": "mean-field"}),
    ("start", {"start": "random"}),
    ("start", {"start": None}),
    ("start", {"start": {"mu": np.zeros((60, 3))}}),
    ("start", {"start": {"mu": np.zeros((5, 3)), "eps": np.zeros((60, 3))}}),
    ("start", {"start": {"mu": np.full((60, 3), math.nan), "eps": np.zeros((60, 3))}}),
    ("start", {"start": {"mu": np.zeros((60, 3)), "eps": np.full((60, 3), math.inf)}}),
    ("sigma2", {"sigma2": 0.0}),
    ("sigma2", {"sigma2": -1.0}),
    ("sigma2", {"sigma2": "wide"}),
    ("delta2", {"delta2": 0}),
    ("delta2", {"delta2": math.nan}),
    ("delta2", {"delta2": [0.1, 0.2]}),
    ("max_iter", {"max_iter": -1}),
    ("tol", {"tol": -1.0}),
    ("smoothing", {"smoothing": -0.1}),
    ("local_loops", {"local_loops": 0}),
    ("n_threads", {"n_threads": 0}),
    ("n_classes", {"n_classes": 2.5}),
    ("n_classes", {"n_classes": 0}),
    ("classes", {"n_classes": 1}),
    ("classes", {"classes": ["only"]}),
    ("classes", {"classes": [0, 1, 2, 2]}),
    ("class", {"classes": [0, 1]}),
    ("class", {"classes": ["a", "b", "c"]}),
    ("class", {"n_classes": 2}),
]


@pytest.mark.parametrize(("name", "parameters"), BAD, ids=[f"{n}-{i}" for i, (n, _) in enumerate(BAD)])
def test_a_bad_parameter_is_refused_by_its_name(name: str, parameters: dict[str, Any]) -> None:
    _, clusterings, votes = arrays()
    with pytest.raises(InputError, match=name):
        BC3E(**{"max_iter": 2, **parameters}).fit(clusterings, votes)


def test_bad_votes_are_refused_clearly() -> None:
    _, clusterings, votes = arrays()
    fair = np.full((60, 2, 3), 1 / 3)
    with pytest.raises(InputError, match="class"):
        BC3E().fit(clusterings)
    with pytest.raises(InputError, match="classifier"):
        BC3E(n_classes=3).fit(clusterings)
    with pytest.raises(LabelError, match="objects"):
        BC3E().fit(clusterings, votes[:50])
    with pytest.raises(LabelError, match="objects"):
        BC3E().fit(clusterings, fair[:50])
    for spoilt in (0.9, -0.1, math.nan):
        wrong = fair.copy()
        wrong[7, 1, 0] = spoilt
        with pytest.raises(LabelError, match="row 7") as caught:
            BC3E().fit(clusterings, wrong)
        assert str(spoilt) not in str(caught.value)
    with pytest.raises(LabelError, match="3 classes"):
        BC3E(classes=["a", "b"]).fit(clusterings, fair)
    with pytest.raises(InputError, match="text"):
        BC3E().fit(clusterings, np.array([["a", 1]] * 60, dtype=object))
    with pytest.raises(InputError, match="two"):
        BC3E().fit(clusterings, np.zeros((60, 2), dtype=int))


def test_ragged_votes_are_refused_clearly() -> None:
    _, clusterings, votes = arrays()
    ragged = [*votes[:59].tolist(), [0]]
    with pytest.raises(LabelError, match="row 59"):
        BC3E().fit(clusterings, ragged)


def test_probabilities_of_no_classifier_are_refused_clearly() -> None:
    _, clusterings, _ = arrays()
    with pytest.raises(LabelError, match="classifier"):
        BC3E().fit(clusterings, np.zeros((60, 0, 3)))


def test_a_clustering_without_any_label_does_no_harm() -> None:
    _, clusterings, votes = arrays()
    for start in ("votes", "diffused"):
        model = BC3E(start=start, max_iter=3).fit(np.insert(clusterings, 2, -1, axis=1), votes)  # type: ignore[arg-type]
        reference.assert_never_decreases(model.bound_path_)
        assert model.beta_[2].shape == (3, 0)


@pytest.mark.parametrize("posterior", ["joint", "factorised"])
@pytest.mark.parametrize("smoothing", [0.0, 0.01])
@pytest.mark.parametrize("n", [1, 2])
def test_the_smallest_tables_can_be_fitted(posterior: str, smoothing: float, n: int) -> None:
    labels, votes = np.zeros((n, 1), dtype=int), np.arange(n)[:, None]
    model = BC3E(n_classes=2, posterior=posterior, smoothing=smoothing, max_iter=12, tol=0)  # type: ignore[arg-type]
    model.fit(labels, votes)
    reference.assert_never_decreases(model.bound_path_)
    np.testing.assert_allclose(model.class_proba_.sum(axis=1), 1.0, rtol=1e-12)
