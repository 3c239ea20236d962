"""A sealed job that is cut off anywhere ends, in a later attempt, with one release, charged once, and labels entered
once: the same bytes again after a share may have been opened, fresh ones before."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest
from support.sealed_jobs import (
    SealedWorld,
    few_sites,
    labels_of,
    opened,
    play_out,
    play_round,
    play_until,
    pooled_labels,
    sealed_job,
)

from ce.errors import JobFailed, MessageError
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.task import Answer
from ce.protocol.sealed.records import MemoryRecords
from ce.protocol.sealed_run import SealedParties

#: Rounds of a job with two clusters: meet to release, score, ten of compare, settle, prove, two of reveal, finish.
ROUNDS = 21


class Watched:
    """A world that sees all answers: what was opened, and which seeds were used."""

    def __init__(self, epsilon: float | str = "exact") -> None:
        self.world = SealedWorld(sealed_job(2, epsilon), few_sites())
        self.sent: dict[str, list[bytes]] = defaultdict(list)  # by name of the array, and site for seeds

    def play(self, parties: SealedParties, rounds: int, answered: int | None = None) -> None:
        """So many rounds, and then one in which so many sites answer."""
        for _ in range(rounds):
            if parties.coordinator.open_round is not None:
                play_round(parties, on_answer=self.see)
        if answered is not None and parties.coordinator.open_round is not None:
            play_round(parties, on_answer=self.see, answered=answered)

    def see(self, site: str, answer: Answer) -> Answer:
        for name, array in answer.arrays.items():
            where = f"{name} {site}" if ArrayName(name).kind == "dealer" else name
            self.sent[where].append(array.tobytes())
        return answer

    def check(self, parties: SealedParties) -> None:
        """What must hold when the job has ended, however many attempts it took."""
        sites = parties.sites.values()
        for name, contents in self.sent.items():
            if "/share/" in name or "/nonce/" in name:
                assert len(set(contents)) == 1, name
            if "seed" in name:
                assert len(set(contents)) == len(contents), name
        for site, records in self.world.records.items():
            assert records.charged == [parties.coordinator.terms.rho[site]]
            assert len(records.entered) == len(set(records.entered)) == 1
        first = next(iter(sites))
        for site in sites:
            assert np.array_equal(opened(site), opened(first))
            assert site.model is not None
            assert site.model.digest == first.model.digest  # type: ignore[union-attr]
        assert first.model is not None
        expected = pooled_labels(self.world.tables, parties.coordinator.terms, first.model)
        assert labels_of(self.world, parties) == expected


@pytest.mark.promise("A sealed job cut off anywhere ends with one release, charged once, and labels opened once.")
def test_cut_off_in_every_step() -> None:
    for rounds in (*range(8), *range(15, ROUNDS)):  # not in each of the ten rounds of compare
        cut_off(rounds, rounds % 4, "exact")


@pytest.mark.slow
def test_cut_off_after_every_answer_of_every_round() -> None:
    for rounds in range(ROUNDS):
        for answered in range(4):
            cut_off(rounds, answered, 8.0)


def cut_off(rounds: int, answered: int, epsilon: float | str) -> None:
    watched = Watched(epsilon)
    watched.play(watched.world.attempt(), rounds, answered)
    parties = watched.world.attempt()
    watched.play(parties, ROUNDS)
    watched.check(parties)


@pytest.mark.slow
def test_cut_off_again_and_again() -> None:
    watched = Watched(8.0)
    for rounds in range(ROUNDS):
        watched.play(watched.world.attempt(), rounds, answered=(rounds + 1) % 4)
    parties = watched.world.attempt()
    watched.play(parties, ROUNDS)
    watched.check(parties)


def test_before_the_first_share_is_opened_nothing_is_charged_and_all_is_made_anew() -> None:
    watched = Watched()
    watched.play(watched.world.attempt(), 4)  # all have committed
    before = {site: records.release() for site, records in watched.world.records.items()}
    assert all(record is not None and record.state == "committed" for record in before.values())
    assert all(not records.charged for records in watched.world.records.values())
    parties = watched.world.attempt()
    watched.play(parties, 2)
    assert all(records.release() is None for records in watched.world.records.values())
    watched.play(parties, ROUNDS)
    watched.check(parties)
    for site, record in before.items():
        assert record is not None
        assert watched.sent[ArrayName.of_broadcast("share", site)] != [record.share]


def test_one_opened_share_makes_all_send_theirs_again_and_charges_them() -> None:
    watched = Watched()
    watched.play(watched.world.attempt(), 4, answered=1)  # a has opened its share
    kept = {site: records.release() for site, records in watched.world.records.items()}
    assert [len(records.charged) for records in watched.world.records.values()] == [1, 0, 0]
    parties = watched.world.attempt()
    play_round(parties)
    assert parties.coordinator.open_round is not None
    assert parties.coordinator.open_round.step == "release"
    watched.play(parties, ROUNDS)
    watched.check(parties)
    assert all(
        record is not None and watched.sent[ArrayName.of_broadcast("share", site)][-1] == record.share
        for site, record in kept.items()
    )


def test_a_site_that_has_lost_its_share_after_the_opening_ends_the_job() -> None:
    watched = Watched()
    watched.play(watched.world.attempt(), 4, answered=2)
    watched.world.records["c"] = MemoryRecords()
    parties = watched.world.attempt()
    with pytest.raises(JobFailed, match="opened in an earlier attempt, and c has lost its share"):
        play_out(parties)
    assert not watched.world.records["c"].charged


def test_after_the_opening_other_objects_or_sites_are_refused() -> None:
    world = SealedWorld(sealed_job(2, 8.0), few_sites())
    play_until(world.attempt(), "score")
    smaller = SealedWorld(world.job, {site: table.select(slice(1, None)) for site, table in world.tables.items()})
    smaller.records = world.records
    with pytest.raises(JobFailed, match="have changed since"):
        play_out(smaller.attempt())


def test_a_coordinator_that_hides_an_opened_share_is_refused() -> None:
    watched = Watched()
    watched.play(watched.world.attempt(), 4, answered=1)
    parties = watched.world.attempt()

    def nothing_opened(site: str, answer: Answer) -> Answer:
        state = answer.arrays[ArrayName.of_broadcast("state", site)].copy()
        state[0] = 0
        return Answer(
            answer.round,
            answer.step,
            arrays={**answer.arrays, ArrayName.of_broadcast("state", site): state},
            fraction_bits=answer.fraction_bits,
        )

    play_round(parties, on_answer=nothing_opened)
    with pytest.raises(MessageError, match="step: expected release"):
        play_round(parties)


def test_the_model_that_sites_have_accepted_is_used_again() -> None:
    watched = Watched()
    watched.play(watched.world.attempt(), 5, answered=1)  # a has accepted the model
    record = watched.world.records["a"].release()
    assert record is not None
    parties = watched.world.attempt()
    watched.play(parties, ROUNDS)
    assert parties.coordinator.fit is None
    assert parties.sites["c"].model is not None
    assert parties.sites["c"].model.encoded == record.model
    watched.check(parties)
