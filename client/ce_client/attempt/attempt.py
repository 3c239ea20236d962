"""One site's part in one attempt at a job: messages in, frames out. No socket, no clock; may take its time.

Every message may come again after a broken stream, and is then answered as before. What a site does not do is said in
one `Refusal`, after which it waits to hear that the job is over. Nothing that was computed from labels leaves before
the site has checked the alignment against its own rules and, if its policy says so, somebody has approved.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ce.consensus_file import as_it_is, as_text
from ce.errors import (
    BrokenModel,
    BrokenTotals,
    CeError,
    ConfigError,
    InputError,
    JobFailed,
    MessageError,
    Refused,
    UnknownModel,
)
from ce.identity.certificates import sign
from ce.job import Job
from ce.labels import LabelTable
from ce.labels.randomised import epsilons, randomise
from ce.models.registry import model_without_labels
from ce.policy import Policy
from ce.privacy.derivation import joined
from ce.privacy.pair_keys import EncryptedBox
from ce.privacy.pseudonyms import SIZE as TOKEN_SIZE
from ce.protocol.engine.starting_parameters import SecretStarts, job_key
from ce.protocol.keys.handshake import (
    Attempt,
    Handshake,
    KeyShare,
    Summary,
    enrolment_digest,
    sign_enrolment,
    summary_of,
)
from ce.protocol.messages.task import Array
from ce.protocol.minimums import Enrolled, Exclusion, Findings, Rules, has_any, left_out, with_thin_objects
from ce.protocol.modes.mask_binding import object_digests
from ce.protocol.topology.enrolment import by_pseudonym, enrolment, with_tokens
from ce.protocol.topology.topology import Enrolment, Kind, Rows, SiteView
from ce.ring import Reals
from ce.steps.model import fits_the_ring
from ce.transport.array_chunks import Collector
from ce.transport.frames import LARGEST_MESSAGE, TaskReader, answer_frames
from ce_client.attempt.check_alignment import enrolled, private_objects, read_rows, read_view, shown_enrolments
from ce_client.attempt.enrolment_frames import enrolment_frames, enrolment_header
from ce_client.attempt.preview import preview
from ce_client.attempt.rounds import Part, SiteRounds, refuse_too_large
from ce_client.daemon.site_files import SiteFiles
from ce_client.state.attempt_history import AttemptHistory, AttemptRecord
from ce_client.state.consents import Consents
from ce_client.state.ledger import PURPOSE, Ledger
from ce_client.state.previews import Previews
from ce_client.state.results import Results
from ce_client.state.rosters import RULE as ONE_ROSTER
from ce_client.state.rosters import Rosters, content_digest
from ce_proto.v1 import arrays_pb2
from ce_proto.v1 import site_pb2 as pb

Frames = Iterator[pb.SiteFrame]

#: Cells times starts times clusters that a task goes over.
LIGHT_CELLS = 50_000


@dataclass(frozen=True)
class _Aligned:
    """An alignment that breaks no rule, and what it was checked against."""

    view: SiteView
    rows: dict[int, Rows] = field(repr=False)
    rules: Rules
    findings: Findings
    enrolled: dict[str, Enrolled]
    enrolment_digest: bytes
    context: bytes  # of checkpoints


class _TooThin(Exception):
    """Objects that too few labels would hide are to be left out. Not an error."""

    def __init__(self, findings: Findings) -> None:
        super().__init__("objects are to be left out")
        self.findings = findings


class SiteAttempt:
    """The site's side of an attempt. Made by an Offer."""

    def __init__(self, offer: pb.Offer, coordinator: str, site_files: SiteFiles, ledger: Ledger) -> None:
        self.attempt = Attempt(offer.job, bytes(offer.definition), offer.epoch, tuple(offer.roster))
        self.rounds_answered = 0  # over all attempts
        self.refusal: CeError | None = None
        self.waits_for_consent = False
        self._coordinator = coordinator
        self._site_files = site_files
        self._ledger = ledger
        self._site = site_files.settings.name
        cell = as_text if site_files.settings.for_spreadsheets else as_it_is
        self._results = Results(site_files.settings.results, cell)
        self._job: Job
        self._policy: Policy
        self._whole: LabelTable  # all labels of this site
        self._table: LabelTable  # those that take part
        self._excluded: tuple[Exclusion, ...] = ()
        self._labels_digest: bytes
        self._handshake: Handshake | None = None
        self._job_key: bytes | None = None
        self._enrolment: Enrolment | None = None
        self._summary: Summary
        self._revision = -1  # of the last alignment that was answered
        self._aligning: tuple[pb.Alignment, Collector] | None = None
        self._reading: TaskReader | None = None
        self._rounds: SiteRounds | None = None
        self._aligned: _Aligned
        self._attempts: AttemptRecord | None = None
        self._in_ledger = False

    @property
    def finished(self) -> bool:
        return self._rounds is not None and self._rounds.finished

    @property
    def light(self) -> bool:
        """Whether a task takes about a millisecond: less than it costs to hand it to a thread under load."""
        if self._rounds is None:
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

    @property
    def checkpoint_round(self) -> int:
        """The last round whose state was kept; 0: none in this attempt."""
        return 0 if self._rounds is None else self._rounds.checkpoint_round

    @property
    def not_kept(self) -> int:
        """States of this attempt that were to be kept, and could not be."""
        return 0 if self._rounds is None else self._rounds.not_kept

    @property
    def under_way(self) -> bool:
        """Whether rounds are being answered."""
        return self._rounds is not None and self._rounds.committed and not self._rounds.finished

    def disconnected(self) -> None:
        """What was on its way is lost; it will be sent again."""
        self._aligning = None
        self._reading = None

    def close(self) -> None:
        if self._rounds is not None:
            self._rounds.close()

    def ended(self, state: str) -> None:
        """The attempt is over: what the ledger has of it is signed, and what it amounts to is remembered."""
        if self._attempts is not None:
            refused = "" if self.refusal is None else type(self.refusal).__name__
            memory = AttemptHistory(self._site_files.settings.state)
            self._attempts = memory.end(self.job, self._attempts, self.rounds_answered, refused)
        if self._in_ledger:
            self._in_ledger = False
            key = self._site_files.key
            self._ledger.end(self.job, self.epoch, state, lambda head: sign(key, head, purpose=PURPOSE))

    def _handle(self, kind: str, message: Any) -> Frames:
        match kind:
            case "disconnected":
                self.disconnected()
                return iter(())
            case "offer":
                return self._take_offer()
            case "peers":
                return self._meet(message)
            case "encrypted_key":
                return self._open_key(message)
            case "alignment":
                self._aligning = (message, Collector(self._site_files.settings.largest_message, LARGEST_MESSAGE))
                return self._align(message.chunks)
            case "reconsider":
                return self._consider() if self.waits_for_consent else iter(())
            case "task":
                return self._begin_task(message)
            case "more" if self._aligning is not None:
                return self._align(message.chunks)
            case "more" if self._reading is not None:
                return self._work(message.chunks)
            case _:
                raise MessageError(f"{kind}: not expected now")

    # Offer, keys, enrolment.

    def _take_offer(self) -> Frames:
        attempt, site_files = self.attempt, self._site_files
        if self._handshake is None:
            job = self._job = _job_of(attempt)
            self._policy = site_files.policy()
            self._policy.check(job, self._coordinator)
            self._results.refuse_other(job, attempt.job_digest)
            self._results.check_writable()
            self._model, self._classes = model_without_labels(job)
            self._labels_digest = content_digest(site_files.settings.labels.file)
            memory = AttemptHistory(site_files.settings.state)
            self._attempts = memory.begin(self.job, attempt.job_digest, self._labels_digest, self._policy)
            self.rounds_answered = self._attempts.rounds
            self._allow_smaller_roster()
            self._rosters.check(site_files.settings.labels.file, self._labels_digest, attempt.roster)
            self._whole = randomise(site_files.labels(), self._policy.randomise, site_files.secret)
            self._table = self._whole
            self._refuse_unusable()
            certificate = site_files.certificate_der
            self._handshake = Handshake(attempt, self._site, site_files.key, certificate, site_files.peers())
        share = self._handshake.share
        message = pb.KeyShare(
            job=self.job,
            epoch=self.epoch,
            public_key=share.public_key,
            certificate=share.certificate,
            signature=share.signature,
        )
        return iter((pb.SiteFrame(key_share=message),))

    def _allow_smaller_roster(self) -> None:
        """The job, which says that it may, goes on without a site that stayed away: only if the policy says so too."""
        gone = sorted(set(self._job.sites) - set(self.attempt.roster))
        if not gone:
            return
        if not self._policy.leave_behind:
            raise Refused(
                "leave_behind",
                f"the job would go on without {', '.join(gone)}; totals with and without a site differ by its part: "
                "this site takes part in that only if its policy says leave_behind = true",
            )
        self._rosters.allow(self.attempt.roster, self.job)

    def _alignment_name(self, revision: int) -> str:
        """What an alignment is remembered by: other sites, other alignments."""
        gone = sorted(set(self._job.sites) - set(self.attempt.roster))
        return f"{revision}" + "".join(f" without {site}" for site in gone)

    @property
    def _rosters(self) -> Rosters:
        return Rosters(self._site_files.settings.state)

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
        key = self._job_key = job_key(self._site_files.secret, self.job)
        sealed = [
            pb.EncryptedKey(job=self.job, epoch=self.epoch, site=peer, nonce=own.nonce, ciphertext=own.ciphertext)
            for peer, own in handshake.encrypt_for_all(key).items()
        ]
        keys = pb.EncryptedKeys(job=self.job, epoch=self.epoch, keys=sealed)
        return self._enrol(pb.SiteFrame(encrypted_keys=keys))

    def _open_key(self, message: pb.EncryptedKey) -> Frames:
        handshake = self._known_handshake()
        if handshake.leads or message.site != self._site:
            raise MessageError("sealed_key: is not for this site")
        self._job_key = handshake.decrypt_from_first(EncryptedBox(message.nonce, message.ciphertext))
        return self._enrol()

    def _enrol(self, *before: pb.SiteFrame, revision: int = 0) -> Frames:
        assert self._job_key is not None
        if self._enrolment is None:
            # In an order that says nothing: that of the file would line up objects of two jobs.
            self._table = by_pseudonym(self._table, self._job_key)
            self._enrolment = enrolment(self._table, self._model.uses_votes, self._job_key)
            self._summary = summary_of(self._enrolment, revision)
            self._note_enrolment()
        own, summary = self._enrolment, self._summary
        signature = sign_enrolment(self.attempt, self._site, summary, self._site_files.key)
        header = enrolment_header(self.attempt, own, summary, signature, self._policy.min_cluster)
        return chain(before, enrolment_frames(header, own))

    # Alignment, rules, consent.

    def _align(self, chunks: arrays_pb2.ArrayChunks) -> Frames:
        assert self._aligning is not None
        message, collector = self._aligning
        if not collector.feed(chunks):
            return iter(())
        self._aligning = None
        if self._enrolment is None or self._handshake is None:
            raise MessageError("alignment: comes before the enrolment")
        if message.revision < self._revision:
            raise MessageError("alignment: an older one than this site has answered")
        if message.revision == self._revision:  # again, after a broken stream
            if self._summary.revision > message.revision:
                return self._enrol()
            return iter(()) if self.waits_for_consent else self._ready()
        return self._check_alignment(message, collector.arrays)

    def _check_alignment(self, message: pb.Alignment, arrays: dict[str, Array]) -> Frames:
        assert self._handshake is not None
        assert self._enrolment is not None
        assert self._attempts is not None
        summaries = self._handshake.check_enrolments(self._summary, shown_enrolments(message))
        if message.revision != max(summary.revision for summary in summaries.values()):
            # So that another alignment always means another enrolment, and with it other masks.
            raise MessageError("alignment: its revision is not that of the last enrolment")
        if self._rounds is not None and self._rounds.committed:
            raise MessageError("alignment: comes after the sites have begun")
        view = read_view(message, self._site, self._enrolment, summaries)
        rows = read_rows(arrays, view, len(self._enrolment.objects))
        if not fits_the_ring(self._model, view.sizes):
            raise MessageError("alignment: sizes of a job whose sums do not fit in 64 bits")
        refuse_too_large(self._model, view, self._table.n_objects, self._site_files.settings.largest_state)
        private = private_objects(message, self._site, view)
        rules = Rules(self._policy, self._job.privacy, self._site, linear=self._model.linear)
        known = enrolled(summaries, private)
        findings = rules.findings(view, known, self._table, rows)
        told = enrolment_digest(summaries, private)
        own = object_digests(self._enrolment.objects, rows)
        blocks = [joined(*(m.encode() for m in view.blocks[b].members), digest) for b, digest in sorted(own.items())]
        memory = AttemptHistory(self._site_files.settings.state)
        self._attempts = memory.align(self.job, self._attempts, self._alignment_name(message.revision), told, *blocks)
        context = hashlib.sha256(joined(self.attempt.job_digest, self._labels_digest, told, *blocks)).digest()
        self._revision = message.revision
        if not findings.clean:
            return self._leave_out(findings)
        self._aligned = _Aligned(view, rows, rules, findings, known, told, context)
        return self._consider()

    def _leave_out(self, findings: Findings) -> Frames:
        """Enrol again without what falls below a minimum, or refuse."""
        self.waits_for_consent = False
        Rules(self._policy, self._job.privacy, self._site).refuse(findings)
        self._table, more = left_out(findings, self._table)
        self._excluded = (*self._excluded, *more)
        self._enrolment = None
        if self._rounds is not None:
            self._rounds.close()
            self._rounds = None
        return self._enrol(revision=self._revision + 1)

    def _look_at_counts(self, counts: dict[int, dict[str, Reals]]) -> None:
        """Before anything but counts has left: raises _TooThin where too few labels would hide this site's."""
        here = self._aligned
        findings = here.findings
        labelled: dict[Kind, NDArray[np.bool_]] = {k: has_any(self._table, k) for k in ("clustering", "classifier")}
        for block, counted in counts.items():
            rows = here.rows[block]
            own = {kind: has[rows] for kind, has in labelled.items()}
            thin = here.rules.thin_objects(here.view, here.enrolled, block, counted, own)
            findings = with_thin_objects(findings, self._table.n_objects, f"block/{block}", rows, thin)
        if not findings.clean:
            raise _TooThin(findings)

    def _consider(self) -> Frames:
        """Nothing breaks a rule: begin, unless somebody must say so first."""
        view, findings = self._aligned.view, self._aligned.findings
        decision: str | None = "approved"
        if self._policy.consent == "ask":
            consents = Consents(self._site_files.settings.state)
            decision = consents.decision(self.job, self.attempt.job_digest, self.attempt.roster)
        self.waits_for_consent = decision is None
        self._write_preview(view, findings)
        if decision is None:
            return iter(())
        if decision == "declined":
            raise Refused("consent", "somebody at this site has declined the job")
        self._begin()
        return self._ready()

    def _write_preview(self, view: SiteView, findings: Findings) -> None:
        settings, policy = self._site_files.settings, self._policy
        Previews(settings.state).write(
            preview(
                self.attempt,
                self._job,
                self._coordinator,
                self._model,
                view,
                findings,
                self._excluded,
                policy,
                epsilons(self._whole, policy.randomise),
                self.waits_for_consent,
            )
        )

    def _begin(self) -> None:
        """What follows leaves this site, so all that must be remembered of it is written down before."""
        assert self._job_key is not None
        assert self._enrolment is not None
        assert self._handshake is not None
        here = self._aligned
        attempt, job, settings = self.attempt, self._job, self._site_files.settings
        self._rosters.remember(settings.labels.file, self._labels_digest, attempt.roster, attempt.job, self._ledger)
        part = Part(
            attempt,
            job,
            self._model,
            self._classes,
            with_tokens(self._whole, self._job_key),
            with_tokens(self._table, self._job_key),
            self._enrolment,
            self._excluded,
        )
        starts = SecretStarts.of(self._site_files.secret, self._job_key, self.job)
        self._rounds = SiteRounds(
            part,
            self._site,
            here.view,
            here.rows,
            starts,
            self._handshake.pair_keys,
            here.enrolment_digest,
            self._ledger,
            self._results,
            settings.threads,
            self._look_at_counts,
            self._site_files.checkpoints,
            here.context,
        )

    def _note_enrolment(self) -> None:
        """What is enrolled leaves this site too."""
        assert self._enrolment is not None
        if not self._in_ledger:
            self._note_beginning()
        tokens = self._enrolment.objects.view(np.uint8).reshape(-1, TOKEN_SIZE)
        columns = [f"column {claim.name}: {len(claim.categories)} categories" for claim in self._enrolment.columns]
        everybody = {"pseudonyms": self.attempt.roster}
        self._ledger.record(self.job, self.epoch, 0, {"pseudonyms": tokens}, "pseudonyms", everybody, columns)

    def _note_beginning(self) -> None:
        self._refuse_full_ledger()
        attempt, p = self.attempt, self._policy.randomise
        mode, given = self._job.privacy, epsilons(self._whole, p)
        self._ledger.begin(attempt.job, attempt.epoch, attempt.job_digest, attempt.roster, mode, p, given)
        self._in_ledger = True

    def _refuse_full_ledger(self) -> None:
        most = self._site_files.settings.limits.ledger_bytes
        if self._ledger.size >= most:
            raise Refused(
                "limits.ledger_bytes",
                f"the ledger of this site has {self._ledger.size:,} bytes, and may have {most:,}: its people have to "
                "stop the daemon, move the ledger away, keep it, and start again",
            )

    def _ready(self) -> Frames:
        assert self._rounds is not None
        kept = [pb.Checkpoint(origin=label.origin, round=label.round) for label in self._rounds.labels]
        ready = pb.Ready(job=self.job, epoch=self.epoch, revision=self._revision, checkpoints=kept)
        return iter((pb.SiteFrame(ready=ready),))

    # Rounds.

    def _begin_task(self, message: pb.Task) -> Frames:
        self._reading = TaskReader(message, self.attempt.job_digest, self._site_files.settings.largest_message)
        return self._work(message.chunks)

    def _work(self, chunks: arrays_pb2.ArrayChunks) -> Frames:
        assert self._reading is not None
        task = self._reading.feed(chunks)
        if task is None:
            return iter(())
        digest, self._reading = self._reading.digest, None
        if self._rounds is None:
            if self._enrolment is not None and self._summary.revision > self._revision >= 0:
                return self._enrol()  # again, after a broken stream: this site has left something out
            raise MessageError("task: comes before the alignment")
        if not self._rounds.repeats(task, digest):
            self.rounds_answered += 1
            self._policy.check_rounds(self.rounds_answered)
        try:
            answer = self._rounds.answer(task, digest)
        except _TooThin as found:
            return self._leave_out(found.findings)
        if task.checkpoint and self._attempts is not None:
            # What was answered counts, also if this process is killed before the attempt ends.
            memory = AttemptHistory(self._site_files.settings.state)
            self._attempts = memory.end(self.job, self._attempts, self.rounds_answered)
        return answer_frames(self.job, self.epoch, answer, digest)

    # Frames.

    def _known_handshake(self) -> Handshake:
        if self._handshake is None:
            raise MessageError("keys: come before the offer")
        return self._handshake

    @property
    def _privacy(self) -> str:
        return self._job.privacy if hasattr(self, "_job") else ""

    def _refuse(self, error: CeError) -> pb.SiteFrame:
        rule = error.rule if isinstance(error, Refused) else ""
        if self._privacy == "blind" and rule == "overlapping cells":
            rule = ""
        return pb.SiteFrame(
            refusal=pb.Refusal(
                job=self.job,
                epoch=self.epoch,
                exit_code=error.exit_code,
                rule=rule,
                sentence=_told(error, self._privacy).removesuffix(f" (rule: {rule})")[:1000],
            )
        )


def _told(error: CeError, privacy: str) -> str:
    """What others hear of an error: nothing about this site's files, its other jobs, or totals that they cannot see."""
    if isinstance(error, Refused) and error.rule == ONE_ROSTER:
        return "this site has contributed the same labels with other sites"
    if privacy == "blind" and (isinstance(error, BrokenTotals) or getattr(error, "rule", "") == "overlapping cells"):
        return "the totals cannot be used; the log of this site says why"
    if isinstance(error, InputError):
        return "the labels of this site cannot be used; its log says why"
    if isinstance(error, ConfigError):
        return "the configuration of this site cannot be used; its log says why"
    return str(error)


def _job_of(attempt: Attempt) -> Job:
    """The job as offered, which must be what the offer says it is."""
    try:
        job = Job.from_definition(attempt.definition)
    except (UnknownModel, BrokenModel) as error:
        raise Refused("models", str(error)) from error
    except ConfigError as error:
        raise MessageError("definition: not a job that this version knows") from error
    sites = set(job.sites)
    if job.on_dropout == "continue":
        sites &= set(attempt.roster)
    if job.name != attempt.job or tuple(sorted(sites)) != attempt.roster:
        raise MessageError("offer: its name or roster is not that of the job")
    return job
