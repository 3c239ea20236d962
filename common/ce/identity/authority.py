"""The operator's certificate authority: a directory with ca.pem, ca.key and a copy of every certificate issued.

It decides what stands in a certificate; a request only says who asks and for which key. That a request comes from whom
it says, nobody but a person can know: the operator compares its fingerprint with the site by another way.
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
#: Certificates begin a little in the past, for machines whose clocks are a little behind.
CLOCK_SLACK = timedelta(minutes=5)


@dataclass(frozen=True)
class Authority:
    """A certificate authority, opened: holds its private key. Made by `create` or `open`."""

    directory: Path
    certificate: x509.Certificate
    _key: PrivateKey = field(repr=False)

    @classmethod
    def create(cls, directory: Path, now: datetime, days: int = CA_DAYS, passphrase: bytes | None = None) -> Authority:
        """A new authority in `directory`, which is made if it is not there. Never overwrites one."""
        key = make_key()
        certificate = _self_signed(key, now, days)
        make_directory(directory, mode=0o700)
        write_new(_certificate_path(directory), certificate.public_bytes(Encoding.PEM), PUBLIC)
        try:
            write_key(_key_path(directory), key, passphrase)
        except ConfigError:
            # A certificate whose key was never kept is of no use to anybody.
            _certificate_path(directory).unlink(missing_ok=True)
            raise
        return cls(directory, certificate, key)

    @classmethod
    def open(
        cls, directory: Path, passphrase: bytes | None = None, *, hint: str = "give the passphrase of the CA's key"
    ) -> Authority:
        """The authority in `directory`. `hint` says how to give a passphrase, as for `read_key`."""
        certificate = read_certificate(_certificate_path(directory))
        key = read_key(_key_path(directory), passphrase, hint=hint)
        check_issuer(certificate, certificate)
        check_matches_key(certificate, key)
        return cls(directory, certificate, key)

    def sign(
        self, csr_pem: bytes, expected: Identity | None, now: datetime, days: int = DAYS, *, replace: bool = False
    ) -> x509.Certificate:
        """A certificate for what the request asks, which must be `expected`; None stands for any site.

        A name that has a certificate for another key gets one for this key only with `replace`. The old certificate
        stays valid until it expires: put its fingerprint on the deny list.
        """
        check_validity(self.certificate, now, "the CA's certificate")
        request = read_csr(csr_pem)
        identity = request.identity
        if expected is None and identity.role != "site":
            # Otherwise a file that a site sends could make it an operator.
            raise ConfigError(
                f"the request is for {identity}, not for a site: if you mean to sign it, name {identity} explicitly"
            )
        if expected is not None and identity != expected:
            raise ConfigError(f"the request is for {identity}, not for {expected}: ask for the right one")
        known = self._known_key(identity)
        if known is not None and known != fingerprint(request.public_key) and not replace:
            raise ConfigError(
                f"{identity} has a certificate for another key: somebody else may be asking for this name. Compare "
                f"the fingerprint of the request with {identity.name} by another way than the one it came by, and "
                "only then sign it as a replacement (--replace)"
            )
        certificate = self._certificate_for(identity, request.public_key, now, days)
        self._keep(identity, certificate, first=known is None)
        return certificate

    def issue(
        self, identity: Identity, key: PrivateKey, now: datetime, days: int = DAYS, *, replace: bool = False
    ) -> x509.Certificate:
        """A certificate for a key that the operator made here: the coordinator's or the operator's own."""
        return self.sign(make_csr(key, identity), identity, now, days, replace=replace)

    def issued(self) -> dict[Identity, x509.Certificate]:
        """The newest certificate of everybody, in order of role and name."""
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

    def _keep(self, identity: Identity, certificate: x509.Certificate, *, first: bool) -> None:
        path = self._issued_path(identity)
        make_directory(path.parent)
        data = certificate.public_bytes(Encoding.PEM)
        if first:
            # Fails when another command gave the name away since we looked.
            write_new(path, data, PUBLIC)
        else:
            rewrite(path, data)

    def _certificate_for(self, identity: Identity, key: PublicKey, now: datetime, days: int) -> x509.Certificate:
        names: list[x509.GeneralName] = [x509.UniformResourceIdentifier(identity.uri)]
        usage = ExtendedKeyUsageOID.CLIENT_AUTH
        if identity.role == "coordinator":
            names.append(x509.DNSName(COORDINATOR_SERVER_NAME))
            usage = ExtendedKeyUsageOID.SERVER_AUTH
        own = self.certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier).value
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
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(own), critical=False)
            .sign(self._key, hashes.SHA256())
        )


def _certificate_path(directory: Path) -> Path:
    return directory / "ca.pem"


def _key_path(directory: Path) -> Path:
    return directory / "ca.key"


def _self_signed(key: PrivateKey, now: datetime, days: int) -> x509.Certificate:
    own = x509.SubjectKeyIdentifier.from_public_key(key.public_key())
    # Two authorities with one name would be confused by libraries that look for an issuer by name.
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"ce authority {own.digest.hex()[:16]}")])
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
        .add_extension(own, critical=False)
        .sign(key, hashes.SHA256())
    )


def _validity(now: datetime, days: int) -> tuple[datetime, datetime]:
    if not 1 <= days <= LONGEST_DAYS:
        raise ConfigError(f"a certificate cannot be valid for {days} days: choose 1 to {LONGEST_DAYS}")
    # Certificates count whole seconds.
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
