"""Private files: the private key of a certificate, and a site's secret.

Keys are EC P-256, which every TLS 1.3 library supports. They are made where they are used and never sent. Files have
mode 0600 from the beginning. A file that other users can open is refused, because they may have copied it.
"""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from typing import TypeGuard

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from ce.errors import ConfigError
from ce.identity.files import PRIVATE, read_private, rewrite, write_new

PrivateKey = ec.EllipticCurvePrivateKey
PublicKey = ec.EllipticCurvePublicKey

SECRET_BYTES = 32
#: Longest passphrase, in bytes, that OpenSSL accepts.
_LONGEST_PASSPHRASE = 1023

_SECRET = re.compile(rf"[0-9a-f]{{{2 * SECRET_BYTES}}}")


def make_key() -> PrivateKey:
    return ec.generate_private_key(ec.SECP256R1())


def is_public_key(key: object) -> TypeGuard[PublicKey]:
    """Whether `key` is an EC P-256 key, the only kind that ce uses."""
    return isinstance(key, PublicKey) and isinstance(key.curve, ec.SECP256R1)


def pem(key: PrivateKey) -> bytes:
    """The unencrypted key, for the TLS library. Not for a file: see `write_key`."""
    return _pem(key, serialization.NoEncryption())


def write_key(path: Path, key: PrivateKey, passphrase: bytes | None = None) -> None:
    """Create `path` with the key, encrypted if there is a passphrase. Never overwrites a file."""
    write_new(path, _for_file(path, key, passphrase), PRIVATE)


def replace_key(path: Path, key: PrivateKey, passphrase: bytes | None = None) -> None:
    """Write the key to `path`, in place of the key there if there is one. The owner of the file stays."""
    if not path.exists():
        write_key(path, key, passphrase)
        return
    read_private(path)  # the new file gets the same permissions, so they must be private
    rewrite(path, _for_file(path, key, passphrase))


def read_key(
    path: Path, passphrase: bytes | None = None, *, hint: str = "give the passphrase that it was written with"
) -> PrivateKey:
    """The key in `path`. Raises ConfigError if it is not private, not P-256, or does not open with the passphrase.

    `hint` says in the imperative how to give the passphrase: which variable or which key of which file. A passphrase
    for a key that is not encrypted is an error, too, because its owner believes that the file is protected.
    """
    data = read_private(path)
    encrypted = b"ENCRYPTED" in data
    if encrypted and not passphrase:
        raise ConfigError(f"{path} is encrypted: {hint}")
    if passphrase and not encrypted and b"PRIVATE KEY" in data:
        raise ConfigError(
            f"{path} is not encrypted although a passphrase is given: encrypt it, for instance with "
            f"`openssl pkcs8 -topk8`, or give no passphrase"
        )
    try:
        key = serialization.load_pem_private_key(data, passphrase or None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        # The library's message is not repeated: it may quote the file's content.
        if encrypted:
            raise ConfigError(f"{path} does not open with this passphrase, or is damaged: {hint}") from None
        raise ConfigError(f"{path} is not a private key in PEM form: check that it is the right file") from None
    if not (isinstance(key, PrivateKey) and is_public_key(key.public_key())):
        raise ConfigError(f"{path} is a private key of another kind than EC P-256: make a new one with ce")
    return key


def write_secret(path: Path) -> bytes:
    """Create `path` with a new secret, and return the secret. Never overwrites a file."""
    secret = secrets.token_bytes(SECRET_BYTES)
    write_new(path, secret.hex().encode() + b"\n", PRIVATE)
    return secret


def read_secret(path: Path) -> bytes:
    """The secret in `path`, which must be private like a key."""
    text = read_private(path).decode("ascii", errors="replace").strip()
    if _SECRET.fullmatch(text) is None:
        raise ConfigError(
            f"{path} is not a secret of {SECRET_BYTES} bytes in hex: restore it from a backup, or move it away, and a "
            "new one will be made"
        )
    return bytes.fromhex(text)


def _for_file(path: Path, key: PrivateKey, passphrase: bytes | None) -> bytes:
    if passphrase is None:
        return pem(key)
    if not 1 <= len(passphrase) <= _LONGEST_PASSPHRASE:
        raise ConfigError(f"{path}: a passphrase has 1 to {_LONGEST_PASSPHRASE} bytes: choose another one")
    return _pem(key, serialization.BestAvailableEncryption(passphrase))


def _pem(key: PrivateKey, encryption: serialization.KeySerializationEncryption) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption)
