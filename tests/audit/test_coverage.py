"""The audit replays every step and knows what to do with every array: an attack uses it, or a sentence says why it
tells nothing. A new step or array fails here until somebody has thought about it.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.ensembles import Labels, Tables, by_cells, ids, noisy

from ce import Job, LabelTable
from ce.audit import ATTACKS, SEALED_ATTACKS
from ce.audit.adversary_views import CoordinatorView
from ce.audit.attacks.flat_sums import unmix_flat_sums
from ce.audit.coverage import COVERED, reason
from ce.audit.recording import Exchange, Recording, record, secrets_of
from ce.audit.scoring import Truth
from ce.audit.sealed.coverage import COVERED as SEALED_COVERED
from ce.audit.sealed.coverage import reason as sealed_reason
from ce.audit.sealed.recording import SealedRecording, record_sealed
from ce.job import MODES_OF_TOTALS
from ce.protocol.messages import steps
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.sealed_steps import SEALED_TABLE
from ce.protocol.messages.steps import TABLE, Asked, StepRule
from ce.protocol.messages.task import Answer
from ce.ring import encode
from ce.steps.model import Model

MODELS = {"bce": {"clusters": 3}, "mixture": {"clusters": 3}, "bc3e": {"classes": 3}}


def with_votes(labels: Labels, names: list[str], site: str, classes: int, seed: int) -> LabelTable:
    """A table with a classifier of its own, which votes at random."""
    votes = np.random.default_rng(seed).integers(0, classes, (len(labels), 1))
    voter = f"votes of {site}"
    return LabelTable.from_arrays(
        np.hstack([labels, votes]), ids=ids(len(labels)), columns=[*names, voter], classifiers=[voter]
    )


def voting(labels: Labels, sites: int) -> Tables:
    """Every label is held by one site. The first site does not have the first 40 objects."""
    found = {}
    for s, (site, table) in enumerate(by_cells(labels, sites).items()):
        codes = np.stack([column.likeliest for column in table.columns], axis=1)
        whole = with_votes(codes, [column.name for column in table.columns], site, 3, s)
        found[site] = whole.select(np.arange(len(labels)) >= (40 if s == 0 else 0))
    return found


@pytest.fixture(scope="module", name="recordings")
def _recordings() -> list[Recording]:
    tables = voting(noisy(1, 120, 5, 3, 3, 0.3), 3)
    found = []
    for model, keys in MODELS.items():
        for mode in MODES_OF_TOTALS:
            job = Job(model=model, max_iterations=3, **keys)  # type: ignore[arg-type]
            found.append(record(job, tables, mode, secrets_of(job, tables)))
    return found


def missing_from_table() -> set[tuple[str, str]]:
    asked = {(asked.scope, asked.what) for rule in TABLE.values() for asked in rule.asks}
    return asked - set(COVERED)


def of_model(model: Model | None) -> frozenset[str]:
    """Names of the totals and globals of all its stages."""
    names: set[str] = set()
    while model is not None:
        names |= {*model.broadcast, *model.share_shapes(1), *model.share_shapes(30)}
        model = model.next_stage()
    return frozenset(names)


def arrays_of(exchange: Exchange) -> set[str]:
    return {name for carried in (*exchange.tasks.values(), *exchange.answers.values()) for name in carried.arrays}


@pytest.mark.promise("The audit replays every step of the protocol, and has an attack or a reason for every array.")
def test_every_array_that_a_step_asks_for_has_an_attack_or_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    assert missing_from_table() == set()
    for found in COVERED.values():
        if isinstance(found, tuple):
            assert found
            assert set(found) <= set(ATTACKS)
        else:
            assert len(found.split()) > 4
    # The test would notice a new array.
    more = StepRule("A step that nobody has thought about.", asks=(Asked("block", "secrets", ("k", "objects")),))
    monkeypatch.setattr(steps, "TABLE", {**TABLE, "more": more})
    monkeypatch.setitem(missing_from_table.__globals__, "TABLE", steps.TABLE)
    assert missing_from_table() == {("block", "secrets")}


@pytest.mark.promise("The audit replays every step of the protocol, and has an attack or a reason for every array.")
def test_every_step_is_replayed_and_every_array_of_it_is_known(recordings: list[Recording]) -> None:
    replayed = {exchange.step for recording in recordings for exchange in recording.exchanges}
    assert replayed == set(TABLE)
    for recording in recordings:
        names = of_model(recording.model)
        for exchange in recording.exchanges:
            unknown = [name for name in arrays_of(exchange) if reason(name, names) is None]
            assert not unknown, (recording.mode, exchange.step, unknown)


def test_sums_under_a_flat_message_would_be_unmixed(recordings: list[Recording]) -> None:
    """No step asks for them now. If one did, as the last step of bc3e once, one exchange would show every column where
    there are as many classes less one as labels less one in all columns."""
    assert all(not CoordinatorView.of(r, 0).flat_rounds(b.index) for r in recordings for b in r.topology.blocks)
    labels = noisy(1, 300, 5, 3, 3, 0.3)
    tables = {f"site{s}": with_votes(labels[:, s : s + 1], [f"c{s}"], f"site{s}", 12, s) for s in range(5)}
    job = Job(model="bc3e", classes=12, max_iterations=2)
    recording = record(job, tables, "masked", secrets_of(job, tables))
    truth = Truth(recording, tables)
    asked = [question for question in truth.questions() if not truth.is_classifier(question)]
    view = CoordinatorView.of(recording, 0)
    assert unmix_flat_sums(view, asked) == {}
    last = next(exchange for exchange in recording.exchanges if exchange.step == "clusterings_only")
    beta = np.random.default_rng(0).dirichlet(np.ones(12), (5, 3))
    answers = {}
    for question, of_labels in zip(asked, beta, strict=True):
        words = encode(of_labels[truth.codes(question)].T[None], view.scale(last.task.stage, "objects"), "sums")
        answers[question.holder] = Answer(last.task.round, last.step, arrays={ArrayName.of_block(0, "sums"): words})
    flat = replace(view, exchanges=[*view.exchanges, Exchange(last.tasks, answers)])
    guesses = unmix_flat_sums(flat, asked)
    assert [truth.score(question, guess) for question, guess in guesses.items()] == [pytest.approx(1.0)] * 5


#: Sites answer this only when a job is taken up again after the release.
ONLY_LATER = {("release", "all", "model")}


@pytest.fixture(scope="module", name="sealed")
def _sealed() -> SealedRecording:
    tables = voting(noisy(1, 120, 5, 3, 3, 0.3), 3)
    return record_sealed(Job(model="pairs", clusters=3, sites=tuple(tables)), tables)


@pytest.mark.promise("The audit replays every step of the protocol, and has an attack or a reason for every array.")
def test_every_step_of_a_sealed_job_is_replayed_and_every_array_of_it_is_known(sealed: SealedRecording) -> None:
    assert {exchange.step for exchange in sealed.exchanges} == set(SEALED_TABLE)
    seen, before = set(), None
    for exchange in sealed.exchanges:
        step = exchange.step
        for task in exchange.tasks.values():
            for name in task.arrays:
                assert sealed_reason(step, name, came_before=before) is not None, (step, name)
                if ArrayName(name).kind in ("model", "dealer"):
                    seen.add((step, ArrayName(name).kind, ArrayName(name).what))
        for answer in exchange.answers.values():
            for name in answer.arrays:
                assert sealed_reason(step, name) is not None, (step, name)
                array = ArrayName(name)
                seen.add((step, array.kind, "" if array.kind == "box" else array.what))
        before = step
    # Nothing is said about arrays that there are not, and a new one would be noticed.
    assert set(SEALED_COVERED) - seen == ONLY_LATER
    assert sealed_reason("score", ArrayName.of_broadcast("scores", "site0")) is None


def test_every_reason_of_a_sealed_array_is_an_attack_or_a_sentence() -> None:
    used = set()
    for found in SEALED_COVERED.values():
        if isinstance(found, tuple):
            assert found
            used |= set(found)
        else:
            assert len(found.split()) > 4
    assert used == set(SEALED_ATTACKS)
