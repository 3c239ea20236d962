"""A small independent site: takes part in one job, masked bce or sealed pairs, then ends.

    python tests/independent/site_client.py CONFIG.json

Written from docs/protocol.md ("A minimal site"), docs/site-computation.md and proto/ce_proto/v1 alone: nothing of
`ce`, `ce_client` or `ce_coordinator` is imported, only the stubs of the wire. It has hard labels, no checkpoints, no
blind, no policy beyond "such jobs with pinned peers", and does not connect again.

CONFIG.json: site, coordinator (address), key, certificate, ca, peers (peers.toml), secret, labels (CSV), consensus (the
CSV file to write); `protocol` (optional): the version that Hello says. The output is "connected" and, when the job is
done, a line of JSON: rounds, revision, and of a bce job retries, stopped (the round of each start), winner.
"""

from __future__ import annotations

import csv
import json
import os
import queue
import re
import sys
import tomllib
import unicodedata
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
from bce_site import Bce, Clustering
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePrivateKey, generate_private_key
from cryptography.hazmat.primitives.serialization import Encoding, load_pem_private_key
from cryptography.x509 import load_pem_x509_certificate
from keys_and_masks import (
    ENROLMENT,
    KEY_SHARE,
    Array,
    Attempt,
    Block,
    CannotGoOn,
    Group,
    Masks,
    Peers,
    check_signature,
    enrolment_digest,
    hkdf,
    hmac_16,
    joined,
    number,
    require,
    sha256,
    sign,
    task_digest,
    texts,
)
from letters import Letters
from sealed_site import sealed_site

from ce_proto.v1 import arrays_pb2, site_pb2
from ce_proto.v1.site_pb2_grpc import SiteServiceStub

PROTOCOL = 4
WELCOME_S = 10.0
FRAME_BYTES = 2**20
MESSAGE_BYTES = 4 * 2**20
MISSING = {"", "NA", "NaN", "nan", "null"}
TYPES = {1: "<i8", 2: "<f8", 3: "u1"}
KINDS = {1: "clustering", 2: "classifier"}
WRITTEN = {0: "", 1: "integers", 2: "text"}
FOLLOWS = {"": {"open"}, "open": {"counts"}, "counts": {"sums"}, "sums": {"sums", "finish"}, "finish": set[str]()}


def clean(text: str) -> str:
    """Ids, names of columns and labels as they are compared, and as pseudonyms and tokens are made of them."""
    return unicodedata.normalize("NFC", text.strip())


class LabelFile:
    """Ids and hard clusterings of a CSV file (docs/formats.md)."""

    def __init__(self, path: Path) -> None:
        with path.open(newline="", encoding="utf-8") as file:
            header, *rows = list(csv.reader(file))
        at = header.index("id")
        self.ids = [clean(row[at]) for row in rows]
        self.columns: dict[str, list[int | str | None]] = {}
        for place, name in enumerate(header):
            if place == at or name.startswith("clf:"):  # bce does not use classifiers
                continue
            if name.startswith("soft:"):
                raise CannotGoOn("this site has no soft labels", 3)
            self.columns[clean(name)] = self._labels([clean(row[place]) for row in rows])

    @staticmethod
    def _labels(cells: list[str]) -> list[int | str | None]:
        """Whole numbers, or text; None where missing."""
        found = [None if cell in MISSING or re.fullmatch(r"-0*[1-9][0-9]*", cell) else cell for cell in cells]
        if all(cell is None or re.fullmatch(r"[+-]?[0-9]+(\.0*)?", cell) for cell in found):
            return [None if cell is None else int(cell.partition(".")[0]) for cell in found]
        return list(found)


class Inbox:
    """Puts the arrays of a message together again, over its More frames."""

    def __init__(self) -> None:
        self.message: Any = None
        self._parts: dict[str, tuple[arrays_pb2.ArrayChunk, bytearray]] = {}

    def take(self, message: Any) -> bool:
        """Whether the message is complete."""
        if not isinstance(message, site_pb2.More):
            require(self.message is None, "a message begins before the last one has ended")
            self.message, self._parts = message, {}
        require(self.message is not None, "More without a message that goes on")
        for chunk in message.chunks.chunks:
            first, data = self._parts.setdefault(chunk.name, (chunk, bytearray()))
            require(chunk.offset == len(data), f"{chunk.name}: offset: expected {len(data)}, got {chunk.offset}")
            require((chunk.type, chunk.shape) == (first.type, first.shape), f"{chunk.name}: chunks differ")
            data += chunk.data
        return bool(message.chunks.last)

    def complete(self) -> tuple[Any, dict[str, Array]]:
        found = {}
        for name, (chunk, data) in self._parts.items():
            found[name] = np.frombuffer(bytes(data), TYPES[chunk.type]).reshape(tuple(chunk.shape))
            if chunk.type == arrays_pb2.ELEMENT_TYPE_FLOAT64:
                require(bool(np.isfinite(found[name]).all()), f"{name}: not finite")
        message, self.message = self.message, None
        return message, found


def chunked(arrays: dict[str, tuple[Array, int]]) -> list[arrays_pb2.ArrayChunks]:
    """Arrays and their fraction bits as the chunks of one frame after the other, each array apart."""
    parts = []
    for name, (array, bits) in sorted(arrays.items()):
        byte = array.dtype == np.uint8
        kind = arrays_pb2.ELEMENT_TYPE_BYTE if byte else arrays_pb2.ELEMENT_TYPE_INT64
        data = array.astype("u1" if byte else "<i8").tobytes()
        for offset in range(0, max(len(data), 1), FRAME_BYTES):
            piece = data[offset : offset + FRAME_BYTES]
            parts.append(
                arrays_pb2.ArrayChunk(
                    name=name, type=kind, shape=array.shape, fraction_bits=bits, offset=offset, data=piece
                )
            )
    frames = [arrays_pb2.ArrayChunks(chunks=[part]) for part in parts] or [arrays_pb2.ArrayChunks()]
    frames[-1].last = True
    return frames


class Job:
    """One attempt at a job, from the offer to the end. Every method returns the frames to send."""

    def __init__(self, config: dict[str, str], offer: site_pb2.Offer) -> None:
        self.config, self.site = config, config["site"]
        self.attempt = Attempt(offer.job, sha256(offer.definition), offer.epoch, tuple(offer.roster))
        self.definition = json.loads(offer.definition)
        require(self.definition["name"] == offer.job, "name: not that of the offer")
        self.sealed = self.definition["privacy"] == "sealed"
        model, privacy = ("pairs", "sealed") if self.sealed else ("bce", "masked")
        for wish, value, rule in (("model", model, "models"), ("privacy", privacy, "weakest_privacy")):
            if self.definition[wish] != value:
                raise CannotGoOn(f"{wish}: expected {value}, got {self.definition[wish]}", 6, rule)
        require("precision" not in self.definition, "precision: this site has words of 64 bits only")
        require(list(offer.roster) == sorted(self.definition["sites"]), "roster: not the job's sites in order of name")
        require(self.site in offer.roster, "roster: this site is not in it")
        self.secret = bytes.fromhex(Path(config["secret"]).read_text().strip())
        self.pins = tomllib.loads(Path(config["peers"]).read_text())
        key = load_pem_private_key(Path(config["key"]).read_bytes(), None)
        assert isinstance(key, EllipticCurvePrivateKey)
        self.key, self.certificate = key, load_pem_x509_certificate(Path(config["certificate"]).read_bytes())
        self.table = LabelFile(Path(config["labels"]))
        self.peers = Peers(self.site, self.attempt)
        self.peers.certificates[self.site] = self.certificate
        self.inbox = Inbox()
        self.blinding = generate_private_key(SECP256R1())
        self.introduced = b""
        self.letters: Any = None  # Letters, from the introduction on
        self.written: dict[int, list[site_pb2.SiteFrame]] = {}  # letters, by stage
        self.step, self.round, self.iteration, self.starts = "", 0, 0, list[int]()
        self.words_left = False  # masked words have left this site in this attempt
        self.aligned, self.revision = b"", -1  # the alignment that holds
        self.stopped: dict[int, int] = {}  # rounds in which starts stopped
        self.answered: tuple[bytes, list[site_pb2.SiteFrame]] = (b"", [])

    def _frames(self, kind: str, message: Any, arrays: dict[str, tuple[Array, int]]) -> list[site_pb2.SiteFrame]:
        first, *more = chunked(arrays)
        message.chunks.CopyFrom(first)
        frames = [site_pb2.SiteFrame(**{kind: message})]
        job, epoch = self.attempt.job, self.attempt.epoch
        return frames + [site_pb2.SiteFrame(more=site_pb2.More(job=job, epoch=epoch, chunks=part)) for part in more]

    # Keys.

    def key_share(self) -> list[site_pb2.SiteFrame]:
        public = self.peers.public
        share = site_pb2.KeyShare(
            job=self.attempt.job,
            epoch=self.attempt.epoch,
            public_key=public,
            certificate=self.certificate.public_bytes(Encoding.DER),
            signature=sign(self.key, KEY_SHARE, *self.attempt.context, self.site.encode(), public),
        )
        return [site_pb2.SiteFrame(key_share=share)]

    @property
    def disclosure_digest(self) -> bytes:
        """What the job key and the starts follow from: the definition without what changes no total."""
        keys = {key: value for key, value in self.definition.items() if key not in ("name", "deadlines", "privacy")}
        keys |= {"sites": sorted(keys["sites"])} | {key: float(keys[key]) for key in ("tolerance", "smoothing")}
        return sha256(json.dumps(keys, sort_keys=True, separators=(",", ":")).encode())

    def take_peers(self, message: site_pb2.Peers) -> list[site_pb2.SiteFrame]:
        require([peer.site for peer in message.peers] == list(self.attempt.roster), "peers: not those of the roster")
        for peer in message.peers:
            if peer.site == self.site:
                require(peer.public_key == self.peers.public, "peers: not the public key of this site")
            else:
                share = (peer.public_key, peer.certificate, peer.signature)
                self.peers.add(peer.site, *share, pin=self.pins.get(peer.site))
        first, *others = self.attempt.roster
        if self.site != first:
            return []  # the job key comes from the first site
        job_key = hkdf(self.secret, b"ce job key", self.disclosure_digest)
        keys = site_pb2.EncryptedKeys(job=self.attempt.job, epoch=self.attempt.epoch)
        for site in others:
            nonce, ciphertext = self.peers.encrypt_job_key(job_key, site)
            keys.keys.add(job=keys.job, epoch=keys.epoch, site=site, nonce=nonce, ciphertext=ciphertext)
        return [site_pb2.SiteFrame(encrypted_keys=keys), *self._enrol(job_key)]

    def take_encrypted_key(self, message: site_pb2.EncryptedKey) -> list[site_pb2.SiteFrame]:
        return self._enrol(self.peers.decrypt_job_key(message.nonce, message.ciphertext))

    # Enrolment and alignment.

    def _enrol(self, job_key: bytes) -> list[site_pb2.SiteFrame]:
        self.job_key = job_key
        names = [hmac_16(job_key, id_.encode()) for id_ in self.table.ids]
        self.order = sorted(range(len(names)), key=names.__getitem__)  # rows of the label file, by pseudonym
        self.pseudonyms = [names[row] for row in self.order]
        self.tokens: dict[str, list[bytes | None]] = {}
        # The same in every attempt, and known to no other site.
        salt = hkdf(self.secret, b"salt", self.attempt.digest)[:16]
        enrolment = site_pb2.Enrolment(
            job=self.attempt.job,
            epoch=self.attempt.epoch,
            objects=len(names),
            pseudonym_salt=salt,
            pseudonym_digest=sha256(salt + b"".join(self.pseudonyms)),
            key_commitment=hkdf(job_key, b"ce key commitment 1", self.attempt.digest, texts(self.attempt.roster)),
            min_sites=1,
            min_objects=1,
        )
        for name, labels in sorted(self.table.columns.items()):
            spelled = [None if v is None else f"{'int' if isinstance(v, int) else 'str'} {v}" for v in labels]
            self.tokens[name] = [
                None if text is None else hmac_16(job_key, joined(b"category", name.encode(), text.encode()))
                for text in spelled
            ]
            seen = [v for v in labels if v is not None]
            enrolment.columns.add(
                name=name,
                kind=site_pb2.COLUMN_KIND_CLUSTERING,
                categories_are=1 if isinstance(seen[0], int) else 2,
                category_count=len({token for token in self.tokens[name] if token is not None}),
                labels=(100 if seen else 0) if self.sealed else min(len(seen), 100),
            )
        self.summary = summary_of(enrolment, [(c, c.category_count) for c in enrolment.columns])
        context = (*self.attempt.context, self.site.encode(), self.summary)
        enrolment.signature = sign(self.key, ENROLMENT, *context)
        array = np.frombuffer(b"".join(self.pseudonyms), np.uint8).reshape(-1, 16)
        return self._frames("enrolment", enrolment, {"pseudonyms": (array, 0)})

    def take_introduction(self, message: site_pb2.Introduction) -> list[site_pb2.SiteFrame]:
        known = message.SerializeToString(deterministic=True)
        if known != self.introduced:
            require(self.step in ("", "open", "counts"), "introduction: comes after more than counts was answered")
            require(message.revision > self.revision, f"revision: expected more than {self.revision}")
            summaries = self._check_enrolments(message)
            enrolments = {e.site: e for e in message.enrolments}
            pairs = {site: self.peers.pair_keys[site] for site in self.attempt.roster if site != self.site}
            self.letters = Letters(
                self.site,
                self.attempt,
                pairs,
                enrolments,
                dict(zip(enrolments, summaries, strict=True)),
                message.revision,
                self.job_key,
                self.pseudonyms,
                self.tokens,
                self.blinding,
                compares=not self.sealed,
            )
            self.introduced, self.written = known, {1: self._letters(1, self.letters.first())}
        return self.written[1]

    def take_letters(self, message: site_pb2.Letters, arrays: dict[str, Array]) -> list[site_pb2.SiteFrame]:
        require(self.letters is not None and message.revision == self.letters.revision, "letters: revision")
        boxes = {name.removeprefix("box/"): array.tobytes() for name, array in arrays.items()}
        if message.stage == 1 and 2 not in self.written:
            self.written[2] = self._letters(2, self.letters.second(boxes))
        if message.stage == 2 and not self.letters.overlaps:
            self.letters.end(boxes)
        return self.written[2] if message.stage == 1 else []

    def _letters(self, stage: int, boxes: dict[str, bytes]) -> list[site_pb2.SiteFrame]:
        message = site_pb2.Letters(
            job=self.attempt.job, epoch=self.attempt.epoch, revision=self.letters.revision, stage=stage
        )
        for name, tokens in sorted(self.letters.vocabularies.items()):
            message.vocabularies.add(column=name, categories=len(tokens))
        return self._frames("letters", message, {f"box/{s}": (np.frombuffer(b, "u1"), 0) for s, b in boxes.items()})

    def take_alignment(self, message: site_pb2.Alignment, arrays: dict[str, Array]) -> list[site_pb2.SiteFrame]:
        """Check it, and begin anew with round 1. The sites are aligned again when one has left out objects."""
        known = message.SerializeToString(deterministic=True)
        ready = site_pb2.Ready(job=self.attempt.job, epoch=self.attempt.epoch, revision=message.revision)
        if known == self.aligned:  # again, after a broken stream
            return [site_pb2.SiteFrame(ready=ready)]
        letters = self.letters
        require(self.step in ("", "open", "counts"), "alignment: comes after more than counts was answered")
        require(letters is not None and message.revision == letters.revision > self.revision, "alignment: revision")
        require(set(letters.overlaps) == set(letters.pair_keys), "alignment: comes before the letters")
        blocks = {b.index: (tuple(b.members), arrays[f"rows/{b.index}"]) for b in message.blocks}
        self._check_blocks(message, blocks)
        letters.check(blocks)
        self._check_columns(message)
        shared = {b: members for b, (members, _) in blocks.items() if len(members) > 1}
        columns = [self._clustering(view) for view in message.columns]
        if shared and any(c.shared for c in columns):
            require(message.needs_two_exchanges, "needs_two_exchanges: expected true")
        if any(members != self.attempt.roster for members in shared.values()):
            require(not message.shared_by_all, "shared_by_all: expected false")
        enrolled = [(*known, n) for known, n in zip(letters.summaries.items(), message.private_objects, strict=True)]
        self.aligned, self.revision = known, message.revision
        self.step, self.round, self.iteration, self.starts, self.answered = "", 0, 0, [], (b"", [])
        if self.sealed:
            names = {b: (members, rows, self._objects(rows)) for b, (members, rows) in blocks.items()}
            about = (message, letters.enrolments, columns, names, self.peers.pair_keys, enrolment_digest(enrolled))
            self.sealed_site = sealed_site(self.site, self.attempt, self.definition, *about)
            return [site_pb2.SiteFrame(ready=ready)]
        self.model = Bce(self.site, self.definition, message.sizes, columns, blocks, len(self.pseudonyms))
        self.masks = Masks(
            self.site,
            self.attempt,
            self.peers.pair_keys,
            enrolled,
            {f"block/{b}": Block(members, self._objects(blocks[b][1])) for b, members in shared.items()},
            {
                f"columns/{g}": Group(of[0].holders, tuple(c.name for c in of), tuple(c.tokens for c in of))
                for g, of in self.model.groups.items()
            },
            {c.index: (c.name, c.holders) for c in columns},
        )
        return [site_pb2.SiteFrame(ready=ready)]

    def _objects(self, rows: Array) -> bytes:
        return sha256(b"".join(self.pseudonyms[row] for row in rows))

    def _check_enrolments(self, message: site_pb2.Introduction) -> list[bytes]:
        """The summaries that the sites have signed."""
        require([e.site for e in message.enrolments] == list(self.attempt.roster), "enrolments: not the roster's")
        require(message.revision == max(e.revision for e in message.enrolments), "revision: not the highest")
        summaries = []
        for e in message.enrolments:
            summary = summary_of(e, [(c, c.categories) for c in e.columns])
            context = (*self.attempt.context, e.site.encode(), summary)
            check_signature(self.peers.certificates[e.site], e.signature, ENROLMENT, *context)
            require(1 <= e.min_sites <= 1_000 and 1 <= e.min_objects <= 1_000_000, f"wishes of {e.site}")
            require(all(c.labels <= 100 for c in e.columns), f"labels of {e.site}")
            require(e.site != self.site or summary == self.summary, "not the enrolment that this site made")
            summaries.append(summary)
        if len({e.key_commitment for e in message.enrolments}) > 1:
            raise CannotGoOn(f"{self.attempt.roster[0]} gave the sites different job keys", 6, "one job key")
        return summaries

    def _check_blocks(self, message: site_pb2.Alignment, blocks: dict[int, tuple[tuple[str, ...], Array]]) -> None:
        enrolled = self.letters.enrolments
        rows = np.concatenate([rows for _, rows in blocks.values()])
        require(sorted(rows.tolist()) == list(range(len(self.pseudonyms))), "blocks: not each object once")
        require(len({members for members, _ in blocks.values()}) == len(blocks), "blocks: two with the same members")
        for b in message.blocks:
            members, positions = blocks[b.index]
            require(list(members) == sorted(set(members)) and self.site in members, f"block {b.index}: members")
            require(b.size == len(positions), f"block {b.index}: size")
            require(b.size <= min(enrolled[m].objects for m in members), f"block {b.index}: larger than an enrolment")
            require(bool((np.diff(positions) > 0).all()), f"block {b.index}: not in order of pseudonyms")
        alone = [len(positions) for members, positions in blocks.values() if len(members) == 1]
        private = dict(zip(enrolled, message.private_objects, strict=True))
        require(private[self.site] == sum(alone), "private_objects: not those of this site")
        require(all(n <= enrolled[s].objects for s, n in private.items()), "private_objects: more than objects")
        sizes = [e.objects for e in enrolled.values()]
        require(max(sizes) <= message.sizes.objects <= sum(sizes), "sizes: objects")

    def _check_columns(self, message: site_pb2.Alignment) -> None:
        holders: dict[str, list[tuple[str, site_pb2.ColumnSummary]]] = {}
        for e in self.letters.enrolments.values():
            for c in e.columns:
                holders.setdefault(c.name, []).append((e.site, c))
        kinds = {name: int(claims[0][1].kind) for name, claims in holders.items()}
        require(message.sizes.clusterings == list(kinds.values()).count(1), "sizes: clusterings")
        require(message.sizes.classifiers == list(kinds.values()).count(2), "sizes: classifiers")
        counts = {n: [c.categories for _, c in claims] for n, claims in holders.items() if kinds[n] == 1}
        known = {view.name: len(self._categories(view)) for view in message.columns}
        low = sum(known.get(name, sum(found) if len(found) == 1 else 0) for name, found in counts.items())
        high = sum(known.get(name, sum(found)) for name, found in counts.items())
        require(low <= message.sizes.categories <= high, "sizes: categories")
        require(sorted(v.name for v in message.columns) == sorted(self.tokens), "columns: not those of this site")
        for view in message.columns:
            require(list(view.holders) == [site for site, _ in holders[view.name]], f"column {view.index}: holders")
            require(view.category_count == known[view.name], f"column {view.index}: number of categories")

    def _categories(self, view: site_pb2.ColumnView) -> tuple[bytes, ...]:
        """Tokens of the categories that take part, in order."""
        if len(view.holders) > 1:
            return self.letters.vocabularies[view.name]
        return tuple(sorted({token for token in self.tokens[view.name] if token is not None}))

    def _clustering(self, view: site_pb2.ColumnView) -> Clustering:
        categories = self._categories(view)
        where = {token: at for at, token in enumerate(categories)}
        tokens = self.tokens[view.name]
        found = [tokens[row] for row in self.order]
        labels = np.array([-1 if token is None else where.get(token, -1) for token in found])
        own = hkdf(self.secret, b"ce start of a column with one holder", self.disclosure_digest)
        key = self.job_key if len(view.holders) > 1 else own
        return Clustering(view.index, view.name, tuple(view.holders), categories, labels, key)

    # Tasks.

    def take_task(self, task: site_pb2.Task, arrays: dict[str, Array]) -> list[site_pb2.SiteFrame]:
        step = site_pb2.Step.Name(task.step).removeprefix("STEP_").lower()
        where = f"in job {self.attempt.job}, round {task.round}"
        digest = task_digest(self.attempt, task, step, arrays)
        require(digest == task.digest, f"digest: not that of the task, {where}")
        if task.round == self.round and self.answered[0] == digest:
            return self.answered[1]
        require(task.round > self.round, f"round: expected more than {self.round}, got {task.round}")
        require(task.resume == 0, f"resume: expected 0, got {task.resume}, {where}")
        if self.sealed:
            return self._take_sealed(task, step, arrays, digest, where)
        self._check_order(task, step, where)
        down, up = self.model.expected(step, task)
        got = {name: array.shape for name, array in arrays.items()}
        require(got == down, f"arrays: expected {down}, got {got}, {where}")
        asked = {a.name: (tuple(a.shape), a.fraction_bits) for a in task.asked}
        require(asked == up, f"asked: expected {up}, got {asked}, {where}")
        words = self.model.answer(step, task, arrays)
        if step == "finish":
            self._write(task, arrays)
        for name, (shape, _) in up.items():
            require(words[name].shape == shape, f"{name}: computed a shape that differs from the one asked for")
        hidden = self.masks.mask(task, step, arrays, {name: words[name] for name in up})
        masked = {name: (hidden[name], bits) for name, (_, bits) in up.items()}
        answer = site_pb2.Answer(
            job=task.job, epoch=task.epoch, round=task.round, step=task.step, starts=task.starts, task_digest=digest
        )
        frames = self._frames("answer", answer, masked)
        self.step, self.round, self.iteration, self.starts = step, task.round, task.iteration, list(task.starts)
        self.stopped |= dict.fromkeys(task.stop, task.round)
        self.answered, self.words_left = (digest, frames), True
        return frames

    def _take_sealed(
        self, task: site_pb2.Task, step: str, arrays: dict[str, Array], digest: bytes, where: str
    ) -> list[site_pb2.SiteFrame]:
        lists = (task.starts, task.stop, task.retry, task.stage, task.iteration, task.checkpoint)
        require(not any(lists), f"starts, stages, iterations or checkpoints in a sealed job, {where}")
        require(all(len(a.shape) == 1 and a.fraction_bits == 0 for a in task.asked), f"asked: not bytes, {where}")
        self.words_left |= step != "meet"
        sent = self.sealed_site.answer(step, task.round, arrays, {a.name: a.shape[0] for a in task.asked})
        if step == "finish":
            found = self.sealed_site
            assert found.memberships is not None
            rows = [["", ""] + [""] * found.k for _ in self.order]
            for row, label, chances in zip(self.order, found.found.tolist(), found.memberships.tolist(), strict=True):
                alone = chances[0] == chances[0]
                rows[row] = [label if label >= 0 else "", *([max(chances), *chances] if alone else rows[row][1:])]
            self._write_rows(found.k, rows)
        answer = site_pb2.Answer(job=task.job, epoch=task.epoch, round=task.round, step=task.step, task_digest=digest)
        frames = self._frames("answer", answer, {name: (np.frombuffer(b, "u1"), 0) for name, b in sent.items()})
        self.step, self.round, self.answered = step, task.round, (digest, frames)
        return frames

    def _check_order(self, task: site_pb2.Task, step: str, where: str) -> None:
        expected = FOLLOWS[self.step]
        require(step in expected, f"step: expected {' or '.join(sorted(expected))}, got {step}, {where}")
        starts, stop = list(task.starts), list(task.stop)
        require(task.stage == 0, f"stage: expected 0, got {task.stage}, {where}")
        if step in ("open", "counts"):
            require((starts, stop, task.iteration) == ([], [], 0), f"{step}: starts, stop or iteration, {where}")
        elif step == "sums":
            require(task.iteration == self.iteration + 1, f"iteration: got {task.iteration}, {where}")
            before = self.starts if self.step == "sums" else self.model.starts_at_first
            require(sorted(starts + stop) == before and starts != [], f"starts and stop: not {before}, {where}")
        else:
            require(stop == self.starts and len(starts) == 1, f"finish: starts and stop, {where}")
        require(set(task.retry) <= set(starts), f"retry: not among starts, {where}")

    def passed(self) -> dict[str, Any]:
        """What the job went through, for tests."""
        if self.sealed:
            return {"rounds": self.round, "revision": self.revision}
        stopped = [self.stopped[start] for start in self.model.starts_at_first]
        return {
            "rounds": self.round,
            "revision": self.revision,
            "retries": self.model.retries,
            "stopped": stopped,
            "winner": self.starts[0],
        }

    def _write(self, task: site_pb2.Task, arrays: dict[str, Array]) -> None:
        found, labelled = self.model.memberships(task, arrays)
        rows = np.empty_like(found)
        rows[self.order] = found
        has = np.empty_like(labelled)
        has[self.order] = labelled
        both = zip(rows.tolist(), has.tolist(), strict=True)
        written = [[row.index(max(row)) if with_label else "", max(row), *row] for row, with_label in both]
        self._write_rows(self.model.k, written)

    def _write_rows(self, k: int, rows: list[Any]) -> None:
        """Label, confidence and memberships, in the order of the label file."""
        with Path(self.config["consensus"]).open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file)
            writer.writerow(["id", "label", "confidence", *(f"p{h}" for h in range(k))])
            writer.writerows([id_, *row] for id_, row in zip(self.table.ids, rows, strict=True))
            file.flush()
            os.fsync(file.fileno())


def summary_of(enrolment: Any, columns: Iterable[tuple[Any, int]]) -> bytes:
    """What is signed of an Enrolment or EnrolmentSummary; columns with their number of categories."""
    parts = [
        joined(
            c.name.encode(),
            KINDS[c.kind].encode(),
            b"soft" if c.soft else b"hard",
            WRITTEN[c.categories_are].encode(),
            number(categories),
            number(c.labels),
        )
        for c, categories in columns
    ]
    return joined(
        number(enrolment.objects),
        joined(*parts),
        enrolment.pseudonym_digest,
        number(enrolment.revision),
        enrolment.key_commitment,
        number(enrolment.min_sites),
        number(enrolment.min_objects),
    )


class Client:
    """The stream to the coordinator."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.config = config
        self.job: Job | None = None
        self._frames: queue.SimpleQueue[site_pb2.SiteFrame | None] = queue.SimpleQueue()

    def _requests(self) -> Iterator[site_pb2.SiteFrame]:
        while (frame := self._frames.get()) is not None:
            yield frame

    def run(self) -> int:
        """Take part in one job; the exit code that its end amounts to."""
        files = (Path(self.config[name]).read_bytes() for name in ("ca", "key", "certificate"))
        options = [
            ("grpc.ssl_target_name_override", "ce-coordinator"),
            ("grpc.max_receive_message_length", MESSAGE_BYTES),
            ("grpc.max_send_message_length", MESSAGE_BYTES),
            ("grpc.keepalive_time_ms", 1000),
            ("grpc.keepalive_timeout_ms", 1800),
        ]
        credentials = grpc.ssl_channel_credentials(*files)
        with grpc.secure_channel(self.config["coordinator"], credentials, options) as channel:
            grpc.channel_ready_future(channel).result(WELCOME_S)
            hello = site_pb2.Hello(
                site=self.config["site"],
                protocol=self.config.get("protocol", PROTOCOL),
                software="independent site",
                instance=os.urandom(16),
                lacks=[
                    site_pb2.FEATURE_CHECKPOINTS,
                    site_pb2.FEATURE_BLIND,
                    site_pb2.FEATURE_SOFT_LABELS,
                    site_pb2.FEATURE_SINGLE,
                ],
            )
            self._frames.put(site_pb2.SiteFrame(hello=hello))
            stream = SiteServiceStub(channel).Connect(self._requests())
            try:
                welcome = next(stream).welcome
                if welcome.protocol != PROTOCOL:
                    print(f"protocol: this site speaks {PROTOCOL}, the coordinator {welcome.protocol}", file=sys.stderr)
                    return 4
                print("connected", flush=True)
                for frame in stream:
                    kind = frame.WhichOneof("frame")
                    if kind == "ended" and self.job and frame.ended.job == self.job.attempt.job:
                        return self._ended(frame.ended)
                    self._take(kind, frame)
                print("the coordinator closed the stream before the job was over", file=sys.stderr)
                return 7
            finally:
                self._frames.put(None)
                stream.cancel()

    def _ended(self, ended: site_pb2.Ended) -> int:
        assert self.job is not None
        if ended.state == "done":
            print(json.dumps(self.job.passed()))
            return 0
        print(f"{ended.state}: {ended.reason}", file=sys.stderr)
        return ended.exit_code or 7

    def _take(self, kind: str, frame: site_pb2.CoordinatorFrame) -> None:
        if kind == "goodbye":
            return
        message = getattr(frame, kind)
        try:
            for answer in self._answers(kind, message):
                self._frames.put(answer)
        except CannotGoOn as error:
            print(f"refused: {error}", file=sys.stderr)
            code, rule, sentence = error.exit_code, error.rule, str(error)[:1000]
            if self.job is not None and self.job.words_left:  # every refusal is the same
                code, rule, sentence = 7, "", "this site cannot go on; its log says why"
            refusal = site_pb2.Refusal(
                job=message.job, epoch=message.epoch, exit_code=code, rule=rule, sentence=sentence
            )
            self._frames.put(site_pb2.SiteFrame(refusal=refusal))

    def _answers(self, kind: str, message: Any) -> list[site_pb2.SiteFrame]:
        if kind == "offer":
            self.job = Job(self.config, message)
            return self.job.key_share()
        job = self.job
        if job is None or (message.job, message.epoch) != (job.attempt.job, job.attempt.epoch):
            return []  # of an earlier attempt
        if kind == "peers":
            return job.take_peers(message)
        if kind == "encrypted_key":
            return job.take_encrypted_key(message)
        if kind == "introduction":
            return job.take_introduction(message)
        if not job.inbox.take(message):
            return []
        complete, arrays = job.inbox.complete()
        if isinstance(complete, site_pb2.Letters):
            return job.take_letters(complete, arrays)
        if isinstance(complete, site_pb2.Alignment):
            return job.take_alignment(complete, arrays)
        return job.take_task(complete, arrays)


def main(path: str) -> int:
    try:
        return Client(json.loads(Path(path).read_text())).run()
    except grpc.RpcError as error:
        print(f"{error.code().name}: {error.details()}", file=sys.stderr)
        return 5
    except CannotGoOn as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
