"""Run a job on one machine and record its traffic: every task and every answer between the sites and the home.

A `Recording` belongs to the audit alone: it knows who holds which row, so that guesses can be scored. An adversary is
given parts of it, see `ce.audit.adversary_views`. Of large jobs only some exchanges are recorded: the first ones, which
tell most, the last ones, and a few of those between.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from ce.job import Job
from ce.labels import LabelTable
from ce.models.registry import model_of
from ce.protocol.engine.starting_parameters import SecretStarts, SeededStarts, Starts, job_key
from ce.protocol.local_run import TransportTo, run
from ce.protocol.messages.steps import Step
from ce.protocol.messages.task import Answer, Task
from ce.protocol.messages.transport import Transport
from ce.protocol.topology.enrolment import enrol, with_tokens
from ce.protocol.topology.site_view import TopologyColumn
from ce.protocol.topology.topology import Rows, Topology, align
from ce.ring import Reals, Words
from ce.steps.model import Model
from ce.transport.in_process import InProcess

#: All of the first exchanges are recorded, and of the later ones two in every `_EVERY`.
_FIRST = 12
_EVERY = 8

Handlers = Mapping[str, Callable[[Task], Answer]]


@dataclass(frozen=True)
class Exchange:
    """One round as the coordinator saw it: the task to each site, and each site's answer."""

    tasks: Mapping[str, Task] = field(repr=False)
    answers: Mapping[str, Answer] = field(repr=False)

    @property
    def task(self) -> Task:
        """One of the tasks: step, stage, iteration and starts are the same in all."""
        return next(iter(self.tasks.values()))

    @property
    def step(self) -> Step:
        return self.task.step

    def parts(self, name: str) -> dict[str, Words]:
        """The words of one array, by site."""
        found = {site: answer.arrays.get(name) for site, answer in self.answers.items()}
        return {site: words.astype(np.int64, copy=False) for site, words in found.items() if words is not None}

    def total(self, name: str) -> Words | None:
        """The sum of all sites' words, modulo 2^64; None if no site sent the array."""
        total: Words | None = None
        for words in self.parts(name).values():
            total = words.copy() if total is None else total + words
        return total

    def sent(self, name: str) -> Reals | None:
        """An array of real numbers that sites were sent, the same to each; None if none was, as always in `blind`."""
        for task in self.tasks.values():
            array = task.arrays.get(name)
            if array is not None and array.dtype == np.float64:
                return array.astype(np.float64, copy=False)
        return None


class Recorder:
    """A transport that records what it carries: all of the first exchanges, and a few of the later ones."""

    def __init__(self, inner: Transport, first: int) -> None:
        self._inner = inner
        self._first = first
        self._recorded: list[Exchange] = []
        self._count = 0
        self.bytes_sent = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        return tuple(self._recorded)

    def exchange(self, tasks: Mapping[str, Task]) -> Iterator[tuple[str, Answer]]:
        answers: dict[str, Answer] = {}
        for site, answer in self._inner.exchange(tasks):
            answers[site] = answer
            yield site, answer
        self.bytes_sent = self._inner.bytes_sent
        new = Exchange(dict(tasks), answers)
        if self._recorded and self._can_drop(self._recorded[-1], new):
            self._recorded.pop()
        self._recorded.append(new)
        self._count += 1

    def _can_drop(self, last: Exchange, new: Exchange) -> bool:
        """Whether the recording can do without the last exchange, now that there is a new one.

        Recorded exchanges come in pairs, because a task follows from the answers before it. The last exchange of every
        start is always recorded.
        """
        routine = last.step == new.step and last.step in ("sums", "objects") and last.task.starts == new.task.starts
        return routine and self._count > self._first and (self._count - 1) % _EVERY >= 2


@dataclass(frozen=True)
class Recording:
    """A finished job: its traffic, and what only the audit may know."""

    mode: str
    model: Model
    topology: Topology
    exchanges: tuple[Exchange, ...] = field(repr=False)
    pseudonyms: Mapping[int, NDArray[Any]] = field(repr=False)  # of each block, in the order that its members share
    starts: Mapping[str, Starts] = field(repr=False)
    rows: Mapping[str, Mapping[int, Rows]] = field(repr=False)  # of each site's table, by block
    memberships: Mapping[str, Reals] = field(repr=False)  # (objects of the site's table, k)
    final_beta: Mapping[str, Reals] = field(repr=False)  # (k, categories) by column name
    job_key: bytes | None = field(repr=False)

    def published(self, block: int) -> Reals:
        """(n, k) the consensus of a block's objects, which is the result that its members get."""
        site = self.topology.blocks[block].members[0]
        return self.memberships[site][self.rows[site][block]]

    def coded(self, site: str, column: TopologyColumn, table: LabelTable) -> NDArray[np.int32]:
        """A site's labels of a clustering, counted in the job's categories, which may be tokens."""
        labels = (table if self.job_key is None else with_tokens(table, self.job_key)).column(column.name)
        return labels.recode(column.categories).likeliest


def secrets_of(job: Job, sites: Mapping[str, Any]) -> dict[str, bytes]:
    """A secret per site, derived from the seed so that an audit can be repeated. Daemons draw theirs at random."""
    return {site: hashlib.sha256(f"ce audit {job.seed} {site}".encode()).digest() for site in sites}


def record(
    job: Job,
    tables: Mapping[str, LabelTable],
    mode: str,
    secrets: Mapping[str, bytes] | None,
    *,
    wrap: Callable[[Transport], Transport] | None = None,
    first: int = _FIRST,
    keys_of: Job | None = None,
) -> Recording:
    """Run `job` in this mode. Without `secrets` the starts are public: they follow from the seed, unlike at daemons.

    `wrap` puts a transport between recorder and sites: an active adversary that changes tasks on their way. The `first`
    exchanges are all recorded, and of the later ones a few. Keys follow from the job's definition, and the order of
    objects from the keys: `keys_of` is the job that they are taken from, where two recordings are to be compared.
    """
    model, classes = model_of(job, list(tables.values()))
    key: bytes | None = None
    starts: dict[str, Starts]
    if secrets is None:
        starts = dict.fromkeys(tables, SeededStarts.of(job.seed, tables.values()))
    else:
        definition = (keys_of or job).disclosure_digest
        key = job_key(secrets[min(tables)], definition)
        starts = {site: SecretStarts.of(secrets[site], key, definition) for site in tables}
    enrolments = {site: enrol(table, model.uses_votes, key) for site, table in tables.items()}
    topology, rows = align(enrolments)
    recorders: list[Recorder] = []

    def transport_to(handlers: Handlers) -> Recorder:
        inner: Transport = InProcess(handlers)
        recorders.append(Recorder(inner if wrap is None else wrap(inner), first))
        return recorders[0]

    factory: TransportTo = transport_to
    result = run(model, tables, starts, classes=classes, job_key=key, privacy=mode, transport_to=factory)
    return Recording(
        mode=mode,
        model=model,
        topology=topology,
        exchanges=recorders[0].exchanges,
        pseudonyms={b.index: enrolments[b.members[0]].objects[rows[b.members[0]][b.index]] for b in topology.blocks},
        starts=starts,
        rows=rows,
        memberships={site: result.sites[site].memberships() for site in tables},
        final_beta=result.beta(),
        job_key=key,
    )
