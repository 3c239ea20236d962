"""Whether what is in deploy/, and docker-compose.yml, is as it should be: `make check-deploy`.

    python deploy/check.py

What Python can check is always checked: who sees which volume, network and label file, how services are confined, that
images hold no keys, that alerts are about metrics that exist. Checks by other tools (a schema of compose files,
hadolint, systemd-analyze, promtool, ...) are run where the tools are; those that are missing are named.
"""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

import ce
from ce_client.daemon.metrics import SiteMetrics
from ce_coordinator.service.metrics import CoordinatorMetrics

ROOT = Path(__file__).resolve().parents[1]
COMPOSE = ROOT / "docker-compose.yml"
DEPLOY = ROOT / "deploy"
SITES = ("north", "east", "south", "west")
BASE = "python:3.11-slim"
#: The base image, by its tag or, once `make pin-images` was run, by its digest as well.
PINNED = re.compile(rf"BASE={re.escape(BASE)}(@sha256:[0-9a-f]{{64}})?")
SECRET = re.compile(r"KEY|PASS|SECRET|TOKEN", re.IGNORECASE)

#: Volumes with private keys, and the services that may see them. Those of a site are the site's own.
PRIVATE = {
    "authority": {"authority", "sign"},
    "coordinator": {"authority", "coordinator"},
    "operator": {"authority", "operator", "operator-bce", "operator-blind", "operator-bc3e"},
    **{site: {site, *(f"{site}-{more}" for more in ("keys", "pins", "totals", "votes"))} for site in SITES},
}
#: Volumes by which something travels, and who may write to them.
WRITERS = {"signed": {"sign"}, **{f"{site}-out": {f"{site}-keys"} for site in SITES}}
#: What a service unit must say.
UNIT = {
    "LimitCORE": "0",
    "CapabilityBoundingSet": "",
    "NoNewPrivileges": "yes",
    "ProtectSystem": "strict",
    "ProtectHome": "yes",
    "PrivateTmp": "yes",
    "PrivateDevices": "yes",
    "UMask": "0077",
    "RestrictNamespaces": "yes",
    "MemoryDenyWriteExecute": "yes",
    "SystemCallArchitectures": "native",
}


# Compose.


def compose_faults(content: Mapping[str, Any]) -> Iterator[str]:
    """What is wrong with a compose file."""
    services: Mapping[str, Any] = content["services"]
    for name, service in services.items():
        yield from (f"{name}: {fault}" for fault in _confinement(service))
        for source, target, read_only in _mounts(service):
            if source.startswith("."):
                if not read_only:
                    yield f"{name}: {source} can be written to"
            elif source in PRIVATE:
                if name not in PRIVATE[source]:
                    yield f"{name}: sees the volume {source}, which has private keys"
            elif source not in WRITERS:
                yield f"{name}: mounts {source}, of which nothing is known"
            elif not read_only and name not in WRITERS[source]:
                yield f"{name}: can write to the volume {source}"
            if source.endswith(".csv") and source != _labels(name):
                yield f"{name}: sees {source}, which are not its labels"
            if target == "/labels.csv" and _site(name) not in SITES:
                yield f"{name}: has labels, and is no site"
        if name in SITES and any(variable.startswith("CE_POLICY_") for variable in service.get("environment", {})):
            yield f"{name}: has other rules than the default ones"
    yield from _network_faults(content)
    if unused := set(content["volumes"]) ^ (PRIVATE.keys() | WRITERS.keys()):
        yield f"volumes: {', '.join(sorted(unused))}"


def _confinement(service: Mapping[str, Any]) -> Iterator[str]:
    wanted = {
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges:true"],
        "ulimits": {"core": 0},
    }
    for key, value in wanted.items():
        if service.get(key) != value:
            yield f"{key} is not {value}"
    for key in ("mem_limit", "pids_limit"):
        if key not in service:
            yield f"has no {key}"
    for key in ("privileged", "cap_add", "devices", "pid", "ipc", "user", "ports", "env_file"):
        if key in service:
            yield f"has {key}"
    if service["image"] not in ("ce-coordinator", "ce-client"):
        yield f"is made of {service['image']}"
    for variable in service.get("environment", {}):
        if SECRET.search(variable):
            yield f"has {variable} in its environment"


def _network_faults(content: Mapping[str, Any]) -> Iterator[str]:
    services = content["services"]
    members: dict[str, set[str]] = {network: set() for network in content["networks"]}
    for name, service in services.items():
        networks = service.get("networks", [])
        if not networks and service.get("network_mode") != "none":
            yield f"{name}: is in the network of all"
        for network in networks:
            members[network].add(name)
    operators = PRIVATE["operator"] - {"authority"}
    expected = {site: {"coordinator", site, f"{site}-totals", f"{site}-votes"} for site in SITES}
    expected["operator"] = {"coordinator", *operators}
    for network, own in members.items():
        if own != expected.get(network):
            yield f"network {network}: joins {', '.join(sorted(own))}"
        if content["networks"][network] != {"internal": True}:
            yield f"network {network}: leads out"


def _mounts(service: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Source, target, and whether it is read-only."""
    for mount in service.get("volumes", []):
        source, target, *rest = mount.split(":")
        yield source, target, rest == ["ro"]


def _site(service: str) -> str:
    """The site that a service is: under the default rules, with totals of shared objects, or with votes."""
    return service.removesuffix("-totals").removesuffix("-votes")


def _labels(service: str) -> str:
    return f"./examples/{'votes/' if service.endswith('-votes') else ''}{_site(service)}.csv"


def job_faults(directory: Path) -> Iterator[str]:
    """What is wrong with the jobs that operators submit."""
    for path in sorted(directory.glob("*.toml")):
        job = ce.Job(**tomllib.loads(path.read_text(encoding="utf-8")))
        if job.name != path.stem or set(job.sites) != set(SITES):
            yield f"{path.name}: is job {job.name} of {', '.join(job.sites)}"


# Images.


def dockerfile_faults(text: str) -> Iterator[str]:
    """What is wrong with a Dockerfile, by rules of our own."""
    stages: dict[str, list[tuple[str, str]]] = {}
    base: dict[str, str] = {}
    stage = ""
    for word, rest in _instructions(text):
        if word == "ARG" and rest.startswith("BASE="):
            if not PINNED.fullmatch(rest):
                yield f"ARG {rest}: is not {BASE}, with or without its digest"
            continue
        if word == "FROM":
            image, _, stage = rest.partition(" AS ")
            if image != "${BASE}" and image not in stages:
                yield f"FROM {image}: is neither ${{BASE}} nor a stage"
            stages[stage], base[stage] = list(stages.get(image, [])), image
            continue
        stages[stage].append((word, rest))
        if word == "ADD":
            yield "ADD: COPY says what it copies"
        if re.search(r"\b(apt-get|apt|apk|curl|wget|sudo)\b", rest):
            yield f"{word} {rest[:40]}: needs more than the base image"
        if word in ("ENV", "ARG") and any(SECRET.search(name) for name in re.findall(r"(\w+)=?", rest)):
            yield f"{word} {rest[:40]}: looks like a secret"
        if word == "COPY" and re.search(r"examples|tests|\.key|\.csv|(^| )\. ", rest):
            yield f"COPY {rest[:40]}: no labels, no keys, nothing as a whole"
    for target in ("coordinator", "client"):
        users = [rest for word, rest in stages.get(target, []) if word == "USER"]
        if not users or users[-1].split(":")[0] in ("root", "0"):
            yield f"{target}: runs as root"
        if not any(word == "ENTRYPOINT" for word, _ in stages.get(target, [])):
            yield f"{target}: is no command"
        if base.get(target) != "runtime":
            yield f"{target}: is made of the stage {base.get(target)}"


def pin_faults(text: str) -> Iterator[str]:
    """What is wrong with a file of versions: each has a version and hashes, so that a build takes no other file."""
    joined = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", text))
    for line in filter(None, map(str.strip, joined.splitlines())):
        version, *hashes = line.split()
        if not re.fullmatch(r"[A-Za-z0-9._-]+==\S+", version):
            yield f"{version}: is not NAME==VERSION"
        if not hashes or not all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", digest) for digest in hashes):
            yield f"{version}: has no hashes (make pin-hashes)"


def _instructions(text: str) -> Iterator[tuple[str, str]]:
    joined = re.sub(r"\\\n", " ", re.sub(r"(?m)^#.*\n", "", text))
    for line in filter(None, map(str.strip, joined.splitlines())):
        word, _, rest = line.partition(" ")
        yield word.upper(), " ".join(rest.split())


def ignore_faults(text: str) -> Iterator[str]:
    """.dockerignore leaves everything out but what is named."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    if lines[:1] != ["*"]:
        yield "does not begin with *"
    known = ("pyproject.toml", "README.md", "LICENSE", "common", "server", "client")
    allowed = {*known, "deploy/constraints.txt", "deploy/build-constraints.txt", "deploy/wheels"}
    for line in lines:
        if line.startswith("!") and line[1:] not in allowed:
            yield f"lets {line[1:]} in"


# Services and metrics.


def unit_faults(text: str) -> Iterator[str]:
    """What a service unit lacks."""
    service = _unit(text)["Service"]
    for key, value in UNIT.items():
        if service.get(key) != value:
            yield f"{key} is not {value or 'empty'}"
    if service.get("User", "root") == "root":
        yield "runs as root"
    if not re.search(r"/ce-(coordinator serve|client run) ", service.get("ExecStart", "")):
        yield "starts no daemon"


def _unit(text: str) -> configparser.ConfigParser:
    parser = configparser.ConfigParser(strict=False, interpolation=None)  # keys may come twice
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read_string(text)
    return parser


def alert_faults(content: Mapping[str, Any]) -> Iterator[str]:
    """Alerts on metrics that nobody counts, or that do not say what to do."""
    declared = {own.name for meter in (CoordinatorMetrics(), SiteMetrics()) for own in meter.registry.declared}
    for group in content["groups"]:
        for rule in group["rules"]:
            for name in re.findall(r"\bce_(?:coordinator|client)_\w+", rule["expr"]):
                if name not in declared:
                    yield f"{rule['alert']}: there is no {name}"
            if set(rule.get("annotations", {})) != {"summary", "action"}:
                yield f"{rule['alert']}: does not say what it is and what to do"


# All of it.


def python_checks() -> Iterator[tuple[str, list[str]]]:
    """Everything that needs nothing but Python: what was checked, and what is wrong with it."""
    yield "docker-compose.yml", list(compose_faults(yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))))
    yield "deploy/compose/jobs", list(job_faults(DEPLOY / "compose" / "jobs"))
    yield "deploy/Dockerfile", list(dockerfile_faults((DEPLOY / "Dockerfile").read_text(encoding="utf-8")))
    for path in sorted(DEPLOY.glob("*constraints.txt")):
        yield str(path.relative_to(ROOT)), list(pin_faults(path.read_text(encoding="utf-8")))
    yield ".dockerignore", list(ignore_faults((ROOT / ".dockerignore").read_text(encoding="utf-8")))
    for path in sorted((DEPLOY / "systemd").glob("*.service")):
        yield str(path.relative_to(ROOT)), list(unit_faults(path.read_text(encoding="utf-8")))
    alerts = DEPLOY / "prometheus" / "alerts.yml"
    yield str(alerts.relative_to(ROOT)), list(alert_faults(yaml.safe_load(alerts.read_text(encoding="utf-8"))))
    for path in sorted(DEPLOY.glob("**/*.yml")) + sorted(DEPLOY.glob("**/*.yaml")):
        list(yaml.safe_load_all(path.read_text(encoding="utf-8")))  # can be read at all


def tool_checks(directory: Path) -> Iterator[tuple[str, list[str]]]:
    """Commands of other tools: a title, and the words."""
    prometheus = DEPLOY / "prometheus"
    yield "scripts", ["sh", "-n", *map(str, sorted((DEPLOY / "compose").glob("*.sh")))]
    yield "scripts", ["shellcheck", *map(str, sorted((DEPLOY / "compose").glob("*.sh")))]
    yield "compose schema", ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", str(COMPOSE)]
    yield "compose", ["docker", "compose", "--file", str(COMPOSE), "--profile", "*", "config", "--quiet"]
    yield "Dockerfile", ["hadolint", str(DEPLOY / "Dockerfile")]
    units = []
    for path in sorted((DEPLOY / "systemd").glob("*.service")):
        # As installed, but for the program, which need not be on this machine.
        unit = directory / path.name
        unit.write_text(re.sub(r"(?m)^ExecStart=\S+", "ExecStart=/bin/true", path.read_text(encoding="utf-8")))
        units.append(str(unit))
    yield "units", ["systemd-analyze", "verify", *units]
    for unit_file in units:
        yield "units", ["systemd-analyze", "security", "--offline=yes", "--threshold=20", "--no-pager", unit_file]
    yield "Prometheus", ["promtool", "check", "config", str(prometheus / "prometheus.yml")]
    yield "alerts", ["promtool", "test", "rules", str(prometheus / "alerts_test.yml")]
    yield "Kubernetes", ["kubernetes-validate", "--strict", "--quiet", str(DEPLOY / "kubernetes" / "coordinator.yaml")]


def main() -> None:
    wrong = False
    for title, faults in python_checks():
        print(f"{'ok' if not faults else 'wrong':8}{title}")
        for fault in faults:
            print(f"        {fault}")
        wrong |= bool(faults)
    with tempfile.TemporaryDirectory() as directory:
        for title, words in tool_checks(Path(directory)):
            wrong |= not _run(title, words)
    sys.exit(1 if wrong else 0)


def _run(title: str, words: list[str]) -> bool:
    beside = Path(sys.executable).with_name(words[0])  # of the same virtual environment
    tool = str(beside) if beside.exists() else shutil.which(words[0])
    named = " ".join(words[:2]) if words[0] in ("systemd-analyze", "promtool", "docker") else words[0]
    if tool is None or (words[0] == "docker" and not _has_compose(tool)):
        print(f"{'skipped':8}{title}: there is no {words[0]}{' compose' * (words[0] == 'docker')} here")
        return True
    done = subprocess.run([tool, *words[1:]], capture_output=True, text=True, cwd=ROOT, check=False)
    print(f"{'wrong' if done.returncode else 'ok':8}{title}, by {named}")
    if done.returncode:
        print(done.stdout + done.stderr)
    return done.returncode == 0


def _has_compose(docker: str) -> bool:
    return subprocess.run([docker, "compose", "version"], capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    main()
