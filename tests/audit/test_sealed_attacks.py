"""Sealed jobs: under the default policy no attack of the coordinator or of one site, over any number of jobs on the
same labels, gains more than 0.03 on any column; stated limits succeed; and the same tests say LEAKS where noise,
encryption or the check of the model is missing, so that they can fail.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from audit.test_default_policy import CLUSTERS, GRID, tables_of
from support.ensembles import Tables, ids, noisy, partly_shared

from ce import Job, LabelTable
from ce.audit import ATTACKS, SEALED_ATTACKS, Audit, audit
from ce.audit.report import BUDGET, LEAKS, NO_EXACT, NOTHING, REFITTED, SEALED_MARGIN, STATED
from ce.audit.sealed import plan, run, scenarios
from ce.audit.sealed.attacks.linear_programme import nearest_labels
from ce.audit.sealed.attacks.release_differences import guess_after_edit
from ce.audit.sealed.attacks.small_categories import read_small_categories
from ce.audit.sealed.attacks.transcript import FEWEST_BYTES, uniformity
from ce.audit.sealed.attacks.weighted_rows import chosen_labels
from ce.audit.sealed.plan import LIMITS
from ce.audit.sealed.pooled_labels import PooledLabels
from ce.audit.sealed.recording import SealedRecording, record_sealed
from ce.audit.sealed.scenarios import Budget, edited_foreign_file, exact_tables, one_job
from ce.audit.sealed.scoring import Baseline
from ce.audit.sealed.superseded import SUPERSEDED
from ce.job import EXACT
from ce.policy import Policy
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.sealed.channel import OVERHEAD, Bytes, Channel, as_array, received

#: An attack by its own success, or by what sites do not allow.
KNOWN = {**dict.fromkeys(LIMITS, STATED), "crafted model": REFITTED, "unbounded jobs": BUDGET, "exact tables": NO_EXACT}


def small() -> Tables:
    labels = noisy(3, 240, 6, 3, 3, 0.3)
    return partly_shared(labels[:, :-2], labels[:, -2:], 3, 160)


def many_own_labels(n: int = 100, columns: int = 10) -> Tables:
    """Site a has 0.4 labels of its own for each object; b and c have two and three columns of three labels."""
    own, foreign = noisy(0, n, columns, 3, 5, 0.5), noisy(0, n, 5, 3, 3, 0.5)
    return {
        "a": LabelTable.from_arrays(own, ids=ids(n), columns=[f"a{j:02d}" for j in range(columns)]),
        "b": LabelTable.from_arrays(foreign[:, :2], ids=ids(n), columns=["b0", "b1"]),
        "c": LabelTable.from_arrays(foreign[:, 2:], ids=ids(n), columns=["c0", "c1", "c2"]),
    }


def sealed(clusters: int = 3, **keys: object) -> Job:
    return Job(model="pairs", clusters=clusters, **keys)  # type: ignore[arg-type]


def assert_nothing_gained(found: Audit) -> None:
    assert found.leaks == ()
    for finding in found.findings:
        assert finding.verdict in (NOTHING, KNOWN.get(finding.attack)), finding
        if finding.attack not in KNOWN:
            assert finding.gain <= SEALED_MARGIN, finding


def verdicts(found: Audit, attack: str) -> set[str]:
    return {finding.verdict for finding in found.findings if finding.attack == attack}


@pytest.fixture(scope="module", name="recording")
def _recording() -> SealedRecording:
    tables = small()
    return record_sealed(sealed(sites=tuple(tables)), tables)


@pytest.mark.promise("Under the default policy no attack of the audit gains more than 0.03 from sealed jobs.")
def test_no_attack_gains_from_a_small_job() -> None:
    found = audit(sealed(), small(), policy=Policy())
    assert found.objects == 240
    assert found.excluded_objects == 0
    assert {finding.attack for finding in found.findings} == set(SEALED_ATTACKS)
    assert {f.view for f in found.findings} == {"coordinator", *(f"site {site}" for site in found.sites)}
    assert_nothing_gained(found)
    # The stated limits are no leaks, and they do work.
    assert verdicts(found, "dealer and site") == verdicts(found, "weighted rows") == {STATED}
    assert min(f.recovered for f in found.findings if f.attack in LIMITS) > 0.9
    assert verdicts(found, "crafted model") == {REFITTED}


@pytest.mark.slow
@pytest.mark.promise("Under the default policy no attack of the audit gains more than 0.03 from sealed jobs.")
@pytest.mark.parametrize("name", GRID)
def test_no_attack_gains_by_any_column_of_a_sealed_job(name: str) -> None:
    found = audit(sealed(CLUSTERS.get(name, 3)), tables_of(name), policy=Policy())
    assert found.excluded_objects == 0
    assert {finding.attack for finding in found.findings} == set(SEALED_ATTACKS)
    assert_nothing_gained(found)
    assert verdicts(found, "dealer and site") == verdicts(found, "weighted rows") == {STATED}


@pytest.mark.slow
@pytest.mark.promise("The audit finds planted leaks, and finds none where it says that there are none.")
def test_exact_tables_give_every_label_to_a_site_with_many_labels_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.4 equations for each object: linear programming finds all labels of every column. With noise it finds none."""
    names = ("several jobs", "exact tables")
    found = {finding.attack: finding for finding in audit(sealed(), many_own_labels(), attacks=names).findings}
    assert found["exact tables"].recovered == pytest.approx(1.0)
    assert found["exact tables"].gain > 0.5
    assert found["exact tables"].verdict == NO_EXACT
    assert found["several jobs"].verdict == NOTHING
    # Jobs whose noise were forgotten would be found.
    drawn = scenarios.draw_release.__wrapped__

    def without_noise(labels: PooledLabels, job: Job, draw: tuple[object, ...], **_: object) -> object:
        return drawn(labels, job, draw, epsilon=EXACT)

    monkeypatch.setattr(scenarios, "draw_release", without_noise)
    monkeypatch.setattr(run, "FURTHER_DRAWS", 1)
    assert verdicts(audit(sealed(), many_own_labels(), attacks=names[:1]), names[0]) == {LEAKS}


def test_every_label_is_found_from_exact_tables_and_none_of_the_change_is_hidden() -> None:
    """The decoders themselves, on one target each."""
    labels = PooledLabels.of(many_own_labels())
    budget = Budget(sealed(), EXACT, 0)
    known = exact_tables(labels, "a", budget)
    for target in known.targets:
        baseline = Baseline.of(labels, known, target)
        guess = nearest_labels(known, target, baseline.prior)
        assert guess is not None
        assert baseline.score(guess).recovered == pytest.approx(1.0)
    after, known, difference = edited_foreign_file(labels, "a", "c", budget)
    for target in known.targets:
        baseline = Baseline.of(after, known, target)
        guess = guess_after_edit(difference, target, baseline.prior)
        assert guess is not None
        assert baseline.score_from_prior(guess).gain > SEALED_MARGIN


def test_a_category_of_one_object_reads_a_row_of_an_exact_table() -> None:
    """Every object has a category of its own in one column of the attacker: its foreign labels stand in the table."""
    n = 60
    tables = many_own_labels(n, 1)
    tables["a"] = LabelTable.from_arrays(np.arange(n)[:, None], ids=ids(n), columns=["a0"])
    labels = PooledLabels.of(tables)
    for epsilon, least, most in ((EXACT, 0.99, 1.0), (2.0, -1.0, 0.9)):
        known = one_job(labels, "a", Budget(sealed(), epsilon, 0))
        for target in known.targets:
            baseline = Baseline.of(labels, known, target)
            guess = read_small_categories(known, target, baseline.prior)
            assert guess is not None
            assert least <= baseline.score(guess).recovered <= most


def test_a_winner_says_a_lot_about_a_single_foreign_column() -> None:
    """Two sites, one column each and no minimum of foreign columns: why there is one."""
    labels = noisy(2, 200, 2, 3, 4, 0.2)
    tables = {f"site{s}": LabelTable.from_arrays(labels[:, [s]], ids=ids(200), columns=[f"c{s}"]) for s in range(2)}
    found = audit(sealed(4, epsilon=100.0, collusion=0), tables, attacks=("winners",), policy=Policy())
    assert found.broken_rules
    hidden = PooledLabels.of(tables, min_foreign_columns=4)
    release = one_job(hidden, "site0", Budget(sealed(4), EXACT, 0)).seen[0].release
    assert set(hidden.winners(release.weights, release.beta)) == {-1}
    assert set(PooledLabels.of(tables).winners(release.weights, release.beta)) > {0}


def test_rows_that_are_not_one_hot_pass_every_check_of_the_opened_tables() -> None:
    """A stated limit: nothing in the tables tells such rows from honest ones."""
    labels = PooledLabels.of(small())
    guesses, passed = chosen_labels(labels, "site0", sealed(), 2.0, 0)
    assert passed
    right = [labels.counts[column][object_].argmax() == label for object_, column, label in guesses]
    assert len(right) >= 2
    assert np.mean(right) > 0.9


@pytest.mark.promise("The audit finds planted leaks, and finds none where it says that there are none.")
def test_a_model_that_nobody_checks_and_rows_that_nobody_encrypts_leak(monkeypatch: pytest.MonkeyPatch) -> None:
    def in_the_clear(self: Channel, key: bytes, content: bytes, context: bytes) -> Bytes:
        return as_array(bytes(OVERHEAD - 16) + content + bytes(16))

    def as_it_is(self: Channel, key: bytes, name: ArrayName, task: object, size: int, context: bytes) -> bytes:
        return received(task.arrays, name, size + OVERHEAD)[OVERHEAD - 16 : -16]  # type: ignore[attr-defined]

    monkeypatch.setattr(Channel, "_encrypt", in_the_clear)
    monkeypatch.setattr(Channel, "_decrypt", as_it_is)
    monkeypatch.setattr(run, "refused", lambda *_: False)
    monkeypatch.setattr(run, "DRAWS", 1)
    monkeypatch.setattr(run, "FURTHER_DRAWS", 1)
    found = audit(sealed(), small(), attacks=("dealt masks", "crafted model"))
    assert verdicts(found, "dealt masks") == verdicts(found, "crafted model") == {LEAKS}
    assert max(finding.recovered for finding in found.findings) == pytest.approx(1.0)


def test_words_that_pass_between_the_parties_are_uniform(recording: SealedRecording) -> None:
    judged = 0
    for exchange in recording.exchanges:
        for arrays in (*exchange.tasks.values(), *exchange.answers.values()):
            for name, array in arrays.arrays.items():
                if ArrayName(name).kind != "model":
                    judged += len(array) >= FEWEST_BYTES
                    assert uniformity(array.tobytes()) < 5.0, name
    assert judged > 40
    readable = [one for site in recording.readable.values() for one in site if one.step == "compare"]
    for one in readable:
        assert uniformity(one.content) < 5.0, one.name
    assert len(readable) > 20
    # Labels would be noticed.
    assert uniformity(np.random.default_rng(0).integers(0, 4, 4000).astype(np.uint8).tobytes()) > 100


def test_drawn_releases_are_those_of_recorded_jobs(recording: SealedRecording) -> None:
    """The audit draws further releases without the protocol: tables, deviation and winners are the same."""
    tables = small()
    labels = PooledLabels.of(tables)
    job = sealed(sites=tuple(tables))
    drawn = one_job(labels, "site0", Budget(job, 2.0, 0)).seen[0].release
    assert drawn.layout == recording.release.layout
    assert drawn.sd == pytest.approx(recording.release.sd)
    for release in (drawn, recording.release):
        noise = drawn.layout.packed(release.tables - labels.tables)
        assert np.abs(noise).max() < 6.0 * drawn.sd
        assert noise.std() == pytest.approx(drawn.sd, rel=0.15)
    winners = labels.winners(recording.release.weights, recording.release.beta)
    for site, table in tables.items():
        assert np.array_equal(winners[np.searchsorted(labels.ids, table.ids)], recording.labels[site])


def test_attacks_on_totals_find_nothing_to_work_on(recording: SealedRecording) -> None:
    assert set(SUPERSEDED) == set(ATTACKS)
    assert all(len(sentence.split()) > 4 for sentence in SUPERSEDED.values())
    kinds = set()
    for exchange in recording.exchanges:
        for carried in (*exchange.tasks.values(), *exchange.answers.values()):
            kinds |= {ArrayName(name).kind for name in carried.arrays}
    assert kinds == {"box", "all", "members", "dealer", "model"}


def test_a_gain_by_chance_is_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A column that seems to gain is played with other draws, and only these count."""
    drawn: list[int] = []

    def lucky(known: object, target: object, prior: np.ndarray) -> np.ndarray:  # type: ignore[type-arg]
        return prior.argmax(axis=1)

    original = scenarios.one_job

    def noted(labels: PooledLabels, site: str, budget: Budget) -> object:
        drawn.append(budget.draw)
        return original(labels, site, budget)

    first = plan.SiteAttack("linear programming", plan._on(noted, lucky))  # type: ignore[arg-type]
    monkeypatch.setattr(run, "SITE_ATTACKS", (first,))
    monkeypatch.setattr(run, "SEALED_MARGIN", -1.0)
    audit(sealed(), small(), attacks=("linear programming",))
    assert drawn == list(range(run.DRAWS + run.FURTHER_DRAWS))


def test_a_policy_that_refuses_the_job_rules_findings_out() -> None:
    found = audit(sealed(), small(), attacks=("dealt masks",), policy=replace(Policy(), min_sites=9))
    assert set(found.broken_rules.values()) == {("min_sites",)}
    assert found.leaks == ()
