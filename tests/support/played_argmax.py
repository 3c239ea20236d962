"""A secure argmax with all its members and the dealer in one process."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256

import numpy as np
from numpy.typing import NDArray

from ce.privacy.argmax_dealer import corrections
from ce.privacy.secure_argmax import Member, argmax_rounds, share_from, winners

Words = NDArray[np.uint32]
Tamper = Callable[[int, bytes], bytes]
CONTEXT = b"block"


def seed_of(position: int, attempt: int = 0) -> bytes:
    return sha256(f"{attempt} {position}".encode()).digest()


def played(
    words: list[Words], attempt: int = 0, tamper: Tamper | None = None
) -> tuple[list[Member], list[list[bytes]]]:
    """All members of a block at the end, and the messages of every round."""
    candidates, rows = words[0].shape
    seeds = [seed_of(at, attempt) for at in range(len(words))]
    members = [Member(at, len(words), seeds[at], CONTEXT, part) for at, part in enumerate(words)]
    for level, parts in corrections(seeds, CONTEXT, rows, candidates):
        data = b"".join(parts)
        members[-1].correct(level, tamper(level, data) if tamper else data)
    sent = []
    for expected in argmax_rounds(rows, candidates):
        messages = [member.outgoing() for member in members]
        assert {len(message) for message in messages} == {expected.size}
        for at, member in enumerate(members):
            member.incoming(messages[:at] + messages[at + 1 :])
        sent.append(messages)
    assert all(member.finished for member in members)
    return members, sent


def argmax(words: list[Words], attempt: int = 0) -> NDArray[np.int32]:
    members, _ = played(words, attempt)
    return winners([share_from(member.share.tobytes(), words[0].shape[1]) for member in members], len(words[0]))
