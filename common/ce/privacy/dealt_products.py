"""Products of the one-hot label rows of two sites, X_s' X_t, as shares: neither site sees a row of the other.

A dealer knows random rows R_s of every site and gives out products of them; the sites send each other E = X + R and
correct the dealer's products for it. For every pair s < t by name, in words modulo 2^bits, over their common blocks:

    dealer -> t      d = R_s' R_t + c,   d' = R_s' R'_t + c'        c and c' are streams of s, R' has 8 columns
    s                u_s = X_s' E_t - c
    t                u_t = d - E_s' R_t                              u_s + u_t = X_s' X_t
    t -> s           the seed of V, R_t V + R'_t, d V + d'           once all d have arrived at t
    s                R_s' (R_t V + R'_t) + c V + c' = d V + d' ?     else the dealer's d is wrong

All random rows of a site follow from its seed, which it draws itself and sends to the dealer: a dealer cannot weaken a
mask. V is one for all checks of a sender: two of them under one R' would let two receivers subtract. A wrong d passes
with probability 2^-8 if all its errors are multiples of 2^(bits-1), which the range of the opened tables shows; any
other error passes with 2^-16 or less. Rows are handled in stretches: nothing of the size n x D is stored but messages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from ce.cancellation import check_cancelled
from ce.errors import BrokenTotals, InputError, MessageError
from ce.privacy.ring_words import SEED_SIZE, Ring, RingWords, Stream, stream_of

Codes = NDArray[np.int32]

#: Columns of V: each halves, at least, the chance of a wrong product.
CHECK_COLUMNS = 8
#: Rows handled at a time: a multiple of 4, so that stretches of packed rows begin at a byte.
STRETCH = 2**12
_ROWS, _CHECK_ROWS, _CORRECTION, _COLUMNS = (
    b"ce product rows 1",
    b"ce product check rows 1",
    b"ce product correction 1",
    b"ce product check columns 1",
)


@dataclass(frozen=True)
class ProductBlock:
    """Objects held by the same sites, as all parties know them. `context` is the block's digest."""

    context: bytes
    rows: int
    members: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.members) < 2 or list(self.members) != sorted(set(self.members)):
            raise InputError("members of a block: expected at least two names in order, each once")


def common_blocks(blocks: Sequence[ProductBlock], first: str, second: str) -> list[ProductBlock]:
    """The blocks that both sites are members of, in the order of `blocks`."""
    return [block for block in blocks if first in block.members and second in block.members]


def partners(blocks: Sequence[ProductBlock], site: str) -> tuple[str, ...]:
    """The sites that have a block in common with this one, by name."""
    return tuple(sorted({name for block in blocks if site in block.members for name in block.members} - {site}))


def masked_rows_size(ring: Ring, rows: int, width: int) -> int:
    """Bytes of the masked rows of a block."""
    return ring.packed_size(rows * width)


def dealt_size(ring: Ring, first_width: int, second_width: int) -> int:
    """Bytes of the dealer's message of one pair: d, then d'."""
    return ring.packed_size(first_width * second_width) + ring.packed_size(first_width * CHECK_COLUMNS)


def check_size(ring: Ring, blocks: Sequence[ProductBlock], first: str, second: str, first_width: int) -> int:
    """Bytes of the check message of `second` to `first`: a seed, rows of every common block, and d V + d'."""
    rows = sum(ring.packed_size(block.rows * CHECK_COLUMNS) for block in common_blocks(blocks, first, second))
    return SEED_SIZE + rows + ring.packed_size(first_width * CHECK_COLUMNS)


def masked_rows(codes: Codes, columns: Sequence[int], ring: Ring, seed: bytes, context: bytes) -> bytes:
    """E = X + R of one block, packed. X has a one for each label; a missing label (-1) is a row part of zeros."""
    _check_codes(codes, columns)
    width = sum(columns)
    stream = _row_stream(seed, context)
    room = bytearray(masked_rows_size(ring, len(codes), width))
    for begin, end in _stretches(len(codes)):
        rows = ring.drawn(stream, (end - begin, width))
        at, label = _labelled_cells(codes[begin:end], columns)
        rows[at, label] += np.uint32(1)
        room[ring.packed_size(begin * width) : ring.packed_size(end * width)] = ring.packed(rows & ring.mask)
    return bytes(room)


def dealer_products(
    ring: Ring, seeds: Mapping[str, bytes], blocks: Sequence[ProductBlock], widths: Mapping[str, int]
) -> dict[tuple[str, str], bytes]:
    """The dealer's message of every pair s < t that has a common block: for t only. `widths` has the number of
    categories of all columns of each site together."""
    sums: dict[tuple[str, str], RingWords] = {}
    for block in blocks:
        for pair in combinations(block.members, 2):
            if pair not in sums:
                sums[pair] = np.hstack(_corrections(ring, seeds[pair[0]], pair[1], widths[pair[0]], widths[pair[1]]))
        rows = {site: _row_stream(seeds[site], block.context) for site in block.members}
        checks = {site: _check_stream(seeds[site], block.context) for site in block.members}
        for begin, end in _stretches(block.rows):
            drawn = {site: ring.drawn(rows[site], (end - begin, widths[site])) for site in block.members}
            beside = {
                site: np.hstack((drawn[site], ring.drawn(checks[site], (end - begin, CHECK_COLUMNS))))
                for site in block.members
            }
            for s, t in combinations(block.members, 2):
                sums[s, t] = (sums[s, t] + ring.product(drawn[s], beside[t])) & ring.mask
    return {
        (s, t): ring.packed(total[:, : widths[t]]) + ring.packed(total[:, widths[t] :])
        for (s, t), total in sums.items()
    }


class SiteProducts:
    """One site's part in the products of one attempt. Messages may arrive in any order, each once.

    blocks   the blocks with this site, in an order that all members share
    widths   number of categories of all columns of each site together
    columns  number of categories of each column of this site
    codes    for each of the blocks, the labels of its rows in the block's order: (rows, columns), -1 missing
    check_seed  32 fresh bytes that the dealer never sees: V
    """

    def __init__(
        self,
        site: str,
        seed: bytes,
        ring: Ring,
        blocks: Sequence[ProductBlock],
        widths: Mapping[str, int],
        columns: Sequence[int],
        codes: Sequence[Codes],
        check_seed: bytes,
    ) -> None:
        if len(blocks) != len(codes) or any(site not in block.members for block in blocks):
            raise InputError("codes: expected one array for every block with this site")
        if sum(columns) != widths[site]:
            raise InputError(f"columns: expected {widths[site]} categories in all, got {sum(columns)}")
        for block, rows in zip(blocks, codes, strict=True):
            _check_codes(rows, columns)
            if len(rows) != block.rows:
                raise InputError(f"codes: expected {block.rows} rows of a block, got {len(rows)}")
        self.site = site
        self.partners = partners(blocks, site)
        self._ring, self._seed, self._check_seed = ring, seed, check_seed
        self._blocks, self._widths, self._columns = tuple(blocks), widths, tuple(columns)
        self._codes = {block.context: rows for block, rows in zip(blocks, codes, strict=True)}
        self._members = {block.context: block.members for block in blocks}
        if len(self._codes) != len(blocks):
            raise InputError("blocks: expected a context for each of them, got one twice")
        self._width = widths[site]
        self.awaited_rows = {(b.context, name) for b in blocks for name in b.members if name != site}
        self.awaited_dealt = {name for name in self.partners if name < site}
        self.awaited_checks = {name for name in self.partners if name > site}
        self._dealt: dict[str, tuple[RingWords, RingWords]] = {}
        self._check_rows: dict[bytes, bytes] = {}
        self._sums: dict[str, RingWords] = {}
        for name in self.partners:
            if name > site:
                self._sums[name] = ring.reduced(-self._corrections(name)[0].astype(np.int64))
            else:
                self._sums[name] = np.zeros((widths[name], self._width), dtype=np.uint32)

    def masked_rows(self, context: bytes) -> bytes:
        """For every other member of the block."""
        return masked_rows(self._codes_of(context), self._columns, self._ring, self._seed, context)

    def receive_rows(self, context: bytes, sender: str, data: bytes) -> None:
        """Masked rows of another member of a block: its product with the rows of this site is added up."""
        if (context, sender) not in self.awaited_rows:
            raise MessageError(f"masked rows: expected once, of a member of a block with this site, got from {sender}")
        codes, ring, width = self._codes_of(context), self._ring, self._widths[sender]
        expected = masked_rows_size(ring, len(codes), width)
        if len(data) != expected:
            raise MessageError(f"masked rows of {sender}: expected {expected} bytes, got {len(data)}")
        stream = _row_stream(self._seed, context)
        total = np.zeros_like(self._sums[sender])
        for begin, end in _stretches(len(codes)):
            part = memoryview(data)[ring.packed_size(begin * width) : ring.packed_size(end * width)]
            rows = ring.unpacked(part, (end - begin, width))
            if self.site < sender:
                total += ring.product_with_bits(_one_hot(codes[begin:end], self._columns), rows)
            else:
                total -= ring.product(rows, ring.drawn(stream, (end - begin, self._width)))
        self._sums[sender] = (self._sums[sender] + total) & ring.mask
        self.awaited_rows.remove((context, sender))

    def receive_dealt(self, first: str, data: bytes) -> None:
        """The dealer's message of the pair of `first` and this site."""
        if first not in self.awaited_dealt:
            raise MessageError(f"dealt products: expected once, of a site before this one, got of {first}")
        height, expected = self._widths[first], dealt_size(self._ring, self._widths[first], self._width)
        if len(data) != expected:
            raise MessageError(f"dealt products of {first}: expected {expected} bytes, got {len(data)}")
        at = self._ring.packed_size(height * self._width)
        self._dealt[first] = (
            self._ring.unpacked(data[:at], (height, self._width)),
            self._ring.unpacked(data[at:], (height, CHECK_COLUMNS)),
        )
        self.awaited_dealt.remove(first)

    def check_message(self, first: str) -> bytes:
        """For `first`, never for the dealer: what it needs to test the dealer's products of the pair."""
        if first not in self.partners or first > self.site:
            raise MessageError(f"check of the dealer: expected for a site before this one, got for {first}")
        if self.awaited_dealt:
            raise MessageError("check of the dealer: expected after all dealt products have arrived, got before")
        blocks = common_blocks(self._blocks, first, self.site)
        product, check = self._dealt[first]
        columns = self._check_columns(self._check_seed, self._width)
        tested = self._ring.packed((self._ring.product(product.T, columns) + check) & self._ring.mask)
        return b"".join((self._check_seed, *(self._masked_check_rows(block) for block in blocks), tested))

    def receive_check(self, second: str, data: bytes) -> None:
        """The check message of `second`. Raises BrokenTotals if the dealer's products of the pair are wrong."""
        if second not in self.awaited_checks:
            raise MessageError(f"check of the dealer: expected once, of a site after this one, got from {second}")
        ring = self._ring
        expected = check_size(ring, self._blocks, self.site, second, self._width)
        if len(data) != expected:
            raise MessageError(f"check of the dealer by {second}: expected {expected} bytes, got {len(data)}")
        columns = self._check_columns(data[:SEED_SIZE], self._widths[second])
        correction, check_correction = self._corrections(second)
        total = ring.product(correction.T, columns) + check_correction
        at = SEED_SIZE
        for block in common_blocks(self._blocks, self.site, second):
            stream = _row_stream(self._seed, block.context)
            size = ring.packed_size(block.rows * CHECK_COLUMNS)
            masked = ring.unpacked(data[at : at + size], (block.rows, CHECK_COLUMNS))
            for begin, end in _stretches(block.rows):
                total += ring.product(ring.drawn(stream, (end - begin, self._width)), masked[begin:end])
            at += size
        self.awaited_checks.remove(second)
        if not np.array_equal(total & ring.mask, ring.unpacked(data[at:], (self._width, CHECK_COLUMNS))):
            raise BrokenTotals(f"the products of {self.site} and {second}", "dealer check", (self.site, second))

    def product(self, partner: str) -> RingWords:
        """This site's share of X_first' X_second: rows are categories of the first by name, columns of the second."""
        if partner in self.awaited_dealt or any(sender == partner for _, sender in self.awaited_rows):
            raise MessageError(f"product with {partner}: expected after its rows and the dealer's words have arrived")
        if partner in self.awaited_checks:
            raise MessageError(f"product with {partner}: expected after its check of the dealer has arrived")
        if partner < self.site:
            return (self._dealt[partner][0] + self._sums[partner]) & self._ring.mask
        return self._sums[partner]

    def _masked_check_rows(self, block: ProductBlock) -> bytes:
        """R V + R' of a block: the same for all its members."""
        if block.context not in self._check_rows:
            ring, columns = self._ring, self._check_columns(self._check_seed, self._width)
            rows, checks = _row_stream(self._seed, block.context), _check_stream(self._seed, block.context)
            room = bytearray(ring.packed_size(block.rows * CHECK_COLUMNS))
            for begin, end in _stretches(block.rows):
                drawn = ring.drawn(rows, (end - begin, self._width))
                masked = ring.product(drawn.T, columns) + ring.drawn(checks, (end - begin, CHECK_COLUMNS))
                at = slice(ring.packed_size(begin * CHECK_COLUMNS), ring.packed_size(end * CHECK_COLUMNS))
                room[at] = ring.packed(masked & ring.mask)
            self._check_rows[block.context] = bytes(room)
        return self._check_rows[block.context]

    def _codes_of(self, context: bytes) -> Codes:
        if context not in self._codes:
            raise MessageError("block: expected one with this site, got another")
        return self._codes[context]

    def _corrections(self, second: str) -> tuple[RingWords, RingWords]:
        return _corrections(self._ring, self._seed, second, self._width, self._widths[second])

    def _check_columns(self, seed: bytes, width: int) -> RingWords:
        return self._ring.drawn(stream_of(seed, _COLUMNS), (width, CHECK_COLUMNS))


def _row_stream(seed: bytes, context: bytes) -> Stream:
    return stream_of(seed, _ROWS, context)


def _check_stream(seed: bytes, context: bytes) -> Stream:
    return stream_of(seed, _CHECK_ROWS, context)


def _corrections(ring: Ring, seed: bytes, second: str, width: int, second_width: int) -> tuple[RingWords, RingWords]:
    """c and c' of a pair: streams of the seed of its first site."""
    stream = stream_of(seed, _CORRECTION, second.encode())
    return ring.drawn(stream, (width, second_width)), ring.drawn(stream, (width, CHECK_COLUMNS))


def _stretches(rows: int) -> Iterator[tuple[int, int]]:
    for begin in range(0, rows, STRETCH):
        check_cancelled()
        yield begin, min(begin + STRETCH, rows)


def _check_codes(codes: Codes, columns: Sequence[int]) -> None:
    if codes.ndim != 2 or codes.shape[1] != len(columns):
        raise InputError(f"codes: expected {len(columns)} columns, got an array of shape {codes.shape}")
    if codes.size and (codes.min() < -1 or (codes >= np.asarray(columns)).any()):
        raise InputError("codes: expected -1 or a category of the column, got another number")


def _labelled_cells(codes: Codes, columns: Sequence[int]) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Row and place of every one in the one-hot rows."""
    offsets = np.concatenate(([0], np.cumsum(columns)[:-1])).astype(np.intp)
    at, column = np.nonzero(codes >= 0)
    return at, codes[at, column] + offsets[column]


def _one_hot(codes: Codes, columns: Sequence[int]) -> NDArray[np.float64]:
    rows = np.zeros((len(codes), sum(columns)))
    rows[_labelled_cells(codes, columns)] = 1
    return rows
