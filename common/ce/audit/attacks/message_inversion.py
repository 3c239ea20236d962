"""From an object's message back to the total that it was made of: what a curious site does with what it is sent.

    bce       message_h ∝ exp(psi(g_h)), sum_h g_h = sum_h alpha_h + M;   total = g - alpha
    mixture   message_h = r_h ∝ pi_h exp(l_h);                            total = ln r - ln pi, up to a constant
    bc3e      message_h ∝ exp(eps_h): the total hides behind the votes, so only ln message is used

M, the number of the object's labels, every member of its block is told. In `blind` a site has the totals themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from scipy.special import psi

from ce.audit.adversary_views import CuriousSiteView
from ce.kernels.special import over_clusters, trigamma
from ce.protocol.messages.task import Task
from ce.ring import Reals, decode
from ce.steps.bce import BCESteps
from ce.steps.mixture import MixtureSteps
from ce.steps.model import stage_of

_NEWTON_STEPS = 60


@dataclass(frozen=True)
class Inferred:
    """A block's totals in one exchange as a site knows them, and its own part of them: (starts, k, n) reals."""

    stage: int
    iteration: int
    message: Reals | None = field(repr=False)  # that went into these sums
    total: Reals = field(repr=False)
    own: Reals = field(repr=False)

    @property
    def residual(self) -> Reals:
        """What all others added."""
        return self.total - self.own


@lru_cache(maxsize=2)
def inferred_totals(view: CuriousSiteView) -> Sequence[Inferred]:
    """The totals of all exchanges that a site can work out; none where the model hides them."""
    if view.totals is not None:
        return [
            Inferred(
                seen.stage,
                seen.iteration,
                seen.message,
                decode(seen.total, view.scale(seen.stage, "objects")),
                decode(mine.total, view.scale(mine.stage, "objects")),
            )
            for seen, mine in zip(view.totals, view.own, strict=True)
        ]
    counts = _label_counts(view)
    found = []
    own = {(mine.stage, mine.iteration): mine for mine in view.own}
    for task, answer in _pairs(view):
        model = stage_of(view.model, task.stage)
        message = answer.arrays.get(f"block/{view.block}/message")
        mine = own.get((task.stage, task.iteration))
        if message is None or mine is None:
            continue
        kept = [task.starts.index(start) for start in answer.starts]
        part = decode(mine.total[kept], view.scale(task.stage, "objects"))
        before = task.arrays.get(f"block/{view.block}/message")
        entered = None if before is None else before[kept].astype(np.float64)
        if isinstance(model, BCESteps):
            alpha = answer.arrays["global/alpha"][:, :, None].astype(np.float64)
            gamma = _gamma(np.log(message), alpha.sum(axis=1) + counts)
            found.append(Inferred(task.stage, task.iteration, entered, gamma - alpha, part))
        elif isinstance(model, MixtureSteps):
            weights = task.arrays["global/weights"][kept][:, :, None].astype(np.float64)
            with np.errstate(divide="ignore", invalid="ignore"):
                total = np.log(message) - np.log(weights)
                # Only differences between clusters are known.
                found.append(Inferred(task.stage, task.iteration, entered, total - total[:, :1], part - part[:, :1]))
    return found


def messages(view: CuriousSiteView) -> list[Reals]:
    """(starts, k, n) ln message of every exchange that brought one."""
    found = []
    for task in view.tasks:
        message = task.arrays.get(f"block/{view.block}/message")
        if message is not None:
            with np.errstate(divide="ignore"):
                found.append(np.maximum(np.log(message.astype(np.float64)), -700.0))
    return found


def _pairs(view: CuriousSiteView) -> Iterator[tuple[Task, Task]]:
    """Two tasks in a row: the sums that were sent after the first one are in the message of the second."""
    for task, answer in zip(view.tasks, view.tasks[1:], strict=False):
        follows = answer.round == task.round + 1 and answer.stage == task.stage and not answer.retry
        if follows and task.step in ("sums", "objects") and answer.step in ("sums", "columns"):
            yield task, answer


def _label_counts(view: CuriousSiteView) -> Reals:
    """(n,) the labels of each object at all sites together, which every member is told."""
    for task in view.tasks:
        told = task.arrays.get(f"block/{view.block}/labels")
        if told is not None:
            return told.astype(np.float64).reshape(-1)
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
