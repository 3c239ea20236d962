"""A site's end of a sealed job, written from docs/protocol.md ("Sealed") and docs/site-computation.md ("pairs").

Imports nothing of ce. It takes part in the first attempt at a job, keeps no records, and instead of fitting the model
itself it takes one step of the fit, which must not move it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from keys_and_masks import Array, Attempt, CannotGoOn, hkdf, joined, number, require, sha256, texts
from sealed_argmax import DUMMIES, Rows, levels, score_words, tournament
from sealed_words import (
    Terms,
    check_message,
    correction,
    dealer_is_right,
    noise,
    one_hot,
    rows_of,
    stream,
)

STEPS = ("meet", "mask", "verify", "commit", "release", "score", "compare", "settle", "prove", "reveal", "finish")
LABELS = STEPS.index("score")  # from here on blocks may end, and the job finish
NEW = bytes(9)  # state 0, origin 0
Sent = dict[str, bytes]


@dataclass
class Block:
    """A block of this site: its number, members, positions of its objects, and the SHA-256 of their pseudonyms."""

    index: int
    members: tuple[str, ...]
    rows: Array
    objects: bytes
    digest: bytes = b""
    transcript: bytes = b""  # B
    key: bytes = b""
    row_key: bytes = b""
    permuted: Any = None  # Rows
    playing: Generator[bytes, list[bytes], Array] | None = None
    corrections: dict[int, bytes] = field(default_factory=dict)
    share: Array | None = None
    nonce: bytes = b""
    commitments: dict[str, bytes] = field(default_factory=dict)
    leaves: dict[str, bytes] = field(default_factory=dict)
    sent: bytes = b""  # the last message to the members, before encryption
    labels: Array | None = None


class SealedSite:
    """Arrays of tasks in, arrays of answers out. Labels are positions among the categories of columns, by name."""

    def __init__(
        self,
        site: str,
        attempt: Attempt,
        terms: Terms,
        codes: Array,
        blocks: list[Block],
        pair_keys: dict[str, bytes],
        enrolment_digest: bytes,
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.site, self.attempt, self.terms, self.entropy = site, attempt, terms, entropy
        self.ring, self.pair_keys = terms.ring, dict(sorted(pair_keys.items()))
        self.widths = {name: len(terms.cells_of(name)) for name in attempt.roster}
        self.x = one_hot(codes, [k for _, sites, k in terms.columns if site in sites])
        self.alone = [b for b in blocks if len(b.members) == 1]
        self.blocks = sorted((b for b in blocks if len(b.members) > 1), key=lambda b: b.index)
        for b in self.blocks:
            parts = (attempt.digest, texts(b.members), number(len(b.rows)), b.objects)
            b.digest = b.transcript = sha256(joined(b"ce sealed block 1", *parts))
        self.transcript = sha256(joined(b"ce sealed transcript 1", *attempt.context, enrolment_digest))
        self.before, self.now = ("", 0), ("", 0)  # step and round
        self.times = 0  # tasks of this step before
        self.commitments: Sent = {}
        self.k = 0
        self.categories: list[int] | None = None  # of all columns by name, where the alignment said it
        self.found = np.full(len(codes), -1)  # labels
        self.memberships: Array | None = None

    def answer(self, step: str, round_: int, arrays: dict[str, Array], asked: dict[str, int]) -> Sent:
        """`asked`: names and sizes."""
        last = STEPS.index(self.now[0]) if self.now[0] else -1
        following = [*STEPS[last + 1 : last + 2], *(["finish"] if LABELS <= last < len(STEPS) - 1 else [])]
        following += [self.now[0]] if self.now[0] in ("compare", "reveal") else []
        require(step in following, f"step: expected one of {following}, got {step}")
        require(round_ == self.now[1] + 1, f"round: expected {self.now[1] + 1}, got {round_}")
        self.times = self.times + 1 if step == self.now[0] else 0
        self.before, self.now = self.now, (step, round_)
        self.arrays, self.asked = arrays, asked
        sent: Sent = getattr(self, f"_{step}")()
        sizes = {name: len(content) for name, content in sent.items()}
        require(sizes == asked, f"{step}: expected to be asked for {sizes}, got {asked}")
        return sent

    # "Sealed boxes".

    def _get(self, name: str, size: int) -> bytes:
        array = self.arrays.get(name)
        if array is None or array.dtype != np.uint8 or array.shape != (size,):
            raise CannotGoOn(f"{name}: expected {size} bytes")
        return array.tobytes()

    def _box(self, key: bytes, content: bytes, *of_block: bytes) -> bytes:
        nonce = self.entropy(12)
        where = joined(self.transcript, self.now[0].encode(), number(self.now[1]), *of_block)
        return nonce + ChaCha20Poly1305(key).encrypt(nonce, content, where)

    def _open(self, key: bytes, name: str, size: int, *of_block: bytes) -> bytes:
        box = self._get(name, size + 28)
        where = joined(self.transcript, self.before[0].encode(), number(self.before[1]), *of_block)
        try:
            return ChaCha20Poly1305(key).decrypt(box[:12], box[12:], where)
        except InvalidTag:
            raise CannotGoOn(f"{name}: cannot be opened") from None

    def _to(self, peer: str, content: bytes) -> bytes:
        return self._box(hkdf(self.pair_keys[peer], b"ce sealed box 1", self.site.encode(), peer.encode()), content)

    def _from(self, peer: str, size: int) -> bytes:
        key = hkdf(self.pair_keys[peer], b"ce sealed box 1", peer.encode(), self.site.encode())
        return self._open(key, f"box/{peer}", size)

    def _to_members(self, b: Block, what: str, content: bytes) -> Sent:
        b.sent = content
        key = hkdf(b.key, b"ce sealed members 1", what.encode(), self.site.encode())
        return {f"members/{b.index}/{what}/{self.site}": self._box(key, content, b.digest, b.transcript)}

    def _from_members(self, b: Block, what: str, sizes: int | dict[str, int], *, hashed: bool = False) -> Sent:
        """Of the other members; then all, this site's own too, are bound."""
        found = {self.site: b.sent}
        for m in b.members:
            if m != self.site:
                key = hkdf(b.key, b"ce sealed members 1", what.encode(), m.encode())
                size = sizes if isinstance(sizes, int) else sizes[m]
                found[m] = self._open(key, f"members/{b.index}/{what}/{m}", size, b.digest, b.transcript)
        parts = (sha256(found[m]) if hashed else found[m] for m in b.members)
        b.transcript = sha256(joined(b.transcript, *parts))
        return {m: found[m] for m in b.members if m != self.site}

    def _bind(self, *parts: bytes) -> None:
        self.transcript = sha256(joined(self.transcript, *parts))

    def _common(self, peer: str) -> list[Block]:
        return [b for b in self.blocks if peer in b.members]

    # Tables.

    def _meet(self) -> Sent:
        told = self.arrays["model/categories"].tolist()
        require(self.categories in (None, told), "categories: not those of the alignment")
        for b in self.blocks:
            b.key = self.entropy(32) if b.members[0] == self.site else b""
        self._bind(self.terms.digest)
        sent = {f"all/state/{self.site}": bytes(2)}
        for peer in self.pair_keys:
            told = NEW + bytes(32 * len(self.attempt.roster))
            for b in self._common(peer):
                told += NEW + bytes(32 * len(b.members)) + b.key
            sent[f"box/{peer}"] = self._to(peer, told)
        return sent

    def _mask(self) -> Sent:
        for peer in self.pair_keys:
            drawn = {b.index: 32 if b.members[0] == peer else 0 for b in self._common(peer)}
            states = {b.index: len(NEW) + 32 * len(b.members) for b in self._common(peer)}
            at = len(NEW) + 32 * len(self.attempt.roster)
            content = self._from(peer, at + sum(drawn.values()) + sum(states.values()))
            past = content[:at]
            for b in self._common(peer):
                past += content[at : at + states[b.index]]
                at += states[b.index]
                b.key = content[at : at + drawn[b.index]] or b.key
                at += drawn[b.index]
            require(not any(past), f"{peer}: this site takes part in first attempts only")
        self._bind(*(NEW + bytes(32 * len(self.attempt.roster)) for _ in self.attempt.roster))
        self.seed, self.check_seed = self.entropy(32), self.entropy(32)
        sent: Sent = {"dealer/product_seed": self.seed} if self.blocks else {}
        for b in self.blocks:
            b.key = hkdf(b.key, b"ce sealed block key 1", b.digest)
            b.transcript = sha256(joined(b.transcript, *(NEW + bytes(32 * len(b.members)) for _ in b.members)))
            e = self.ring.reduced(self.x[b.rows] + self._rows(b))
            sent |= self._to_members(b, "masked", self.ring.packed(e))
        return sent

    def _rows(self, b: Block) -> Array:
        return rows_of(self.ring, self.seed, b.digest, len(b.rows), self.widths[self.site])

    def _verify(self) -> Sent:
        ring, width = self.ring, self.widths[self.site]
        peers = sorted({m for b in self.blocks for m in b.members} - {self.site})
        self.u = {p: np.zeros([self.widths[s] for s in sorted((p, self.site))], np.uint64) for p in peers}
        for b in self.blocks:
            sizes = {m: ring.size(len(b.rows) * self.widths[m]) for m in b.members}
            for m, content in self._from_members(b, "masked", sizes, hashed=True).items():
                e = ring.unpacked(content, (len(b.rows), self.widths[m]))
                self.u[m] += ring.product(self.x[b.rows], e) if self.site < m else -ring.product(e, self._rows(b))
        sent = {}
        for p in peers:
            if self.site < p:
                self.u[p] -= correction(ring, self.seed, p, width, self.widths[p])[0]
                continue
            at = ring.size(self.widths[p] * width)
            dealt = self._get(f"dealer/products/{p}", at + ring.size(8 * self.widths[p]))
            d, check = (
                ring.unpacked(dealt[:at], (self.widths[p], width)),
                ring.unpacked(dealt[at:], (self.widths[p], 8)),
            )
            self.u[p] += d
            common = [(b.digest, len(b.rows)) for b in self._common(p)]
            sent[f"box/{p}"] = self._to(p, check_message(ring, self.seed, self.check_seed, common, width, (d, check)))
        return sent

    def _commit(self) -> Sent:
        ring, terms = self.ring, self.terms
        for p in self.u:
            if self.site < p:
                common = [(b.digest, len(b.rows)) for b in self._common(p)]
                size = 32 + sum(ring.size(8 * n) for _, n in common) + ring.size(8 * self.widths[self.site])
                widths = (self.widths[self.site], self.widths[p])
                right = dealer_is_right(ring, self.seed, p, common, widths, self._from(p, size))
                require(right, "the words of the dealer are wrong")
        self.nonce = self.entropy(32)
        square = np.zeros((terms.spans[-1].stop,) * 2, np.uint64)
        mine = terms.cells_of(self.site)
        square[np.ix_(mine, mine)] = self.x.T @ self.x
        for p, u in self.u.items():
            first, second = (terms.cells_of(name) for name in sorted((self.site, p)))
            square[np.ix_(first, second)] += u
            square[np.ix_(second, first)] += u.T
        cells = terms.cells(square)
        if terms.variance is not None:
            cells = cells + noise(terms.variance, self.entropy(32), len(cells)).astype(np.uint64)
        for peer, key in self.pair_keys.items():
            mask = ring.drawn(stream(key, b"ce sealed share mask 1", terms.digest, self.transcript), len(cells))
            cells = cells + mask if self.site < peer else cells - mask
        self.share = ring.packed(ring.reduced(cells))
        self.commitments[self.site] = self._commitment(self.site, self.nonce, self.share)
        return {f"all/commitment/{self.site}": self.commitments[self.site]}

    def _commitment(self, site: str, nonce: bytes, share: bytes) -> bytes:
        parts = (self.attempt.digest, number(self.attempt.epoch), texts(self.attempt.roster), site.encode())
        return sha256(joined(b"ce sealed share 1", *parts, nonce, share))

    def _release(self) -> Sent:
        self.commitments |= {peer: self._get(f"all/commitment/{peer}", 32) for peer in self.pair_keys}
        self._bind(*(self.commitments[site] for site in self.attempt.roster))
        return {f"all/nonce/{self.site}": self.nonce, f"all/share/{self.site}": self.share}

    # The model.

    def _score(self) -> Sent:
        opened = {self.site: (self.nonce, self.share)}
        for peer in self.pair_keys:
            nonce, share = self._get(f"all/nonce/{peer}", 32), self._get(f"all/share/{peer}", len(self.share))
            require(
                self._commitment(peer, nonce, share) == self.commitments[peer], f"share of {peer}: not committed to"
            )
            opened[peer] = nonce, share
        self.weights, self.beta = self.arrays["model/weights"], self.arrays["model/beta"]
        check_model(self.terms, self._tables([share for _, share in opened.values()]), self.weights, self.beta)
        self.k = len(self.weights)
        model = sha256(joined(b"ce sealed model 1", self.weights.tobytes() + self.beta.tobytes()))
        self._bind(*(part for site in self.attempt.roster for part in opened[site]), model)
        for b in self.blocks:
            b.row_key = self.entropy(32) if b.members[0] == self.site else b""
        if not self.blocks:
            return {}
        self.seed = self.entropy(32)
        sent = {"dealer/argmax_seed": self.seed, f"all/blocks/{self.site}": bytes(len(self.blocks))}
        for peer in self.pair_keys:
            if keys := b"".join(b.row_key for b in self._common(peer)):
                sent[f"box/{peer}"] = self._to(peer, keys)
        return sent

    def _tables(self, shares: list[bytes]) -> Array:
        """(D, D) the opened tables."""
        terms, slack = self.terms, 8 * self.terms.sd
        count = sum(terms.columns[i][2] * terms.columns[j][2] for i, j in terms.largest)
        total = sum(self.ring.unpacked(share, count).astype(np.int64) for share in shares)
        lowest = -int(np.ceil(slack))
        cells = (total - lowest) % 2**self.ring.bits + lowest
        square, at = np.zeros((terms.spans[-1].stop,) * 2), 0
        for (i, j), largest in terms.largest.items():
            shape = terms.columns[i][2], terms.columns[j][2]
            table = cells[at : at + shape[0] * shape[1]].reshape(shape)
            q = np.sqrt(table.size)
            require(bool(table.min() >= -slack and table.max() <= largest + slack), "tables: a cell cannot be")
            require(bool(-slack * q <= table.sum() <= largest + slack * q), "tables: a total cannot be")
            square[terms.spans[i], terms.spans[j]], square[terms.spans[j], terms.spans[i]] = table, table.T
            at += table.size
        return square

    def _words(self, rows: Array, *, first: bool) -> Array:
        f = int(2**20 / (9.22 * sum(len(sites) for _, sites, _ in self.terms.columns) + 30))
        cells = 32 * np.rint(f * np.log(np.maximum(self.beta[self.terms.cells_of(self.site)], 1e-4))).astype(np.int64)
        weights = 32 * np.rint(f * np.log(np.maximum(self.weights, np.exp(-30)))).astype(np.int64)
        self.unit = f
        return score_words(self.x[rows], cells, weights if first else None)

    # Labels.

    def _compare(self) -> Sent:
        if self.times == 0:
            for peer in self.pair_keys:
                theirs = [b for b in self._common(peer) if b.members[0] == peer]
                keys = self._from(peer, 32 * len(theirs)) if theirs else b""
                for at, b in enumerate(theirs):
                    b.row_key = keys[32 * at : 32 * at + 32]
        sent, pairs = {}, levels(self.k + 1)
        for b in self._running("opening"):
            level, step = divmod(self.times, 5)
            if b.members[-1] == self.site and step == 0:
                m = pairs[level] * (len(b.rows) + DUMMIES)
                b.corrections[level] = self._get(f"dealer/corrections/{b.index}/{level}", 24 * m + 11 * -(-m // 8))
            if self.times == 0:
                at, n = b.members.index(self.site), len(b.members)
                b.permuted = Rows(b.row_key, len(b.rows), self.k + 1, n)
                words = b.permuted.arranged(self._words(b.rows, first=at == 0), at)
                b.playing = tournament(at, n, self.seed, b.digest, words, b.corrections)
                message = next(b.playing)
            else:
                assert b.playing is not None
                message = b.playing.send(list(self._from_members(b, "opening", len(b.sent)).values()))
            sent |= self._to_members(b, "opening", message)
        return sent

    def _running(self, what: str) -> list[Block]:
        """A block that is not asked for has ended, for good."""
        self.blocks = [b for b in self.blocks if f"members/{b.index}/{what}/{self.site}" in self.asked]
        return self.blocks

    def _settle(self) -> Sent:
        for b in self._running("commitment"):
            assert b.playing is not None
            try:
                b.playing.send(list(self._from_members(b, "opening", len(b.sent)).values()))
            except StopIteration as end:
                b.share, b.playing = end.value, None
            require(b.share is not None, "settle: comes before the end of the tournament")
            b.nonce = self.entropy(32)
        sent: Sent = {}
        for b in self.blocks:
            leaves = (self._leaf(purpose, *self._opened(b, purpose)) for purpose in (b"dummy", b"real"))
            sent |= self._to_members(b, "commitment", self._label_commitment(b, self.site, *leaves))
        return sent

    @staticmethod
    def _opened(b: Block, purpose: bytes) -> tuple[bytes, bytes]:
        """Nonce and shares of the dummy or the real rows."""
        share = b.permuted.dummy(b.share) if purpose == b"dummy" else b.permuted.real(b.share)
        return hkdf(b.nonce, b"ce " + purpose + b" rows 1"), share.tobytes()

    @staticmethod
    def _leaf(purpose: bytes, nonce: bytes, share: bytes) -> bytes:
        return sha256(joined(b"ce " + purpose + b" rows 1", nonce, share))

    def _label_commitment(self, b: Block, member: str, dummy: bytes, real: bytes) -> bytes:
        parts = (self.attempt.digest, number(self.attempt.epoch), texts(self.attempt.roster), b.digest, member.encode())
        return sha256(joined(b"ce label commitment 1", joined(*parts), dummy, real))

    def _prove(self) -> Sent:
        sent: Sent = {}
        for b in self._running("dummies"):
            b.commitments = self._from_members(b, "commitment", 32)
            nonce, share = self._opened(b, b"dummy")
            sent |= self._to_members(b, "dummies", nonce + self._leaf(b"real", *self._opened(b, b"real")) + share)
        return sent

    def _reveal(self) -> Sent:
        sent: Sent = {}
        for b in self._running("digest" if self.times else "winners"):
            if self.times == 0:
                shares = [b.permuted.dummy(b.share)]
                for m, content in self._from_members(b, "dummies", 64 + DUMMIES).items():
                    nonce, b.leaves[m], share = content[:32], content[32:64], content[64:]
                    found = self._label_commitment(b, m, self._leaf(b"dummy", nonce, share), b.leaves[m])
                    require(found == b.commitments[m], f"{m}: dummy rows are not those that it committed to")
                    shares.append(np.frombuffer(share, np.uint8))
                require(np.array_equal(self._winners(shares), b.permuted.winners), "dummy rows have other winners")
                sent |= self._to_members(b, "winners", b"".join(self._opened(b, b"real")))
            else:
                shares = [b.permuted.real(b.share)]
                for m, content in self._from_members(b, "winners", 32 + len(b.rows)).items():
                    require(self._leaf(b"real", content[:32], content[32:]) == b.leaves[m], f"{m}: other real rows")
                    shares.append(np.frombuffer(content[32:], np.uint8))
                winners = self._winners(shares)
                b.labels = np.where((winners == self.k) | (winners < 0), -1, winners).astype("<i4")
                content = sha256(joined(b"ce labels of a block 1", b.labels.tobytes()))
                sent |= self._to_members(b, "digest", content)
        return sent

    def _winners(self, shares: list[Array]) -> Array:
        found = self.k - sum(share.astype(np.int64) for share in shares) % 32
        return np.asarray(found)

    def _finish(self) -> Sent:
        for b in self.blocks:
            if any(f"members/{b.index}/digest/{m}" in self.arrays for m in b.members):
                require(set(self._from_members(b, "digest", 32).values()) == {b.sent}, "members have other labels")
                self.found[b.rows] = b.labels
        self.memberships = np.full((len(self.found), self.k), np.nan)
        for b in self.alone:
            words = self._words(b.rows, first=True).view(np.int32)
            winners = words.argmax(axis=0)
            self.found[b.rows] = np.where(winners == self.k, -1, winners)
            scores = (words[:-1] // 32).T / self.unit
            chances = np.exp(scores - scores.max(axis=1, keepdims=True))
            self.memberships[b.rows] = chances / chances.sum(axis=1, keepdims=True)
        return {}


def sealed_site(
    site: str,
    attempt: Attempt,
    job: dict[str, Any],
    message: Any,
    enrolments: dict[str, Any],
    columns: list[Any],
    blocks: dict[int, tuple[tuple[str, ...], Array, bytes]],
    pair_keys: dict[str, bytes],
    enrolment_digest: bytes,
) -> SealedSite:
    """From an Alignment: `columns` are this site's, with labels; `blocks` have members, rows and objects."""
    held: dict[str, dict[str, int]] = {}
    for e in enrolments.values():
        for c in e.columns:
            held.setdefault(c.name, {})[e.site] = c.categories
    known = {c.name: len(c.tokens) for c in columns}
    others = {view.name: view for view in message.other_columns}
    names = sorted(held)
    require(all(names.index(c.name) == c.index for c in (*columns, *others.values())), "columns: numbers")
    require([n for n in names if n not in known] == list(others), "other_columns: not those of the others")
    for name, view in others.items():
        most = sum(held[name].values())
        if len(held[name]) > 1:
            most //= max(enrolments[s].min_sites for s in held[name])
        require(list(view.holders) == list(held[name]), f"column {view.index}: holders")
        require(view.category_count <= most, f"column {view.index}: too many categories")
        require(len(held[name]) > 1 or view.category_count == most, f"column {view.index}: categories")
        known[name] = view.category_count
    require(sum(known.values()) == message.sizes.categories <= 2**20, "other_columns: categories")
    in_order = tuple((name, tuple(held[name]), known[name]) for name in names if known[name])
    terms = Terms(attempt.digest, job, attempt.roster, in_order, message.sizes.objects)
    labels = [c.labels for c in sorted(columns, key=lambda c: str(c.name)) if c.tokens]
    given = [Block(index, *about) for index, about in blocks.items()]
    found = SealedSite(site, attempt, terms, np.array(labels).T, given, pair_keys, enrolment_digest)
    found.categories = [known[name] for name in names]
    return found


def check_model(terms: Terms, tables: Array, weights: Array, beta: Array) -> None:
    """docs/site-computation.md, "Check of a model", without the fit: one step moves no number by more than 0.001."""
    spans, sd, m = terms.spans, terms.sd, len(terms.columns)
    k = len(weights) if terms.job["clusters"] == "auto" else terms.job["clusters"]
    require(1 <= k <= 31 and weights.shape == (k,) and beta.shape == (spans[-1].stop, k), "model: shape")
    require(bool(np.isfinite(beta).all() and (weights >= 0).all() and (beta > 0).all()), "model: not chances")
    sums = np.array([weights.sum() * np.ones(k), *(beta[span].sum(axis=0) for span in spans)])
    require(bool((abs(sums - 1) < 1e-9).all()), "model: chances do not sum to 1")
    totals = {(i, j): tables[spans[i], spans[j]].sum() for i, j in terms.largest}
    q = {(i, j): 3 * sd * np.sqrt(terms.columns[i][2] * terms.columns[j][2]) for i, j in totals}
    if sd:
        middle = float(np.median(list(totals.values())))
        far = [pair for pair in totals if abs(totals[pair] - middle) >= q[pair]]
        above = [totals[pair] for pair in totals if totals[pair] > q[pair]]
        if len(far) > 0.1 * len(totals) and above:
            middle = float(np.median(above))
        near = {pair for pair in totals if abs(totals[pair] - middle) < q[pair]}
        totals = {pair: max(middle, 1) if pair in near else total for pair, total in totals.items()}
    else:
        near = set()
    seen = [pair for pair in totals if pair in near or totals[pair] > max(q[pair], 0.5)]
    n = float(np.mean([totals[pair] for pair in seen])) if seen else 1.0
    counts = np.zeros_like(tables)
    for i, j in seen:
        counts[spans[i], spans[j]] = np.maximum(tables[spans[i], spans[j]], 0)
        counts[spans[j], spans[i]] = counts[spans[i], spans[j]].T
    parts = beta * weights * ((counts / (beta * weights @ beta.T)) @ beta)
    after = parts + (m - 1) / 2 + n / (50 if sd else 500)
    for span in spans:
        after[span] /= after[span].sum(axis=0)
    moved = max(abs(parts.sum(axis=0) / max(parts.sum(), 1e-300) - weights).max(), abs(after - beta).max())
    require(moved <= 0.001, "model: a step of the fit changes it")
