"""One shared block at one of its members, from the first comparison to the opened winners.

`SharedBlock` plays the secure argmax of a block, and then commits to its share of the winners and opens it: first the
dummy rows, whose winners every member knows, then the real ones. `ce.protocol.sealed.site_labels` decides when, writes
down what must survive a crash, and sends. Nothing here is encrypted, written or sent.

A commitment is a hash over two leaves, one of the dummy rows and one of the real ones, each with a nonce of its own:
so the dummy rows can be checked against it while the real ones are still hidden.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ce.errors import JobFailed, MessageError
from ce.privacy.derivation import derive, joined
from ce.privacy.score_words import DUMMY_ROWS, PermutedRows
from ce.privacy.secure_argmax import Member, Words, share_from, winners

HASH_SIZE = 32
#: Nonce of the dummy rows, leaf of the real ones, shares of the dummy rows.
DUMMIES_SIZE = 2 * HASH_SIZE + DUMMY_ROWS
_DUMMY, _REAL = b"ce dummy rows 1", b"ce real rows 1"

Labels = NDArray[np.int32]


class WrongWinners(JobFailed):
    """Dummy rows have other winners than they must have: the dealer's corrections, or a member's messages, were false.

    Next: ask the operator of the coordinator, which deals. The objects count as labelled: another job labels them only
    where each site's person allows it.
    """

    def __init__(self, block: int) -> None:
        super().__init__(
            f"block {block}: dummy rows of the comparison have other winners than they must have: what the dealer "
            "sent, or a member, was false; ask the operator of the coordinator, which deals"
        )


class OtherShare(JobFailed):
    """A member opened another share of the winners than the one that it has committed to.

    Next: ask that site why its daemon sent other bytes, or whether it runs another release.
    """

    def __init__(self, block: int, member: str) -> None:
        super().__init__(f"block {block}: {member} opened another share of the labels than it has committed to")


def real_size(rows: int) -> int:
    """Bytes that open the real rows of a block: a nonce, and a share of each."""
    return HASH_SIZE + rows


@dataclass(frozen=True, repr=False)
class WinnerShare:
    """One member's share of the winners of all rows of a block, as its record keeps it.

    share   (total,) numbers below 32, in the order of the argmax
    key     the block's permutation and dummy rows
    nonce   hides the share behind its commitment until it is opened
    """

    share: NDArray[np.uint8]
    key: bytes
    nonce: bytes

    def commitment(self, rows: PermutedRows, context: bytes) -> bytes:
        return _commitment(context, self._dummy_leaf(rows), self._real_leaf(rows))

    def dummies(self, rows: PermutedRows) -> bytes:
        """What opens the dummy rows."""
        return derive(self.nonce, _DUMMY) + self._real_leaf(rows) + rows.dummy(self.share).tobytes()

    def real(self, rows: PermutedRows) -> bytes:
        """What opens the real rows."""
        return derive(self.nonce, _REAL) + rows.real(self.share).tobytes()

    def _dummy_leaf(self, rows: PermutedRows) -> bytes:
        return _leaf(_DUMMY, derive(self.nonce, _DUMMY), rows.dummy(self.share).tobytes())

    def _real_leaf(self, rows: PermutedRows) -> bytes:
        return _leaf(_REAL, derive(self.nonce, _REAL), rows.real(self.share).tobytes())


def _leaf(purpose: bytes, nonce: bytes, share: bytes) -> bytes:
    return hashlib.sha256(joined(purpose, nonce, share)).digest()


def _commitment(context: bytes, dummy_leaf: bytes, real_leaf: bytes) -> bytes:
    return hashlib.sha256(joined(b"ce label commitment 1", context, dummy_leaf, real_leaf)).digest()


class SharedBlock:
    """A member's end of one block.

    index       the block's number, for errors
    members     by name
    site        which of them this one is
    rows        objects of the block
    candidates  clusters, and "no label anywhere"
    """

    def __init__(self, index: int, members: Sequence[str], site: str, rows: int, candidates: int) -> None:
        self.index = index
        self.members = tuple(members)
        self.others = tuple(member for member in members if member != site)
        self._site = site
        self._size, self._candidates = rows, candidates
        self._argmax: Member | None = None
        self._rows: PermutedRows | None = None
        self._own: WinnerShare | None = None
        self._contexts: Mapping[str, bytes] = {}
        self._commitments: Mapping[str, bytes] = {}
        self._real_leaves: dict[str, bytes] = {}

    # The tournament.

    def begin(self, key: bytes, seed: bytes, context: bytes, words: Words) -> None:
        """Start the argmax: `key` from the block's first member, `seed` this member's own, `words` of its labels."""
        position, members = self.members.index(self._site), len(self.members)
        self._rows = PermutedRows(key, self._size, self._candidates, members)
        self._argmax = Member(position, members, seed, context, self._rows.arranged(words, position))
        self._key = key

    @property
    def level(self) -> int | None:
        """The level whose corrections this member needs now; None where it is not the last, or has them."""
        return None if self._argmax is None else self._argmax.needs_corrections

    def correct(self, level: int, corrections: bytes) -> None:
        self._playing.correct(level, corrections)

    def opening(self) -> bytes:
        """This member's message of the present round."""
        return self._playing.outgoing()

    def receive_openings(self, openings: Mapping[str, bytes]) -> None:
        """The messages of all others in this round."""
        self._playing.incoming([openings[member] for member in self.others])

    @property
    def _playing(self) -> Member:
        if self._argmax is None:
            raise MessageError(f"block {self.index}: expected no comparisons, its labels were settled before")
        return self._argmax

    # The winners.

    def settle(self, nonce: bytes) -> WinnerShare:
        """The share of the winners, to be written down; the tournament's randomness is forgotten."""
        self.take_up(WinnerShare(self._playing.share, self._key, nonce))
        self._argmax = None
        return self._settled

    def take_up(self, own: WinnerShare) -> None:
        """Go on with a share that was written down, in this attempt or an earlier one."""
        if self._rows is None:
            self._rows = PermutedRows(own.key, self._size, self._candidates, len(self.members))
        if own.share.shape != (self._rows.total,):
            raise MessageError(f"block {self.index}: expected a share of {self._rows.total} rows, got {own.share.size}")
        self._own = own

    def bind(self, contexts: Mapping[str, bytes]) -> None:
        """What the commitment of each member is bound to."""
        self._contexts = dict(contexts)

    def commitment(self) -> bytes:
        """This member's commitment."""
        return self._settled.commitment(self._permuted, self._contexts[self._site])

    def receive_commitments(self, commitments: Mapping[str, bytes]) -> None:
        """Those of all members, before anything is opened."""
        self._commitments = dict(commitments)

    def dummies(self) -> bytes:
        """What opens this member's dummy rows."""
        return self._settled.dummies(self._permuted)

    def check_dummies(self, openings: Mapping[str, bytes]) -> None:
        """The others' dummy rows: OtherShare unless they committed to them, WrongWinners unless all are right."""
        shares = [self._permuted.dummy(self._settled.share)]
        for member in self.others:
            content = openings[member]
            nonce, real_leaf, share = content[:HASH_SIZE], content[HASH_SIZE : 2 * HASH_SIZE], content[2 * HASH_SIZE :]
            found = _commitment(self._contexts[member], _leaf(_DUMMY, nonce, share), real_leaf)
            if not hmac.compare_digest(found, self._commitments[member]):
                raise OtherShare(self.index, member)
            self._real_leaves[member] = real_leaf
            shares.append(share_from(share, DUMMY_ROWS))
        if not self._permuted.dummies_are_right(winners(shares, self._candidates)):
            raise WrongWinners(self.index)

    def real(self) -> bytes:
        """What opens this member's real rows."""
        if len(self._real_leaves) < len(self.others):
            raise MessageError(f"block {self.index}: expected all dummy rows before the real ones are opened")
        return self._settled.real(self._permuted)

    def labels(self, openings: Mapping[str, bytes]) -> Labels:
        """The labels, from the others' real rows; -1 where no member has a label of the object.

        -1 also where the winner is no candidate, because a dealer spoiled that row and no dummy row: were it an error,
        the dealer would see from it how the comparison came out.
        """
        shares = [self._permuted.real(self._settled.share)]
        for member in self.others:
            nonce, share = openings[member][:HASH_SIZE], openings[member][HASH_SIZE:]
            if not hmac.compare_digest(_leaf(_REAL, nonce, share), self._real_leaves[member]):
                raise OtherShare(self.index, member)
            shares.append(share_from(share, self._size))
        found = winners(shares, self._candidates)
        return np.where(found == self._candidates - 1, np.int32(-1), found)

    @property
    def _settled(self) -> WinnerShare:
        if self._own is None:
            raise MessageError(f"block {self.index}: expected its labels to be settled first")
        return self._own

    @property
    def _permuted(self) -> PermutedRows:
        assert self._rows is not None
        return self._rows
