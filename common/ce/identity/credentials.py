"""What somebody shows at the door: a private key, the certificate for it, and the authority that signed it."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from ce.errors import ConfigError
from ce.identity.certificates import check_issuer, check_matches_key, check_validity, identity_of, read_certificate
from ce.identity.keys import PrivateKey, read_key
from ce.identity.names import Identity, Role


@dataclass(frozen=True)
class Credentials:
    """A key and a certificate that fit, of an authority that signed them, valid now."""

    identity: Identity
    key: PrivateKey = field(repr=False)
    certificate: x509.Certificate = field(repr=False)
    authority: x509.Certificate = field(repr=False)

    @classmethod
    def open(
        cls,
        key: Path,
        certificate: Path,
        authority: Path,
        *,
        role: Role,
        passphrase_variable: str,
        now: datetime | None = None,
        without_certificate: str | None = None,
    ) -> Credentials:
        """Raises ConfigError with what to do, for everything that would only fail later, at the other end.

        `without_certificate` says what to do where having none yet is normal.
        """
        passphrase = os.environ.get(passphrase_variable)
        given = None if passphrase is None else passphrase.encode()
        own = read_key(key, given, hint=f"set {passphrase_variable}")
        if without_certificate is not None and not certificate.exists():
            raise ConfigError(f"{certificate}: {without_certificate}")
        shown, signer = read_certificate(certificate), read_certificate(authority)
        check_matches_key(shown, own)
        check_issuer(shown, signer)
        check_validity(shown, now or datetime.now(UTC), f"the certificate {certificate}")
        identity = identity_of(shown, str(certificate))
        if identity.role != role:
            article = "an" if role == "operator" else "a"
            raise ConfigError(f"{certificate} is the certificate of {identity}, not of {article} {role}")
        return cls(identity, own, shown, signer)

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def authority_pem(self) -> bytes:
        return self.authority.public_bytes(Encoding.PEM)
