"""The second half of a sealed job at a site: from the accepted model to the labels of its objects.

`SealedSite` calls `answer` for the steps `score` to `reveal`, and `finish`. Objects that several sites hold get the
winner of the secure argmax of their block (`ce.protocol.sealed.site_argmax`): once, in one job, with the bytes that
were written down first. Objects that this site alone holds are scored here, with memberships.

A block taken up again: where any member has entered its labels, all send the same bytes as then, from their records;
where one has lost them the block ends without labels, for all. Where nobody has, it starts anew with fresh seeds.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from ce.errors import JobFailed, MessageError
from ce.pair_tables import cell_words, weight_words
from ce.privacy.derivation import joined, number
from ce.privacy.score_words import score_words
from ce.privacy.secure_argmax import WINNER_MODULUS, share_from
from ce.protocol.attempt import Attempt
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.steps import check_asked
from ce.protocol.messages.task import Task
from ce.protocol.sealed.channel import OVERHEAD, Bytes, Channel, Entropy, as_array, received
from ce.protocol.sealed.label_rounds import (
    AGAIN,
    BLOCKS,
    FRESH,
    LOST,
    ROUNDS_OF_A_LEVEL,
    SEED,
    SEED_SIZE,
    LabelBlock,
    LabelStep,
    Specs,
    broadcast,
    keys_between,
    score_specs,
)
from ce.protocol.messages.steps import ArraySpec
from ce.protocol.sealed.records import LabelRecord, Records
from ce.protocol.sealed.site_argmax import HASH_SIZE, Labels, OtherShare, SharedBlock, WinnerShare
from ce.protocol.sealed.site_input import Codes, SiteInput
from ce.protocol.sealed.terms import Terms, block_digest
from ce.protocol.topology.site_view import SiteView
from ce.protocol.topology.topology import Rows
from ce.privacy.secure_argmax import corrections_size
from ce.ring import Reals
