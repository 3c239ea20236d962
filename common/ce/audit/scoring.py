"""What is true, what the result implies, and how good a guess is: the only part of the audit that reads labels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from ce import metrics
from ce.audit.adversary_views import NOT_ASKED, Guess, Question
from ce.audit.attacks.histograms import Counts, Histograms
from ce.audit.attacks.peel_rows import Row
from ce.audit.partitions import Groups, equal_rows, nearly_equal_rows, similar_rows
from ce.audit.recording import Recording
from ce.labels import LabelTable
from ce.protocol.topology.topology import ColumnGroup, TopologyColumn


class Truth:
    """The labels of all sites, and the consensus that the job publishes."""

    def __init__(self, recording: Recording, tables: Mapping[str, LabelTable]) -> None:
        self._recording = recording
        self._tables = tables
        self._baselines: dict[Question, float] = {}
        self._implied: dict[tuple[int, int], list[Groups]] = {}

    # Partitions of a shared block.

    def questions(self) -> list[Question]:
        """Every column of every holder with at least two different labels in a shared block."""
        found = []
        topology = self._recording.topology
        for block in topology.blocks:
            for column in topology.columns if block.shared else ():
                for site in column.holders:
                    if site not in block.members:
                        continue
                    codes = self._codes(block.index, column, site)
                    groups = len(np.unique(codes[codes >= 0]))
                    if groups >= 2:
                        found.append(Question(block.index, column.index, site, groups))
        return found

    def name(self, question: Question) -> str:
        """The column's name: what a finding calls its target."""
        return self._recording.topology.columns[question.column].name

    def is_classifier(self, question: Question) -> bool:
        return self._recording.topology.columns[question.column].kind == "classifier"

    def codes(self, question: Question) -> Groups:
        return self._codes(question.block, self._recording.topology.columns[question.column], question.holder)

    def job_codes(self, question: Question) -> Groups:
        """The same labels, counted in the job's categories."""
        column = self._recording.topology.columns[question.column]
        own = self._recording.coded(question.holder, column, self._tables[question.holder])
        return own[self._recording.rows[question.holder][question.block]].astype(np.intp)

    def score(self, question: Question, guesses: Sequence[Guess]) -> float:
        """The best guess's adjusted Rand index; 0 without a guess."""
        codes = self.codes(question)
        return max((agreement(codes, guess) for guess in guesses), default=0.0)

    def baseline(self, question: Question) -> float:
        """What the published consensus says about the column: its labels, its memberships cut into as many groups."""
        if question not in self._baselines:
            key = question.block, question.groups
            if key not in self._implied:
                published = self._recording.published(question.block)
                self._implied[key] = [published.argmax(axis=1), *similar_rows(published, question.groups)]
            self._baselines[question] = max(self.score(question, self._implied[key]), 0.0)
        return self._baselines[question]

    def classes(self, block: int) -> Groups:
        """Objects with the same labels in every column of every site."""
        columns = self._recording.topology.columns
        asked = [q for q in self.questions() if q.block == block]
        if not asked:
            return np.zeros(self._recording.topology.blocks[block].size, dtype=np.intp)
        return equal_rows(np.stack([self._codes(block, columns[q.column], q.holder) for q in asked], axis=1))

    def implied_classes(self, block: int) -> Groups:
        """Objects with the same published memberships."""
        return nearly_equal_rows(self._recording.published(block), 1e-12)

    def _codes(self, block: int, column: TopologyColumn, site: str) -> Groups:
        own = self._tables[site].column(column.name).likeliest[self._recording.rows[site][block]]
        return own.astype(np.intp)

    # Label counts and label rows of shared columns.

    def histograms(self) -> Histograms:
        """(site, column) -> objects by label, in the order of the job's categories, of all that the site holds."""
        found: Histograms = {}
        for site, labels in self._labels().items():
            for column, codes in labels.items():
                width = len(self._recording.topology.columns[column].categories)
                found[site, column] = np.bincount(codes[codes >= 0], minlength=width).astype(np.int64)
        return found

    def rows(self, group: ColumnGroup) -> dict[str, Counter[Row]]:
        """The label rows of each holder's objects that have any label in the group."""
        found: dict[str, Counter[Row]] = {}
        for site, labels in self._labels().items():
            if site in group.holders:
                rows = np.stack([labels[column.index] for column in group.columns], axis=1)
                found[site] = Counter(tuple(row) for row in rows[(rows >= 0).any(axis=1)].tolist())
        return found

    def likely_rows(self, group: ColumnGroup, objects: int) -> Counter[Row]:
        """What the published tables suggest: each cluster's most likely row, for all objects."""
        rows: Counter[Row] = Counter()
        tables = [self._recording.final_tables[column.name] for column in group.columns]
        for h in range(len(tables[0])):
            rows[tuple(int(table[h].argmax()) for table in tables)] += objects
        return rows

    def _labels(self) -> dict[str, dict[int, Groups]]:
        """Codes of every shared clustering at every holder, counted in the job's categories."""
        found: dict[str, dict[int, Groups]] = {site: {} for site in self._tables}
        for column in self._recording.topology.clusterings:
            for site in column.holders if column.shared else ():
                own = self._recording.coded(site, column, self._tables[site])
                found[site][column.index] = own.astype(np.intp)
        return found


def agreement(codes: Groups, guess: Guess) -> float:
    """Adjusted Rand index over the objects that have a label and were asked about; a failure is a group of its own."""
    asked = (guess != NOT_ASKED) & (codes >= 0)
    if asked.sum() < 2 or len(np.unique(codes[asked])) < 2:
        return 0.0
    return float(metrics.ari(codes[asked], guess[asked] - NOT_ASKED))


def exact_share(truth: Mapping[tuple[str, int], Counts], guessed: Mapping[tuple[str, int], Counts]) -> float:
    """The share of histograms that were guessed to the last object, of those that were guessed at all."""
    common = [key for key in guessed if key in truth]
    if not common:
        return 0.0
    return float(np.mean([np.array_equal(truth[key], guessed[key]) for key in common]))


def row_share(truth: Counter[Row], guessed: Counter[Row]) -> float:
    """The share of a site's objects whose whole row is among the guessed ones."""
    objects = sum(truth.values())
    return sum((truth & guessed).values()) / objects if objects else 0.0
