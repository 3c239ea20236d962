"""Whatever happens to processes, streams and clocks: the job ends as if nothing had happened, or fails as it says.

Schedules follow from their seeds. Planted bugs prove that the checks detect violations.
"""

from __future__ import annotations

import os
from collections import Counter
from typing import Any

import pytest
from support.schedules import Cases, play

from ce.job import MODES_OF_TOTALS
from ce.privacy.pair_keys import EphemeralKey
from ce.protocol.keys import handshake
from ce.protocol.keys.handshake import Handshake
from ce.protocol.modes.mask_context import MaskBinding
from ce.testing import PlayedWorld, Violation
from ce_client.attempt.rounds import SiteRounds
from ce_coordinator.core.attempt import JobAttempt
from ce_coordinator.core.attempt_rounds import AttemptRounds, CheckpointDue
from ce_coordinator.core.instructions import Instruction, SaveJob

#: `make faults` asks for more.
SCHEDULES = int(os.environ.get("CE_FAULT_SCHEDULES", "300"))
BATCH = 10
#: Batches that `make test` plays; `make test-slow` plays the others.
QUICK_BATCHES = 15
BATCHES = range((SCHEDULES + BATCH - 1) // BATCH)


@pytest.fixture(scope="module", name="cases")
def _cases(tmp_path_factory: pytest.TempPathFactory) -> Cases:
    return Cases(tmp_path_factory.mktemp("cases"))


#: Every layout and every model; half of all jobs over totals are bce.
KINDS = (("rows", "bce"), ("columns", "mixture"), ("ragged", "bce"), ("ragged", "bc3e"))


def variant(seed: int) -> tuple[str, str, str]:
    """Every kind in every mode, in turn. Every fifth is sealed: without noise, whose results can be compared with an
    undisturbed run, or with noise."""
    if seed % 5 == 4:
        return "exact" if seed // 5 % 2 else "noise", "pairs", "sealed"
    return *KINDS[seed % 4], MODES_OF_TOTALS[seed // 4 % 3]


@pytest.mark.promise("Every wait has a deadline, and a job that fails says why.")
@pytest.mark.promise("kill -9 of any process at any moment ends with the same bits.")
@pytest.mark.parametrize(
    "batch", [pytest.param(n, marks=pytest.mark.slow) if n >= QUICK_BATCHES else n for n in BATCHES]
)
def test_no_job_is_lost_hangs_or_ends_otherwise(batch: int, cases: Cases, record_property: Any) -> None:
    seen: Counter[str] = Counter()
    for seed in range(batch * BATCH, (batch + 1) * BATCH):
        outcome = play(cases, seed, *variant(seed))
        seen.update(
            {
                outcome.state: 1,
                "resumed": outcome.resumed,
                "attempts": outcome.attempts,
                "faults": outcome.faults,
                "left behind": len(outcome.left_behind),
            }
        )
    for name, count in seen.items():
        record_property(name, count)
    assert seen["done"] >= 2
    assert seen["attempts"] >= BATCH


def test_schedules_are_worth_their_name(cases: Cases) -> None:
    """Most jobs are done all the same, in several attempts, and many of those go on from a checkpoint."""
    outcomes = [play(cases, seed, *variant(seed)) for seed in range(1000, 1030)]
    assert sum(outcome.state == "done" for outcome in outcomes) >= 20
    assert sum(outcome.attempts for outcome in outcomes) > 45
    assert sum(outcome.resumed for outcome in outcomes) >= 5


# Planted bugs.


def _found(cases: Cases, match: str, seeds: range) -> None:
    """Some schedule shows the bug, and the invariant that it breaks is named."""

    def look() -> None:
        for seed in seeds:
            play(cases, seed, *variant(seed))

    with pytest.raises(Violation, match=match):
        look()


@pytest.mark.promise("Checks of the fault schedules detect planted bugs.")
def test_a_checkpoint_that_is_made_after_it_was_announced_is_noticed(
    cases: Cases, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint_due, all_answered = JobAttempt.checkpoint_due, JobAttempt._all_answered
    late: list[CheckpointDue] = []

    def announce(self: JobAttempt, due: CheckpointDue) -> list[Instruction]:
        late.append(due)
        return self.checkpoint_saved()

    def save_when_all_have_answered(self: JobAttempt, rounds: AttemptRounds, now: float) -> list[Instruction]:
        saves = [step for due in late for step in checkpoint_due(self, due)]
        late.clear()
        return [*saves, *all_answered(self, rounds, now)]

    monkeypatch.setattr(JobAttempt, "checkpoint_due", announce)
    monkeypatch.setattr(JobAttempt, "_all_answered", save_when_all_have_answered)
    _found(cases, "which the coordinator has not saved", range(3))


@pytest.mark.promise("Checks of the fault schedules detect planted bugs.")
def test_a_keystream_that_is_used_again_after_a_restart_is_noticed(
    cases: Cases, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys that outlive a process, and masks that are not bound to an epoch: either alone would not be enough."""
    keys: dict[str, EphemeralKey] = {}
    init, pair_key, context = Handshake.__init__, EphemeralKey.pair_key, MaskBinding._pair_contexts

    def with_a_key_that_lasts(self: Handshake, attempt: Any, site: str, *rest: Any) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(handshake, "EphemeralKey", lambda: keys.setdefault(site, EphemeralKey()))
            init(self, attempt, site, *rest)

    def of_no_epoch(self: Any, *where: Any) -> dict[str, bytes]:
        self._attempt = b""
        return context(self, *where)

    monkeypatch.setattr(EphemeralKey, "pair_key", lambda self, public, *context: pair_key(self, public))
    monkeypatch.setattr(Handshake, "__init__", with_a_key_that_lasts)
    monkeypatch.setattr(MaskBinding, "_pair_contexts", of_no_epoch)
    _found(cases, "uses a keystream twice", range(4, 240, 12))


@pytest.mark.promise("Checks of the fault schedules detect planted bugs.")
def test_an_end_that_is_announced_before_it_is_written_down_is_noticed(
    cases: Cases, monkeypatch: pytest.MonkeyPatch
) -> None:
    do = PlayedWorld.do

    def announce_first(self: PlayedWorld, steps: Any) -> None:
        steps = list(steps)
        do(self, [step for step in steps if not isinstance(step, SaveJob)])
        do(self, [step for step in steps if isinstance(step, SaveJob)])

    monkeypatch.setattr(PlayedWorld, "do", announce_first)
    _found(cases, "not saved", range(3))


@pytest.mark.promise("Checks of the fault schedules detect planted bugs.")
@pytest.mark.promise("Everything that leaves a site is in its ledger first, and changes to a ledger are detected.")
def test_answers_that_are_not_in_the_ledger_are_noticed(cases: Cases, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded = SiteRounds._recorded
    monkeypatch.setattr(
        SiteRounds, "_recorded", lambda self, answer: answer if answer.round == 5 else recorded(self, answer)
    )
    _found(cases, "are not in its ledger", range(3))
