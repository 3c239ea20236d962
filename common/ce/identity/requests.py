"""Certificate requests: how a site asks for a certificate without its private key ever leaving it.

A request carries the public key and the identity asked for, signed with the private key. Nothing else in it counts.
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
    """Who asks, and for which key. Whoever made it holds that key; that he is who he says remains to be checked."""

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
    """What a request asks for; ConfigError unless it is signed with its own P-256 key and names one identity."""
    with refusing_malformed("the request", "a certificate request"):
        csr = x509.load_pem_x509_csr(pem)
        key = csr.public_key()
        extensions = csr.extensions
        proven = csr.is_signature_valid
    if not is_public_key(key):
        raise ConfigError("the request is for a key of another kind than EC P-256: make it with ce")
    if not proven:
        raise ConfigError("the request is not signed with its own key: it was changed on its way, ask for it again")
    return Request(named_in(extensions, "the request"), key)


def subject_of(identity: Identity) -> x509.Name:
    """For people who look at a certificate with other tools; ce itself looks only at the URI.

    There is no common name, because some TLS libraries take it for a host name: a site could call itself
    `ce-coordinator`.
    """
    return x509.Name(
        [
            x509.NameAttribute(NameOID.ORGANIZATION_NAME, f"ce {identity.role}"),
            x509.NameAttribute(NameOID.ORGANIZATIONAL_UNIT_NAME, identity.name),
        ]
    )
