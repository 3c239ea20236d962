"""What an audit reports: one finding per adversary, attack and mode, with a verdict that says what it means."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from ce.job import Job

#: An attack succeeds when it is better than the published consensus by more than this, on any single target.
MARGIN = 0.05
#: The same for sealed jobs, whose gains are means over several draws of the noise.
SEALED_MARGIN = 0.03

Measure = Literal["ari", "histograms", "rows", "votes", "labels"]
Adversary = Literal["coordinator", "site"]

NOTHING = "no more than the result"
LEAKS = "LEAKS"
ALLOWED = "as the mode says"
INHERENT = "inherent in totals"
COUNTED = "counts over all sites, of no object"
REFERENCE = "reference: ce never sends this"
SECRET_STARTS = "ruled out: starts are secret"
LATTICE = "lattice reduction of totals that are linear in the labels (docs/audit.md)"
ONE_ROSTER = "ruled out: one roster per label file"
OVERLAP_CHECK = "ruled out: overlap of sites"
STATED = "stated limit"
REFITTED = "ruled out: sites refit the model"
BUDGET = "ruled out: max_epsilon"
NO_EXACT = "ruled out: allow_exact"


@dataclass(frozen=True)
class Finding:
    """How much one adversary recovered with one attack, on the target on which it gained most."""

    view: str  # "coordinator", or "site NAME"
    attack: str
    mode: str
    target: str  # a column, or what else the attack looks for
    #: Adjusted Rand index; share of exact histograms, of whole label rows, of objects' votes, of chosen labels.
    measure: Measure
    recovered: float
    baseline: float  # the same measure of what the published result implies
    mean_gain: float  # recovered - baseline, over all targets of this adversary and attack
    verdict: str

    @property
    def adversary(self) -> Adversary:
        """The kind of adversary."""
        return "coordinator" if self.view == "coordinator" else "site"

    @property
    def gain(self) -> float:
        """What the adversary recovered beyond what the published result implies."""
        return self.recovered - self.baseline

    @property
    def succeeded(self) -> bool:
        """Whether the adversary recovered more than the result implies."""
        return self.verdict != NOTHING

    @property
    def leaks(self) -> bool:
        """Whether the finding breaks what the mode promises, in a layout that the default rules allow."""
        return self.verdict == LEAKS


@dataclass(frozen=True)
class Audit:
    """All findings about one job."""

    job: Job
    layout: str
    sites: Mapping[str, int]  # name -> objects
    objects: int  # that were attacked
    of_objects: int  # in the job
    modes: tuple[str, ...]
    findings: tuple[Finding, ...]  # one for each adversary, attack and mode
    broken_rules: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # default rules that the layout breaks
    excluded_objects: int = 0  # that several sites hold, where the policy leaves them out
    not_played: tuple[str, ...] = ()  # attacks that are known to work on such a job but are not part of the audit
    #: Attacks on totals, which a sealed job does not open: name -> why there is nothing to work on.
    superseded: Mapping[str, str] = field(default_factory=dict)

    @property
    def margin(self) -> float:
        """How much better than the baseline an attack has to be."""
        return SEALED_MARGIN if self.job.sealed else MARGIN

    @property
    def leaks(self) -> tuple[Finding, ...]:
        """The findings that break what their mode promises."""
        return tuple(finding for finding in self.findings if finding.leaks)

    def worst(self) -> tuple[Finding, ...]:
        """One finding per kind of adversary, attack, mode and measure: of several sites the one that gained most."""
        best: dict[tuple[str, str, str, str], Finding] = {}
        for finding in self.findings:
            key = finding.adversary, finding.attack, finding.mode, finding.measure
            if key not in best or (finding.leaks, finding.gain) > (best[key].leaks, best[key].gain):
                best[key] = finding
        return tuple(best.values())

    def as_dict(self) -> dict[str, Any]:
        """Numbers and names only, ready for JSON."""
        return {
            "model": self.job.model,
            "clusters": self.job.clusters,
            "restarts": self.job.restarts,
            "layout": self.layout,
            "sites": dict(self.sites),
            "objects": self.objects,
            "of_objects": self.of_objects,
            "excluded_objects": self.excluded_objects,
            "modes": list(self.modes),
            "margin": self.margin,
            "broken_rules": {scope: list(rules) for scope, rules in self.broken_rules.items()},
            "leaks": len(self.leaks),
            "not_played": list(self.not_played),
            "superseded": dict(self.superseded),
            "findings": [
                {**asdict(finding), "gain": finding.gain, "succeeded": finding.succeeded} for finding in self.findings
            ],
        }


@dataclass(frozen=True)
class Score:
    """How much an attack recovered on one target, and how much the published result implies."""

    recovered: float
    baseline: float

    @property
    def gain(self) -> float:
        """What the adversary recovered beyond what the published result implies."""
        return self.recovered - self.baseline


def verdict(score: Score, view: str, mode: str, otherwise: str | None, broken: tuple[str, ...]) -> str:
    """What the score of a single target means; what the attack gained on average is no excuse.

    `otherwise` is the verdict of attacks whose success always means the same. `broken` are the rules of the policy that
    keep such a job from running.
    """
    if score.gain <= MARGIN:
        return NOTHING
    if otherwise is not None:
        return otherwise
    if view == "coordinator" and mode == "plain":
        return ALLOWED
    if broken:
        return f"ruled out: {broken[0]}"
    return LEAKS
