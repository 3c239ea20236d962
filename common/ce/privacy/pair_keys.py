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
        if len(peer_public) != PUBLIC_KEY_SIZE:
            raise MessageError("public_key: not 32 bytes")
        try:
            shared = self._private.exchange(X25519PublicKey.from_public_bytes(peer_public))
        except ValueError as error:  # a point of small order, with which any party could compute the shared secret
            raise MessageError("public_key: a point of small order: the peer must make a new key") from error
        return derive(shared, b"ce pair key 1", *sorted((self.public, peer_public)), *context)


def encrypt(key: bytes, content: bytes, *context: bytes) -> EncryptedBox:
    """Encrypt under a pair key. Decryption needs the same context."""
    nonce = os.urandom(NONCE_SIZE)
    return EncryptedBox(nonce, ChaCha20Poly1305(key).encrypt(nonce, content, joined(*context)))


def decrypt(key: bytes, box: EncryptedBox, *context: bytes) -> bytes:
    """Decrypt. Raises MessageError if the box is not from that peer, or not for this context."""
    if len(box.nonce) != NONCE_SIZE:
        raise MessageError("nonce: not 12 bytes")
    try:
        return ChaCha20Poly1305(key).decrypt(box.nonce, box.ciphertext, joined(*context))
    except InvalidTag as error:
        raise MessageError("ciphertext: was not encrypted for this site, job and epoch by that peer") from error
