"""`make soak MINUTES=20`: jobs back to back over real daemons, with random faults, every result checked.

Sites but the first are killed, stopped and frozen; links are cut, reset and stalled; the coordinator is killed in the
first quarter only, so that its memory, and that of the first site, which nobody kills, can be compared between the
second quarter and the last. Prints jobs, faults, losses and memory; ends with 1 if anything was lost, hung or grew.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.problems import TOPOLOGIES, deal, problem
from support.processes import Deployment
from support.proxy import Proxy

import ce

SITES = tuple(f"site{s}" for s in range(4))
SECRETS = {site: hashlib.sha256(site.encode()).digest() for site in SITES}
PATIENCE_S = 120.0
MOST_GROWTH = 1.05


class Soak:
    """One deployment under fire."""

    def __init__(self, deployment: Deployment, links: dict[str, Proxy], minutes: float, seed: int) -> None:
        self.deployment = deployment
        self.links = links
        self.begin = time.monotonic()
        self.length_s = minutes * 60
        self.random = random.Random(seed)
        self.jobs: Counter[str] = Counter()
        self.faults: Counter[str] = Counter()
        self.lost: list[str] = []
        self.memory: list[tuple[float, int, int]] = []  # part of the time, coordinator, first site; bytes
        self._busy = threading.Lock()

    @property
    def part(self) -> float:
        """How much of the time is over, from 0 to 1."""
        return (time.monotonic() - self.begin) / self.length_s

    def run(self) -> None:
        stop = threading.Event()
        thread = threading.Thread(target=self._trouble, args=(stop,), daemon=True)
        thread.start()
        number = 0
        while self.part < 1:
            number += 1
            self._job(number)
            if (hub := _resident(self.deployment, "hub")) and (site := _resident(self.deployment, "site0")):
                self.memory.append((self.part, hub, site))
            if number % 20 == 0:
                self._say(number)
        stop.set()
        thread.join(60)

    def _job(self, number: int) -> None:
        privacy = self.random.choice(("plain", "masked", "masked", "blind"))
        model = self.random.choice(("bce", "bce", "mixture"))
        iterations = self.random.choice((30, 120))
        job = ce.Job(
            name=f"soak-{number}",
            model=model,
            clusters=3,
            sites=SITES,
            restarts=2,
            max_iterations=iterations,
            tolerance=0.0,
            privacy=privacy,
        )
        while True:  # the coordinator may be down just now
            try:
                self.deployment.submit(job)
                break
            except ce.errors.AlreadyExists:
                break
            except ce.errors.CeError:
                time.sleep(0.2)
        state = self._wait(job.name)
        self.jobs[f"{model} {privacy}"] += 1
        if state != "done":
            self.lost.append(f"{job.name}: {state}")
        elif not self._same(job):
            self.lost.append(f"{job.name}: other results")

    def _wait(self, name: str) -> str:
        deadline = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline:
            try:
                status = self.deployment.wait(name, PATIENCE_S)
                if status.state in ("done", "failed", "cancelled"):
                    return f"{status.state} {status.reason}".strip()
            except (ce.errors.CeError, TimeoutError):
                time.sleep(0.2)
        return "hung"

    def _same(self, job: ce.Job) -> bool:
        tables = {site: ce.LabelTable.from_csv(self.deployment.directory / f"{site}.csv") for site in SITES}
        expected = ce.simulate(replace(job, privacy="plain"), tables, secrets=SECRETS)
        return all(
            np.array_equal(self.deployment.consensus(site, job.name)[2], expected.sites[site].memberships)
            for site in SITES
        )

    def _trouble(self, stop: threading.Event) -> None:
        """A fault every few seconds."""
        while not stop.wait(self.random.uniform(0.5, 4.0)):
            site = self.random.choice(SITES[1:])
            kinds = ["kill", "kill", "stop", "freeze", "reset", "cut", "stall"] + ["kill hub"] * (self.part < 0.25)
            kind = self.random.choice(kinds)
            self.faults[kind] += 1
            if kind in ("kill", "stop", "kill hub"):
                name = "hub" if kind == "kill hub" else site
                number = signal.SIGTERM if kind == "stop" else signal.SIGKILL
                self.deployment.processes[name].stop(number)
                stop.wait(self.random.choice((0.0, 0.5, 3.0)))
                self._start(name)
            elif kind == "freeze":
                process = self.deployment.processes[site]
                process.send(signal.SIGSTOP)
                stop.wait(self.random.choice((0.3, 4.0)))
                process.send(signal.SIGCONT)
            elif kind == "stall":
                self.links[site].stall()
                stop.wait(self.random.choice((0.3, 4.0)))
                self.links[site].restore()
            else:
                getattr(self.links[site], kind)()

    def _start(self, name: str) -> None:
        link = self.links.get(name)
        environment = None if link is None else {"CE_CLIENT_COORDINATOR": f"127.0.0.1:{link.port}"}
        self.deployment.start(name, environment)

    def _say(self, number: int) -> None:
        _, hub, site = self.memory[-1]
        print(
            f"{self.part:6.0%}  {number:5d} jobs  {sum(self.faults.values()):5d} faults  {len(self.lost)} lost  "
            f"coordinator {hub / 1e6:.1f} MB  first site {site / 1e6:.1f} MB",
            flush=True,
        )

    def report(self) -> bool:
        """Whether all is well."""
        print(f"{sum(self.jobs.values())} jobs: {dict(sorted(self.jobs.items()))}")
        print(f"{sum(self.faults.values())} faults: {dict(sorted(self.faults.items()))}")
        print(f"{len(self.lost)} lost, hung or otherwise: {self.lost}")
        fine = not self.lost
        for at, name in ((1, "coordinator"), (2, "first site")):
            second, last = (
                statistics.median(row[at] for row in self.memory if begin <= row[0] < begin + 0.25)
                for begin in (0.25, 0.75)
            )
            print(f"memory of the {name}: {second / 1e6:.1f} MB in the second quarter, {last / 1e6:.1f} MB in the last")
            fine &= last <= MOST_GROWTH * second
        return fine


def _resident(deployment: Deployment, name: str) -> int:
    """Bytes of memory of a process, at this moment; 0: it was just killed."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{deployment.processes[name].pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
    return 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    configuration = "[checkpoints]\nevery_s = 0.2\nevery_exchanges = 5"
    with tempfile.TemporaryDirectory() as directory:
        deployment = Deployment(Path(directory), SITES, SECRETS, configuration=configuration)
        pooled = problem(3, k=3, clusterings=8, missing=0.1, n=80).table
        for site, table in deal(pooled, TOPOLOGIES["ragged"](pooled, 4, np.random.default_rng(1))).items():
            deployment.write_labels(site, table)
        links = {site: Proxy(deployment.port) for site in SITES[1:]}
        try:
            for link in links.values():
                link.__enter__()
            soak = Soak(deployment, links, options.minutes, options.seed)
            deployment.start("hub")
            for site in SITES:
                soak._start(site)
            soak.run()
            fine = soak.report()
        finally:
            deployment.close()
            for link in links.values():
                link.__exit__()
    print("all is well" if fine else "NOT well")
    sys.exit(0 if fine else 1)


if __name__ == "__main__":
    main()
