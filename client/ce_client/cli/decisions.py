"""ce-client preview, approve, decline and allow-roster: what would leave in a job, and whether it may."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import click
from rich.text import Text

from ce.cli.output import fact_table, format_option, list_table, say, show_table
from ce.errors import Cancelled, InputError
from ce_client.cli.options import config_option, read_config
from ce_client.config import ClientSettings
from ce_client.daemon.single_instance import wake_daemon
from ce_client.state.consents import Consents, Decision
from ce_client.state.job_index import JobIndex
from ce_client.state.previews import Preview, PreviewArray, Previews
from ce_client.state.rosters import Rosters, content_digest


@click.command(short_help="Show what would leave this site in a job, array by array.")
@click.argument("job")
@config_option
@format_option
def preview(job: str, config: Path, format_: str) -> None:
    """Show what would leave this site in a job: every array, who else is in its total, the rules that it meets.

    There is a preview once all sites have enrolled. Nothing of the arrays has been sent by then if the policy says
    consent = "ask".

    \b
    Examples:
      ce-client preview demo --config /srv/ce-site
      ce-client preview demo --config /srv/ce-site --format json
    """
    settings = read_config(config)
    found = _preview_of(settings, job)
    if format_ == "json":
        click.echo(json.dumps(found.as_dict(), indent=2))
        return
    facts = fact_table()
    facts.add_row("job", Text(found.job))
    facts.add_row("coordinator", Text(found.coordinator))
    facts.add_row("model", f"{found.model}, {found.privacy} sums")
    facts.add_row("sites", ", ".join(found.sites))
    facts.add_row("rounds", f"up to {found.rounds_up_to:,}")
    if found.randomise:
        listed = ", ".join(f"{value:.2f} ({column})" for column, value in found.epsilon.items())
        facts.add_row("randomised", Text(f"each label with probability {found.randomise:g}: epsilon {listed}"))
    for own in found.excluded:
        needed = f"{own.rule} asks for {own.required:,}, there are {own.found:,}"
        facts.add_row("left out", Text(f"{own.what}: {own.objects:,} objects here; {needed}"))
    if found.waits_for_consent:
        facts.add_row("waits", Text("for ce-client approve, or decline"))
    show_table(facts)
    click.echo()
    arrays = list_table("array", "step", "shape", "mode", "in a total with", "rules that it meets")
    for array in found.arrays:
        others = ", ".join(site for site in array.contributors if site != settings.name)
        shape = " x ".join(f"{length:,}" for length in array.shape) or "1"
        arrays.add_row(Text(array.name), array.step, shape, array.mode, others or "nobody", _rules_of(array))
    show_table(arrays)


def _rules_of(array: PreviewArray) -> str:
    return "; ".join(f"{met.rule}: {met.found:,}, asked {met.required:,}" for met in array.rules)


@click.command(short_help="Let a job begin that waits for this site's consent.")
@click.argument("job")
@config_option
@format_option
def approve(job: str, config: Path, format_: str) -> None:
    """Let a job begin that waits for this site's consent (consent = "ask" in policy.toml).

    It holds for the very job and the very sites that ce-client preview shows: one of the same name that differs is
    refused. A daemon that runs hears of it at once.

    \b
    Examples:
      ce-client preview demo --config /srv/ce-site
      ce-client approve demo --config /srv/ce-site
    """
    _decide(job, "approved", config, format_)


@click.command(short_help="Refuse a job that waits for this site's consent.")
@click.argument("job")
@config_option
@format_option
def decline(job: str, config: Path, format_: str) -> None:
    """Refuse a job that waits for this site's consent: it then fails, for all its sites.

    \b
    Examples:
      ce-client decline demo --config /srv/ce-site
      ce-client decline demo --config /srv/ce-site --format json
    """
    _decide(job, "declined", config, format_)


def _decide(job: str, decision: Decision, config: Path, format_: str) -> None:
    settings = read_config(config)
    seen = _preview_of(settings, job)
    states = [entry.state for entry in JobIndex(settings.state).entries() if entry.job == job and entry.over]
    if states:
        raise InputError(f"job {job!r} is over ({states[0]}): there is nothing left to decide")
    Consents(settings.state).decide(job, bytes.fromhex(seen.job_digest), seen.sites, decision)
    told = wake_daemon(settings.state)
    say(
        format_,
        {
            "job": job,
            "decision": decision,
            "job_digest": seen.job_digest,
            "roster": list(seen.sites),
            "daemon_told": told,
        },
        f"{decision} {job}, with {', '.join(seen.sites)}",
        *(() if told else ("no daemon is running here: it will find this when it starts",)),
    )


@click.command(
    "allow-roster", short_help="Let the same labels go into totals with other sites than before: read --help first."
)
@click.argument("job")
@click.option("--yes", is_flag=True, help="Do not ask: what it gives away is understood.")
@config_option
@format_option
def allow_roster(job: str, yes: bool, config: Path, format_: str) -> None:
    """Let this site's labels go into totals with the sites of JOB, although they went into totals with others before.

    Totals of the same labels under two rosters differ by exactly what the sites in which the rosters differ have added.
    Whoever sees both subtracts them: exact counts of those sites, where few sites differ of a single one, and of small
    groups the labels themselves. Masks do not help against that. So a job with another roster is refused (rule: one
    roster per label file), unless it is allowed here. The ledger records it when it is first used.

    \b
    Examples:
      ce-client allow-roster demo --config /srv/ce-site
      ce-client allow-roster demo --yes --config /srv/ce-site
    """
    settings = read_config(config)
    roster = tuple(sorted(JobIndex(settings.state).entry(job).sites))
    rosters, labels = Rosters(settings.state), settings.labels.file
    others = rosters.others(labels, content_digest(labels), roster)
    facts = {"job": job, "roster": list(roster), "others": [list(other) for other in others]}
    if not others:
        sentence = f"these labels were never contributed without {', '.join(roster)}: nothing to allow"
        say(format_, {**facts, "allowed": False}, sentence)
        return
    for other in others:
        differ = ", ".join(sorted(set(roster) ^ set(other)))
        click.echo(
            f"warning: these labels are in totals with {', '.join(other)}. Whoever sees those and the ones with "
            f"{', '.join(roster)} can subtract them, and then knows what {differ} added, exactly.",
            err=True,
        )
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("nobody can be asked here: give --yes if what it gives away is understood")
        if not click.confirm("Allow it?", default=False, err=True):
            raise Cancelled("nothing was changed")
    rosters.allow(roster, job)
    told = wake_daemon(settings.state)
    say(
        format_,
        {**facts, "allowed": True, "daemon_told": told},
        f"allowed: totals with {', '.join(roster)}; a job that was refused has to be submitted again",
    )


def _preview_of(settings: ClientSettings, job: str) -> Preview:
    found = Previews(settings.state).read(job)
    if found is None:
        JobIndex(settings.state).entry(job)  # raises for a job that this site has never heard of
        raise InputError(
            f"there is no preview of job {job!r}: not all sites have enrolled yet, or it was refused before "
            "(ce-client show says why)"
        )
    return found
