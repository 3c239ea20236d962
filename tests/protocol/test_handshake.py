"""How sites come to share a key: all agree, whoever stands between learns nothing and can change nothing."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given, settings
from hypothesis import strategies as st

from ce.errors import CeError, MessageError, Refused
from ce.identity.authority import Authority
from ce.identity.certificates import fingerprint, parse_certificate
from ce.identity.keys import PrivateKey, make_key
from ce.identity.names import Identity
from ce.identity.peers import CHANGED, UNPINNED, Peers
from ce.labels import Column, LabelTable
from ce.privacy.derivation import derive, joined, number
from ce.privacy.pair_keys import EncryptedBox, EphemeralKey, decrypt, encrypt
from ce.privacy.pseudonyms import pseudonyms, tokens
from ce.protocol.attempt import Attempt
from ce.protocol.keys.handshake import (
    Handshake,
    KeyShare,
    check_enrolment,
    check_key_share,
    sign_enrolment,
    sign_key_share,
)
from ce.protocol.topology.enrolment import (
    ColumnClaim,
    Enrolment,
    EnrolmentSummary,
    enrol,
    enrolment_digest,
)
from ce.protocol.topology.vocabularies import Wishes

laws = settings(max_examples=40, deadline=None, derandomize=True)

SITES = ("east", "north", "south", "west")
NOW = datetime.now(UTC)
ATTEMPT = Attempt("job", b'{"name":"job"}', 3, SITES)
#: Other attempts that must have nothing in common with it.
OTHERS = {
    "epoch": replace(ATTEMPT, epoch=4),
    "definition": replace(ATTEMPT, definition=b'{"name":"jpb"}'),
    "roster": replace(ATTEMPT, roster=SITES[:3]),
    "names run together": replace(ATTEMPT, roster=("east", "northsouth", "west")),
}


@dataclass(frozen=True)
class Contributor:
    key: PrivateKey
    certificate: bytes
    pins: Peers


@pytest.fixture(scope="module", name="members")
def _members(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Contributor]:
    """Sites that know each other."""
    directory = tmp_path_factory.mktemp("members")
    authority = Authority.create(directory / "authority", NOW)
    keys = {site: make_key() for site in SITES}
    made = {site: authority.issue(Identity("site", site), key, NOW) for site, key in keys.items()}
    return {
        site: Contributor(
            keys[site],
            made[site].public_bytes(Encoding.DER),
            Peers(directory / f"{site}.toml", {peer: fingerprint(made[peer]) for peer in SITES if peer != site}),
        )
        for site in SITES
    }


@pytest.fixture(scope="module", name="impostor")
def _impostor(tmp_path_factory: pytest.TempPathFactory) -> Contributor:
    """Who controls the operator's authority can have a certificate for any name, but not the key of the site."""
    authority = Authority.create(tmp_path_factory.mktemp("impostor"), NOW)
    key = make_key()
    certificate = authority.issue(Identity("site", "north"), key, NOW)
    return Contributor(key, certificate.public_bytes(Encoding.DER), Peers(Path("none"), {}))


def handshakes(members: Mapping[str, Contributor], attempt: Attempt = ATTEMPT) -> dict[str, Handshake]:
    return {
        site: Handshake(attempt, site, members[site].key, members[site].certificate, members[site].pins)
        for site in attempt.roster
    }


def met(members: Mapping[str, Contributor], attempt: Attempt = ATTEMPT) -> dict[str, Handshake]:
    parties = handshakes(members, attempt)
    shares = {site: party.share for site, party in parties.items()}
    for party in parties.values():
        party.meet(shares)
    return parties


# Between sites.


@pytest.mark.parametrize("roster", [SITES[:1], SITES[:2], SITES])
def test_all_sites_come_to_hold_the_key_of_the_first(members: dict[str, Contributor], roster: tuple[str, ...]) -> None:
    parties = met(members, replace(ATTEMPT, roster=roster))
    assert [site for site, party in parties.items() if party.leads] == [roster[0]]
    job_key = os.urandom(32)
    sealed = parties[roster[0]].encrypt_for_all(job_key)
    assert tuple(sealed) == roster[1:]
    assert [parties[site].decrypt_from_first(own) for site, own in sealed.items()] == [job_key] * (len(roster) - 1)


def test_whoever_relays_sees_no_key(members: dict[str, Contributor]) -> None:
    parties = met(members)
    job_key = os.urandom(32)
    sealed = parties["east"].encrypt_for_all(job_key)
    relayed = b"".join(
        [
            b
            for party in parties.values()
            for b in (party.share.public_key, party.share.certificate, party.share.signature)
        ]
        + [b for own in sealed.values() for b in (own.nonce, own.ciphertext)]
    )
    for secret in (job_key, *(key for party in parties.values() for key in party._pair_keys.values())):
        # Not even a part of it, nor what it is printed as.
        assert not any(secret[at : at + 8] in relayed for at in range(len(secret) - 7))
        assert secret.hex() not in repr(parties) + repr(sealed) + repr([party.share for party in parties.values()])
    # The same for everybody, but not to be seen: each is sealed under a key of its own.
    assert len({own.ciphertext for own in sealed.values()}) == len(sealed)
    assert (
        len(
            {own.nonce for own in parties["east"].encrypt_for_all(job_key).values()}
            | {o.nonce for o in sealed.values()}
        )
        == 6
    )


@pytest.mark.promise("Masks cancel exactly, and no keystream is used twice.")
def test_keys_are_made_anew_for_every_attempt(members: dict[str, Contributor]) -> None:
    first, second = met(members), met(members)
    assert not {p.share.public_key for p in first.values()} & {p.share.public_key for p in second.values()}
    sealed = first["east"].encrypt_for_all(bytes(32))
    for site, own in sealed.items():
        with pytest.raises(MessageError, match="ciphertext"):
            second[site].decrypt_from_first(own)


Swap = Callable[[dict[str, KeyShare], Contributor], Any]


def swapped(site: str, **changes: Any) -> Swap:
    return lambda shares, _: shares.update({site: replace(shares[site], **changes)})


def posing(shares: dict[str, KeyShare], impostor: Contributor) -> None:
    shares["north"] = sign_key_share(ATTEMPT, "north", EphemeralKey(), impostor.key, impostor.certificate)


SWAPS: dict[str, tuple[Swap, type[CeError], str]] = {
    "a public key": (swapped("north", public_key=EphemeralKey().public), MessageError, "key share of north: not a sig"),
    "no public key": (swapped("north", public_key=b""), MessageError, "key share of north: not a signature"),
    "a signature": (swapped("north", signature=b"x" * 70), MessageError, "key share of north: not a signature"),
    "no certificate": (swapped("north", certificate=b""), MessageError, "certificate of north: not a certificate"),
    "garbage for a certificate": (swapped("north", certificate=b"x" * 500), MessageError, "certificate of north"),
    "a certificate of the authority's making": (posing, Refused, CHANGED),
    "another site's certificate": (
        lambda shares, _: shares.update(north=replace(shares["north"], certificate=shares["west"].certificate)),
        Refused,
        "that of site west",
    ),
    "another site's share": (lambda shares, _: shares.update(north=shares["west"]), Refused, "that of site west"),
    "two sites the other way round": (
        lambda shares, _: shares.update(north=shares["west"], west=shares["north"]),
        Refused,
        "that of site west",
    ),
    "one's own share": (swapped("south", public_key=bytes(32)), MessageError, "another key share than this site's"),
    "a site less": (lambda shares, _: shares.pop("north"), MessageError, "peers: not those of the roster"),
    "a site more": (
        lambda shares, _: shares.update(zoe=shares["west"]),
        MessageError,
        "peers: not those of the roster",
    ),
    "another order": (lambda shares, _: shares.update(east=shares.pop("east")), MessageError, "in its order"),
}


@pytest.mark.promise("A site believes only peers whose keys it has pinned, and only what they have signed.")
@pytest.mark.parametrize(("swap", "error", "says"), SWAPS.values(), ids=SWAPS)
def test_what_is_put_in_the_place_of_a_key_share_is_refused(
    members: dict[str, Contributor], impostor: Contributor, swap: Swap, error: type[CeError], says: str
) -> None:
    parties = handshakes(members)
    shares = {site: party.share for site, party in parties.items()}
    swap(shares, impostor)
    with pytest.raises(error, match=says):
        parties["south"].meet(shares)
    assert parties["south"].encrypt_for_all(bytes(32)) == {}
    with pytest.raises(MessageError, match="comes before the peers are known"):
        parties["south"].decrypt_from_first(EncryptedBox(bytes(12), bytes(48)))


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_a_key_share_of_another_attempt_is_refused(members: dict[str, Contributor], other: Attempt) -> None:
    site, member = "east", members["east"]
    share = sign_key_share(other, site, EphemeralKey(), member.key, member.certificate)
    check_key_share(other, site, share)
    with pytest.raises(MessageError, match="key share of east: not a signature"):
        check_key_share(ATTEMPT, site, share)


@pytest.mark.promise("A site believes only peers whose keys it has pinned, and only what they have signed.")
def test_a_peer_that_nobody_compared_is_refused(members: dict[str, Contributor], tmp_path: Path) -> None:
    parties = handshakes(members)
    pins = dict(members["south"].pins.pins)
    del pins["north"]
    careful = Handshake(
        ATTEMPT, "south", members["south"].key, members["south"].certificate, Peers(tmp_path / "peers.toml", pins)
    )
    shares = {site: party.share for site, party in parties.items()} | {"south": careful.share}
    with pytest.raises(Refused, match="north") as refused:
        careful.meet(shares)
    assert refused.value.rule == UNPINNED


def test_a_site_takes_no_part_in_a_roster_without_it(members: dict[str, Contributor]) -> None:
    with pytest.raises(MessageError, match="roster: this site is not in it"):
        Handshake(
            replace(ATTEMPT, roster=SITES[:2]),
            "west",
            members["west"].key,
            members["west"].certificate,
            members["west"].pins,
        )


@pytest.mark.parametrize(
    "changed",
    [
        lambda own: replace(own, nonce=own.nonce[:-1] + bytes([own.nonce[-1] ^ 1])),
        lambda own: replace(own, nonce=own.nonce[:-1]),
        lambda own: replace(own, nonce=b""),
        lambda own: replace(own, ciphertext=bytes([own.ciphertext[0] ^ 1]) + own.ciphertext[1:]),
        lambda own: replace(own, ciphertext=own.ciphertext[:-1]),
        lambda own: replace(own, ciphertext=own.ciphertext + b"\0"),
        lambda own: replace(own, ciphertext=b""),
    ],
)
def test_a_sealed_key_that_was_changed_is_refused(
    members: dict[str, Contributor], changed: Callable[[EncryptedBox], EncryptedBox]
) -> None:
    parties = met(members)
    own = parties["east"].encrypt_for_all(bytes(32))["north"]
    with pytest.raises(MessageError, match=r"nonce|ciphertext"):
        parties["north"].decrypt_from_first(changed(own))
    assert parties["north"].decrypt_from_first(own) == bytes(32)


def test_a_sealed_key_opens_only_where_it_was_sealed_for(members: dict[str, Contributor]) -> None:
    parties = met(members)
    sealed = parties["east"].encrypt_for_all(bytes(32))
    with pytest.raises(MessageError, match="ciphertext"):
        parties["north"].decrypt_from_first(sealed["south"])
    # Only the first site's keys count, whoever else knows how to seal.
    from_another = parties["west"].encrypt_for_all(b"w" * 32)
    with pytest.raises(MessageError, match="ciphertext"):
        parties["north"].decrypt_from_first(from_another["north"])
    with pytest.raises(MessageError, match="comes before the peers are known"):
        handshakes(members)["north"].decrypt_from_first(sealed["north"])
    with pytest.raises(MessageError, match="expected a key of 32 bytes"):
        parties["north"].decrypt_from_first(parties["east"].encrypt_for_all(b"short")["north"])


# Pairs.


@laws
@given(st.lists(st.binary(max_size=20), max_size=3), st.binary(max_size=64))
def test_two_keys_agree_on_one_that_depends_on_what_it_is_for(context: list[bytes], content: bytes) -> None:
    one, two, three = EphemeralKey(), EphemeralKey(), EphemeralKey()
    key = one.pair_key(two.public, *context)
    assert key == two.pair_key(one.public, *context)
    others = [one.pair_key(two.public, *context, b""), one.pair_key(three.public, *context)]
    assert len({key, *others}) == 3
    sealed = encrypt(key, content, *context)
    assert decrypt(key, sealed, *context) == content
    for other, about in ((others[0], context), (key, [*context, b""])):
        with pytest.raises(MessageError, match="ciphertext"):
            decrypt(other, sealed, *about)


@pytest.mark.parametrize("public", [bytes(32), b"\1" + bytes(31), b"", bytes(31), bytes(33)])
def test_a_public_key_that_gives_the_secret_away_is_refused(public: bytes) -> None:
    with pytest.raises(MessageError, match="public_key"):
        EphemeralKey().pair_key(public)


@laws
@given(st.lists(st.lists(st.binary(max_size=6), max_size=4), min_size=2, max_size=8, unique_by=tuple))
def test_no_two_lists_are_written_the_same_way(lists: list[list[bytes]]) -> None:
    assert len({joined(*parts) for parts in lists}) == len(lists)
    assert len({derive(b"secret", *parts) for parts in lists}) == len(lists)


def test_keys_are_derived_as_rfc_5869_says() -> None:
    """Appendix A.3: no salt, no info; here the info is an empty list."""
    expected = "8da4e775a563c18f715f802a063c5a31b8a11f5c5ee1879ec3454e5f3c738d2d"
    assert derive(b"\x0b" * 22).hex() == expected
    assert number(2**63) == b"\x80" + bytes(7)


# Names that only sites can read.

IDS = st.lists(st.text(max_size=12).filter(lambda s: "\0" not in s and not s.endswith("\0")), max_size=8, unique=True)


@laws
@given(IDS, IDS)
def test_pseudonyms_are_equal_where_ids_are_and_nowhere_else(here: list[str], there: list[str]) -> None:
    key, other = b"k" * 32, b"l" * 32
    ours, theirs, foreign = (
        [own.tobytes() for own in pseudonyms(k, np.array(ids, dtype=np.str_))]
        for k, ids in ((key, here), (key, there), (other, here))
    )
    assert all(len(own) == 16 for own in ours)
    assert len(set(ours)) == len(here)
    assert set(ours) & set(theirs) == {ours[here.index(own)] for own in set(here) & set(there)}
    assert not set(ours) & set(foreign)


@laws
@given(
    st.lists(
        st.tuples(
            st.binary(min_size=1, max_size=4),
            st.text(max_size=4),
            st.one_of(st.integers(-9, 9), st.text(max_size=4), st.integers(-9, 9).map(str)),
        ),
        min_size=2,
        max_size=10,
        unique_by=lambda named: (named[0], named[1], type(named[2]), named[2]),
    )
)
def test_tokens_are_equal_where_key_column_and_category_are_and_nowhere_else(
    named: list[tuple[bytes, str, int | str]],
) -> None:
    made = [tokens(key, column, [category])[0] for key, column, category in named]
    assert len(set(made)) == len(named)
    assert all(len(token) == 32 for token in made)
    assert made == [tokens(key, column, [category])[0] for key, column, category in named]


# Enrolments.

KEY = b"j" * 32


def table(ids: list[str], categories: tuple[Any, ...]) -> LabelTable:
    codes = np.arange(len(ids), dtype=np.int32) % max(len(categories), 1)
    return LabelTable(np.array(ids), (Column("c", "clustering", categories, codes, None),))


@pytest.mark.promise("No label, object id or secret is in a frame, a log, a store, a checkpoint or an error.")
@laws
@given(st.lists(st.text("abcdef", min_size=1, max_size=8), min_size=1, max_size=8, unique=True))
def test_an_enrolment_shows_no_id_and_no_category(ids: list[str]) -> None:
    ids = [f"patient {name}" for name in ids]
    secret = ("benign or not", "malign or not")
    shown = enrol(table(ids, secret), votes=False, job_key=KEY)
    text = repr(shown).encode() + shown.objects.tobytes() + repr(shown.columns[0].categories).encode()
    assert not any(word.encode() in text for word in ("patient", *secret))
    assert shown.columns[0].categories == tuple(sorted(tokens(KEY, "c", secret)))
    other_way = enrol(table(ids, secret[::-1]), votes=False, job_key=KEY)
    assert shown.columns[0].categories == other_way.columns[0].categories, "the order of categories is the site's own"
    again = enrol(table(ids[::-1], secret), votes=False, job_key=KEY)
    np.testing.assert_array_equal(again.objects, shown.objects[::-1])
    assert (again.summary().pseudonym_digest == shown.summary().pseudonym_digest) == (len(ids) == 1), (
        "the digest is of their order, too"
    )


@pytest.mark.parametrize(("labels", "shown"), [(0, 0), (1, 1), (99, 99), (100, 100), (101, 100), (130, 100)])
def test_an_enrolment_shows_how_many_objects_have_a_label_but_not_how_many_hundreds(labels: int, shown: int) -> None:
    whole = table([f"o{i}" for i in range(130)], ("x", "y"))
    codes = np.where(np.arange(130) < labels, whole.columns[0].codes, -1).astype(np.int32)
    own = replace(whole, columns=(replace(whole.columns[0], codes=codes),))
    for key in (None, KEY):
        enrolled = enrol(own, votes=False, job_key=key)
        assert [claim.labels for claim in enrolled.columns] == [shown]
        assert [column.labels for column in enrolled.summary().columns] == [shown]


OWN = Enrolment(
    np.frombuffer(bytes(range(48)), dtype="V16"),
    (ColumnClaim("a", "clustering", False, ("t1", "t2"), "text", 3), ColumnClaim("b", "clustering", True, (), None)),
)


REVISION = 2
SIGNED = OWN.summary(REVISION, b"", bytes([77]) * 32, Wishes(3, 5))


def claims(**changes: Any) -> Enrolment:
    return replace(OWN, columns=(replace(OWN.columns[0], **changes), *OWN.columns[1:]))


CHANGED_ENROLMENTS = {
    "an object less": replace(OWN, objects=OWN.objects[:-1]),
    "an object more": replace(OWN, objects=np.concatenate([OWN.objects, OWN.objects[:1]])),
    "another object": replace(OWN, objects=np.frombuffer(bytes(47) + b"\1", dtype="V16")),
    "another order": replace(OWN, objects=OWN.objects[::-1]),
    "a column less": replace(OWN, columns=OWN.columns[:1]),
    "columns in another order": replace(OWN, columns=OWN.columns[::-1]),
    "another name": claims(name="c"),
    "another kind": claims(kind="classifier"),
    "soft": claims(soft=True),
    "a category less": claims(categories=("t1",)),
    "a category more": claims(categories=("t1", "t2", "t3")),
    "a label less": claims(labels=2),
    "a label in the other column": replace(
        OWN, columns=(replace(OWN.columns[0], labels=2), replace(OWN.columns[1], labels=1))
    ),
    "another way of writing": claims(written="integers"),
    "no way of writing": claims(written=None),
    "a category for a column's name": replace(
        OWN, columns=(replace(OWN.columns[0], categories=("t1",)), replace(OWN.columns[1], name="t2"))
    ),
}
#: What is shown of an enrolment, each field changed by itself, also where no enrolment would have it so.
CHANGED_SUMMARIES = {
    name: other.summary(REVISION, b"", SIGNED.key_commitment, SIGNED.wishes)
    for name, other in CHANGED_ENROLMENTS.items()
} | {
    "fewer objects of the same digest": replace(SIGNED, objects=2),
    "other objects of the same number": replace(SIGNED, pseudonym_digest=bytes(32)),
    "fewer categories of the same digest": replace(
        SIGNED, columns=(replace(SIGNED.columns[0], categories=1), *SIGNED.columns[1:])
    ),
    "another salt": OWN.summary(REVISION, b"salt", SIGNED.key_commitment, SIGNED.wishes),
    "another job key": replace(SIGNED, key_commitment=bytes(32)),
    "fewer sites wished for": replace(SIGNED, wishes=Wishes(2, 5)),
    "fewer objects wished for": replace(SIGNED, wishes=Wishes(3, 4)),
    "wishes run together": replace(SIGNED, wishes=Wishes(5, 3)),
    "more labels": replace(SIGNED, columns=(replace(SIGNED.columns[0], labels=99), *SIGNED.columns[1:])),
    "no column": replace(SIGNED, columns=()),
    "a column twice": replace(SIGNED, columns=(*SIGNED.columns, SIGNED.columns[0])),
    "an older revision": replace(SIGNED, revision=REVISION - 1),
    "a newer revision": replace(SIGNED, revision=REVISION + 1),
}


@pytest.mark.parametrize("other", CHANGED_SUMMARIES.values(), ids=CHANGED_SUMMARIES)
def test_the_signature_of_an_enrolment_covers_all_that_is_in_it(
    members: dict[str, Contributor], other: EnrolmentSummary
) -> None:
    certificate = parse_certificate(members["north"].certificate)
    signature = sign_enrolment(ATTEMPT, "north", SIGNED, members["north"].key)
    check_enrolment(ATTEMPT, "north", SIGNED, signature, certificate)
    with pytest.raises(MessageError, match="enrolment of north: not a signature"):
        check_enrolment(ATTEMPT, "north", other, signature, certificate)
    # Masks are bound to the same.
    private = {"east": 1, "north": 2}
    told = enrolment_digest({"east": SIGNED, "north": SIGNED}, private)
    assert told == enrolment_digest({"east": SIGNED, "north": SIGNED}, dict(private))
    assert told != enrolment_digest({"east": SIGNED, "north": other}, private)
    assert told != enrolment_digest({"east": SIGNED, "north": SIGNED}, {"east": 2, "north": 1})


@pytest.mark.promise("No label, object id or secret is in a frame, a log, a store, a checkpoint or an error.")
def test_a_summary_shows_no_pseudonym_and_no_token() -> None:
    shown = repr(vars(SIGNED)) + repr([vars(column) for column in SIGNED.columns])
    assert not any(repr(own.tobytes())[2:-1] in shown for own in OWN.objects)
    assert not any(token in shown for token in OWN.columns[0].categories)
    assert (SIGNED.objects, [column.categories for column in SIGNED.columns]) == (3, [2, 0])


@pytest.mark.parametrize("other", OTHERS.values(), ids=OTHERS)
def test_the_signature_of_an_enrolment_is_worth_nothing_in_another_attempt(
    members: dict[str, Contributor], other: Attempt
) -> None:
    signature = sign_enrolment(other, "north", SIGNED, members["north"].key)
    with pytest.raises(MessageError, match="enrolment of north"):
        check_enrolment(ATTEMPT, "north", SIGNED, signature, parse_certificate(members["north"].certificate))


def test_the_signature_of_an_enrolment_is_its_sites(members: dict[str, Contributor]) -> None:
    certificate = parse_certificate(members["north"].certificate)
    for site, signer in (("south", "north"), ("north", "south")):
        signature = sign_enrolment(ATTEMPT, site, SIGNED, members[signer].key)
        with pytest.raises(MessageError, match="enrolment of north"):
            check_enrolment(ATTEMPT, "north", SIGNED, signature, certificate)
    # Signed as something else, with the same key.
    share = sign_key_share(ATTEMPT, "north", EphemeralKey(), members["north"].key, members["north"].certificate)
    with pytest.raises(MessageError, match="enrolment of north"):
        check_enrolment(ATTEMPT, "north", SIGNED, share.signature, certificate)


# What every site has enrolled, shown by whoever relays it.

Shown = dict[str, tuple[EnrolmentSummary, bytes]]
Show = Callable[[Shown, Mapping[str, Contributor]], Any]


def enrolled(members: Mapping[str, Contributor], attempt: Attempt = ATTEMPT) -> Shown:
    """Each with something of its own."""
    summaries = {site: replace(SIGNED, objects=3 + at) for at, site in enumerate(attempt.roster)}
    return {s: (own, sign_enrolment(attempt, s, own, members[s].key)) for s, own in summaries.items()}


def of_north(**changes: Any) -> Show:
    return lambda shown, _: shown.update(north=(replace(shown["north"][0], **changes), shown["north"][1]))


SHOWS: dict[str, tuple[Show, str]] = {
    "more objects of another": (of_north(objects=1000), "enrolment of north: not a signature"),
    "fewer columns of another": (of_north(columns=SIGNED.columns[:1]), "enrolment of north: not a signature"),
    "an older one of another": (of_north(revision=REVISION - 1), "enrolment of north: not a signature"),
    "one site's for another's": (
        lambda shown, _: shown.update(north=shown["west"]),
        "enrolment of north: not a signature",
    ),
    "one of another attempt": (
        lambda shown, members: shown.update(north=enrolled(members, OTHERS["epoch"])["north"]),
        "enrolment of north: not a signature",
    ),
    "one's own": (
        lambda shown, _: shown.update(south=(replace(shown["south"][0], objects=1), shown["south"][1])),
        "another one than this site's stands under its name",
    ),
    "a site less": (lambda shown, _: shown.pop("west"), "enrolments: not those of the roster"),
    "a site more": (lambda shown, _: shown.update(zoe=shown["west"]), "enrolments: not those of the roster"),
    "another order": (lambda shown, _: shown.update(east=shown.pop("east")), "in its order"),
}


@pytest.mark.promise("A site believes only peers whose keys it has pinned, and only what they have signed.")
@pytest.mark.parametrize(("show", "says"), SHOWS.values(), ids=SHOWS)
def test_what_others_are_said_to_have_enrolled_is_believed_only_with_their_signatures(
    members: dict[str, Contributor], show: Show, says: str
) -> None:
    party, shown = met(members)["south"], enrolled(members)
    own = shown["south"][0]
    assert party.check_enrolments(own, shown) == {site: summary for site, (summary, _) in shown.items()}
    show(shown, members)
    with pytest.raises(MessageError, match=says):
        party.check_enrolments(own, shown)
