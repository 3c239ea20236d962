"""A coordinator that lies to honest sites, about keys, sites, jobs, epochs and who holds what: refused at once.

All that sites say to each other is signed or sealed for one attempt at one job, and what a coordinator says about them
is checked against what they have signed: the site that hears the lie refuses in its own words, before it answers
anything. What a site cannot check is in `test_lying_about_sums`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.lying_sites import (
    ALL,
    HEARER,
    LEAVES,
    NAME,
    SITES,
    Change,
    Lie,
    LyingJob,
    Scene,
    about_north,
    ask,
    assert_refused,
    column_in,
    earlier,
    enrolment_in,
    job_of,
    older,
    private_of,
    scene_fixture,  # noqa: F401 (a fixture)
    set_to,
    task_of,
    with_arrays,
)

import ce
from ce.errors import CeError, MessageError, Refused
from ce.identity.peers import CHANGED, UNPINNED
from ce.privacy.pair_keys import EphemeralKey
from ce.protocol.attempt import Attempt
from ce.protocol.keys.handshake import sign_key_share
from ce_client.attempt.attempt import SiteAttempt
from ce_client.attempt.refusal import CANNOT_GO_ON
from ce_client.daemon.site_files import SiteFiles
from ce_client.state.consents import Consents
from ce_client.state.ledger import FILE_NAME as LEDGER
from ce_client.state.ledger import Ledger
from ce_proto.v1 import site_pb2 as pb

hidden_modes = pytest.mark.parametrize("privacy", ["masked", "blind"])


# Keys, and who is there.


def of(site: str, **changes: Any) -> Change:
    """A lie about one peer."""

    def change(message: pb.Peers, table: LyingJob) -> None:
        for peer in message.peers:
            if peer.site == site:
                for name, value in changes.items():
                    setattr(peer, name, value)

    return change


PEERS: dict[str, tuple[Change, type[CeError], str]] = {
    "another key of a peer": (
        of("north", public_key=EphemeralKey().public),
        MessageError,
        "key share of north: not a signature",
    ),
    "no signature of a peer": (of("north", signature=b""), MessageError, "key share of north: not a signature"),
    "one peer's share for another's": (
        lambda m, _: m.peers[1].MergeFrom(pb.Peer(**_share(m.peers[0]))),
        Refused,
        "the certificate shown for north is that of site east",
    ),
    "another key of this site": (
        of(HEARER, public_key=EphemeralKey().public),
        MessageError,
        "another key share than this site's stands under its name",
    ),
    "a peer less": (lambda m, _: m.peers.pop(1), MessageError, "peers: not those of the roster"),
    "a peer more": (
        lambda m, _: m.peers.add(site="zoe", **_share(m.peers[0])),
        MessageError,
        "peers: not those of the roster",
    ),
}


def _share(peer: pb.Peer) -> dict[str, bytes]:
    return {"public_key": peer.public_key, "certificate": peer.certificate, "signature": peer.signature}


@pytest.mark.promise("A site believes only peers whose keys it has pinned, and only what they have signed.")
@hidden_modes
@pytest.mark.parametrize(("change", "error", "says"), PEERS.values(), ids=PEERS)
def test_other_peers_are_refused(scene: Scene, privacy: str, change: Change, error: type[CeError], says: str) -> None:
    table = scene.begin(job_of(privacy), Lie(HEARER, "peers", change))
    table.run()
    assert_refused(table, error, says)


@hidden_modes
def test_a_key_of_the_operators_with_a_certificate_of_its_own_authority_is_refused(scene: Scene, privacy: str) -> None:
    job = job_of(privacy)
    key, certificate = scene.certified("north")
    attempt = Attempt(NAME, job.definition(), 1, SITES)
    made = sign_key_share(attempt, "north", EphemeralKey(), key, certificate)
    share = {"public_key": made.public_key, "certificate": made.certificate, "signature": made.signature}
    table = scene.begin(job, Lie(HEARER, "peers", of("north", **share)))
    table.run()
    assert_refused(table, Refused, "north has another key than the one that this site trusts")
    assert table.record.rule == CHANGED


@hidden_modes
def test_a_roster_that_is_not_the_jobs_is_refused(scene: Scene, privacy: str) -> None:
    for change in (lambda m, _: m.roster.append("zoe"), lambda m, _: m.roster.remove("north")):
        table = scene.begin(job_of(privacy), Lie(HEARER, "offer", change))
        table.run()
        assert_refused(table, MessageError, "offer: its name or roster is not that of the job")


# By hand: no coordinator would relay what its own eyes see to be wrong.


Shares = dict[str, Any]


def offered(
    scene: Scene, jobs: Mapping[str, ce.Job], epochs: Mapping[str, int]
) -> tuple[dict[str, SiteAttempt], Shares]:
    """Each site is told its own story, takes part in it, and shows its key."""
    scene.clear()
    sites, shares = {}, {}
    for site, job in jobs.items():
        settings, roster = scene.sites[site], sorted(job.sites)
        offer = pb.Offer(job=NAME, epoch=epochs.get(site, 1), definition=job.definition(), roster=roster)
        ledger = Ledger(settings.state / LEDGER, site)
        sites[site] = SiteAttempt(offer, "liar", SiteFiles.open(settings), ledger)
        (frame,) = sites[site].receive("offer", offer)
        assert frame.WhichOneof("frame") == "key_share", sites[site].refusal
        shares[site] = frame.key_share
    return sites, shares


def peers_for(site: SiteAttempt, shares: Shares) -> pb.Peers:
    peers = [pb.Peer(site=name, **_share(shares[name])) for name in site.attempt.roster]
    return pb.Peers(job=NAME, epoch=site.epoch, peers=peers)


STORIES: dict[str, tuple[dict[str, Any], int]] = {
    "another number of clusters": ({"clusters": 3}, 1),
    "more iterations": ({"max_iterations": 4}, 1),
    "sums for everybody to see": ({"privacy": "plain"}, 1),
    "a job of two": ({"sites": ("north", "west")}, 1),
    "a later attempt": ({}, 2),
}


@hidden_modes
@pytest.mark.parametrize(("changes", "epoch"), STORIES.values(), ids=STORIES)
def test_sites_that_were_told_of_different_jobs_do_not_come_together(
    scene: Scene, privacy: str, changes: dict[str, Any], epoch: int
) -> None:
    honest, other = job_of(privacy), job_of(**{"privacy": privacy, **changes})
    scene.allow(other.sites)
    sites, shares = offered(scene, {"east": honest, "north": honest, HEARER: other}, {HEARER: epoch})
    for name, site in sites.items():
        (frame,) = site.receive("peers", peers_for(site, shares))
        assert frame.WhichOneof("frame") == "refusal"
        assert isinstance(site.refusal, MessageError)
        stranger = min(set(site.attempt.roster) - {HEARER}) if name == HEARER else HEARER
        assert f"key share of {stranger}: not a signature" in str(site.refusal)


@hidden_modes
def test_a_site_that_the_operator_invents_is_not_among_the_peers(scene: Scene, privacy: str) -> None:
    """Everything about it is right, but nobody has ever compared its key."""
    job = job_of(privacy, sites=(*SITES, "zoe"))
    scene.allow(job.sites)
    sites, shares = offered(scene, dict.fromkeys(SITES, job), {})
    attempt = sites[HEARER].attempt
    shares["zoe"] = sign_key_share(attempt, "zoe", EphemeralKey(), *scene.certified("zoe"))
    for site in sites.values():
        (frame,) = site.receive("peers", peers_for(site, shares))
        assert (frame.refusal.exit_code, frame.refusal.rule) == (6, UNPINNED)
        assert "zoe is not among the peers that this site trusts" in frame.refusal.sentence


@hidden_modes
def test_a_job_that_has_changed_since_it_was_approved_is_refused(scene: Scene, privacy: str) -> None:
    asks = {HEARER: {"consent": "ask"}}
    job = job_of(privacy)
    before = scene.begin(job, policies=asks)
    before.run()
    assert before.sites[HEARER].site_attempts[NAME].waits_for_consent
    assert not before.heard
    consents = Consents(scene.sites[HEARER].state)
    digest = before.sites[HEARER].site_attempts[NAME].attempt.job_digest
    try:
        consents.decide(NAME, digest, SITES, "approved")
        for changes in ({"max_iterations": 300}, {"clusters": 3}):
            after = scene.begin(job_of(privacy, **changes), policies=asks)
            after.run()
            assert isinstance(after.refusals[HEARER], Refused)
            assert (after.record.state, after.record.rule) == ("failed", "consent")
            assert "the job is not the one that was approved here" in after.record.reason
            assert not after.heard
        approved = scene.begin(job, policies=asks)
        approved.run()
        assert approved.record.state == "done"
    finally:
        consents.forget(NAME)


# What was said in another epoch.


def peer_of_old(message: pb.Peers, table: LyingJob) -> None:
    message.peers[1].CopyFrom(earlier("peers", table).peers[1])


def peers_of_old(message: pb.Peers, table: LyingJob) -> None:
    del message.peers[:]
    message.peers.extend(earlier("peers", table).peers)


def key_of_old(message: pb.EncryptedKey, table: LyingJob) -> None:
    old = earlier("encrypted_key", table)
    message.nonce, message.ciphertext = old.nonce, old.ciphertext


def enrolment_of_old(message: pb.Introduction, table: LyingJob) -> None:
    message.enrolments[1].CopyFrom(earlier("introduction", table).enrolments[1])


def introduction_of_old(message: pb.Introduction, table: LyingJob) -> None:
    message.CopyFrom(earlier("introduction", table))
    message.epoch = 2


def letters_of_old(message: pb.Letters, table: LyingJob) -> None:
    message.CopyFrom(earlier("letters", table))
    message.epoch = 2


def task_of_old(message: pb.Task, table: LyingJob) -> None:
    message.CopyFrom(earlier("task", table))
    message.epoch = 2


REPLAYS: dict[str, tuple[str, Change, str]] = {
    "a peer's key share": ("peers", peer_of_old, "key share of north: not a signature"),
    "all key shares": ("peers", peers_of_old, "another key share than this site's stands under its name"),
    "the job key": ("encrypted_key", key_of_old, "ciphertext: what comes from east was not encrypted for this site"),
    "a peer's enrolment": ("introduction", enrolment_of_old, "enrolment of north: not a signature"),
    "the introduction": ("introduction", introduction_of_old, "enrolment of east: not a signature"),
    "letters": ("letters", letters_of_old, "ciphertext: what comes from east was not encrypted for this site"),
    "a task": ("task", task_of_old, "digest: is not that of the task"),
}


@hidden_modes
@pytest.mark.parametrize(("kind", "change", "says"), REPLAYS.values(), ids=REPLAYS)
def test_what_was_said_in_an_older_epoch_is_refused(
    scene: Scene, privacy: str, kind: str, change: Change, says: str
) -> None:
    table = scene.begin(job_of(privacy), Lie(HEARER, kind, change, epoch=2, signed=False))
    table.pause(pb.STEP_SUMS)
    table.begin_again("east")
    table.run()
    assert table.record.epoch == 2
    assert_refused(table, MessageError, says)


@hidden_modes
def test_another_alignment_than_that_of_an_older_epoch_is_refused(scene: Scene, privacy: str) -> None:
    """From the same starts, totals of both would show what lies between them."""
    change = with_arrays(lambda rows: rows.update({f"rows/{ALL}": rows[f"rows/{ALL}"][::-1]}))
    table = scene.begin(job_of(privacy), Lie(HEARER, "alignment", change, epoch=2))
    table.pause(pb.STEP_SUMS)
    table.begin_again("east")
    table.run()
    assert_refused(table, Refused, "who shares what with whom is not what it was in an earlier attempt at this job")
    assert table.record.rule == "same in every attempt"


@hidden_modes
def test_a_task_of_an_older_epoch_gets_no_answer(scene: Scene, privacy: str) -> None:
    table = scene.begin(job_of(privacy))
    table.pause(pb.STEP_SUMS)
    tasks = [frame for frame in table.told[HEARER] if frame.WhichOneof("frame") == "task"]
    table.begin_again("east")
    table.pause(pb.STEP_SUMS)
    before = len(table.up)
    for frame in (*tasks, pb.CoordinatorFrame(task=table.waiting[HEARER])):
        frame.task.epoch = 1
        table.down[HEARER].append(frame.SerializeToString())
        table.deliver_down(HEARER)
    assert len(table.up) == before
    assert HEARER not in table.refusals


# Who holds what: told to one site only, and refused at once.


UNSIGNED = "enrolment of north: not a signature"
INTRODUCTIONS: dict[str, tuple[Change, str]] = {
    "a peer's column twice, as if two sites held it": (
        lambda m, _: m.enrolments[1].columns.append(m.enrolments[1].columns[0]),
        "expected different names",
    ),
    "more objects of a peer": (about_north(set_to("objects", lambda n: 1000 * n)), UNSIGNED),
    "fewer objects of a peer": (about_north(set_to("objects", lambda n: n - 1)), UNSIGNED),
    "fewer columns of a peer": (about_north(lambda own: own.columns.pop()), UNSIGNED),
    "more columns of a peer": (about_north(lambda own: own.columns.add(name="x", kind=1, categories=2)), UNSIGNED),
    "another column of a peer": (about_north(lambda own: setattr(own.columns[1], "name", "x")), UNSIGNED),
    "more categories of a peer": (about_north(lambda own: setattr(own.columns[0], "categories", 9)), UNSIGNED),
    "other wishes of a peer": (about_north(set_to("min_objects", lambda n: n + 1)), UNSIGNED),
    "wishes of a peer that cannot be": (
        about_north(set_to("min_objects", lambda n: 2**32 - 1)),
        "enrolment of north: min_objects: expected 1 to 1,000,000, and min_sites 1 to 1,000, got 4,294,967,295 and 1",
    ),
    "labels of a peer that cannot be": (
        about_north(lambda own: setattr(own.columns[0], "labels", 4_000_000_000)),
        "enrolment of north: columns: expected labels of at most 100",
    ),
    "another key of a peer": (about_north(set_to("key_commitment", lambda _: bytes(32))), UNSIGNED),
    "more labels of a peer": (about_north(lambda own: setattr(own.columns[0], "labels", 100)), UNSIGNED),
    "a later enrolment of a peer": (about_north(set_to("revision", lambda n: n + 1)), UNSIGNED),
    "one peer's enrolment for another's": (
        lambda m, _: m.enrolments[0].CopyFrom(_renamed(m.enrolments[1], "east")),
        "enrolment of east: not a signature",
    ),
    "another enrolment of this site": (
        lambda m, _: enrolment_in(m, HEARER).columns.pop(),
        "enrolments: another one than this site's stands under its name",
    ),
    "no enrolment of a peer": (lambda m, _: m.enrolments.pop(1), "enrolments: not those of the roster"),
}
ALIGNMENTS: dict[str, tuple[Change, str]] = {
    "fewer holders of a column": (
        lambda m, _: column_in(m, "common").holders.remove("north"),
        "holders of a column are not the sites that have enrolled it",
    ),
    "more holders of a column": (
        lambda m, _: column_in(m, "west1").holders.insert(0, "north"),
        "holders of a column are not the sites that have enrolled it",
    ),
    "more categories of a column of this site": (
        lambda m, _: setattr(column_in(m, "west1"), "category_count", 3),
        "a column has another number of categories than its holders have agreed on",
    ),
    "fewer categories of a shared column": (
        lambda m, _: setattr(column_in(m, "common"), "category_count", 2),
        "a column has another number of categories than its holders have agreed on",
    ),
    "more objects than there can be": (lambda m, _: setattr(m.sizes, "objects", 27), "sizes are not those of"),
    "more columns": (lambda m, _: setattr(m.sizes, "clusterings", 8), "sizes are not those of"),
    "fewer columns": (lambda m, _: setattr(m.sizes, "clusterings", 6), "sizes are not those of"),
    "more categories": (lambda m, _: setattr(m.sizes, "categories", 99), "sizes are not those of"),
    "a member more": (lambda m, _: m.blocks[0].members.append("zoe"), "members of a block are not sites of the roster"),
    "a member less": (lambda m, _: m.blocks[0].members.remove(HEARER), "members of a block are not sites"),
    "a block that a member cannot hold": (
        lambda m, _: setattr(m.blocks[0], "size", 10),
        "a block is larger than what one of its members has enrolled",
    ),
    "an object of two blocks": (
        with_arrays(lambda rows: rows[f"rows/{ALL}"].__setitem__(0, rows["rows/4"][0])),
        "not every object of this site, each in one block",
    ),
    "other objects of this site's own": (
        private_of(HEARER, lambda n: 3),
        "private_objects are not those of the blocks",
    ),
    "more objects of a peer's own than it has": (
        private_of("north", lambda n: n + 8),
        "private_objects are not those of the blocks",
    ),
    "one exchange where there are two": (
        lambda m, _: setattr(m, "needs_two_exchanges", False),
        "needs_two_exchanges is not what",
    ),
}


def _renamed(own: pb.EnrolmentSummary, site: str) -> pb.EnrolmentSummary:
    copy = pb.EnrolmentSummary()
    copy.CopyFrom(own)
    copy.site = site
    return copy


@pytest.mark.promise("A site believes only peers whose keys it has pinned, and only what they have signed.")
@hidden_modes
@pytest.mark.parametrize(("change", "says"), INTRODUCTIONS.values(), ids=INTRODUCTIONS)
def test_what_others_have_not_signed_is_refused(scene: Scene, privacy: str, change: Change, says: str) -> None:
    table = scene.begin(job_of(privacy), Lie(HEARER, "introduction", change))
    table.run()
    assert_refused(table, MessageError, says)
    assert not table.heard, "something was answered"


@pytest.mark.promise("A site believes only peers whose keys it has pinned, and only what they have signed.")
@hidden_modes
@pytest.mark.parametrize(("change", "says"), ALIGNMENTS.values(), ids=ALIGNMENTS)
def test_an_alignment_that_is_not_of_what_the_sites_have_signed_is_refused(
    scene: Scene, privacy: str, change: Change, says: str
) -> None:
    table = scene.begin(job_of(privacy), Lie(HEARER, "alignment", change))
    table.run()
    assert_refused(table, MessageError, says)
    assert not table.heard, "something was answered"


@hidden_modes
def test_all_shared_blocks_are_not_everybodys_where_this_site_has_one_that_is_not(scene: Scene, privacy: str) -> None:
    table = scene.begin(job_of(privacy), Lie("east", "alignment", lambda m, _: setattr(m, "shared_by_all", True)))
    table.run()
    assert_refused(table, MessageError, "shared_by_all is not what this site's own blocks say", "east")


@hidden_modes
def test_an_introduction_without_the_last_enrolment_is_refused(scene: Scene, privacy: str) -> None:
    table = scene.begin(job_of(privacy), Lie(HEARER, "introduction", older, revision=1), policies=LEAVES)
    table.run()
    assert_refused(table, MessageError, "that of the last enrolment, got")
    assert not table.heard


@hidden_modes
@pytest.mark.parametrize(
    ("kind", "later", "says"),
    [
        ("introduction", -1, "introduction: an older one than of revision"),
        ("introduction", 0, "introduction: another one of revision"),
        ("introduction", 1, "introduction: comes after the sites have begun"),
        ("alignment", -1, "alignment: an older one than this site has answered"),
        ("alignment", 1, "alignment: expected after the letters of its revision"),
    ],
)
def test_sites_are_not_aligned_anew_without_a_reason(
    scene: Scene, privacy: str, kind: str, later: int, says: str
) -> None:
    """Other masks for the same labels, and sums over other objects: only where a site has left something out."""
    table = scene.begin(job_of(privacy), policies=LEAVES)
    site = table.pause(pb.STEP_SUMS, iteration=2)[HEARER]
    told = [getattr(f, kind) for f in table.told[HEARER] if f.WhichOneof("frame") == kind]
    last = told[-1].revision
    assert [message.revision for message in told] == list(range(last + 1))
    assert last > 0
    message = told[min(last, last + later)]
    if (kind, later) == ("introduction", 0):
        message.enrolments[1].objects += 1
    message.revision = last + later
    (frame,) = site.receive(kind, message)
    assert says in str(site.refusal)
    assert frame.refusal.sentence == CANNOT_GO_ON, "masked words have left"


# Tasks: the same round again, or an older one.


@hidden_modes
def test_a_round_is_answered_once(scene: Scene, privacy: str) -> None:
    table = scene.begin(job_of(privacy))
    site = table.pause(pb.STEP_SUMS, iteration=2)[HEARER]
    task = task_of(table.waiting[HEARER])
    first, again = ask(site, task), ask(site, task)
    assert all(first.arrays[name].tobytes() == words.tobytes() for name, words in again.arrays.items())
    changed = dict(task.arrays)
    changed["global/x"] = np.ones(1)
    with pytest.raises(MessageError, match="task: of a round that was answered, and not the same"):
        ask(site, replace(task, arrays=changed))
    with pytest.raises(MessageError, match="task: of a round that was answered"):  # and always from now on
        ask(site, replace(task, round=task.round + 1))


@hidden_modes
def test_an_older_round_is_not_answered_again(scene: Scene, privacy: str) -> None:
    for back in (1, 2):
        table = scene.begin(job_of(privacy))
        site = table.pause(pb.STEP_SUMS, iteration=3)[HEARER]
        old = [frame.task for frame in table.told[HEARER] if frame.WhichOneof("frame") == "task"][-1 - back]
        with pytest.raises(MessageError, match="task: of a round that was answered, and not the same"):
            ask(site, task_of(old))
