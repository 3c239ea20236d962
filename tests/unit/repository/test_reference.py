"""The pages that say what the code declares say what it declares now."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator
from pathlib import Path

import click
import generate
import pytest
from pages import api, commands, configuration
from pages import errors as errors_page

import ce
from ce import errors
from ce.cli.entry import EXIT_CODES
from ce.identity.denied import DenyList
from ce.identity.peers import Peers
from ce.job import Job
from ce.policy import Policy
from ce.rules import POLICY, RULES

DOCS = Path(__file__).parents[3] / "docs"
CODES = (DOCS / "exit-codes.md").read_text(encoding="utf-8")


@pytest.mark.promise("Pages that say what the code declares are up to date.")
def test_the_pages_are_up_to_date() -> None:
    assert generate.out_of_date() == [], "make docs"


def test_the_check_finds_a_page_that_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pages = generate.written()  # once: it takes seconds
    monkeypatch.setattr(generate, "written", lambda: pages)
    monkeypatch.setattr("sys.argv", ["generate.py", "--check"])
    generate.main()
    assert generate.out_of_date(tmp_path) == list(generate.written())
    generate.write(tmp_path)
    assert generate.out_of_date(tmp_path) == []
    (tmp_path / "metrics.md").write_text("else")
    assert generate.out_of_date(tmp_path) == ["metrics.md"]
    monkeypatch.setattr(generate, "out_of_date", lambda: ["metrics.md"])
    with pytest.raises(SystemExit, match=r"not up to date: metrics\.md"):
        generate.main()


@pytest.mark.promise("Pages that say what the code declares are up to date.")
def test_every_command_and_option_is_on_its_page() -> None:
    text = commands.page()
    for name, group in commands.PROGRAMS.items():
        for path in (name, *(f"{name} {own}" for own in group.commands)):
            section = re.search(rf"(?ms)^##+ {path}$(.*?)(?=^##|\Z)", text)
            assert section is not None, path
            command = group.commands.get(path.removeprefix(name).strip(), group)
            for parameter in command.params:
                if isinstance(parameter, click.Option) and parameter.name not in ("help", "version"):
                    assert parameter.opts[0] in section[1], f"{path} {parameter.opts[0]}"
    assert "### ce-client ledger verify" in text
    examples = re.findall(r"(?m)^(ce|ce-coordinator|ce-client) ", "\n".join(re.findall(r"(?s)```sh\n(.*?)```", text)))
    assert len(examples) > 60


@pytest.mark.promise("Pages that say what the code declares are up to date.")
def test_every_error_is_on_its_page() -> None:
    text = errors_page.page()
    for error in every_error():
        assert f"`{error.__name__}` | {error.exit_code} |" in text


@pytest.mark.promise("Pages that say what the code declares are up to date.")
def test_every_rule_is_on_its_page() -> None:
    text = errors_page.page()
    assert all(f"| `{rule}` |" in text for rule in RULES)
    assert set(POLICY) <= {field.name for field in dataclasses.fields(Policy)}


def test_the_public_names_are_on_their_page() -> None:
    text = api.page()
    for name in ("LabelTable", "Job", "simulate", "Simulation"):
        assert f"### ce.{name}\n" in text
    for name in (*ce.models.__all__, "Estimator"):
        assert (f"### ce.models.{name}\n" in text) == (name != "Estimator")
    for name in ce.metrics.__all__:
        assert f"### ce.metrics.{name}\n" in text
    assert " at 0x" not in text


def test_every_file_has_its_keys() -> None:
    sections = dict(re.findall(r"(?ms)^## (\S+)\n(.*?)(?=^## |\Z)", configuration.page()))
    assert list(sections) == ["coordinator.toml", "denied.txt", "client.toml", "policy.toml", "peers.toml", "job.toml"]
    keys = {file: set(re.findall(r"(?m)^\| `([\w.]+)` \|", text)) for file, text in sections.items()}
    assert {"listen", "limits.streams", "log.level", "CE_COORDINATOR_KEY_PASSPHRASE"} <= keys["coordinator.toml"]
    assert {"name", "labels.file", "log.format", "CE_CLIENT_CONFIG"} <= keys["client.toml"]
    assert keys["policy.toml"] == {field.name for field in dataclasses.fields(Policy)}
    deadlines = {"deadlines.enrol_s", "deadlines.round_s", "deadlines.job_s"}
    assert keys["job.toml"] == {field.name for field in dataclasses.fields(Job)} - {"deadlines"} | deadlines


def test_the_examples_of_pins_and_denied_keys_are_what_they_say(tmp_path: Path) -> None:
    for name, text in (("peers.toml", configuration.PEERS), ("denied.txt", configuration.DENIED)):
        (tmp_path / name).write_text("\n".join(re.findall(r"(?m)^    (.*)$", text)))
    (pin,) = Peers.read(tmp_path / "peers.toml").pins.values()
    assert DenyList(tmp_path / "denied.txt").denies(pin)


def every_error(kind: type[errors.CeError] = errors.CeError) -> Iterator[type[errors.CeError]]:
    yield kind
    for below in kind.__subclasses__():
        yield from every_error(below)


@pytest.mark.promise("Every mistake in a file or a command is a sentence that says what to do, with its exit code.")
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
                names = [re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings]
                before = [names[:at].count(name) for at, name in enumerate(names)]
                anchors = {f"{n}-{b}" if b else n for n, b in zip(names, before, strict=True)}
                assert anchor in anchors, f"{page.name}: {target}#{anchor}"
