"""Attacks on the words of a recorded job: by the coordinator on what it passes on, by a member on what it can read.

ciphertexts    rows of everything that one member sent the others, clustered: something of the labels would show
dealt masks    masked rows as if they were not encrypted, less the masks that the dealer knows
openings       the opened differences of the tournament, of all members together, clustered
equal rows     masked rows that a member can read: equal label rows would be equal words
dealer, site   masked rows that a member can read, less the masks that the dealer knows
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ce.audit.adversary_views import Guess
from ce.audit.partitions import equal_rows, k_means, principal
from ce.audit.sealed.attacks.dealer_seeds import unmasked
from ce.audit.sealed.attacks.transcript import clustered_rows
from ce.audit.sealed.recording import Readable, SealedRecording
from ce.errors import MessageError
from ce.privacy.score_words import PermutedRows
from ce.privacy.secure_argmax import level_comparisons
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.sealed.channel import BLOCK_KEY_SIZE, OVERHEAD
from ce.protocol.sealed.schedule import MASKED, PRODUCT_SEED
from ce.protocol.sealed.site_input import Codes

_NONCE = 12
_TAG = OVERHEAD - _NONCE
_OPENING = "opening"


def clustered_ciphertext(recording: SealedRecording, block: int, sender: str, groups: int) -> Guess:
    """(objects of the block,) groups of rows of all that `sender` has sent the members of the block."""
    size = recording.blocks[block][0].size
    sent = []
    for exchange in recording.exchanges:
        answer = exchange.answers[sender]
        for name, array in answer.arrays.items():
            parsed = ArrayName(name)
            if parsed.kind == "members" and parsed.number == block and len(array) >= size + OVERHEAD:
                sent.append(np.asarray(array[_NONCE:-_TAG], dtype=np.uint8))
    return clustered_rows(sent, size, groups)


def without_dealt_masks(recording: SealedRecording, block: int, sender: str) -> Codes:
    """(objects, columns of the sender) what the ciphertext of masked rows would say if it were none."""
    masked = recording.answered("mask")[sender, ArrayName.of_members(block, MASKED, sender)]
    try:
        return _unmasked(recording, block, sender, masked[_NONCE:-_TAG].tobytes())
    except MessageError:  # bits that no packed words have: not even words
        columns = len(recording.terms.categories_of(sender))
        return np.full((recording.blocks[block][0].size, columns), -1, dtype=np.int32)


def equal_masked_rows(recording: SealedRecording, block: int, site: str, sender: str) -> Guess:
    """(objects,) objects whose masked rows of `sender` are equal, as `site` reads them."""
    one, ring, width = recording.blocks[block][0], recording.terms.ring, recording.terms.widths[sender]
    masked = ring.unpacked(_read_by(recording, block, site, sender), (one.size, width))
    return equal_rows(masked.astype(np.int64))


def dealer_and_site(recording: SealedRecording, block: int, site: str, sender: str) -> Codes:
    """(objects, columns of the sender) its labels, from what `site` could read and the dealer's seeds."""
    return _unmasked(recording, block, sender, _read_by(recording, block, site, sender))


def clustered_openings(recording: SealedRecording, block: int, site: str, groups: int) -> Guess | None:
    """(objects,) groups of the words x + r that the members open in the first round.

    None if `site` is the first member, which drew the order of the rows itself and reads otherwise the same.
    """
    one = recording.blocks[block][0]
    candidates = len(recording.release.weights) + 1
    key = _order_key(recording, block, site)
    if key is None:
        return None
    rows = PermutedRows(key, one.size, candidates, len(one.members))
    words = _first_openings(recording, block, site, level_comparisons(rows.total, candidates)[0], rows.total)
    return k_means(principal(np.stack([rows.real(values) for values in words], axis=1).astype(np.float64)), groups)


def _first_openings(
    recording: SealedRecording, block: int, site: str, comparisons: int, total: int
) -> NDArray[np.uint32]:
    """(comparisons of an object, rows) the sum of all members' first messages."""
    first = [one for one in recording.written[site] if one.step == "compare" and one.name.number == block][:1]
    others: dict[str, Readable] = {}
    for one in recording.readable[site]:
        if one.name.kind == "members" and one.name.number == block and one.name.what == _OPENING:
            others.setdefault(one.name.site, one)
    words = np.zeros(comparisons, dtype=np.uint32)
    for message in (*first, *others.values()):
        words += np.frombuffer(message.content, dtype="<u4", count=comparisons)
    return words.reshape(-1, total)


def _order_key(recording: SealedRecording, block: int, site: str) -> bytes | None:
    """The key of the order of rows, as `site` was sent it by the block's first member."""
    first = recording.blocks[block][0].members[0]
    common = [b for b, (one, _) in recording.blocks.items() if one.members[0] == first and site in one.members]
    for one in recording.readable[site]:
        if one.step == "compare" and one.name == ArrayName.of_box(first):
            at = common.index(block) * BLOCK_KEY_SIZE
            return one.content[at : at + BLOCK_KEY_SIZE]
    return None


def _read_by(recording: SealedRecording, block: int, site: str, sender: str) -> bytes:
    """The masked rows of one member, as another reads them."""
    wanted = ArrayName.of_members(block, MASKED, sender)
    return next(one.content for one in recording.readable[site] if one.name == wanted)


def _unmasked(recording: SealedRecording, block: int, sender: str, masked: bytes) -> Codes:
    seed = recording.answered("mask")[sender, ArrayName.to_dealer(PRODUCT_SEED)].tobytes()
    terms, (one, digest) = recording.terms, recording.blocks[block]
    return unmasked(masked, terms.ring, seed, digest, one.size, terms.categories_of(sender))
