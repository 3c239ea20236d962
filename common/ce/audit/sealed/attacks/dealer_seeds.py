"""Dealer and site together: masked rows without their masks.

A site is sent the masked rows E = X + R of the other members of its blocks; the dealer knows the seeds from which R is
drawn. Together they have X: every label of the objects that this site also holds. A stated limit, and why a dealer may
not be a site of the job.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ce.audit.sealed.pooled_labels import Codes
from ce.privacy.dealt_products import masked_rows
from ce.privacy.ring_words import Ring


def unmasked(masked: bytes, ring: Ring, seed: bytes, context: bytes, rows: int, widths: Sequence[int]) -> Codes:
    """(rows, columns) the labels behind masked rows, given the seed of their sender; -1: no label."""
    width = sum(widths)
    nothing = np.full((rows, len(widths)), -1, dtype=np.int32)
    masks = masked_rows(nothing, widths, ring, seed, context)
    one_hot = ring.reduced(
        ring.unpacked(masked, (rows, width)).astype(np.int64) - ring.unpacked(masks, (rows, width)).astype(np.int64)
    )
    codes = nothing.copy()
    begin = 0
    for at, categories in enumerate(widths):
        part = one_hot[:, begin : begin + categories]
        codes[:, at] = np.where((part == 1).any(axis=1), part.argmax(axis=1), -1)
        begin += categories
    return codes
