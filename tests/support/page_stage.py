"""A stage on which a page's commands run: real processes over mutual TLS, every party in a directory of its own.

What a page says of other machines stands for something here: see `Stage.as_typed`. A daemon runs on, and is waited for
by what it logs; nothing sleeps. Commands of systemd start and stop the daemons' processes instead.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ce.identity.certificates import fingerprint, read_certificate
from ce.identity.requests import read_csr
from support.pages import ROOT, Block
from support.processes import PATIENCE_S, Process, free_port

#: Commands that run until they are told to stop; where their log goes, and that a shell is not to wait, is for readers.
_DAEMON = re.compile(r"(?P<command>(?P<name>ce-coordinator serve|ce-client run)\b[^&>]*?)( 2> ?\S+)?( &)?")
_SYSTEMCTL = re.compile(r"systemctl (?P<verb>start|stop|restart) (?P<unit>ce-client|ce-coordinator)")
_ADDRESSES = ("0.0.0.0:8443", "127.0.0.1:8443", "hub.example.org:8443")
#: What differs from run to run, and from reader to reader.
_VARIES = (
    (re.compile(r"SHA256:[0-9a-f]+(\.\.\.)?"), "SHA256"),
    (re.compile(r"\b[0-9a-f]{64}\b|\b[0-9a-f]{4,}\.\.\."), "HASH"),
    (re.compile(r"just now|\d+ (s|min) ago"), "AGO"),
    (re.compile(r"-?\d[\d,.:-]*"), "N"),
    (re.compile(r"[▁▂▃▄▅▆▇█]+"), "CURVE"),
    (re.compile(r"─+"), "RULE"),
    (re.compile(r"\s+"), " "),
)


class Stage:
    """`commands`: where the programs are. `fingerprints`: for each that a page abbreviates, the certificate or request
    here that it is of."""

    def __init__(self, directory: Path, commands: Path, fingerprints: Mapping[str, str]) -> None:
        self.directory = directory
        self.address = f"127.0.0.1:{free_port()}"
        self.said = ""  # by the last block
        self.events: set[str] = set()  # that daemons of the last block have logged
        self._fingerprints = fingerprints
        self._daemons: dict[str, Process] = {}
        self._environment = bare_environment()
        self._environment["PATH"] = f"{commands}{os.pathsep}{os.environ['PATH']}"

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process in self._daemons.values():
            process.stop(signal.SIGKILL)

    # Commands.

    def play(self, block: Block, excepted: Mapping[str, str]) -> list[str]:
        """Run the statements of a block in order, at each of its sites; returns those that were run."""
        self.said, self.events = "", set()
        statements = [statement for statement in block.statements if statement not in excepted]
        for at in block.sites:
            self._play_at(at, statements, int(block.options.get("exit", "0")), f"{block.page}:{block.line}")
        return statements

    def _play_at(self, at: str, statements: list[str], code: int, where: str) -> None:
        self._environment["SITE"] = at
        script: list[str] = []
        for statement in statements:
            typed = self.as_typed(statement, at)
            if (daemon := _DAEMON.fullmatch(typed)) is not None:
                self._run_script(script, where)
                self._start_as_written(daemon)
            elif (unit := _SYSTEMCTL.fullmatch(typed)) is not None:
                self._run_script(script, where)
                self._control(unit["verb"], "hub" if unit["unit"] == "ce-coordinator" else at)
            else:
                assert not re.search(r"ce-coordinator serve|ce-client run|systemctl", typed), (
                    f"{where}: a line of its own"
                )
                script.append(typed)
        self._run_script(script, where, code)

    def _run_script(self, script: list[str], where: str, code: int = 0) -> None:
        if not script:
            assert code == 0, f"{where}: nothing that could end with {code}"
            return
        assert code == 0 or len(script) == 1, f"{where}: which of these ends with {code}?"
        ended = subprocess.run(
            ["bash", "-eu", "-c", "\n".join(script)],
            cwd=self.directory,
            env=self._environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=2 * PATIENCE_S,
            check=False,
        )
        self.said += ended.stdout
        assert ended.returncode == code, f"{where} ended with {ended.returncode}:\n" + "\n".join(script) + ended.stdout
        for name in re.findall(r"ce-coordinator submit (\S+) .*--watch", "\n".join(script)):
            self._wait_for_the_end(tomllib.loads((self.directory / name).read_text(encoding="utf-8")))
        script.clear()

    def _wait_for_the_end(self, job: Mapping[str, Any]) -> None:
        """A site hears of the end of a job a moment after whoever watches it; the reader is not that quick."""
        for site in job["sites"]:
            self._daemons[site].wait_for("job over", job=job["name"])

    # Daemons.

    def start(self, name: str) -> Process:
        """The coordinator ("hub") or a site, until it is ready; a coordinator also until its sites are there again."""
        module, verb = ("ce_coordinator", "serve") if name == "hub" else ("ce_client", "run")
        former = self._daemons.get(name)
        assert former is None or not former.alive, f"{name} is running"
        arguments = [verb, "--config", str(self.directory / name)]
        process = Process(f"{module}.cli.main", arguments, self._environment)
        self._daemons[name] = process
        process.wait_for("listening" if name == "hub" else "connected")
        if name == "hub":
            authority = (self.directory / "hub" / "authority" / "ca.pem").read_bytes()
            for site, own in self._daemons.items():
                if site != "hub" and own.alive and (self.directory / site / "ca.pem").read_bytes() == authority:
                    process.wait_for("site connected", site=site)
        self.events |= {str(entry["event"]) for entry in process.events}
        return process

    def stop(self, name: str) -> None:
        assert self._daemons[name].stop() == 0, "\n".join(self._daemons[name].raw)

    def _start_as_written(self, written: re.Match[str]) -> None:
        words = shlex.split(written["command"])
        assert words[2] == "--config", written["command"]
        assert len(words) == 4, written["command"]
        self.start((self.directory / words[3]).name)

    def _control(self, verb: str, name: str) -> None:
        if verb != "start":
            self.stop(name)
        if verb != "stop":
            self.start(name)

    # What a page says, and what it is here.

    def as_typed(self, text: str, at: str) -> str:
        """Directories, addresses and fingerprints of the page as those of this stage."""
        for abbreviated, path in self._fingerprints.items():
            if abbreviated in text:
                text = text.replace(abbreviated, _fingerprint(self.directory / path))
        for written, here in self._places(at):
            text = text.replace(written, here)
        for address in _ADDRESSES:
            text = text.replace(address, self.address)
        return text

    def check_shown(self, block: Block, at: str) -> None:
        """That a `text` block shows what was said, but for what varies; `...` stands for what is left out."""
        said = self.said
        for written, here in self._places(at):
            said = said.replace(here, written)
        known = {_constant(line) for line in said.splitlines()}
        for line in block.text.splitlines():
            if line.strip() not in ("", "...") and not any(event in line for event in self.events):
                assert _constant(line) in known, f"{block.page}:{block.line}: nobody says {line!r}, but\n{said}"

    def _places(self, at: str) -> tuple[tuple[str, str], ...]:
        """Directories beside these, like /srv/ce-next, are beside these here, too."""
        own = self.directory
        return (
            ("/srv/ce-site", str(own / at)),
            ("/srv/ce", str(own / "hub")),
            ("/data/labels.csv", str(own / "examples" / f"{at}.csv")),
            ("/backup", str(own / "backup")),
        )


def bare_environment() -> dict[str, str]:
    """Without settings of whoever runs the tests."""
    return {key: value for key, value in os.environ.items() if not key.startswith("CE_")}


def link_examples(directory: Path) -> None:
    (directory / "examples").symlink_to(ROOT / "examples")


def _fingerprint(path: Path) -> str:
    if path.suffix == ".csr":
        return fingerprint(read_csr(path.read_bytes()).public_key)
    return fingerprint(read_certificate(path))


def _constant(line: str) -> str:
    for pattern, instead in _VARIES:
        line = pattern.sub(instead, line)
    return line.strip()
