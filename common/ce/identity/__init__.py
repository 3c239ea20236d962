"""Identities: names, keys, certificates, credentials, the operator's authority, denied keys and trusted peers."""

from ce.identity.authority import Authority
from ce.identity.certificates import (
    check_fingerprint_text,
    check_issuer,
    check_matches_key,
    check_validity,
    fingerprint,
    identity_of,
    parse_certificate,
    read_certificate,
    sign,
    verify,
)
from ce.identity.denied import DenyList
from ce.identity.keys import make_key, pem, read_key, read_secret, write_key, write_secret
from ce.identity.names import COORDINATOR_SERVER_NAME, Identity, Role, check_name
from ce.identity.peers import Peers
from ce.identity.requests import Request, make_csr, read_csr

__all__ = [
    "COORDINATOR_SERVER_NAME",
    "Authority",
    "DenyList",
    "Identity",
    "Peers",
    "Request",
    "Role",
    "check_fingerprint_text",
    "check_issuer",
    "check_matches_key",
    "check_name",
    "check_validity",
    "fingerprint",
    "identity_of",
    "make_csr",
    "make_key",
    "parse_certificate",
    "pem",
    "read_certificate",
    "read_csr",
    "read_key",
    "read_secret",
    "sign",
    "verify",
    "write_key",
    "write_secret",
]
