"""Which attack applies to which view: the list that an audit works through.

view          attack                    on what
coordinator   distinct rows             each site's words, as they cross the coordinator
              phi inversion             the same, divided by the messages it sent
              clustered parts           the same, over all exchanges
              unmixed parts             the same, where they are linear in the labels
              votes                     votes per class, each site's and all together (bc3e)
              distinct totals           totals
              trajectories              totals and messages over all exchanges
              decode, secret starts     the first total, with tables guessed from the seed
              decode, shared columns    totals of blocks all of whose columns are shared
              unmixing                  totals that are linear in the labels
              fitting                   first totals of objects with equal labels, and the messages that went into them
              equality classes          totals, against the label rows of all sites together
              histograms, peeling       column sums of shared columns
              decode, public starts     the first total of a job whose starts were public
              two rosters               the first totals of two jobs, one without a site
              crafted messages          an active coordinator
site          subtraction               totals less its own part, equal rows
              clustered residuals       the same over all exchanges
              trajectories              messages over all exchanges
              decode, shared columns    totals less its own part, tables that it is told
              unmixing, fitting         totals less its own part
              histograms                column sums less its own
reference     the paper's rows          ln beta_j(x_ij), which BCE's section 5.2.2 would send
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ce.audit.adversary_views import CoordinatorView, CuriousSiteView, Guesses, HolderView, Question
from ce.audit.attacks.equal_rows import distinct_rows, distinct_totals, equality_classes, phi_inversion, votes
from ce.audit.attacks.histograms import Histograms, others_histograms, shared_out, site_histograms
from ce.audit.attacks.known_beta_decode import decode_as_site, decode_shared, decode_starts
from ce.audit.attacks.linear_unmix import unmix, unmix_as_site, unmix_parts
from ce.audit.attacks.nonlinear_fit import fit_as_site, fit_totals
from ce.audit.attacks.peel_rows import label_rows
from ce.audit.attacks.subtract_parts import distinct_residuals
from ce.audit.attacks.trajectories import parts, residuals, site_trajectories, trajectories
from ce.audit.minimum_rules import Broken, about
from ce.audit.report import INHERENT, MARGIN, NOTHING, Finding, Measure, Score, verdict
from ce.audit.scoring import Truth, agreement, exact_share, row_share

Coordinator = Callable[[CoordinatorView, Sequence[Question]], Guesses]
Site = Callable[[CuriousSiteView, Sequence[Question]], Guesses]

BY_COORDINATOR: dict[str, Coordinator] = {
    "distinct rows": distinct_rows,
    "phi inversion": phi_inversion,
    "clustered parts": parts,
    "unmixed parts": unmix_parts,
    "votes": votes,
    "distinct totals": distinct_totals,
    "trajectories": trajectories,
    "decode, secret starts": decode_starts,
    "decode, shared columns": decode_shared,
    "unmixing": unmix,
    "fitting": fit_totals,
}
BY_SITE: dict[str, Site] = {
    "subtraction": distinct_residuals,
    "clustered residuals": residuals,
    "trajectories": site_trajectories,
    "decode, shared columns": decode_as_site,
    "unmixing": unmix_as_site,
    "fitting": fit_as_site,
}
#: Those that guess, rather than solve something: they come close to one column of many by luck.
GUESSWORK = ("clustered parts", "trajectories", "clustered residuals", "votes")
#: Those that need a job of their own, or ask for something other than a partition.
OTHERS = (
    "equality classes",
    "histograms",
    "peeling",
    "decode, public starts",
    "two rosters",
    "crafted messages",
    "the paper's rows",
)
ATTACKS: tuple[str, ...] = tuple(dict.fromkeys((*BY_COORDINATOR, *BY_SITE, *OTHERS)))


class Referee:
    """Scores guesses, and says what they mean."""

    def __init__(self, truth: Truth, broken: Mapping[str, Broken], baseline: Truth | None = None) -> None:
        self._truth = truth
        self._broken = broken  # by mode
        self._baseline = baseline or truth

    def for_truth(self, truth: Truth) -> Referee:
        """The same for another recording of the same labels; what the job publishes stays what it is."""
        return Referee(truth, self._broken, self._baseline)

    def partitions(
        self, view: str, attack: str, mode: str, guesses: Guesses, otherwise: str | None = None
    ) -> list[Finding]:
        """The target on which the attack gained most; nothing if the attack did not apply to any.

        A target that was attacked in vain, without a guess, counts as 0.
        """
        scores = {}
        for question, guessed in guesses.items():
            implied = 0.0 if _tells_nothing(view, mode) else self._baseline.baseline(question)
            scores[question] = Score(self._truth.score(question, guessed), implied)
        if not scores:
            return []
        mean = float(np.mean([score.gain for score in scores.values()]))
        worst = max(scores, key=lambda question: scores[question].gain)
        broken = about(self._broken[mode], f"block/{worst.block}")
        expected = mean if attack in GUESSWORK else scores[worst].gain
        said = verdict(scores[worst], expected, view, mode, otherwise, broken)
        return [_finding(view, attack, mode, self._truth.name(worst), "ari", scores[worst], mean, said)]

    def histograms(
        self, view: str, attack: str, mode: str, guesses: Histograms, baseline: Histograms, otherwise: str | None = None
    ) -> list[Finding]:
        """How many of the label counts are right to the last object."""
        if not guesses:
            return []
        true = self._truth.histograms()
        implied = 0.0 if _tells_nothing(view, mode) else exact_share(true, baseline)
        score = Score(exact_share(true, guesses), implied)
        scopes = [scope for scope in self._broken[mode] if scope.startswith("columns")]
        broken = about(self._broken[mode], scopes[0] if scopes else "columns")
        said = verdict(score, score.gain, view, mode, otherwise, broken)
        return [_finding(view, attack, mode, "label counts of a site", "histograms", score, score.gain, said)]

    def equality(self, view: CoordinatorView, attack: str) -> list[Finding]:
        """Classes of objects with equal labels everywhere; of several blocks the one that shows most."""
        found = []
        for block in {question.block for question in self._truth.questions()}:
            classes = self._truth.classes(block)
            recovered = max(agreement(classes, guess) for guess in equality_classes(view, block))
            implied = agreement(classes, self._truth.implied_classes(block))
            score = Score(recovered, 0.0 if _tells_nothing("coordinator", view.mode) else max(implied, 0.0))
            said = INHERENT if recovered > MARGIN else NOTHING
            target = "rows equal everywhere"
            found.append(_finding("coordinator", attack, view.mode, target, "ari", score, score.gain, said))
        return sorted(found, key=lambda finding: finding.recovered)[-1:]

    def rows(self, view: CoordinatorView, attack: str) -> list[Finding]:
        """Whole label rows; of several sites the one that loses most."""
        found = []
        for group in view.groups.values():
            true = self._truth.rows(group)
            for site, guessed in label_rows(view, group).items():
                implied = row_share(true[site], self._truth.likely_rows(group, sum(true[site].values())))
                blind = _tells_nothing("coordinator", view.mode)
                score = Score(row_share(true[site], guessed), 0.0 if blind else implied)
                broken = about(self._broken[view.mode], f"columns/{group.index}")
                said = verdict(score, score.gain, "coordinator", view.mode, None, broken)
                target = f"label rows of {site}"
                found.append(_finding("coordinator", attack, view.mode, target, "rows", score, score.gain, said))
        return sorted(found, key=lambda finding: (finding.leaks, finding.gain))[-1:]


def _finding(
    view: str, attack: str, mode: str, target: str, measure: Measure, score: Score, mean_gain: float, said: str
) -> Finding:
    return Finding(view, attack, mode, target, measure, score.recovered, score.baseline, mean_gain, said)


def play_coordinator(
    view: CoordinatorView, questions: Sequence[Question], referee: Referee, wanted: Sequence[str], truth: Truth
) -> list[Finding]:
    """All attacks of a passive coordinator on one recording."""
    found: list[Finding] = []
    clusterings = [q for q in questions if not truth.is_classifier(q)]
    for name, attack in BY_COORDINATOR.items():
        asked = [q for q in questions if truth.is_classifier(q)] if name == "votes" else clusterings
        if name in wanted and asked:
            found += referee.partitions("coordinator", name, view.mode, attack(view, asked))
    if "equality classes" in wanted and clusterings:
        found += referee.equality(view, "equality classes")
    if "histograms" in wanted:
        own = site_histograms(view)
        found += referee.histograms("coordinator", "histograms", view.mode, own, shared_out(view))
    if "peeling" in wanted:
        found += referee.rows(view, "peeling")
    return found


def play_site(
    view: CuriousSiteView, questions: Sequence[Question], referee: Referee, wanted: Sequence[str], truth: Truth
) -> list[Finding]:
    """All attacks of one curious site on one of its blocks."""
    foreign = [q for q in questions if q.block == view.block and q.holder != view.name and not truth.is_classifier(q)]
    found: list[Finding] = []
    for name, attack in BY_SITE.items() if foreign else ():
        if name in wanted:
            found += referee.partitions(f"site {view.name}", name, view.mode, attack(view, foreign))
    return found


def play_holder(
    view: HolderView, mode: str, baseline: Histograms, referee: Referee, wanted: Sequence[str]
) -> list[Finding]:
    """A holder of shared columns, after the others' histograms."""
    if "histograms" not in wanted:
        return []
    return referee.histograms(f"site {view.name}", "histograms", mode, others_histograms(view), baseline)


def _tells_nothing(view: str, mode: str) -> bool:
    """In blind the coordinator gets no result, so nothing is implied by one."""
    return view == "coordinator" and mode == "blind"
