"""A job for a person to read: one screen on a terminal, one line elsewhere."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ce.cli.exclusions import not_in_the_fit
from ce.cli.output import ago, fact_table, size, span
from ce_coordinator.cli.plain import plain
from ce_proto.v1 import operator_pb2 as pb

ENDS = ("done", "failed", "cancelled")
#: Seconds. A connected site that has sent something within this time is not shown as late.
LATE_S = 5.0
#: Exchanges that an iteration takes at most (docs/concepts.md).
MOST_PHASES = 2

_COLOURS = {"done": "green", "failed": "red", "cancelled": "yellow", "running": "cyan"}
_BARS, _PLAIN_BARS = "▁▂▃▄▅▆▇█", "_.-=+*#@"
_CURVE_WIDTH = 40


def picture(status: pb.JobStatus, *, rows: int = 20, ascii_only: bool = False) -> Group:
    """One screen, with at most `rows` sites."""
    parts: list[RenderableType] = [_head(status), _sites(status, rows, ascii_only)]
    facts = fact_table()
    for name, value in progress(status, ascii_only=ascii_only):
        facts.add_row(name, value)
    parts.append(facts)
    parts += [Text(f"warning: {warning}", style="yellow") for warning in status.warnings]
    if status.reason:
        parts.append(Text(status.reason, style="red"))
    return Group(*parts)


def line(status: pb.JobStatus) -> str:
    """The same in one line."""
    parts = [f"{status.job}: {status.state}"]
    if status.epoch > 1:
        parts.append(f"attempt {status.epoch}")
    parts += [f"{name} {value}" for name, value in progress(status, curve_width=0)]
    return ", ".join(parts)


def progress(
    status: pb.JobStatus, *, curve_width: int = _CURVE_WIDTH, ascii_only: bool = False
) -> Iterable[tuple[str, str]]:
    """A job's progress: names and values."""
    over = status.state in ENDS
    if objects := left_out(status):
        yield "objects", objects
    if status.privacy == "sealed":
        # Before its rounds begin, the state says all.
        if status.phase and not over:
            yield "phase", f"{status.phase}, round {status.iteration:,} of at most {status.max_iterations:,}"
    elif status.iteration:
        most = f" of at most {status.max_iterations:,}" if status.max_iterations else ""
        yield "iteration", f"{status.iteration:,}{'' if over else most + _starts(status)}"
    if status.bound_path:
        drawn = f"  {curve(status.bound_path, curve_width, ascii_only)}" if curve_width else ""
        yield "bound", f"{status.bound_path[-1]:,.4f}{drawn}"
    if status.exchanges:
        rate = f", {status.exchanges_per_s:,.1f} per second" if status.exchanges_per_s and not over else ""
        yield "exchanges", f"{status.exchanges:,}{rate}, {size(status.bytes)}"
    if over:
        yield "took", span(status.changed_s - status.submitted_s)
        return
    until = f"deadline in {span(status.deadline_s - status.now_s)}" if status.deadline_s else ""
    if late := late_sites(status):
        yield "waiting", f"for {_listed(late, status.now_s)}{'; ' if until else ''}{until}"
    elif (left := most_time_left(status)) is not None:
        yield "time left", f"at most {span(left)} at this rate{'; ' if until else ''}{until}"
    elif until and status.state != "running":
        yield "waiting", f"for {_waited_for(status)}; {until}"


def left_out(status: pb.JobStatus) -> str:
    """How many objects of how many are not in the fit, and by which rules; empty: all are, or it is not known yet."""
    # 0: a coordinator of an earlier version does not say it.
    return not_in_the_fit(status.objects, status.objects_in_fit or status.objects, map(plain, status.excluded))


def most_time_left(status: pb.JobStatus) -> float | None:
    """Seconds that the iterations take yet if no start converges and the rate stays; None when unknown."""
    known = status.state == "running" and status.iteration and status.max_iterations and status.exchanges_per_s
    if not known or not status.bound_path:  # a stage without a bound is followed by another one
        return None
    # Two exchanges precede the first iteration; whether an iteration takes one or two is known from the second on.
    counted = math.ceil((status.exchanges - 2) / status.iteration) if status.iteration > 1 else MOST_PHASES
    each = min(max(counted, 1), MOST_PHASES)
    return max(status.max_iterations - status.iteration, 0) * each / status.exchanges_per_s


def late_sites(status: pb.JobStatus) -> list[pb.SiteStatus]:
    """Awaited sites that are not connected, or have sent nothing for LATE_S."""
    return [
        site
        for site in status.sites
        if site.awaited and (not site.connected or status.now_s - site.last_seen_s > LATE_S)
    ]


def curve(path: Sequence[float], width: int = _CURVE_WIDTH, ascii_only: bool = False) -> str:
    """The bound over the iterations. The lowest quarter is cut off: the first iterations would flatten the rest."""
    bars = _PLAIN_BARS if ascii_only else _BARS
    values = [value for value in path if math.isfinite(value)]
    if not values:
        return ""
    step = max(len(values) / width, 1.0)
    drawn = [values[min(int(i * step), len(values) - 1)] for i in range(min(width, len(values)))]
    floor, top = sorted(values)[len(values) // 4], max(values)
    heights = [(value - floor) / ((top - floor) or 1.0) for value in drawn]
    return "".join(bars[min(max(int(height * (len(bars) - 1)), 0), len(bars) - 1)] for height in heights)


def state_text(state: str) -> Text:
    return Text(state, style=_COLOURS.get(state, ""))


def seen(site: pb.SiteStatus, now: float) -> str:
    return "never seen" if not site.last_seen_s else f"seen {ago(now - site.last_seen_s)}"


def _head(status: pb.JobStatus) -> Text:
    head = Text.assemble((status.job, "bold"), "  ", state_text(status.state))
    if status.state not in ENDS:
        head.append(f" for {span(status.now_s - status.changed_s)}")
    head.append(f"  {status.model}, {mode(status.privacy)}")
    if status.layout:
        head.append(f", {status.layout} layout, {status.objects:,} objects")
    if status.epoch > 1:
        head.append(f"  attempt {status.epoch}", style="yellow")
    return head


def mode(privacy: str) -> str:
    """How the sites compute together, in two words."""
    return "sealed job" if privacy == "sealed" else f"{privacy} sums"


def _sites(status: pb.JobStatus, rows: int, ascii_only: bool) -> Table:
    """Late sites come first where there is not room for all."""
    late = {site.site for site in late_sites(status)}
    sites = list(status.sites)
    if len(sites) > rows:
        sites.sort(key=lambda site: (site.site not in late, site.connected, site.site))
    table = Table.grid(padding=(0, 2))
    there, gone = ("o", "x") if ascii_only else ("●", "○")
    for site in sites[:rows]:
        mark = (there, "green") if site.connected else (gone, "red")
        objects = f"{site.objects:,} objects" if site.objects else ""
        awaited = Text("awaited", style="yellow") if site.site in late else ""
        table.add_row(Text.assemble("  ", mark, f" {site.site}"), seen(site, status.now_s), objects, awaited)
    if len(sites) > rows:
        connected = sum(site.connected for site in sites[rows:])
        table.add_row(f"    and {len(sites) - rows} more, {connected} of them connected")
    return table


def _starts(status: pb.JobStatus) -> str:
    n = status.starts_running
    return f", {n} start{'s' if n != 1 else ''} running" if n else ""


def _waited_for(status: pb.JobStatus) -> str:
    if status.state == "submitted":
        return "its turn"
    awaited = [site.site for site in status.sites if site.awaited]
    return ", ".join(awaited) or "the coordinator"


def _listed(sites: Sequence[Any], now: float) -> str:
    return ", ".join(f"{site.site} ({seen(site, now)})" for site in sites)
