"""The bound of BC3E never decreases, is the one of MATH.md, and is below the exact likelihood."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import reference
from support.bc3e_problems import laws, problem, seeds, start_of, state_of

from ce.errors import InputError
from ce.models import BC3E

#: Fits here end after a few iterations, converged or not: tests/unit/models/test_convergence.py has the warning.
pytestmark = pytest.mark.filterwarnings("ignore::ce.errors.ConvergenceWarning")

# The bound.


options = st.fixed_dictionaries(
    {
        "sigma2": st.sampled_from([None, 0.3, 9.0]),
        "delta2": st.sampled_from([None, 0.05, 2.0]),
        "smoothing": st.sampled_from([0.0, 0.01, 1.0]),
        "local_loops": st.sampled_from([1, 3]),
    }
)


@pytest.mark.promise("The bound never decreases, and is the one of the papers.")
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


@pytest.mark.promise("The bound never decreases, and is the one of the papers.")
@settings(laws, max_examples=10)
@given(seed=seeds, k=st.integers(2, 3), iterations=st.integers(0, 12), joint=st.booleans())
def test_the_bound_of_every_iterate_is_the_one_of_the_text(seed: int, k: int, iterations: int, joint: bool) -> None:
    table = problem(seed, k, soft_votes=True, soft_labels=True)
    posterior = "joint" if joint else "factorised"
    model = BC3E(n_classes=k, posterior=posterior, max_iter=iterations, tol=0).fit(table)  # type: ignore[arg-type]
    assert model.n_iter_ == iterations
    data = reference.bc3e_data(table, k)
    assert model.lower_bound_ == pytest.approx(reference.bc3e_bound(data, state_of(model, data), 0.01), rel=1e-9)


@pytest.mark.promise("The bound never decreases, and is the one of the papers.")
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
