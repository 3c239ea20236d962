"""Attacks of a coordinator that deviates, and what totals of votes name: each where it works, and where it must not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
from support.ensembles import Tables, by_columns, by_rows, ids, noisy

from ce import Job, LabelTable
from ce.audit import audit, example_tables
from ce.audit.adversary_views import CoordinatorView
from ce.audit.attacks.crafted_messages import AttackOver
from ce.audit.attacks.left_out_members import remaining_members, without_members
from ce.audit.attacks.nonlinear_fit import fit_totals
from ce.audit.attacks.pattern_counts import PatternCounts
from ce.audit.attacks.reset_and_probe import ResetAndProbe
from ce.audit.attacks.unanimous_votes import unanimous_votes
from ce.audit.recording import record, secrets_of
from ce.audit.report import COUNTED, LEAKS, NOTHING, OVERLAP_CHECK
from ce.audit.scoring import Truth, vote_share
from ce.policy import Policy

Stage = Callable[..., Any]
EXACT = pytest.approx(1.0)


def probed(job: Any, questions: list[Any], exchanges: int = 100) -> tuple[list[float], int]:
    """The scores of an attack by reset and probe, and how many exchanges it took."""
    asked = replace(job.job, max_iterations=exchanges, tolerance=0.0, schedule="newton", local_loops=1)
    attackers: list[ResetAndProbe] = []

    def wrap(inner: Any) -> ResetAndProbe:
        model, topology = job.recording.model, job.recording.topology
        attackers.append(ResetAndProbe(inner, questions[0].block, topology, model, asked.smoothing))
        return attackers[0]

    with suppress(AttackOver):
        record(asked, job.tables, "masked", job.secrets, wrap=wrap, first=1, keys_of=job.job)
    return job.scores(attackers[0].guesses(questions)), attackers[0].exchanges


@pytest.mark.promise("The audit finds planted leaks, and finds none where it says that there are none.")
@pytest.mark.parametrize("name", ["five single columns", "noisy, four sites"])
def test_reset_and_probe_reads_columns_that_one_site_holds(name: str, ensembles: dict[str, Any], staged: Stage) -> None:
    """No column is shared; in the second ensemble one label in twenty is missing, and no other attack finds any."""
    job = staged(ensembles[name], "masked")
    scores, exchanges = probed(job, job.questions)
    assert scores == [EXACT] * len(job.questions)
    assert exchanges <= 60


def test_reset_and_probe_is_not_disturbed_by_private_objects_and_shared_columns(staged: Stage) -> None:
    """The built-in example: 240 shared objects, 60 private ones at each site, two columns of all sites."""
    job = staged(example_tables(), "masked", clusters=4)
    scores, exchanges = probed(job, job.questions)
    assert scores == [EXACT] * 12
    assert exchanges <= 60


@pytest.mark.slow
@pytest.mark.parametrize(("name", "clusters", "mean"), [("wine, four sites", 5, 0.99), ("digits", 10, 0.75)])
def test_reset_and_probe_reads_k_means_columns(
    name: str, clusters: int, mean: float, ensembles: dict[str, Any], staged: Stage
) -> None:
    job = staged(ensembles[name], "masked", clusters=clusters)
    scores, _ = probed(job, job.questions)
    assert np.mean(scores) > mean


def test_two_clusters_are_too_few_to_probe(ensembles: dict[str, Any], staged: Stage) -> None:
    job = staged(ensembles["five single columns"], "masked", clusters=2)
    scores, exchanges = probed(job, job.questions, 6)
    assert scores == [0.0] * 5
    assert exchanges == 1


@pytest.mark.promise("The audit finds planted leaks, and finds none where it says that there are none.")
def test_fitting_works_where_members_are_left_out() -> None:
    """Ten sites with a column each: nothing is fitted. Five of them alone: every label. Sites that compare what they
    share refuse it, which the verdict says."""
    tables = by_columns(noisy(1, 200, 10, 3, 4, 0.45), 10)
    job = Job(clusters=3, max_iterations=30)
    secrets = secrets_of(job, tables)
    whole = record(job, tables, "masked", secrets)
    truth = Truth(whole, tables)
    guesses = fit_totals(CoordinatorView.of(whole, 0), truth.questions())
    assert max(truth.score(question, guess) for question, guess in guesses.items()) == 0.0
    remaining = remaining_members(whole, 0, Policy())
    assert len(remaining) == 5
    fewer = record(job, without_members(tables, remaining), "masked", secrets)
    assert {block.members for block in fewer.topology.blocks if block.shared} == {remaining}
    found = audit(job, tables, modes=("masked",), attacks=("left-out members",))
    assert [(f.recovered, f.verdict) for f in found.findings] == [(EXACT, OVERLAP_CHECK)]
    assert found.leaks == ()


def test_no_member_of_three_can_be_left_out(ensembles: dict[str, Any], staged: Stage) -> None:
    job = staged(ensembles["three columns each"], "masked")
    assert remaining_members(job.recording, 0, Policy()) == ()


def counted(tables: Tables, restarts: int = 5) -> tuple[Counter[Any], Counter[Any]]:
    """The label rows of all sites together, and those that pattern counts find."""
    job = Job(clusters=3, max_iterations=150, tolerance=0.0, schedule="newton", restarts=restarts)
    secrets = secrets_of(job, tables)
    plain = record(replace(job, max_iterations=1), tables, "plain", secrets, keys_of=job)
    (group,) = CoordinatorView.of(plain, 0).groups.values()
    attackers: list[PatternCounts] = []

    def wrap(inner: Any) -> PatternCounts:
        attackers.append(PatternCounts(inner, group, plain.topology, plain.model))
        return attackers[0]

    with suppress(AttackOver):
        record(job, tables, "masked", secrets, wrap=wrap, first=1, keys_of=job)
    true: Counter[Any] = sum(Truth(plain, tables).rows(group).values(), Counter())
    return true, attackers[0].rows()


@pytest.mark.promise("The audit finds planted leaks, and finds none where it says that there are none.")
def test_pattern_counts_find_all_label_rows_of_all_sites_together() -> None:
    true, found = counted(by_rows(noisy(4, 400, 4, 3, 4, 0.3), [100, 100, 100]))
    assert found == true
    assert sum(found.values()) == 400
    assert min(found.values()) == 1  # also rows that one object alone has: not which object, nor at which site


def test_pattern_counts_say_nothing_about_one_column_of_one_site() -> None:
    tables = by_rows(noisy(4, 400, 4, 3, 4, 0.3), [100, 100, 100])
    found = audit(Job(clusters=3, max_iterations=30), tables, modes=("masked", "blind"), attacks=("pattern counts",))
    by_measure = {finding.measure: finding for finding in found.findings}
    assert by_measure["rows"].recovered == EXACT
    assert by_measure["rows"].verdict == COUNTED
    assert by_measure["ari"].verdict == NOTHING
    assert {finding.mode for finding in found.findings} == {"masked"}


@pytest.mark.promise("The audit finds planted leaks, and finds none where it says that there are none.")
@pytest.mark.parametrize(
    ("shared_objects", "verdict"), [("exclude", "ruled out: one set of holders"), ("totals", LEAKS)]
)
def test_a_site_with_two_groups_of_shared_columns_can_be_told_apart(
    shared_objects: Literal["exclude", "totals"], verdict: str
) -> None:
    """Nothing else is broken, and no object is shared: parameters of one group of columns are enough to get the exact
    label counts of one site out of the sums of another group."""
    labels = noisy(1, 500, 4, 3, 4, 0.3)
    tables = {}
    for s, columns in enumerate(([0, 1, 2, 3], [0, 1], [0, 1], [2, 3], [2, 3])):
        rows = slice(100 * s, 100 * s + 100)
        names = [f"c{column}" for column in columns]
        tables[f"site{s}"] = LabelTable.from_arrays(labels[rows, columns], ids=ids(500)[rows], columns=names)
    job = Job(clusters=3, max_iterations=3)
    policy = Policy(shared_objects=shared_objects)
    found = audit(job, tables, modes=("masked", "blind"), attacks=("one site's parameters",), policy=policy)
    assert bool(found.broken_rules) == (shared_objects == "exclude")
    assert [(f.mode, f.measure, f.recovered, f.verdict) for f in found.findings] == [
        ("masked", "histograms", 1.0, verdict)
    ]


def voting(n: int = 200) -> Tables:
    """Five sites, each with a clustering and a classifier that is right for seven of ten objects."""
    rng = np.random.default_rng(3)
    truth = rng.integers(0, 3, n)
    tables = {}
    for s in range(5):
        votes = np.where(rng.random(n) < 0.7, truth, rng.integers(0, 3, n))
        labels = np.stack([noisy(s, n, 1, 3, 3, 0.3)[:, 0], votes], axis=1).astype(str)
        names = [f"c{s}", f"v{s}"]
        tables[f"site{s}"] = LabelTable.from_arrays(labels, ids=ids(n), columns=names, classifiers=["v*"])
    return tables


@pytest.mark.promise("The audit finds planted leaks, and finds none where it says that there are none.")
def test_unanimous_votes_are_named() -> None:
    tables = voting()
    job = Job(model="bc3e", classes=("0", "1", "2"), max_iterations=3)
    found = audit(job, tables, modes=("masked", "blind"), attacks=("unanimous votes",))
    votes = np.array([table.classifiers[0].likeliest for table in tables.values()])
    agree = (votes == votes[0]).all(axis=0).mean()
    assert 0.2 < agree < 0.5
    by_view = {(f.view, f.mode): f for f in found.findings}
    assert by_view["coordinator", "masked"].recovered == pytest.approx(agree)
    assert by_view["coordinator", "masked"].verdict == LEAKS
    assert by_view["coordinator", "blind"].recovered == 0.0
    # A member subtracts its own vote: the four others need only agree with each other.
    others = (votes[1:] == votes[1]).all(axis=0).mean()
    assert others > agree
    assert by_view["site site0", "blind"].recovered == pytest.approx(others)
    assert by_view["site site0", "blind"].verdict == LEAKS


def test_votes_that_differ_are_not_named(staged: Stage) -> None:
    job = Job(model="bc3e", classes=("0", "1", "2"), max_iterations=1)
    tables = voting(40)
    recording = record(job, tables, "masked", secrets_of(job, tables))
    named = unanimous_votes(CoordinatorView.of(recording, 0), 0)
    assert named is not None
    ballots = [table.classifiers[0].likeliest[recording.rows[s][0]].astype(np.intp) for s, table in tables.items()]
    agree = np.all(ballots == ballots[0], axis=0)
    assert ((named >= 0) == agree).all()
    assert vote_share(ballots, named) == pytest.approx(agree.mean())
    assert vote_share(ballots, np.full(40, -2)) == 0.0
