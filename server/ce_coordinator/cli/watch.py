"""ce-coordinator watch: a job, live. State, sites, iteration or phase, bound, exchanges per second, bytes, time."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Self

import click
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from ce.cli.entry import run_async
from ce.cli.output import format_option, span
from ce.errors import Cancelled, CeError, JobFailed, Refused, Unreachable
from ce_coordinator.cli.operator_call import coordinator
from ce_coordinator.cli.options import config_option, next_command, read_config
from ce_coordinator.cli.picture import ENDS, late_sites, line, picture
from ce_coordinator.cli.plain import plain
from ce_coordinator.config import CoordinatorSettings
from ce_proto.v1 import operator_pb2 as pb

#: Seconds to wait for a coordinator that stops answering: it may be restarting.
PATIENCE_S = 60.0
_PAUSE_S = 0.5
#: Without a terminal: seconds between two lines, doubled each time up to the longest.
FIRST_INTERVAL_S, LONGEST_INTERVAL_S = 5.0, 60.0
#: Lines of a screen that are not sites.
_OTHER_ROWS = 9


@click.command(short_help="Follow a job until it ends; the exit code says how.")
@click.argument("job")
@config_option
@format_option
def watch(job: str, config: Path, format_: str) -> None:
    """Follow a job until it ends: with exit code 0 when it is done, otherwise with the job's exit code.

    Continues after a restart of the coordinator. Ctrl-C ends this command, not the job. With --format json every update
    is one line.

    \b
    Examples:
      ce-coordinator watch demo --config /srv/ce
      ce-coordinator watch demo --config /srv/ce --format json
    """
    watch_to_the_end(read_config(config), job, config, format_)


def watch_to_the_end(settings: CoordinatorSettings, job: str, config: Path, format_: str) -> None:
    """Show a job until it ends. Raises the error that its end amounts to, unless it is done."""
    view = _view(format_)
    try:
        with view:
            status = run_async(_follow(settings, job, view))
    except KeyboardInterrupt:
        if format_ == "text":
            click.echo(f"the job goes on; look again with: {next_command('watch', job, config=config)}", err=True)
        raise
    if status.state != "done":
        raise ended_as(status)
    if format_ == "text":
        click.echo(f"fetch the result with: {next_command('result', job, '--out', 'DIR', config=config)}")


def ended_as(status: pb.JobStatus) -> CeError:
    """The error that the end of a job amounts to."""
    reason = status.reason or f"job {status.job} is {status.state}"
    if status.state == "cancelled":
        return Cancelled(reason)
    if status.rule:
        return Refused(status.rule, reason.removesuffix(f" (rule: {status.rule})"))
    error = JobFailed(reason)
    error.exit_code = status.exit_code or error.exit_code  # type: ignore[misc]
    return error


class ProgressView:
    """Where updates go."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def show(self, status: pb.JobStatus) -> None:
        """The job has changed, or a second has passed."""
        raise NotImplementedError

    def lost(self, address: str, left_s: float) -> None:
        """The coordinator does not answer; `left_s`: seconds that it will still be waited for."""


async def _follow(settings: CoordinatorSettings, job: str, view: ProgressView) -> pb.JobStatus:
    """Show every status of the job, over several connections if needed; returns the last."""
    loop = asyncio.get_running_loop()
    heard_at: float | None = None
    last = pb.JobStatus()
    while True:
        try:
            async with coordinator(settings) as stub:
                async for status in stub.WatchJob(pb.WatchJobRequest(job=job)):
                    heard_at, last = loop.time(), status
                    view.show(status)
            # Only after the stream has ended: otherwise gRPC reports its end in the next event loop.
            if last.state in ENDS:
                return last
        except Unreachable:
            if last.state in ENDS:
                return last
            left = -1.0 if heard_at is None else heard_at + PATIENCE_S - loop.time()
            if left < 0:
                raise
            view.lost(settings.operator.address, left)
        await asyncio.sleep(_PAUSE_S)


def _view(format_: str) -> ProgressView:
    if format_ == "json":
        return JsonLines()
    console = Console(emoji=False, highlight=False)
    # Not console.is_terminal alone: FORCE_COLOR makes that true for files.
    if sys.stdout.isatty() and not console.is_dumb_terminal:
        return Screen(console)
    return Lines()


class JsonLines(ProgressView):
    """Every status as one line of JSON."""

    def show(self, status: pb.JobStatus) -> None:
        click.echo(json.dumps(plain(status)))


class Lines(ProgressView):
    """A line when the state changes, when a site is late, and from time to time."""

    def __init__(self) -> None:
        self._last: object = None
        self._printed_at = 0.0
        self._interval_s = FIRST_INTERVAL_S

    def show(self, status: pb.JobStatus) -> None:
        what = (status.state, status.epoch, [site.site for site in late_sites(status)])
        if what != self._last:
            self._interval_s = FIRST_INTERVAL_S
        elif status.now_s - self._printed_at < self._interval_s:
            return
        else:
            self._interval_s = min(2 * self._interval_s, LONGEST_INTERVAL_S)
        self._last, self._printed_at = what, status.now_s
        click.echo(line(status))

    def lost(self, address: str, left_s: float) -> None:
        if self._last != "lost":
            self._last = "lost"
            click.echo(_lost(address, left_s))


class Screen(ProgressView):
    """A picture that is drawn again in its place."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._live = Live(console=console, auto_refresh=False)
        self._last: Group | None = None

    def __enter__(self) -> Self:
        self._live.__enter__()
        return self

    def __exit__(self, *exception: object) -> None:
        self._live.__exit__(None, None, None)

    def show(self, status: pb.JobStatus) -> None:
        rows = max(self._console.height - _OTHER_ROWS, 1)
        self._last = picture(status, rows=rows, ascii_only=self._console.options.ascii_only)
        self._live.update(self._last, refresh=True)

    def lost(self, address: str, left_s: float) -> None:
        notice = Text(_lost(address, left_s), style="yellow")
        self._live.update(Group(*([self._last] if self._last else []), notice), refresh=True)


def _lost(address: str, left_s: float) -> str:
    return f"{address} does not answer; waiting for it, at most {span(left_s)} more"
