"""The bill of materials lists what runs and nothing else, always alike; an audit without a network fails nobody."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]


def _load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "deploy" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module", name="sbom")
def _sbom() -> ModuleType:
    return _load("sbom")


@pytest.fixture(name="audit")
def _audit(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(ROOT / "deploy"))
    yield _load("audit")
    sys.modules.pop("sbom", None)


def test_the_bill_lists_what_ce_needs_to_run_and_nothing_else(sbom: ModuleType) -> None:
    bill = sbom.bill()
    assert (bill["bomFormat"], bill["specVersion"], bill["version"]) == ("CycloneDX", "1.5", 1)
    names = [own["name"] for own in bill["components"]]
    assert names == sorted(set(names))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {sbom.normal(text.partition(">")[0].partition("=")[0]) for text in project["dependencies"]}
    assert asked <= set(names)
    assert {"cffi", "markdown-it-py"} <= set(names)  # what is needed by those
    assert not {"ce", "pytest", "ruff", "hypothesis", "pyarrow", "grpcio-tools", "pip"} & set(names)
    assert bill["metadata"]["component"]["name"] == "ce"
    with_parquet = {own["name"] for own in sbom.bill(extras=["parquet"])["components"]}
    assert with_parquet - set(names) == {"pyarrow"}


def test_every_entry_is_whole_and_every_reference_leads_somewhere(sbom: ModuleType) -> None:
    bill = sbom.bill()
    entries = [bill["metadata"]["component"], *bill["components"]]
    refs = {own["bom-ref"] for own in entries}
    assert len(refs) == len(entries)
    for own in entries:
        assert own["purl"] == f"pkg:pypi/{own['name']}@{own['version']}"
        assert len(own["licenses"]) == 1
    assert {own["ref"] for own in bill["dependencies"]} == refs
    assert {needed for own in bill["dependencies"] for needed in own["dependsOn"]} | {
        bill["metadata"]["component"]["bom-ref"]
    } == refs


def test_the_same_environment_gives_the_same_bytes_without_a_network() -> None:
    command = [sys.executable, str(ROOT / "deploy" / "sbom.py")]
    outputs = [
        subprocess.run(command, capture_output=True, check=True, env={"PYTHONHASHSEED": seed}).stdout
        for seed in ("1", "2")
    ]
    assert outputs[0] == outputs[1]
    assert json.loads(outputs[0])["serialNumber"].startswith("urn:uuid:")


def test_what_is_not_installed_is_said(sbom: ModuleType) -> None:
    with pytest.raises(SystemExit, match="no-such-thing is not installed"):
        sbom.bill("no.such_thing")


def _answered(stdout: str = "", stderr: str = "") -> Any:
    return lambda *_, **__: subprocess.CompletedProcess([], 1, stdout, stderr)


@pytest.mark.parametrize(
    ("run", "code", "says"),
    [
        (_answered(stderr="/usr/bin/python: No module named pip_audit\n"), 0, "pip-audit is not installed"),
        (_answered(stderr="ERROR: Connection refused\n"), 0, "cannot be reached (ERROR: Connection refused)"),
        (_answered(), 0, "cannot be reached (no reason given)"),
        (_answered('{"dependencies": [{"name": "a", "version": "1", "vulns": []}]}'), 0, "1 distributions audited, 0"),
        (
            _answered('{"dependencies": [{"name": "a", "version": "1", "vulns": [{"id": "PYSEC-1"}]}]}'),
            1,
            "a 1: PYSEC-1\n1 distributions audited, 1 known",
        ),
    ],
)
def test_an_audit_fails_only_for_what_is_known(
    audit: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    run: Any,
    code: int,
    says: str,
) -> None:
    monkeypatch.setattr(audit.subprocess, "run", run)
    assert audit.main() == code
    assert says in capsys.readouterr().out


def test_a_database_that_does_not_answer_is_not_waited_for_for_ever(
    audit: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise subprocess.TimeoutExpired("pip-audit", 1)

    monkeypatch.setattr(audit.subprocess, "run", never)
    assert audit.main() == 0
    assert "did not answer in time" in capsys.readouterr().out
