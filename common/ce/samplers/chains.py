"""Several chains side by side, in threads; what they draw after the burn-in; and the estimate from it.

Each chain has random numbers of its own, so that results do not depend on the number of threads. Interrupted (Ctrl-C),
a run ends with the draws that there are.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ce.ring import Reals
from ce.samplers.diagnostics import FEWEST, effective_draws, split_r_hat
from ce.samplers.point_estimate import MOST_CANDIDATES, Partition, least_binder_loss, renumbered

#: A chain whose log joint is on average so many standard deviations below the best chain's sits in a poorer mode.
STUCK = 6.0


class Chain(Protocol):
    """A Markov chain over partitions of n objects into k clusters."""

    def sweep(self) -> None: ...

    @property
    def log_joint(self) -> float: ...

    @property
    def partition(self) -> Partition: ...

    @property
    def counts(self) -> tuple[Reals, Reals]:
        """(n, k) of objects and (categories, k) of categories."""


@dataclass(frozen=True)
class Schedule:
    """Sweeps of each chain: the first ones are not drawn from, after them every `thin`-th is."""

    sweeps: int
    burn_in: int
    thin: int

    @property
    def draws(self) -> int:
        """Of each chain."""
        return (self.sweeps - self.burn_in) // self.thin


@dataclass(frozen=True)
class SamplerProgress:
    """How far the chains have come."""

    sweep: int
    sweeps: int
    chains: int
    log_joint: float  # the best chain's, now


@dataclass(frozen=True)
class Estimate:
    """What the draws say together."""

    partition: Partition = field(repr=False)  # (n,) the draw with the least Binder loss: it numbers the clusters
    objects: Reals = field(repr=False)  # (n, k) mean counts over all draws
    categories: Reals = field(repr=False)  # (categories, k)
    log_joint: Reals = field(repr=False)  # (chains, draws), of all chains
    used: NDArray[np.bool_]  # (chains,) False: a chain in a poorer mode, which is left out
    r_hat: float  # of the chains that are used
    effective_draws: float  # of the same
    sweeps: int  # of each chain; fewer than planned if the run was interrupted
    interrupted: bool


class _Drawn:
    """The draws of one chain. The clusters of each are matched to the sums of those before it."""

    def __init__(self, chain: Chain, kept: Collection[int]) -> None:
        """`kept`: the numbers of the draws whose partitions are kept."""
        self.chain = chain
        self.log_joint: list[float] = []
        self.partitions: list[Partition] = []
        self._kept = kept
        self.objects: Reals
        self.categories: Reals

    def advance(self, sweeps: int, keep: bool) -> None:
        for _ in range(sweeps):
            self.chain.sweep()
        if keep:
            self._keep()

    def _keep(self) -> None:
        objects, categories = self.chain.counts
        if not self.log_joint:
            self.objects, self.categories = objects.copy(), categories.copy()
        else:
            order = renumbered(self.objects.T @ objects)
            self.objects += objects[:, order]
            self.categories += categories[:, order]
        if len(self.log_joint) in self._kept:
            self.partitions.append(self.chain.partition)
        self.log_joint.append(self.chain.log_joint)


def run_chains(
    chains: Sequence[Chain],
    schedule: Schedule,
    threads: int,
    on_progress: Callable[[SamplerProgress], None] | None = None,
) -> Estimate:
    """Raises KeyboardInterrupt if interrupted before every chain has a draw."""
    each = min(schedule.draws, max(MOST_CANDIDATES // len(chains), 1))
    kept = set(np.linspace(0, schedule.draws - 1, each).astype(int).tolist())
    drawn = [_Drawn(chain, kept) for chain in chains]
    legs = [(min(schedule.thin, schedule.burn_in - done), False) for done in range(0, schedule.burn_in, schedule.thin)]
    legs += [(schedule.thin, True)] * schedule.draws
    sweep, interrupted = 0, False
    with ThreadPoolExecutor(min(threads, len(chains)), thread_name_prefix="ce chain") as pool:
        try:
            for sweeps, keep in legs:
                list(pool.map(lambda one, sweeps=sweeps, keep=keep: one.advance(sweeps, keep), drawn))
                sweep += sweeps
                if on_progress is not None:
                    best = max(chain.log_joint for chain in chains)
                    on_progress(SamplerProgress(sweep, schedule.sweeps, len(chains), best))
        except KeyboardInterrupt:
            if not all(one.partitions for one in drawn):
                raise
            interrupted = True
    return _estimate(drawn, sweep, interrupted)


def _estimate(drawn: Sequence[_Drawn], sweeps: int, interrupted: bool) -> Estimate:
    draws = min(len(one.log_joint) for one in drawn)  # an interrupted run: some chains may have one more
    log_joint = np.array([one.log_joint[:draws] for one in drawn])
    used = in_the_best_mode(log_joint)
    chosen = [one for one, use in zip(drawn, used, strict=True) if use]
    k = chosen[0].objects.shape[1]
    reference = least_binder_loss([partition for one in chosen for partition in one.partitions], k)
    objects, categories = np.zeros_like(chosen[0].objects), np.zeros_like(chosen[0].categories)
    for one in chosen:
        shared = np.zeros((k, k))
        np.add.at(shared, reference, one.objects)
        order = renumbered(shared)
        objects += one.objects[:, order]
        categories += one.categories[:, order]
    n_draws = sum(len(one.log_joint) for one in chosen)
    return Estimate(
        reference,
        objects / n_draws,
        categories / n_draws,
        log_joint,
        used,
        split_r_hat(log_joint[used]),
        effective_draws(log_joint[used]),
        sweeps,
        interrupted,
    )


def in_the_best_mode(log_joint: Reals) -> NDArray[np.bool_]:
    """(chains,) whether the draws (chains, draws) of a chain are about as likely as those of the likeliest one. Of very
    few draws nothing is said: all are used."""
    if log_joint.shape[1] < FEWEST:
        return np.ones(len(log_joint), dtype=bool)
    means, deviation = log_joint.mean(axis=1), float(np.median(log_joint.std(axis=1)))
    used: NDArray[np.bool_] = means >= means.max() - STUCK * max(deviation, 1.0)
    return used
