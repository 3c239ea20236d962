"""Once the tables of a sealed job are opened, a site that stays away costs the labels of its shared blocks, no more."""

from __future__ import annotations

import numpy as np
import pytest

from ce.job import Job
from ce.labels import LabelTable
from ce.protocol.attempt import Attempt
from ce.protocol.engine.aggregator import add_answer
from ce.protocol.local_alignment import LocalAlignment, align_tables
from ce.protocol.sealed.coordinator import SealedCoordinator
from ce.protocol.sealed.site import SealedSite
from ce.protocol.sealed_run import SealedParties, sealed_parties
from ce.protocol.topology.site_view import Block
from ce.protocol.topology.vocabularies import Wishes

SITES = ("east", "north", "west")
JOB = Job(model="pairs", clusters=2, sites=SITES, epsilon="exact", collusion=0)
#: Before `score`, in which shares are opened: meet, mask, verify, commit, release.
BEFORE_SCORE = 5
#: Of two clusters: score, ten of the tournament, settle, prove, reveal twice, finish.
FROM_SCORE = 16


#: Who holds the objects whose names begin so: 20 of each.
HOLDERS = {
    "a": ("east", "north"),
    "b": ("north", "west"),
    "c": ("east", "north", "west"),
    "d": ("east",),
    "e": ("north",),
    "f": ("west",),
}


def tables() -> dict[str, LabelTable]:
    rng = np.random.default_rng(0)
    truth = {f"{kind}{i}": int(rng.integers(0, 2)) for kind in HOLDERS for i in range(20)}
    found = {}
    for site in SITES:
        ids = [name for name in truth if site in HOLDERS[name[0]]]
        cells = np.array([[truth[name]] * 4 for name in ids])
        found[site] = LabelTable.from_arrays(cells, ids=ids, columns=[f"{site}{j}" for j in range(4)])
    return found


def aligned_tables() -> LocalAlignment:
    return align_tables(False, tables(), dict.fromkeys(SITES, Wishes()), None)


def blocks() -> tuple[Block, ...]:
    return aligned_tables().topology.blocks


@pytest.fixture(name="parties")
def _parties() -> SealedParties:
    known, aligned = tables(), aligned_tables()
    return sealed_parties(JOB, Attempt("job", JOB.definition(), 1, SITES), aligned, known)


def play_round(coordinator: SealedCoordinator, sites: dict[str, SealedSite], absent: set[str]) -> None:
    for site, task in coordinator.tasks().items():
        if site not in absent:
            add_answer(coordinator, site, sites[site].answer(task))


def play(parties: SealedParties, stays_away_from: int) -> int:
    """A whole job; west does not answer from this round on, and is given up in it. Rounds that were played."""
    coordinator, absent = parties.coordinator, set[str]()
    while coordinator.open_round is not None:
        if coordinator.rounds == stays_away_from:
            absent = {"west"}
            play_round(coordinator, parties.sites, absent)
            assert set(coordinator.open_round.waiting) == absent
            coordinator.stop(absent)
            assert not coordinator.open_round.waiting
        else:
            play_round(coordinator, parties.sites, absent)
        coordinator.advance()
    return coordinator.rounds


def labels(parties: SealedParties, site: str) -> dict[str, int]:
    outcome = parties.sites[site].result
    assert outcome is not None
    return dict(zip(tables()[site].ids.tolist(), outcome.labels.tolist(), strict=True))


def test_a_job_has_the_rounds_that_this_module_says(parties: SealedParties) -> None:
    assert play(parties, 0) == BEFORE_SCORE + FROM_SCORE
    assert parties.coordinator.stopped == frozenset()
    assert all(label >= 0 for site in SITES for label in labels(parties, site).values())


@pytest.mark.parametrize("round_", range(BEFORE_SCORE + 1, BEFORE_SCORE + FROM_SCORE))
def test_the_other_blocks_finish(parties: SealedParties, round_: int) -> None:
    play(parties, round_)
    stopped = [block.members for block in blocks() if block.index in parties.coordinator.stopped]
    assert sorted(stopped) == [HOLDERS["c"], HOLDERS["b"]]
    assert parties.sites["west"].result is None
    for site in ("east", "north"):
        assert all((label >= 0) == ("west" not in HOLDERS[name[0]]) for name, label in labels(parties, site).items())
    east, north = labels(parties, "east"), labels(parties, "north")
    assert all(east[name] == north[name] for name in east if name[0] == "a")


def test_in_the_last_round_everybody_has_the_labels(parties: SealedParties) -> None:
    play(parties, BEFORE_SCORE + FROM_SCORE)
    assert parties.coordinator.stopped == frozenset()
    assert all(label >= 0 for site in ("east", "north") for label in labels(parties, site).values())


def test_when_shares_may_have_been_opened(parties: SealedParties) -> None:
    coordinator, told = parties.coordinator, []
    while coordinator.open_round is not None:
        told.append((coordinator.open_round.step, coordinator.opened, coordinator.stoppable))
        play_round(coordinator, parties.sites, set())
        coordinator.advance()
    assert told[:6] == [
        ("meet", False, False),
        ("mask", False, False),
        ("verify", False, False),
        ("commit", False, False),
        ("release", True, False),
        ("score", True, True),
    ]
    assert all(opened and stoppable for _, opened, stoppable in told[6:])
