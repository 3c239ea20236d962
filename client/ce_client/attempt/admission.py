"""The second phase of an attempt: what this site enrols, and whether the alignment that results may be used.

The site enrols its objects and columns. The coordinator sends an alignment: which of them other sites hold too. The
site checks it against its policy. What is below a minimum is excluded, and the site enrols again without it; that may
happen several times, and also after the counts of the first round. When no rule is broken, and consent is given if the
policy requires it, the phase ends with an `Admitted`. Nothing that was computed from labels leaves before that.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import numpy as np

from ce.errors import MessageError, Refused
from ce.labels import LabelTable
from ce.labels.randomised import epsilons
from ce.privacy.derivation import joined
from ce.protocol.keys.handshake import sign_enrolment
from ce.protocol.messages.task import Array
from ce.protocol.minimums import Exclusion, Findings, SiteMinimums, exclusion_counts
from ce.protocol.modes.mask_context import object_digests
from ce.protocol.topology.enrolment import (
    Enrolment,
    EnrolmentSummary,
    by_pseudonym,
    enrol,
    enrolment_digest,
    with_private_objects,
)
from ce.protocol.topology.site_view import SiteView
from ce.protocol.topology.topology import Rows
from ce.ring import Reals
from ce.steps.model import Model, fits_the_ring
from ce.transport.alignment_codec import read_alignment
from ce.transport.enrolment_codec import enrolment_frames, enrolment_header
from ce_client.attempt.check_alignment import checked_rows, checked_view, private_objects
from ce_client.attempt.preview import preview
from ce_client.attempt.recorder import AttemptRecorder
from ce_client.attempt.setup import PreparedAttempt
from ce_client.config import Labels
from ce_client.daemon.site_files import SiteFiles
from ce_client.state.consents import Consents
from ce_client.state.disclosures import Disclosure, definition_key, disclosure_of, refuse
from ce_client.state.previews import Previews
from ce_proto.v1 import site_pb2 as pb


@dataclass(frozen=True)
class SiteEnrolment:
    """What this site has enrolled."""

    labels: LabelTable = field(repr=False)  # of the objects and columns that take part, in order of pseudonyms
    enrolment: Enrolment = field(repr=False)
    summary: EnrolmentSummary
    excluded: tuple[Exclusion, ...]  # what it has left out, and why


@dataclass(frozen=True)
class CheckedAlignment:
    """An alignment, and what was found when it was checked against this site's rules."""

    view: SiteView
    rows: dict[int, Rows] = field(repr=False)
    findings: Findings
    enrolment_digest: bytes
    checkpoint_context: bytes  # digest of everything that a checkpoint of this job depends on
    minimums: SiteMinimums = field(repr=False)

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


class Admission:
    """Enrolments, alignments and consent of one attempt."""

    def __init__(self, prepared: PreparedAttempt, site_files: SiteFiles, recorder: AttemptRecorder) -> None:
        self.waits_for_consent = False
        self.revision = -1  # of the last alignment that was checked; -1: none
        self._prepared = prepared
        self._site_files = site_files
        self._recorder = recorder
        self._checked: CheckedAlignment | None = None
        offered = prepared.offered
        labels = by_pseudonym(prepared.labels, prepared.job_key)
        self._minimums = SiteMinimums(
            offered.policy, offered.job.privacy, self._site, labels, linear=offered.model.linear
        )
        self._enrolled = self._enrol(revision=0)

    @property
    def has_excluded(self) -> bool:
        """True if the last alignment was answered by another enrolment."""
        return self._enrolled.summary.revision > self.revision >= 0

    def enrolment_frames(self) -> Iterator[pb.SiteFrame]:
        """The frames of the current enrolment."""
        attempt, site_enrolment = self._prepared.offered.attempt, self._enrolled
        signature = sign_enrolment(attempt, self._site, site_enrolment.summary, self._site_files.key)
        least = self._prepared.offered.policy.min_cluster
        excluded = exclusion_counts(site_enrolment.excluded)
        header = enrolment_header(attempt, site_enrolment.enrolment, site_enrolment.summary, signature, least, excluded)
        return enrolment_frames(header, site_enrolment.enrolment)

    def is_answered(self, message: pb.Alignment) -> bool:
        """True for an alignment that is sent again, after a broken stream. Raises MessageError for an older one."""
        if message.revision < self.revision:
            raise MessageError("alignment: an older one than this site has answered")
        return message.revision == self.revision

    def check(self, message: pb.Alignment, arrays: dict[str, Array], *, begun: bool) -> CheckedAlignment:
        """Check a new alignment. `begun`: this site has answered more than counts, and accepts no other alignment."""
        offered, enrolled = self._prepared.offered, self._enrolled
        header = read_alignment(message)
        summaries = self._prepared.handshake.check_enrolments(enrolled.summary, header.enrolments)
        last = max(summary.revision for summary in summaries.values())
        if header.revision != last:
            # So that another alignment always means another enrolment, and with it other masks.
            raise MessageError(
                f"alignment: expected revision {last}, that of the last enrolment, got {header.revision}"
            )
        if begun:
            raise MessageError("alignment: comes after the sites have begun")
        view = checked_view(header, self._site, enrolled.enrolment, summaries)
        rows = checked_rows(arrays, view, len(enrolled.enrolment.objects))
        if not fits_the_ring(offered.model, view.sizes):
            raise MessageError("alignment: sizes of a job whose sums do not fit in 64 bits")
        refuse_too_large(offered.model, view, enrolled.labels.n_objects, self._site_files.settings.largest_state)
        private = private_objects(summaries, self._site, view)
        findings = self._minimums.check(view, with_private_objects(summaries, private), rows)
        digest = enrolment_digest(summaries, private)
        digests = object_digests(enrolled.enrolment.objects, rows)
        blocks = [
            joined(*(m.encode() for m in view.blocks[b].members), hashed) for b, hashed in sorted(digests.items())
        ]
        self._recorder.alignment(header.revision, digest, *blocks)
        context = hashlib.sha256(joined(offered.attempt.job_digest, offered.labels_digest, digest, *blocks)).digest()
        self.revision = header.revision
        self._checked = CheckedAlignment(view, rows, findings, digest, context, self._minimums)
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
        disclosure = self._disclosure(self._checked)
        budget = self._recorder.budget(disclosure)
        Previews(state).write(
            preview(
                self._prepared.offered,
                self._checked.view,
                self._checked.findings,
                self._enrolled.excluded,
                epsilons(self._prepared.labels, policy.randomise),
                budget,
                self.waits_for_consent,
            )
        )
        if decision is None:
            return None
        if decision == "declined":
            raise Refused("consent", "this site has declined the job")
        refuse(budget, attempt.job)
        self._recorder.use_of_labels()
        self._recorder.disclosure(disclosure)
        return Admitted(self._prepared, self._enrolled, self._checked)

    def _disclosure(self, checked: CheckedAlignment) -> Disclosure:
        """The totals that this job opens: those of the objects of shared blocks.

        The definition's name follows from everything here that its totals follow from.
        """
        offered, policy = self._prepared.offered, self._prepared.offered.policy
        # Keys at their defaults have no part in the name, so that a key of a later version changes no name.
        usual = vars(Labels())
        read_as = {key: value for key, value in vars(self._site_files.settings.labels).items() if value != usual[key]}
        read_as.pop("file", None)
        definition = definition_key(
            offered.job.disclosure_digest,
            offered.labels_digest,
            repr(sorted(read_as.items())).encode(),
            repr((policy.randomise, policy.randomise_columns)).encode(),
            self._prepared.job_key,
        )
        shared = [checked.rows[index] for index, block in checked.view.blocks.items() if block.shared]
        rows = np.concatenate([np.zeros(0, dtype=np.intp), *shared])
        return disclosure_of(definition, offered.job.privacy, self._site_files.secret, self._enrolled.labels.ids[rows])

    @property
    def _site(self) -> str:
        return self._site_files.settings.name

    def _enrol(self, revision: int) -> SiteEnrolment:
        """An enrolment of the labels that take part, recorded. Objects are in the order of their pseudonyms.

        In the order of the label file, objects of two jobs could be matched.
        """
        labels, key = self._minimums.table, self._prepared.job_key
        made = enrol(labels, self._prepared.offered.model.uses_votes, key)
        self._recorder.enrolment(made, self._prepared.labels)
        return SiteEnrolment(labels, made, made.summary(revision), self._minimums.excluded)


def refuse_too_large(model: Model, view: SiteView, objects: int, most: int) -> None:
    """Raises Refused if the job needs more than `most` bytes here.

    That is checked before any memory is allocated: a system may promise memory that it does not have, and then end the
    daemon.
    """
    numbers = objects + sum(len(column.categories) for column in view.columns)
    needed = 8 * model.n_starts * model.k * numbers
    if needed > most:
        raise Refused(
            "largest_state",
            f"the job would take {needed / 1e9:,.1f} GB of memory or more here, and this site gives it "
            f"{most / 1e9:,.1f} GB: fewer restarts or clusters need less",
        )
