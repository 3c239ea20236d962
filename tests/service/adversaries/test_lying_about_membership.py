"""Lies that are the same for everybody: about who holds which objects, about the job key, about one's own key.

A coordinator that tells some holders of an object "yours alone" and the rest of a smaller block tells no two sites
anything that differs: masks cancel. But the sites have compared their objects with each other. Nor can a site give two
others different job keys. And the error names who did it, not who found it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from copy import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from support.lying_sites import (
    HEARER,
    LEAVES,
    NAME,
    SECRETS,
    SITES,
    LyingJob,
    Scene,
    job_of,
    labels,
    scene_fixture,  # noqa: F401 (a fixture)
)

from ce.errors import MessageError, Refused
from ce.privacy import set_intersection
from ce.privacy.derivation import joined
from ce.privacy.pair_keys import EncryptedBox
from ce.privacy.pseudonyms import pseudonyms, tokens
from ce.protocol.engine.starting_parameters import job_key
from ce.protocol.keys.handshake import Handshake, sign_key_share
from ce.protocol.topology.enrolment import Enrolment, by_pseudonym
from ce.protocol.topology.vocabularies import Wishes
from ce.transport.enrolment_codec import read_claims
from ce_coordinator.core import attempt as attempts
from ce_coordinator.core.modes import over_totals
from ce_proto.v1 import site_pb2 as pb

modes = pytest.mark.parametrize("privacy", ["plain", "masked", "blind"])


def of_west_alone(enrolments: Mapping[str, Enrolment], least: int) -> dict[str, Enrolment]:
    """Some objects of west under other pseudonyms: the coordinator takes them for objects that nobody else holds."""
    objects = enrolments[HEARER].objects.copy()
    others = np.concatenate([enrolments[site].objects for site in SITES if site != HEARER])
    shared = np.flatnonzero(np.isin(objects, others))[:least]
    for at in shared:
        objects[at] = np.void(hashlib.sha256(objects[at].tobytes()).digest()[:16])
    return {**enrolments, HEARER: replace(enrolments[HEARER], objects=objects)}


@pytest.fixture(name="lie")
def _lie(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A coordinator that says of some objects of west that they are west's alone, from its n-th alignment on."""

    def lie(objects: int, from_: int = 0) -> None:
        honest, count = over_totals.align_all, iter(range(100))

        def align_all(model: Any, enrolments: Any, *rest: Any) -> Any:
            lies = next(count) >= from_
            return honest(model, of_west_alone(enrolments, objects) if lies else enrolments, *rest)

        monkeypatch.setattr(over_totals, "align_all", align_all)

    return lie


@pytest.mark.promise("A site finds out if the coordinator says something wrong about which sites hold its objects.")
@modes
@pytest.mark.parametrize("objects", [1, 4])
def test_the_same_lie_about_membership_to_all_sites_is_refused(
    scene: Scene, lie: Callable[..., None], privacy: str, objects: int
) -> None:
    lie(objects)
    table = scene.begin(job_of(privacy))
    table.run()
    assert table.refusals
    assert all(isinstance(error, Refused) and error.rule == "overlap of sites" for error in table.refusals.values())
    assert (table.record.state, table.record.rule) == ("failed", "overlap of sites")
    assert f"of {objects} of " in table.record.reason
    assert not table.heard, "something was answered"


@pytest.mark.promise("A site finds out if the coordinator says something wrong about which sites hold its objects.")
def test_a_lie_about_membership_in_a_later_alignment_is_refused(scene: Scene, lie: Callable[..., None]) -> None:
    lie(1, from_=1)
    table = scene.begin(job_of("masked"), policies=LEAVES)
    table.run()
    assert (table.record.state, table.record.rule) == ("failed", "overlap of sites")
    told = [frame.alignment.revision for frame in table.told[HEARER] if frame.WhichOneof("frame") == "alignment"]
    assert told == [0, 1]


def test_sites_that_answer_the_comparison_wrongly_do_not_begin(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each says of one object of each other site that it does not have it."""
    honest = set_intersection.Comparison.answer
    monkeypatch.setattr(set_intersection.Comparison, "answer", lambda *arguments: bytes(32) + honest(*arguments)[32:])
    table = scene.begin(job_of("masked"))
    table.run()
    assert table.record.rule == "overlap of sites"
    assert not table.heard


# The job key.


@pytest.fixture(name="split")
def _split(monkeypatch: pytest.MonkeyPatch) -> None:
    """East gives west another job key than north."""
    honest = Handshake.encrypt_for_all

    def encrypt_for_all(handshake: Handshake, key: bytes) -> dict[str, EncryptedBox]:
        return honest(handshake, key) | {HEARER: honest(handshake, bytes(32))[HEARER]}

    monkeypatch.setattr(Handshake, "encrypt_for_all", encrypt_for_all)


@pytest.mark.promise("Sites that were given different job keys do not begin.")
@modes
@pytest.mark.usefixtures("split")
def test_a_coordinator_sees_different_job_keys_and_names_the_site_that_made_them(scene: Scene, privacy: str) -> None:
    table = scene.begin(job_of(privacy))
    table.run()
    record = table.record
    assert (record.state, record.rule, record.exit_code) == ("failed", "one job key", 6)
    assert record.reason.startswith("west and east have different job keys, and east made the key")
    assert not table.heard


@pytest.mark.promise("Sites that were given different job keys do not begin.")
@modes
@pytest.mark.usefixtures("split")
def test_so_do_the_sites_where_the_coordinator_says_nothing(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, privacy: str
) -> None:
    monkeypatch.setattr(attempts, "refuse_different_keys", lambda attempt, summaries: None)
    table = scene.begin(job_of(privacy))
    table.run()
    assert all(isinstance(error, Refused) and error.rule == "one job key" for error in table.refusals.values())
    assert "west and east have different job keys, and east made the key" in table.record.reason
    assert not table.heard


# What a site can learn of another's ids and categories.


def test_a_site_that_asks_for_other_minimums_in_a_later_revision_is_refused(scene: Scene) -> None:
    """By other minimums it would learn, revision by revision, how many labels of a category another site has."""
    table = scene.begin(job_of("masked"))
    site = table.pause(pb.STEP_SUMS, iteration=1)["north"]
    assert site._admission is not None
    known = site._admission._introduction
    assert known is not None
    later = copy(known)
    later.summaries = dict(known.summaries)
    later.refuse_other_wishes(known)
    later.summaries["west"] = replace(known.summaries["west"], wishes=Wishes(3, 300))
    with pytest.raises(MessageError, match="enrolment of west: min_sites and min_objects are not those of its first"):
        later.refuse_other_wishes(known)


@pytest.mark.promise("A site cannot test a guess of another site's ids or categories against what it is sent.")
def test_nothing_that_a_site_is_sent_confirms_a_guess(scene: Scene) -> None:
    """East has the job key and guesses all ids of west, and the names of all categories."""
    table = scene.begin(job_of("masked"))
    table.run()
    assert table.record.state == "done"
    sent = b"".join(frame.SerializeToString() for frame in table.told["east"])
    key = job_key(SECRETS["east"], job_of("masked").disclosure_digest)
    guess = by_pseudonym(labels()[HEARER], key)
    names = pseudonyms(key, guess.ids)
    assert any(introduction_of(table, "east").enrolments), "the test looks at nothing"
    for guessed in (names.tobytes(), joined(*(name.tobytes() for name in names))):
        assert hashlib.sha256(guessed).digest() not in sent
    for name in names:
        assert name.tobytes() not in sent
    for column in guess.columns:
        found = tokens(key, column.name, column.categories)
        assert not any(bytes.fromhex(token) in sent for token in found)
        for guessed in (found, tuple(sorted(found))):
            assert hashlib.sha256(joined(*(token.encode() for token in guessed))).digest() not in sent


def introduction_of(table: LyingJob, site: str) -> pb.Introduction:
    return next(f.introduction for f in table.told[site] if f.WhichOneof("frame") == "introduction")


def test_the_coordinator_is_sent_no_token_of_a_category(scene: Scene) -> None:
    table = scene.begin(job_of("masked"))
    table.run()
    wire = b"".join(table.up_recording)
    key = job_key(SECRETS["east"], job_of("masked").disclosure_digest)
    for own in labels().values():
        for column in own.columns:
            assert not any(bytes.fromhex(token) in wire for token in tokens(key, column.name, column.categories))


# Who is named.


class WeakKey:
    """A point of small order: whoever hears it knows the shared secret."""

    public = bytes(32)


def test_a_weak_public_key_is_refused_where_it_comes_from(scene: Scene) -> None:
    table = scene.begin(job_of("masked"))
    files = table.sites["north"].site_files

    def amend(site: str, frame: pb.SiteFrame) -> None:
        if site == "north" and frame.WhichOneof("frame") == "key_share":
            attempt = table.sites[site].site_attempts[NAME].attempt
            share = sign_key_share(attempt, site, WeakKey(), files.key, files.certificate_der)  # type: ignore[arg-type]
            frame.key_share.public_key, frame.key_share.signature = share.public_key, share.signature

    table.amend = amend
    for _ in range(3):
        table.run()
        if table.sites["north"].session is None:
            table.connect("north")
    assert {site for site, _ in table.closed} == {"north"}
    assert table.record.state == "failed"
    assert table.record.reason.startswith("north: key share of north: the public key is a point of small order")
    assert not table.refusals, "no other site was bothered"


def test_a_job_key_that_does_not_open_names_who_sent_it(scene: Scene) -> None:
    table = scene.begin(job_of("masked"))

    def amend(site: str, frame: pb.SiteFrame) -> None:
        for key in frame.encrypted_keys.keys:
            if key.site == HEARER:
                key.ciphertext = bytes(len(key.ciphertext))

    table.amend = amend
    table.run()
    assert isinstance(table.refusals[HEARER], MessageError)
    assert "what comes from east was not encrypted" in table.record.reason


@pytest.mark.parametrize("labels", [101, 4_000_000_000])
def test_more_labels_than_are_ever_shown_are_refused(labels: int) -> None:
    claim = pb.ColumnClaim(name="c", kind=pb.COLUMN_KIND_CLUSTERING, labels=labels)
    with pytest.raises(MessageError, match="columns: expected labels of at most 100"):
        read_claims([claim])
