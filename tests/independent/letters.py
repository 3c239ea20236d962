"""What an independent site writes to the others before it is aligned, from docs/protocol.md ("Letters")."""

from __future__ import annotations

import hashlib
import hmac
import os
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from keys_and_masks import Attempt, CannotGoOn, hkdf, joined, number, require, sha256

ALL, SAMPLE, POINTS = 20_000, 4_096, 200_000
NO_CUTOFF = 2**64 - 1
CURVE = ec.SECP256R1()


def list_length(objects: int, peers: int) -> int:
    share = POINTS // max(peers, 1)
    return objects if objects <= min(ALL, share) else min(SAMPLE, share)


def parts_of(content: bytes) -> list[bytes]:
    parts = []
    while content:
        size = int.from_bytes(content[:8], "big")
        require(len(content) >= 8 + size, "letter: parts are cut short")
        parts.append(content[8 : 8 + size])
        content = content[8 + size :]
    return parts


def pieces(content: bytes, size: int) -> list[bytes]:
    return [content[at : at + size] for at in range(0, len(content), size)]


def point(x: bytes) -> ec.EllipticCurvePublicKey:
    return ec.EllipticCurvePublicKey.from_encoded_point(CURVE, b"\x02" + x)


def enough(claims: list[Any]) -> tuple[int, int]:
    """Labels at a holder, holders; `claims`: the enrolments of a column's holders."""
    sites = max(c.min_sites for c in claims)
    asked = max(-(-c.min_objects // c.min_sites) for c in claims)
    least = next(step for step in (1, 2, 3, 4, 5, 6, 7, 20, 100, 1_000, 10_000, 100_000, 1_000_000) if step >= asked)
    free = sites == 1 and all(c.min_objects == 1 for c in claims)
    return (0 if free else least), sites


@dataclass
class Letters:
    """The letters of one revision."""

    site: str
    attempt: Attempt
    pair_keys: dict[str, bytes]
    enrolments: dict[str, Any]  # EnrolmentSummary, by site
    summaries: dict[str, bytes]  # what was signed
    revision: int
    job_key: bytes
    pseudonyms: list[bytes]
    tokens: dict[str, list[bytes | None]]  # labels of this site's clusterings
    secret: ec.EllipticCurvePrivateKey
    compares: bool = True  # objects; not in sealed jobs
    chosen: dict[str, list[tuple[bytes, int, bytes]]] = field(default_factory=dict)  # by peer: point, tag, pseudonym
    theirs: dict[str, tuple[int, set[bytes]]] = field(default_factory=dict)
    vocabularies: dict[str, tuple[bytes, ...]] = field(default_factory=dict)
    #: By peer: of the pseudonyms that were compared, whether the peer has them.
    overlaps: dict[str, dict[bytes, bool]] = field(default_factory=dict)

    def _length(self, site: str) -> int:
        return list_length(self.enrolments[site].objects, len(self.pair_keys)) if self.compares else 0

    def _shared(self, one: str, other: str) -> list[Any]:
        """Clusterings of one site that another holds too, by name."""
        names = {c.name for c in self.enrolments[other].columns if c.kind == 1}
        return sorted(
            (c for c in self.enrolments[one].columns if c.kind == 1 and c.name in names), key=lambda c: c.name
        )

    def _holders(self, column: str) -> list[Any]:
        return [e for e in self.enrolments.values() if any(c.name == column and c.kind == 1 for c in e.columns)]

    def _counting(self, column: str) -> list[bytes]:
        least, _ = enough(self._holders(column))
        labels = [token for token in self.tokens[column] if token is not None]
        return sorted(token for token in set(labels) if labels.count(token) >= least)

    def _blinded(self, pseudonym: bytes) -> bytes:
        key, attempt = hkdf(self.job_key, b"ce overlap 1"), 0
        while True:
            x = hmac.new(key, pseudonym + number(attempt), hashlib.sha256).digest()
            try:
                return self.secret.exchange(ec.ECDH(), point(x))
            except ValueError:
                attempt += 1

    def first(self) -> dict[str, bytes]:
        all_of_them = self.compares and len(self.pseudonyms) <= ALL
        blinded = {p: self._blinded(p) for p in self.pseudonyms} if all_of_them else {}
        boxes = {}
        for peer, key in self.pair_keys.items():
            cipher = Cipher(algorithms.AES256(hkdf(key, b"ce overlap sample 1")), modes.ECB()).encryptor()
            tags = [int.from_bytes(tag[:8], "big") for tag in pieces(cipher.update(b"".join(self.pseudonyms)), 16)]
            by_tag = sorted(zip(tags, self.pseudonyms, strict=True))[: self._length(self.site)]
            everything = len(by_tag) == len(self.pseudonyms)
            mine = sorted((blinded.get(p) or self._blinded(p), tag, p) for tag, p in by_tag)
            self.chosen[peer] = mine
            cutoff = NO_CUTOFF if everything and self.compares else by_tag[-1][0] if by_tag else 0
            columns = []
            for c in self._shared(self.site, peer):
                counting = self._counting(c.name)
                columns += [c.name.encode(), number(len(counting)) + b"".join(counting).ljust(16 * c.categories, b"\0")]
            content = joined(number(cutoff), b"".join(x for x, _, _ in mine), joined(*columns))
            boxes[peer] = self._encrypt(1, peer, content)
        return boxes

    def second(self, boxes: dict[str, bytes]) -> dict[str, bytes]:
        told = {c.name: [self._counting(c.name)] for c in self.enrolments[self.site].columns if c.kind == 1}
        answers = {}
        for peer, content in self._decrypt(1, boxes):
            require(len(parts_of(content)) == 3, f"letter of {peer}: not three parts")
            cutoff, points, columns = parts_of(content)
            theirs = pieces(points, 32)
            require(len(points) == 32 * self._length(peer), f"letter of {peer}: number of points")
            require(len(set(theirs)) == len(theirs), f"letter of {peer}: two points are equal")
            try:
                again = [self.secret.exchange(ec.ECDH(), point(x)) for x in theirs]
            except ValueError:
                raise CannotGoOn(f"letter of {peer}: a point is not on the curve") from None
            self.theirs[peer] = int.from_bytes(cutoff, "big"), set(again)
            shared, parts = self._shared(peer, self.site), parts_of(columns)
            require([part.decode() for part in parts[::2]] == [c.name for c in shared], f"letter of {peer}: columns")
            for c, part in zip(shared, parts[1::2], strict=True):
                count = int.from_bytes(part[:8], "big")
                require(len(part) == 8 + 16 * c.categories and count <= c.categories, f"letter of {peer}: categories")
                told[c.name].append(pieces(part[8:], 16)[:count])
            answers[peer] = self._encrypt(2, peer, joined(b"".join(again)))
        for name, lists in told.items():
            holders = self._holders(name)
            if len(holders) > 1:
                known = {token for tokens in lists for token in tokens}
                _, least = enough(holders)
                agreed = [token for token in known if sum(token in tokens for tokens in lists) >= least]
                self.vocabularies[name] = tuple(sorted(agreed))
        return answers

    def end(self, boxes: dict[str, bytes]) -> None:
        for peer, content in self._decrypt(2, boxes):
            require(len(parts_of(content)) == 1, f"letter of {peer}: not one part")
            returned = pieces(parts_of(content)[0], 32)
            require(len(returned) == len(self.chosen[peer]), f"letter of {peer}: number of points")
            cutoff, theirs = self.theirs[peer]
            self.overlaps[peer] = {
                pseudonym: x in theirs
                for (_, tag, pseudonym), x in zip(self.chosen[peer], returned, strict=True)
                if tag <= cutoff
            }

    def check(self, blocks: dict[int, tuple[tuple[str, ...], Any]]) -> None:
        """That the alignment says of each peer what was found."""
        for peer, found in self.overlaps.items():
            for members, rows in blocks.values():
                for row in np.asarray(rows).tolist():
                    said = peer in members
                    if found.get(self.pseudonyms[row], said) != said:
                        raise CannotGoOn(f"the alignment is not what {peer} and this site found", 6, "overlap of sites")

    def _associated(self, stage: int, sender: str, receiver: str) -> bytes:
        shown = sha256(joined(*(part for s, summary in self.summaries.items() for part in (s.encode(), summary))))
        where = (shown, number(self.revision), number(stage), sender.encode(), receiver.encode())
        return joined(b"ce letter 1", *self.attempt.context, *where)

    def _encrypt(self, stage: int, peer: str, content: bytes) -> bytes:
        nonce = os.urandom(12)
        cipher = ChaCha20Poly1305(self.pair_keys[peer])
        return nonce + cipher.encrypt(nonce, content, self._associated(stage, self.site, peer))

    def _decrypt(self, stage: int, boxes: dict[str, bytes]) -> list[tuple[str, bytes]]:
        require(set(boxes) == set(self.pair_keys), "letters: not one from each other site")
        found = []
        for peer, key in self.pair_keys.items():
            try:
                cipher = ChaCha20Poly1305(key)
                associated = self._associated(stage, peer, self.site)
                found.append((peer, cipher.decrypt(boxes[peer][:12], boxes[peer][12:], associated)))
            except InvalidTag:
                raise CannotGoOn(f"the letter of {peer} cannot be opened") from None
        return found
