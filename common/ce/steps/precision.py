"""Messages as cell steps take them in a job with `precision = "single"`: numbers of 32 bits.

The message of an object is rounded where its object step runs, whoever holds the object: at the home of a shared block,
and at the site of a private one. So every cell step takes the same numbers in every layout, privacy mode and transport.
The state that the message follows from is not rounded.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from ce.kernels.elementary import SMALLEST_NORMAL
from ce.kernels.special import log as log_of
from ce.kernels.special import over_clusters
from ce.ring import Precision, Reals

#: A message as it is sent.
SentMessage = NDArray[np.float64] | NDArray[np.float32]
#: No entry is smaller: one that vanished could leave a label without a cluster that can produce it.
SMALLEST_SHORT = np.finfo(np.float32).smallest_normal


def sent_type(precision: Precision) -> type[np.float64] | type[np.float32]:
    """The type of the numbers of a message."""
    return np.float32 if precision == "single" else np.float64


def as_sent(message: Reals, precision: Precision) -> SentMessage:
    """The message, from 0 to 1, that cell steps take."""
    if precision == "double":
        return message
    short = message.astype(np.float32)
    return np.maximum(short, SMALLEST_SHORT, out=short)


def rounding_of_bound(message: Reals, sums: Reals) -> Reals:
    """(starts, n) what a posterior cell step under the rounded message m' adds to the bound beside ln of its
    normalisers: sum_h a_ih ln(m_ih / m'_ih), with the new sums a. With it the bound is exact for the phi that the cells
    have taken, and so remains a lower bound that no step makes smaller; without it every label could be off by 6e-8.
    """
    ratio = message / as_sent(message, "single")
    change = ratio - 1.0
    logs = change * (1.0 - 0.5 * change)  # ln(1 + x) to the last bits, for |x| up to 2^-24
    raised = change < -(2.0**-20)
    if raised.any():
        logs[raised] = log_of(np.maximum(ratio[raised], SMALLEST_NORMAL))
    return over_clusters(sums * logs)
