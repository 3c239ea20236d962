"""The labels themselves, what the published result implies about them, and how good guesses are.

This is the only module of the audit that reads labels. `Truth` knows them; `Referee` scores guesses against them, and
turns the scores into findings.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from ce import metrics
from ce.audit.adversary_views import NOT_ASKED, Counts, Guess, Guesses, Histograms, Question, Row
from ce.audit.minimum_rules import BrokenRules, broken_in
from ce.audit.partitions import Groups, equal_rows, nearly_equal_rows, similar_rows
from ce.audit.recording import Recording
from ce.audit.report import COUNTED, INHERENT, MARGIN, NOTHING, Finding, Measure, Score, verdict
from ce.labels import LabelTable
from ce.protocol.messages.array_names import COLUMNS, Scope
from ce.protocol.topology.site_view import ColumnGroup, TopologyColumn


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
        codes = self._recording.coded(question.holder, column, self._tables[question.holder])
        return codes[self._recording.rows[question.holder][question.block]].astype(np.intp)

    def score(self, question: Question, guesses: Sequence[Guess]) -> float:
        """The best guess's adjusted Rand index; 0 without a guess."""
        codes = self.codes(question)
        return max((agreement(codes, guess) for guess in guesses), default=0.0)

    def baseline(self, question: Question) -> float:
        """How well the published consensus predicts the column: by its labels, or by its memberships cut into as many
        groups as the column has, whichever is better."""
        if question not in self._baselines:
            key = question.block, question.groups
            if key not in self._implied:
                published = self._recording.published(question.block)
                self._implied[key] = [published.argmax(axis=1), *similar_rows(published, question.groups)]
            guesses = [*self._implied[key], *self._implied_labels(question)]
            self._baselines[question] = max(self.score(question, guesses), 0.0)
        return self._baselines[question]

    def _implied_labels(self, question: Question) -> list[Guess]:
        """Of a shared column, whose beta is part of the result: the likeliest label of each object's cluster."""
        column = self._recording.topology.columns[question.column]
        if column.kind != "clustering" or not column.shared:
            return []
        beta = self._recording.final_beta[column.name]
        published = self._recording.published(question.block)
        return [beta.argmax(axis=1)[published.argmax(axis=1)], (published @ beta).argmax(axis=1)]

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
        codes = self._tables[site].column(column.name).likeliest[self._recording.rows[site][block]]
        return codes.astype(np.intp)

    # Label counts and label rows of shared columns.

    def histograms(self) -> Histograms:
        """(site, column) -> number of the site's objects by label, in the order of the job's categories."""
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
        """What the published beta suggests: each cluster's most likely row, for all objects."""
        rows: Counter[Row] = Counter()
        betas = [self._recording.final_beta[column.name] for column in group.columns]
        for h in range(len(betas[0])):
            rows[tuple(int(beta[h].argmax()) for beta in betas)] += objects
        return rows

    def guessed_from_rows(self, group: ColumnGroup, rows: Counter[Row]) -> Guesses:
        """What the numbers of objects by label row add to the result, about the objects that a site holds alone.

        A coordinator has nothing that stands for one of these objects. Here it is given each object's consensus
        cluster, which it never gets: this makes the test harder to pass. It guesses the label that is most frequent
        among the rows, each weighted by how likely it is in that cluster.
        """
        found: Guesses = {}
        counted = [(row, count) for row, count in rows.items() if min(row) >= 0]
        if not counted:
            return {}
        codes = np.array([row for row, _ in counted])
        betas = [self._recording.final_beta[column.name] for column in group.columns]
        likely = np.prod([beta[:, codes[:, at]] for at, beta in enumerate(betas)], axis=0)
        weights = likely * np.array([count for _, count in counted])
        for question in self.private_questions(group):
            at = [column.index for column in group.columns].index(question.column)
            width = betas[at].shape[1]
            labels = np.array([np.bincount(codes[:, at], row, width).argmax() for row in weights])
            found[question] = [labels[self._recording.published(question.block).argmax(axis=1)]]
        return found

    def private_questions(self, group: ColumnGroup) -> list[Question]:
        """Every column of the group at every holder, about the objects that the holder has alone."""
        found = []
        for block in self._recording.topology.blocks:
            for column in () if block.shared else group.columns:
                if block.members[0] in column.holders:
                    codes = self._codes(block.index, column, block.members[0])
                    groups = len(np.unique(codes[codes >= 0]))
                    if groups >= 2:
                        found.append(Question(block.index, column.index, block.members[0], groups))
        return found

    def _labels(self) -> dict[str, dict[int, Groups]]:
        """Codes of every shared clustering at every holder, counted in the job's categories."""
        found: dict[str, dict[int, Groups]] = {site: {} for site in self._tables}
        for column in self._recording.topology.clusterings:
            for site in column.holders if column.shared else ():
                codes = self._recording.coded(site, column, self._tables[site])
                found[site][column.index] = codes.astype(np.intp)
        return found


def agreement(codes: Groups, guess: Guess) -> float:
    """Adjusted Rand index over the objects that have a label and were attacked; failures count as one more group."""
    asked = (guess != NOT_ASKED) & (codes >= 0)
    if asked.sum() < 2 or len(np.unique(codes[asked])) < 2:
        return 0.0
    return float(metrics.ari(codes[asked], guess[asked] - NOT_ASKED))


def exact_share(truth: Mapping[tuple[str, int], Counts], guessed: Mapping[tuple[str, int], Counts]) -> float:
    """The share of histograms that are right to the last object, among those that were guessed."""
    common = [key for key in guessed if key in truth]
    if not common:
        return 0.0
    return float(np.mean([np.array_equal(truth[key], guessed[key]) for key in common]))


def row_share(truth: Counter[Row], guessed: Counter[Row]) -> float:
    """The share of a site's objects whose whole row is among the guessed ones."""
    objects = sum(truth.values())
    return sum((truth & guessed).values()) / objects if objects else 0.0


def vote_share(ballots: Sequence[Groups], named: Guess) -> float:
    """The share of the objects with a ballot of which every ballot is known. A class is the one that most of the
    objects for which it is named have."""
    voted = np.any([codes >= 0 for codes in ballots], axis=0)
    right = (named >= 0) & voted
    for codes in ballots:
        for name in np.unique(named[named >= 0]):
            of_name = (named == name) & (codes >= 0)
            if of_name.any():
                right &= ~of_name | (codes == np.bincount(codes[of_name]).argmax())
    return float(right.sum() / voted.sum()) if voted.any() else 0.0


class Referee:
    """Scores guesses against the labels, and says in a verdict what the scores mean."""

    def __init__(self, truth: Truth, broken: Mapping[str, BrokenRules], baseline: Truth | None = None) -> None:
        self._truth = truth
        self._broken = broken  # by mode
        self._baseline = baseline or truth

    def for_truth(self, truth: Truth) -> Referee:
        """A referee for another recording of the same labels, with the published result of this one as baseline."""
        return Referee(truth, self._broken, self._baseline)

    def partitions(
        self, view: str, attack: str, mode: str, guesses: Guesses, otherwise: str | None = None
    ) -> list[Finding]:
        """The target on which the attack gained most; nothing if the attack did not apply to any target.

        A target that was attacked without a guess counts as 0.
        """
        scores = {}
        for question, guessed in guesses.items():
            implied = 0.0 if _gets_no_result(view, mode) else self._baseline.baseline(question)
            scores[question] = Score(self._truth.score(question, guessed), implied)
        if not scores:
            return []
        mean = float(np.mean([score.gain for score in scores.values()]))
        worst = max(scores, key=lambda question: scores[question].gain)
        broken = broken_in(self._broken[mode], Scope.of_block(worst.block))
        meaning = verdict(scores[worst], view, mode, otherwise, broken)
        return [_finding(view, attack, mode, self._truth.name(worst), "ari", scores[worst], mean, meaning)]

    def histograms(
        self, view: str, attack: str, mode: str, guesses: Histograms, baseline: Histograms, otherwise: str | None = None
    ) -> list[Finding]:
        """The share of label counts that are right to the last object."""
        if not guesses:
            return []
        true = self._truth.histograms()
        implied = 0.0 if _gets_no_result(view, mode) else exact_share(true, baseline)
        score = Score(exact_share(true, guesses), implied)
        scopes = [scope for scope in self._broken[mode] if scope.startswith(COLUMNS)]
        broken = broken_in(self._broken[mode], scopes[0] if scopes else COLUMNS)
        meaning = verdict(score, view, mode, otherwise, broken)
        return [_finding(view, attack, mode, "label counts of a site", "histograms", score, score.gain, meaning)]

    def equality(self, attack: str, mode: str, guesses: Mapping[int, Sequence[Guess]]) -> list[Finding]:
        """Classes of objects with equal labels everywhere, guessed by block; the block of which most was found."""
        found = []
        for block, guessed in guesses.items():
            classes = self._truth.classes(block)
            recovered = max(agreement(classes, guess) for guess in guessed)
            implied = agreement(classes, self._truth.implied_classes(block))
            score = Score(recovered, 0.0 if _gets_no_result("coordinator", mode) else max(implied, 0.0))
            meaning = INHERENT if recovered > MARGIN else NOTHING
            target = "rows equal everywhere"
            found.append(_finding("coordinator", attack, mode, target, "ari", score, score.gain, meaning))
        return sorted(found, key=lambda finding: finding.recovered)[-1:]

    def rows(
        self, attack: str, mode: str, guesses: Sequence[tuple[ColumnGroup, Mapping[str, Counter[Row]]]]
    ) -> list[Finding]:
        """Whole label rows, guessed by group of columns and site; the site of which most was found."""
        found = []
        for group, by_site in guesses:
            true = self._truth.rows(group)
            for site, guessed in by_site.items():
                implied = row_share(true[site], self._truth.likely_rows(group, sum(true[site].values())))
                baseline = 0.0 if _gets_no_result("coordinator", mode) else implied
                score = Score(row_share(true[site], guessed), baseline)
                broken = broken_in(self._broken[mode], Scope.of_columns(group.index))
                meaning = verdict(score, "coordinator", mode, None, broken)
                target = f"label rows of {site}"
                found.append(_finding("coordinator", attack, mode, target, "rows", score, score.gain, meaning))
        return sorted(found, key=lambda finding: (finding.leaks, finding.gain))[-1:]

    def all_rows(self, attack: str, mode: str, group: ColumnGroup, guessed: Counter[Row]) -> list[Finding]:
        """Whole label rows of all holders together, which say nothing about a site or an object."""
        true: Counter[Row] = sum(self._truth.rows(group).values(), Counter())
        implied = row_share(true, self._truth.likely_rows(group, sum(true.values())))
        score = Score(row_share(true, guessed), implied)
        broken = broken_in(self._broken[mode], Scope.of_columns(group.index))
        meaning = verdict(score, "coordinator", mode, COUNTED, broken)
        target = "label rows of all sites together"
        return [_finding("coordinator", attack, mode, target, "rows", score, score.gain, meaning)]

    def votes(self, view: str, attack: str, mode: str, guesses: Mapping[int, Guess]) -> list[Finding]:
        """Objects all of whose votes, except those of the viewer, are named, by block; the block with the largest
        share. The result names no vote."""
        found = []
        for block, named in guesses.items():
            asked = [q for q in self._truth.questions() if q.block == block and self._truth.is_classifier(q)]
            ballots = [self._truth.codes(q) for q in asked if view != f"site {q.holder}"]
            if ballots:
                score = Score(vote_share(ballots, named), 0.0)
                broken = broken_in(self._broken[mode], Scope.of_block(block))
                meaning = verdict(score, view, mode, None, broken)
                found.append(_finding(view, attack, mode, "every vote", "votes", score, score.gain, meaning))
        return sorted(found, key=lambda finding: finding.recovered)[-1:]


def _finding(
    view: str, attack: str, mode: str, target: str, measure: Measure, score: Score, mean_gain: float, meaning: str
) -> Finding:
    return Finding(view, attack, mode, target, measure, score.recovered, score.baseline, mean_gain, meaning)


def _gets_no_result(view: str, mode: str) -> bool:
    """In `blind` the coordinator gets no result, so that a result implies nothing for it."""
    return view == "coordinator" and mode == "blind"
