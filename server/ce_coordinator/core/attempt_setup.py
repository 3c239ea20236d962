"""The first half of an attempt, as in ce_client.attempt.setup: key shares, the encrypted job key, enrolments.

The coordinator checks and relays; it cannot decrypt what it relays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from cryptography import x509

from ce.errors import LimitReached, MessageError
from ce.identity.certificates import fingerprint
from ce.privacy.pair_keys import NONCE_SIZE, PUBLIC_KEY_SIZE
from ce.privacy.pseudonyms import SIZE as TOKEN_SIZE
from ce.protocol.attempt import Attempt
from ce.protocol.keys.handshake import KEY_SIZE, KeyShare, check_enrolment, check_key_share
from ce.protocol.topology.enrolment import ColumnClaim, Enrolment, EnrolmentSummary
from ce.protocol.topology.exclusions import ExclusionCount, JobExclusions
from ce.transport.array_chunks import Collector
from ce.transport.enrolment_codec import (
    PSEUDONYMS,
    check_sizes,
    read_claims,
    read_exclusions,
    read_pseudonyms,
    read_wishes,
)
from ce_coordinator.core.limits import Limits
from ce_proto.v1 import arrays_pb2
from ce_proto.v1 import site_pb2 as pb

_TAG_SIZE = 16
#: Bytes. A certificate that `sign` issues has some 500.
_LONGEST_CERTIFICATE = 4096

#: Frames for sites, by name.
Outgoing = list[tuple[str, pb.CoordinatorFrame]]


@dataclass
class _Arriving:
    """An enrolment whose pseudonyms are still on their way."""

    header: pb.Enrolment
    columns: tuple[ColumnClaim, ...]
    excluded: tuple[ExclusionCount, ...]
    collector: Collector


class AttemptSetup:
    """Which sites have shared a key and which have enrolled, and what is relayed to whom."""

    def __init__(self, attempt: Attempt, uses_votes: bool, limits: Limits) -> None:
        self.attempt = attempt
        self.enrolments: dict[str, Enrolment] = {}
        self.signed: dict[str, tuple[EnrolmentSummary, bytes]] = {}  # by site: what it has enrolled, with its signature
        self.revision = 0  # of the present introduction and alignment
        self.aligned = False  # the sites have been sent the alignment of this revision, and may enrol anew
        self.exclusions = JobExclusions()
        self.min_clusters: dict[str, int] = {}  # by site: smaller clusters are to be withheld from the operator
        self._uses_votes = uses_votes
        self._limits = limits
        self._shares: dict[str, KeyShare] = {}
        self._certificates: dict[str, x509.Certificate] = {}
        self._job_keys: dict[str, pb.EncryptedKey] | None = None
        self._arriving: dict[str, _Arriving] = {}
        self._objects: dict[str, int] = {}  # by site
        self._closed = False  # iterations have begun

    @property
    def awaited(self) -> set[str]:
        """The sites that have to send something before the setup can continue."""
        roster = set(self.attempt.roster)
        if len(self._shares) < len(roster):
            return roster - self._shares.keys()
        if self._job_keys is None:
            return {self.attempt.roster[0]}
        return roster - self.enrolments.keys()

    @property
    def complete(self) -> bool:
        return len(self.enrolments) == len(self.attempt.roster)

    def has_begun(self, site: str) -> bool:
        """Whether the site has made a key for this attempt; when it has lost that key, another attempt is needed."""
        return site in self._shares

    def is_enrolling(self, site: str) -> bool:
        """Whether some, not all, of the site's enrolment has arrived."""
        return site in self._arriving

    def objects(self, site: str) -> int:
        return self._objects.get(site, 0)

    def forget_objects(self) -> None:
        """Iterations begin: no site can leave out objects any more, and pseudonyms are not needed any more."""
        empty = Enrolment(np.empty(0, dtype=f"V{TOKEN_SIZE}"), ())
        self.enrolments = dict.fromkeys(self.enrolments, empty)
        self._closed = True

    def offer(self) -> pb.CoordinatorFrame:
        a = self.attempt
        return pb.CoordinatorFrame(offer=pb.Offer(job=a.job, epoch=a.epoch, definition=a.definition, roster=a.roster))

    def frames_after_reconnect(self, site: str) -> list[pb.CoordinatorFrame]:
        """What this site may have missed while it had no stream: the offer, the peers, its job key."""
        self._arriving.pop(site, None)
        if site not in self._shares:
            return [self.offer()]
        frames = []
        if len(self._shares) == len(self.attempt.roster) and site not in self.enrolments:
            frames.append(self._peers())
            if self._job_keys is not None and site in self._job_keys:
                frames.append(pb.CoordinatorFrame(encrypted_key=self._job_keys[site]))
        return frames

    def share_key(self, site: str, connection_fingerprint: str, message: pb.KeyShare) -> Outgoing:
        share = KeyShare(message.public_key, message.certificate, message.signature)
        if site in self._shares:
            if share != self._shares[site]:
                raise MessageError("key_share: differs from the one that was sent before in this epoch")
            return []
        # Every share is relayed to every site: one that no site can use, or that fills a frame, must not be.
        if len(share.public_key) != PUBLIC_KEY_SIZE or len(share.certificate) > _LONGEST_CERTIFICATE:
            raise MessageError(
                f"key_share: expected a public_key of {PUBLIC_KEY_SIZE} bytes and a certificate of at most "
                f"{_LONGEST_CERTIFICATE:,}, got {len(share.public_key):,} and {len(share.certificate):,}"
            )
        certificate = check_key_share(self.attempt, site, share)
        if fingerprint(certificate) != connection_fingerprint:
            raise MessageError("key_share: expected the certificate of this connection, got another")
        self._shares[site] = share
        self._certificates[site] = certificate
        if len(self._shares) < len(self.attempt.roster):
            return []
        peers = self._peers()
        return [(name, peers) for name in self.attempt.roster]

    def relay_keys(self, site: str, message: pb.EncryptedKeys) -> Outgoing:
        first, *others = self.attempt.roster
        if site != first or len(self._shares) < len(self.attempt.roster):
            raise MessageError("encrypted_keys: only from the first site by name, after all sites have shared a key")
        if sorted(key.site for key in message.keys) != others:
            raise MessageError("encrypted_keys: expected one for each other site")
        if any(len(k.nonce) != NONCE_SIZE or len(k.ciphertext) != KEY_SIZE + _TAG_SIZE for k in message.keys):
            raise MessageError(
                f"encrypted_keys: expected nonces of {NONCE_SIZE} bytes and ciphertexts of {KEY_SIZE + _TAG_SIZE} bytes"
            )
        if self._job_keys is not None:
            return []  # repeated after a broken stream
        a = self.attempt
        self._job_keys = {
            key.site: pb.EncryptedKey(
                job=a.job, epoch=a.epoch, site=key.site, nonce=key.nonce, ciphertext=key.ciphertext
            )
            for key in message.keys
        }
        return [(name, pb.CoordinatorFrame(encrypted_key=key)) for name, key in self._job_keys.items()]

    def receive_enrolment(self, site: str, kind: str, message: Any) -> bool:
        """An enrolment or more of it. True: it is complete, and does not repeat one that was accepted."""
        return self.enrol(site, message) if kind == "enrolment" else self.enrol_more(site, message.chunks)

    def enrol(self, site: str, message: pb.Enrolment) -> bool:
        """A site's enrolment, or its beginning. True: it is complete, and does not repeat one that was accepted."""
        if self._job_keys is None:
            raise MessageError("enrolment: comes before the job key")
        if not 0 < message.objects <= self._limits.objects_per_site:
            raise LimitReached(
                f"{site} enrols {message.objects:,} objects; this coordinator takes 1 to "
                f"{self._limits.objects_per_site:,} (limits.objects_per_site)"
            )
        if message.min_cluster > self._limits.largest_min_cluster:
            raise LimitReached(
                f"{site} asks to withhold clusters of fewer than {message.min_cluster:,} objects from the operator; "
                f"this coordinator withholds those of up to {self._limits.largest_min_cluster:,} "
                "(limits.largest_min_cluster): ask the site to lower min_cluster in its policy"
            )
        columns = self._columns(site, message.columns)
        check_sizes(message)
        read_wishes(message)
        collector = Collector(message.objects * TOKEN_SIZE + 1024)
        self._arriving[site] = _Arriving(message, columns, read_exclusions(message.excluded), collector)
        complete = self.enrol_more(site, message.chunks)
        # The pseudonyms are in the collector; of the frame only what was signed is needed further.
        message.ClearField("chunks")
        return complete

    def enrol_more(self, site: str, chunks: arrays_pb2.ArrayChunks) -> bool:
        """The next chunks of a site's enrolment. True: it is complete, and does not repeat one that was accepted."""
        arriving = self._arriving.get(site)
        if arriving is None:
            raise MessageError("more: no enrolment is under way")
        if not arriving.collector.feed(chunks):
            return False
        del self._arriving[site]
        known = self.signed.get(site)
        if known is not None and arriving.header.revision <= known[0].revision:
            return False  # repeated
        if list(arriving.collector.fraction_bits) != [PSEUDONYMS]:
            raise MessageError(f"enrolment: expected the one array {PSEUDONYMS}")
        objects = read_pseudonyms(arriving.collector.arrays[PSEUDONYMS], arriving.header.objects)
        enrolment = Enrolment(objects, arriving.columns)
        header = arriving.header
        summary = enrolment.summary(header.revision, header.pseudonym_salt, header.key_commitment, read_wishes(header))
        if header.pseudonym_digest != summary.pseudonym_digest:
            raise MessageError("pseudonym_digest: expected the digest of the salt and the pseudonyms")
        signature = header.signature
        check_enrolment(self.attempt, site, summary, signature, self._certificates[site])
        self._refuse_more(site, enrolment, summary)
        self.exclusions.enrolled(site, len(objects), len(enrolment.columns), arriving.excluded)
        self.enrolments[site], self.signed[site] = enrolment, (summary, signature)
        self._objects[site] = len(objects)
        self.min_clusters[site] = header.min_cluster
        return True

    def exclude(self, site: str, ready: pb.Ready) -> None:
        """What a site that is ready has left out, now that categories are agreed on."""
        summary, _ = self.signed[site]
        if ready.revision == self.revision:
            self.exclusions.ready(site, summary.objects, len(summary.columns), read_exclusions(ready.excluded))

    def _refuse_more(self, site: str, enrolment: Enrolment, summary: EnrolmentSummary) -> None:
        """A later enrolment leaves out objects or columns, adds none, and answers the present alignment."""
        if self._closed:
            raise MessageError("enrolment: the rounds have begun")
        former = self.enrolments.get(site)
        if former is not None and not self.aligned:
            raise MessageError("enrolment: expected a later one only in answer to an alignment or to counts")
        expected = 0 if former is None else self.revision + 1
        if summary.revision != expected:
            raise MessageError(f"revision: expected {expected}, got {summary.revision}")
        if former is None:
            return
        if summary.wishes != self.signed[site][0].wishes:
            raise MessageError("min_sites, min_objects: expected those of the first enrolment")
        names = {claim.name for claim in former.columns}
        smaller = len(enrolment.objects) + len(enrolment.columns) < len(former.objects) + len(former.columns)
        added = not np.isin(enrolment.objects, former.objects).all() or any(
            claim.name not in names for claim in enrolment.columns
        )
        if added or not smaller:
            raise MessageError("enrolment: a later one leaves out objects or columns, and adds none")

    def _columns(self, site: str, claims: Sequence[pb.ColumnClaim]) -> tuple[ColumnClaim, ...]:
        if len(claims) > self._limits.columns_per_site:
            raise LimitReached(f"{site} enrols more columns than limits.columns_per_site")
        if any(claim.category_count > self._limits.categories_per_column for claim in claims):
            raise LimitReached(f"a column of {site} has more categories than limits.categories_per_column")
        columns = read_claims(claims)
        if any(claim.kind == "classifier" for claim in columns) and not self._uses_votes:
            raise MessageError("columns: a classifier in a model without classes")
        return columns

    def _peers(self) -> pb.CoordinatorFrame:
        peers = [
            pb.Peer(site=name, public_key=s.public_key, certificate=s.certificate, signature=s.signature)
            for name, s in ((name, self._shares[name]) for name in self.attempt.roster)
        ]
        return pb.CoordinatorFrame(peers=pb.Peers(job=self.attempt.job, epoch=self.attempt.epoch, peers=peers))
