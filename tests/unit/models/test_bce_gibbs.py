"""BCE by Gibbs sampling, as a user sees it."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest

from ce import metrics
from ce.errors import ConvergenceWarning, InputError
from ce.kernels import backend
from ce.labels import Column, LabelTable
from ce.models import BCE
from ce.samplers import chains
from ce.samplers.chains import SamplerProgress, Schedule, in_the_best_mode, run_chains


def planted(n: int, m: int, k: int, wrong: float, missing: float = 0.0, seed: int = 0) -> tuple[Any, Any]:
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, k, n)
    codes = np.column_stack([rng.permutation(k)[truth] for _ in range(m)])
    at = rng.random(codes.shape) < wrong
    codes[at] = rng.integers(0, k, int(at.sum()))
    codes[rng.random(codes.shape) < missing] = -1
    return truth, codes


@pytest.fixture(name="small")
def _small() -> Any:
    return planted(60, 8, 3, 0.2, 0.1)[1]


def sampled(labels: Any, k: int = 3, **more: Any) -> BCE:
    given = {"inference": "gibbs", "n_init": 3, "max_iter": 60, "thin": 3, "random_state": 0}
    return BCE(k, **(given | more)).fit(labels)


@pytest.mark.filterwarnings("ignore::ce.errors.ConvergenceWarning")
def test_equal_seeds_give_equal_bits_for_any_number_of_threads(small: Any) -> None:
    one, other = sampled(small), sampled(small, n_threads=3)
    np.testing.assert_array_equal(one.memberships_, other.memberships_)
    np.testing.assert_array_equal(one.log_joint_, other.log_joint_)
    assert not np.array_equal(one.memberships_, sampled(small, random_state=1).memberships_)


@pytest.mark.promise("The defaults recover planted clusters and classes.")
@pytest.mark.parametrize(("wrong", "missing", "least"), [(0.2, 0.0, 0.99), (0.4, 0.3, 0.95)])
def test_planted_clusters_are_found(wrong: float, missing: float, least: float) -> None:
    pytest.importorskip("numba")
    truth, codes = planted(500, 20, 5, wrong, missing)
    with backend.using("numba"):
        fitted = BCE(5, inference="gibbs", random_state=0).fit(codes)
    assert metrics.ari(truth, fitted.labels_) >= least
    assert metrics.ari(truth, fitted.predict(codes)) >= least
    assert fitted.converged_
    assert fitted.r_hat_ < 1.1
    assert 1 <= fitted.effective_draws_ <= 150
    assert fitted.log_joint_.shape == (5, 30)
    assert fitted.n_iter_ == 300
    assert fitted.perplexity(codes) >= 1.0


@pytest.mark.filterwarnings("ignore::ce.errors.ConvergenceWarning")
def test_attributes_are_distributions_and_objects_without_a_label_have_none(small: Any) -> None:
    codes = small.copy()
    codes[[4, 9]] = -1
    fitted = sampled(codes)
    assert fitted.memberships_.shape == (60, 3)
    np.testing.assert_allclose(fitted.memberships_.sum(axis=1), 1.0)
    np.testing.assert_allclose(fitted.memberships_[[4, 9]], 1 / 3)
    assert (fitted.labels_[[4, 9]] == -1).all()
    assert (np.delete(fitted.labels_, [4, 9]) >= 0).all()
    for beta, categories in zip(fitted.beta_, fitted.categories_, strict=True):
        assert beta.shape == (3, len(categories))
        np.testing.assert_allclose(beta.sum(axis=1), 1.0)
    assert not hasattr(fitted, "lower_bound_")


def test_certain_objects_are_more_certain_than_doubtful_ones() -> None:
    codes = np.repeat([[0] * 6, [1] * 6], 20, axis=0)
    codes[0] = [0, 0, 0, 1, 1, 1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = sampled(codes, 2)
    assert fitted.memberships_[0].max() < 0.7
    assert fitted.memberships_[1:].max(axis=1).min() > 0.8


def test_chains_that_do_not_agree_are_named() -> None:
    codes = planted(60, 8, 3, 0.2)[1]
    with pytest.warns(ConvergenceWarning, match=r"do not agree yet|too few draws"):
        assert not sampled(codes, max_iter=5, thin=1, burn_in=0, n_init=2).converged_
    with pytest.warns(ConvergenceWarning, match="too few draws to say"):
        assert math.isnan(sampled(codes, max_iter=2, thin=1, burn_in=0).r_hat_)


def test_a_chain_in_a_poorer_mode_is_left_out() -> None:
    rng = np.random.default_rng(0)
    log_joint = rng.normal(-1000.0, 5.0, (4, 50))
    log_joint[2] -= 200.0
    assert in_the_best_mode(log_joint).tolist() == [True, True, False, True]
    assert in_the_best_mode(log_joint[[0, 1, 3]]).all()
    assert in_the_best_mode(log_joint[:, :3]).all()  # too few draws to say


class Counted:
    """A chain that says how often it was swept, and stops the run when it was swept so often."""

    def __init__(self, stop_at: int = -1) -> None:
        self.swept, self._stop_at = 0, stop_at

    def sweep(self) -> None:
        self.swept += 1
        if self.swept == self._stop_at:
            raise KeyboardInterrupt

    @property
    def log_joint(self) -> float:
        return float(self.swept)

    @property
    def partition(self) -> Any:
        return np.array([0, 1, 1], dtype=np.int16)

    @property
    def counts(self) -> Any:
        return np.array([[2.0, 0.0], [0.0, 2.0], [0.0, 2.0]]), np.array([[2.0, 0.0], [0.0, 4.0]])


def test_what_is_drawn_and_when() -> None:
    seen: list[SamplerProgress] = []
    found = run_chains([Counted(), Counted()], Schedule(sweeps=20, burn_in=7, thin=3), 2, seen.append)
    assert found.log_joint.tolist() == [[10.0, 13.0, 16.0, 19.0]] * 2
    assert found.sweeps == 19
    assert [where.sweep for where in seen] == [3, 6, 7, 10, 13, 16, 19]
    assert found.partition.tolist() == [0, 1, 1]
    assert found.objects.tolist() == [[2.0, 0.0], [0.0, 2.0], [0.0, 2.0]]


def test_interrupted_there_is_a_result_from_the_draws_so_far() -> None:
    found = run_chains([Counted(), Counted(stop_at=15)], Schedule(30, 6, 3), 1)
    assert found.interrupted
    assert found.log_joint.shape[0] == 2
    assert found.log_joint.shape[1] >= 2
    with pytest.raises(KeyboardInterrupt):
        run_chains([Counted(stop_at=4)], Schedule(30, 6, 3), 1)


def test_an_interrupted_fit_says_so(small: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(chains._Drawn):
        def advance(self, sweeps: int, keep: bool) -> None:
            if len(self.log_joint) == 5:
                raise KeyboardInterrupt
            super().advance(sweeps, keep)

    monkeypatch.setattr(chains, "_Drawn", Interrupted)
    with pytest.warns(ConvergenceWarning, match="interrupted after 45 sweeps"):
        fitted = sampled(small)
    assert fitted.log_joint_.shape == (3, 5)


def test_values_that_a_sampler_cannot_use() -> None:
    chances = np.array([[0.5, 0.5], [0.1, 0.9]])
    soft = LabelTable(np.array(["a", "b"]), (Column("c", "clustering", (0, 1), None, chances),), "test")
    with pytest.raises(InputError, match=r'has probabilities.*inference="vb"'):
        sampled(soft, 2)
    with pytest.raises(InputError, match="one number alpha"):
        sampled([[0], [1]], 2, alpha=[1.0, 2.0])
    with pytest.raises(InputError, match="omega above 0"):
        sampled([[0], [1]], 2, omega=0)
    with pytest.raises(InputError, match="inference is one of 'vb', 'gibbs'"):
        sampled([[0], [1]], 2, inference="mcmc")
    with pytest.raises(InputError, match="thin is a whole number"):
        sampled([[0], [1]], 2, thin=0)
    votes = LabelTable(np.array(["a"]), (Column("v", "classifier", (0,), np.zeros(1, dtype=np.int32), None),), "test")
    with pytest.raises(InputError, match="there is no clustering"):
        sampled(votes, 2)


def test_progress_goes_to_standard_error(small: Any, capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        sampled(small, progress=True)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines()[-1].startswith("sweep 60 of 60: 3 chains, log joint -")
