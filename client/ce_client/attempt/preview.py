"""The preview of a job: every array that would leave the site, the other sites in its total, the rules it satisfies."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ce.policy import MOST_COUNTED
from ce.protocol.messages.array_names import EVERYTHING, ArrayName, Scope
from ce.protocol.messages.steps import Step, expected_arrays, first_step, with_macs
from ce.protocol.minimums import PRIVATE, Exclusion, Findings
from ce.protocol.sealed.label_rounds import winners_array
from ce.protocol.sealed.schedule import MASKED, SHARE
from ce.protocol.topology.site_view import SiteView
from ce.steps.model import Model
from ce_client.attempt.sealed_release import SealedRelease
from ce_client.attempt.setup import OfferedJob
from ce_client.state.disclosures import Budget
from ce_client.state.previews import Excluded, Preview, PreviewArray, PreviewRelease
from ce_client.state.randomisations import AccountedEpsilon

#: Iterations whose arrays are listed: no schedule has a longer period.
_ITERATIONS = 200


def preview(
    offered: OfferedJob,
    view: SiteView,
    findings: Findings,
    excluded: tuple[Exclusion, ...],
    epsilon: AccountedEpsilon | None,
    budget: Budget | SealedRelease | None,
    waits: bool,
) -> Preview:
    """The preview of an alignment that breaks no rule. `waits`: the job waits for consent.

    `budget`: what the job costs: of definitions, or of epsilon if it is sealed.
    """
    attempt, job, policy = offered.attempt, offered.job, offered.policy
    if isinstance(budget, SealedRelease):
        rounds, arrays = _sealed_rounds(budget), tuple(_sealed_arrays(budget, view, findings))
    else:
        rounds, arrays = (
            _most_rounds(offered.steps, view, job.privacy),
            tuple(_arrays(offered.steps, view, findings, job.privacy)),
        )
    return Preview(
        job=attempt.job,
        job_digest=attempt.job_digest.hex(),
        coordinator=offered.coordinator,
        epoch=attempt.epoch,
        model=job.model,
        privacy=job.privacy,
        sites=attempt.roster,
        rounds_up_to=min(policy.max_rounds, rounds),
        arrays=arrays,
        excluded=tuple(map(_excluded, excluded)),
        randomise=policy.randomise,
        epsilon={} if epsilon is None else epsilon.columns,
        epsilon_row=None if epsilon is None else epsilon.row,
        waits_for_consent=waits,
        warnings=tuple(_sealed_warnings(budget) if isinstance(budget, SealedRelease) else _warnings(view)),
        definition=json.loads(job.definition()),
        budget=None if isinstance(budget, SealedRelease) else budget,
        release=_release(budget) if isinstance(budget, SealedRelease) else None,
    )


def _release(sealed: SealedRelease) -> PreviewRelease:
    terms = sealed.terms
    return PreviewRelease(
        tables=len(terms.layout.pairs),
        cells=terms.layout.n_cells,
        sigma=None if terms.noise is None else terms.noise.sigma,
        opened_sd=terms.sd,
        cost=sealed.cost,
    )


def _sealed_rounds(sealed: SealedRelease) -> int:
    """Tables and model, five rounds for each level of the tournament between the clusters, labels."""
    clusters = MOST_COUNTED if sealed.terms.clusters == "auto" else sealed.terms.clusters
    return 12 + 5 * clusters.bit_length()


def _sealed_arrays(sealed: SealedRelease, view: SiteView, findings: Findings) -> Iterator[PreviewArray]:
    """What follows from labels: masked rows and winners of each shared block, and the share of the tables."""
    mode, terms = "sealed", sealed.terms
    for block in view.blocks.values():
        if block.shared:
            rules = findings.arrays.get(Scope.of_block(block.index), ())
            width = sum(len(column.categories) for column in view.clusterings)
            masked = ArrayName.of_members(block.index, MASKED, sealed.site)
            yield PreviewArray(masked, "mask", (block.size, width), mode, block.members, rules)
            winners = winners_array(block, sealed.site)
            yield PreviewArray(winners, "reveal", (block.size,), mode, block.members, rules)
    share = ArrayName.of_broadcast(SHARE, sealed.site)
    yield PreviewArray(
        share, "release", (terms.layout.n_cells,), mode, terms.sites, findings.arrays.get(EVERYTHING, ())
    )


def _sealed_warnings(sealed: SealedRelease) -> Iterator[str]:
    if sealed.terms.noise is None:
        yield (
            "the tables have no noise (allow_exact = true): exact counts of pairs of labels of this site are opened to "
            "all sites of the job and to the coordinator"
        )
    if sealed.terms.noise_warning:
        yield sealed.terms.noise_warning


def _warnings(view: SiteView) -> Iterator[str]:
    """What the policy allows and a person should know."""
    shared = sum(block.size for block in view.blocks.values() if block.shared)
    if shared:
        yield (
            f'totals of {shared:,} objects that several sites hold would be opened (shared_objects = "totals"); labels '
            "can be read from such totals: ce audit found up to ARI 1.0 on such layouts; see docs/threat-model.md"
        )


def _excluded(exclusion: Exclusion) -> Excluded:
    return Excluded(
        what=_what(exclusion),
        objects=exclusion.objects,
        rule=exclusion.rule,
        required=exclusion.required,
        found=exclusion.found,
    )


def _what(exclusion: Exclusion) -> str:
    if exclusion.columns:
        return f"column {', '.join(exclusion.columns)}"
    if exclusion.labels:
        return f"{exclusion.labels:,} labels of categories that too few sites have"
    return "objects that several sites hold"


def _arrays(model: Model, view: SiteView, findings: Findings, mode: str) -> Iterator[PreviewArray]:
    seen: dict[str, PreviewArray] = {}
    for step, name, shape in _all(model, view, mode):
        rules = findings.arrays.get(name.scope, ())
        if name.scope == EVERYTHING:
            rules += findings.arrays.get(PRIVATE, ())
        seen.setdefault(name, PreviewArray(name, step, shape, mode, name.contributors(view), rules))
    yield from seen.values()


def _all(model: Model, view: SiteView, mode: str) -> Iterator[tuple[Step, ArrayName, tuple[int, ...]]]:
    """Step, name and shape of every array that any step asks for."""
    yield from _of_step("open", model, view, mode)
    stage: Model | None = model
    while stage is not None:
        first = first_step(stage, view)
        steps: tuple[Step, ...] = (first,) if first == "sums" else (first, "columns")
        for step in steps:
            for iteration in range(1, min(stage.max_iter + 1, _ITERATIONS) + 1):
                yield from _of_step(step, stage, view, mode, iteration)
        stage = stage.next_stage()
    if model.uses_votes:
        yield from _of_step("clusterings_only", model, view, mode)
    if mode != "blind":
        yield from _of_step("finish", model, view, mode)


def _of_step(
    step: Step, model: Model, view: SiteView, mode: str, iteration: int = 0
) -> Iterator[tuple[Step, ArrayName, tuple[int, ...]]]:
    arrays = expected_arrays(step, view, model, model.scales(view.sizes), model.n_starts, iteration)
    for name, spec in (with_macs(arrays) if mode == "blind" else arrays).items():
        yield step, name, spec.shape


def _most_rounds(model: Model, view: SiteView, mode: str) -> int:
    """The most rounds that a job of this model takes: every step may be retracted once."""
    iterations, stage = 0, model
    while stage is not None:
        iterations += 2 * stage.max_iter + 1
        following = stage.next_stage()
        if following is None:
            break
        stage = following
    exchanges = 1 + (model.phases == 2 and view.needs_two_exchanges)
    if mode == "blind":
        exchanges += 1 + (not view.shared_by_all)
    return iterations * exchanges + 8
