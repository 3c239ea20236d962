"""A site's end of a sealed job: tasks in, answers out, in the order of `ce.protocol.messages.sealed_steps`.

The daemon, or the simulation, gives it labels, keys and records. Whatever a coordinator sends that the protocol does
not allow is a MessageError; a rule of the site's own is a Refused; both end the attempt. All randomness comes from
`entropy`, and none of it is written down but shares and nonces, by `Records`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from ce.errors import InputError, MessageError
from ce.job import Job
from ce.protocol.attempt import Attempt
from ce.protocol.engine.snapshots import Snapshot
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.sealed_steps import SealedOrder
from ce.protocol.messages.steps import SealedStep, check_asked
from ce.protocol.messages.task import Answer, Array, Task
from ce.protocol.sealed.channel import BLOCK_KEY_SIZE, Bytes, Channel, Entropy, as_array
from ce.protocol.sealed.opened_shares import AcceptedModel
from ce.protocol.sealed.records import Records
from ce.protocol.sealed.schedule import CATEGORIES, STATE, LabelStatus, Schedule, Told, encode_state, shared_blocks
from ce.protocol.sealed.site_input import SealedOutcome, SiteContext, SiteInput
from ce.protocol.sealed.site_labels import SiteLabels
from ce.protocol.sealed.site_release import SiteRelease
from ce.protocol.sealed.site_tables import SiteTables
from ce.protocol.sealed.terms import Terms, columns_of_enrolments
from ce.protocol.topology.enrolment import EnrolmentSummary
from ce.protocol.topology.site_view import SiteView


class SealedSite:
    """One site in one attempt at a sealed job; a `Contributor`."""

    outcome = None

    def __init__(
        self,
        attempt: Attempt,
        site: str,
        job: Job,
        summaries: Mapping[str, EnrolmentSummary],
        view: SiteView,
        given: SiteInput,
        pair_keys: Mapping[str, bytes],
        enrolment_digest: bytes,
        records: Records,
        *,
        entropy: Entropy = os.urandom,
        min_foreign_columns: int = 0,
    ) -> None:
        """`summaries`: what every site of the roster has enrolled; `given`: the labels that take part."""
        if set(pair_keys) != set(attempt.roster) - {site} or tuple(sorted(summaries)) != attempt.roster:
            raise InputError("a sealed job: expected keys and enrolments of all sites of the roster")
        self.checkpoint: Snapshot | None = None
        self.name = site
        self._attempt, self._job = attempt, job
        self._summaries = dict(summaries)
        self._view, self._given = view, given
        self._pair_keys = dict(pair_keys)
        self._enrolment_digest = enrolment_digest
        self._records = records
        self._entropy = entropy
        self._min_foreign_columns = min_foreign_columns
        self._order = SealedOrder()
        self._rounds: _Rounds | None = None  # from `meet` on

    @property
    def step(self) -> SealedStep | None:
        """The step that was taken last."""
        return self._order.last

    @property
    def terms(self) -> Terms | None:
        """The numbers of the job; None before `meet`."""
        return None if self._rounds is None else self._rounds.context.terms

    @property
    def channel(self) -> Channel | None:
        """This site's end of all encrypted bytes, which the audit listens to; None before `meet`."""
        return None if self._rounds is None else self._rounds.context.channel

    @property
    def masked(self) -> bool:
        """Whether a word that follows from labels may have left: from then on all failures are told outside alike."""
        return self._order.last not in (None, "meet")

    @property
    def result(self) -> SealedOutcome | None:
        """After `finish`."""
        return None if self._rounds is None else self._rounds.outcome

    @property
    def model(self) -> AcceptedModel | None:
        """The model that this site has accepted; None before `score`."""
        return None if self._rounds is None else self._rounds.model

    def answer(self, task: Task) -> Answer:
        """Raises MessageError, Refused or JobFailed; the attempt is over then."""
        if task.checkpoint or task.resume or task.starts or task.retry or task.stop or task.stage or task.iteration:
            raise MessageError("task: a sealed job has no starts, stages, iterations and checkpoints")
        step = self._order.take(task.step, task.round)
        if self._rounds is None:
            self._rounds = self._begin(task)
        arrays: dict[str, Array] = dict(self._rounds.answer(step, task).items())
        return Answer(task.round, step, arrays=arrays, fraction_bits=dict.fromkeys(arrays, 0))

    def resume(self, task: Task, checkpoint: Snapshot) -> Answer:
        raise MessageError("resume: a sealed job has no checkpoints; a later attempt begins with meet")

    def _begin(self, task: Task) -> _Rounds:
        categories = task.arrays.get(ArrayName.of_model(CATEGORIES))
        if categories is None:
            raise MessageError("categories: expected with meet, got nothing")
        columns = columns_of_enrolments(self._summaries, categories, self._view)
        digest, roster, objects = self._attempt.job_digest, self._attempt.roster, self._view.sizes.objects
        terms = Terms.of(self._job, digest, roster, columns, objects)
        blocks = shared_blocks(digest, self._view, self._given.objects)
        channel = Channel(self._attempt, self.name, self._enrolment_digest, self._pair_keys, blocks, self._entropy)
        context = SiteContext(
            self._attempt,
            self.name,
            terms,
            self._view,
            self._given,
            blocks,
            channel,
            self._records,
            self._entropy,
            self._min_foreign_columns,
        )
        return _Rounds(context, self._enrolment_digest, self._pair_keys, self._job.delta)


class _Rounds:
    """The steps, once the terms are known."""

    def __init__(
        self, context: SiteContext, enrolment_digest: bytes, pair_keys: Mapping[str, bytes], delta: float
    ) -> None:
        self.context = context
        self.outcome: SealedOutcome | None = None
        self._pair_keys = dict(pair_keys)
        self._schedule = Schedule(context.terms, context.blocks)
        self._release = SiteRelease(context, self._schedule, enrolment_digest, delta)
        self._told: Told | None = None  # by this site
        self._tables: SiteTables | None = None  # from `mask` to `commit`
        self._labels: SiteLabels | None = None  # after `meet`
        self.model: AcceptedModel | None = None  # from `score` on

    def answer(self, step: SealedStep, task: Task) -> dict[ArrayName, Bytes]:
        self.context.channel.begin(task)
        if step in ("meet", "mask", "verify", "commit", "release"):
            check_asked(task.asked, self._schedule.asked(step, self.context.site, self._release.accepted))
        match step:
            case "meet":
                return self._meet()
            case "mask":
                self._compare(task, resumed=False)
                self._release.reserve()
                self._tables = SiteTables(self.context, self._schedule, self._pair_keys)
                return self._tables.masked_rows()
            case "verify":
                assert self._tables is not None
                return self._tables.multiply(task)
            case "commit":
                assert self._tables is not None
                tables, self._tables = self._tables, None
                return self._release.commit(task, tables)
            case "release":
                if self._labels is None:  # directly after `meet`
                    self._compare(task, resumed=True)
                return self._release.release(task)
            case "score":
                self.model = self._release.check(task)
        assert self._labels is not None
        assert self.model is not None
        if step == "finish":
            check_asked(task.asked, {})
            self.outcome = self._labels.finish(task)
            return {}
        return self._labels.answer(task, self.model)

    def _meet(self) -> dict[ArrayName, Bytes]:
        """How far this job has come here; and fresh keys of the blocks whose first member this site is."""
        context, schedule, site = self.context, self._schedule, self.context.site
        labels, keys = {}, {}
        for index, (block, digest) in context.blocks.items():
            labels[index] = LabelStatus.of(context.records.labels(digest), block.members)
            if block.members[0] == site:
                keys[index] = context.entropy(BLOCK_KEY_SIZE)
        self._told = Told(self._release.status, labels, keys)
        context.channel.bind(context.terms.digest)
        state = encode_state(self._told.release, self._release.accepted)
        arrays = {ArrayName.of_broadcast(STATE, site): as_array(state)}
        for peer in self._pair_keys:
            content = schedule.encode_told(site, peer, self._told)
            arrays[ArrayName.of_box(peer)] = context.channel.to_peer(peer, content)
        return arrays

    def _compare(self, task: Task, *, resumed: bool) -> None:
        """Take what all have told: keys of blocks, and whether shares of an earlier attempt are opened again."""
        context, schedule, site = self.context, self._schedule, self.context.site
        assert self._told is not None
        told = {site: self._told}
        for peer in sorted(self._pair_keys):
            content = context.channel.from_peer(peer, task, schedule.told_size(peer, site))
            told[peer] = schedule.decode_told(peer, site, content)
        sites = context.terms.sites
        self._release.compare({name: one.release for name, one in told.items()})
        if self._release.resumed != resumed:
            expected, got = ("release", "mask") if self._release.resumed else ("mask", "release")
            raise MessageError(f"step: expected {expected} after what the sites told each other, got {got}")
        context.channel.bind(*(told[name].release.encoded(len(sites)) for name in sites))
        states = {}
        for index, (block, _) in context.blocks.items():
            context.channel.set_block_key(index, told[block.members[0]].keys[index])
            states[index] = {member: told[member].labels[index] for member in block.members}
            encoded = (states[index][member].encoded(len(block.members)) for member in block.members)
            context.channel.bind_block(index, *encoded)
        self._labels = SiteLabels(context, states)
