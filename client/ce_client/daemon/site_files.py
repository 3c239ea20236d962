"""What a site's daemon works with: its files, opened and checked when the daemon starts, or when a job needs them."""

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
from ce.policy import Policy
from ce.privacy.derivation import derive
from ce.service.checkpoints import CheckpointFiles
from ce.transport.tls import TlsCredentials
from ce_client.config import PASSPHRASE_VARIABLE, ClientSettings, Labels

#: Where checkpoints are, below the state directory.
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class SiteFiles:
    """Keys are held, everything that an organisation may edit while the daemon runs is read anew for each job."""

    settings: ClientSettings
    key: PrivateKey = field(repr=False)
    certificate: x509.Certificate = field(repr=False)
    credentials: TlsCredentials = field(repr=False)
    secret: bytes = field(repr=False)

    @classmethod
    def open(cls, settings: ClientSettings, now: datetime | None = None) -> SiteFiles:
        """Raises ConfigError with what to do, for everything that would only fail later."""
        papers = Credentials.open(
            settings.key,
            settings.certificate,
            settings.authority,
            role="site",
            passphrase_variable=PASSPHRASE_VARIABLE,
            now=now,
            without_certificate=(
                f"there is no certificate yet: send {settings.name}.csr to the operator, who signs it "
                "(ce-coordinator sign), and put what comes back there, and ca.pem beside it"
            ),
        )
        if papers.identity.name != settings.name:
            raise ConfigError(
                f"{settings.certificate} is the certificate of {papers.identity}, not of site {settings.name}"
            )
        secret = read_secret(settings.secret)
        return cls(settings, papers.key, papers.certificate, TlsCredentials.of(papers), secret)

    @property
    def certificate_der(self) -> bytes:
        return self.certificate.public_bytes(Encoding.DER)

    @property
    def checkpoints(self) -> CheckpointFiles:
        """States of jobs under way, under a key that follows from this site's secret."""
        key = derive(self.secret, b"ce checkpoints")
        own = self.settings
        return CheckpointFiles(own.state / CHECKPOINTS, key, own.largest_checkpoint, own.least_free)

    @property
    def signers(self) -> tuple[x509.Certificate, ...]:
        """Certificates of the keys that have signed the ledger: this one, and those that the site had before."""
        return self.certificate, *former_certificates(self.settings)

    def peers(self) -> Peers:
        return Peers.read(self.settings.peers)

    def policy(self) -> Policy:
        return Policy.read(self.settings.policy)

    def labels(self) -> LabelTable:
        return read_labels(self.settings.labels)


def former_certificates(settings: ClientSettings) -> tuple[x509.Certificate, ...]:
    """Of keys that this site had before, so that what they signed can be verified."""
    return tuple(read_certificate(path) for path in sorted(settings.former.glob("*.pem")))


def read_labels(how: Labels) -> LabelTable:
    """This site's labels, as the file is now."""
    return LabelTable.from_file(how.file, id=how.id, classifiers=how.classifiers, noise=how.noise)
