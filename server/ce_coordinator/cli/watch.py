"""ce-coordinator watch: a job, live. State, sites, iteration, bound curve, exchanges per second, bytes, time left."""

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

#: A coordinator that was there and is gone is waited for: it may be starting again.
PATIENCE_S = 60.0
_PAUSE_S = 0.5
#: Where there is no terminal, a line now and then; less and less often.
FIRST_INTERVAL_S, LONGEST_INTERVAL_S = 5.0, 60.0
#: Lines of a screen beside the sites.
_OTHER_ROWS = 8


@click.command(short_help="Follow a job until it ends, and end as it ends.")
@click.argument("job")
@config_option
@format_option
def watch(job: str, config: Path, format_: str) -> None:
    """Follow a job until it ends, and end as it ends: with exit code 0 when it is done.

    Survives a restart of the coordinator. Ctrl-C ends the watching, not the job. With --format json every update is one
    line.

    \b
    Examples:
      ce-coordinator watch demo --config /srv/ce
      ce-coordinator watch demo --config /srv/ce --format json
    """
    watch_to_the_end(read_config(config), job, config, format_)


def watch_to_the_end(settings: CoordinatorSettings, job: str, config: Path, format_: str) -> None:
    """Show a job until it is over, and leave as it did: a failed one with its exit code."""
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
        """The coordinator does not answer, and is waited for this long yet."""


async def _follow(settings: CoordinatorSettings, job: str, view: ProgressView) -> pb.JobStatus:
    """Every status of the job, over as many connections as it takes; returns the last."""
    loop = asyncio.get_running_loop()
    heard_at: float | None = None
    last = pb.JobStatus()
    while True:
        try:
            async with coordinator(settings) as stub:
                async for status in stub.WatchJob(pb.WatchJobRequest(job=job)):
                    heard_at, last = loop.time(), status
                    view.show(status)
            # Not before the stream has ended: what gRPC would still have to say of it comes up in the next event loop.
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
    """A line when the state changes, when somebody is missing, and now and then."""

    def __init__(self) -> None:
        self._last: object = None
        self._said_at = 0.0
        self._interval_s = FIRST_INTERVAL_S

    def show(self, status: pb.JobStatus) -> None:
        what = (status.state, status.epoch, [site.site for site in late_sites(status)])
        if what != self._last:
            self._interval_s = FIRST_INTERVAL_S
        elif status.now_s - self._said_at < self._interval_s:
            return
        else:
            self._interval_s = min(2 * self._interval_s, LONGEST_INTERVAL_S)
        self._last, self._said_at = what, status.now_s
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
        excuse = Text(_lost(address, left_s), style="yellow")
        self._live.update(Group(*([self._last] if self._last else []), excuse), refresh=True)


def _lost(address: str, left_s: float) -> str:
    return f"{address} does not answer; waiting for it, at most {span(left_s)} more"
