"""Jobs whose rounds the coordinator does not take: refused when the sites are aligned, before the first round."""

from __future__ import annotations

from ce.errors import LimitReached
from ce.transport.array_chunks import LARGEST_HEADER


def refuse_large_rounds(needed: float, most_bytes: int, remedy: str) -> None:
    """`needed`: bytes of one round. `most_bytes`: limits.round_bytes."""
    if needed > most_bytes:
        raise LimitReached(
            f"one round of this job would take {needed / 1e9:,.1f} GB at the coordinator, whose limits.round_bytes is "
            f"{most_bytes / 1e9:,.1f} GB: {remedy}"
        )


def refuse_large_headers(header: int) -> None:
    """`header`: bytes of the largest header of a message."""
    if header > LARGEST_HEADER:
        raise LimitReached(
            "what one site would have to be sent about the columns and objects that it shares does not fit in a "
            "message: fewer columns, or fewer different groups of sites that share objects, need less"
        )
