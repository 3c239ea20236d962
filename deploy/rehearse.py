"""Plays docker-compose.yml for real, and looks at what came of it: `make rehearse`. Needs docker with compose; minutes.

    python deploy/rehearse.py [--keep]

Builds the images; runs each profile; compares every site's result with `ce.simulate` on the same labels; looks into
containers, networks and volumes for what should not be there; then runs a long job over totals, and a sealed job over
many more objects, twice each: with one site off its network for 20 seconds, and with the coordinator killed. Each
sealed job begins with empty volumes, because the default budget is enough for one. In a compose project of its own,
removed at the end unless --keep.
"""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import ce

ROOT = Path(__file__).resolve().parents[1]
PROJECT = "ce-rehearsal"
SITES = ("north", "east", "south", "west")
PROFILES = {"sealed": "operator", "bce": "operator-bce", "blind": "operator-blind", "bc3e": "operator-bc3e"}
#: What is added to the name of a site's service.
SERVICES = {"sealed": "", "bce": "-totals", "blind": "-totals", "bc3e": "-votes"}
LABELS = {"bce": "examples", "blind": "examples", "bc3e": "examples/votes"}
AWAY_S = 20
#: Objects of a sealed job that is disturbed: known to all sites, and to each site alone.
MANY_SHARED, MANY_OWN = 24_000, 9_000
#: A job that takes about a minute: no start ever converges.
LONG = """
restarts = 3
tolerance = 0
max_iterations = 1500
"""
PATIENCE_S = 600.0


def main() -> None:
    if sys.argv[1:] not in ([], ["--keep"]):
        sys.exit(__doc__)
    with tempfile.TemporaryDirectory() as directory:
        try:
            rehearse(Path(directory))
        finally:
            if sys.argv[1:] != ["--keep"]:
                compose("down", "--volumes", "--timeout", "5", profile="*")
    print("all as it should be")


def rehearse(directory: Path) -> None:
    compose("down", "--volumes", "--timeout", "5", profile="*")
    with timed("build"):
        compose("build", "coordinator", "north", profile="sealed")
    for image in ("ce-coordinator", "ce-client"):
        size = int(run("docker", "image", "inspect", "--format", "{{.Size}}", image))
        print(f"  {image}: {size / 1e6:.0f} MB")
    for profile in PROFILES:
        with timed(f"profile {profile}, from up to the operator's end"):
            play(profile)
        if profile == "sealed":
            look_at_sealed(ROOT / "examples")
            look_around()
        else:
            compare(profile, profile)
        compose("stop", profile=profile)
    for name, disturb in (("away", take_away), ("killed", kill)):
        override = long_job(directory, name)
        with timed(f"job {name}"):
            play("bce", override, lambda disturb=disturb: disturb("bce"))  # type: ignore[misc]
        compare("bce", name, override)
        compose("stop", profile="bce")
    override = many_objects(directory)
    for name, disturb in (("away", take_away), ("killed", kill)):
        compose("down", "--volumes", "--timeout", "5", profile="*")
        with timed(f"sealed job {name}"):
            play("sealed", override, lambda disturb=disturb: disturb("sealed"))  # type: ignore[misc]
        look_at_sealed(directory / "many", override)


# Playing.


def play(profile: str, override: Path | None = None, meanwhile: Callable[[], None] = lambda: None) -> None:
    """From `up` until the operator's service ends, which it must with 0."""
    operator = PROFILES[profile]
    compose("up", "--detach", profile=profile, override=override)
    meanwhile()
    container = compose("ps", "--all", "--quiet", operator, profile=profile, override=override).strip()
    code = run("docker", "wait", container).strip()
    last = [line for line in run("docker", "logs", container).splitlines() if "done" in line]
    check(code == "0" and bool(last), f"{operator} ended with {code}")
    print(f"  {last[-1].strip()}")


def long_job(directory: Path, name: str) -> Path:
    """An override that lets the operator submit a long job: only here, never in the repository's file."""
    own = directory / name
    shutil.copytree(ROOT / "deploy" / "compose", own)
    short = (own / "jobs" / "bce.toml").read_text()
    (own / "jobs" / f"{name}.toml").write_text(short.replace('"bce"', f'"{name}"', 1) + LONG)
    # Those who read it run as another user.
    for path in (directory, own, *own.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    override = directory / f"{name}.yml"
    override.write_text(
        f"services:\n  operator-bce:\n    command: [{name}]\n    volumes: ['{own}:/compose:ro']\n", encoding="utf-8"
    )
    return override


def many_objects(directory: Path) -> Path:
    """An override with label files so large that a sealed job can be disturbed before it is over."""
    spec = importlib.util.spec_from_file_location("make_examples", ROOT / "examples" / "make_examples.py")
    assert spec is not None
    assert spec.loader is not None
    examples = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(examples)
    many = directory / "many"
    examples.make_clusterings(many, MANY_SHARED, MANY_OWN)
    for path in (directory, many, *many.iterdir()):
        path.chmod(0o755 if path.is_dir() else 0o644)
    override = directory / "many.yml"
    mounts = "".join(f"  {site}:\n    volumes: ['{many}/{site}.csv:/labels.csv:ro']\n" for site in SITES)
    override.write_text(f"services:\n{mounts}", encoding="utf-8")
    return override


#: Exchanges after which a job is disturbed: a sealed job has some 30.
EARLY = {"bce": 200, "sealed": 2}
LATER = {"bce": 500, "sealed": 3}


def take_away(profile: str) -> None:
    """One site loses its network for a while, in the middle of the job."""
    wait_for_exchanges(EARLY[profile])
    site, network = f"{PROJECT}-south{SERVICES[profile]}-1", f"{PROJECT}_south"
    run("docker", "network", "disconnect", network, site)
    before = exchanges()
    time.sleep(AWAY_S)
    check(is_running(PROFILES[profile]), "the job waits for a site that is away")
    print(f"  south was away for {AWAY_S} s after {before:.0f} exchanges; meanwhile: {exchanges() - before:.0f}")
    run("docker", "network", "connect", network, site)
    wait_for_exchanges(int(before) + 1)
    print(f"  it is back; reconnects: {metric('ce_coordinator_reconnects_total'):.0f}")


def kill(profile: str) -> None:
    """The coordinator's process is killed; the restart policy brings it back."""
    wait_for_exchanges(LATER[profile])
    container = f"{PROJECT}-coordinator-1"
    before = exchanges()
    pid = int(run("docker", "inspect", "--format", "{{.State.Pid}}", container))
    check(pid > 1, "the coordinator runs")
    run("kill", "-KILL", str(pid))
    check(is_running(PROFILES[profile]), "the job was not over when the coordinator was killed")
    print(f"  the coordinator was killed after {before:.0f} exchanges")
    wait_for_exchanges(1)
    restarts = run("docker", "inspect", "--format", "{{.RestartCount}}", container).strip()
    resumed = metric("ce_coordinator_resumed_total")
    print(f"  restarts of its container: {restarts}; attempts that went on from a checkpoint: {resumed:.0f}")


def exchanges() -> float:
    return metric("ce_coordinator_exchanges_total")


def metric(name: str) -> float:
    """Of the coordinator, from within its container: its metrics are served to nobody else."""
    code = "import urllib.request as r; print(r.urlopen('http://127.0.0.1:9464/metrics').read().decode())"
    command = ("docker", "exec", f"{PROJECT}-coordinator-1", "python", "-c", code)
    said = subprocess.run(command, capture_output=True, text=True, check=False)
    return sum(float(n) for n in re.findall(rf"(?m)^{name}(?:{{.*}})? (\S+)$", said.stdout))


def wait_for_exchanges(least: int) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while exchanges() < least:
        check(time.monotonic() < deadline, "the job goes on")
        time.sleep(0.05)


def is_running(service: str) -> bool:
    said = run("docker", "inspect", "--format", "{{.State.Running}}", f"{PROJECT}-{service}-1")
    return said.strip() == "true"


# Looking.


def look_at_sealed(folder: Path, override: Path | None = None) -> None:
    """Results of a sealed job, which has noise: one label per object at all its sites, near the groups; one charge."""
    truth = ce.LabelTable.from_csv(folder / "truth.csv")
    group = dict(zip(truth.ids.tolist(), truth.columns[0].likeliest.tolist(), strict=True))
    found: dict[str, str] = {}
    agreement, spent = [], []
    for site in SITES:
        words = ("exec", "--no-TTY", site)
        said = compose(*words, "cat", "results/sealed/consensus.csv", profile="sealed", override=override)
        rows = [line.split(",")[:2] for line in said.splitlines()[1:]]
        known = ce.LabelTable.from_csv(folder / f"{site}.csv").ids
        check([own for own, _ in rows] == [str(one) for one in known], f"{site} has its own ids")
        check(all(found.setdefault(own, label) == label for own, label in rows), "sites agree on shared objects")
        agreement.append(ce.metrics.ari([group[own] for own, _ in rows], [label for _, label in rows]))
        said = compose(*words, "ce-client", "budget", "--config", ".", "--format", "json", profile="sealed")
        spent.append(json.loads(said)["spent"][0]["epsilon"])
    print("  ARI with the groups: " + ", ".join(f"{value:.4f}" for value in agreement))
    print("  epsilon spent: " + ", ".join(f"{value:.3f}" for value in spent))
    check(min(agreement) > 0.9, "the consensus is near the groups")
    check(all(1.9 < value <= 2.0 for value in spent), "the job was charged once at every site")


def compare(profile: str, job: str, override: Path | None = None) -> None:
    """Every site's consensus against `ce.simulate` on the same labels, on one machine: with the sites' own secrets,
    which only a rehearsal knows, the same memberships; with a seed, and so other starts, about the same clusters."""
    jobs = (override.with_suffix("") if override else ROOT / "deploy" / "compose") / "jobs"
    asked = ce.Job(**tomllib.loads((jobs / f"{job}.toml").read_text()), seed=0)
    tables = {site: ce.LabelTable.from_csv(ROOT / LABELS[profile] / f"{site}.csv") for site in SITES}
    services = {site: f"{site}{SERVICES[profile]}" for site in SITES}

    def read(site: str, path: str) -> str:
        return compose("exec", "--no-TTY", services[site], "cat", path, profile=profile, override=override)

    secrets = {site: bytes.fromhex(read(site, "secret")) for site in SITES}
    rules = {"shared_objects": "totals"}  # as in docker-compose.yml
    same = ce.simulate(asked, tables, policy=rules, secrets=secrets)
    other = ce.simulate(asked, tables, policy=rules)
    apart, agreement = 0.0, []
    for site in SITES:
        rows = [line.split(",") for line in read(site, f"results/{job}/consensus.csv").splitlines()[1:]]
        check([row[0] for row in rows] == [str(one) for one in same.sites[site].ids], f"{site} has its own ids")
        memberships = np.array([[float(value) for value in row[3:]] for row in rows])
        apart = max(apart, np.abs(memberships - same.sites[site].memberships).max())
        theirs = [str(label) for label in other.sites[site].labels]
        agreement.append(ce.metrics.ari([row[1] for row in rows], theirs))
    print(f"  memberships: at most {apart:.1e} from the simulation with the same secrets")
    print("  ARI with one that has other starts: " + ", ".join(f"{value:.4f}" for value in agreement))
    check(apart < 1e-9, "the result is that of the simulation")


def look_around() -> None:
    """Confinement, networks and volumes as they are, not as the file says."""
    names = ("coordinator", *SITES)
    for name in names:
        container = f"{PROJECT}-{name}-1"
        status = run("docker", "exec", container, "cat", "/proc/self/status")
        check(re.search(r"CapEff:\s+0+\n", status) is not None, f"{name} has no capability")
        check(re.search(r"CapBnd:\s+0+\n", status) is not None, f"{name} can gain none")
        check("NoNewPrivs:\t1\n" in status, f"{name} gains no privilege")
        check("Uid:\t10001\t" in status, f"{name} is not root")
        check(fails("docker", "exec", container, "touch", "/opt/ce/x"), f"{name}'s file system is read-only")
        check(fails("docker", "exec", container, "python", "-m", "pip", "--version"), f"{name} has no pip")
    addresses = {name: addresses_of(f"{PROJECT}-{name}-1") for name in names}
    for site in SITES:
        for other in names:
            reached = any(dials(site, address) for address in addresses[other])
            check(reached == (other == "coordinator" or other == site), f"{site} reaches {other}: {reached}")
    print("  no site reaches another; all reach the coordinator")
    private = {}
    for volume in run("docker", "volume", "ls", "--quiet", "--filter", f"name={PROJECT}_").split():
        words = ("docker", "run", "--rm", "--network=none", "--volume", f"{volume}:/v:ro", "--entrypoint", "sh")
        said = run(*words, "ce-client", "-c", "grep -rl 'PRIVATE KEY' /v || true")
        private[volume.removeprefix(f"{PROJECT}_")] = sorted(line.removeprefix("/v/") for line in said.split())
    expected = {site: ["site.key"] for site in SITES}
    expected |= {"authority": ["authority/ca.key"], "coordinator": ["coordinator.key"], "operator": ["operator.key"]}
    check({name: files for name, files in private.items() if files} == expected, f"private keys: {private}")
    print("  private keys: one at each site, at the authority, the coordinator and the operator; none on the way")
    for image in ("ce-coordinator", "ce-client"):
        said = run("docker", "run", "--rm", "--network=none", "--entrypoint", "sh", image, "-c", LOOK)
        check(said.strip() == "", f"{image} has {said}")
        environment = json.loads(run("docker", "image", "inspect", "--format", "{{json .Config.Env}}", image))
        check(not any("KEY" in one or "PASS" in one for one in environment), f"{image} has {environment}")


#: Keys and label files in an image, and tools that have no business there.
LOOK = r"find / -xdev \( -name '*.key' -o -name '*.csv' -o -name '*.csr' \) ; which gcc cc make pip git; true"


def addresses_of(container: str) -> list[str]:
    networks = json.loads(run("docker", "inspect", "--format", "{{json .NetworkSettings.Networks}}", container))
    return [own["IPAddress"] for own in networks.values()]


def dials(site: str, address: str) -> bool:
    """Whether anything answers there, be it with a refusal: the host is reached then."""
    code = (
        "import socket, sys\ntry:\n socket.create_connection((sys.argv[1], 8443), 1)\n"
        "except ConnectionRefusedError: pass\nexcept OSError: sys.exit(1)"
    )
    return not fails("docker", "exec", f"{PROJECT}-{site}-1", "python", "-c", code, address)


# Commands.


def compose(*words: str, profile: str, override: Path | None = None) -> str:
    files = ["--file", str(ROOT / "docker-compose.yml"), *(["--file", str(override)] if override else [])]
    return run(
        "docker", "compose", "--project-directory", str(ROOT), *files, "-p", PROJECT, "--profile", profile, *words
    )


def run(*words: str) -> str:
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    if done.returncode:
        sys.exit(f"{' '.join(words)}: ended with {done.returncode}\n{done.stdout}\n{done.stderr}")
    return done.stdout


def fails(*words: str) -> bool:
    return subprocess.run(words, capture_output=True, timeout=PATIENCE_S, check=False).returncode != 0


def check(holds: Any, what: str) -> None:
    if not holds:
        sys.exit(f"not so: {what}")


@contextmanager
def timed(what: str) -> Iterator[None]:
    print(f"{what} ...", flush=True)
    begin = time.monotonic()
    yield
    print(f"  {time.monotonic() - begin:.0f} s", flush=True)


if __name__ == "__main__":
    main()
