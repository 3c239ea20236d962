"""Words modulo 2^22 and 2^32: products are exact, packing loses nothing, and other bytes are refused."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ce.cancellation import Cancellation, ComputationCancelled, cancellable
from ce.errors import InputError, MessageError
from ce.privacy.derivation import derive
from ce.privacy.ring_words import Ring, Stream, ring_bits, stream_of

KEY = bytes(range(32))
RINGS = st.sampled_from([Ring(22), Ring(32)])


def drawn(ring: Ring, shape: tuple[int, ...], seed: int) -> np.ndarray:
    return ring.drawn(stream_of(KEY, b"test", seed.to_bytes(8, "big")), shape)


@given(RINGS, st.integers(0, 1600), st.integers(1, 5), st.integers(1, 5), st.integers(0, 1000))
@settings(max_examples=40, deadline=None)
def test_products_equal_integer_products(ring: Ring, rows: int, p: int, q: int, seed: int) -> None:
    left, right = drawn(ring, (rows, p), seed), drawn(ring, (rows, q), seed + 1)
    exact = left.astype(object).T @ right.astype(object) if rows else np.zeros((p, q), dtype=object)
    assert (ring.product(left, right) == exact % ring.modulus).all()


@pytest.mark.parametrize("ring", [Ring(22), Ring(32)])
def test_products_of_the_largest_words_are_exact_over_many_rows(ring: Ring) -> None:
    rows = 9000
    largest = np.full((rows, 2), ring.modulus - 1, dtype=np.uint32)
    assert (ring.product(largest, largest) == rows * (ring.modulus - 1) ** 2 % ring.modulus).all()
    ones = np.ones((rows, 2))
    assert (ring.product_with_bits(ones, largest) == rows * (ring.modulus - 1) % ring.modulus).all()


@given(RINGS, st.integers(0, 70), st.integers(0, 1000))
@settings(max_examples=60, deadline=None)
def test_packing_loses_nothing(ring: Ring, count: int, seed: int) -> None:
    words = drawn(ring, (count,), seed)
    data = ring.packed(words)
    assert len(data) == ring.packed_size(count) == (count * ring.bits + 7) // 8
    assert (ring.unpacked(data, count) == words).all()
    in_one_number = sum(int(word) << (ring.bits * at) for at, word in enumerate(words))
    assert int.from_bytes(data, "little") == in_one_number


def test_long_arrays_are_packed_in_parts_without_a_seam() -> None:
    words = drawn(Ring(22), (300_001,), 1)
    assert (Ring(22).unpacked(Ring(22).packed(words), 300_001) == words).all()


@given(RINGS, st.integers(0, 20), st.binary(max_size=90))
@settings(max_examples=100, deadline=None)
def test_other_bytes_are_refused_or_are_words(ring: Ring, count: int, data: bytes) -> None:
    try:
        words = ring.unpacked(data, count)
    except MessageError:
        return
    assert ring.packed(words) == data


def test_bits_after_the_last_word_are_refused() -> None:
    with pytest.raises(MessageError, match="zeros after the last word"):
        Ring(22).unpacked(b"\x00\x00\x40", 1)


@given(RINGS, st.integers(-(2**20), 0), st.integers(0, 2**22 - 1))
def test_totals_with_noise_are_read_back(ring: Ring, lowest: int, above: int) -> None:
    value = np.array([lowest + above])
    assert (ring.from_below(ring.reduced(value), lowest) == value).all()


def test_the_ring_has_room_for_totals_and_noise() -> None:
    assert ring_bits(2**22 - 1, 0) == 22
    assert ring_bits(2**22, 0) == 32
    assert ring_bits(2**22 - 1600, 99.9) == 22
    assert ring_bits(2**22 - 1600, 100) == 32
    with pytest.raises(InputError, match=r"below 2\^32"):
        ring_bits(2**32, 0)
    with pytest.raises(InputError, match="22 or 32"):
        Ring(64)


def test_streams_go_on_and_differ_by_purpose_and_context() -> None:
    stream = stream_of(KEY, b"a", b"b")
    assert stream.bytes(10) + stream.bytes(22) == Stream(derive(KEY, b"a", b"b")).bytes(32)
    heads = {stream_of(KEY, *names).bytes(16) for names in [(b"a",), (b"b",), (b"a", b"b"), (b"ab",), (b"a", b"")]}
    assert len(heads) == 5
    with pytest.raises(MessageError, match="32 bytes, got 5"):
        stream_of(b"short", b"a")
    with pytest.raises(MessageError, match="32 bytes, got 5"):
        Stream(b"short")


def test_a_product_of_no_use_ends() -> None:
    words = drawn(Ring(22), (10, 1), 1)
    cancellation = Cancellation()
    cancellation.request()
    with cancellable(cancellation), pytest.raises(ComputationCancelled):
        Ring(22).product(words, words)
