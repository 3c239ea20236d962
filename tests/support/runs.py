"""Short runs of every model over random problems: what tests of layouts, modes and checkpoints have in common."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from ce.labels import LabelTable
from ce.models import BC3E, BCE, Mixture
from ce.protocol.engine.starting_parameters import SeededStarts
from ce.protocol.local_run import Run, run
from ce.steps.model import Model
from support.problems import problem


def models(k: int) -> dict[str, Model]:
    """Every model, with schedules short enough to pass through all of their parts in a few iterations."""
    return {
        "bce anneal": BCE(k, n_init=2, anneal_iter=3, max_iter=18, tol=0).steps(),
        "bce newton": BCE(k, n_init=1, init="dirichlet", schedule="newton", max_iter=6, tol=0).steps(),
        "bce fixed alpha": BCE(k, n_init=1, learn_alpha=False, alpha=0.5, smoothing=0.0, max_iter=5, tol=0).steps(),
        "mixture": Mixture(k, n_init=2, max_iter=6, tol=0).steps(),
        "mixture unsmoothed": Mixture(k, n_init=1, smoothing=0.0, max_iter=6, tol=0).steps(),
        "bc3e joint": BC3E(max_iter=4, tol=0).steps(k),
        "bc3e factorised": BC3E(posterior="factorised", max_iter=4, tol=0).steps(k),
        "bc3e diffused": _few_rounds(BC3E(start="diffused", max_iter=3, tol=0).steps(k)),
        "bce single": in_single(BCE(k, n_init=2, anneal_iter=3, max_iter=18, tol=0).steps()),
        "mixture single": in_single(Mixture(k, n_init=2, max_iter=6, tol=0).steps()),
        "bc3e diffused single": in_single(_few_rounds(BC3E(start="diffused", max_iter=3, tol=0).steps(k))),
    }


def in_single(model: Model) -> Model:
    """The same model, in every stage, as a job with precision = "single" has it."""
    stage: Model | None = model
    while stage is not None:
        stage.precision = "single"
        stage = stage.next_stage()
    return model


def _few_rounds(model: Model) -> Model:
    model.max_iter = 4
    return model


def fit_in_mode(model: Model, tables: dict[str, LabelTable], privacy: str, **also: object) -> Run:
    starts = {site: SeededStarts(3) for site in tables}
    return run(model, tables, starts, privacy=privacy, **also)  # type: ignore[arg-type]


def assert_equal_runs(one: Run, other: Run, tables: dict[str, LabelTable]) -> None:
    for name in tables:
        np.testing.assert_array_equal(other.sites[name].memberships(), one.sites[name].memberships())
        np.testing.assert_array_equal(other.sites[name].unlabelled, one.sites[name].unlabelled)
    for name, value in one.outcome.globals.items():
        np.testing.assert_array_equal(other.outcome.globals[name], value, err_msg=name)
    assert other.outcome.winner == one.outcome.winner
    assert {s: p.bounds for s, p in other.outcome.paths.items()} == {s: p.bounds for s, p in one.outcome.paths.items()}
    assert other.outcome.kappa == one.outcome.kappa
    for name, table in one.beta().items():
        np.testing.assert_array_equal(other.beta()[name], table, err_msg=name)


PROBLEMS = st.builds(
    problem,
    st.integers(0, 2**32),
    k=st.integers(2, 6),
    clusterings=st.integers(1, 8),
    missing=st.floats(0, 0.6),
    classifiers=st.integers(1, 3),
)
