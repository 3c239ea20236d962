"""What is in deploy/ is as it should be, and the checks of it find what is not."""

from __future__ import annotations

import copy
import importlib.util
import re
from collections.abc import Callable
from importlib.metadata import requires
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement

DEPLOY = Path(__file__).parents[3] / "deploy"


@pytest.fixture(scope="module", name="script")
def _script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("check_deploy", DEPLOY / "check.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


def test_all_is_as_it_should_be(script: ModuleType) -> None:
    assert [(title, faults) for title, faults in script.python_checks() if faults] == []


Spoil = Callable[[Any], object]
COMPOSE: dict[str, Spoil] = {
    "coordinator: read_only": lambda c: c["services"]["coordinator"].pop("read_only"),
    "north: cap_drop": lambda c: c["services"]["north"].update(cap_drop=["NET_RAW"]),
    "north: has cap_add": lambda c: c["services"]["north"].update(cap_add=["NET_ADMIN"]),
    "north: ulimits": lambda c: c["services"]["north"].update(ulimits={"core": -1}),
    "west-keys: has no mem_limit": lambda c: c["services"]["west-keys"].pop("mem_limit"),
    "east: has CE_CLIENT_KEY_PASSPHRASE": lambda c: c["services"]["east"].update(
        environment={"CE_CLIENT_KEY_PASSPHRASE": "x"}
    ),
    "south: sees the volume north": lambda c: c["services"]["south"]["volumes"].append("north:/other:ro"),
    "coordinator: sees the volume authority": lambda c: c["services"]["coordinator"]["volumes"].append(
        "authority:/a:ro"
    ),
    "coordinator: sees ./examples/north.csv": lambda c: c["services"]["coordinator"]["volumes"].append(
        "./examples/north.csv:/x:ro"
    ),
    "north: sees ./examples/south.csv": lambda c: c["services"]["north"]["volumes"].append(
        "./examples/south.csv:/x.csv:ro"
    ),
    "north: ./examples/north.csv can be written to": lambda c: c["services"]["north"].update(
        volumes=["./examples/north.csv:/labels.csv"]
    ),
    "north-pins: can write to the volume signed": lambda c: c["services"]["north-pins"].update(
        volumes=["signed:/exchange/signed"]
    ),
    "network north: joins coordinator, north, north-totals, north-votes, s": lambda c: c["services"]["south"].update(
        networks=["south", "north"]
    ),
    "west: has other rules": lambda c: c["services"]["west"]["environment"].update(CE_POLICY_SHARED_OBJECTS="totals"),
    "network east: leads out": lambda c: c["networks"].update(east=None),
    "north-keys: is in the network of all": lambda c: c["services"]["north-keys"].pop("network_mode"),
}


@pytest.mark.parametrize("fault", COMPOSE)
def test_faults_of_a_compose_file_are_found(script: ModuleType, fault: str) -> None:
    content = yaml.safe_load(script.COMPOSE.read_text(encoding="utf-8"))
    assert list(script.compose_faults(content)) == []
    content = copy.deepcopy(content)  # anchors are shared
    COMPOSE[fault](content)
    assert any(found.startswith(fault) for found in script.compose_faults(content)), list(
        script.compose_faults(content)
    )


DOCKERFILE = {
    "runs as root": ("USER 10001:10001\n", ""),
    "needs more than the base image": ("WORKDIR /srv/ce\n", "RUN apt-get install -y vim\n"),
    "is neither": ("FROM ${BASE} AS runtime", "FROM somebody/python AS runtime"),
    "is not python": ("ARG BASE=python:3.11-slim", "ARG BASE=somebody/python"),
    "looks like a secret": ("STOPSIGNAL SIGTERM\n", "ENV CE_CLIENT_KEY_PASSPHRASE=x\n"),
    "no labels, no keys": ("STOPSIGNAL SIGTERM\n", "COPY examples/ /examples/\n"),
    "nothing as a whole": ("STOPSIGNAL SIGTERM\n", "COPY . /\n"),
    "made of the stage build": ("FROM runtime AS client", "FROM build AS client"),
}


@pytest.mark.parametrize("fault", DOCKERFILE)
def test_faults_of_a_dockerfile_are_found(script: ModuleType, fault: str) -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    before, after = DOCKERFILE[fault]
    assert before in text
    assert any(fault in found for found in script.dockerfile_faults(text.replace(before, after)))


def test_faults_of_units_alerts_and_contexts_are_found(script: ModuleType) -> None:
    unit = (DEPLOY / "systemd" / "ce-client.service").read_text(encoding="utf-8")
    assert list(script.unit_faults(unit.replace("NoNewPrivileges=yes", ""))) == ["NoNewPrivileges is not yes"]
    assert list(script.unit_faults(unit.replace("User=ce-client", "User=root"))) == ["runs as root"]
    assert list(script.unit_faults(unit.replace("LimitCORE=0", ""))) == ["LimitCORE is not 0"]
    alerts = {"groups": [{"rules": [{"alert": "A", "expr": "ce_client_nothing > 0"}]}]}
    assert [fault.split(":")[1] for fault in script.alert_faults(alerts)] == [
        " there is no ce_client_nothing",
        " does not say what it is and what to do",
    ]
    assert list(script.ignore_faults("common\n")) == ["does not begin with *"]
    assert list(script.ignore_faults("*\n!examples\n")) == ["lets examples in"]


def test_a_base_image_may_be_given_by_its_digest(script: ModuleType) -> None:
    text = (DEPLOY / "Dockerfile").read_text(encoding="utf-8")
    pinned = re.sub(r"(?m)^ARG BASE=.*$", f"ARG BASE=python:3.11-slim@sha256:{'0' * 64}", text)
    assert list(script.dockerfile_faults(pinned)) == []


@pytest.mark.parametrize("file", ["constraints.txt", "build-constraints.txt"])
def test_every_package_of_an_image_has_hashes(script: ModuleType, file: str) -> None:
    text = (DEPLOY / file).read_text(encoding="utf-8")
    assert list(script.pin_faults(text)) == []
    assert "has no hashes" in next(script.pin_faults(text + "another==1.0\n"))
    assert "is not NAME==VERSION" in next(script.pin_faults(text + "another --hash=sha256:" + "0" * 64))


def test_the_versions_of_an_image_are_those_that_the_product_needs() -> None:
    """`--no-deps` installs what is listed and nothing else: all that ce needs has to be listed."""
    named = re.findall(r"(?m)^([a-z0-9-]+)==", (DEPLOY / "constraints.txt").read_text(encoding="utf-8"))
    needed, todo = set(), ["ce"]
    while todo:
        for requirement in map(Requirement, requires(todo.pop()) or ()):
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            if (requirement.marker is None or requirement.marker.evaluate({"extra": ""})) and name not in needed:
                needed.add(name)
                todo.append(name)
    assert needed <= set(named)
