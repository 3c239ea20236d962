"""ce-client preview, approve, decline and the commands that allow more: what would leave, and whether it may."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from ce.cli.output import fact_table, format_option, list_table, mode_words, say, show_table
from ce.errors import Cancelled, InputError
from ce.identity.keys import read_secret
from ce.labels.randomised import Randomisation
from ce.policy import Policy
from ce.protocol.minimums import SHARED_OBJECTS
from ce_client.cli.options import config_option, read_config
from ce_client.config import ClientSettings
from ce_client.daemon.single_instance import wake_daemon
from ce_client.daemon.site_files import read_labels
from ce_client.state.consents import Consents, Decision
from ce_client.state.disclosures import Disclosures
from ce_client.state.job_index import JobIndex
from ce_client.state.previews import Excluded, Preview, PreviewArray, PreviewRelease, Previews
from ce_client.state.randomisations import Randomisations, draws_of, epsilon_sentence, epsilon_words
from ce_client.state.releases.accounts import EPSILON_RULE, LABELLING_RULE
from ce_client.state.releases.store import Releases
from ce_client.state.rosters import Rosters, content_digest


@click.command(short_help="Show what would leave this site in a job, array by array.")
@click.argument("job")
@config_option
@format_option
def preview(job: str, config: Path, format_: str) -> None:
    """Show what would leave this site in a job: every array, the other sites in its total, the rules it satisfies.

    It begins with the whole definition of the job, and with what that costs: the definitions that have opened totals of
    the same objects before (max_definitions in policy.toml); or, of a sealed job, the tables that it opens with how
    much noise, epsilon before and with it (max_epsilon), and how many objects get a label together with other sites.

    There is a preview once all sites have enrolled. If the policy says consent = "ask", nothing of the arrays has been
    sent by then.

    \b
    Examples:
      ce-client preview demo --config /srv/ce-site
      ce-client preview demo --config /srv/ce-site --format json
    """
    settings = read_config(config)
    found = preview_of(settings, job)
    if format_ == "json":
        click.echo(json.dumps(found.as_dict(), indent=2))
        return
    facts = fact_table()
    facts.add_row("job", Text(found.job))
    facts.add_row("coordinator", Text(found.coordinator))
    facts.add_row("model", f"{found.model}, {mode_words(found.privacy)}")
    facts.add_row("sites", ", ".join(found.sites))
    facts.add_row("definition", Text(listed(found.definition)))
    facts.add_row("rounds", f"up to {found.rounds_up_to:,}")
    if found.budget is not None and found.budget.objects:
        facts.add_row("definitions", Text(found.budget.sentence))
        if _is_over(settings, found):
            facts.add_row("", Text(f"refused by max_definitions, unless ce-client allow-definition {found.job}"))
    if found.release is not None:
        _add_release(facts, settings, found, found.release)
    if found.randomise:
        epsilon = epsilon_sentence(found.epsilon, found.epsilon_row)
        facts.add_row("randomised", Text(f"each label with probability {found.randomise:g}: {epsilon}"))
    for excluded in found.excluded:
        facts.add_row("excluded", Text(f"{excluded.what}: {excluded.objects:,} objects here; {_why(excluded)}"))
    for warning in found.warnings:
        facts.add_row("warning", Text(warning, style="yellow"))
    if found.waits_for_consent:
        facts.add_row("waits", Text("for ce-client approve, or decline"))
    show_table(facts)
    click.echo()
    arrays = list_table("array", "step", "shape", "mode", "in a total with", "rules it satisfies")
    for array in found.arrays:
        others = ", ".join(site for site in array.contributors if site != settings.name)
        shape = " x ".join(f"{length:,}" for length in array.shape) or "1"
        arrays.add_row(Text(array.name), array.step, shape, array.mode, others or "no other site", _rules_of(array))
    show_table(arrays)


def _add_release(facts: Table, settings: ClientSettings, found: Preview, release: PreviewRelease) -> None:
    """What a sealed job opens, and what it costs."""
    cost = release.cost
    facts.add_row("tables", Text(release.sentence))
    facts.add_row("epsilon", Text(cost.sentence))
    if cost.shared:
        opened = f"of {cost.shared:,} objects that other sites hold too: one label each, opened to their other holders"
        facts.add_row("labels", Text(f"{opened}, once"))
    if exceeds(settings, found):
        rule = EPSILON_RULE if cost.over else LABELLING_RULE
        facts.add_row("", Text(f'refused by "{rule}", unless ce-client allow-release {found.job}'))


def _why(excluded: Excluded) -> str:
    if excluded.rule == SHARED_OBJECTS:
        return f"{SHARED_OBJECTS}: they take no part in this job, and are labelled here afterwards"
    return f"{excluded.rule} requires {excluded.required:,}, found {excluded.found:,}"


def _rules_of(array: PreviewArray) -> str:
    return "; ".join(f"{check.rule}: {check.found:,}, required {check.required:,}" for check in array.rules)


@click.command(short_help="Let a job begin that waits for this site's consent.")
@click.argument("job")
@config_option
@format_option
def approve(job: str, config: Path, format_: str) -> None:
    """Let a job begin that waits for this site's consent (consent = "ask" in policy.toml).

    The approval is for the job definition and the sites that ce-client preview shows: another job of the same name is
    refused. A running daemon begins the job at once.

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
    previewed = preview_of(settings, job)
    states = [entry.state for entry in JobIndex(settings.state).entries() if entry.job == job and entry.over]
    if states:
        raise InputError(f"job {job!r} is over ({states[0]}): there is nothing left to decide")
    if decision == "approved" and _is_over(settings, previewed):
        raise InputError(
            f"job {job!r} opens totals of the same objects by one more definition than this site's policy allows: "
            "decline it, or see ce-client allow-definition"
        )
    if decision == "approved" and exceeds(settings, previewed):
        raise InputError(
            f"job {job!r} would tell more about this site's labels than its policy allows: decline it, or see "
            "ce-client budget and ce-client allow-release"
        )
    Consents(settings.state).decide(job, bytes.fromhex(previewed.job_digest), previewed.sites, decision)
    woken = wake_daemon(settings.state)
    say(
        format_,
        {
            "job": job,
            "decision": decision,
            "job_digest": previewed.job_digest,
            "roster": list(previewed.sites),
            "definition": previewed.definition,
            "daemon_told": woken,
        },
        f"{decision} {job}, with {', '.join(previewed.sites)}",
        *((f"definition: {listed(previewed.definition)}",) if previewed.definition else ()),
        *(() if woken else ("no daemon is running here: it reads this decision when it starts",)),
    )


@click.command(
    "allow-roster", short_help="Let the same labels go into totals with other sites than before: read --help first."
)
@click.argument("job")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@config_option
@format_option
def allow_roster(job: str, yes: bool, config: Path, format_: str) -> None:
    """Let this site's labels go into totals with the sites of JOB, although they went into totals with others before.

    Totals of the same labels under two rosters differ by exactly what the sites in which the rosters differ have added.
    Who sees both can subtract them, and gets exact counts of those sites: of a single site if only one differs, and for
    small groups the labels themselves. Masks do not protect against that. So a job with another roster is refused
    (rule: one roster per label file) unless it is allowed here. The ledger records the first use.

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
            f"warning: these labels are in totals with {', '.join(other)}. Who sees those and the totals with "
            f"{', '.join(roster)} can subtract them, and then knows exactly what {differ} added.",
            err=True,
        )
    confirm(yes)
    rosters.allow(roster, job)
    woken = wake_daemon(settings.state)
    say(
        format_,
        {**facts, "allowed": True, "daemon_told": woken},
        f"allowed: totals with {', '.join(roster)}; a job that was refused has to be submitted again",
    )


@click.command(
    "allow-redraw", short_help="Let randomised labels of columns be drawn again in another way: read --help first."
)
@click.argument("columns", nargs=-1, required=True, metavar="COLUMN...")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@config_option
@format_option
def allow_redraw(columns: tuple[str, ...], yes: bool, config: Path, format_: str) -> None:
    """Let labels of COLUMN be randomised as client.toml and policy.toml say now, although they were sent before,
    randomised in another way.

    Two draws of the same labels show more than one: where they agree, the label is probably the true one. The epsilons
    of all draws add up. So a job with other declared categories, another probability, another secret or another choice
    of columns is refused (rule: one randomisation per column) unless it is allowed here. The ledger records the first
    use, and ce-client check and preview show the sum.

    \b
    Examples:
      ce-client allow-redraw segment --config /srv/ce-site
      ce-client allow-redraw segment region --yes --config /srv/ce-site
    """
    settings = read_config(config)
    policy, labels = Policy.read(settings.policy), read_labels(settings.labels)
    how = Randomisation(policy.randomise, settings.labels.declared, policy.randomise_columns)
    how.refuse_undeclared(labels.column(name) for name in columns)
    randomisations = Randomisations(settings.state)
    draws = [
        draw
        for draw in draws_of(how, dict.fromkeys(columns), read_secret(settings.secret))
        if randomisations.others(draw)
    ]
    before, after = randomisations.accounted(), randomisations.accounted(draws)
    facts = {"columns": [draw.column for draw in draws], "epsilon": after.columns, "epsilon_row": after.row}
    if not draws:
        say(format_, {**facts, "allowed": False}, "these labels were never randomised in another way: nothing to allow")
        return
    for draw in draws:
        was, becomes = (epsilon_words(accounted.columns[draw.column]) for accounted in (before, after))
        first = randomisations.others(draw)[0].job
        click.echo(
            f"warning: labels of column {draw.column} were sent in job {first!r}, randomised in another way. Who sees "
            f"both draws learns more: the epsilon of a label goes from {was} to {becomes}.",
            err=True,
        )
    click.echo(
        f"warning: the epsilon of an object's row goes from {epsilon_words(before.row)} to {epsilon_words(after.row)}.",
        err=True,
    )
    confirm(yes)
    for draw in draws:
        randomisations.allow(draw)
    say(
        format_,
        {**facts, "allowed": True},
        f"allowed: another draw of {', '.join(draw.column for draw in draws)}; a job that was refused has to be "
        "submitted again",
    )


@click.command("allow-definition", short_help="Let one more job open totals of the same objects: read --help first.")
@click.argument("job")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@config_option
@format_option
def allow_definition(job: str, yes: bool, config: Path, format_: str) -> None:
    """Let JOB open totals of objects that other sites hold too, although as many definitions as the policy allows did.

    Every definition computes totals of the same labels at other points. Who sees them collects equations for the same
    unknowns, and enough of them can be solved for the labels: in ce audit six jobs that differ in their smoothing give
    another site nearly every label of 8 columns. Masks do not protect against that. So a job with another definition
    is refused (rule: max_definitions) unless it is allowed here. The same definition under another name needs no
    allowance: its totals are the same.

    JOB is a job that was refused by that rule, or that waits for consent. The allowance is for its whole definition,
    which is printed, with the labels as they are now, under any name. The ledger records the first use.

    \b
    Examples:
      ce-client allow-definition demo --config /srv/ce-site
      ce-client allow-definition demo --yes --config /srv/ce-site
    """
    settings = read_config(config)
    previewed = preview_of(settings, job)
    budget = previewed.budget
    facts: dict[str, Any] = {"job": job, "privacy": previewed.privacy, "definition": previewed.definition}
    if budget is None or not _is_over(settings, previewed):
        needless = f"job {job!r} opens no totals beyond the definitions that this site allows: nothing to allow"
        say(format_, {**facts, "allowed": False}, needless)
        return
    click.echo(
        f"definition of {job}: {listed(previewed.definition)}\n"
        f"warning: {budget.used:,} definitions have opened totals of these objects, and the policy allows "
        f"{budget.limit:,}. With this one, {budget.over:,} objects have totals of {budget.after:,}. Who sees totals of "
        "the same labels at different points can solve them for the labels: allow it only if whoever adds them up may "
        "know your labels of these objects.",
        err=True,
    )
    confirm(yes)
    Disclosures(settings.state).allow(budget.definition, budget.mode, job)
    woken = wake_daemon(settings.state)
    say(
        format_,
        {**facts, "allowed": True, "daemon_told": woken},
        f"allowed: the definition of {job}, under any name; a job that was refused has to be submitted again",
    )


def confirm(yes: bool) -> None:
    """Raises Cancelled unless the person at the terminal says yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError("no terminal to ask for confirmation: read --help, then give --yes")
    if not click.confirm("Allow it?", default=False, err=True):
        raise Cancelled("nothing was changed")


def _is_over(settings: ClientSettings, previewed: Preview) -> bool:
    """True if a job opens more definitions than the policy allows, and no person here has allowed that."""
    budget = previewed.budget
    if budget is None or not budget.over:
        return False
    return not Disclosures(settings.state).allowed(budget.definition, budget.mode)


def exceeds(settings: ClientSettings, previewed: Preview) -> bool:
    """True if a sealed job costs more than the policy allows, and no person here has allowed that."""
    release = previewed.release
    return (
        release is not None and release.cost.exceeds and not Releases(settings.state).allowed(release.cost.definition)
    )


def listed(definition: Mapping[str, Any]) -> str:
    """Every key of a definition that has a value."""
    return ", ".join(f"{key} {json.dumps(value)}" for key, value in definition.items() if value is not None)


def preview_of(settings: ClientSettings, job: str) -> Preview:
    found = Previews(settings.state).read(job)
    if found is None:
        JobIndex(settings.state).entry(job)  # raises UnknownJob for a job that this site was never offered
        raise InputError(
            f"there is no preview of job {job!r}: not all sites have enrolled yet, or it was refused before "
            "(ce-client show says why)"
        )
    return found
