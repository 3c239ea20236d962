"""`make lab`: daemons on hosts of their own, in network namespaces, whose links are cut for real. Needs root and ip.

Measures, with the operator's own command (`ce-coordinator watch --format json`), how long it takes until a killed site,
and one whose link is cut, is reported, and until the job goes on when it is back. Prints the seconds; ends with 1 when
one is over three, or when a result is not that of an undisturbed run.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from support.problems import TOPOLOGIES, deal, problem
from support.processes import Deployment

import ce

SITES = ("site0", "site1", "site2")
SECRETS = {site: hashlib.sha256(site.encode()).digest() for site in SITES}
MOST_S = 3.0
PORT = 8443


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)


class Network:
    """A bridge in a namespace of its own, and one namespace for each host. The machine's own network is not touched."""

    def __init__(self, hosts: tuple[str, ...]) -> None:
        self.prefix = f"ce{uuid4().hex[:6]}"
        self.hosts = hosts
        self.addresses = {host: f"10.78.0.{at + 1}" for at, host in enumerate(hosts)}

    def __enter__(self) -> Network:
        bridge = f"{self.prefix}-bridge"
        ip("netns", "add", bridge)
        ip("-n", bridge, "link", "add", "br0", "type", "bridge")
        ip("-n", bridge, "link", "set", "br0", "up")
        for host in self.hosts:
            own = f"{self.prefix}-{host}"
            ip("netns", "add", own)
            ip("-n", own, "link", "set", "lo", "up")
            ip("-n", bridge, "link", "add", host, "type", "veth", "peer", "name", "eth0", "netns", own)
            ip("-n", bridge, "link", "set", host, "master", "br0", "up")
            ip("-n", own, "addr", "add", f"{self.addresses[host]}/24", "dev", "eth0")
            ip("-n", own, "link", "set", "eth0", "up")
        return self

    def __exit__(self, *_: object) -> None:
        for host in (*self.hosts, "bridge"):
            subprocess.run(["ip", "netns", "del", f"{self.prefix}-{host}"], check=False)

    def on(self, host: str) -> list[str]:
        """What to put before a command so that it runs there."""
        return ["nsenter", f"--net=/run/netns/{self.prefix}-{host}"]

    def cut(self, host: str) -> None:
        ip("-n", f"{self.prefix}-bridge", "link", "set", host, "down")

    def restore(self, host: str) -> None:
        ip("-n", f"{self.prefix}-bridge", "link", "set", host, "up")


class Watching:
    """`ce-coordinator watch`, and what it last said."""

    def __init__(self, network: Network, deployment: Deployment, job: str) -> None:
        command = [sys.executable, "-m", "ce_coordinator.cli.main", "watch", job, "--format", "json"]
        self._process = subprocess.Popen(
            [*network.on("hub"), *command, "--config", str(deployment.hub)], stdout=subprocess.PIPE, text=True
        )
        self._changed = threading.Condition()
        self.last: dict[str, Any] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            with self._changed:
                self.last = json.loads(line)
                self._changed.notify_all()

    def until(self, enough: Callable[[dict[str, Any]], bool]) -> float:
        """Seconds until the command says something of which that is true."""
        begin = time.monotonic()
        with self._changed:
            while not (self.last and enough(self.last)):
                if not self._changed.wait(60.0):
                    raise AssertionError(f"not in time: {self.last}")
        return time.monotonic() - begin

    def end(self) -> int:
        return self._process.wait(120)


def connected(status: dict[str, Any], site: str) -> bool:
    return next(bool(own["connected"]) for own in status["sites"] if own["site"] == site)


def measure(network: Network, deployment: Deployment, fault: str) -> list[float]:
    """How long until it is reported, and until the job goes on."""
    job = ce.Job(
        name=f"lab-{fault}", clusters=3, sites=SITES, restarts=2, max_iterations=3000, tolerance=0.0, privacy="masked"
    )
    (deployment.directory / "job.toml").write_text(
        f'name = "{job.name}"\nclusters = 3\nsites = {json.dumps(SITES)}\nrestarts = 2\nmax_iterations = 3000\n'
        'tolerance = 0.0\nprivacy = "masked"\n'
    )
    submit = [sys.executable, "-m", "ce_coordinator.cli.main", "submit", str(deployment.directory / "job.toml")]
    subprocess.run(
        [*network.on("hub"), *submit, "--config", str(deployment.hub)], check=True, stdout=subprocess.DEVNULL
    )
    watch = Watching(network, deployment, job.name)
    watch.until(lambda status: status["exchanges"] >= 100)
    if fault == "kill":
        deployment.processes["site1"].send(signal.SIGKILL)
    else:
        network.cut("site1")
    reported = watch.until(lambda status: not connected(status, "site1"))
    if fault == "kill":
        deployment.processes["site1"].end()
        start(network, deployment, "site1").wait_for("connected")
    else:
        threading.Event().wait(8.0)  # longer than it takes both ends to give up
        network.restore("site1")
    before = watch.last["exchanges"]
    epoch = watch.last["epoch"]
    went_on = watch.until(
        lambda status: (
            status["state"] in ("done", "failed")
            or (connected(status, "site1") and (status["exchanges"] > before or status["epoch"] > epoch))
        )
    )
    if watch.end():
        raise AssertionError("the job was not done")
    tables = {site: ce.LabelTable.from_csv(deployment.directory / f"{site}.csv") for site in SITES}
    expected = ce.simulate(job, tables, secrets=SECRETS, privacy="plain")
    for site in SITES:
        np.testing.assert_array_equal(deployment.consensus(site, job.name)[2], expected.sites[site].memberships)
    return [reported, went_on]


def start(network: Network, deployment: Deployment, name: str) -> Any:
    address = f"{network.addresses['hub']}:{PORT}"
    variables = {
        "CE_CLIENT_COORDINATOR": address,
        "CE_COORDINATOR_LISTEN": address,
        "CE_COORDINATOR_OPERATOR_ADDRESS": address,
    }
    wanted = "CE_COORDINATOR_" if name == "hub" else "CE_CLIENT_"
    environment = {key: value for key, value in variables.items() if key.startswith(wanted)}
    return deployment.start(name, environment, before=network.on(name))


def main() -> None:
    if shutil.which("ip") is None or shutil.which("nsenter") is None:
        sys.exit("the lab needs ip and nsenter (iproute2, util-linux)")
    with tempfile.TemporaryDirectory() as directory, Network(("hub", *SITES)) as network:
        deployment = Deployment(Path(directory), SITES, SECRETS)
        text = (deployment.hub / "coordinator.toml").read_text()
        address = f"{network.addresses['hub']}:{PORT}"
        (deployment.hub / "coordinator.toml").write_text(text.replace(deployment.address, address))
        try:
            pooled = problem(3, k=3, clusterings=6, missing=0.1, n=60).table
            for site, table in deal(pooled, TOPOLOGIES["ragged"](pooled, 3, np.random.default_rng(1))).items():
                deployment.write_labels(site, table)
            start(network, deployment, "hub")
            for site in SITES:
                start(network, deployment, site).wait_for("connected")
            worst = 0.0
            for fault in ("kill", "cut"):
                reported, went_on = measure(network, deployment, fault)
                worst = max(worst, reported, went_on)
                print(
                    f"{fault:5s} reported after {reported:.2f} s, went on {went_on:.2f} s after its return", flush=True
                )
        finally:
            deployment.close()
    sys.exit(0 if worst <= MOST_S else 1)


if __name__ == "__main__":
    main()
