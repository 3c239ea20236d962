"""Digests, signatures, keys and masks of an independent site, written from docs/protocol.md. Imports nothing of ce."""

from __future__ import annotations

import hashlib
import hmac
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from blake3 import blake3
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric.ec import ECDSA, EllipticCurvePrivateKey, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from cryptography.x509 import (
    Certificate,
    SubjectAlternativeName,
    UniformResourceIdentifier,
    load_der_x509_certificate,
)

Array = np.ndarray[Any, Any]


class CannotGoOn(Exception):
    """The site refuses the job; exit codes are those of docs/exit-codes.md."""

    def __init__(self, sentence: str, exit_code: int = 7, rule: str = "") -> None:
        super().__init__(sentence)
        self.exit_code, self.rule = exit_code, rule


def require(true: bool, sentence: str) -> None:
    if not true:
        raise CannotGoOn(sentence)


# "Keys": bytes.


def joined(*parts: bytes) -> bytes:
    return b"".join(len(part).to_bytes(8, "big") + part for part in parts)


def number(n: int) -> bytes:
    return n.to_bytes(8, "big")


def texts(names: Iterable[str]) -> bytes:
    return joined(*(name.encode() for name in names))


def sha256(content: bytes) -> bytes:
    return hashlib.sha256(content).digest()


def hkdf(secret: bytes, *info: bytes) -> bytes:
    return HKDF(SHA256(), 32, salt=None, info=joined(*info)).derive(secret)


def hmac_16(key: bytes, content: bytes) -> bytes:
    return hmac.new(key, content, hashlib.sha256).digest()[:16]


@dataclass(frozen=True)
class Attempt:
    """One attempt at a job."""

    job: str
    digest: bytes
    epoch: int
    roster: tuple[str, ...]

    @property
    def context(self) -> tuple[bytes, bytes, bytes]:
        return self.digest, number(self.epoch), texts(self.roster)


# "Signatures".


def signed_bytes(purpose: str, *message: bytes) -> bytes:
    return len(purpose).to_bytes(4, "big") + purpose.encode() + joined(*message)


def sign(key: EllipticCurvePrivateKey, purpose: str, *message: bytes) -> bytes:
    return key.sign(signed_bytes(purpose, *message), ECDSA(SHA256()))


def check_signature(certificate: Certificate, signature: bytes, purpose: str, *message: bytes) -> None:
    key = certificate.public_key()
    if not isinstance(key, EllipticCurvePublicKey):
        raise CannotGoOn("a peer's certificate has no elliptic-curve key")
    try:
        key.verify(signature, signed_bytes(purpose, *message), ECDSA(SHA256()))
    except InvalidSignature:
        raise CannotGoOn(f"a signature ({purpose}) does not verify") from None


def fingerprint(certificate: Certificate) -> str:
    key = certificate.public_key().public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return "SHA256:" + sha256(key).hex()


KEY_SHARE, ENROLMENT = "ce key share 1", "ce enrolment 3"


@dataclass
class Peers:
    """Certificates and pair keys of the other sites of an attempt."""

    site: str
    attempt: Attempt
    private: X25519PrivateKey = field(default_factory=X25519PrivateKey.generate)
    certificates: dict[str, Certificate] = field(default_factory=dict)
    pair_keys: dict[str, bytes] = field(default_factory=dict)

    @property
    def public(self) -> bytes:
        return self.private.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)

    def add(self, peer: str, public: bytes, certificate: bytes, signature: bytes, pin: str | None) -> None:
        """Check a peer's key share against the pin, and derive the pair key."""
        if pin is None:
            raise CannotGoOn(f"no pin of {peer}: compare fingerprints first", 6, "unpinned peer")
        loaded = load_der_x509_certificate(certificate)
        names = loaded.extensions.get_extension_for_class(SubjectAlternativeName).value
        if names.get_values_for_type(UniformResourceIdentifier) != [f"ce://site/{peer}"]:
            raise CannotGoOn(f"the certificate of {peer} has another name", 6, "peer with another name")
        if fingerprint(loaded) != pin:
            raise CannotGoOn(f"the key of {peer} is not the pinned one", 6, "changed key of a peer")
        check_signature(loaded, signature, KEY_SHARE, *self.attempt.context, peer.encode(), public)
        try:
            shared = self.private.exchange(X25519PublicKey.from_public_bytes(public))
        except ValueError:  # of a wrong length, or a shared secret of zeros
            raise CannotGoOn(f"the public key of {peer} is refused") from None
        both = (name.encode() for name in sorted((self.site, peer)))
        keys = sorted((self.public, public))
        self.pair_keys[peer] = hkdf(shared, b"ce pair key 1", *keys, *self.attempt.context, *both)
        self.certificates[peer] = loaded

    def _associated(self, peer: str) -> bytes:
        return joined(b"ce job key 1", *self.attempt.context, self.attempt.roster[0].encode(), peer.encode())

    def encrypt_job_key(self, key: bytes, peer: str) -> tuple[bytes, bytes]:
        nonce = os.urandom(12)
        return nonce, ChaCha20Poly1305(self.pair_keys[peer]).encrypt(nonce, key, self._associated(peer))

    def decrypt_job_key(self, nonce: bytes, ciphertext: bytes) -> bytes:
        pair = self.pair_keys[self.attempt.roster[0]]
        try:
            return ChaCha20Poly1305(pair).decrypt(nonce, ciphertext, self._associated(self.site))
        except InvalidTag:
            raise CannotGoOn("the encrypted job key cannot be opened") from None


# "Digests".


def element_hash(array: Array) -> bytes:
    return blake3(np.ascontiguousarray(array).tobytes()).digest()


def task_digest(attempt: Attempt, task: Any, step: str, arrays: dict[str, Array]) -> bytes:
    def listed(values: Iterable[int]) -> str:
        return ",".join(map(str, values))

    where = f"{attempt.epoch} {task.round} {step} {task.stage} {task.iteration}"
    where += f" checkpoint {task.checkpoint}" if task.checkpoint else ""
    where += f" resume {task.resume}" if task.resume else ""
    lines = ["ce task 2", attempt.digest.hex(), where, listed(task.starts), listed(task.retry), listed(task.stop)]
    lines += [f"asked {a.name} {listed(a.shape)} {a.fraction_bits}" for a in sorted(task.asked, key=lambda a: a.name)]
    for name, array in sorted(arrays.items()):
        lines.append(f"{name} {array.dtype.kind} {listed(array.shape)} {element_hash(array).hex()}")
    return sha256("\n".join(lines).encode())


# "Masks".


def enrolment_digest(enrolments: Sequence[tuple[str, bytes, int]]) -> bytes:
    """Of all sites in order: name, summary, private objects."""
    return sha256(joined(*(part for site, own, n in enrolments for part in (site.encode(), own, number(n)))))


@dataclass(frozen=True)
class Group:
    """Shared clusterings with the same holders."""

    holders: tuple[str, ...]
    columns: tuple[str, ...]
    categories: tuple[tuple[bytes, ...], ...]


@dataclass(frozen=True)
class Block:
    """A shared block: its members, and the SHA-256 of its pseudonyms in the common order."""

    members: tuple[str, ...]
    objects: bytes


@dataclass(frozen=True)
class Masks:
    """The masks of one site under one alignment."""

    site: str
    attempt: Attempt
    pair_keys: dict[str, bytes]
    enrolments: Sequence[tuple[str, bytes, int]]  # site, summary, private objects
    blocks: dict[str, Block]  # by "block/b"
    groups: dict[str, Group]  # by "columns/g"
    holders: dict[int, tuple[str, tuple[str, ...]]]  # name and holders of this site's columns, by number

    def mask(self, task: Any, step: str, sent: dict[str, Array], words: dict[str, Array]) -> dict[str, Array]:
        """The words of a round as they leave. `sent`: the arrays of the task."""
        asked = {a.name: a for a in task.asked}
        identities = {name: self._identity(name) for name in words}
        order = sorted(words, key=lambda name: (identities[name][0], name))
        masked = {name: own.astype(np.uint64).reshape(-1) for name, own in words.items()}
        for peer in self.attempt.roster:
            names = [name for name in order if peer != self.site and peer in identities[name][0]]
            if not names:
                continue
            blocks = {scope for scope, block in self.blocks.items() if peer in block.members}
            groups = {scope for scope, group in self.groups.items() if peer in group.holders}
            view = self._view(task, step, sent, sorted(blocks | groups))
            parts = [b"ce mask context 2", self._attempt, number(task.round), view]
            for name in names:
                contributors, over = identities[name]
                identity = sha256(joined(name.split("/")[0].encode(), texts(contributors), *over))
                shape = joined(*map(number, words[name].shape))
                parts += [identity, name.encode(), shape, number(asked[name].fraction_bits)]
            key = hkdf(self._mask_key(peer, blocks), b"ce mask 2", sha256(joined(*parts)))
            encryptor = Cipher(algorithms.AES256(key), modes.CTR(bytes(16))).encryptor()
            for name in names:
                stream = np.frombuffer(encryptor.update(bytes(8 * words[name].size)), "<u8")
                masked[name] = masked[name] + stream if self.site < peer else masked[name] - stream
        return {name: own.astype(np.int64).reshape(words[name].shape) for name, own in masked.items()}

    @property
    def _attempt(self) -> bytes:
        return sha256(joined(*self.attempt.context, enrolment_digest(self.enrolments)))

    def _identity(self, name: str) -> tuple[tuple[str, ...], list[bytes]]:
        """Contributors of an array, and what it is over."""
        kind, *rest = name.split("/")
        if kind == "global":
            return self.attempt.roster, []
        if kind == "columns":
            group = self.groups[f"columns/{rest[0]}"]
            over = []
            for column, tokens in zip(group.columns, group.categories, strict=True):
                over += [column.encode(), texts(token.hex() for token in tokens)]
            return group.holders, over
        block = self.blocks[f"block/{rest[0]}"]
        if rest[1] != "claims":
            return block.members, [block.objects]
        column, holders = self.holders[int(rest[2])]
        return tuple(m for m in block.members if m in holders), [block.objects, column.encode()]

    def _view(self, task: Any, step: str, sent: dict[str, Array], scopes: list[str]) -> bytes:
        header = [step.encode(), number(task.stage), number(task.iteration)]
        header += [joined(*map(number, task.starts)), joined(*map(number, task.retry))]
        header += [number(task.resume)] if task.resume else []
        parts: list[bytes] = []
        for name, array in sorted(sent.items()):
            if name.startswith("global/") or "/".join(name.split("/")[:2]) in scopes:
                parts += [name.encode(), element_hash(array)]
        return sha256(joined(b"ce view 1", joined(*header), *parts))

    def _mask_key(self, peer: str, together: set[str]) -> bytes:
        parts = [
            joined(scope.encode(), texts(self.blocks[scope].members), self.blocks[scope].objects)
            for scope in sorted(together)
        ]
        return hkdf(self.pair_keys[peer], b"ce blocks 1", sha256(joined(*parts)))
