"""Which arrays each step of a sealed job has, by site: what the coordinator waits for, and what a site checks.

Both sides compute it from the job's terms and from blocks; a coordinator that asks for anything else is refused before
anything is computed. Also the codec of a site's state, which it tells at `meet`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ce.errors import MessageError
from ce.privacy.dealt_products import SEED_SIZE, ProductBlock, check_size, dealt_size, masked_rows_size, partners
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.steps import Arrays, ArraySpec, SealedStep
from ce.protocol.sealed.channel import BLOCK_KEY_SIZE, OVERHEAD
from ce.protocol.sealed.records import LabelRecord, LabelState, ReleaseRecord, ReleaseState
from ce.protocol.sealed.terms import Terms
from ce.protocol.topology.site_view import Block

DIGEST_SIZE = NONCE_SIZE = 32
#: What arrays hold.
STATE, MASKED, COMMITMENT, NONCE, SHARE, MODEL = "state", "masked", "commitment", "nonce", "share", "model"
PRODUCT_SEED, ARGMAX_SEED = "product_seed", "argmax_seed"
CATEGORIES, WEIGHTS, BETA = "categories", "weights", "beta"

_RELEASE_STATES: Final[tuple[ReleaseState | None, ...]] = (None, "committed", "opening", "failed")
_LABEL_STATES: Final[tuple[LabelState | None, ...]] = (None, "settled", "entered")


@dataclass(frozen=True)
class ReleaseStatus:
    """How far the release has come at one site, as it tells the others."""

    state: ReleaseState | None = None
    origin: int = 0
    commitments: tuple[bytes, ...] = field(default=(), repr=False)  # of all sites in order, where "opening"

    @classmethod
    def of(cls, record: ReleaseRecord | None, sites: tuple[str, ...]) -> ReleaseStatus:
        if record is None:
            return cls()
        opening = record.state == "opening"
        return cls(record.state, record.origin, tuple(record.commitments[s] for s in sites) if opening else ())


@dataclass(frozen=True)
class LabelStatus:
    """How far the labels of one block have come at one member, as it tells the other members."""

    state: LabelState | None = None
    origin: int = 0
    commitments: tuple[bytes, ...] = field(default=(), repr=False)  # of all members in order, where "entered"

    @classmethod
    def of(cls, record: LabelRecord | None, members: tuple[str, ...]) -> LabelStatus:
        if record is None:
            return cls()
        entered = record.state == "entered"
        return cls(record.state, record.origin, tuple(record.commitments[s] for s in members) if entered else ())
