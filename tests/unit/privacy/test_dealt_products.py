"""Products of label rows by a dealer: shares add up to the counts, wrong words of the dealer are found."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from ce.errors import BrokenTotals, InputError, MessageError
from ce.privacy import dealt_products
from ce.privacy.dealt_products import (
    CHECK_COLUMNS,
    ProductBlock,
    SiteProducts,
    check_size,
    dealer_products,
    dealt_size,
    masked_rows,
    masked_rows_size,
    partners,
)
from ce.privacy.ring_words import Ring

Dealt = dict[tuple[str, str], bytes]


@dataclass
class Played:
    """Sites with their labels, and a dealer."""

    ring: Ring
    blocks: list[ProductBlock]
    columns: dict[str, list[int]]
    codes: dict[str, dict[bytes, NDArray[np.int32]]]
    round: int = 0

    @classmethod
    def drawn(cls, ring: Ring, seed: int, sites: int, rows: list[int]) -> Played:
        random = np.random.default_rng(seed)
        names = list("abcdefghij"[:sites])
        columns = {name: random.integers(1, 5, size=random.integers(1, 4)).tolist() for name in names}
        blocks = []
        for at, size in enumerate(rows):
            members = random.permutation(names)[: random.integers(2, sites + 1)]
            blocks.append(ProductBlock(b"block %d" % at, size, tuple(sorted(members.tolist()))))
        codes = {
            name: {
                block.context: np.column_stack([random.integers(-1, k, size=block.rows) for k in columns[name]]).astype(
                    np.int32
                )
                for block in blocks
                if name in block.members
            }
            for name in names
        }
        return cls(ring, blocks, columns, codes)

    @property
    def widths(self) -> dict[str, int]:
        return {name: sum(columns) for name, columns in self.columns.items()}

    def seed(self, site: str, purpose: str) -> bytes:
        return sha256(f"{self.round} {site} {purpose}".encode()).digest()

    def site(self, name: str) -> SiteProducts:
        blocks = [block for block in self.blocks if name in block.members]
        codes = [self.codes[name][block.context] for block in blocks]
        return SiteProducts(
            name,
            self.seed(name, "products"),
            self.ring,
            blocks,
            self.widths,
            self.columns[name],
            codes,
            self.seed(name, "check"),
        )

    def dealt(self) -> Dealt:
        return dealer_products(
            self.ring, {name: self.seed(name, "products") for name in self.columns}, self.blocks, self.widths
        )

    def run(self, dealt: Dealt) -> dict[str, SiteProducts]:
        sites = {name: self.site(name) for name in self.columns}
        for block in self.blocks:
            for sender in block.members:
                data = sites[sender].masked_rows(block.context)
                assert len(data) == masked_rows_size(self.ring, block.rows, self.widths[sender])
                for receiver in block.members:
                    if receiver != sender:
                        sites[receiver].receive_rows(block.context, sender, data)
        for (first, second), data in dealt.items():
            assert len(data) == dealt_size(self.ring, self.widths[first], self.widths[second])
            sites[second].receive_dealt(first, data)
        for first, second in dealt:
            message = sites[second].check_message(first)
            assert len(message) == check_size(self.ring, self.blocks, first, second, self.widths[first])
            sites[first].receive_check(second, message)
        assert not any(site.awaited_rows | site.awaited_dealt | site.awaited_checks for site in sites.values())
        return sites

    def counted(self, first: str, second: str) -> NDArray[np.int64]:
        """X_first' X_second, by counting."""
        total = np.zeros((self.widths[first], self.widths[second]), dtype=np.int64)
        for block in self.blocks:
            if first in block.members and second in block.members:
                total += self.one_hot(first, block).T @ self.one_hot(second, block)
        return total

    def one_hot(self, site: str, block: ProductBlock) -> NDArray[np.int64]:
        codes = self.codes[site][block.context]
        return np.hstack(
            [codes[:, [at]] == np.arange(categories) for at, categories in enumerate(self.columns[site])]
        ).astype(np.int64)

    def tampered(self, pair: tuple[str, str], change: int, at: tuple[int, int] = (0, 0)) -> Dealt:
        dealt = self.dealt()
        shape = (self.widths[pair[0]], self.widths[pair[1]])
        size = self.ring.packed_size(shape[0] * shape[1])
        words = self.ring.unpacked(dealt[pair][:size], shape)
        words[at] += np.uint32(change)
        return {**dealt, pair: self.ring.packed(words & self.ring.mask) + dealt[pair][size:]}


@given(
    st.sampled_from([Ring(22), Ring(32)]),
    st.integers(0, 10_000),
    st.integers(2, 5),
    st.lists(st.integers(1, 30), min_size=1, max_size=4),
)
@settings(max_examples=25, deadline=None)
def test_shares_of_two_sites_add_up_to_the_counts(ring: Ring, seed: int, sites: int, rows: list[int]) -> None:
    played = Played.drawn(ring, seed, sites, rows)
    dealt = played.dealt()
    found = played.run(dealt)
    assert set(dealt) == {
        pair for pair in combinations(sorted(played.columns), 2) if pair[1] in partners(played.blocks, pair[0])
    }
    for first, second in dealt:
        total = (found[first].product(second) + found[second].product(first)) & ring.mask
        assert (total == played.counted(first, second)).all()


@pytest.mark.parametrize("ring", [Ring(22), Ring(32)])
def test_rows_in_stretches_give_the_same(ring: Ring, monkeypatch: pytest.MonkeyPatch) -> None:
    played = Played.drawn(ring, 3, 3, [21, 8, 9])
    whole = played.dealt(), played.site("a").masked_rows(played.blocks[0].context)
    monkeypatch.setattr(dealt_products, "STRETCH", 4)
    assert (played.dealt(), played.site("a").masked_rows(played.blocks[0].context)) == whole
    found = played.run(played.dealt())
    for first, second in played.dealt():
        total = (found[first].product(second) + found[second].product(first)) & ring.mask
        assert (total == played.counted(first, second)).all()


@given(st.sampled_from([Ring(22), Ring(32)]), st.integers(1, 2**20), st.integers(0, 20))
@settings(max_examples=20, deadline=None)
def test_a_tampered_product_is_refused(ring: Ring, change: int, seed: int) -> None:
    played = Played.drawn(ring, seed, 2, [10])
    with pytest.raises(BrokenTotals, match="dealer check"):
        played.run(played.tampered(("a", "b"), change))


def test_the_check_itself_cannot_be_left_out_or_made_with_other_columns() -> None:
    played = Played.drawn(Ring(22), 1, 2, [10])
    sites = {name: played.site(name) for name in "ab"}
    context = played.blocks[0].context
    sites["a"].receive_rows(context, "b", sites["b"].masked_rows(context))
    with pytest.raises(MessageError, match="check of the dealer has arrived"):
        sites["a"].product("b")
    with pytest.raises(MessageError, match="after all dealt products"):
        sites["b"].check_message("a")
    sites["b"].receive_dealt("a", played.dealt()["a", "b"])
    message = sites["b"].check_message("a")
    assert message == sites["b"].check_message("a")
    with pytest.raises(BrokenTotals):
        sites["a"].receive_check("b", bytes(32) + message[32:])


def test_all_checks_of_a_sender_have_one_v() -> None:
    """Two V under the same check rows would let two receivers subtract what they got."""
    played = Played.drawn(Ring(22), 1, 2, [10])
    played.columns["c"] = played.columns["b"]
    block = ProductBlock(b"block", 10, ("a", "b", "c"))
    played.blocks = [block]
    codes = played.codes["b"].popitem()[1]
    played.codes = {
        "a": {b"block": played.codes["a"].popitem()[1]},
        "b": {b"block": codes},
        "c": {b"block": codes},
    }
    site = played.site("c")
    for pair, data in played.dealt().items():
        if pair[1] == "c":
            site.receive_dealt(pair[0], data)
    to_a, to_b = site.check_message("a"), site.check_message("b")
    rows = 32 + Ring(22).packed_size(10 * CHECK_COLUMNS)
    assert to_a[:rows] == to_b[:rows]
    assert to_a[rows:] != to_b[rows:]


def test_no_two_streams_of_an_attempt_are_equal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows, check rows and corrections of all sites, blocks and pairs are parts of different streams."""
    played = Played.drawn(Ring(22), 4, 4, [5, 6, 7])
    contexts: list[tuple[bytes, ...]] = []
    real = dealt_products.stream_of
    monkeypatch.setattr(dealt_products, "stream_of", lambda *parts: (contexts.append(parts), real(*parts))[1])
    played.dealt()
    assert len(contexts) == len(set(contexts)) > 10


@given(st.binary(max_size=60), st.sampled_from(["rows", "dealt", "check"]))
@settings(max_examples=30, deadline=None)
def test_garbage_is_refused(data: bytes, message: str) -> None:
    played = Played.drawn(Ring(22), 5, 2, [40])
    assume(len(data) != dealt_size(played.ring, played.widths["a"], played.widths["b"]))
    first, second = played.site("a"), played.site("b")
    receive = {
        "rows": lambda: first.receive_rows(played.blocks[0].context, "b", data),
        "dealt": lambda: second.receive_dealt("a", data),
        "check": lambda: first.receive_check("b", data),
    }[message]
    with pytest.raises(MessageError, match="bytes, got"):
        receive()
    assert all((first.awaited_rows, second.awaited_dealt, first.awaited_checks))


def test_messages_are_taken_once_and_from_members_only() -> None:
    played = Played.drawn(Ring(22), 5, 2, [4])
    site, context = played.site("a"), played.blocks[0].context
    data = played.site("b").masked_rows(context)
    with pytest.raises(MessageError, match="arrived"):
        site.product("b")
    site.receive_rows(context, "b", data)
    for sender, where in (("b", context), ("c", context), ("b", b"other block"), ("a", context)):
        with pytest.raises(MessageError, match="expected once"):
            site.receive_rows(where, sender, data)
    with pytest.raises(MessageError, match="before this one"):
        site.receive_dealt("b", b"")
    with pytest.raises(MessageError, match="another"):
        site.masked_rows(b"other block")
    with pytest.raises(MessageError, match="after this one"):
        site.receive_check("c", b"")


def test_labels_that_are_none_are_refused() -> None:
    for codes in ([[3]], [[-2]], [[0, 0]]):
        with pytest.raises(InputError):
            masked_rows(np.array(codes, dtype=np.int32), [3], Ring(22), bytes(32), b"block")
    with pytest.raises(InputError):
        ProductBlock(b"block", 1, ("b", "a"))


@pytest.mark.slow
def test_masked_rows_are_uniform_whatever_the_labels() -> None:
    """Every bit of what the members see is set half of the time: within 5 standard deviations for 120,000 rows."""
    rows, ring = 120_000, Ring(22)
    codes = np.zeros((rows, 1), dtype=np.int32)
    words = ring.unpacked(masked_rows(codes, [2], ring, bytes(32), b"block"), (rows, 2))
    for bit in range(ring.bits):
        share = ((words >> np.uint32(bit)) & 1).mean(axis=0)
        assert (np.abs(share - 0.5) < 5 * 0.5 / np.sqrt(rows)).all()


@pytest.mark.slow
def test_only_errors_of_half_the_ring_pass_and_rarely() -> None:
    """A shift by 2^21 passes with 1/256; the range of the opened tables shows it. All smaller powers are refused."""
    played = Played.drawn(Ring(22), 6, 2, [12])
    passed = dict.fromkeys((0, 10, 17, 19, 21), 0)
    for power in passed:
        for attempt in range(300):
            played.round = attempt
            try:
                played.run(played.tampered(("a", "b"), 1 << power))
            except BrokenTotals:
                continue
            passed[power] += 1
    assert all(passed[power] == 0 for power in (0, 10, 17, 19))
    assert passed[21] < 8
