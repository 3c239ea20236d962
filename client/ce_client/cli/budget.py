"""ce-client budget and allow-release: what sealed jobs have told about this site's labels, and whether more may be."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click
from rich.text import Text

from ce.cli.output import ago, fact_table, format_option, list_table, say, show_table
from ce.policy import Policy
from ce_client.cli.decisions import confirm, exceeds, listed, preview_of
from ce_client.cli.options import config_option, read_config
from ce_client.daemon.single_instance import wake_daemon
from ce_client.state.releases.accounts import epsilon_words
from ce_client.state.releases.store import Budget, Releases

#: Less than this of max_epsilon is nothing to a person.
_SMALLEST_LEFT = 0.005
_UNIT = "this site's labels of one object"
#: What the states of a release mean to a person.
_STATES = {
    "reserved": "under way, nothing opened",
    "committed": "under way, nothing opened",
    "opening": "opened",
    "failed": "ended at a failed check of the dealer",
}


@click.command(short_help="Show how much sealed jobs have told about this site's labels, and what is left.")
@config_option
@format_option
def budget(config: Path, format_: str) -> None:
    """Show how much sealed jobs have told about this site's labels, and what is left of max_epsilon.

    Every sealed job opens noisy tables once, and that is charged to each object that this site brought into it, over
    all label files and job names: epsilon of differential privacy for this site's labels of one object. The label of an
    object that other sites hold too is opened to them once for the same labels of this site; objects that were labelled
    more than once, because a label has changed or a person has allowed it, are counted.

    \b
    Examples:
      ce-client budget --config /srv/ce-site
      ce-client budget --config /srv/ce-site --format json
    """
    settings = read_config(config)
    policy = Policy.read(settings.policy)
    found = Releases(settings.state).budget(policy.max_delta)
    if format_ == "json" or not found.jobs:
        say(format_, _facts(found, policy), "no sealed job has opened anything of this site")
        return
    facts = fact_table()
    facts.add_row("unit", _UNIT)
    facts.add_row("allowed", f"epsilon {policy.max_epsilon:g} at delta {policy.max_delta:g}")
    for at, (epsilon, objects) in enumerate(found.spent.items()):
        spent = f"epsilon {epsilon_words(epsilon)}{left_words(_left(epsilon, policy))}"
        facts.add_row("" if at else "spent", f"{spent}: {objects:,} objects")
    if not found.spent:
        facts.add_row("spent", "nothing")
    if found.reserved != found.spent:
        largest = epsilon_words(next(iter(found.reserved)))
        facts.add_row("under way", f"jobs that have opened nothing yet may bring this to epsilon {largest}")
    again = f"; {found.relabelled:,} of them more than once" if found.relabelled else ""
    facts.add_row("labelled", f"{found.labelled:,} objects, together with other sites that hold them{again}")
    show_table(facts)
    click.echo()
    jobs = list_table("job", "state", "when", "objects", "epsilon alone", "labelled")
    for one, epsilon in reversed(found.jobs):
        when = ago(time.time() - one.at)
        counts = f"{len(one.objects):,}", epsilon_words(epsilon), f"{len(one.entered):,}"
        jobs.add_row(Text(one.job), _STATES[one.state], when, *counts)
    show_table(jobs)


def _left(epsilon: float | None, policy: Policy) -> float | None:
    """Of max_epsilon; None: it has no limit. Epsilons do not add up: two jobs may cost less than the sum of both."""
    return None if epsilon is None else max(0.0, policy.max_epsilon - epsilon)


def left_words(left: float | None) -> str:
    """What is left, for a person: nothing where it would be rounded to 0."""
    if left is None:
        return ""
    return ", nothing left" if left < _SMALLEST_LEFT else f", {left:.2f} left"


def _facts(found: Budget, policy: Policy) -> dict[str, Any]:
    def counted(usage: dict[float | None, int]) -> list[dict[str, Any]]:
        return [{"epsilon": e, "left": _left(e, policy), "objects": objects} for e, objects in usage.items()]

    return {
        "unit": "site_row",
        "max_epsilon": policy.max_epsilon,
        "delta": policy.max_delta,
        "spent": counted(found.spent),
        "with_reservations": counted(found.reserved),
        "labelled": found.labelled,
        "labelled_more_than_once": found.relabelled,
        "jobs": [
            {
                "job": one.job,
                "state": one.state,
                "at_s": one.at,
                "objects": len(one.objects),
                "epsilon": epsilon,
                "labelled": len(one.entered),
            }
            for one, epsilon in found.jobs
        ],
    }


@click.command("allow-release", short_help="Let a sealed job tell more than the policy allows: read --help first.")
@click.argument("job")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@config_option
@format_option
def allow_release(job: str, yes: bool, config: Path, format_: str) -> None:
    """Let JOB open tables, and labels of shared objects, although that tells more than this site's policy allows.

    Every release of tables tells a little about each label that is in it; epsilon bounds how much, and max_epsilon what
    all of them together may tell. Beyond it, whoever has the tables of all jobs can say with more certainty which
    labels this site has. Every further labelling of the same object with the same labels tells its other holders more,
    too. So such a job is refused (rules: max_epsilon, one labelling) unless it is allowed here. An object of which this
    site has changed a label since is labelled again without an allowance: its epsilon counts, whatever its labels are.

    JOB is a job that was refused by one of these rules, or that waits for consent. The allowance is for one release of
    its whole definition, which is printed, under any name. The ledger records its use.

    \b
    Examples:
      ce-client allow-release demo --config /srv/ce-site
      ce-client allow-release demo --yes --config /srv/ce-site
    """
    settings = read_config(config)
    previewed = preview_of(settings, job)
    release = previewed.release
    facts: dict[str, Any] = {"job": job, "definition": previewed.definition}
    if release is None or not exceeds(settings, previewed):
        needless = f"job {job!r} tells no more than this site allows: nothing to allow"
        say(format_, {**facts, "allowed": False}, needless)
        return
    cost = release.cost
    facts |= {"epsilon": cost.epsilon, "before": cost.before, "after": cost.after, "limit": cost.limit}
    click.echo(f"definition of {job}: {listed(previewed.definition)}\n{release.sentence}", err=True)
    if cost.over:
        click.echo(
            f"warning: epsilon of {_UNIT} goes from {epsilon_words(cost.before)} to {epsilon_words(cost.after)} (at "
            f"delta {cost.delta:g}), and the policy allows {cost.limit:g}. {cost.over:,} of {cost.objects:,} objects "
            "would be above it.",
            err=True,
        )
    if cost.labelled:
        click.echo(
            f"warning: {cost.labelled:,} objects were labelled before with the same labels of this site, or are about "
            "to be. Each further labelling tells their other holders more about these labels.",
            err=True,
        )
    confirm(yes)
    Releases(settings.state).allow(cost.definition, job)
    woken = wake_daemon(settings.state)
    say(
        format_,
        {**facts, "allowed": True, "daemon_told": woken},
        f"allowed: one release of the definition of {job}, under any name; a job that was refused has to be submitted "
        "again",
    )
