"""What a site's daemon works with: its files, opened and checked when the daemon starts, or when a job needs them."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from ce.errors import ConfigError
from ce.identity.certificates import check_issuer, check_matches_key, check_validity, identity_of, read_certificate
from ce.identity.keys import PrivateKey, pem, read_key, read_secret
from ce.identity.names import Identity
from ce.identity.peers import Peers
from ce.labels import LabelTable
from ce.transport.tls import Credentials
from ce_client.config import PASSPHRASE_VARIABLE, ClientSettings, Labels
from ce_client.policy import Policy


@dataclass(frozen=True)
class Resources:
    """Keys are held, everything that an organisation may edit while the daemon runs is read anew for each job."""

    settings: ClientSettings
    key: PrivateKey = field(repr=False)
    certificate: x509.Certificate = field(repr=False)
    credentials: Credentials = field(repr=False)
    secret: bytes = field(repr=False)

    @classmethod
    def open(cls, settings: ClientSettings, now: datetime | None = None) -> Resources:
        """Raises ConfigError with what to do, for everything that would only fail later."""
        passphrase = os.environ.get(PASSPHRASE_VARIABLE)
        key = read_key(
            settings.key,
            None if passphrase is None else passphrase.encode(),
            hint=f"set {PASSPHRASE_VARIABLE}",
        )
        if not settings.certificate.exists():
            raise ConfigError(
                f"{settings.certificate}: there is no certificate yet: send {settings.name}.csr to the operator, who "
                "signs it (ce-coordinator sign), and put what comes back there, and ca.pem beside it"
            )
        certificate = read_certificate(settings.certificate)
        authority = read_certificate(settings.authority)
        check_matches_key(certificate, key)
        check_issuer(certificate, authority)
        check_validity(certificate, now or datetime.now(UTC), f"the certificate {settings.certificate}")
        identity = identity_of(certificate, str(settings.certificate))
        if identity != Identity("site", settings.name):
            raise ConfigError(f"{settings.certificate} is the certificate of {identity}, not of site {settings.name}")
        credentials = Credentials(
            pem(key), certificate.public_bytes(Encoding.PEM), authority.public_bytes(Encoding.PEM)
        )
        return cls(settings, key, certificate, credentials, read_secret(settings.secret))

    @property
    def certificate_der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    def peers(self) -> Peers:
        return Peers.read(self.settings.peers)

    def policy(self) -> Policy:
        return Policy.read(self.settings.policy)

    def labels(self) -> LabelTable:
        return read_labels(self.settings.labels)


def read_labels(how: Labels) -> LabelTable:
    """This site's labels, as the file is now."""
    return LabelTable.from_file(how.file, id=how.id, classifiers=how.classifiers, noise=how.noise)
