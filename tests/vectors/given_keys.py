"""Keys and random bytes that are given instead of drawn, for the whole jobs of this folder."""

from __future__ import annotations

from collections.abc import Mapping

from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from ce.privacy.pair_keys import EphemeralKey
from ce.protocol.attempt import Attempt

AES_ENTROPY = (
    "All random bytes of a site are consecutive parts of AES-256-CTR over zeros under sites[].entropy, initial "
    "counter zero; rounds[].drawn are the parts that each site took in the round, in order."
)


class Entropy:
    """Random bytes that follow from a key; remembers what was taken."""

    def __init__(self, key: bytes) -> None:
        self._stream = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
        self._taken: list[str] = []

    def __call__(self, size: int) -> bytes:
        found = self._stream.update(bytes(size))
        self._taken.append(found.hex())
        return found

    def taken(self) -> list[str]:
        """What was taken since this was asked before."""
        found, self._taken = self._taken, []
        return found


def ephemeral(private: bytes) -> EphemeralKey:
    key = EphemeralKey()
    key._private = X25519PrivateKey.from_private_bytes(private)
    key.public = public_key(private)
    return key


def public_key(private: bytes) -> bytes:
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def given_pair_keys(attempt: Attempt, private: Mapping[str, bytes]) -> dict[str, dict[str, bytes]]:
    """By site and peer, as the daemons derive them."""
    keys = {site: ephemeral(own) for site, own in private.items()}
    return {
        site: {
            peer: own.pair_key(other.public, *attempt.context, *(name.encode() for name in sorted((site, peer))))
            for peer, other in keys.items()
            if peer != site
        }
        for site, own in keys.items()
    }
