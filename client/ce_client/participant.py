"""One site's part in one attempt at a job: messages in, frames out. No socket, no clock; may take its time.

Every message may come again after a broken stream, and is then answered as before. What a site does not do is said in
one `Refusal`, after which it waits to hear that the job is over.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ce.errors import CeError, ConfigError, InputError, JobFailed, MessageError, Refused
from ce.job import Job
from ce.labels import LabelTable
from ce.models.base import hard_labels
from ce.models.bc3e import class_labels
from ce.models.jobs import model_without_labels
from ce.privacy.pairs import Sealed
from ce.privacy.pseudonyms import SIZE as TOKEN_SIZE
from ce.protocol.enrolling import enrolment, with_tokens
from ce.protocol.handshake import Attempt, Handshake, KeyShare, pseudonym_digest, sign_enrolment
from ce.protocol.messages import Answer, Array, Task
from ce.protocol.site import Site
from ce.protocol.starts import SecretStarts, job_key
from ce.protocol.topology import Block, Enrolment, SharedColumn, SiteTopology
from ce.steps.model import Sizes, fits_the_ring
from ce.transport.parts import LARGEST_HEADER, Collector, to_parts
from ce.transport.wire import TaskReader, answer_frames
from ce_client.policy import Policy
from ce_client.resources import Resources
from ce_client.results import Results
from ce_proto.v1 import arrays_pb2
from ce_proto.v1 import site_pb2 as pb

Frames = Iterator[pb.SiteFrame]

#: Cells times starts times clusters that a task goes over.
LIGHT_CELLS = 50_000

_KIND_NUMBERS = {"clustering": pb.COLUMN_KIND_CLUSTERING, "classifier": pb.COLUMN_KIND_CLASSIFIER}
_WRITTEN = {None: pb.CATEGORY_KIND_UNSPECIFIED, "integers": pb.CATEGORY_KIND_INTEGER, "text": pb.CATEGORY_KIND_TEXT}


class Participant:
    """The site's side of an attempt. Made by an Offer."""

    def __init__(self, offer: pb.Offer, coordinator: str, resources: Resources, answered: int = 0) -> None:
        self.attempt = Attempt(offer.job, bytes(offer.definition), offer.epoch, tuple(offer.roster))
        self.rounds_answered = answered  # over all attempts
        self.refusal: CeError | None = None
        self.finished = False
        self._coordinator = coordinator
        self._resources = resources
        self._site = resources.settings.name
        self._results = Results(resources.settings.results)
        self._job: Job
        self._policy: Policy
        self._table: LabelTable
        self._handshake: Handshake | None = None
        self._job_key: bytes | None = None
        self._enrolment: Enrolment | None = None
        self._aligning: tuple[pb.Alignment, Collector] | None = None
        self._reading: TaskReader | None = None
        self._engine: Site | None = None
        self._last: tuple[int, bytes, Answer] | None = None  # round, digest, answer

    @property
    def light(self) -> bool:
        """Whether a task takes about a millisecond: less than it costs to hand it to a thread under load."""
        if self._engine is None:
            return False
        return self._table.n_objects * len(self._table.columns) * self._model.n_starts * self._model.k <= LIGHT_CELLS

    @property
    def job(self) -> str:
        return self.attempt.job

    @property
    def epoch(self) -> int:
        return self.attempt.epoch

    def receive(self, kind: str, message: Any) -> Frames:
        """Handle one message of this attempt. The work is done when this returns; frames are made as they are taken."""
        if self.refusal is not None:
            return iter((self._refuse(self.refusal),))
        try:
            return self._handle(kind, message)
        except CeError as error:
            self.refusal = error
        except MemoryError:
            self.refusal = JobFailed("not enough memory for this job here: fewer restarts or clusters need less")
        except Exception as error:
            self.refusal = JobFailed("an unexpected error at this site; its log says more")
            self.refusal.__cause__ = error
        self.close()
        return iter((self._refuse(self.refusal),))

    def disconnected(self) -> None:
        """What was on its way is lost; it will be sent again."""
        self._aligning = None
        self._reading = None

    def close(self) -> None:
        if self._engine is not None:
            self._engine.close()

    def _handle(self, kind: str, message: Any) -> Frames:
        match kind:
            case "disconnected":
                self.disconnected()
                return iter(())
            case "offer":
                return self._take_offer()
            case "peers":
                return self._meet(message)
            case "sealed_key":
                return self._open_key(message)
            case "alignment":
                self._aligning = (message, Collector(self._resources.settings.largest_message))
                return self._align(message.parts)
            case "task":
                return self._begin_task(message)
            case "more" if self._aligning is not None:
                return self._align(message.parts)
            case "more" if self._reading is not None:
                return self._work(message.parts)
            case _:
                raise MessageError(f"{kind}: not expected now")

    # Offer, keys, enrolment.

    def _take_offer(self) -> Frames:
        attempt, resources = self.attempt, self._resources
        if self._handshake is None:
            job = self._job = _job_of(attempt)
            self._policy = resources.policy()
            self._policy.check(job, self._coordinator)
            self._results.refuse_other(job, attempt.job_digest)
            self._results.check_writable()
            self._model, self._classes = model_without_labels(job)
            self._table = resources.labels()
            self._refuse_unusable()
            certificate = resources.certificate_der
            self._handshake = Handshake(attempt, self._site, resources.key, certificate, resources.peers())
        share = self._handshake.share
        message = pb.KeyShare(
            job=self.job,
            epoch=self.epoch,
            public_key=share.public_key,
            certificate=share.certificate,
            signature=share.signature,
        )
        return iter((pb.SiteFrame(key_share=message),))

    def _refuse_unusable(self) -> None:
        """Labels that this job has no use for. The sentences say nothing about the labels themselves."""
        table = self._table
        used = table.columns if self._model.uses_votes else table.clusterings
        if not used:
            raise Refused("usable columns", "this site has no column that this model uses")
        for column in table.classifiers if self._model.uses_votes else ():
            if set(column.categories) - set(self._classes):
                raise Refused(
                    "classes of the job", "a classifier of this site uses a class that is not among those of the job"
                )

    def _meet(self, message: pb.Peers) -> Frames:
        handshake = self._known_handshake()
        shares = {p.site: KeyShare(p.public_key, p.certificate, p.signature) for p in message.peers}
        handshake.meet(shares)
        if not handshake.leads:
            return iter(())
        key = self._job_key = job_key(self._resources.secret, self.job)
        sealed = [
            pb.SealedKey(job=self.job, epoch=self.epoch, site=peer, nonce=own.nonce, ciphertext=own.ciphertext)
            for peer, own in handshake.seal_for_all(key).items()
        ]
        keys = pb.SealedKeys(job=self.job, epoch=self.epoch, keys=sealed)
        return self._enrol(pb.SiteFrame(sealed_keys=keys))

    def _open_key(self, message: pb.SealedKey) -> Frames:
        handshake = self._known_handshake()
        if handshake.leads or message.site != self._site:
            raise MessageError("sealed_key: is not for this site")
        self._job_key = handshake.open_from_first(Sealed(message.nonce, message.ciphertext))
        return self._enrol()

    def _enrol(self, *before: pb.SiteFrame) -> Frames:
        assert self._job_key is not None
        if self._enrolment is None:
            self._enrolment = enrolment(self._table, self._model.uses_votes, self._job_key)
        own = self._enrolment
        header = pb.Enrolment(
            job=self.job,
            epoch=self.epoch,
            objects=len(own.objects),
            columns=[
                pb.ColumnClaim(
                    name=claim.name,
                    kind=_KIND_NUMBERS[claim.kind],
                    soft=claim.soft,
                    categories_are=_WRITTEN[claim.written],
                    categories=[bytes.fromhex(str(token)) for token in claim.categories],
                )
                for claim in own.columns
            ],
            pseudonym_digest=pseudonym_digest(own),
            signature=sign_enrolment(self.attempt, self._site, own, self._resources.key),
        )
        if header.ByteSize() > LARGEST_HEADER:
            categories = sum(len(claim.categories) for claim in own.columns)
            raise InputError(
                f"{categories:,} categories in {len(own.columns):,} columns are more than fit in an enrolment: leave "
                "out columns, such as those with a category for nearly every object"
            )
        return self._enrolment_frames(header, own, before)

    def _enrolment_frames(self, header: pb.Enrolment, own: Enrolment, before: tuple[pb.SiteFrame, ...]) -> Frames:
        yield from before
        tokens = own.objects.view(np.uint8).reshape(-1, TOKEN_SIZE)
        for at, parts in enumerate(to_parts({"pseudonyms": tokens})):
            if at == 0:
                header.parts.CopyFrom(parts)
                yield pb.SiteFrame(enrolment=header)
            else:
                yield pb.SiteFrame(more=pb.More(job=self.job, epoch=self.epoch, parts=parts))

    # Alignment.

    def _align(self, parts: arrays_pb2.Parts) -> Frames:
        assert self._aligning is not None
        message, collector = self._aligning
        if not collector.feed(parts):
            return iter(())
        self._aligning = None
        if self._engine is None:
            self._begin_engine(message, collector.arrays)
        return iter((pb.SiteFrame(ready=pb.Ready(job=self.job, epoch=self.epoch)),))

    def _begin_engine(self, message: pb.Alignment, arrays: dict[str, Array]) -> None:
        if self._job_key is None or self._enrolment is None:
            raise MessageError("alignment: comes before the enrolment")
        topology = _topology(message, self._site, self.attempt.roster, self._enrolment)
        rows = _rows(arrays, topology, len(self._enrolment.objects))
        self._refuse_too_large(topology)
        self._engine = Site(
            self._site,
            with_tokens(self._table, self._job_key),
            topology,
            rows,
            self._model,
            SecretStarts.of(self._resources.secret, self._job_key, self.job),
            classes=self._classes,
            threads=self._resources.settings.threads,
        )

    def _refuse_too_large(self, topology: SiteTopology) -> None:
        """Before the memory is asked for: a system may give what it does not have, and then end the daemon."""
        if not fits_the_ring(self._model, topology.sizes):
            raise MessageError("alignment: sizes of a job whose sums do not fit in 64 bits")
        numbers = self._table.n_objects + sum(len(column.categories) for column in topology.columns)
        needed, most = 8 * self._model.n_starts * self._model.k * numbers, self._resources.settings.largest_state
        if needed > most:
            raise Refused(
                "largest_state",
                f"the job would take {needed / 1e9:,.1f} GB of memory or more here, and this site gives it "
                f"{most / 1e9:,.1f} GB: fewer restarts or clusters need less",
            )

    # Rounds.

    def _begin_task(self, message: pb.Task) -> Frames:
        self._reading = TaskReader(message, self.attempt.job_digest, self._resources.settings.largest_message)
        return self._work(message.parts)

    def _work(self, parts: arrays_pb2.Parts) -> Frames:
        assert self._reading is not None
        task = self._reading.feed(parts)
        if task is None:
            return iter(())
        digest, self._reading = self._reading.digest, None
        if self._engine is None:
            raise MessageError("task: comes before the alignment")
        if self._last is not None and task.round <= self._last[0]:
            if (task.round, digest) != self._last[:2]:
                raise MessageError("task: of a round that was answered, and not the same")
        else:
            self.rounds_answered += 1
            self._policy.check_rounds(self.rounds_answered)
            answer = self._engine.answer(task)
            if task.step == "finish":
                self._write_results(task)
            self._last = (task.round, digest, answer)
        return answer_frames(self.job, self.epoch, self._last[2], digest)

    def _write_results(self, task: Task) -> None:
        engine, job = self._engine, self._job
        assert engine is not None
        memberships = engine.memberships()
        if self._classes:
            labels: Any = class_labels(memberships, self._classes, engine.unlabelled)
        else:
            labels = hard_labels(memberships, engine.unlabelled)
        report = {
            "job": job.name,
            "job_digest": self.attempt.job_digest.hex(),
            "model": job.model,
            "privacy": job.privacy,
            "sites": list(self.attempt.roster),
            "epoch": self.epoch,
            "rounds": task.round,
            "objects": self._table.n_objects,
            "objects_without_a_label": int(engine.unlabelled.sum()),
            "columns": [column.name for column in self._table.columns],
        }
        self._results.write(job, self._table.ids, labels, memberships, self._classes, report)
        self.finished = True

    # Frames.

    def _known_handshake(self) -> Handshake:
        if self._handshake is None:
            raise MessageError("keys: come before the offer")
        return self._handshake

    def _refuse(self, error: CeError) -> pb.SiteFrame:
        rule = error.rule if isinstance(error, Refused) else ""
        return pb.SiteFrame(
            refusal=pb.Refusal(
                job=self.job,
                epoch=self.epoch,
                exit_code=error.exit_code,
                rule=rule,
                sentence=_told(error).removesuffix(f" (rule: {rule})")[:1000],
            )
        )


def _told(error: CeError) -> str:
    """What others hear of an error: nothing about this site's files."""
    if isinstance(error, InputError):
        return "the labels of this site cannot be used; its log says why"
    if isinstance(error, ConfigError):
        return "the configuration of this site cannot be used; its log says why"
    return str(error)


def _job_of(attempt: Attempt) -> Job:
    """The job as offered, which must be what the offer says it is."""
    try:
        job = Job.from_definition(attempt.definition)
    except ConfigError as error:
        raise MessageError("definition: not a job that this version knows") from error
    if job.name != attempt.job or tuple(sorted(job.sites)) != attempt.roster:
        raise MessageError("offer: its name or roster is not that of the job")
    return job


def _topology(message: pb.Alignment, site: str, roster: tuple[str, ...], own: Enrolment) -> SiteTopology:
    """What the coordinator says about who shares what, as far as this site can check it."""
    claims = {claim.name: claim for claim in own.columns}
    blocks: dict[int, Block] = {}
    for view in message.blocks:
        members = tuple(view.members)
        if site not in members or list(members) != sorted(set(members)) or not set(members) <= set(roster):
            raise MessageError("alignment: members of a block are not sites of the roster, this one among them")
        blocks[view.index] = Block(view.index, members, view.size)
    if len(blocks) != len(message.blocks) or len({block.members for block in blocks.values()}) != len(blocks):
        raise MessageError("alignment: two blocks are one")
    columns = []
    for column in message.columns:
        holders = tuple(column.holders)
        claim = claims.get(column.name)
        if claim is None or _KIND_NUMBERS[claim.kind] != column.kind:
            raise MessageError("alignment: a column that this site did not enrol")
        if site not in holders or list(holders) != sorted(set(holders)) or not set(holders) <= set(roster):
            raise MessageError("alignment: holders of a column are not sites of the roster, this one among them")
        categories = tuple(token.hex() for token in column.categories)
        if len(set(categories)) < len(categories) or not set(map(str, claim.categories)) <= set(categories):
            raise MessageError("alignment: categories of a column lack one that this site enrolled")
        if len(holders) == 1 and len(categories) != len(claim.categories):
            raise MessageError("alignment: a column with one holder has other categories than its holder's")
        columns.append(SharedColumn(column.index, column.name, claim.kind, categories, holders))
    if sorted(column.name for column in columns) != sorted(claims):
        raise MessageError("alignment: not all columns of this site, each once")
    if len({column.index for column in columns}) < len(columns):
        raise MessageError("alignment: two columns have one number")
    s = message.sizes
    sizes = Sizes(s.objects, s.clusterings, s.classifiers, s.categories)
    if sizes.objects < len(own.objects) or sizes.clusterings + sizes.classifiers < len(columns):
        raise MessageError("alignment: sizes smaller than what this site holds")
    return SiteTopology(sizes, blocks, tuple(columns))


def _rows(arrays: dict[str, Array], topology: SiteTopology, objects: int) -> dict[int, Any]:
    """Positions of each block's objects; together every object of this site exactly once."""
    if set(arrays) != {f"rows/{block}" for block in topology.blocks}:
        raise MessageError("alignment: not one array of rows for each block")
    rows = {}
    seen = np.zeros(objects, dtype=bool)
    for index, block in topology.blocks.items():
        own = arrays[f"rows/{index}"]
        if own.dtype != np.int64 or own.shape != (block.size,) or ((own < 0) | (own >= objects)).any():
            raise MessageError("alignment: rows are not positions of this site's objects")
        seen[own] = True
        rows[index] = own.astype(np.intp)
    if not seen.all() or sum(block.size for block in topology.blocks.values()) != objects:
        raise MessageError("alignment: not every object of this site, each in one block")
    return rows
