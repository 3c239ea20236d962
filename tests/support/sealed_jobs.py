"""Sealed jobs for tests: sites with hard labels, attempts that can be cut off anywhere, and what pooling them gives."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from ce.job import Job
from ce.labels import Column, LabelTable
from ce.privacy.ring_words import Stream
from ce.protocol.attempt import Attempt
from ce.protocol.engine.aggregator import add_answer
from ce.protocol.local_alignment import LocalAlignment, align_tables
from ce.protocol.messages.steps import Step
from ce.protocol.messages.task import Answer, Task
from ce.protocol.sealed.channel import Entropy
from ce.protocol.sealed.dealer import Dealer
from ce.protocol.sealed.opened_shares import AcceptedModel
from ce.protocol.sealed.records import MemoryRecords
from ce.protocol.sealed.site import SealedSite
from ce.protocol.sealed.terms import Terms
from ce.protocol.sealed_run import SealedParties, sealed_parties
from ce.protocol.topology.vocabularies import Wishes

Tables = dict[str, LabelTable]
#: Sees, and may change, what goes between the parties: site, task; site, answer.
OnTask = Callable[[str, Task], Task]
OnAnswer = Callable[[str, Answer], Answer]


def sealed_job(clusters: int | str = 2, epsilon: float | str = "exact", **also: object) -> Job:
    return Job(name="sealed", model="pairs", clusters=clusters, epsilon=epsilon, **also)  # type: ignore[arg-type]


def hard(table: LabelTable) -> LabelTable:
    """The same table with the likeliest label in place of soft ones."""
    columns = (Column(c.name, c.kind, c.categories, c.likeliest, None) for c in table.clusterings)
    return replace(table, columns=tuple(columns))


def few_sites(n: int = 24, sites: int = 3, columns: int = 2, seed: int = 0, alone: int = 4) -> Tables:
    """Sites a, b, c, ... that hold the same n objects, two of three groups, and some objects alone."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, n)
    tables = {}
    for s in range(sites):
        name = chr(ord("a") + s)
        codes = np.array([(truth + 1) % 3 if j % 2 else truth for j in range(columns)], dtype=np.int32).T.copy()
        wrong = rng.random(codes.shape) < 0.2
        codes[wrong] = rng.integers(0, 3, int(wrong.sum()))
        codes[rng.random(codes.shape) < 0.1] = -1
        rows = np.vstack((codes, codes[:alone]))
        ids = np.array([f"o{i:03}" for i in range(n)] + [f"{name}{i:03}" for i in range(alone)])
        held = [Column(f"{name}{j}", "clustering", (0, 1, 2), rows[:, j].copy(), None) for j in range(columns)]
        tables[name] = LabelTable(ids, tuple(held))
    return tables


def seeded(*what: object) -> Entropy:
    """A source of bytes that follow from what is given."""
    return Stream(hashlib.sha256(repr(what).encode()).digest()).bytes


@dataclass
class SealedWorld:
    """One job over these tables; its sites keep their records from one attempt to the next."""

    job: Job
    tables: Tables
    job_key: bytes | None = None
    records: dict[str, MemoryRecords] = field(init=False)
    aligned: LocalAlignment = field(init=False)
    epoch: int = 0

    def __post_init__(self) -> None:
        self.records = {site: MemoryRecords() for site in self.tables}
        self.aligned = align_tables(False, self.tables, {site: Wishes() for site in self.tables}, self.job_key)

    def attempt(self, *, entropy: Mapping[str, Entropy] | None = None, dealer: Dealer | None = None) -> SealedParties:
        """All parties of the next attempt. Random bytes are others in every attempt, as the system's are."""
        self.epoch += 1
        attempt = Attempt(self.job.name, self.job.definition(), self.epoch, self.aligned.topology.sites)
        drawn = entropy or {site: seeded(site, self.epoch) for site in self.tables}
        return sealed_parties(
            self.job, attempt, self.aligned, self.tables, entropy=drawn, records=self.records, dealer=dealer
        )


def rounds(parties: SealedParties) -> Iterator[Step]:
    """Play round after round; stops before each one, and says which."""
    coordinator = parties.coordinator
    while coordinator.open_round is not None:
        yield coordinator.open_round.step
        play_round(parties)


def play_round(
    parties: SealedParties,
    on_task: OnTask = lambda site, task: task,
    on_answer: OnAnswer = lambda site, answer: answer,
    answered: int | None = None,
) -> None:
    """One round; with `answered`, so many sites answer and then everything ends."""
    coordinator = parties.coordinator
    for at, (name, task) in enumerate(coordinator.tasks().items()):
        if answered is not None and at >= answered:
            return
        add_answer(coordinator, name, on_answer(name, parties.sites[name].answer(on_task(name, task))))
    if answered is None:
        coordinator.advance()


def play_until(parties: SealedParties, step: Step) -> None:
    """Play all rounds before the first one of a step."""
    for reached in rounds(parties):
        if reached == step:
            return


def play_out(parties: SealedParties, on_task: OnTask = lambda site, task: task) -> None:
    """Play all rounds that are left."""
    while parties.coordinator.open_round is not None:
        play_round(parties, on_task)


def opened(site: SealedSite) -> NDArray[np.int64]:
    """The tables that a site has checked."""
    assert site._rounds is not None
    cells = site._rounds._release.cells
    assert cells is not None
    return cells


# What pooling gives.


def one_hot(tables: Tables, terms: Terms) -> tuple[list[str], NDArray[np.int64]]:
    """Ids of all objects, and (n, D) how many labels each has in each category: a shared column may have several."""
    ids = sorted({str(i) for table in tables.values() for i in table.ids})
    position = {id_: at for at, id_ in enumerate(ids)}
    known: dict[str, set[int]] = {}
    for table in tables.values():
        for column in table.clusterings:
            known.setdefault(column.name, set()).update(column.categories)  # type: ignore[arg-type]
    rows = np.zeros((len(ids), terms.layout.width), dtype=np.int64)
    for table in tables.values():
        where = np.array([position[str(i)] for i in table.ids])
        for column in table.clusterings:
            if not known[column.name]:
                continue
            codes = column.recode(tuple(sorted(known[column.name]))).codes
            assert codes is not None
            first = terms.layout.offsets[terms.layout.names.index(column.name)]
            np.add.at(rows, (where[codes >= 0], first + codes[codes >= 0]), 1)
    return ids, rows


def pooled_cells(tables: Tables, terms: Terms) -> NDArray[np.int64]:
    """The packed pair tables of all labels together."""
    _, rows = one_hot(tables, terms)
    return terms.layout.packed(rows.T @ rows)  # type: ignore[return-value]


def pooled_labels(tables: Tables, terms: Terms, model: AcceptedModel) -> dict[str, int]:
    """The label of each object: the largest whole-number score over all its labels, the first cluster on ties."""
    ids, rows = one_hot(tables, terms)
    unit = terms.score_unit
    cells = np.rint(unit * np.log(np.maximum(model.beta, 1e-4))).astype(np.int64)
    weights = np.rint(unit * np.log(np.maximum(model.weights, np.exp(-30)))).astype(np.int64)
    scores = rows @ cells + weights
    labels = np.where(rows.any(axis=1), scores.argmax(axis=1), -1)
    return dict(zip(ids, labels.tolist(), strict=True))


def labels_of(world: SealedWorld, parties: SealedParties) -> dict[str, int]:
    """The label that the sites have of each object; sites that hold the same object must agree."""
    found: dict[str, int] = {}
    for name, site in parties.sites.items():
        assert site.result is not None
        for id_, label in zip(world.tables[name].ids.tolist(), site.result.labels.tolist(), strict=True):
            assert found.setdefault(id_, label) == label
    return found
