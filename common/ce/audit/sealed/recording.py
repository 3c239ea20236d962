"""Run a sealed job on one machine and record it: what passes through the coordinator, and what each site can read.

The coordinator, which is also the dealer, sees every task and every answer: seeds for the dealer, dealt words, sizes,
ciphertext, commitments, shares, tables, the model. A site sees its tasks, and in the clear what its peers have
encrypted for it or for the members of its blocks. Random bytes of the sites follow from the job's seed, so that an
audit can be repeated; keys between sites, and with them the ciphertext, are new in every recording.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from ce.audit.recording import Exchange, Recorder
from ce.audit.sealed.releases import Release
from ce.job import Job
from ce.labels import LabelTable
from ce.privacy.ring_words import Stream
from ce.protocol.attempt import Attempt
from ce.protocol.local_alignment import align_tables
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.steps import SealedStep
from ce.protocol.messages.task import Answer, Task
from ce.protocol.messages.transport import InMemory
from ce.protocol.modes.mask_context import object_digests
from ce.protocol.sealed.channel import Bytes, Channel
from ce.protocol.sealed.opened_shares import opened_cells
from ce.protocol.sealed.schedule import SHARE, Blocks, shared_blocks
from ce.protocol.sealed.site import SealedSite
from ce.protocol.sealed.site_input import Codes
from ce.protocol.sealed.terms import Terms
from ce.protocol.sealed_run import play, sealed_parties
from ce.protocol.topology.topology import Rows, Topology
from ce.protocol.topology.vocabularies import Wishes
from ce.ring import Reals


@dataclass(frozen=True)
class Readable:
    """What one site could read, or has written itself, before encryption."""

    step: SealedStep
    round: int
    name: ArrayName
    content: bytes = field(repr=False)


@dataclass(frozen=True, eq=False)
class SealedRecording:
    """A finished sealed job."""

    terms: Terms
    topology: Topology
    blocks: Blocks  # the shared ones, with their digests
    exchanges: tuple[Exchange, ...] = field(repr=False)
    readable: Mapping[str, tuple[Readable, ...]] = field(repr=False)  # by site
    written: Mapping[str, tuple[Readable, ...]] = field(repr=False)  # by site: what it encrypted for the members
    release: Release = field(repr=False)
    labels: Mapping[str, Codes] = field(repr=False)  # by site: the result, of the objects of its table
    rows: Mapping[str, Mapping[int, Rows]] = field(repr=False)  # of each site's table, by block

    def answered(self, step: SealedStep) -> dict[tuple[str, ArrayName], Bytes]:
        """All that sites have answered in a step, by sender and name."""
        found: dict[tuple[str, ArrayName], Bytes] = {}
        for exchange in self.exchanges:
            if exchange.step == step:
                for site, answer in exchange.answers.items():
                    found |= {(site, ArrayName(name)): a.astype(np.uint8) for name, a in answer.arrays.items()}
        return found


def record_sealed(
    job: Job, tables: Mapping[str, LabelTable], draw: int = 0, *, min_foreign_columns: int = 0
) -> SealedRecording:
    """Run `job`. `draw` names the random bytes of the sites."""
    aligned = align_tables(False, tables, {site: Wishes() for site in tables}, None)
    attempt = Attempt(job.name, job.definition(), 1, aligned.topology.sites)
    entropy = {site: _entropy(job, site, draw) for site in tables}
    hidden = dict.fromkeys(tables, min_foreign_columns)
    parties = sealed_parties(job, attempt, aligned, tables, entropy=entropy, min_foreign_columns=hidden)
    taps = {site: _Tap(one) for site, one in parties.sites.items()}
    recorders: list[Recorder] = []

    def transport_to(handlers: Mapping[str, Callable[[Task], Answer]]) -> Recorder:
        recorders.append(Recorder(InMemory({site: taps[site].answer for site in handlers}), first=1 << 30))
        return recorders[0]

    play(parties, transport_to)
    digests: dict[int, bytes] = {}
    for site in tables:
        digests |= object_digests(aligned.enrolments[site].objects, aligned.rows[site])
    terms = parties.coordinator.terms
    return SealedRecording(
        terms=terms,
        topology=aligned.topology,
        blocks=shared_blocks(attempt.job_digest, aligned.topology.whole(), digests),
        exchanges=recorders[0].exchanges,
        readable={site: tuple(tap.readable) for site, tap in taps.items()},
        written={site: tuple(tap.written) for site, tap in taps.items()},
        release=_release(terms, recorders[0].exchanges, next(iter(parties.sites.values()))),
        labels={site: _labels(one) for site, one in parties.sites.items()},
        rows=aligned.rows,
    )


class _Tap:
    """Records what a site decrypts: its channel is there from its first answer on."""

    def __init__(self, site: SealedSite) -> None:
        self._site = site
        self._tapped = False
        self._task: Task | None = None
        self.readable: list[Readable] = []
        self.written: list[Readable] = []

    def answer(self, task: Task) -> Answer:
        self._task = task
        answer = self._site.answer(task)
        channel = self._site.channel
        if not self._tapped and channel is not None:
            self._tapped = True
            self._tap(channel)
        return answer

    def _tap(self, channel: Channel) -> None:
        from_peer, from_block, to_block = channel.from_peer, channel.from_block, channel.to_block

        def read_peer(peer: str, task: Task, size: int) -> bytes:
            return self._note(self.readable, ArrayName.of_box(peer), from_peer(peer, task, size))

        def read_block(block: int, what: str, sender: str, task: Task, size: int) -> bytes:
            name = ArrayName.of_members(block, what, sender)
            return self._note(self.readable, name, from_block(block, what, sender, task, size))

        def write_block(block: int, what: str, content: bytes) -> Bytes:
            self._note(self.written, ArrayName.of_members(block, what, channel.site), content)
            return to_block(block, what, content)

        channel.from_peer = read_peer  # type: ignore[method-assign]
        channel.from_block = read_block  # type: ignore[method-assign]
        channel.to_block = write_block  # type: ignore[method-assign]

    def _note(self, notes: list[Readable], name: ArrayName, content: bytes) -> bytes:
        assert self._task is not None
        notes.append(Readable(self._task.step, self._task.round, name, content))  # type: ignore[arg-type]
        return content


def _entropy(job: Job, site: str, draw: int) -> Callable[[int], bytes]:
    return Stream(hashlib.sha256(f"ce audit sealed {job.seed} {draw} {site}".encode()).digest()).bytes


def _release(terms: Terms, exchanges: tuple[Exchange, ...], site: SealedSite) -> Release:
    shares = {}
    for exchange in exchanges:
        if exchange.step == "release":
            for name, answer in exchange.answers.items():
                shares[name] = answer.arrays[ArrayName.of_broadcast(SHARE, name)].tobytes()
    tables: Reals = terms.layout.unpacked(opened_cells(terms, shares)).astype(np.float64)
    assert site.model is not None
    return Release(terms.layout, tables, terms.sd, site.model.weights, site.model.beta)


def _labels(site: SealedSite) -> Codes:
    assert site.result is not None
    return site.result.labels
