"""Keys, self-signed certificates and authorities for the tests of identities."""

from __future__ import annotations

import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID
from hypothesis import settings
from hypothesis import strategies as st

from ce.identity import (
    COORDINATOR_SERVER_NAME,
    Identity,
)
from ce.identity.keys import PrivateKey

NOW = datetime(2030, 5, 17, 12, 0, tzinfo=UTC)
DAY = timedelta(days=1)
SITE = Identity("site", "hospital-a")
OPERATOR = Identity("operator", "anna")
laws = settings(deadline=None, max_examples=60, derandomize=True)
names = st.from_regex(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?", fullmatch=True).filter(lambda name: ".." not in name)
PEM = serialization.Encoding.PEM


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def only_files(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def request(key: PrivateKey, *extensions: x509.ExtensionType) -> bytes:
    """A request as some other tool would write it, with whatever it asks for."""
    builder = x509.CertificateSigningRequestBuilder().subject_name(
        x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, COORDINATOR_SERVER_NAME)])
    )
    for extension in extensions:
        builder = builder.add_extension(extension, critical=True)
    return builder.sign(key, hashes.SHA256()).public_bytes(PEM)
