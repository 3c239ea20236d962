"""Message inversion: a curious site computes an object's total from the message that it is sent.

    bce       message_h ∝ exp(psi(g_h)), sum_h g_h = sum_h alpha_h + M;   total = g - alpha
    mixture   message_h = r_h ∝ pi_h exp(l_h);                            total = ln r - ln pi, up to a constant
    bc3e      message_h ∝ exp(eps_h): the total cannot be separated from the votes, so only ln message is used

Every member of a block is sent M, the number of labels of each object. In `blind` a site has the totals themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from scipy.special import psi

from ce.audit.adversary_views import CuriousSiteView
from ce.kernels.special import over_clusters, trigamma
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.task import Task
from ce.ring import Reals, decode
from ce.steps.model import stage_of

_NEWTON_STEPS = 60


@dataclass(frozen=True)
class Inferred:
    """A block's totals in one exchange as a site infers them, and the site's part of them: (starts, k, n) reals."""

    stage: int
    iteration: int
    message: Reals | None = field(repr=False)  # from which these sums were computed
    total: Reals = field(repr=False)
    part: Reals = field(repr=False)

    @property
    def residual(self) -> Reals:
        """What all other sites added."""
        return self.total - self.part


@lru_cache(maxsize=2)
def inferred_totals(view: CuriousSiteView) -> Sequence[Inferred]:
    """The totals of all exchanges for which a site can compute them; none where the model does not allow it."""
    if view.totals is not None:
        return [
            Inferred(
                seen.stage,
                seen.iteration,
                seen.message,
                decode(seen.total, view.scale(seen.stage, "objects")),
                decode(sums.total, view.scale(sums.stage, "objects")),
            )
            for seen, sums in zip(view.totals, view.site_rounds, strict=True)
        ]
    counts = _label_counts(view)
    found = []
    site_rounds = {(sums.stage, sums.iteration): sums for sums in view.site_rounds}
    name = ArrayName.of_block(view.block, "message")
    for task, following in _consecutive(view):
        model = stage_of(view.model, task.stage)
        message = following.arrays.get(name)
        sums = site_rounds.get((task.stage, task.iteration))
        if message is None or sums is None:
            continue
        surviving = [task.starts.index(start) for start in following.starts]
        part = decode(sums.total[surviving], view.scale(task.stage, "objects"))
        before = task.arrays.get(name)
        entered = None if before is None else before[surviving].astype(np.float64)
        if model.audit.message == "dirichlet":
            alpha = following.arrays[ArrayName.of_all("alpha")][:, :, None].astype(np.float64)
            gamma = _gamma(np.log(message), alpha.sum(axis=1) + counts)
            found.append(Inferred(task.stage, task.iteration, entered, gamma - alpha, part))
        elif model.audit.message == "weights":
            weights = task.arrays[ArrayName.of_all("weights")][surviving][:, :, None].astype(np.float64)
            with np.errstate(divide="ignore", invalid="ignore"):
                total = np.log(message) - np.log(weights)
                # Only differences between clusters are known.
                found.append(Inferred(task.stage, task.iteration, entered, total - total[:, :1], part - part[:, :1]))
    return found


def messages(view: CuriousSiteView) -> list[Reals]:
    """(starts, k, n) ln message of every exchange in which one was sent."""
    found = []
    for task in view.tasks:
        message = task.arrays.get(ArrayName.of_block(view.block, "message"))
        if message is not None:
            with np.errstate(divide="ignore"):
                found.append(np.maximum(np.log(message.astype(np.float64)), -700.0))
    return found


def _consecutive(view: CuriousSiteView) -> Iterator[tuple[Task, Task]]:
    """Two tasks in a row: the message of the second follows from the sums that answered the first."""
    for task, following in zip(view.tasks, view.tasks[1:], strict=False):
        follows = following.round == task.round + 1 and following.stage == task.stage and not following.retry
        if follows and task.step in ("sums", "objects") and following.step in ("sums", "columns"):
            yield task, following


def _label_counts(view: CuriousSiteView) -> Reals:
    """(n,) the number of labels of each object at all sites together, which every member is sent."""
    for task in view.tasks:
        counts = task.arrays.get(ArrayName.of_block(view.block, "labels"))
        if counts is not None:
            return counts.astype(np.float64).reshape(-1)
    return np.full(view.memberships.shape[1], float(view.topology.sizes.clusterings))


def _gamma(log_message: Reals, total: Reals) -> Reals:
    """g (starts, k, n) with psi(g_h) = log_message_h + c and sum_h g_h = total: Newton on the constant c."""
    # With c at psi(total) the sum is too large: psi is concave and the largest log message is 0.
    constant = psi(np.maximum(total / log_message.shape[1], 1e-9))
    for _ in range(_NEWTON_STEPS):
        gamma = _inverse_psi(log_message + constant[:, None])
        surplus = over_clusters(gamma) - total
        slope = over_clusters(1.0 / trigamma(gamma))
        step = surplus / slope
        constant = constant - np.clip(step, -2.0, 2.0)
        if np.abs(surplus).max(initial=0.0) < 1e-13 * max(float(np.max(total, initial=1.0)), 1.0):
            break
    return _inverse_psi(log_message + constant[:, None])


def _inverse_psi(y: Reals) -> Reals:
    """x with psi(x) = y (Minka's start, then Newton)."""
    x = np.where(y >= -2.22, np.exp(np.minimum(y, 700.0)) + 0.5, -1.0 / (y + 0.5772156649015329))
    for _ in range(5):
        x = np.maximum(x - (psi(x) - y) / trigamma(x), 1e-300)
    return x
