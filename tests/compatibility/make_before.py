"""Make `before.tar.gz`: what a coordinator and three sites have on their disks when they are about to be upgraded.

    python tests/compatibility/make_before.py COMMANDS [ARCHIVE]

COMMANDS is the directory with the `ce-coordinator` and `ce-client` of the version that writes the directories, for
example the `bin` of its virtual environment; nothing of ce is imported here. `test_before.py` opens the archive with
newer commands. It was made by version 0.1.0 as of commit c38fc2d; to make it anew, take the commands of that commit.

    hub                   the coordinator: configuration with every key written out, authority, store, checkpoints
    north, east, south    the sites: configuration, policy, pins, key, secret, labels, state, results
    said                  what the commands of that version answered about all of it
    expected              how the unfinished jobs ended when that version itself went on with them, in a copy

The jobs, in this order:

    finished              done
    refused               of two sites: both refuse it (min_sites); north has allowed that roster since (allow-roster)
    declined              south, where somebody is asked for consent, declined it
    cancelled             by the operator, while it waited for south
    unfinished            masked; all four daemons were killed (SIGKILL) when all had checkpoints of it
    unfinished blind      the same in "blind", where other states are kept

Keys, secrets and labels are made for this and are nobody's. State files hold one absolute path, that of the label file;
`@BEFORE@` stands for the directory in front of it.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import random
import re
import shutil
import signal
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypeVar

Found = TypeVar("Found")

SITES = ("north", "east", "south")
#: As it stands in the configurations; the daemons here, and those of the tests, listen somewhere else.
ADDRESS = "127.0.0.1:8443"
PLACEHOLDER = "@BEFORE@"
UNFINISHED = ("unfinished", "unfinished blind")
#: Thirty years: jobs that are gone on with long after they were submitted.
LONG_S = 1e9
PATIENCE_S = 60.0
PAUSE_S = 0.02
EVERYTHING_KEPT = {"CE_COORDINATOR_CHECKPOINTS_EVERY_S": "0", "CE_COORDINATOR_CHECKPOINTS_EVERY_EXCHANGES": "3"}


def main() -> None:
    parser = argparse.ArgumentParser(description="Make a directory of the version before, as an archive.")
    parser.add_argument("commands", type=Path, help="directory of that version's ce-coordinator and ce-client")
    archive = Path(__file__).with_name("before.tar.gz")
    parser.add_argument("archive", type=Path, nargs="?", default=archive, help=f"default: {archive.name} beside this")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="ce-before-") as directory:
        before = Version(given.commands.resolve(), Path(directory) / "before")
        set_up(before)
        work_and_be_killed(before)
        note_what_is_said(before)
        go_on_in_a_copy(before, Path(directory) / "copy")
        hide_paths(before.root)
        pack(before.root, given.archive)
    print(f"{given.archive}: {given.archive.stat().st_size:,} bytes")


class Version:
    """The commands of one version, on directories below `root`, from where they are run so that paths are relative."""

    def __init__(self, commands: Path, root: Path) -> None:
        self.root = root
        self.commands = commands
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith("CE_")}
        self.root.mkdir(exist_ok=True)

    def run(self, *words: object, code: int = 0) -> str:
        """What a command says, which has to end with this exit code."""
        ended = subprocess.run(
            self._command(words),
            cwd=self.root,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if ended.returncode != code:
            raise SystemExit(f"{words} ended with {ended.returncode}, not {code}: {ended.stderr}{ended.stdout}")
        return ended.stdout

    def ask(self, *words: object) -> Any:
        """What a command answers as JSON."""
        return json.loads(self.run(*words, "--format", "json"))

    @contextmanager
    def daemon(self, name: str, *words: object, ready: str) -> Iterator[Log]:
        """A daemon, which is killed at the end of the block at the latest; its log does not go into the archive."""
        log = Log(self.root.with_name(f"{self.root.name}-{name}.log"))
        command = self._command((*words, "--config", name))
        with log.path.open("wb") as file:
            process = subprocess.Popen(
                command, cwd=self.root, env=self.environment, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )
        try:
            log.wait_for(ready)
            yield log
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait()

    @contextmanager
    def everybody(self) -> Iterator[dict[str, Log]]:
        """A coordinator, which takes any free port, and its sites."""
        with ExitStack() as running:
            self.environment |= {**EVERYTHING_KEPT, "CE_COORDINATOR_LISTEN": "127.0.0.1:0"}
            serve = self.daemon("hub", "ce-coordinator", "serve", ready="listening")
            logs = {"hub": running.enter_context(serve)}
            address = f"127.0.0.1:{logs['hub'].wait_for('listening')['port']}"
            self.environment |= {"CE_COORDINATOR_OPERATOR_ADDRESS": address, "CE_CLIENT_COORDINATOR": address}
            for site in SITES:
                logs[site] = running.enter_context(self.daemon(site, "ce-client", "run", ready="connected"))
            yield logs

    def _command(self, words: tuple[object, ...]) -> list[str]:
        return [str(self.commands / str(words[0])), *map(str, words[1:])]


class Log:
    """The events that a daemon has written to a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def wait_for(self, event: str, **fields: object) -> dict[str, Any]:
        return wait_until(lambda: self._find(event, fields), f"{event} {fields} in {self.path}")

    def _find(self, event: str, fields: dict[str, object]) -> dict[str, Any] | None:
        for line in self.path.read_text(encoding="utf-8").splitlines():
            entry: dict[str, Any] = json.loads(line) if line.startswith("{") and line.endswith("}") else {}
            if entry.get("event") == event and fields.items() <= entry.items():
                return entry
        return None


def wait_until(condition: Callable[[], Found | None], what: str) -> Found:
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {PATIENCE_S:g} s for {what}")
        time.sleep(PAUSE_S)
    return found


# The steps.


def set_up(before: Version) -> None:
    """docs/quick-start.md, on one machine."""
    before.run("ce-coordinator", "init", "hub", "--listen", ADDRESS, "--name", "hub", "--operator", "olga")
    write_out(before.root / "hub" / "coordinator.toml")
    prints = {}
    for site in SITES:
        before.run("ce-client", "init", site, "--name", site, "--coordinator", ADDRESS)
        prints[site] = before.run("ce-client", "fingerprint", "--config", site).strip()
        request = ("ce-coordinator", "sign", f"{site}/{site}.csr", "--fingerprint", prints[site])
        before.run(*request, "--config", "hub", "--out", site)
        (before.root / site / f"{site}.pem").rename(before.root / site / "site.pem")
        write_labels(before.root / site / "labels.csv", site)
    for site in SITES:
        for peer in SITES:
            if peer != site:
                before.run("ce-client", "trust", peer, prints[peer], "--config", site)
    # North has every key of both files, with its default; east has the files as they were made; south asks for consent.
    write_out(before.root / "north" / "client.toml")
    write_out(before.root / "north" / "policy.toml")
    replace(before.root / "south" / "policy.toml", '# consent = "auto"', 'consent = "ask"')


def write_out(path: Path) -> None:
    """Make of every key that stands there as a comment, with its default, one that is set to that."""
    path.write_text(re.sub(r"^# ([a-z_]+ = .+)$", r"\1", path.read_text(), flags=re.MULTILINE))


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    if old not in text:
        raise SystemExit(f"{path}: {old} is not in it")
    path.write_text(text.replace(old, new))


def write_labels(path: Path, site: str) -> None:
    """60 objects, by rows: three columns that all sites have, and one of its own.

    Four objects are at north and at east: too few sites for a total, so that min_sites leaves them out.
    """
    draw = random.Random(f"labels of {site}")
    shared = [f"shared{at}" for at in range(4)] if site != "south" else []
    own = [f"{site}{at}" for at in range(60 - len(shared))]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(["id", "region", "trade", "size", f"{site} group"])
        for at, name in enumerate([*own, *shared]):
            noisy = [(at + (draw.random() < 0.2)) % 3 for _ in range(4)]
            writer.writerow([name, *(("", "", "", noisy[3]) if name in shared else noisy)])


def work_and_be_killed(before: Version) -> None:
    with before.everybody() as logs, tempfile.TemporaryDirectory() as directory:

        def submit(name: str, **keys: Any) -> None:
            job = Path(directory) / "job.toml"
            asked = {"name": name, "clusters": 3, "sites": SITES, "restarts": 2, "deadlines.job_s": LONG_S, **keys}
            job.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in asked.items()))
            before.run("ce-coordinator", "submit", job, "--config", "hub")

        def decide(name: str, decision: str) -> None:
            logs["south"].wait_for("job waits for approval", job=name)
            before.run("ce-client", decision, name, "--config", "south")

        def watch(name: str, code: int) -> None:
            before.run("ce-coordinator", "watch", name, "--config", "hub", code=code)
            for site in SITES if name != "refused" else SITES[:2]:
                logs[site].wait_for("job over", job=name)

        submit("finished", max_iterations=10)
        decide("finished", "approve")
        watch("finished", 0)
        submit("refused", sites=SITES[:2])
        watch("refused", 6)
        before.run("ce-client", "allow-roster", "refused", "--yes", "--config", "north")
        submit("declined")
        decide("declined", "decline")
        watch("declined", 6)
        submit("cancelled")
        logs["south"].wait_for("job waits for approval", job="cancelled")
        before.run("ce-coordinator", "cancel", "cancelled", "--config", "hub")
        watch("cancelled", 8)
        note(before, "hub/list", before.ask("ce-coordinator", "list", "--config", "hub"))
        result = before.ask("ce-coordinator", "result", "finished", "--config", "hub", "--out", directory)
        note(before, "hub/result", result["result"])
        # Long enough to be killed in the middle of it: with a tolerance of 0 no start converges.
        submit(UNFINISHED[0], max_iterations=150, restarts=1, tolerance=0.0)
        submit(UNFINISHED[1], max_iterations=60, restarts=1, tolerance=0.0, privacy="blind")
        for name in UNFINISHED:
            decide(name, "approve")
        wait_until(lambda: all_have_checkpoints(before), "checkpoints of all jobs at all ends")
    if not all_have_checkpoints(before):
        raise SystemExit("a job was over before everybody was killed: give it more iterations")


def all_have_checkpoints(before: Version) -> bool:
    """Two of every unfinished job at every end: the one before the newest is then everywhere."""
    ends = [before.root / "hub" / "checkpoints", *(before.root / site / "state" / "checkpoints" for site in SITES)]
    jobs = [[len(list(job.glob("*.kept"))) for job in end.glob("*") if job.is_dir()] for end in ends]
    return all(len(kept) == len(UNFINISHED) and min(kept) >= 2 for kept in jobs)


def note_what_is_said(before: Version) -> None:
    """What the commands that need no daemon answer now that all are gone."""
    note(before, "version", before.run("ce-coordinator", "--version").strip())
    for site in SITES:
        note(before, f"{site}/jobs", before.ask("ce-client", "jobs", "--config", site))
        note(before, f"{site}/ledger", before.ask("ce-client", "ledger", "list", "--config", site))
        note(before, f"{site}/verify", before.ask("ce-client", "ledger", "verify", "--config", site))
        note(before, f"{site}/preview", before.ask("ce-client", "preview", "finished", "--config", site))


def note(before: Version, name: str, said: Any) -> None:
    path = before.root / "said" / f"{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(said, indent=1) + "\n")


def go_on_in_a_copy(before: Version, copy: Path) -> None:
    """The results of the unfinished jobs, as this version finds them: from the checkpoints that were kept."""
    shutil.copytree(before.root, copy)
    other = Version(before.commands, copy)
    with other.everybody() as logs:
        for job in UNFINISHED:
            logs["hub"].wait_for("job goes on from a checkpoint", job=job)
            other.run("ce-coordinator", "watch", job, "--config", "hub")
            for site in SITES:
                logs[site].wait_for("job over", job=job)
                kept = before.root / "expected" / job / f"{site}.csv"
                kept.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(copy / site / "results" / job / "consensus.csv", kept)


def hide_paths(root: Path) -> None:
    """No path of the machine that made it: the placeholder instead, where there must be one."""
    for site in SITES:
        replace(root / site / "state" / "rosters.json", str(root), PLACEHOLDER)
    for path in root.rglob("*"):
        if path.is_file() and str(root.parent).encode() in path.read_bytes():
            raise SystemExit(f"{path} still holds a path of this machine")


def pack(root: Path, archive: Path) -> None:
    """With permissions, since keys that others may read are refused; without the names of users."""

    def nobody(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(archive, "w:gz") as file:
        file.add(root, "before", filter=nobody)


if __name__ == "__main__":
    main()
