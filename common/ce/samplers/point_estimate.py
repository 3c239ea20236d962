"""One partition for many draws, and draws with clusters of the same numbers.

Clusters have no identity from draw to draw, but whether two objects are together has. Binder's loss of a partition is
the expected number of pairs of objects that it puts together or apart otherwise than a draw. Pairs are counted from
contingency tables of two partitions, so that nothing is n x n.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ce.ring import Reals

Partition = NDArray[np.int16]

#: Draws of all chains together that are compared with each other: the cost is their square.
MOST_CANDIDATES = 50


def contingency(one: NDArray[np.integer], other: NDArray[np.integer], k: int) -> NDArray[np.int64]:
    """(k, k) how many objects are in each pair of clusters."""
    joint = one.astype(np.intp) * k + other
    return np.bincount(joint, minlength=k * k).reshape(k, k)


def pairs_apart(one: Partition, other: Partition, k: int) -> int:
    """Pairs of objects that one partition puts together and the other does not."""
    table = contingency(one, other, k)
    first, second, both = (
        sum(c * c for c in counts.tolist()) for counts in (table.sum(1), table.sum(0), table.ravel())
    )
    return int(first + second - 2 * both) // 2


def least_binder_loss(draws: Sequence[Partition], k: int) -> Partition:
    """The draw that differs least from the others, the first of equals."""
    losses = [0] * len(draws)
    for one in range(len(draws)):
        for other in range(one):
            apart = pairs_apart(draws[one], draws[other], k)
            losses[one] += apart
            losses[other] += apart
    return draws[losses.index(min(losses))]


def renumbered(shared: Reals) -> NDArray[np.intp]:
    """For each cluster of a reference the cluster of a draw that has its number, so that together they share most.
    `shared`: (k, k), reference first."""
    from scipy.optimize import linear_sum_assignment  # takes a tenth of a second to load: only who samples needs it

    _, partners = linear_sum_assignment(-shared)
    found: NDArray[np.intp] = partners
    return found
