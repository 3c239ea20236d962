"""Certificates: their identity, their validity, and signatures by their keys.

A certificate names exactly one identity, as a URI among its alternative names. A fingerprint is the digest of the
public key, not of the certificate, so that a renewed certificate of the same key has the fingerprint that people
compared.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from ce.errors import ConfigError, MessageError
from ce.identity.files import read_public
from ce.identity.keys import PrivateKey, PublicKey, is_public_key
from ce.identity.names import SCHEME, Identity

#: What the x509 library raises for malformed data, in part only when a field is read.
_MALFORMED = (
    ValueError,
    TypeError,
    UnsupportedAlgorithm,
    x509.DuplicateExtension,
    x509.InvalidVersion,
    x509.UnsupportedGeneralNameType,
)
_FINGERPRINT = re.compile(r"[0-9a-f]{64}")


def read_certificate(path: Path) -> x509.Certificate:
    return parse_certificate(read_public(path), str(path))


def parse_certificate(data: bytes, what: str = "the certificate") -> x509.Certificate:
    """The certificate in `data`, PEM or DER. Raises ConfigError, naming it `what`, unless there is exactly one."""
    with refusing_malformed(what, "a certificate"):
        if b"-----BEGIN" not in data:
            return x509.load_der_x509_certificate(data)
        found = x509.load_pem_x509_certificates(data)
    if len(found) != 1:
        raise ConfigError(f"{what} is {len(found)} certificates: expected one, without its chain")
    return found[0]


def identity_of(certificate: x509.Certificate, what: str = "the certificate") -> Identity:
    """The identity of a certificate. Raises ConfigError, naming it `what`, unless it has exactly one."""
    with refusing_malformed(what, "a certificate of ce"):
        extensions = certificate.extensions
    return named_in(extensions, what)


def named_in(extensions: x509.Extensions, what: str) -> Identity:
    """The identity among the alternative names of a certificate or a request."""
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        uris = names.get_values_for_type(x509.UniformResourceIdentifier)
    except x509.ExtensionNotFound:
        uris = []
    # Schemes are case-insensitive: another implementation would read `CE://...` as a second identity.
    identities = [uri for uri in uris if uri.lower().startswith(SCHEME)]
    if len(identities) != 1:
        raise ConfigError(f"{what} names {len(identities)} identities {SCHEME}ROLE/NAME: expected exactly one")
    return Identity.from_uri(identities[0])


def public_key_of(certificate: x509.Certificate) -> PublicKey:
    with refusing_malformed("the certificate", "one with a usable key"):
        key = certificate.public_key()
    if not is_public_key(key):
        raise ConfigError("the certificate has a key of another kind than EC P-256: request one for a key made by ce")
    return key


def fingerprint(of: x509.Certificate | PublicKey) -> str:
    """`SHA256:` and 64 hex digits: the digest of the public key, which is the same in all certificates for the key."""
    key = public_key_of(of) if isinstance(of, x509.Certificate) else of
    return f"SHA256:{hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).hexdigest()}"


def check_fingerprint_text(text: str) -> str:
    """Convert a fingerprint as people write it (any case, colons, spaces, no prefix) to the form of `fingerprint`."""
    digits = re.sub(r"[\s:]", "", text).lower().removeprefix("sha256")
    if _FINGERPRINT.fullmatch(digits) is None:
        raise ConfigError(
            "this is not a fingerprint: expected SHA256: and 64 hex digits, as `ce-client fingerprint` shows it"
        )
    return f"SHA256:{digits}"


def check_validity(certificate: x509.Certificate, now: datetime, what: str) -> None:
    """Raise ConfigError, naming the certificate `what`, if it is not valid at `now`."""
    with refusing_malformed(what, "a certificate with usable dates"):
        first, last = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    now = now.astimezone(UTC)
    if now > last:
        raise ConfigError(f"{what} expired on {last:%Y-%m-%d %H:%M} UTC: the operator has to renew it")
    if now < first:
        raise ConfigError(
            f"{what} is valid only from {first:%Y-%m-%d %H:%M} UTC and here it is {now:%Y-%m-%d %H:%M} UTC: "
            "is the clock of this machine right?"
        )


def check_issuer(certificate: x509.Certificate, ca: x509.Certificate) -> None:
    """Raise ConfigError unless `ca` is a certificate authority and signed `certificate`. Does not check dates."""
    with refusing_malformed("the CA's certificate", "a certificate of ce"):
        extensions = ca.extensions
    try:
        may_sign = (
            extensions.get_extension_for_class(x509.BasicConstraints).value.ca
            and extensions.get_extension_for_class(x509.KeyUsage).value.key_cert_sign
        )
    except x509.ExtensionNotFound:
        may_sign = False
    if not may_sign:
        raise ConfigError("the CA's certificate is not that of a CA: check that ca.pem is the operator's ca.pem")
    try:
        certificate.verify_directly_issued_by(ca)
    except (InvalidSignature, *_MALFORMED):
        raise ConfigError(
            "the certificate was not signed by this CA: check that it and ca.pem come from the same operator"
        ) from None


def check_matches_key(certificate: x509.Certificate, key: PrivateKey) -> None:
    """Raise ConfigError if the certificate was made for another key."""
    if public_key_of(certificate) != key.public_key():
        raise ConfigError(
            "the certificate is for another private key: use the key that its request was made with, "
            "or have a certificate signed for this key"
        )


def sign(key: PrivateKey, message: bytes, *, purpose: str) -> bytes:
    """A signature of `message` that is valid for this purpose only."""
    return key.sign(_signed(purpose, message), ec.ECDSA(hashes.SHA256()))


def verify(certificate: x509.Certificate, signature: bytes, message: bytes, *, purpose: str, field: str) -> None:
    """Raise MessageError, naming `field`, unless the certificate's key signed this message for this purpose."""
    try:
        key = public_key_of(certificate)
        key.verify(signature, _signed(purpose, message), ec.ECDSA(hashes.SHA256()))
    except (InvalidSignature, ConfigError):
        raise MessageError(f"{field}: not a signature of this content by the key of its sender") from None


def _signed(purpose: str, message: bytes) -> bytes:
    """The bytes that are signed. They cannot be read as another purpose with another message.

    They begin with the length in four bytes, and so with a zero byte. What TLS signs with the same key begins with 64
    spaces, and a request or certificate with 0x30 (a DER sequence), so that neither can be mistaken for it.
    """
    name = purpose.encode()
    return len(name).to_bytes(4, "big") + name + message


@contextlib.contextmanager
def refusing_malformed(what: str, expected: str) -> Iterator[None]:
    """Turn errors of the x509 library into a ConfigError, without the content that they may quote."""
    try:
        yield
    except _MALFORMED:
        raise ConfigError(
            f"{what} is not {expected}: check that it is the right file, complete and in PEM form"
        ) from None
