"""Certificate requests: a site asks for a certificate without sending its private key.

A request has the public key and the identity, and is signed with the private key. Everything else in it is ignored.
"""

from __future__ import annotations

from dataclasses import dataclass

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID

from ce.errors import ConfigError
from ce.identity.certificates import named_in, refusing_malformed
from ce.identity.keys import PrivateKey, PublicKey, is_public_key
from ce.identity.names import Identity


@dataclass(frozen=True)
class Request:
    """The identity and the key that a certificate is requested for. The signature proves that the sender has the key;
    it does not prove the identity."""

    identity: Identity
    public_key: PublicKey


def make_csr(key: PrivateKey, identity: Identity) -> bytes:
    """The request, in PEM, for the operator to sign."""
    return (
        x509.CertificateSigningRequestBuilder()
        .subject_name(subject_of(identity))
        .add_extension(x509.SubjectAlternativeName([x509.UniformResourceIdentifier(identity.uri)]), critical=False)
        .sign(key, hashes.SHA256())
        .public_bytes(Encoding.PEM)
    )


def read_csr(pem: bytes) -> Request:
    """What a request asks for. Raises ConfigError unless it is signed with its own P-256 key and names one identity."""
    with refusing_malformed("the request", "a certificate request"):
        csr = x509.load_pem_x509_csr(pem)
        key = csr.public_key()
        extensions = csr.extensions
        proven = csr.is_signature_valid
    if not is_public_key(key):
        raise ConfigError("the request is for a key of another kind than EC P-256: make it with ce")
    if not proven:
        raise ConfigError("the request is not signed with its own key: it was changed after signing; ask for it again")
    return Request(named_in(extensions, "the request"), key)


def subject_of(identity: Identity) -> x509.Name:
    """The subject of a certificate, for people who read it with other tools; ce reads only the URI.

    There is no common name, because some TLS libraries take it for a host name: a site could call itself
    `ce-coordinator`.
    """
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, f"ce {identity.role}"),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, identity.name),
        ]
    )
