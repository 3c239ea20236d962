"""The tags of blind totals: they add up as the words do, and no change of a total passes.

What the tags are bound to: `test_mask_context`. A coordinator that changes totals: `test_lying_about_sums`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from hypothesis import given, settings
from hypothesis import strategies as st

import ce.protocol.modes.mask_context
from ce.errors import AlteredTotals, MessageError
from ce.privacy.mac import _FEW, _STRETCH, MAC_WORDS, PRIME, WORD_BITS, from_words, mac_key, tag, to_words
from ce.privacy.masks import Keystream, Masks
from ce.protocol.attempt import Attempt
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.task import Answer
from ce.protocol.modes.blind_site import CommonState
from ce.protocol.modes.mask_context import MaskBinding
from ce.protocol.topology.site_view import Block, SiteView
from ce.ring import Words
from ce.steps.model import Sizes

laws = settings(max_examples=60, deadline=None, derandomize=True)

KEY = hashlib.sha256(b"a key").digest()
LARGEST = 2**63 - 1
SMALL_PRIME = 2**61 - 1
WORDS = st.one_of(st.sampled_from((0, 1, -1, 2**62, -LARGEST - 1, LARGEST)), st.integers(-LARGEST - 1, LARGEST))
SITES = ("east", "north", "south")


def by_hand(words: Words, key: bytes) -> int:
    """The tag, in whole numbers of any size."""
    stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor().update(bytes(8 * words.size))
    coefficients = np.frombuffer(stream, "<u8").tolist()
    return sum(c * w for c, w in zip(coefficients, words.reshape(-1).tolist(), strict=True)) % PRIME


def shared_out(total: list[int], parts: int, rng: np.random.Generator) -> list[Words]:
    """Words that add up to a total without an overflow on the way."""
    found = [np.array([int(w * f) for w in total], dtype=np.int64) for f in rng.uniform(0, 0.5 / parts, parts - 1)]
    return [*found, np.array(total, dtype=np.int64) - sum(found, np.zeros(len(total), dtype=np.int64))]


# The tag.


@pytest.mark.parametrize("size", [0, 1, 7, _FEW, _FEW + 1, _STRETCH - 1, _STRETCH, _STRETCH + 1, 2 * _STRETCH + 3])
def test_a_tag_is_exact_for_words_of_any_size(size: int) -> None:
    rng = np.random.default_rng(size)
    for words in (
        rng.integers(-LARGEST - 1, LARGEST, size, endpoint=True),
        np.full(size, LARGEST),
        np.full(size, -LARGEST - 1),
    ):
        assert tag(words, Keystream(KEY)) == by_hand(words, KEY)


def test_the_layout_of_an_array_does_not_matter() -> None:
    whole = np.random.default_rng(1).integers(-(2**62), 2**62, (4, 6, 5))
    for words in (whole[::2, :, ::-1], whole.T, np.asfortranarray(whole), whole.astype(">i8")):
        assert tag(words, Keystream(KEY)) == by_hand(np.ascontiguousarray(words).astype(np.int64), KEY)


@pytest.mark.promise("In blind a total that was changed is refused before anything is decided.")
@laws
@given(st.lists(WORDS, max_size=9), st.integers(1, 6), st.integers(0, 2**32))
def test_tags_add_up_to_the_tag_of_the_total(total: list[int], sites: int, seed: int) -> None:
    parts = shared_out(total, sites, np.random.default_rng(seed))
    assert [sum(map(int, own)) for own in zip(*parts, strict=True)] == total
    tags = [tag(own, Keystream(KEY)) for own in parts]
    assert sum(tags) % PRIME == tag(np.array(total, dtype=np.int64), Keystream(KEY))
    added = sum((to_words(own) for own in tags), np.zeros(MAC_WORDS, dtype=np.int64))
    assert from_words(added) == sum(tags) % PRIME


def test_a_tag_is_three_words_that_ten_thousand_sites_can_add() -> None:
    assert (PRIME - 1).bit_length() <= MAC_WORDS * WORD_BITS
    assert from_words(to_words(PRIME - 1) * 10_000) == 10_000 * (PRIME - 1) % PRIME
    assert from_words(np.array([0, -1, 5])) is None


def test_the_prime_is_one_and_larger_than_every_change_of_a_word() -> None:
    assert PRIME > 2**64
    s = 4  # Lucas-Lehmer
    for _ in range(89 - 2):
        s = (s * s - 2) % PRIME
    assert s == 0


def test_every_word_of_every_round_has_a_coefficient_of_its_own() -> None:
    one = np.array([1])
    stream = Keystream(KEY)
    assert len({tag(one, stream) for _ in range(50)}) == 50
    tags = {tag(one, Keystream(mac_key(KEY, bytes([at]) * 32))) for at in range(50)}
    assert len(tags) == 50
    assert len({tag(np.eye(1, 50, at, dtype=np.int64), Keystream(KEY)) for at in range(50)}) == 50


# Totals that are changed on their way.


class Exchange:
    """Three sites, the words that each adds to two arrays of all, and what the coordinator has."""

    def __init__(self, parts: Mapping[str, Mapping[str, Words]], round_: int = 1) -> None:
        self.round = round_
        self.bits = {name: 7 for own in parts.values() for name in own} | {MAC: 0}
        types = {name: words.dtype for own in parts.values() for name, words in own.items()} | {MAC: np.dtype("i8")}
        self._digest = CommonState().view_digest()
        self.sites = {site: self._site(site) for site in parts}
        self.sent: dict[str, Answer] = {}
        for site, own in parts.items():
            answer = Answer(round_, "sums", arrays=own, fraction_bits=dict.fromkeys(own, 7))
            self.sent[site] = self.sites[site].mask(answer, self._digest)
            assert self.sent[site].fraction_bits == self.bits
        with np.errstate(over="ignore"):
            self.totals = {
                name: np.sum([answer.arrays[name] for answer in self.sent.values()], axis=0, dtype=types[name])
                for name in self.bits
            }

    @staticmethod
    def _site(site: str) -> MaskBinding:
        keys = {
            peer: hashlib.sha256(" ".join(sorted((site, peer))).encode()).digest() for peer in SITES if peer != site
        }
        view = SiteView(
            SITES, Sizes(9, 2, 0, 3), {1: Block(1, SITES, 4)}, (), needs_two_exchanges=False, shared_by_all=True
        )
        found = MaskBinding(Attempt("job", b"{}", 1, SITES), site, view, {1: bytes(32)}, keys)
        found.set_keys = {SITES: KEY}
        return found

    def read(self, site: str, totals: Mapping[str, Words]) -> dict[ArrayName, Words]:
        return self.sites[site].unmask(totals, self.bits, self.round, self._digest)

    def refused(self, changes: Mapping[str, Mapping[int, int]]) -> None:
        """Every site refuses these totals, changed by so much at these places, modulo 2 to the power of their bits."""
        totals = {name: own.copy() for name, own in self.totals.items()}
        for name, deltas in changes.items():
            for at, delta in deltas.items():
                bits = 8 * totals[name].dtype.itemsize
                totals[name][at : at + 1] += np.array([delta % 2**bits], f"u{bits // 8}").view(totals[name].dtype)
        for site in SITES:
            with pytest.raises(AlteredTotals, match="the totals of global are not those"):
                self.read(site, totals)


A, B, MAC = "global/a", "global/b", "global/mac"


@pytest.fixture(name="exchange", scope="module")
def _exchange() -> Exchange:
    rng = np.random.default_rng(5)
    parts = {site: {A: rng.integers(-(2**60), 2**60, 6), B: rng.integers(0, 9, 3)} for site in SITES}
    exchange = Exchange(parts)
    for site in SITES:
        found = exchange.read(site, exchange.totals)
        assert set(found) == {A, B}
        for name in found:
            np.testing.assert_array_equal(found[ArrayName(name)], sum(own[name] for own in parts.values()))
    return exchange


PLANTED: dict[str, dict[str, dict[int, int]]] = {
    "one more": {A: {0: 1}},
    "one less": {B: {2: -1}},
    "a prime of 61 bits": {A: {3: SMALL_PRIME}},
    "minus a prime of 61 bits": {A: {3: -SMALL_PRIME}},
    "twice that prime": {A: {1: 2 * SMALL_PRIME}},
    "seven times that prime": {A: {1: 7 * SMALL_PRIME}},
    "the highest bit": {A: {5: 2**63}},
    "the highest bit of two words": {A: {5: 2**63, 4: 2**63}},
    "powers of two": {A: {0: 2**62, 1: -(2**61)}},
    "what cancels": {A: {0: 5, 1: -5}},
    "what cancels in another array": {A: {0: 5}, B: {0: -5}},
    "the largest change": {A: {0: 2**64 - 1}},
    "every word": {A: dict.fromkeys(range(6), 12345)},
    "the tag": {MAC: {0: 1}},
    "the tag, by what is none": {MAC: {0: 2**30, 1: 1}},
    "the sign of the tag": {MAC: {2: 2**63}},
    "words and tag": {A: {0: 1}, MAC: {0: 1}},
    "words and tag by the prime of tags": {
        A: {0: 3},
        MAC: {0: PRIME % 2**30, 1: PRIME >> 30 & 2**30 - 1, 2: PRIME >> 60},
    },
}


@pytest.mark.promise("In blind a total that was changed is refused before anything is decided.")
@pytest.mark.parametrize("changes", PLANTED.values(), ids=PLANTED)
def test_a_planted_change_is_refused(exchange: Exchange, changes: dict[str, dict[int, int]]) -> None:
    exchange.refused(changes)


DELTAS = st.one_of(
    st.integers(1, 2**64 - 1), st.sampled_from([1, 2**63, SMALL_PRIME, 2**64 - 1, 2**64 - SMALL_PRIME, 2**32])
)


@pytest.mark.promise("In blind a total that was changed is refused before anything is decided.")
@laws
@given(
    a=st.dictionaries(st.integers(0, 5), DELTAS, min_size=1),
    b=st.dictionaries(st.integers(0, 2), DELTAS),
    mac=st.dictionaries(st.integers(0, 2), DELTAS),
)
def test_any_change_is_refused(exchange: Exchange, a: dict[int, int], b: dict[int, int], mac: dict[int, int]) -> None:
    exchange.refused({A: a, B: b, MAC: mac})


# Words of 32 bits.


@pytest.fixture(name="short", scope="module")
def _short() -> Exchange:
    """Of `global/a` the words have 32 bits, and its total comes close to their largest."""
    rng = np.random.default_rng(6)
    parts = {site: {A: rng.integers(-(2**29), 2**29, 6), B: rng.integers(0, 9, 3)} for site in SITES}
    for at, site in enumerate(SITES):
        parts[site][A][:2] = (2**31 - 1 - 2 * (2**29) if at == 0 else 2**29), (-(2**29) * 2 if at == 0 else -(2**29))
    exchange = Exchange({site: {**own, A: own[A].astype(np.int32)} for site, own in parts.items()})
    for site in SITES:
        found = exchange.read(site, exchange.totals)
        assert found[ArrayName(A)].dtype == np.int32
        for name in found:
            np.testing.assert_array_equal(found[name], sum(own[name] for own in parts.values()))
    assert found[ArrayName(A)][:2].tolist() == [2**31 - 1, -(2**31)]
    return exchange


@pytest.mark.promise("In blind a total that was changed is refused before anything is decided.")
@laws
@given(
    a=st.dictionaries(
        st.integers(0, 5), st.one_of(st.integers(1, 2**32 - 1), st.sampled_from([1, 2**31, 2**32 - 1])), min_size=1
    ),
    b=st.dictionaries(st.integers(0, 2), DELTAS),
    mac=st.dictionaries(st.integers(0, 2), DELTAS),
)
def test_any_change_of_short_words_is_refused(
    short: Exchange, a: dict[int, int], b: dict[int, int], mac: dict[int, int]
) -> None:
    short.refused({A: a, B: b, MAC: mac})


@pytest.mark.parametrize("size", [0, 1, 7, _FEW, _FEW + 1, _STRETCH + 1])
def test_a_tag_of_short_words_is_that_of_the_same_numbers(size: int) -> None:
    words = np.random.default_rng(size).integers(-(2**31), 2**31, size)
    assert tag(words.astype(np.int32), Keystream(KEY)) == by_hand(words, KEY)


def test_a_total_read_at_another_width_is_refused(short: Exchange) -> None:
    wide = {name: total.astype(np.int64) for name, total in short.totals.items()}
    for site in SITES:
        with pytest.raises(AlteredTotals):
            short.read(site, wide)


def test_a_total_of_another_round_and_one_without_a_tag_are_refused(exchange: Exchange) -> None:
    parts = {site: {A: np.arange(6), B: np.arange(3)} for site in SITES}
    later = Exchange(parts, round_=2)
    for site in SITES:
        with pytest.raises(AlteredTotals):
            exchange.read(site, later.totals)
        with pytest.raises(AlteredTotals):
            exchange.read(site, {A: exchange.totals[A]})
        with pytest.raises(AlteredTotals):  # another array of the same scope is not left out
            exchange.read(site, {A: exchange.totals[A], MAC: exchange.totals[MAC]})


def test_nothing_but_the_tag_of_the_total_can_be_read_from_the_words_of_tags(monkeypatch: pytest.MonkeyPatch) -> None:
    """The carries of their sums are drawn by lot. Without shares of zero they would tell something of single sites:
    there would be none here, where all words but those of one site are zero."""
    read: list[Words] = []

    def keep(words: Words) -> int | None:
        read.append(words)
        return from_words(words)

    monkeypatch.setattr(ce.protocol.modes.mask_context, "from_words", keep)
    nothing = {A: np.zeros(6, dtype=np.int64), B: np.zeros(3, dtype=np.int64)}
    for round_ in range(1, 41):
        exchange = Exchange({"east": nothing, "north": nothing, "south": {**nothing, A: np.arange(6)}}, round_)
        exchange.read("east", exchange.totals)
    carries = [sum(int(word) << (WORD_BITS * at) for at, word in enumerate(words)) // PRIME for words in read]
    # Three uniform numbers whose sum is next to nothing modulo P add up to P or to 2 P, one as often as the other.
    assert set(carries) == {1, 2}
    assert 8 <= carries.count(1) <= 32


def test_shares_of_zero() -> None:
    keys = {pair: hashlib.sha256(" ".join(pair).encode()).digest() for pair in (SITES[:2], SITES[1:], SITES[::2])}
    masks = {site: Masks(site, {p: keys[min(site, p), max(site, p)] for p in SITES if p != site}) for site in SITES}
    seen = set()
    for at in range(20):
        shares = {
            s: own.share_of_zero(dict.fromkeys(set(SITES) - {s}, bytes([at])), b"m", PRIME) for s, own in masks.items()
        }
        assert sum(shares.values()) % PRIME == 0
        assert all(0 <= share < PRIME for share in shares.values())
        seen |= set(shares.values())
    assert len(seen) == 60
    others = {masks["east"].share_of_zero({"north": bytes(1)}, name, PRIME) for name in (b"m", b"n", b"mn")}
    assert len(others) == 3
    assert Masks("alone", {}).share_of_zero({}, b"m", PRIME) == 0


# Names.


def test_names_of_tags() -> None:
    for name, mac in {
        "global/bound": "global/mac",
        "block/3/sums": "block/3/mac",
        "block/3/claims/7": "block/3/mac/7",
        "columns/0/sums": "columns/0/mac",
    }.items():
        assert ArrayName(name).mac == mac
        assert (ArrayName(name).is_mac, ArrayName(mac).is_mac) == (False, True)
        assert (ArrayName(mac).scope, ArrayName(mac).column) == (ArrayName(name).scope, ArrayName(name).column)
        assert not ArrayName(mac).is_claims
        assert ArrayName(mac).fraction_bits({}) == 0
    assert not ArrayName.of_box("mac").is_mac
    with pytest.raises(MessageError, match="what is passed on has no tag"):
        _ = ArrayName.of_box("east").mac
