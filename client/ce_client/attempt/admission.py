"""The second phase of an attempt: what this site enrols, and whether the alignment that results may be used.

The site enrols its objects and columns. The coordinator introduces the sites, and they write to each other: which
objects they have in common, which categories take part. Then it sends an alignment, which the site checks against that
and against its policy. What is below a minimum is excluded, and the site enrols again without it; that may happen
several times, and also after the counts of the first round. When no rule is broken, and consent is given if the policy
requires it, the phase ends with an `Admitted`. No count or sum over labels leaves before that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from ce.cancellation import check_cancelled
from ce.errors import MessageError, Refused
from ce.job import Job
from ce.labels import LabelTable
from ce.pair_tables import MOST_CLUSTERS
from ce.privacy.derivation import joined
from ce.privacy.set_intersection import BlindedItems
from ce.protocol.attempt import MOST_REVISIONS
from ce.protocol.messages.task import Array
from ce.protocol.minimums import Exclusion, Findings, SiteMinimums, exclusion_counts
from ce.protocol.modes.mask_context import object_digests
from ce.protocol.topology.enrolment import EnrolmentSummary, by_pseudonym, enrolment_digest, with_private_objects
from ce.protocol.topology.exclusions import ExclusionCount
from ce.protocol.topology.site_view import SiteView
from ce.protocol.topology.topology import Rows
from ce.ring import Reals
from ce.sealed_capacity import tournament_memory
from ce.steps.model import Model, fits_the_ring
from ce.transport.alignment_codec import read_alignment
from ce_client.attempt.check_alignment import check_overlaps, checked_rows, checked_view, private_objects
from ce_client.attempt.enrolment import SiteEnrolment
from ce_client.attempt.introduction import Introduction
from ce_client.attempt.preview import preview
from ce_client.attempt.recorder import AttemptRecorder
from ce_client.attempt.sealed_release import SealedRelease, sealed_release
from ce_client.attempt.setup import PreparedAttempt
from ce_client.config import Labels
from ce_client.daemon.site_files import SiteFiles
from ce_client.state.consents import Consents
from ce_client.state.disclosures import Disclosure, definition_key, disclosure_of, refuse
from ce_client.state.previews import Previews
from ce_proto.v1 import site_pb2 as pb


@dataclass(frozen=True)
class CheckedAlignment:
    """An alignment, and what was found when it was checked against this site's rules."""

    view: SiteView
    rows: dict[int, Rows] = field(repr=False)
    findings: Findings
    enrolment_digest: bytes
    checkpoint_context: bytes  # digest of everything that a checkpoint of this job depends on
    labels: LabelTable = field(repr=False)  # that take part, in order of pseudonyms
    excluded: tuple[Exclusion, ...]  # what takes no part, and why
    minimums: SiteMinimums = field(repr=False)
    summaries: Mapping[str, EnrolmentSummary] = field(repr=False)  # what all sites have enrolled

    def check_counts(self, counts: Mapping[int, Mapping[str, Reals]]) -> None:
        """Check the counts of each block's labels, the only totals so far.

        Raises TooFewLabels if there are objects whose labels too few others would hide.
        """
        findings = self.minimums.check_counts(counts)
        if not findings.clean:
            raise TooFewLabels(findings)


class TooFewLabels(Exception):
    """Objects have to be excluded because too few labels of others would hide this site's. Not an error."""

    def __init__(self, findings: Findings) -> None:
        super().__init__("objects have to be excluded")
        self.findings = findings


@dataclass(frozen=True)
class Admitted:
    """What the second phase hands to the third: an alignment that breaks no rule and may be used."""

    prepared: PreparedAttempt
    enrolled: SiteEnrolment
    alignment: CheckedAlignment
    release: SealedRelease | None = None  # of a sealed job


class Admission:
    """Enrolments, alignments and consent of one attempt."""

    def __init__(self, prepared: PreparedAttempt, site_files: SiteFiles, recorder: AttemptRecorder) -> None:
        self.waits_for_consent = False
        self.revision = -1  # of the last alignment that was checked; -1: none
        self._prepared = prepared
        self._site_files = site_files
        self._recorder = recorder
        self._checked: CheckedAlignment | None = None
        offered, key = prepared.offered, prepared.job_key
        labels = by_pseudonym(prepared.labels, key)
        self._minimums = SiteMinimums(
            offered.policy,
            offered.job.privacy,
            self._site,
            labels,
            linear=offered.model is not None and offered.model.linear,
            exact=offered.exact,
            job_key=key,
        )
        self._blinded = BlindedItems(key, pause=check_cancelled)
        self._introduction: Introduction | None = None
        self._enrolled = self._enrol(revision=0)

    @property
    def has_excluded(self) -> bool:
        """True if the last alignment was answered by another enrolment."""
        return self._enrolled.summary.revision > self.revision >= 0

    def enrolment_frames(self) -> Iterator[pb.SiteFrame]:
        """The frames of the current enrolment."""
        return self._enrolled.frames(self._prepared, self._site_files, self.exclusion_counts)

    @property
    def exclusion_counts(self) -> tuple[ExclusionCount, ...]:
        """What this site has left out so far, in numbers, as others may know it: of a sealed job no count of labels."""
        counts = exclusion_counts(self._minimums.excluded)
        if self._prepared.offered.job.sealed:
            counts = tuple(replace(one, labels=0) for one in counts if one.objects or one.columns)
        return counts

    def introduce(self, message: pb.Introduction, *, begun: bool) -> Iterator[pb.SiteFrame]:
        """What all sites have enrolled: answered by letters to them.

        `begun`: this site has answered more than counts, and accepts no other introduction.
        """
        known = self._introduction
        if known is not None and message.revision < known.revision:
            raise MessageError(f"introduction: an older one than of revision {known.revision}")
        if known is not None and message.revision == known.revision:
            known.refuse_another(message)
            return known.first_letters(self._blinded)
        if begun:
            raise MessageError("introduction: comes after the sites have begun")
        if message.revision > MOST_REVISIONS:
            raise MessageError(f"introduction: expected a revision of at most {MOST_REVISIONS}, got {message.revision}")
        introduced = Introduction(message, self._prepared, self._site, self._enrolled, self._recorder)
        if known is not None:
            introduced.refuse_other_wishes(known)
        # What was checked before is of an older alignment.
        self._checked, self.waits_for_consent = None, False
        self._recorder.use_of_draws(self._prepared.labels)
        frames = introduced.first_letters(self._blinded)
        self._introduction = introduced
        return frames

    def take_letters(self, message: pb.Letters, arrays: dict[str, Array]) -> Iterator[pb.SiteFrame]:
        """What the other sites have written."""
        if self._introduction is None or message.revision != self._introduction.revision:
            raise MessageError("letters: expected those of the last introduction")
        return self._introduction.take_letters(message.stage, arrays)

    def is_answered(self, message: pb.Alignment) -> bool:
        """True for an alignment that is sent again, after a broken stream. Raises MessageError for an older one."""
        if message.revision < self.revision:
            raise MessageError("alignment: an older one than this site has answered")
        return message.revision == self.revision

    def check(self, message: pb.Alignment, arrays: dict[str, Array]) -> CheckedAlignment:
        """Check a new alignment: after the letters of its revision, and before any round of it."""
        offered, enrolled, introduced = self._prepared.offered, self._enrolled, self._introduction
        header = read_alignment(message)
        if introduced is None or not introduced.complete or header.revision != introduced.revision:
            raise MessageError("alignment: expected after the letters of its revision")
        summaries = introduced.summaries
        sealed = offered.job.sealed
        view = checked_view(header, self._site, enrolled.enrolment, summaries, introduced.vocabularies, sealed=sealed)
        rows = checked_rows(arrays, view, len(enrolled.enrolment.objects), sealed=sealed)
        check_overlaps(introduced.overlaps, view, rows)
        if offered.model is not None and not fits_the_ring(offered.model, view.sizes):
            raise MessageError("alignment: sizes of a job whose sums do not fit in 64 bits")
        most = self._site_files.settings.largest_state
        refuse_too_large(offered.model, view, enrolled.labels.n_objects, most, offered.job)
        private = private_objects(header, summaries, self._site, view)
        findings = self._minimums.check(view, with_private_objects(summaries, private), rows)
        digest = enrolment_digest(summaries, private)
        digests = object_digests(enrolled.enrolment.objects, rows)
        blocks = [
            joined(*(m.encode() for m in view.blocks[b].members), hashed) for b, hashed in sorted(digests.items())
        ]
        blocks += [
            joined(column.name.encode(), *(str(token).encode() for token in column.categories))
            for column in view.clusterings
            if column.shared
        ]
        self._recorder.alignment(header.revision, digest, *blocks)
        context = hashlib.sha256(joined(offered.attempt.job_digest, offered.labels_digest, digest, *blocks)).digest()
        self.revision = header.revision
        self._checked = CheckedAlignment(
            view,
            rows,
            findings,
            digest,
            context,
            self._minimums.participating,
            self._minimums.excluded,
            self._minimums,
            summaries,
        )
        return self._checked

    def exclude(self, findings: Findings) -> Iterator[pb.SiteFrame]:
        """Enrol again without what is below a minimum. Raises Refused if policy or rule do not allow that."""
        self.waits_for_consent = False
        self._checked = None
        self._minimums.leave_out(findings)
        self._enrolled = self._enrol(self.revision + 1)
        return self.enrolment_frames()

    def admit(self) -> Admitted | None:
        """No rule is broken: begin, or wait for consent if the policy requires it (None).

        Writes the preview. Raises Refused if the job was declined, or if it opens totals of objects once more than the
        policy allows.
        """
        assert self._checked is not None
        attempt, policy = self._prepared.offered.attempt, self._prepared.offered.policy
        state = self._site_files.settings.state
        decision: str | None = "approved"
        if policy.consent == "ask":
            decision = Consents(state).decision(attempt.job, attempt.job_digest, attempt.roster)
        self.waits_for_consent = decision is None
        offered, release = self._prepared.offered, self._release(self._checked)
        disclosure = None if release else self._disclosure(self._checked)
        budget = None if disclosure is None else self._recorder.budget(disclosure)
        Previews(state).write(
            preview(
                offered,
                self._checked.view,
                self._checked.findings,
                self._checked.excluded,
                self._recorder.epsilon(self._prepared.labels),
                budget if release is None else release,
                self.waits_for_consent,
            )
        )
        if decision is None:
            return None
        if decision == "declined":
            raise Refused("consent", "this site has declined the job")
        if release is not None:
            release.refuse()
        if budget is not None:
            refuse(budget, attempt.job)
        if offered.subtractable:
            self._recorder.use_of_labels()
        if disclosure is not None:
            self._recorder.disclosure(disclosure)
        return Admitted(self._prepared, self._enrolled, self._checked, release)

    def _release(self, checked: CheckedAlignment) -> SealedRelease | None:
        """What a sealed job opens; None for another job."""
        if not self._prepared.offered.job.sealed:
            return None
        return sealed_release(
            self._prepared, checked.view, checked.rows, checked.labels, self._site_files, self._recorder
        )

    def _disclosure(self, checked: CheckedAlignment) -> Disclosure:
        """The totals that this job opens: those of the objects of shared blocks.

        The definition's name follows from everything here that its totals follow from.
        """
        offered, policy = self._prepared.offered, self._prepared.offered.policy
        # Keys at their defaults have no part in the name, so that a key of a later version changes no name.
        usual = vars(Labels())
        read_as = {key: value for key, value in vars(self._site_files.settings.labels).items() if value != usual[key]}
        for key in ("file", "categories"):
            read_as.pop(key, None)
        # Declared categories decide nothing but what randomised labels are drawn from.
        declared = repr(sorted(offered.randomisation.categories.items())).encode() if policy.randomise else b""
        definition = definition_key(
            offered.job.disclosure_digest,
            joined(*(site.encode() for site in offered.attempt.roster)),
            offered.labels_digest,
            repr(sorted(read_as.items())).encode(),
            repr((policy.randomise, policy.randomise_columns)).encode() + declared,
            self._prepared.job_key,
        )
        shared = [checked.rows[index] for index, block in checked.view.blocks.items() if block.shared]
        rows = np.concatenate([np.zeros(0, dtype=np.intp), *shared])
        return disclosure_of(definition, offered.job.privacy, self._site_files.secret, self._enrolled.labels.ids[rows])

    @property
    def _site(self) -> str:
        return self._site_files.settings.name

    def _enrol(self, revision: int) -> SiteEnrolment:
        """An enrolment of the labels that are left, recorded."""
        minimums = self._minimums
        made = SiteEnrolment.of(self._prepared, self._site_files, minimums.table, minimums.wishes, revision)
        self._recorder.enrolment(made.enrolment, self._prepared.labels)
        return made


def refuse_too_large(model: Model | None, view: SiteView, objects: int, most: int, job: Job) -> None:
    """Raises Refused if the job needs more than `most` bytes here.

    That is checked before any memory is allocated: a system may promise memory that it does not have, and then end the
    daemon.
    """
    needed: float
    if model is None:  # sealed: masked rows of all members, and the tables; later all comparisons of a level
        categories = view.sizes.categories
        clusters = MOST_CLUSTERS if job.clusters == "auto" else int(job.clusters or 0)
        shared = ((len(block.members), block.size) for block in view.blocks.values() if block.shared)
        needed = max(4 * objects * categories + 16 * categories**2, tournament_memory(shared, clusters))
        less = "objects, categories or clusters"
    else:
        numbers = objects + sum(len(column.categories) for column in view.columns)
        needed, less = 8 * model.n_starts * model.k * numbers, "restarts or clusters"
    if needed > most:
        raise Refused(
            "largest_state",
            f"the job would take {needed / 1e9:,.1f} GB of memory or more here, and this site gives it "
            f"{most / 1e9:,.1f} GB: fewer {less} need less",
        )
