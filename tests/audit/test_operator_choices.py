"""Attacks on first totals, and what an operator gains by choosing the number of jobs, the smoothing, the restarts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.ensembles import by_columns, noisy

from ce import Job
from ce.audit import audit
from ce.audit.adversary_views import CoordinatorView
from ce.audit.attacks.alternation import alternate, alternate_as_site, columns_of, labels_of, measured_by_coordinator
from ce.audit.attacks.flat_sums import flat_columns
from ce.audit.attacks.indicator_search import Measured
from ce.audit.attacks.nonlinear_fit import fit_totals
from ce.audit.attacks.repeated_jobs import linked, repeat_as_site
from ce.audit.attacks.smoothing_choice import smoothed_job
from ce.audit.recording import record
from ce.audit.scoring import Truth
from ce.policy import Policy

Ensembles = dict[str, Any]
Stage = Callable[..., Any]
TOTALS = Policy(shared_objects="totals")


@pytest.mark.promise("The audit finds planted leaks, and finds none where it says that there are none.")
def test_tables_and_rows_in_turn_find_every_column_without_equal_rows(ensembles: Ensembles, staged: Stage) -> None:
    """After three exchanges no objects have reached equal totals, so that fitting finds nothing."""
    job = staged(ensembles["five single columns"], "masked", max_iterations=3)
    assert max(job.scores(fit_totals(job.view, job.questions))) < 0.05
    assert min(job.scores(alternate(job.view, job.questions))) >= 0.95
    assert min(job.scores(alternate_as_site(job.site("site0"), job.foreign("site0")))) >= 0.95


def test_rounded_totals_say_the_same(ensembles: Ensembles, staged: Stage) -> None:
    job = staged(ensembles["five single columns"], "masked")
    measured = measured_by_coordinator(job.view, 0)
    rounded = [Measured(np.round(seen.total * 16.0) / 16.0, seen.message) for seen in measured]
    found = columns_of(rounded, labels_of(job.questions), 6.0)
    assert np.mean([job.truth.score(question, found) for question in job.questions]) >= 0.95


def test_masks_are_no_totals(ensembles: Ensembles, staged: Stage) -> None:
    blind = staged(ensembles["five single columns"], "blind", max_iterations=3)
    assert set(blind.scores(alternate(blind.view, blind.questions))) == {0.0}


@pytest.mark.parametrize(("mode", "views"), [("masked", {"coordinator", "site"}), ("blind", {"site"})])
def test_first_totals_are_reported_as_a_leak(mode: str, views: set[str], ensembles: Ensembles) -> None:
    job = Job(clusters=3, max_iterations=3)
    found = audit(job, ensembles["five single columns"], modes=(mode,), attacks=("alternating",))
    assert found.broken_rules == {}
    assert {finding.adversary for finding in found.leaks} == views
    assert min(finding.recovered for finding in found.leaks) >= 0.95


@pytest.mark.slow
@pytest.mark.parametrize("randomise", [0.0, 0.3])
@pytest.mark.parametrize(("columns", "labels"), [(8, 3), (8, 4)])
def test_more_columns_hide_some_of_the_labels(columns: int, labels: int, randomise: float, staged: Stage) -> None:
    """Not all columns are found in the time that is given, but some are. Labels that are random for the most part are
    found as well: what is found are the labels that were sent."""
    table = noisy(1, 300, columns, 3, labels, 0.3)
    rng = np.random.default_rng(3)
    table = np.where(rng.random(table.shape) < randomise, rng.integers(0, labels, table.shape), table)
    job = staged(by_columns(table, 4), "masked", max_iterations=30)
    scores = np.array(job.scores(alternate(job.view, job.questions)))
    gains = scores - [job.truth.baseline(question) for question in job.questions]
    assert gains.max() > 0.2


# Repeated jobs.


@pytest.mark.promise("The audit finds planted leaks, and finds none where it says that there are none.")
def test_the_coordinator_links_objects_of_two_jobs_by_their_result(ensembles: Ensembles, staged: Stage) -> None:
    one, other = (
        staged(ensembles["noisy, four sites"], "masked", max_iterations=60, smoothing=s) for s in (0.01, 0.011)
    )
    order = linked(one.view, other.view, 0)
    assert sorted(order) == list(range(220))
    rows = [np.stack([job.truth.codes(question) for question in job.questions], axis=1) for job in (one, other)]
    assert (rows[0] == rows[1]).all(axis=1).mean() < 0.1
    assert (rows[0] == rows[1][order]).all(axis=1).mean() > 0.9


def test_as_many_jobs_are_played_as_sites_allow(ensembles: Ensembles) -> None:
    job = Job(clusters=3, max_iterations=30)
    tables = ensembles["five single columns"]

    def played(definitions: int, report: list[str]) -> list[str]:
        policy = Policy(shared_objects="totals", max_definitions=definitions)
        found = audit(
            job, tables, modes=("masked",), attacks=("repeated jobs",), policy=policy, on_progress=report.append
        )
        return [finding.view for finding in found.findings]

    report: list[str] = []
    assert played(1, report) == []
    assert not any("jobs over the same labels" in line for line in report)
    assert played(2, report) == ["coordinator", "site site0"]
    assert "running 2 jobs over the same labels, masked" in report


def test_linear_totals_of_six_jobs_show_what_those_of_two_do_not() -> None:
    """Each job adds two dimensions; six columns of three labels have twelve."""
    labels = noisy(4, 200, 6, 3, 3, 0.4)
    rng = np.random.default_rng(0)
    totals = [
        sum(rng.dirichlet(np.ones(3), 3)[codes] for codes in labels.T).T[None]  # type: ignore[union-attr]
        for _ in range(6)
    ]

    def recovered(jobs: int) -> list[bool]:
        found = flat_columns(totals[:jobs], [3] * 6, 10.0)
        partitions = [{frozenset(np.flatnonzero(guess == g)) for g in np.unique(guess)} for guess in found]
        return [{frozenset(np.flatnonzero(codes == g)) for g in range(3)} in partitions for codes in labels.T]

    assert recovered(2) == [False] * 6
    assert recovered(6) == [True] * 6


@pytest.mark.slow
def test_six_jobs_show_more_than_one(staged: Stage) -> None:
    """Eight columns of four labels: more labels than one job's first exchanges show."""
    tables = by_columns(noisy(1, 300, 8, 3, 4, 0.3), 4)
    jobs = [staged(tables, "masked", max_iterations=60, smoothing=0.01 + 0.001 * j) for j in range(6)]
    views = [job.site("site0") for job in jobs]
    foreign = jobs[0].foreign("site0")
    once = np.mean(jobs[0].scores(alternate_as_site(views[0], foreign)))
    often = np.mean(jobs[0].scores(repeat_as_site(views, foreign)))
    assert often > once + 0.1
    assert often > 0.9
    found = audit(
        jobs[0].job,
        tables,
        modes=("masked", "blind"),
        attacks=("repeated jobs",),
        policy=Policy(shared_objects="totals", max_definitions=6),
    )
    assert {(f.adversary, f.mode) for f in found.leaks} == {
        ("coordinator", "masked"),
        ("site", "masked"),
        ("site", "blind"),
    }


# Smoothing.


@pytest.mark.promise("The audit finds planted leaks, and finds none where it says that there are none.")
@pytest.mark.parametrize("most", [100.0, pytest.param(TOTALS.max_smoothing, marks=pytest.mark.slow)])
def test_a_large_smoothing_makes_totals_linear_and_the_ceiling_limits_it(most: float, staged: Stage) -> None:
    """Twelve columns of four labels, of which the coordinator finds none in the job as it is."""
    tables = by_columns(noisy(1, 300, 12, 3, 4, 0.3), 4)
    job = staged(tables, "masked", max_iterations=30)
    policy = Policy(shared_objects="totals", max_smoothing=most)
    chosen = smoothed_job(job.job, job.recording.model, policy, job.questions)
    assert (chosen.smoothing, chosen.restarts) == (most, 20)
    recording = record(chosen, tables, "masked", job.secrets)
    truth = Truth(recording, tables)
    guesses = alternate(CoordinatorView.of(recording, 0), truth.questions())
    scores = np.array([truth.score(question, guess) for question, guess in guesses.items()])
    gains = scores - [job.truth.baseline(question) for question in job.questions]
    # As many restarts as the policy allows show something even so.
    assert (gains.mean() > 0.3) == (most > TOTALS.max_smoothing)
    assert (gains.mean() < 0.15) == (most <= TOTALS.max_smoothing)


def test_a_smoothing_above_the_ceiling_is_ruled_out(ensembles: Ensembles) -> None:
    job = Job(clusters=3, max_iterations=3, smoothing=100.0)
    found = audit(job, ensembles["five single columns"], modes=("masked",), attacks=("alternating",))
    assert found.broken_rules == {"global": ("max_smoothing",)}
    assert {finding.verdict for finding in found.findings} == {"ruled out: max_smoothing"}
