"""How many items two parties compare (`ce.privacy.set_intersection`), apart from it: capacity needs no library."""

from __future__ import annotations

#: Bytes of a point as it is sent.
POINT_SIZE = 32
#: A party with at most so many items compares all of them ...
MOST_ITEMS = 20_000
#: ... another one so many.
SAMPLE = 4_096
#: Points that one party sends to all its peers together, in one stage.
MOST_POINTS = 200_000


def list_length(items: int, peers: int) -> int:
    """How many of its items a party with this many peers compares with each of them."""
    share = MOST_POINTS // max(peers, 1)
    return items if items <= min(MOST_ITEMS, share) else min(SAMPLE, share, items)
