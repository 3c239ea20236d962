"""`ce.audit.audit` of a sealed job: record it, draw the releases of further jobs, play the attacks, score the guesses.

A gain is a mean over three draws of the noise. The best of many columns gains by chance: a column that seems to gain
more than the margin is played again with twelve other draws, and only these count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ce.audit.partitions import Groups
from ce.audit.report import LEAKS, NOTHING, REFITTED, SEALED_MARGIN, STATED, Finding, Measure, Score
from ce.audit.scoring import agreement
from ce.audit.sealed.attacks.crafted_model import Clusters, nearly_honest, one_column, refused
from ce.audit.sealed.attacks.recorded_words import (
    clustered_ciphertext,
    clustered_openings,
    dealer_and_site,
    equal_masked_rows,
    without_dealt_masks,
)
from ce.audit.sealed.attacks.weighted_rows import chosen_labels
from ce.audit.sealed.plan import SITE_ATTACKS, Key, SiteAttack
from ce.audit.sealed.pooled_labels import PooledLabels
from ce.audit.sealed.recording import SealedRecording, record_sealed
from ce.audit.sealed.releases import draw_release
from ce.audit.sealed.scenarios import Budget, one_job
from ce.audit.sealed.scoring import Baseline
from ce.errors import Refused
from ce.job import EXACT, Job
from ce.labels import LabelTable
from ce.policy import Policy

MODE = "sealed"
#: Draws of the noise of which a gain is the mean, and further ones where it seems to pass the margin.
DRAWS, FURTHER_DRAWS = 3, 12

Scores = dict[tuple[str, Key], list[Score]]
#: One draw of the noise; of some targets only, if any are named: (site, column and holder) and the score.
Draw = Callable[[int, frozenset[tuple[str, Key]] | None], Iterable[tuple[tuple[str, Key], Score]]]


def audit_sealed(
    job: Job,
    tables: Mapping[str, LabelTable],
    *,
    wanted: Sequence[str],
    policy: Policy,
    on_progress: Callable[[str], None],
) -> list[Finding]:
    """The findings about a sealed job over these tables, under this policy of every site."""
    job = replace(job, sites=tuple(sorted(tables)))
    auditor = _SealedAuditor(job, tables, policy, wanted, on_progress)
    return auditor.play()


def broken_rule(job: Job, policy: Policy, sites: Iterable[str]) -> str | None:
    """The rule because of which sites with this policy would not take part at all."""
    try:
        replace(policy, coordinators=()).check(replace(job, sites=tuple(sites)), "")
    except Refused as error:
        return error.rule
    return None


class _SealedAuditor:
    """The attacks on one sealed job."""

    def __init__(
        self,
        job: Job,
        tables: Mapping[str, LabelTable],
        policy: Policy,
        wanted: Sequence[str],
        on_progress: Callable[[str], None],
    ) -> None:
        self._job = job
        self._tables = tables
        self._wanted = wanted
        self._on_progress = on_progress
        self._labels = PooledLabels.of(tables, policy.min_foreign_columns)
        self._min_foreign_columns = policy.min_foreign_columns
        self._rule = broken_rule(job, policy, tables)
        self._all_jobs: float | str = EXACT if job.epsilon == EXACT else max(policy.max_epsilon, float(job.epsilon))
        self._recordings: dict[int, SealedRecording] = {}

    def play(self) -> list[Finding]:
        found: list[Finding] = []
        for attack in SITE_ATTACKS:
            if attack.name in self._wanted:
                self._on_progress(f"sealed: {attack.name}")
                found += self._on_releases(attack)
        self._on_progress("sealed: attacks on recorded jobs")
        found += self._on_recordings("coordinator", "ciphertexts", self._ciphertexts)
        found += self._on_recordings("coordinator", "dealt masks", self._dealt_masks)
        found += self._on_recordings("", "openings", self._openings)
        found += self._on_recordings("", "equal rows", self._equal_rows)
        found += self._on_recordings("", "dealer and site", self._dealer_and_site, STATED)
        if "crafted model" in self._wanted:
            found += self._crafted_model()
        if "nearly honest model" in self._wanted:
            found += self._findings("", "nearly honest model", self._nearly_honest, None)
        if "weighted rows" in self._wanted:
            found += self._weighted_rows()
        return found

    # Releases.

    def _on_releases(self, attack: SiteAttack) -> list[Finding]:
        sites = self._labels.sites if attack.by_all else (self._busiest,)

        def draw(number: int, only: frozenset[tuple[str, Key]] | None) -> Iterator[tuple[tuple[str, Key], Score]]:
            for site in sites:
                keys = None if only is None else frozenset(key for name, key in only if name == site)
                if keys is None or keys:
                    epsilon = self._job.epsilon if attack.by_all else self._all_jobs
                    budget = Budget(self._job, epsilon, number)
                    for key, score in attack.play(self._labels, site, budget, keys):
                        yield (site, key), score

        return self._findings("", attack.name, draw, attack.otherwise)

    @property
    def _busiest(self) -> str:
        """The site with most categories of its own: that with most equations."""
        layout, holders = self._labels.layout, self._labels.holders

        def equations(site: str) -> int:
            mine = [k for name, k in zip(layout.names, layout.categories, strict=True) if holders[name] == (site,)]
            return sum(k - 1 for k in mine)

        return max(self._labels.sites, key=equations)

    def _nearly_honest(
        self, number: int, only: frozenset[tuple[str, Key]] | None
    ) -> Iterator[tuple[tuple[str, Key], Score]]:
        site, labels = self._busiest, self._labels
        known = one_job(labels, site, Budget(self._job, self._job.epsilon, number))
        for target in known.targets:
            if only is None or (site, target.key) in only:
                model = nearly_honest(known.seen[0].release, target.column, self._clusters)
                winners = labels.winners(model.weights, model.beta)[labels.held[site]]
                yield (site, target.key), Baseline.of(labels, known, target).score(winners)

    def _crafted_model(self) -> list[Finding]:
        """Winners of a model that is one column, as the members of a block would read them."""
        site, labels = self._busiest, self._labels
        release = draw_release(labels, self._job, ("crafted", 0))
        known = one_job(labels, site, Budget(self._job, self._job.epsilon, 0))
        scores: Scores = {}
        passed = False
        for target in known.targets:
            model = one_column(labels.layout, target.column, len(release.weights))
            passed |= not refused(release, model, self._clusters)
            winners = labels.winners(model.weights, model.beta)[labels.held[site]]
            scores[site, target.key] = [Baseline.of(labels, known, target).score(winners)]
        return self._judged("coordinator", "crafted model", scores, None if passed else REFITTED)

    @property
    def _clusters(self) -> Clusters:
        assert self._job.clusters is not None
        return self._job.clusters

    def _weighted_rows(self) -> list[Finding]:
        """The share of chosen labels that is named right; nothing but the result is known without it."""
        site, labels = self._busiest, self._labels
        right = asked = 0
        for number in range(DRAWS):
            for object_, column, label in chosen_labels(labels, site, self._job, self._job.epsilon, number)[0]:
                asked += 1
                right += int(labels.counts[column][object_].argmax()) == label
        if not asked:
            return []
        score = Score(right / asked, 0.0)
        target = "foreign labels of chosen objects"
        return [self._finding(f"site {site}", "weighted rows", target, "labels", score, score.gain, STATED)]

    # Recordings.

    def _recording(self, number: int) -> SealedRecording:
        if number not in self._recordings:
            hidden = self._min_foreign_columns
            recorded = record_sealed(self._job, self._tables, number, min_foreign_columns=hidden)
            self._recordings[number] = recorded
        return self._recordings[number]

    def _on_recordings(
        self,
        view: str,
        attack: str,
        guesses: Callable[[SealedRecording, int, str, str], Mapping[int, Groups]],
        otherwise: str | None = None,
    ) -> list[Finding]:
        """`guesses` of the largest shared block: given recording, block, attacker and sender, by column."""
        if attack not in self._wanted:
            return []
        blocks = self._recording(0).blocks
        if not blocks:
            return []
        block = max(blocks, key=lambda index: (blocks[index][0].size, -index))
        members = blocks[block][0].members
        attacker = members[-1]

        def draw(number: int, only: frozenset[tuple[str, Key]] | None) -> Iterator[tuple[tuple[str, Key], Score]]:
            recording = self._recording(number)
            for sender in members:
                if sender == attacker and view != "coordinator":
                    continue
                if only is None or any(holder == sender for _, (_, holder) in only):
                    for column, guess in guesses(recording, block, attacker, sender).items():
                        codes = self._codes(recording, block, sender, column)
                        if len(np.unique(codes[codes >= 0])) > 1:
                            # Words that should be random are compared with nothing, whoever reads them.
                            implied = self._published(recording, block, sender, codes) if otherwise else 0.0
                            yield (attacker, (column, sender)), Score(agreement(codes, guess), implied)

        return self._findings(view, attack, draw, otherwise)

    def _codes(self, recording: SealedRecording, block: int, site: str, column: int) -> Groups:
        """A member's labels of one column, in the order of the block."""
        ids = self._tables[site].ids[recording.rows[site][block]]
        codes: Groups = self._labels.codes[site][np.searchsorted(self._labels.ids, ids), column].astype(np.intp)
        return codes

    def _published(self, recording: SealedRecording, block: int, site: str, codes: Groups) -> float:
        winners = recording.labels[site][recording.rows[site][block]].astype(np.intp)
        return max(agreement(codes, winners), 0.0)

    def _ciphertexts(self, recording: SealedRecording, block: int, _: str, sender: str) -> dict[int, Groups]:
        columns = self._columns(sender)
        sizes = {self._labels.layout.categories[j] for j in columns}
        by_size = {size: clustered_ciphertext(recording, block, sender, size) for size in sizes}
        return {j: by_size[self._labels.layout.categories[j]] for j in columns}

    def _dealt_masks(self, recording: SealedRecording, block: int, _: str, sender: str) -> dict[int, Groups]:
        codes = without_dealt_masks(recording, block, sender)
        return {j: codes[:, at].astype(np.intp) for at, j in enumerate(self._columns(sender))}

    def _dealer_and_site(self, recording: SealedRecording, block: int, site: str, sender: str) -> dict[int, Groups]:
        codes = dealer_and_site(recording, block, site, sender)
        return {j: codes[:, at].astype(np.intp) for at, j in enumerate(self._columns(sender))}

    def _openings(self, recording: SealedRecording, block: int, site: str, sender: str) -> dict[int, Groups]:
        found = {}
        for j in self._columns(sender):
            guess = clustered_openings(recording, block, site, self._labels.layout.categories[j])
            if guess is not None:
                found[j] = guess
        return found

    def _equal_rows(self, recording: SealedRecording, block: int, site: str, sender: str) -> dict[int, Groups]:
        return dict.fromkeys(self._columns(sender), equal_masked_rows(recording, block, site, sender))

    def _columns(self, site: str) -> list[int]:
        """Of a site, in the order of its masked rows."""
        return [j for j, name in enumerate(self._labels.layout.names) if site in self._labels.holders[name]]

    # Findings.

    def _findings(self, view: str, attack: str, draw: Draw, otherwise: str | None) -> list[Finding]:
        scores = _collected(draw(number, None) for number in range(DRAWS))
        doubtful = frozenset(key for key, values in scores.items() if _mean(values).gain > SEALED_MARGIN)
        if doubtful and otherwise is None and self._rule is None:
            again = _collected(draw(number, doubtful) for number in range(DRAWS, DRAWS + FURTHER_DRAWS))
            scores |= {key: values for key, values in again.items() if key in doubtful}
        return self._judged(view, attack, scores, otherwise)

    def _judged(self, view: str, attack: str, scores: Scores, otherwise: str | None) -> list[Finding]:
        """One finding for each site that played; the column on which it gained most."""
        found = []
        for site in sorted({site for site, _ in scores}):
            means = {key: _mean(values) for (name, key), values in scores.items() if name == site}
            worst = max(means, key=lambda key: means[key].gain)
            mean_gain = float(np.mean([score.gain for score in means.values()]))
            seen_by = view or f"site {site}"
            target = self._labels.layout.names[worst[0]]
            found.append(self._finding(seen_by, attack, target, "ari", means[worst], mean_gain, otherwise))
        return found

    def _finding(
        self, view: str, attack: str, target: str, measure: Measure, score: Score, mean: float, otherwise: str | None
    ) -> Finding:
        meaning = NOTHING
        if score.gain > SEALED_MARGIN:
            meaning = otherwise or (LEAKS if self._rule is None else f"ruled out: {self._rule}")
        return Finding(view, attack, MODE, target, measure, score.recovered, score.baseline, mean, meaning)


def _collected(draws: Iterable[Iterable[tuple[tuple[str, Key], Score]]]) -> Scores:
    """By target, of each draw the best of what was tried."""
    scores: Scores = {}
    for draw in draws:
        best: dict[tuple[str, Key], Score] = {}
        for key, score in draw:
            if key not in best or score.gain > best[key].gain:
                best[key] = score
        for key, score in best.items():
            scores.setdefault(key, []).append(score)
    return scores


def _mean(scores: Sequence[Score]) -> Score:
    return Score(float(np.mean([s.recovered for s in scores])), float(np.mean([s.baseline for s in scores])))
