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
from ce.models.bce_gibbs import SampledBCE, warn_of_chains
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
    with pytest.warns(ConvergenceWarning, match="do not agree yet"):
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
    found = run_chains([Told(row) for row in log_joint], Schedule(50, 0, 1), 1)
    assert found.used.tolist() == [True, True, False, True]
    assert found.r_hat == pytest.approx(1.0, abs=0.1)
    with pytest.warns(ConvergenceWarning, match="1 of 4 chains sit in a less likely mode"):
        warn_of_chains(found, stacklevel=1)
    none = np.zeros(0)
    assert not SampledBCE(found, none, none, none, []).converged


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


class Told(Counted):
    """... whose log joint is one of these numbers after the other, and whose clusters change places in every sweep."""

    def __init__(self, log_joint: Any) -> None:
        super().__init__()
        self._log_joint = log_joint

    @property
    def log_joint(self) -> float:
        return float(self._log_joint[self.swept - 1])

    @property
    def partition(self) -> Any:
        return (super().partition + self.swept) % 2

    @property
    def counts(self) -> Any:
        turn = slice(None, None, -1 if self.swept % 2 else 1)
        objects, categories = super().counts
        return objects[:, turn], categories[:, turn]


def test_clusters_that_change_places_are_the_same_clusters() -> None:
    found = run_chains([Told(np.zeros(40)), Told(np.zeros(40))], Schedule(40, 0, 1), 2)
    assert sorted(found.objects.sum(axis=0).tolist()) == [2.0, 4.0]
    assert set(found.objects.ravel().tolist()) == {0.0, 2.0}
    assert sorted(found.categories.sum(axis=0).tolist()) == [2.0, 4.0]
    np.testing.assert_array_equal(found.objects.argmax(axis=1), found.partition)


@pytest.mark.filterwarnings("ignore::ce.errors.ConvergenceWarning")
@pytest.mark.parametrize("seed", range(3))
def test_objects_and_columns_without_a_label_change_nothing(seed: int) -> None:
    codes = planted(30, 5, 2, 0.3)[1]
    more = np.full((80, 5), -1)
    more[:30] = codes
    one, other = sampled(codes, 2, random_state=seed), sampled(more, 2, random_state=seed)
    np.testing.assert_array_equal(one.memberships_, other.memberships_[:30])
    np.testing.assert_array_equal(one.log_joint_, other.log_joint_)
    assert (other.labels_[30:] == -1).all()
    empty = sampled(np.column_stack([codes, np.full(30, -1)]), 2, random_state=seed)
    assert np.isfinite(empty.log_joint_).all()
    assert empty.beta_[5].shape == (2, 0)


@pytest.mark.filterwarnings("ignore::ce.errors.ConvergenceWarning")
def test_a_fit_has_the_attributes_of_its_own_inference(small: Any) -> None:
    fitted = BCE(3, random_state=0).fit(small)
    fitted.set_params(inference="gibbs", max_iter=20).fit(small)
    assert not {"lower_bound_", "bound_path_"} & set(vars(fitted))
    fitted.set_params(inference="vb").fit(small)
    assert not {"log_joint_", "r_hat_", "effective_draws_", "chains_used_"} & set(vars(fitted))


@pytest.mark.filterwarnings("ignore::ce.errors.ConvergenceWarning")
def test_there_are_never_more_sweeps_than_were_asked_for(small: Any) -> None:
    assert sampled(small, max_iter=1, thin=5).n_iter_ == 1
    assert sampled(small, max_iter=4, thin=50).log_joint_.shape == (3, 1)
    assert sampled(small, max_iter=4, thin=3, burn_in=1).log_joint_.shape == (3, 1)
    with pytest.raises(InputError, match=r"burn_in = 2 and thin = 3 leave no draw of max_iter = 4 sweeps"):
        sampled(small, max_iter=4, thin=3, burn_in=2)


def test_partitions_of_few_draws_are_kept() -> None:
    drawn: list[Any] = []
    advance = chains._Drawn.advance

    def noted(self: Any, sweeps: int, keep: bool) -> None:
        drawn.append(self)
        advance(self, sweeps, keep)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(chains._Drawn, "advance", noted)
        run_chains([Told(np.zeros(400)) for _ in range(5)], Schedule(400, 0, 1), 1)
    assert {len(one.partitions) for one in drawn} == {10}
    assert {len(one.log_joint) for one in drawn} == {400}


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
    for name, value in (("omega", 0), ("omega", 1e308), ("alpha", 1e-300)):
        with pytest.raises(InputError, match=f"takes an {name} between 1e-06 and 1e"):
            sampled([[0], [1]], 2, **{name: value})
    with pytest.raises(InputError, match="at most 1,000 clusters"):
        sampled([[0], [1]], 1001)
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
