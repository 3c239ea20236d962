"""The pages that list keys and exit codes are those of the code."""

from __future__ import annotations

import dataclasses
import importlib.util
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from ce import errors
from ce.cli.entry import EXIT_CODES
from ce.identity.denied import DenyList
from ce.identity.peers import Peers
from ce.job import Job
from ce.policy import Policy

DOCS = Path(__file__).parents[2] / "docs"
#: Scripts that write pages from code.
PAGES = ("make_reference", "make_metrics")
CODES = (DOCS / "exit-codes.md").read_text(encoding="utf-8")


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


@pytest.fixture(scope="module", name="script")
def _script() -> ModuleType:
    return load("make_reference")


@pytest.mark.parametrize("name", PAGES)
def test_the_pages_are_up_to_date(name: str) -> None:
    script = load(name)
    assert script.PAGE.read_text(encoding="utf-8") == script.page(), f"python docs/{name}.py"


@pytest.mark.parametrize("name", PAGES)
def test_the_check_of_a_page_finds_one_that_is_not(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = load(name)
    monkeypatch.setattr(script, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr("sys.argv", [f"{name}.py", "--check"])
    with pytest.raises(SystemExit, match="is not up to date"):
        script.main()
    monkeypatch.setattr("sys.argv", [f"{name}.py"])
    script.main()
    monkeypatch.setattr("sys.argv", [f"{name}.py", "--check"])
    script.main()
    (tmp_path / "page.md").write_text("else")
    with pytest.raises(SystemExit, match="is not up to date"):
        script.main()


def test_every_file_has_its_keys(script: ModuleType) -> None:
    sections = dict(re.findall(r"(?ms)^## (\S+)\n(.*?)(?=^## |\Z)", script.page()))
    assert list(sections) == ["coordinator.toml", "denied.txt", "client.toml", "policy.toml", "peers.toml", "job.toml"]
    keys = {file: set(re.findall(r"(?m)^\| `([\w.]+)` \|", text)) for file, text in sections.items()}
    assert {"listen", "limits.streams", "log.level", "CE_COORDINATOR_KEY_PASSPHRASE"} <= keys["coordinator.toml"]
    assert {"name", "labels.file", "log.format", "CE_CLIENT_CONFIG"} <= keys["client.toml"]
    assert keys["policy.toml"] == {field.name for field in dataclasses.fields(Policy)}
    deadlines = {"deadlines.enrol_s", "deadlines.round_s", "deadlines.job_s"}
    assert keys["job.toml"] == {field.name for field in dataclasses.fields(Job)} - {"deadlines"} | deadlines


def test_the_examples_of_pins_and_denied_keys_are_what_they_say(script: ModuleType, tmp_path: Path) -> None:
    for name, text in (("peers.toml", script.PEERS), ("denied.txt", script.DENIED)):
        (tmp_path / name).write_text("\n".join(re.findall(r"(?m)^    (.*)$", text)))
    (pin,) = Peers.read(tmp_path / "peers.toml").pins.values()
    assert DenyList(tmp_path / "denied.txt").denies(pin)


def every_error(kind: type[errors.CeError] = errors.CeError) -> Iterator[type[errors.CeError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from every_error(below)


def test_every_exit_code_has_a_row_and_a_section() -> None:
    rows = [int(code) for code in re.findall(r"(?m)^\| \[(\d+)\]", CODES)]
    sections = [int(code) for code in re.findall(r"(?m)^## (\d+): ", CODES)]
    assert rows == sections == [0, 1, 2, 3, 4, 5, 6, 7, 8, 130]
    assert {error.exit_code for error in every_error()} | {0, 2, 130} == set(rows)
    assert {int(code) for code in re.findall(r"(\d+) [a-z]", EXIT_CODES)} == set(rows) - {1}


def test_the_links_of_the_pages_lead_somewhere() -> None:
    for page in DOCS.glob("*.md"):
        text = page.read_text(encoding="utf-8")
        for target, anchor in re.findall(r"\]\(([\w./-]*)(?:#([\w-]+))?\)", text):
            found = (page.parent / target) if target else page
            assert found.exists(), f"{page.name}: {target}"
            if anchor:
                headings = re.findall(r"(?m)^#+ (.*)$", found.read_text(encoding="utf-8"))
                anchors = {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}
                assert anchor in anchors, f"{page.name}: {target}#{anchor}"
