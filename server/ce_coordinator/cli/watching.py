"""ce-coordinator watch: a job, live. State, sites, iteration, bound curve, exchanges per second, bytes, time left."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import click
from google.protobuf.json_format import MessageToDict
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from ce.cli.options import format_option
from ce.cli.output import ago, size
from ce.errors import Unreachable
from ce_coordinator.cli.calling import coordinator
from ce_coordinator.cli.options import config_option, read_config
from ce_coordinator.config import CoordinatorSettings
from ce_proto.v1 import operator_pb2 as pb

_BARS = "▁▂▃▄▅▆▇█"
#: A coordinator that restarts is waited for.
PATIENCE_S = 60.0
_PAUSE_S = 0.5


@click.command()
@click.argument("job")
@config_option
@format_option
def watch(job: str, config: Path, format_: str) -> None:
    """Follow a job until it ends, and end as it ends. Survives a restart of the coordinator.

    With --format json every update is one line.

    \b
    Examples:
      ce-coordinator watch demo --config /srv/ce
    """
    from ce_coordinator.cli.jobs import end_like

    end_like(watch_job(read_config(config), job, format_))


def watch_job(settings: CoordinatorSettings, job: str, format_: str) -> pb.JobStatus:
    """Show the job until it is over; returns its last status."""
    if format_ == "json":
        return asyncio.run(_follow(settings, job, _print_json))
    console = Console(emoji=False)
    if not sys.stdout.isatty():
        return asyncio.run(_follow(settings, job, _Lines().show))
    with Live(console=console, refresh_per_second=10) as live:
        return asyncio.run(_follow(settings, job, lambda status: live.update(picture(status))))


async def _follow(settings: CoordinatorSettings, job: str, show: Any) -> pb.JobStatus:
    """Every status of the job, over as many connections as it takes."""
    loop = asyncio.get_running_loop()
    last_heard = loop.time()
    while True:
        try:
            async with coordinator(settings) as stub:
                async for status in stub.WatchJob(pb.WatchJobRequest(job=job)):
                    last_heard = loop.time()
                    show(status)
                    if status.state in ("done", "failed", "cancelled"):
                        return status
        except Unreachable:
            if loop.time() - last_heard > PATIENCE_S:
                raise
        await asyncio.sleep(_PAUSE_S)


def picture(status: pb.JobStatus) -> Group:
    """One screen."""
    head = Text.from_markup(f"[bold]{escape(status.job)}[/]  {status.state}  {status.model}, {status.privacy} sums")
    if status.epoch > 1:
        head.append(f"  attempt {status.epoch}", style="yellow")
    if status.layout:
        head.append(f"  {status.layout} layout, {status.objects:,} objects")
    lines: list[Any] = [head, _sites(status)]
    if status.iteration:
        most = f" of at most {status.max_iterations:,}" if status.max_iterations else ""
        running = f", {status.starts_running} starts running" if status.starts_running else ""
        lines.append(f"iteration {status.iteration:,}{most}{running}")
    if status.bound_path:
        lines.append(f"bound {status.bound_path[-1]:,.4f}  {curve(status.bound_path)}")
    if status.exchanges:
        rate = f", {status.exchanges_per_s:.1f} per second" if status.exchanges_per_s else ""
        lines.append(f"exchanges {status.exchanges:,}{rate}, {size(status.bytes)}")
    if (wait := waiting(status)) is not None:
        lines.append(Text(wait, style="yellow"))
    if status.reason:
        lines.append(Text(status.reason, style="red"))
    return Group(*lines)


def waiting(status: pb.JobStatus) -> str | None:
    """Whom the job waits for, and for how long yet."""
    absent = [site for site in status.sites if site.awaited and not site.connected]
    left = status.deadline_s - status.now_s
    if not absent or status.state in ("done", "failed", "cancelled"):
        return None
    names = ", ".join(
        f"{site.site} ({'never seen' if not site.last_seen_s else f'last seen {ago(status.now_s - site.last_seen_s)} ago'})"
        for site in absent
    )
    return f"waiting for {names}, deadline in {ago(left)}"


def curve(path: Any, width: int = 40) -> str:
    """The bound over the iterations; its first steps dwarf the rest, so that the later half sets the scale."""
    values = list(path)
    step = max(len(values) / width, 1.0)
    shown = [values[min(int(i * step), len(values) - 1)] for i in range(min(width, len(values)))]
    floor = sorted(values)[len(values) // 4]
    top = max(values)
    span = (top - floor) or 1.0
    return "".join(_BARS[min(max(int((v - floor) / span * (len(_BARS) - 1)), 0), len(_BARS) - 1)] for v in shown)


def _sites(status: pb.JobStatus) -> Table:
    table = Table.grid(padding=(0, 2))
    for site in status.sites:
        seen = "never seen" if not site.last_seen_s else f"last seen {ago(status.now_s - site.last_seen_s)}"
        mark = "[green]●[/]" if site.connected else "[red]○[/]"
        objects = f"{site.objects:,} objects" if site.objects else ""
        table.add_row(f"  {mark} {site.site}", seen, objects, "[yellow]awaited[/]" if site.awaited else "")
    return table


def _print_json(status: pb.JobStatus) -> None:
    found = MessageToDict(status, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    click.echo(json.dumps(found))


class _Lines:
    """Progress where there is no terminal: a line when the state changes, when somebody is missing, and now and then."""

    def __init__(self) -> None:
        self._last = ""
        self._said_at = 0.0

    def show(self, status: pb.JobStatus) -> None:
        wait = waiting(status)
        key = f"{status.state} {[s.site for s in status.sites if s.awaited and not s.connected]}"
        if key == self._last and status.now_s - self._said_at < 5.0:
            return
        self._last, self._said_at = key, status.now_s
        parts = [f"{status.job}: {status.state}"]
        if status.iteration:
            parts.append(f"iteration {status.iteration:,}")
        if status.bound_path:
            parts.append(f"bound {status.bound_path[-1]:,.4f}")
        if wait:
            parts.append(wait)
        click.echo(", ".join(parts))
