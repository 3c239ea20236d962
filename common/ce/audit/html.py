"""The audit as one self-contained HTML page: no script, nothing loaded from the network."""

from __future__ import annotations

from html import escape
from pathlib import Path

from ce.audit.plots import bars, kind
from ce.audit.report import STATED, Audit, Finding
from ce.errors import InputError

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2126; --soft: #667; --line: #d5d8dd; --paper: #fff;
        --leak: #c62828; --known: #d9a441; --quiet: #7a9cc6; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e8eb; --soft: #9aa3ad; --line: #3a4048; --paper: #16191d; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
       max-width: 64rem; padding: 0 1rem; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.15rem; margin-top: 2rem; }
table { border-collapse: collapse; width: 100%; }
th, td { text-align: left; padding: .3rem .6rem .3rem 0; border-bottom: 1px solid var(--line); }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; }
td.leak { color: var(--leak); font-weight: 600; } td.quiet { color: var(--soft); }
p.facts { color: var(--soft); }
svg { width: 100%; height: auto; } svg text { font: 12px system-ui, sans-serif; fill: currentColor; }
svg .tick, svg .value { fill: var(--soft); } svg .grid { stroke: var(--line); }
svg .mark { stroke: var(--ink); stroke-width: 2; }
svg .leak { fill: var(--leak); } svg .known { fill: var(--known); } svg .quiet { fill: var(--quiet); }
"""

_LEGEND = """Bars: what the attack recovered. Mark: what the published consensus implies anyway. Red: an attack
works. Yellow: a known success that a rule prevents or that the mode allows. Blue: no more than the result."""


def page(audit: Audit) -> str:
    """The whole report."""
    title = f"Audit of {audit.job.name}"
    parts = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1>",
        f'<p class="facts">{escape(_facts(audit))}</p>',
        *(f"<p>{escape(line)}</p>" for line in summary(audit)),
        f"<p>{_LEGEND}</p>",
    ]
    worst = audit.worst()
    for mode in audit.modes:
        found = [finding for finding in worst if finding.mode == mode]
        if found:
            parts += [f"<h2>{escape(mode)}</h2>", bars(found), _table(found)]
    return "\n".join([*parts, "</body></html>", ""])


def write_page(path: Path, audit: Audit) -> None:
    """Write the report."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(page(audit), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path}: cannot be written: {error.strerror}") from error


def summary(audit: Audit) -> list[str]:
    """The conclusion in a few sentences."""
    lines = [_verdict(audit), *(f"Not played, but known to work on such a job: {name}." for name in audit.not_played)]
    stated = sorted({finding.attack for finding in audit.findings if finding.verdict == STATED})
    if stated:
        lines.append(f"Known to work, and stated in docs/audit.md as limits of sealed jobs: {', '.join(stated)}.")
    if audit.superseded:
        lines.append(
            f"{len(audit.superseded)} attacks on totals have nothing to work on, because a sealed job opens none: "
            f"{', '.join(audit.superseded)}."
        )
    return lines


def _verdict(audit: Audit) -> str:
    leaks = audit.leaks
    if not leaks:
        return (
            f"Where mode and rules promise it, no attack found more than the result implies (margin {audit.margin:g})."
        )
    worst = max(leaks, key=lambda finding: finding.gain)
    return (
        f"{len(leaks)} findings go beyond what mode and rules promise; the worst: {worst.view}, {worst.attack}, "
        f"{worst.mode}: {worst.recovered:.2f} of {worst.target}, where the result implies {worst.baseline:.2f}."
    )


def _facts(audit: Audit) -> str:
    job = audit.job
    objects = f"{audit.objects:,} objects"
    if audit.objects < audit.of_objects:
        objects = f"{audit.objects:,} of {audit.of_objects:,} objects, drawn at random"
    groups = f"{job.clusters} clusters" if job.clusters else "classes"
    how = f"epsilon {job.epsilon}" if job.sealed else f"{job.restarts} starts"
    return f"{job.model}, {groups}, {how}; {len(audit.sites)} sites, layout {audit.layout}; {objects}."


def _table(findings: list[Finding]) -> str:
    head = ("view", "attack", "target", "recovered", "baseline", "verdict")
    numbers = ("recovered", "baseline")
    rows = ["<table><thead><tr>"]
    rows += [f'<th class="number">{name}</th>' if name in numbers else f"<th>{name}</th>" for name in head]
    rows.append("</tr></thead><tbody>")
    for finding in findings:
        rows.append(
            f"<tr><td>{escape(finding.view)}</td><td>{escape(finding.attack)}</td><td>{escape(finding.target)}</td>"
            f'<td class="number">{finding.recovered:.3f}</td><td class="number">{finding.baseline:.3f}</td>'
            f'<td class="{kind(finding)}">{escape(finding.verdict)}</td></tr>'
        )
    return "\n".join([*rows, "</tbody></table>"])
