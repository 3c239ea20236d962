"""The files that a site's daemon reads: keys when it starts, labels, policy and peers anew for each job."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from ce.errors import ConfigError
from ce.identity.certificates import read_certificate
from ce.identity.credentials import Credentials
from ce.identity.keys import PrivateKey, read_secret
from ce.identity.peers import Peers
from ce.labels import LabelTable
from ce.labels.declared import check_labels
from ce.policy import Policy
from ce.privacy.derivation import derive
from ce.service.checkpoints import CheckpointFiles
from ce.transport.tls import TlsCredentials
from ce_client.config import PASSPHRASE_VARIABLE, ClientSettings, Labels

#: The directory of checkpoints, below the state directory.
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class SiteFiles:
    """A site's keys, and access to the files that its people may edit while the daemon runs."""

    settings: ClientSettings
    key: PrivateKey = field(repr=False)
    certificate: x509.Certificate = field(repr=False)
    credentials: TlsCredentials = field(repr=False)
    secret: bytes = field(repr=False)

    @classmethod
    def open(cls, settings: ClientSettings, now: datetime | None = None) -> SiteFiles:
        """Read keys, certificates and secret. Raises ConfigError, which says what to do, if one cannot be used."""
        credentials = Credentials.open(
            settings.key,
            settings.certificate,
            settings.authority,
            role="site",
            passphrase_variable=PASSPHRASE_VARIABLE,
            now=now,
            without_certificate=(
                f"there is no certificate yet: send {settings.name}.csr to the operator, who signs it "
                "(ce-coordinator sign); save the certificate that comes back there, and ca.pem beside it"
            ),
        )
        if credentials.identity.name != settings.name:
            raise ConfigError(
                f"{settings.certificate} is the certificate of {credentials.identity}, not of site {settings.name}"
            )
        secret = read_secret(settings.secret)
        return cls(settings, credentials.key, credentials.certificate, TlsCredentials.of(credentials), secret)

    @property
    def certificate_der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def checkpoints(self) -> CheckpointFiles:
        """Checkpoints of jobs under way, encrypted under a key that is derived from this site's secret."""
        key = derive(self.secret, b"ce checkpoints")
        settings = self.settings
        return CheckpointFiles(settings.state / CHECKPOINTS, key, settings.largest_checkpoint, settings.least_free)

    @property
    def signers(self) -> tuple[x509.Certificate, ...]:
        """Certificates of the keys that have signed the ledger: the present one, and the former ones."""
        return self.certificate, *former_certificates(self.settings)

    def peers(self) -> Peers:
        return Peers.read(self.settings.peers)

    def policy(self) -> Policy:
        return Policy.read(self.settings.policy)

    def labels(self) -> LabelTable:
        return read_labels(self.settings.labels)


def former_certificates(settings: ClientSettings) -> tuple[x509.Certificate, ...]:
    """Certificates of this site's former keys, which verify what they signed."""
    return tuple(read_certificate(path) for path in sorted(settings.former.glob("*.pem")))


def read_labels(labels: Labels) -> LabelTable:
    """Read this site's label file, as it is now. Raises LabelError for a label outside of the declared categories."""
    table = LabelTable.from_file(labels.file, id=labels.id, classifiers=labels.classifiers, noise=labels.noise)
    check_labels(table, labels.declared)
    return table
