"""What this site has enrolled in an attempt: made from the labels that take part, salted and signed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from ce.labels import LabelTable
from ce.privacy.derivation import derive
from ce.protocol.keys.handshake import key_commitment, sign_enrolment
from ce.protocol.topology.enrolment import Enrolment, EnrolmentSummary, enrol
from ce.protocol.topology.exclusions import ExclusionCount
from ce.protocol.topology.vocabularies import Wishes
from ce.transport.array_chunks import chunk_of
from ce.transport.enrolment_codec import SALT_SIZE, enrolment_frames, enrolment_header
from ce_client.attempt.setup import PreparedAttempt
from ce_client.daemon.site_files import SiteFiles
from ce_proto.v1 import site_pb2 as pb


@dataclass(frozen=True)
class SiteEnrolment:
    """What this site has enrolled."""

    labels: LabelTable = field(repr=False)  # of the objects and columns that are enrolled, in order of pseudonyms
    enrolment: Enrolment = field(repr=False)
    summary: EnrolmentSummary
    salt: bytes = field(repr=False)

    @classmethod
    def of(
        cls, prepared: PreparedAttempt, site_files: SiteFiles, labels: LabelTable, wishes: Wishes, revision: int
    ) -> SiteEnrolment:
        """`labels`: in the order of their pseudonyms. In the order of the label file, objects of two jobs could be
        matched."""
        attempt, job_key = prepared.offered.attempt, prepared.job_key
        least = wishes.min_objects if prepared.offered.job.sealed else None
        made = enrol(labels, prepared.offered.uses_votes, job_key, least=least)
        # Unknown to all other sites, and the same in every attempt at a job: so are alignments and checkpoints.
        salt = derive(site_files.secret, b"ce salt of pseudonyms", attempt.job_digest)[:SALT_SIZE]
        summary = made.summary(revision, salt, key_commitment(attempt, job_key), wishes)
        return cls(labels, made, summary, salt)

    def frames(
        self, prepared: PreparedAttempt, site_files: SiteFiles, excluded: Iterable[ExclusionCount]
    ) -> Iterator[pb.SiteFrame]:
        """As it is sent; `excluded`: what it lacks, in numbers."""
        attempt, least = prepared.offered.attempt, prepared.offered.policy.min_cluster
        signature = sign_enrolment(attempt, site_files.settings.name, self.summary, site_files.key)
        header = enrolment_header(attempt, self.enrolment, self.summary, self.salt, signature, least, excluded)
        return enrolment_frames(header, self.enrolment, chunk_of(len(attempt.roster)))
