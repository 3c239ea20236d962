"""Keys between pairs of sites, from ephemeral X25519 keys that exist in memory only, for one job and epoch.

The coordinator, which relays the public keys, learns nothing from them. Signatures and pins prove that they belong to
the sites (`ce.protocol.keys.handshake`).
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from ce.errors import MessageError
from ce.privacy.derivation import derive, joined

PUBLIC_KEY_SIZE = 32
NONCE_SIZE = 12


@dataclass(frozen=True)
class EncryptedBox:
    """A few bytes that only one other site can decrypt."""

    nonce: bytes = field(repr=False)
    ciphertext: bytes = field(repr=False)


class EphemeralKey:
    """One site's key for one job and epoch."""

    def __init__(self) -> None:
        self._private = X25519PrivateKey.generate()
        self.public = self._private.public_key().public_bytes_raw()

    def pair_key(self, peer_public: bytes, *context: bytes) -> bytes:
        """The key that this site and the owner of `peer_public` share, bound to `context`."""
        shared = _exchange(self._private, peer_public, "public_key")
        return derive(shared, b"ce pair key 1", *sorted((self.public, peer_public)), *context)


def check_public_key(public_key: bytes, whose: str) -> None:
    """Raises MessageError that begins with `whose`, unless a pair key can be made with this key."""
    _exchange(X25519PrivateKey.generate(), public_key, whose)


def _exchange(private: X25519PrivateKey, public_key: bytes, whose: str) -> bytes:
    if len(public_key) != PUBLIC_KEY_SIZE:
        raise MessageError(f"{whose}: expected a public key of {PUBLIC_KEY_SIZE} bytes, got {len(public_key):,}")
    try:
        return private.exchange(X25519PublicKey.from_public_bytes(public_key))
    except ValueError as error:  # a point of small order, with which any party could compute the shared secret
        raise MessageError(
            f"{whose}: the public key is a point of small order: its sender must make another"
        ) from error


def encrypt(key: bytes, content: bytes, *context: bytes) -> EncryptedBox:
    """Encrypt under a pair key. Decryption needs the same context."""
    nonce = os.urandom(NONCE_SIZE)
    return EncryptedBox(nonce, ChaCha20Poly1305(key).encrypt(nonce, content, joined(*context)))


def decrypt(key: bytes, box: EncryptedBox, *context: bytes, sender: str = "the other site") -> bytes:
    """Decrypt. Raises MessageError, naming the sender, if the box is not from it, or not for this context."""
    if len(box.nonce) != NONCE_SIZE:
        raise MessageError(f"nonce: expected {NONCE_SIZE} bytes from {sender}, got {len(box.nonce):,}")
    try:
        return ChaCha20Poly1305(key).decrypt(box.nonce, box.ciphertext, joined(*context))
    except InvalidTag as error:
        raise MessageError(
            f"ciphertext: what comes from {sender} was not encrypted for this site, job and epoch: {sender} or the "
            "coordinator, which relays it, has made it wrong"
        ) from error
