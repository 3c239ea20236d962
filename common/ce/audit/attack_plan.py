"""Which adversary plays which attack on which data, and under which name the attack is reported.

adversary     attack                    data
coordinator   distinct rows             each site's words, as they pass through the coordinator
              phi inversion             the same, divided by the messages that were sent
              clustered parts           the same, over all exchanges
              unmixed parts             the same, where they are linear in the labels
              votes                     votes per class, each site's and all together (bc3e)
              distinct totals           totals
              trajectories              totals and messages over all exchanges
              decode, secret starts     the first total, with column parameters guessed from the seed
              decode, shared columns    totals of blocks all of whose columns are shared
              unmixing                  totals that are linear in the labels
              fitting                   first totals of objects with equal labels, and the messages behind them
              alternating               first totals and the messages behind them: labels and parameters in turn
              flat sums                 sums of a step in which all objects have the same message (bc3e)
              equality classes          totals, against the label rows of all sites together
              histograms, peeling       column sums of shared columns
              decode, public starts     the first total of a job whose starts were public
              two rosters               the first totals of two jobs, one without a site
              repeated jobs             the first totals of several jobs over the same labels, linked by their results
              smoothing                 totals of a job with the largest smoothing and as many starts as are needed
              crafted messages          messages that an active coordinator changed, and the sums that follow
              reset and probe           the same, over many exchanges that build on each other
              left-out members          totals of a block that some members were not told of
              pattern counts            column sums that follow from changed parameters of shared columns
              one site's parameters     column sums of sites one of which was sent other parameters
              unanimous votes           votes per class of objects on which all ballots agree (bc3e)
site          subtraction               totals minus the site's own part: equal rows
              clustered residuals       the same over all exchanges
              trajectories              messages over all exchanges
              decode, shared columns    totals minus its own part, with the column parameters that it is sent
              unmixing, fitting         totals minus its own part
              alternating, flat sums    the same
              repeated jobs, smoothing  the same, of other jobs
              histograms                column sums minus its own
              unanimous votes           votes per class minus its own (bc3e, blind)
reference     the paper's rows          ln beta_j(x_ij), which section 5.2.2 of the BCE paper would send
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ce.audit.adversary_views import CoordinatorView, CuriousSiteView, Guesses, Histograms, HolderView, Question
from ce.audit.attacks.alternation import alternate, alternate_as_site
from ce.audit.attacks.equal_rows import distinct_rows, distinct_totals, equality_classes, phi_inversion, votes
from ce.audit.attacks.flat_sums import unmix_flat_as_site, unmix_flat_sums
from ce.audit.attacks.histograms import others_histograms, proportional_histograms, site_histograms
from ce.audit.attacks.known_beta_decode import decode_as_site, decode_shared, decode_starts
from ce.audit.attacks.linear_unmix import unmix, unmix_as_site, unmix_parts
from ce.audit.attacks.nonlinear_fit import fit_as_site, fit_totals
from ce.audit.attacks.peel_rows import label_rows
from ce.audit.attacks.subtract_parts import distinct_residuals
from ce.audit.attacks.trajectories import clustered_parts, clustered_residuals, site_trajectories, trajectories
from ce.audit.attacks.unanimous_votes import unanimous_votes
from ce.audit.report import Finding
from ce.audit.scoring import Referee, Truth

CoordinatorAttack = Callable[[CoordinatorView, Sequence[Question]], Guesses]
SiteAttack = Callable[[CuriousSiteView, Sequence[Question]], Guesses]

BY_COORDINATOR: dict[str, CoordinatorAttack] = {
    "distinct rows": distinct_rows,
    "phi inversion": phi_inversion,
    "clustered parts": clustered_parts,
    "unmixed parts": unmix_parts,
    "votes": votes,
    "distinct totals": distinct_totals,
    "trajectories": trajectories,
    "decode, secret starts": decode_starts,
    "decode, shared columns": decode_shared,
    "unmixing": unmix,
    "fitting": fit_totals,
    "alternating": alternate,
    "flat sums": unmix_flat_sums,
}
BY_SITE: dict[str, SiteAttack] = {
    "subtraction": distinct_residuals,
    "clustered residuals": clustered_residuals,
    "trajectories": site_trajectories,
    "decode, shared columns": decode_as_site,
    "unmixing": unmix_as_site,
    "fitting": fit_as_site,
    "alternating": alternate_as_site,
    "flat sums": unmix_flat_as_site,
}
#: Attacks that need a job of their own, or look for something other than a partition.
OTHERS = (
    "equality classes",
    "histograms",
    "peeling",
    "decode, public starts",
    "two rosters",
    "repeated jobs",
    "smoothing",
    "crafted messages",
    "reset and probe",
    "left-out members",
    "pattern counts",
    "one site's parameters",
    "unanimous votes",
    "the paper's rows",
)
ATTACKS: tuple[str, ...] = tuple(dict.fromkeys((*BY_COORDINATOR, *BY_SITE, *OTHERS)))


def play_coordinator(
    view: CoordinatorView, questions: Sequence[Question], referee: Referee, wanted: Sequence[str], truth: Truth
) -> list[Finding]:
    """All attacks of a passive coordinator on one recording."""
    found: list[Finding] = []
    clusterings = [q for q in questions if not truth.is_classifier(q)]
    for name, attack in BY_COORDINATOR.items():
        asked = [q for q in questions if truth.is_classifier(q)] if name == "votes" else clusterings
        if name in wanted and asked:
            guesses = attack(view, asked)
            found += referee.partitions("coordinator", name, view.mode, guesses)
    if "equality classes" in wanted and clusterings:
        blocks = {question.block for question in truth.questions()}
        classes = {block: equality_classes(view, block) for block in blocks}
        found += referee.equality("equality classes", view.mode, classes)
    if "histograms" in wanted:
        baseline = proportional_histograms(view)
        found += referee.histograms("coordinator", "histograms", view.mode, site_histograms(view), baseline)
    if "unanimous votes" in wanted:
        blocks = {q.block for q in questions if truth.is_classifier(q)}
        named = {block: unanimous_votes(view, block) for block in sorted(blocks)}
        known = {block: guess for block, guess in named.items() if guess is not None}
        found += referee.votes("coordinator", "unanimous votes", view.mode, known)
    if "peeling" in wanted:
        rows = [(group, label_rows(view, group)) for group in view.groups.values()]
        found += referee.rows("peeling", view.mode, rows)
    return found


def play_site(
    view: CuriousSiteView, questions: Sequence[Question], referee: Referee, wanted: Sequence[str], truth: Truth
) -> list[Finding]:
    """All attacks of one curious site on one of its blocks."""
    foreign = [q for q in questions if q.block == view.block and q.holder != view.name and not truth.is_classifier(q)]
    found: list[Finding] = []
    for name, attack in BY_SITE.items() if foreign else ():
        if name in wanted:
            guesses = attack(view, foreign)
            found += referee.partitions(f"site {view.name}", name, view.mode, guesses)
    return found


def play_holder(
    view: HolderView, mode: str, baseline: Histograms, referee: Referee, wanted: Sequence[str]
) -> list[Finding]:
    """The attack of a holder of shared columns on the other holders' histograms."""
    if "histograms" not in wanted:
        return []
    return referee.histograms(f"site {view.name}", "histograms", mode, others_histograms(view), baseline)
