"""Crafted messages: the coordinator deviates from the protocol and sends messages that make the sums reveal labels.

It changes the messages of shared blocks between home and sites. All sites are sent the same, so masks cancel. Two ways:

    one-hot    one object alone in a cluster: its labels are the ones that appear in that cluster's column sums n_j.
               Changed globals put all private objects into the last cluster, so that they do not interfere.
    flat       the same message for every object in every exchange: totals stay linear in the labels, and every exchange
               adds equations, until the totals can be unmixed

This is an active attack: `masked` promises nothing against it. In `blind` the coordinator sends no messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ce.audit.adversary_views import NOT_ASKED, CoordinatorView, Guess, Guesses, Question
from ce.audit.attacks.linear_unmix import largest_sum, unmixed_columns
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.task import Answer, Array, Task
from ce.protocol.messages.transport import Transport
from ce.protocol.topology.site_view import TopologyColumn
from ce.ring import decode

#: alpha of the clusters without private objects, and of the cluster that has all of them.
_EMPTY, _FULL = 0.01, 1e4


class AttackOver(Exception):
    """Ends the job of an attack that has nothing left to ask."""


class CraftedMessages:
    """A transport that changes the tasks on their way to the sites."""

    def __init__(self, inner: Transport, craft: Callable[[Task], dict[str, Array]]) -> None:
        self._inner = inner
        self._craft = craft
        self.bytes_sent = 0

    def exchange(self, tasks: Mapping[str, Task]) -> Iterator[tuple[str, Answer]]:
        crafted = {site: replace(task, arrays={**task.arrays, **self._craft(task)}) for site, task in tasks.items()}
        yield from self._inner.exchange(crafted)
        self.bytes_sent = self._inner.bytes_sent


def flat_messages(task: Task) -> dict[str, Array]:
    """The same message for every object."""
    return {name: np.ones_like(array) for name, array in messages_of(task).items()}


def one_hot_messages(task: Task, block: int) -> dict[str, Array]:
    """A few objects of one block each alone in a cluster; all others in the last cluster."""
    crafted: dict[str, Array] = {}
    for name, array in messages_of(task).items():
        starts, k, n = array.shape
        message = np.zeros_like(array)
        message[:, -1] = 1.0
        alone = _alone(task.iteration, starts, k, n) if name == ArrayName.of_block(block, "message") else {}
        for (start, cluster), i in alone.items():
            message[start, :, i] = 0.0
            message[start, cluster, i] = 1.0
        crafted[name] = message
    return crafted | dumped_private_objects(task)


def dumped_private_objects(task: Task) -> dict[str, Array]:
    """Globals that put all private objects into the last cluster."""
    alpha = task.arrays.get(ArrayName.of_all("alpha"))
    if alpha is None:
        return {}
    changed = np.full_like(alpha, _EMPTY)
    changed[:, -1] = _FULL
    return {ArrayName.of_all("alpha"): changed}


def flat_beta(task: Task) -> dict[str, Array]:
    """The same parameters of shared columns for all clusters."""
    return {name: np.ones_like(array) for name, array in task.arrays.items() if ArrayName(name).what == "beta"}


def read_one_hot(view: CoordinatorView, questions: Sequence[Question]) -> Guesses:
    """The label of each isolated object in shared columns: the one that appears in the sums of its cluster."""
    guesses: Guesses = {}
    for question in questions:
        column = view.topology.columns[question.column]
        if column.shared:
            guesses[question] = [_read(view, question.block, column)]
    return guesses


def read_flat(view: CoordinatorView, questions: Sequence[Question]) -> Guesses:
    """Unmix the totals of all exchanges."""
    guesses: Guesses = {}
    for block in {question.block for question in questions}:
        totals = [decode(r.total, view.scale(r.stage, "objects")) for r in view.rounds(block)]
        found = unmixed_columns(totals, largest_sum(view))
        guesses |= {question: found for question in questions if question.block == block}
    return guesses


def one_hot_rounds(starts: int, k: int, objects: int) -> int:
    """The number of iterations until every object has been alone in a cluster once."""
    return -(-objects // max(starts * (k - 1), 1))


def _read(view: CoordinatorView, block: int, column: TopologyColumn) -> Guess:
    guess = np.full(view.topology.blocks[block].size, NOT_ASKED, dtype=np.intp)
    group = next(g for g in view.groups.values() if column.index in g.slices)
    for exchange in view.exchanges:
        total = exchange.total(ArrayName.of_columns(group.index, "sums"))
        if total is None or exchange.step != "sums":
            continue
        sums = decode(total, view.scale(exchange.task.stage, "columns"))[..., group.slices[column.index]]
        for (start, cluster), i in _alone(exchange.task.iteration, sums.shape[0], sums.shape[1], len(guess)).items():
            found = sums[start, cluster]
            guess[i] = int(found.argmax()) if found.max() > 0.5 else -1
    return guess


def messages_of(task: Task) -> dict[str, Array]:
    """The messages of shared blocks, by name; none in other steps."""
    if task.step != "sums":
        return {}
    return {name: array for name, array in task.arrays.items() if ArrayName(name).what == "message"}


def _alone(iteration: int, starts: int, k: int, n: int) -> dict[tuple[int, int], int]:
    """(start, cluster) -> the object that is alone there in this iteration. Other objects follow in later ones."""
    begin = (iteration - 1) * starts * (k - 1)
    places = [(start, cluster) for start in range(starts) for cluster in range(k - 1)]
    return {place: begin + at for at, place in enumerate(places) if begin + at < n}
