"""Which adversary plays which attack on sealed jobs, and under which name it is reported.

adversary     attack                     data
coordinator   ciphertexts                all that members send each other through it: rows, clustered
              dealt masks                the same less the masks that it deals, as if it were not encrypted
              crafted model              winners of a model that is one column; sites refuse it
              nearly honest model        winners of the model that is nearest to one column among those that pass
site          linear programming         opened tables of its own columns with a foreign one, and a prior
              small categories           the same, object by object: a label with one object reads a row of the table
              winners                    published labels, own labels and the opened model
              openings                   what the members open to each other in the tournament, clustered
              equal rows                 masked rows of the other members: which are equal
              several jobs               the mean of the tables of jobs that share the budget: repeated jobs, attempts
              edited own file            jobs that share the budget, with other labels of its own in each
              chosen file                the same, with a category for each object
              two rosters                jobs with and without a site, and the difference of their tables
              edited foreign file        jobs before and after another site changed its file, and their difference
              unbounded jobs             10,000 jobs of a whole budget each, which the ledger refuses
              exact tables               a job without noise, which a policy has to allow
stated limit  dealer and site            masked rows that a site can read, and the masks that the dealer knows
              weighted rows              tables of a site whose rows are not one-hot
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ce.audit.adversary_views import Guess
from ce.audit.report import BUDGET, NO_EXACT, Score
from ce.audit.sealed.attacks.linear_programme import nearest_labels
from ce.audit.sealed.attacks.release_differences import guess_after_edit
from ce.audit.sealed.attacks.small_categories import read_small_categories
from ce.audit.sealed.attacks.winner_posterior import guess_from_winners
from ce.audit.sealed.pooled_labels import PooledLabels
from ce.audit.sealed.scenarios import (
    Budget,
    chosen_file,
    edited_foreign_file,
    edited_own_file,
    exact_tables,
    one_job,
    repeated_jobs,
    two_rosters,
    unbounded_jobs,
)
from ce.audit.sealed.scoring import Baseline
from ce.audit.sealed.site_knowledge import SiteKnowledge, Target
from ce.ring import Reals

#: A target of one attack: column and holder.
Key = tuple[int, str]
Decoder = Callable[[SiteKnowledge, Target, Reals], Guess | None]
#: Plays an attack as one site with one draw of the noise; of some targets only, if any are named.
Play = Callable[[PooledLabels, str, Budget, frozenset[Key] | None], Iterator[tuple[Key, Score]]]


@dataclass(frozen=True)
class SiteAttack:
    """An attack of a curious site on releases."""

    name: str
    play: Play
    by_all: bool = False  # every site plays it; otherwise the one with most labels of its own
    otherwise: str | None = None  # what its success means, if it is no leak


def _from_prior(
    known: SiteKnowledge, labels: PooledLabels, decoder: Decoder, only: frozenset[Key] | None
) -> Iterator[tuple[Key, Score]]:
    for target in known.targets:
        if only is None or target.key in only:
            baseline = Baseline.of(labels, known, target)
            guess = decoder(known, target, baseline.prior)
            if guess is not None:
                yield target.key, baseline.score_from_prior(guess)


def _on(scenario: Callable[[PooledLabels, str, Budget], SiteKnowledge], *decoders: Decoder) -> Play:
    """An attack that decodes what one scenario gives; of several decoders each target's best counts."""

    def play(
        labels: PooledLabels, site: str, budget: Budget, only: frozenset[Key] | None
    ) -> Iterator[tuple[Key, Score]]:
        known = scenario(labels, site, budget)
        for decoder in decoders:
            yield from _from_prior(known, labels, decoder, only)

    return play


def _winners(
    labels: PooledLabels, site: str, budget: Budget, only: frozenset[Key] | None
) -> Iterator[tuple[Key, Score]]:
    known = one_job(labels, site, budget)
    guesses = guess_from_winners(known)
    for target in known.targets:
        if only is None or target.key in only:
            yield target.key, Baseline.of(labels, known, target).score(guesses[target.key])


def _two_rosters(
    labels: PooledLabels, site: str, budget: Budget, only: frozenset[Key] | None
) -> Iterator[tuple[Key, Score]]:
    missing = next(name for name in reversed(labels.sites) if name != site)
    if len(labels.sites) < 3:
        return
    for known in two_rosters(labels, site, missing, budget):
        yield from _from_prior(known, labels, read_small_categories, only)


def _edited_foreign_file(
    labels: PooledLabels, site: str, budget: Budget, only: frozenset[Key] | None
) -> Iterator[tuple[Key, Score]]:
    holder = next(name for name in reversed(labels.sites) if name != site)
    after, known, difference = edited_foreign_file(labels, site, holder, budget)

    def after_edit(_: SiteKnowledge, target: Target, prior: Reals) -> Guess | None:
        return guess_after_edit(difference, target, prior)

    yield from _from_prior(known, after, read_small_categories, only)
    yield from _from_prior(known, after, after_edit, only)


SITE_ATTACKS: tuple[SiteAttack, ...] = (
    SiteAttack("linear programming", _on(one_job, nearest_labels), by_all=True),
    SiteAttack("small categories", _on(one_job, read_small_categories), by_all=True),
    SiteAttack("winners", _winners, by_all=True),
    SiteAttack("several jobs", _on(repeated_jobs, nearest_labels, read_small_categories)),
    SiteAttack("edited own file", _on(edited_own_file, read_small_categories)),
    SiteAttack("chosen file", _on(chosen_file, read_small_categories)),
    SiteAttack("two rosters", _two_rosters),
    SiteAttack("edited foreign file", _edited_foreign_file),
    SiteAttack("unbounded jobs", _on(unbounded_jobs, read_small_categories), otherwise=BUDGET),
    SiteAttack("exact tables", _on(exact_tables, nearest_labels), otherwise=NO_EXACT),
)
#: Attacks on recorded jobs, and attacks of parties that deviate.
ON_RECORDINGS = ("ciphertexts", "dealt masks", "openings", "equal rows")
OTHERS = ("crafted model", "nearly honest model", "dealer and site", "weighted rows")
#: Of these, those whose success is a stated limit.
LIMITS = ("dealer and site", "weighted rows")
SEALED_ATTACKS: tuple[str, ...] = (*(attack.name for attack in SITE_ATTACKS), *ON_RECORDINGS, *OTHERS)
