"""Which items two parties have in common, found without either of them showing the other its items.

Private set intersection by Diffie-Hellman on P-256. An item is hashed to a point under a key that both parties have;
each party multiplies points by a secret number of its own. A point that both have multiplied is the same whoever was
first, so that equal items, and only these, give equal points:

    A -> B   a * H(x) of A's items, sorted             B -> A   b * H(y) of B's items, sorted
    A -> B   a * (b * H(y)), in the order received     B -> A   b * (a * H(x)), in the order received
    A        x is common if b * (a * H(x)) is among the a * (b * H(y))

Points are sent as their x coordinates: 32 bytes. Of a party with many items only a sample is compared, chosen by a
keyed permutation that both parties compute and no third one can: the items with the smallest tags. What is above the
largest tag of either sample is not compared. Items are 16 bytes each; this module does not know what they stand for.
"""

from __future__ import annotations

import hmac
from collections.abc import Callable, Iterable

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from ce.errors import MessageError
from ce.privacy.derivation import derive, number

#: Bytes of an item, and of a point as it is sent.
ITEM_SIZE, POINT_SIZE = 16, 32
#: A party with at most so many items compares all of them ...
MOST_ITEMS = 20_000
#: ... another one so many.
SAMPLE = 4_096
#: Points that one party sends to all its peers together, in one stage.
MOST_POINTS = 200_000
#: The cutoff of a list with all items.
NO_CUTOFF = 2**64 - 1
#: Points between two calls of `pause`: about 10 ms.
_STRETCH = 256
_CURVE = ec.SECP256R1()

Positions = NDArray[np.intp]


def nothing() -> None:
    """Do not pause."""


def list_length(items: int, peers: int) -> int:
    """How many of its items a party with this many peers compares with each of them."""
    share = MOST_POINTS // max(peers, 1)
    return items if items <= min(MOST_ITEMS, share) else min(SAMPLE, share, items)


class BlindedItems:
    """One party's secret number, and what it has multiplied by it: an item that comes again costs nothing."""

    def __init__(self, hash_key: bytes, pause: Callable[[], None] = nothing) -> None:
        """`hash_key`: shared with the peers. `pause` is called every few milliseconds, and may raise."""
        self._secret = ec.generate_private_key(_CURVE)
        self._hash_key = derive(hash_key, b"ce overlap 1")
        self._pause = pause
        self._items: dict[bytes, bytes] = {}
        self._points: dict[bytes, bytes] = {}

    def blind(self, items: Iterable[bytes]) -> list[bytes]:
        """a * H(x) of each item."""
        return self._all(items, self._items, lambda item: self._times(_point_of(self._hash_key, item)))

    def blind_again(self, points: Iterable[bytes]) -> list[bytes]:
        """a * (b * H(y)) of each point that a peer has sent. Raises MessageError if one is not on the curve."""
        return self._all(points, self._points, lambda point: self._times(_decoded(point)))

    def _all(self, keys: Iterable[bytes], known: dict[bytes, bytes], compute: Callable[[bytes], bytes]) -> list[bytes]:
        found, computed = [], 0
        for key in keys:
            value = known.get(key)
            if value is None:
                value = known[key] = compute(key)
                computed += 1
                if computed % _STRETCH == 0:
                    self._pause()
            found.append(value)
        return found

    def _times(self, point: ec.EllipticCurvePublicKey) -> bytes:
        return self._secret.exchange(ec.ECDH(), point)


class Comparison:
    """One party's part in the comparison of its items with those of one peer."""

    def __init__(self, blinded: BlindedItems, pair_key: bytes, items: NDArray[np.uint8], length: int) -> None:
        """`items`: (n, 16), all different. `length`: how many of them are compared, by `list_length`."""
        self._blinded = blinded
        self._tags = _tags(pair_key, items)
        chosen: Positions = np.arange(len(items))
        self.cutoff = NO_CUTOFF
        if length < len(items):
            chosen = np.argpartition(self._tags, length - 1)[:length]
            self.cutoff = int(self._tags[chosen].max())
        points = blinded.blind(item.tobytes() for item in items[chosen])
        # Sorted, so that the order of the list tells nothing about the items.
        order = sorted(range(length), key=points.__getitem__)
        self._chosen = chosen[order]
        #: What the peer is sent in the first stage, with the cutoff.
        self.points = b"".join(points[at] for at in order)
        self._theirs: set[bytes] = set()
        self._their_cutoff = NO_CUTOFF

    def answer(self, cutoff: int, points: bytes, length: int) -> bytes:
        """The peer's list: what it is sent in the second stage. `length`: how many points it must have.

        Raises MessageError if it is not a list of so many different points of the curve.
        """
        again = self._blinded.blind_again(_different(points, length))
        self._theirs, self._their_cutoff = set(again), cutoff
        return b"".join(again)

    def common(self, returned: bytes) -> tuple[Positions, NDArray[np.bool_]]:
        """Positions of the items that were compared, and which of them the peer has too.

        `returned` is this party's list as the peer has answered it. Raises MessageError if it has another length, or
        the same point twice.
        """
        points = _different(returned, len(self._chosen))
        has = np.array([point in self._theirs for point in points], dtype=bool)
        compared = self._tags[self._chosen] <= self._their_cutoff
        return self._chosen[compared], has[compared]


def _tags(pair_key: bytes, items: NDArray[np.uint8]) -> NDArray[np.uint64]:
    """(n,) the first half of AES-256(item), big-endian: a permutation that only the pair can compute."""
    encryptor = Cipher(algorithms.AES256(derive(pair_key, b"ce overlap sample 1")), modes.ECB()).encryptor()
    blocks = encryptor.update(np.ascontiguousarray(items).tobytes())
    return np.frombuffer(blocks, dtype=">u8")[::2].astype(np.uint64)


def _point_of(key: bytes, item: bytes) -> ec.EllipticCurvePublicKey:
    """The first of HMAC-SHA256(key, item and 0), (item and 1), ... that is the x coordinate of a point."""
    attempt = 0
    while True:
        try:
            return _decoded(hmac.digest(key, item + number(attempt), "sha256"))
        except MessageError:
            attempt += 1


def _decoded(x: bytes) -> ec.EllipticCurvePublicKey:
    """The point with this x coordinate and an even y. Which of the two is taken does not change any x that follows."""
    try:
        return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, b"\x02" + x)
    except ValueError:
        raise MessageError("a point is not on the curve") from None


def _different(points: bytes, length: int) -> list[bytes]:
    if len(points) != length * POINT_SIZE:
        raise MessageError(f"expected {length:,} points of {POINT_SIZE} bytes, got {len(points):,} bytes")
    found = [points[at : at + POINT_SIZE] for at in range(0, len(points), POINT_SIZE)]
    if len(set(found)) < length:
        raise MessageError("two points are equal")
    return found
