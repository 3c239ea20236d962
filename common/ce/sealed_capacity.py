"""What a sealed job takes: bytes on the wire and memory, computed from its size (`ce capacity`, limits.round_bytes).

Nothing is iterated: the rows of shared objects travel once, masked, to the other members of their block; the tables are
opened once; then shared objects are compared with each other's scores in a tournament of the clusters. The constants
describe what is sent; a test compares them with jobs that run. docs/capacity.md has the formulas in words.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ce.capacity import (
    AROUND_ARRAY,
    AROUND_MESSAGE,
    ASKED,
    CLAIM,
    CREDENTIALS,
    LABEL,
    OBJECT,
    POSITION,
    PSEUDONYM,
    TOKEN,
    Size,
    Traffic,
)
from ce.job import Job
from ce.privacy.ring_words import ring_bits
from ce.privacy.zcdp import noise_of
from ce.protocol.sealed.terms import Terms
from ce.protocol.topology.site_view import Block

#: Nonce and tag of whatever is encrypted.
ENCRYPTED = 28
SEED = DIGEST = 32
#: Columns of the words that check the dealer.
CHECK_COLUMNS = 8
#: Rows of each block whose winners its members know beforehand.
DUMMY_ROWS = 256
#: What a site tells of its release, and of a block: a state and an epoch, beside the commitments.
TOLD = 9
#: Exchanges before and after the tournament, and those of one of its levels. The last, which brings the results, is not
#: counted, as in other modes.
BEFORE, LEVEL, AFTER = 6, 5, 4
#: In the tournament: bytes of a word, of a comparison's random numbers that the dealer corrects, one-bit products.
WORD, CORRECTED, PRODUCTS = 4, 24, 11
#: What a member sends of each comparison in the rounds of a level: bytes, bits.
ROUNDS = ((WORD, 0), (0, 14), (0, 6), (0, 2), (0, 1))
#: Bytes of a comparison at a member that holds most, the last one, beside the messages of all members: scores, random
#: numbers, corrections and copies of them.
HELD = 130
#: Arrays of (categories, categories) numbers that the fit holds when it holds most.
FIT = 8
#: Bytes that stretches of a product or of a level take at a site, at most, however many objects there are.
WORKING = 12e6
#: The dealer's stretches: rows of a product, comparisons of a level; and what it holds of a comparison, by member and
#: beside.
ROWS, COMPARED = 2**12, 2**16
DRAWN, DEALT = 50, 70


@dataclass(frozen=True)
class SealedShape:
    """How large a sealed job is."""

    widths: Mapping[str, int]  # by site, in order of name: categories of its columns
    blocks: Sequence[tuple[tuple[str, ...], int]]  # shared ones: members in order of name, objects
    columns: int  # of the whole job
    width: int  # categories of all columns
    cells: int  # of the tables of all pairs of columns
    bits: int  # of a word
    clusters: int

    @classmethod
    def of(cls, terms: Terms, blocks: Iterable[Block], clusters: int) -> SealedShape:
        shared = [(block.members, block.size) for block in blocks if block.shared]
        layout = terms.layout
        return cls(terms.widths, shared, len(terms.columns), layout.width, layout.n_cells, terms.ring.bits, clusters)

    @classmethod
    def even(cls, size: Size) -> SealedShape:
        """A job of sites that are alike, with the noise that jobs have by default."""
        sites = [f"s{at:06}" for at in range(size.sites)]
        own = size.columns - size.shared_columns
        holders = {f"c{at}": tuple(sites) for at in range(size.shared_columns)}
        holders |= {f"{site}c{at}": (site,) for site in sites for at in range(own)}
        most = 2 if size.shared_columns > 1 else int(size.shared_columns > 0 and len(holders) > 1)
        objects = size.shared + size.sites * size.private
        default = Job(model=size.model, clusters=1)
        assert default.epsilon != "exact"
        sd = noise_of(
            holders,
            sites,
            epsilon=default.epsilon,
            delta=default.delta,
            unit="site_row",
            collusion=min(default.collusion, size.sites - 1),
        ).opened_sd
        columns = len(holders)
        return cls(
            dict.fromkeys(sites, size.columns * size.categories),
            [(tuple(sites), size.shared)] if size.shared and size.sites > 1 else [],
            columns,
            columns * size.categories,
            columns * (columns - 1) // 2 * size.categories**2,
            ring_bits(objects * size.sites**most, sd),
            size.clusters,
        )

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(self.widths)

    def packed(self, words: int) -> int:
        """Bytes of so many words."""
        return -(-words * self.bits // 8)

    def blocks_of(self, site: str) -> list[tuple[tuple[str, ...], int]]:
        return [(members, objects) for members, objects in self.blocks if site in members]


def levels(clusters: int) -> int:
    """Of the tournament of the clusters and of "no label"."""
    return math.ceil(math.log2(clusters + 1))


def exchanges(shape: SealedShape) -> int:
    """Before the results are sent; without a shared object there is nothing to compare."""
    return BEFORE + LEVEL * levels(shape.clusters) + AFTER if shape.blocks else BEFORE


# On the wire. Each step: what a site sends, and what it is sent.


def masked_rows(shape: SealedShape, objects: int, site: str) -> int:
    """The rows of one block, of one member, encrypted."""
    return ENCRYPTED + shape.packed(objects * shape.widths[site])


def share(shape: SealedShape) -> int:
    return shape.packed(shape.cells)


def model(shape: SealedShape) -> int:
    return 8 * shape.clusters * (1 + shape.width)


def dealt(shape: SealedShape, first: str, second: str) -> int:
    """What the dealer sends the second of a pair of sites, in order of name, that share objects."""
    width = shape.widths[first]
    return shape.packed(width * shape.widths[second]) + shape.packed(width * CHECK_COLUMNS)


def check(shape: SealedShape, first: str, second: str) -> int:
    """What the second of a pair sends the first, so that this one can check the dealer."""
    common = [objects for members, objects in shape.blocks if {first, second} <= set(members)]
    rows = sum(shape.packed(objects * CHECK_COLUMNS) for objects in common)
    return ENCRYPTED + SEED + rows + shape.packed(shape.widths[first] * CHECK_COLUMNS)


def comparisons(shape: SealedShape, objects: int) -> list[int]:
    """Of each level, of one block."""
    found, candidates = [], shape.clusters + 1
    while candidates > 1:
        found.append(candidates // 2 * (objects + DUMMY_ROWS))
        candidates -= candidates // 2
    return found


def openings(shape: SealedShape, objects: int) -> int:
    """What a member of a block sends in the whole tournament."""
    return sum(
        WORD * count + (2 * PRODUCTS + 1) * -(-count // 8) + LEVEL * ENCRYPTED for count in comparisons(shape, objects)
    )


def corrections(shape: SealedShape, objects: int) -> int:
    """What the last member of a block is sent by the dealer."""
    return sum(CORRECTED * count + PRODUCTS * -(-count // 8) for count in comparisons(shape, objects))


def winners(objects: int) -> int:
    """What a member sends of a block after the tournament: a commitment, dummy rows, real rows, a digest."""
    return 4 * ENCRYPTED + DIGEST + (2 * DIGEST + DUMMY_ROWS) + (DIGEST + objects) + DIGEST


def told(shape: SealedShape, site: str, peer: str) -> int:
    """What a site tells another first: how far it has come, and the keys of blocks whose first member it is."""
    size = ENCRYPTED + TOLD + DIGEST * len(shape.sites)
    for members, _ in shape.blocks_of(site):
        if peer in members:
            size += TOLD + DIGEST * len(members) + (SEED if members[0] == site else 0)
    return size


def row_keys(shape: SealedShape, site: str, peer: str) -> int:
    """The keys of the rows of blocks, from their first member."""
    count = sum(members[0] == site and peer in members for members, _ in shape.blocks)
    return ENCRYPTED + SEED * count if count else 0


def sent_to(shape: SealedShape, site: str, peer: str) -> list[int]:
    """Sizes of the arrays that a site sends through the coordinator to one other site, in a whole job."""
    common = [objects for members, objects in shape.blocks_of(site) if peer in members]
    arrays = [told(shape, site, peer), DIGEST, DIGEST, share(shape)]
    if common:
        arrays += [masked_rows(shape, objects, site) for objects in common]
        arrays += [check(shape, peer, site)] if peer < site else []
        arrays += [keys] if (keys := row_keys(shape, site, peer)) else []
        rounds = LEVEL * levels(shape.clusters)
        for objects in common:
            arrays += [*[0] * (rounds + 3), openings(shape, objects) + winners(objects)]
    return arrays


def site_traffic(shape: SealedShape, site: str) -> Traffic:
    """All rounds of one site. What it sends to several others it sends once."""
    peers = [peer for peer in shape.sites if peer != site]
    mine = shape.blocks_of(site)
    boxes = [told(shape, site, peer) for peer in peers] + [
        size for peer in peers for size in (row_keys(shape, site, peer),) if size
    ]
    boxes += [check(shape, peer, site) for peer in peers if peer < site and _share(shape, peer, site)]
    rounds = LEVEL * levels(shape.clusters)
    up = [*boxes, 2 + len(mine), DIGEST, DIGEST, share(shape)]
    for _, objects in mine:
        up += [masked_rows(shape, objects, site), *[0] * (rounds + 3), openings(shape, objects) + winners(objects)]
    if mine:
        up += [SEED, SEED, len(mine)]
    down = [size for peer in peers for size in sent_to(shape, peer, site)]
    down += [8 * shape.columns, 8 * shape.clusters, 8 * shape.clusters * shape.width]
    down += [dealt(shape, peer, site) for peer in peers if peer < site and _share(shape, peer, site)]
    for members, objects in mine:
        if members[-1] == site:
            down += [*[0] * (levels(shape.clusters) - 1), corrections(shape, objects)]
    messages = AROUND_MESSAGE * (exchanges(shape) + 1)
    return Traffic(
        sum(down) + AROUND_ARRAY * len(down) + ASKED * len(up) + messages, sum(up) + AROUND_ARRAY * len(up) + messages
    )


def enrolment_traffic(size: Size) -> Traffic:
    """Before the rounds, at one site: as in other modes, without lists of objects to compare; and all columns."""
    letters = (size.sites - 1) * size.shared_columns * size.categories * TOKEN
    others = size.sites * (CREDENTIALS + 2 * size.columns * CLAIM)
    up = size.objects * PSEUDONYM + size.columns * CLAIM + CREDENTIALS + letters
    return Traffic(size.objects * POSITION + others + letters, up)


def rounds_traffic(shape: SealedShape) -> float:
    """All rounds of all sites, both ways."""
    return sum(site_traffic(shape, site).both for site in shape.sites)


def _share(shape: SealedShape, one: str, other: str) -> bool:
    return any({one, other} <= set(members) for members, _ in shape.blocks)


# In memory.


def round_bytes(shape: SealedShape) -> float:
    """What one round takes at the coordinator, in memory or on the disk, whichever is more."""
    return max(_computed_with(shape), coordinator_disk(shape))


def coordinator_memory(shape: SealedShape) -> float:
    """While rounds run: what is computed with, and a stretch of objects or comparisons, however many there are."""
    working = [0.0]
    for members, objects in shape.blocks:
        widths = [shape.widths[site] for site in members]
        rows, compared = min(objects, ROWS), min(max(comparisons(shape, objects)), COMPARED)
        working.append(rows * WORD * (3 * sum(width + CHECK_COLUMNS for width in widths) + 5 * max(widths)))
        working.append(compared * (DRAWN * len(members) + DEALT))
    return _computed_with(shape) + max(working)


def _computed_with(shape: SealedShape) -> float:
    """Sums of products of the sites, as words and as they are sent; or all shares and the fit of the tables."""
    pairs = [(one, other) for one in shape.sites for other in shape.sites if one < other and _share(shape, one, other)]
    words = sum(shape.widths[one] * (shape.widths[other] + CHECK_COLUMNS) for one, other in pairs)
    return max(WORD * words + sum(dealt(shape, *pair) for pair in pairs), _fit(shape))


def site_memory(shape: SealedShape, site: str, objects: int, columns: int) -> float:
    """One job at a site, its labels included: the masked rows of the members of its blocks, or the fit, or the first
    level of the tournament."""
    masked = sum(masked_rows(shape, rows, peer) for members, rows in shape.blocks_of(site) for peer in members)
    working = WORKING if shape.blocks_of(site) else 0
    compared = tournament_memory(((len(members), rows) for members, rows in shape.blocks_of(site)), shape.clusters)
    return max(masked + working, _fit(shape), compared) + objects * (columns * LABEL + OBJECT)


def tournament_memory(blocks: Iterable[tuple[int, int]], clusters: int) -> float:
    """All comparisons of the first level, which has most, of all blocks of a site: of each its members and objects."""
    pairs = (clusters + 1) // 2
    return sum((HELD + WORD * members) * pairs * (objects + DUMMY_ROWS) for members, objects in blocks)


def _fit(shape: SealedShape) -> float:
    return len(shape.sites) * share(shape) + 8 * FIT * shape.width**2


# On the disk.


def coordinator_disk(shape: SealedShape) -> float:
    """What the coordinator passes on, at most: what has arrived in a round, what arrives in the next, and what the
    dealer sends with it."""
    peers = [(one, other) for one in shape.sites for other in shape.sites if one != other]
    rounds: list[tuple[int, int]] = [  # in order: dealt at the beginning of a round, and sent by the sites in it
        (0, sum(told(shape, *pair) for pair in peers)),
        (0, sum(masked_rows(shape, objects, site) for members, objects in shape.blocks for site in members)),
        (0, sum(check(shape, *pair) for pair in peers if pair[0] < pair[1] and _share(shape, *pair))),
        (0, sum(row_keys(shape, *pair) for pair in peers)),
    ]
    blocks = [(len(members), comparisons(shape, objects)) for members, objects in shape.blocks]
    for level in range(levels(shape.clusters) if blocks else 0):
        counts = [(members, of_levels[level]) for members, of_levels in blocks]
        dealt_now = sum(CORRECTED * count + PRODUCTS * -(-count // 8) for _, count in counts)
        for word, bits in ROUNDS:
            sent = sum(members * (ENCRYPTED + word * count + bits * -(-count // 8)) for members, count in counts)
            rounds.append((dealt_now, sent))
            dealt_now = 0
    return max(before + dealt_ + sent for (_, before), (dealt_, sent) in pairwise([(0, 0), *rounds]))


def site_disk(shape: SealedShape, site: str) -> float:
    """What a site keeps of a job until it is over, so that nothing is made twice: its share, the model, and of each
    shared object and dummy row a share of the winner."""
    rows = sum(objects + DUMMY_ROWS for _, objects in shape.blocks_of(site))
    return share(shape) + model(shape) + rows + DIGEST * len(shape.sites)
