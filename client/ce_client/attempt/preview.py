"""What would leave a site in a job: every array, who else is in its total, which rules it meets."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ce.job import Job
from ce.policy import Policy
from ce.protocol.attempt import Attempt
from ce.protocol.messages.steps import asked, first_step
from ce.protocol.messages.steps import Step
from ce.protocol.minimums import PRIVATE, Exclusion, Findings
from ce.protocol.topology.site_view import SiteView
from ce.steps.model import Model
from ce_client.state.previews import Excluded, Preview, PreviewArray, RuleMet

#: Iterations whose arrays are looked at: more than any schedule has different ones.
_ITERATIONS = 200


def preview(
    attempt: Attempt,
    job: Job,
    coordinator: str,
    model: Model,
    view: SiteView,
    findings: Findings,
    excluded: tuple[Exclusion, ...],
    policy: Policy,
    epsilons: Mapping[str, float],
    waits: bool,
) -> Preview:
    """Of an alignment that breaks no rule."""
    return Preview(
        job=attempt.job,
        job_digest=attempt.job_digest.hex(),
        coordinator=coordinator,
        epoch=attempt.epoch,
        model=job.model,
        privacy=job.privacy,
        sites=attempt.roster,
        rounds_up_to=min(policy.max_rounds, _rounds(model, view, job.privacy)),
        arrays=tuple(_arrays(model, view, findings, job.privacy)),
        excluded=tuple(
            Excluded(
                what=f"column {', '.join(own.columns)}" if own.columns else "objects that several sites hold",
                objects=own.objects,
                rule=own.rule,
                required=own.required,
                found=own.found,
            )
            for own in excluded
        ),
        randomise=policy.randomise,
        epsilon=dict(epsilons),
        waits_for_consent=waits,
    )


def _arrays(model: Model, view: SiteView, findings: Findings, mode: str) -> Iterator[PreviewArray]:
    seen: dict[str, PreviewArray] = {}
    for step, name, shape in _all(model, view, mode):
        scope = "global" if name.startswith("global/") else "/".join(name.split("/")[:2])
        met_all = findings.arrays.get(scope, ())
        if scope == "global":
            met_all += findings.arrays.get(PRIVATE, ())
        rules = tuple(RuleMet(met.rule, met.required, met.found) for met in met_all)
        seen.setdefault(name, PreviewArray(name, step, shape, mode, view.contributors(name), rules))
    yield from seen.values()


def _all(model: Model, view: SiteView, mode: str) -> Iterator[tuple[Step, str, tuple[int, ...]]]:
    for name, shape in asked("open", view, model, 0, 0).items():
        yield "open", name, shape
    stage: Model | None = model
    while stage is not None:
        first = first_step(stage, view)
        for step in (first,) if first == "sums" else (first, "columns"):
            for iteration in range(1, min(stage.max_iter + 1, _ITERATIONS) + 1):
                for name, shape in asked(step, view, stage, stage.n_starts, iteration).items():
                    yield step, name, shape
        stage = stage.next_stage()
    if model.uses_votes:
        for name, shape in asked("clusterings_only", view, model, 1, 0).items():
            yield "clusterings_only", name, shape
    if mode != "blind":
        for name, shape in asked("finish", view, model, 1, 0).items():
            yield "finish", name, shape


def _rounds(model: Model, view: SiteView, mode: str) -> int:
    """No job of this model takes more: every step may be taken back once."""
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
