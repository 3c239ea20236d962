"""Local credentials: a private key, its certificate, and the certificate of the issuing authority."""

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
    """A private key, its certificate, and the certificate of the authority that issued it; checked, and valid now."""

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
        """Read and check the three files. Raises ConfigError, with what to do, for anything that the other end of a
        connection would refuse.

        `without_certificate` says what to do if the certificate file does not exist yet.
        """
        passphrase = os.environ.get(passphrase_variable)
        given = None if passphrase is None else passphrase.encode()
        private_key = read_key(key, given, hint=f"set {passphrase_variable}")
        if without_certificate is not None and not certificate.exists():
            raise ConfigError(f"{certificate}: {without_certificate}")
        issued, issuer = read_certificate(certificate), read_certificate(authority)
        check_matches_key(issued, private_key)
        check_issuer(issued, issuer)
        check_validity(issued, now or datetime.now(UTC), f"the certificate {certificate}")
        identity = identity_of(issued, str(certificate))
        if identity.role != role:
            article = "an" if role == "operator" else "a"
            raise ConfigError(f"{certificate} is the certificate of {identity}, not of {article} {role}")
        return cls(identity, private_key, issued, issuer)

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def authority_pem(self) -> bytes:
        return self.authority.public_bytes(Encoding.PEM)
