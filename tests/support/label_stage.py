"""The second half of sealed jobs on a stage of its own: blocks, random labels and a given model, members that are
played here, and a relay whose script a test may change. Nothing of the first half is needed: no tables, no fit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ce.pair_tables import cell_words, weight_words
from ce.privacy.argmax_dealer import corrections
from ce.privacy.secure_argmax import level_comparisons
from ce.protocol.attempt import Attempt
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.sealed_steps import SEALED_TABLE
from ce.protocol.messages.steps import Arrays
from ce.protocol.messages.task import Task
from ce.protocol.sealed.channel import Bytes, Channel
from ce.protocol.sealed.label_rounds import LabelRounds
from ce.protocol.sealed.opened_shares import AcceptedModel
from ce.protocol.sealed.records import LabelRecord, MemoryRecords
from ce.protocol.sealed.schedule import LabelStatus, shared_blocks
from ce.protocol.sealed.site_input import SealedOutcome, SiteContext, SiteInput
from ce.protocol.sealed.site_labels import SiteLabels
from ce.protocol.sealed.terms import SealedColumn, Terms
from ce.protocol.topology.site_view import Block, SiteView
from ce.steps.model import Sizes

Where = tuple[str, int]  # step, and which of its rounds
JOB = b"a job definition"


def drawn(*what: object) -> Callable[[int], bytes]:
    """Random bytes that follow from these words."""
    rng = np.random.default_rng(list(hashlib.sha256(repr(what).encode()).digest()))
    return rng.bytes


@dataclass
class Stage:
    """A layout with labels: blocks by members, columns by holders, codes of every site, a model."""

    blocks: tuple[Block, ...]
    columns: tuple[SealedColumn, ...]
    n_clusters: int
    codes: dict[str, NDArray[np.int32]]  # (n of the site, m)
    rows: dict[str, dict[int, NDArray[np.intp]]]
    model: AcceptedModel
    min_foreign_columns: int = 0
    records: dict[str, MemoryRecords] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        seed: int,
        blocks: Sequence[tuple[tuple[str, ...], int]],
        columns: Sequence[tuple[tuple[str, ...], int]],
        n_clusters: int,
        missing: float = 0.2,
        coarse: bool = False,
    ) -> Stage:
        """Random labels and model. `coarse`: few different chances, so that many scores are equal."""
        rng = np.random.default_rng(seed)
        sites = sorted({s for members, _ in blocks for s in members} | {s for holders, _ in columns for s in holders})
        all_blocks = tuple(Block(at, members, size) for at, (members, size) in enumerate(blocks))
        all_columns = tuple(SealedColumn(f"c{at:02}", tuple(h), k) for at, (h, k) in enumerate(columns))
        codes, rows = {}, {}
        for site in sites:
            mine = [block for block in all_blocks if site in block.members]
            n = sum(block.size for block in mine)
            order = np.split(rng.permutation(n), np.cumsum([block.size for block in mine])[:-1])
            rows[site] = {block.index: part for block, part in zip(mine, order, strict=True)}
            held = [column for column in all_columns if site in column.holders]
            drawn_codes = [rng.integers(0, c.categories, n) for c in held]
            codes[site] = np.array(drawn_codes, dtype=np.int32).reshape(len(held), n).T.copy()
            codes[site][rng.random(codes[site].shape) < missing] = -1
        width = sum(column.categories for column in all_columns)
        beta = rng.choice([0.1, 0.5], (width, n_clusters)) if coarse else rng.dirichlet(np.ones(n_clusters), width)
        weights = np.full(n_clusters, 1 / n_clusters) if coarse else rng.dirichlet(np.ones(n_clusters))
        return cls(all_blocks, all_columns, n_clusters, codes, rows, AcceptedModel(weights, beta))

    @property
    def sites(self) -> tuple[str, ...]:
        return tuple(sorted(self.codes))

    @property
    def terms(self) -> Terms:
        objects = sum(block.size for block in self.blocks)
        return Terms(self.sites, self.columns, objects, self.n_clusters, hashlib.sha256(JOB).digest(), None)

    @property
    def objects(self) -> dict[int, bytes]:
        return {block.index: hashlib.sha256(b"objects %d" % block.index).digest() for block in self.blocks}

    def view(self, site: str | None = None) -> SiteView:
        blocks = {b.index: b for b in self.blocks if site is None or site in b.members}
        return SiteView(self.sites, Sizes(self.terms.objects, len(self.columns), 0, 0), blocks, (), False, False)

    def shared(self, site: str | None = None) -> dict[int, tuple[Block, bytes]]:
        return shared_blocks(self.terms.job_digest, self.view(site), self.objects)

    def digest(self, block: int) -> bytes:
        return self.shared()[block][1]

    def record(self, site: str, block: int) -> LabelRecord | None:
        return self.records[site].labels(self.digest(block))

    def pooled(self) -> dict[str, NDArray[np.int32]]:
        """By site: numpy's argmax of the whole numbers of all sites' labels, added up; -1 where there is none."""
        unit, layout = self.terms.score_unit, self.terms.layout
        cells = cell_words(self.model.beta, unit) // 32
        weights = weight_words(self.model.weights, unit) // 32
        found = {site: np.full(len(codes), -7, dtype=np.int32) for site, codes in self.codes.items()}
        for block in self.blocks:
            scores = np.zeros((block.size, self.n_clusters), dtype=np.int64) + weights
            labelled = np.zeros(block.size, dtype=bool)
            for site in block.members:
                codes = self.codes[site][self.rows[site][block.index]]
                others = set(block.members) - {site}
                known = [bool(others & set(self.columns[at].holders)) for at in self.terms.columns_of(site)]
                for i in range(block.size):
                    foreign = sum(code >= 0 and not other for code, other in zip(codes[i], known, strict=True))
                    few = len(block.members) == 2 and foreign < self.min_foreign_columns
                    for at, code in zip(self.terms.columns_of(site), codes[i], strict=True):
                        if code >= 0 and not few:
                            scores[i] += cells[layout.offsets[at] + code]
                            labelled[i] = True
            labels = np.where(labelled, scores.argmax(axis=1), -1)
            for site in block.members:
                found[site][self.rows[site][block.index]] = labels
        return found


class SpyChannel(Channel):
    """Keeps what was sent to the members of blocks before it was encrypted."""

    def to_block(self, block: int, what: str, content: bytes) -> Bytes:
        self.__dict__.setdefault("sent", {}).setdefault((block, what), []).append(content)
        return super().to_block(block, what, content)


class FairDealer:
    """Deals corrections as it should; a test may take its place."""

    def products(self, seeds: Mapping[str, bytes]) -> Mapping[tuple[str, str], bytes]:
        raise NotImplementedError

    def corrections(
        self, context: bytes, seeds: Sequence[bytes], rows: int, candidates: int
    ) -> Iterator[tuple[int, Iterable[bytes]]]:
        sizes = level_comparisons(rows, candidates)
        for level, parts in corrections(list(seeds), context, rows, candidates):
            yield level, [self.dealt(b"".join(parts), sizes[level])]

    def dealt(self, data: bytes, comparisons: int) -> bytes:
        return data


@dataclass
class Play:
    """One attempt: the members, the relay, and all that the coordinator has seen."""

    stage: Stage
    epoch: int = 1
    dealer: FairDealer = field(default_factory=FairDealer)
    entropy: str = "entropy"
    seen: list[tuple[Where, str, ArrayName, Bytes]] = field(default_factory=list)
    outcomes: dict[str, SealedOutcome] = field(default_factory=dict)
    before_answer: Callable[[Play, str, Task], Task] = lambda play, site, task: task
    before_relay: Callable[[Play, dict[tuple[str, ArrayName], Bytes]], None] = lambda play, received: None
    where: Where = ("score", 0)
    round: int = 7

    def __post_init__(self) -> None:
        stage, attempt = self.stage, Attempt("job", JOB, self.epoch, self.stage.sites)
        self.rounds = LabelRounds(stage.terms, stage.shared(), self.dealer, stage.n_clusters)
        self.channels, self.players = {}, {}
        for site in stage.sites:
            stage.records.setdefault(site, MemoryRecords())
        states = {
            index: {m: LabelStatus.of(stage.record(m, index), block.members) for m in block.members}
            for index, (block, _) in stage.shared().items()
        }
        for site in stage.sites:
            entropy = drawn(self.entropy, self.epoch, site)
            pair_keys = {p: hashlib.sha256(repr(sorted((p, site))).encode()).digest() for p in stage.sites if p != site}
            channel = SpyChannel(attempt, site, b"enrolments", pair_keys, stage.shared(site), entropy)
            for index in stage.shared(site):
                channel.set_block_key(index, drawn("block key", self.epoch, index)(32))
            given = SiteInput((), stage.codes[site], stage.rows[site], stage.objects)
            context = SiteContext(
                attempt, site, stage.terms, stage.view(site), given, stage.shared(site), channel, stage.records[site],
                entropy, stage.min_foreign_columns,
            )  # fmt: skip
            self.channels[site] = channel
            self.players[site] = SiteLabels(context, {index: dict(states[index]) for index in stage.shared(site)})
        self.brought: dict[str, dict[ArrayName, Any]] = {site: {} for site in stage.sites}

    def task(self, site: str) -> Task:
        asked: Arrays = {} if self.where[0] == "finish" else self.rounds.expected(self.where[0])[site]  # type: ignore[arg-type]
        return Task(self.round, self.where[0], arrays=dict(self.brought[site]), asked=dict(asked))  # type: ignore[arg-type]

    def answer(self, site: str) -> dict[ArrayName, Bytes]:
        task = self.before_answer(self, site, self.task(site))
        self.channels[site].begin(task)
        if task.step == "finish":
            self.outcomes[site] = self.players[site].finish(task)
            return {}
        return self.players[site].answer(task, self.stage.model)

    def exchange(self, sites: Collection[str] | None = None) -> dict[tuple[str, ArrayName], Bytes]:
        """One round, of which only some sites take part where a crash is played."""
        received = {}
        for site in self.stage.sites if sites is None else sites:
            for name, content in self.answer(site).items():
                received[site, name] = content
                self.seen.append((self.where, site, name, content))
        return received

    def go_on(self, received: dict[tuple[str, ArrayName], Bytes]) -> None:
        self.before_relay(self, received)
        step, self.brought = self.rounds.after(self.where[0], received)  # type: ignore[arg-type,assignment]
        assert step in SEALED_TABLE[self.where[0]].follows  # type: ignore[index]
        self.where = (step, self.where[1] + 1 if step == self.where[0] else 0)
        self.round += 1

    def until(self, where: Where | None = None) -> Play:
        """To the end, or until this round is open."""
        while self.where != where:
            received = self.exchange()
            if self.where[0] == "finish":
                break
            self.go_on(received)
        return self

    def sent(self, site: str) -> dict[tuple[int, str], list[bytes]]:
        """What a site has sent to the members of blocks, before encryption."""
        found: dict[tuple[int, str], list[bytes]] = self.channels[site].__dict__.get("sent", {})
        return found

    def labels(self) -> dict[str, NDArray[np.int32]]:
        return {site: outcome.labels for site, outcome in self.outcomes.items()}


def all_rounds(n_clusters: int) -> list[Where]:
    """Every round from `score` to `finish`."""
    levels = int(np.ceil(np.log2(n_clusters + 1)))
    after = [("settle", 0), ("prove", 0), ("reveal", 0), ("reveal", 1), ("finish", 0)]
    return [("score", 0), *(("compare", at) for at in range(5 * levels)), *after]
