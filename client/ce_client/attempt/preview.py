"""The preview of a job: every array that would leave the site, the other sites in its total, the rules it satisfies."""

from __future__ import annotations

import json
from collections.abc import Iterator

from ce.protocol.messages.array_names import EVERYTHING, ArrayName
from ce.protocol.messages.steps import Step, expected_arrays, first_step, with_macs
from ce.protocol.minimums import PRIVATE, Exclusion, Findings
from ce.protocol.topology.site_view import SiteView
from ce.steps.model import Model
from ce_client.attempt.setup import OfferedJob
from ce_client.state.disclosures import Budget
from ce_client.state.previews import Excluded, Preview, PreviewArray
from ce_client.state.randomisations import AccountedEpsilon

#: Iterations whose arrays are listed: no schedule has a longer period.
_ITERATIONS = 200


def preview(
    offered: OfferedJob,
    view: SiteView,
    findings: Findings,
    excluded: tuple[Exclusion, ...],
    epsilon: AccountedEpsilon | None,
    budget: Budget,
    waits: bool,
) -> Preview:
    """The preview of an alignment that breaks no rule. `waits`: the job waits for consent."""
    attempt, job, policy = offered.attempt, offered.job, offered.policy
    return Preview(
        job=attempt.job,
        job_digest=attempt.job_digest.hex(),
        coordinator=offered.coordinator,
        epoch=attempt.epoch,
        model=job.model,
        privacy=job.privacy,
        sites=attempt.roster,
        rounds_up_to=min(policy.max_rounds, _most_rounds(offered.model, view, job.privacy)),
        arrays=tuple(_arrays(offered.model, view, findings, job.privacy)),
        excluded=tuple(map(_excluded, excluded)),
        randomise=policy.randomise,
        epsilon={} if epsilon is None else epsilon.columns,
        epsilon_row=None if epsilon is None else epsilon.row,
        waits_for_consent=waits,
        warnings=tuple(_warnings(view)),
        definition=json.loads(job.definition()),
        budget=budget,
    )


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
