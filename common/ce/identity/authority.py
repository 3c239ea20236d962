"""The operator's certificate authority: a directory with ca.pem, ca.key and a copy of every certificate issued.

The authority decides what a certificate contains; a request only names an identity and a key. Software cannot check
that a request comes from the site that it names: the operator compares its fingerprint with the site by telephone or
in person.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from ce.errors import ConfigError
from ce.identity.certificates import (
    check_issuer,
    check_matches_key,
    check_validity,
    fingerprint,
    identity_of,
    parse_certificate,
    read_certificate,
)
from ce.identity.files import PUBLIC, make_directory, read_if_there, rewrite, write_new
from ce.identity.keys import PrivateKey, PublicKey, make_key, read_key, write_key
from ce.identity.names import COORDINATOR_SERVER_NAME, Identity
from ce.identity.requests import make_csr, read_csr, subject_of

__all__ = ["CA_DAYS", "DAYS", "Authority", "make_csr"]

CA_DAYS = 3650
DAYS = 397
LONGEST_DAYS = 36500
#: Certificates are valid from 5 minutes before they are made, for machines whose clocks are slow.
CLOCK_SLACK = timedelta(minutes=5)


@dataclass(frozen=True)
class Authority:
    """A certificate authority with its private key. Made by `create` or `open`."""

    directory: Path
    certificate: x509.Certificate
    _key: PrivateKey = field(repr=False)

    @classmethod
    def create(cls, directory: Path, now: datetime, days: int = CA_DAYS, passphrase: bytes | None = None) -> Authority:
        """A new authority in `directory`, which is created if necessary. Never overwrites an authority."""
        key = make_key()
        certificate = _self_signed(key, now, days)
        make_directory(directory, mode=0o700)
        write_new(_certificate_path(directory), certificate.public_bytes(Encoding.PEM), PUBLIC)
        try:
            write_key(_key_path(directory), key, passphrase)
        except ConfigError:
            # Without its key the certificate is useless.
            _certificate_path(directory).unlink(missing_ok=True)
            raise
        return cls(directory, certificate, key)

    @classmethod
    def open(
        cls, directory: Path, passphrase: bytes | None = None, *, hint: str = "give the passphrase of the CA's key"
    ) -> Authority:
        """The authority in `directory`. `hint` says how to give the passphrase, see `read_key`."""
        certificate = read_certificate(_certificate_path(directory))
        key = read_key(_key_path(directory), passphrase, hint=hint)
        check_issuer(certificate, certificate)
        check_matches_key(certificate, key)
        return cls(directory, certificate, key)

    def sign(
        self, csr_pem: bytes, expected: Identity | None, now: datetime, days: int = DAYS, *, replace: bool = False
    ) -> x509.Certificate:
        """A certificate for the identity of the request, which must be `expected`; None stands for any site.

        If the name has a certificate for another key, `replace` is required. The old certificate stays valid until it
        expires: put its fingerprint on the deny list.
        """
        check_validity(self.certificate, now, "the CA's certificate")
        request = read_csr(csr_pem)
        identity = request.identity
        if expected is None and identity.role != "site":
            # Otherwise a site could become an operator by the request that it sends.
            raise ConfigError(
                f"the request is for {identity}, not for a site: to sign it all the same, name {identity} explicitly"
            )
        if expected is not None and identity != expected:
            raise ConfigError(f"the request is for {identity}, not for {expected}: ask for the right one")
        known = self._known_key(identity)
        if known is not None and known != fingerprint(request.public_key) and not replace:
            raise ConfigError(
                f"{identity} has a certificate for another key: the request may come from another party. Compare the "
                f"fingerprint of the request with {identity.name} by telephone or in person, and only then sign it as "
                "a replacement (--replace)"
            )
        certificate = self._certificate_for(identity, request.public_key, now, days)
        self._save_copy(identity, certificate, first=known is None)
        return certificate

    def issue(
        self, identity: Identity, key: PrivateKey, now: datetime, days: int = DAYS, *, replace: bool = False
    ) -> x509.Certificate:
        """A certificate for a key that was made on this machine: the coordinator's or the operator's."""
        return self.sign(make_csr(key, identity), identity, now, days, replace=replace)

    def issued(self) -> dict[Identity, x509.Certificate]:
        """The newest certificate of each identity, in order of role and name."""
        found: dict[Identity, x509.Certificate] = {}
        for path in self._issued_directory.glob("*.pem"):
            certificate = read_certificate(path)
            identity = identity_of(certificate, str(path))
            if path != self._issued_path(identity):
                raise ConfigError(f"{path} is the certificate of {identity}: move it out of this directory")
            found[identity] = certificate
        return dict(sorted(found.items()))

    @property
    def _issued_directory(self) -> Path:
        return self.directory / "issued"

    def _issued_path(self, identity: Identity) -> Path:
        return self._issued_directory / f"{identity.role}-{identity.name}.pem"

    def _known_key(self, identity: Identity) -> str | None:
        path = self._issued_path(identity)
        data = read_if_there(path)
        return None if data is None else fingerprint(parse_certificate(data, str(path)))

    def _save_copy(self, identity: Identity, certificate: x509.Certificate, *, first: bool) -> None:
        path = self._issued_path(identity)
        make_directory(path.parent)
        data = certificate.public_bytes(Encoding.PEM)
        if first:
            # Fails if another command has issued a certificate for this name in the meantime.
            write_new(path, data, PUBLIC)
        else:
            rewrite(path, data)

    def _certificate_for(self, identity: Identity, key: PublicKey, now: datetime, days: int) -> x509.Certificate:
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri)]
        usage = ExtendedKeyUsageOID.CLIENT_AUTH
        if identity.role == "coordinator":
            names.append(x509.DNSName(COORDINATOR_SERVER_NAME))
            usage = ExtendedKeyUsageOID.SERVER_AUTH
        issuer_key = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
        first, last = _validity(now, days)
        return (
            x509.CertificateBuilder()
            .subject_name(subject_of(identity))
            .issuer_name(self.certificate.subject)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(first)
            .not_valid_after(min(last, self.certificate.not_valid_after_utc))
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(digital_signature=True), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_key), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _certificate_path(directory: Path) -> Path:
    return directory / "ca.pem"


def _key_path(directory: Path) -> Path:
    return directory / "ca.key"


def _self_signed(key: PrivateKey, now: datetime, days: int) -> x509.Certificate:
    key_id = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    # Libraries look for an issuer by name, so that two authorities must not have the same name.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"ce authority {key_id.digest.hex()[:16]}")])
    first, last = _validity(now, days)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(first)
        .not_valid_after(last)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True), critical=True)
        .add_extension(key_id, critical=False)
        .sign(key, hashes.SHA256())
    )


def _validity(now: datetime, days: int) -> tuple[datetime, datetime]:
    if not 1 <= days <= LONGEST_DAYS:
        raise ConfigError(f"a certificate cannot be valid for {days} days: choose 1 to {LONGEST_DAYS}")
    # Times in certificates are whole seconds.
    now = now.astimezone(UTC).replace(microsecond=0)
    return now - CLOCK_SLACK, now + timedelta(days=days)


def _usage(*, digital_signature: bool = False, key_cert_sign: bool = False) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=digital_signature,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=key_cert_sign,
        crl_sign=key_cert_sign,
        encipher_only=False,
        decipher_only=False,
    )
