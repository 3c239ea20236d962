"""The commands of both daemons, run in this process where that is enough, and in processes of their own elsewhere."""

from __future__ import annotations

import json
import os
import re
import select
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import click
import pytest

import ce_client.cli.main
import ce_coordinator.cli.main
from support.processes import PATIENCE_S

CLIENT, COORDINATOR = "ce_client.cli.main", "ce_coordinator.cli.main"
_MAINS: dict[str, Callable[[list[str]], Any]] = {
    "ce-client": ce_client.cli.main.main,
    "ce-coordinator": ce_coordinator.cli.main.main,
}
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


@dataclass(frozen=True)
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def sentence(self) -> str:
        """What a command complained about, and that it complained properly: in words, once, without a traceback."""
        assert self.code != 0, self.out
        said = self.err + self.out
        assert "Traceback" not in said
        assert "unexpected" not in said
        assert not _CONTROL.search(said)
        if self.err.startswith("{"):
            told = json.loads(self.err)
            assert told["exit_code"] == self.code
            return str(told["error"])
        (line,) = [line for line in self.err.splitlines() if line.startswith(("error: ", "Error: "))]
        return line.partition(" ")[2]

    @property
    def json(self) -> Any:
        """What a command answered; nothing but JSON is on its standard output."""
        return json.loads(self.out)

    @property
    def lines(self) -> list[Any]:
        return [json.loads(line) for line in self.out.splitlines()]


Run = Callable[..., Ended]


@pytest.fixture(name="run")
def run_fixture(capfd: pytest.CaptureFixture[str]) -> Run:
    """A command in this process: run("ce-client", "check", "--config", path)."""

    def run(name: str, *arguments: object) -> Ended:
        capfd.readouterr()
        # What a daemon sets for the libraries of its own process is not for those that tests start later.
        with patch.dict(os.environ), pytest.raises(SystemExit) as left:
            _MAINS[name]([str(argument) for argument in arguments])
        out, err = capfd.readouterr()
        assert isinstance(left.value.code, int)
        return Ended(left.value.code, out, err)

    return run


@contextmanager
def started(
    module: str, *arguments: object, environment: Mapping[str, str] | None = None, **settings: Any
) -> Iterator[subprocess.Popen[str]]:
    """A command in a process of its own, which is gone afterwards."""
    settings = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "stdin": subprocess.DEVNULL} | settings
    command = [sys.executable, "-m", module, *map(str, arguments)]
    process = subprocess.Popen(command, text=True, env={**os.environ, **(environment or {})}, **settings)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        for stream in (process.stdout, process.stderr):
            if stream is not None:
                stream.close()
        process.wait(PATIENCE_S)


def finished(process: subprocess.Popen[str], before: str = "") -> Ended:
    """How a process ended; `before` is what was already read from it."""
    out, err = process.communicate(timeout=PATIENCE_S)
    return Ended(process.returncode, before + (out or ""), err or "")


def read_until(descriptor: int, word: str, patience_s: float = PATIENCE_S) -> str:
    """What can be read, up to and with a word."""
    deadline, found = time.monotonic() + patience_s, b""
    while word.encode() not in found:
        ready, _, _ = select.select([descriptor], [], [], max(deadline - time.monotonic(), 0.0))
        assert ready, f"no {word!r} in {found.decode()!r}"
        chunk = os.read(descriptor, 65536)
        assert chunk, f"no {word!r} in {found.decode()!r}"
        found += chunk
    return found.decode()


# What all commands have.


def every_command(group: click.Group) -> list[tuple[str, click.Command]]:
    return list(group.commands.items())


def every_nested(group: click.Group) -> list[click.Command]:
    """All commands, also those of groups in the group."""
    return [
        inner
        for _, command in every_command(group)
        for inner in [command, *(every_nested(command) if isinstance(command, click.Group) else ())]
    ]


def examples_of(command: click.Command) -> list[list[str]]:
    """The examples in a command's help, as words."""
    text = command.help or ""
    assert "Examples:" in text, f"{command.name} has no examples"
    lines = text.split("Examples:")[1].replace("\b", "").splitlines()
    return [shlex.split(line.strip()) for line in lines if line.strip()]


def check_examples(group: click.Group, name: str) -> int:
    """That every example of every command can be parsed as it stands; returns how many there were."""
    found = 0
    parent = group.make_context(name, [], resilient_parsing=True)
    for words in [words for command in every_nested(group) for words in examples_of(command)] + examples_of(group):
        if words[0] == "eval":
            words = shlex.split(words[1].removeprefix("$(").removesuffix(")"))
        words = [word for word in words if not re.match(r"[A-Z_]+=", word)]
        if ">" in words:
            words = words[: words.index(">")]
        assert words[0] == name
        command, words = group.commands[words[1]], words[1:]
        if isinstance(command, click.Group):
            command, words = command.commands[words[1]], words[1:]
        with command.make_context(words[0], list(words[1:]), parent=parent) as context:
            assert context.args == []
        found += 1
    return found


def write_job(path: Path, **keys: Any) -> Path:
    """A job file. A job that waits for a site that has gone wrong ends, and with it the test that watches it."""
    lines = []
    for key, value in {"clusters": 2, "privacy": "plain", "deadlines.job_s": PATIENCE_S, **keys}.items():
        if value is not None:
            lines.append(f"{key} = {json.dumps(list(value) if isinstance(value, tuple) else value)}")
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
