"""How the sites of a job come to share a key that the coordinator, which relays their messages, does not have.

    each site        an ephemeral key, signed with the key of its certificate: a key share
    every site       checks every peer's certificate against its own pins, and every signature
    the first site   by name makes the job key and seals it for each other site under their pair key
    each site        signs what it enrols, with a commitment to the job key: sites with different keys notice it

Everything that is signed or encrypted is bound to job, epoch and roster, so that nothing can be replayed elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from cryptography import x509

from ce.errors import ConfigError, MessageError, Refused
from ce.identity.certificates import identity_of, parse_certificate, sign, verify
from ce.identity.keys import PrivateKey
from ce.identity.names import Identity
from ce.identity.peers import Peers
from ce.privacy.derivation import derive, joined
from ce.privacy.pair_keys import EncryptedBox, EphemeralKey, check_public_key, decrypt, encrypt
from ce.protocol.attempt import Attempt
from ce.protocol.topology.enrolment import EnrolmentSummary

KEY_SIZE = 32
#: The rule that sites with different job keys break.
ONE_JOB_KEY = "one job key"
_KEY_SHARE, _ENROLMENT, _JOB_KEY = "ce key share 1", "ce enrolment 3", b"ce job key 1"


@dataclass(frozen=True)
class KeyShare:
    """A site's ephemeral public key, its certificate (DER), and its signature over both and the attempt."""

    public_key: bytes
    certificate: bytes = field(repr=False)
    signature: bytes = field(repr=False)


def sign_key_share(
    attempt: Attempt, site: str, ephemeral: EphemeralKey, key: PrivateKey, certificate: bytes
) -> KeyShare:
    """What a site shows to its peers."""
    message = joined(*attempt.context, site.encode(), ephemeral.public)
    return KeyShare(ephemeral.public, certificate, sign(key, message, purpose=_KEY_SHARE))


def check_key_share(attempt: Attempt, site: str, share: KeyShare) -> x509.Certificate:
    """That the share is `site`'s own, for this attempt, and that its key can be used.

    Whether to trust its certificate is another question.
    """
    certificate = _certificate(share.certificate, site)
    message = joined(*attempt.context, site.encode(), share.public_key)
    verify(certificate, share.signature, message, purpose=_KEY_SHARE, field=f"key share of {site}")
    check_public_key(share.public_key, f"key share of {site}")
    return certificate


def key_commitment(attempt: Attempt, job_key: bytes) -> bytes:
    """32 bytes that are equal at all sites that have the same job key, and do not tell it.

    Bound to job and roster, not to the epoch: later attempts have the same enrolments, so that checkpoints fit.
    """
    return derive(job_key, b"ce key commitment 1", attempt.job_digest, joined(*(s.encode() for s in attempt.roster)))


def refuse_different_keys(attempt: Attempt, summaries: Mapping[str, EnrolmentSummary]) -> None:
    """Raises Refused, naming the site that made the key, unless all sites have committed to the same job key."""
    first = attempt.roster[0]
    others = [site for site in summaries if summaries[site].key_commitment != summaries[first].key_commitment]
    if others:
        raise Refused(
            ONE_JOB_KEY,
            f"{', '.join(others)} and {first} have different job keys, and {first} made the key: its software gave the "
            "sites different ones, or is not the same version",
        )


class Handshake:
    """One site's part, in one attempt at a job."""

    def __init__(self, attempt: Attempt, site: str, key: PrivateKey, certificate: bytes, pins: Peers) -> None:
        if site not in attempt.roster:
            raise MessageError("roster: this site is not in it")
        self._attempt = attempt
        self._site = site
        self._pins = pins
        self._ephemeral = EphemeralKey()
        self.share = sign_key_share(attempt, site, self._ephemeral, key, certificate)
        self._pair_keys: dict[str, bytes] = {}
        self._certificates: dict[str, x509.Certificate] = {}

    @property
    def pair_keys(self) -> Mapping[str, bytes]:
        """The key that this site shares with each other; only after `meet`."""
        return self._pair_keys

    @property
    def leads(self) -> bool:
        """Whether this site makes the job key."""
        return self._attempt.roster[0] == self._site

    def meet(self, shares: Mapping[str, KeyShare]) -> None:
        """Check everybody. Raises Refused when a peer is not the one that this site has pinned."""
        if tuple(shares) != self._attempt.roster:
            raise MessageError("peers: not those of the roster, in its order")
        if shares[self._site].public_key != self._ephemeral.public:
            raise MessageError("peers: another key share than this site's stands under its name")
        pair_keys: dict[str, bytes] = {}
        certificates: dict[str, x509.Certificate] = {}
        for peer, share in shares.items():
            if peer == self._site:
                continue
            certificate = certificates[peer] = check_key_share(self._attempt, peer, share)
            self._pins.check(peer, certificate)
            names = sorted((self._site, peer))
            pair_keys[peer] = self._ephemeral.pair_key(
                share.public_key, *self._attempt.context, *(name.encode() for name in names)
            )
        # All or none: nothing is encrypted for some of the peers when another was refused.
        self._pair_keys, self._certificates = pair_keys, certificates

    def check_enrolments(
        self, mine: EnrolmentSummary, shown: Mapping[str, tuple[EnrolmentSummary, bytes]]
    ) -> dict[str, EnrolmentSummary]:
        """That every site itself has enrolled what is shown of it, with its signature, for this attempt, and that all
        have the same job key."""
        if tuple(shown) != self._attempt.roster:
            raise MessageError("enrolments: not those of the roster, in its order")
        for site, (summary, signature) in shown.items():
            if site == self._site:
                if summary != mine:
                    raise MessageError("enrolments: another one than this site's stands under its name")
                continue
            try:
                check_enrolment(self._attempt, site, summary, signature, self._certificates[site])
            except MessageError as error:
                # The coordinator has checked it before: it has passed on something else.
                raise MessageError(f"{error}: the coordinator has changed it, or has not checked it") from error
        summaries = {site: summary for site, (summary, _) in shown.items()}
        refuse_different_keys(self._attempt, summaries)
        return summaries

    def encrypt_for_all(self, job_key: bytes) -> dict[str, EncryptedBox]:
        """The job key for every other site; only after `meet`."""
        return {
            peer: encrypt(key, job_key, _JOB_KEY, *self._attempt.context, self._site.encode(), peer.encode())
            for peer, key in self._pair_keys.items()
        }

    def decrypt_from_first(self, box: EncryptedBox) -> bytes:
        """The job key that the first site encrypted for this one; only after `meet`."""
        first = self._attempt.roster[0]
        if first not in self._pair_keys:
            raise MessageError("encrypted_key: comes before the peers are known")
        context = (_JOB_KEY, *self._attempt.context, first.encode(), self._site.encode())
        job_key = decrypt(self._pair_keys[first], box, *context, sender=first)
        if len(job_key) != KEY_SIZE:
            raise MessageError(f"encrypted_key: expected a key of 32 bytes from {first}, got {len(job_key):,}")
        return job_key


def sign_enrolment(attempt: Attempt, site: str, summary: EnrolmentSummary, key: PrivateKey) -> bytes:
    return sign(key, _enrolment_message(attempt, site, summary), purpose=_ENROLMENT)


def check_enrolment(
    attempt: Attempt, site: str, summary: EnrolmentSummary, signature: bytes, certificate: x509.Certificate
) -> None:
    """That the site itself enrolled exactly this, for this attempt."""
    message = _enrolment_message(attempt, site, summary)
    verify(certificate, signature, message, purpose=_ENROLMENT, field=f"enrolment of {site}")


def _enrolment_message(attempt: Attempt, site: str, summary: EnrolmentSummary) -> bytes:
    return joined(*attempt.context, site.encode(), summary.signed_bytes())


def _certificate(der: bytes, site: str) -> x509.Certificate:
    try:
        certificate = parse_certificate(der)
        identity = identity_of(certificate)
    except ConfigError as error:
        raise MessageError(f"certificate of {site}: not a certificate with a ce:// name") from error
    if identity != Identity("site", site):
        raise Refused("peer with another name", f"the certificate shown for {site} is that of {identity}")
    return certificate
