"""Each attack succeeds where it should. An attack that never succeeds would prove nothing where it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from ce.audit.adversary_views import CoordinatorView, HolderView
from ce.audit.attacks.crafted_messages import (
    CraftedMessages,
    flat_messages,
    one_hot_messages,
    one_hot_rounds,
    read_flat,
    read_one_hot,
)
from ce.audit.attacks.equal_rows import distinct_rows, distinct_totals, equality_classes, paper_rows, phi_inversion
from ce.audit.attacks.histograms import others_histograms, proportional_histograms, site_histograms
from ce.audit.attacks.known_beta_decode import decode_as_site, decode_shared, decode_starts
from ce.audit.attacks.linear_unmix import unmix, unmix_as_site, unmix_parts
from ce.audit.attacks.message_inversion import inferred_totals
from ce.audit.attacks.nonlinear_fit import fit_as_site, fit_totals
from ce.audit.attacks.peel_rows import label_rows
from ce.audit.attacks.roster_differences import RosterView, differences, histogram_differences
from ce.audit.attacks.subtract_parts import distinct_residuals
from ce.audit.recording import record
from ce.audit.scoring import Truth, agreement, exact_share, row_share
from ce.ring import decode

Ensembles = dict[str, Any]
Stage = Callable[..., Any]
EXACT = pytest.approx(1.0)


@pytest.mark.promise("The audit finds planted leaks, and finds none where it says that there are none.")
@pytest.mark.parametrize("name", ["five single columns", "wine, five single columns"])
@pytest.mark.parametrize(("attack", "model"), [(phi_inversion, "bce"), (distinct_rows, "mixture")])
def test_plain_sums_of_one_column_are_its_partition(
    name: str, attack: Any, model: str, ensembles: Ensembles, staged: Stage
) -> None:
    job = staged(ensembles[name], "plain", model=model)
    assert job.scores(attack(job.view, job.questions)) == [EXACT] * 5
    hidden = staged(ensembles[name], "masked", model=model)
    assert max(hidden.scores(attack(hidden.view, hidden.questions))) < 0.05


def test_plain_sums_of_several_columns_unmix_where_they_are_linear(ensembles: Ensembles, staged: Stage) -> None:
    job = staged(ensembles["three columns each"], "plain", model="mixture")
    assert np.mean(job.scores(unmix_parts(job.view, job.questions))) > 0.95
    hidden = staged(ensembles["three columns each"], "masked", model="mixture")
    assert max(hidden.scores(unmix_parts(hidden.view, hidden.questions))) < 0.05
    bce = staged(ensembles["three columns each"], "plain")
    assert max(bce.scores(unmix_parts(bce.view, bce.questions))) < 0.05


def test_totals_are_the_same_words_in_plain_and_masked(ensembles: Ensembles, staged: Stage) -> None:
    plain, masked = (staged(ensembles["five single columns"], mode).view.rounds(0) for mode in ("plain", "masked"))
    for one, other in zip(plain, masked, strict=True):
        np.testing.assert_array_equal(one.total, other.total)
        assert not np.array_equal(one.parts["site0"], other.parts["site0"])


def test_the_rows_of_the_papers_protocol_are_the_partition(ensembles: Ensembles, staged: Stage) -> None:
    job = staged(ensembles["five single columns"], "plain")
    for question in job.questions:
        beta = job.recording.final_beta[job.truth.name(question)]
        assert job.truth.score(question, [paper_rows(beta, job.truth.job_codes(question))]) == EXACT


@pytest.mark.parametrize("name", ["five single columns", "wine, five single columns"])
def test_objects_with_equal_label_rows_end_at_equal_totals(name: str, ensembles: Ensembles, staged: Stage) -> None:
    def best(job: Any) -> float:
        return max(agreement(job.truth.classes(0), guess) for guess in equality_classes(job.view, 0))

    for mode in ("plain", "masked"):
        job = staged(ensembles[name], mode, max_iterations=30)
        assert best(job) == EXACT
        implied = [job.truth.baseline(question) for question in job.questions]
        assert (np.array(job.scores(distinct_totals(job.view, job.questions))) < implied).all()
    # Objects start at different points.
    assert best(staged(ensembles[name], "masked", max_iterations=1)) < 0.05


def test_one_sites_column_sums_are_its_histograms(ensembles: Ensembles, staged: Stage) -> None:
    job = staged(ensembles["rows"], "plain")
    true = job.truth.histograms()
    assert len(true) == 20
    assert exact_share(true, site_histograms(job.view)) == 1.0
    assert exact_share(true, proportional_histograms(job.view)) < 0.2
    masked = staged(ensembles["rows"], "masked")
    assert exact_share(true, site_histograms(masked.view)) == 0.0
    # A holder that subtracts its own histogram has the sum of the three others.
    assert exact_share(true, others_histograms(HolderView.of(job.recording, "site0"))) == 0.0


def test_of_two_holders_each_knows_the_others_histogram(ensembles: Ensembles, staged: Stage) -> None:
    tables = {site: ensembles["rows"][site] for site in ("site0", "site1")}
    job = staged(tables, "plain")
    assert exact_share(job.truth.histograms(), others_histograms(HolderView.of(job.recording, "site0"))) == 1.0


def test_peeling_reads_the_label_rows_of_small_sites(ensembles: Ensembles, staged: Stage) -> None:
    job = staged(ensembles["small rows"], "plain")
    (group,) = job.view.groups.values()
    found, true = label_rows(job.view, group), job.truth.rows(group)
    assert row_share(true["site0"], found["site0"]) == 1.0
    assert row_share(true["site1"], found["site1"]) == 1.0
    assert row_share(true["site2"], found["site2"]) < 0.05
    masked = staged(ensembles["small rows"], "masked")
    hidden = label_rows(masked.view, group)
    assert max(row_share(true[site], hidden[site]) for site in true) < 0.05


@pytest.mark.promise("The audit finds planted leaks, and finds none where it says that there are none.")
@pytest.mark.parametrize("model", ["bce", "mixture"])
def test_public_starts_decode_to_every_label_and_secret_ones_to_none(
    model: str, ensembles: Ensembles, staged: Stage
) -> None:
    tables = ensembles["five single columns"]
    job = staged(tables, "masked", model=model)
    public = record(replace(job.job, max_iterations=1, local_loops=1), tables, "masked", None)
    truth = Truth(public, tables)
    view = CoordinatorView.of(public, job.job.seed, public_starts=True)
    guesses = decode_starts(view, truth.questions())
    assert [truth.score(question, guess) for question, guess in guesses.items()] == [EXACT] * 5
    assert max(job.scores(decode_starts(job.view, job.questions))) < 0.05


def test_the_home_decodes_shared_columns_of_a_shared_block(ensembles: Ensembles, staged: Stage) -> None:
    job = staged(ensembles["cells"], "masked")
    assert len(job.questions) == 15
    assert job.scores(decode_shared(job.view, job.questions)) == [EXACT] * 15


def test_a_co_holder_decodes_shared_columns_of_a_shared_block(ensembles: Ensembles, staged: Stage) -> None:
    job = staged(ensembles["cells"], "masked")
    foreign = job.foreign("site1")
    assert job.scores(decode_as_site(job.site("site1"), foreign)) == [EXACT] * 10


def test_totals_follow_from_messages(ensembles: Ensembles, staged: Stage) -> None:
    job = staged(ensembles["five single columns"], "masked")
    view = job.site("site2")
    seen = {(round_.stage, round_.iteration): round_ for round_ in job.view.rounds(0)}
    found = inferred_totals(view)
    assert len(found) == len(seen) - 1
    for inferred in found:
        total = decode(seen[inferred.stage, inferred.iteration].total, view.scale(0, "objects"))
        np.testing.assert_allclose(inferred.total, total, atol=1e-11)


def test_of_two_sites_each_knows_the_others_partition(ensembles: Ensembles, staged: Stage) -> None:
    job = staged(ensembles["two sites"], "masked")
    foreign = job.foreign("site0")
    assert job.scores(distinct_residuals(job.site("site0"), foreign)) == [EXACT]
    five = staged(ensembles["five single columns"], "masked")
    foreign = five.foreign("site0")
    assert max(five.scores(distinct_residuals(five.site("site0"), foreign))) < 0.5


@pytest.mark.promise("The audit finds planted leaks, and finds none where it says that there are none.")
@pytest.mark.parametrize("model", ["bce", "mixture"])
def test_two_rosters_differ_by_one_sites_part(model: str, ensembles: Ensembles, staged: Stage) -> None:
    job = staged(ensembles["five single columns"], "masked", model=model)
    rest = {site: table for site, table in job.tables.items() if site != "site4"}
    without = CoordinatorView.of(record(job.job, rest, "masked", job.secrets), job.job.seed)
    assert job.scores(differences(RosterView(job.view, without, "site4"), job.questions)) == [EXACT]


def test_two_rosters_differ_by_one_sites_histograms(ensembles: Ensembles, staged: Stage) -> None:
    job = staged(ensembles["rows"], "masked")
    rest = {site: table for site, table in job.tables.items() if site != "site3"}
    without = CoordinatorView.of(record(job.job, rest, "masked", job.secrets), job.job.seed)
    found = histogram_differences(RosterView(job.view, without, "site3"))
    assert len(found) == 5
    assert exact_share(job.truth.histograms(), found) == 1.0


@pytest.mark.promise("The audit finds planted leaks, and finds none where it says that there are none.")
def test_crafted_messages_read_labels_from_column_sums(ensembles: Ensembles, staged: Stage) -> None:
    job = staged(ensembles["cells"], "masked")
    rounds = one_hot_rounds(5, 3, 150)
    asked = replace(job.job, max_iterations=rounds, tolerance=0.0)
    craft = partial(one_hot_messages, block=0)
    crafted = record(
        asked,
        job.tables,
        "masked",
        job.secrets,
        wrap=lambda inner: CraftedMessages(inner, craft),
        first=rounds + 2,
        keys_of=job.job,
    )
    guesses = read_one_hot(CoordinatorView.of(crafted, 0), job.questions)
    assert job.scores(guesses) == [EXACT] * 15


def test_crafted_flat_messages_make_totals_linear(ensembles: Ensembles, staged: Stage) -> None:
    job = staged(ensembles["five single columns"], "masked")
    crafted = record(
        job.job, job.tables, "masked", job.secrets, wrap=lambda inner: CraftedMessages(inner, flat_messages), first=9
    )
    assert job.scores(read_flat(CoordinatorView.of(crafted, 0), job.questions)) == [EXACT] * 5


def test_linear_totals_unmix_to_every_column(ensembles: Ensembles, staged: Stage) -> None:
    """Five sites, four foreign columns, secret starts, masked sums: this is why `min_foreign_columns` counts no column
    for linear models."""
    job = staged(ensembles["five single columns"], "masked", model="mixture")
    assert job.scores(unmix(job.view, job.questions)) == [EXACT] * 5
    foreign = job.foreign("site0")
    assert job.scores(unmix_as_site(job.site("site0"), foreign)) == [EXACT] * 4


@pytest.mark.parametrize("name", ["five single columns", "wine, five single columns"])
def test_equal_first_messages_make_totals_linear_and_different_ones_do_not(
    name: str, ensembles: Ensembles, staged: Stage
) -> None:
    """Without a job key there are no pseudonyms, so that all objects start at the same point."""
    job = staged(ensembles[name], "masked")
    flat = record(replace(job.job, max_iterations=1), job.tables, "masked", None)
    truth = Truth(flat, job.tables)
    found = unmix(CoordinatorView.of(flat, job.job.seed), truth.questions())
    scores = [truth.score(question, guess) for question, guess in found.items()]
    assert max(scores) == EXACT
    assert np.mean(scores) > 0.7
    assert max(job.scores(unmix(job.view, job.questions))) < 0.05
    assert max(job.scores(unmix_as_site(job.site("site0"), job.foreign("site0")))) < 0.05


def test_objects_with_equal_labels_reveal_all_column_parameters(ensembles: Ensembles, staged: Stage) -> None:
    """A finding: every label is recovered in spite of secret starts, masked sums, different starting points and
    satisfied default rules."""
    job = staged(ensembles["five single columns"], "masked", max_iterations=30)
    assert job.scores(fit_totals(job.view, job.questions)) == [EXACT] * 5
    assert job.scores(fit_as_site(job.site("site0"), job.foreign("site0"))) == [EXACT] * 4


def test_more_columns_hide_nothing_where_many_objects_have_equal_labels(ensembles: Ensembles, staged: Stage) -> None:
    """Nine foreign columns of four labels; the largest class has 33 objects of 1,000."""
    job = staged(ensembles["many objects, twelve columns"], "masked", max_iterations=30)
    assert job.scores(fit_as_site(job.site("site0"), job.foreign("site0"))) == [EXACT] * 9


def test_nothing_is_fitted_without_equal_objects(ensembles: Ensembles, staged: Stage) -> None:
    """Of twelve columns and 220 objects the largest class has five: fewer than there are columns."""
    job = staged(ensembles["noisy, four sites"], "masked", max_iterations=60)
    assert np.bincount(job.truth.classes(0)).max() == 5
    assert job.scores(fit_totals(job.view, job.questions)) == [0.0] * 12
    assert job.scores(fit_as_site(job.site("site0"), job.foreign("site0"))) == [0.0] * 9


def test_the_totals_of_too_many_columns_do_not_unmix(ensembles: Ensembles, staged: Stage) -> None:
    """One exchange of five starts and three clusters has ten dimensions; nine columns of four labels have 27."""
    job = staged(ensembles["three columns each"], "masked")
    flat = record(replace(job.job, max_iterations=1), job.tables, "masked", None)
    truth = Truth(flat, job.tables)
    found = unmix(CoordinatorView.of(flat, job.job.seed), truth.questions())
    assert max(truth.score(question, guess) for question, guess in found.items()) < 0.05
