"""What the README shows runs as it stands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from ce.cli.main import main
from ce.job import Job

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"(?:^    .*\n|^\n(?=    ))+", (ROOT / "README.md").read_text(encoding="utf-8"), re.M)


def dedented(block: str) -> str:
    return "\n".join(line[4:] for line in block.splitlines())


def test_the_python_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    python = [block for block in BLOCKS if "ce." in block and "    ce fit" not in block]
    assert len(python) == 2
    for block in python:
        exec(dedented(block), names)
    assert len(names["result"].sites["north"].labels) == 550


def test_the_commands_of_the_readme_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (block,) = [block for block in BLOCKS if "    ce fit" in block]
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    lines = [line for line in dedented(block).splitlines() if line]
    assert len(lines) == 4
    for line in lines:
        with pytest.raises(SystemExit) as left:
            main(shlex.split(line)[1:])
        assert left.value.code == 0, line


def test_the_job_file_of_the_documentation_is_valid_and_shows_the_defaults(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    block = re.search(r"(?:^    .*\n|^\n(?=    ))+", text.split("## job.toml")[1], re.M)
    assert block is not None
    (tmp_path / "job.toml").write_text(dedented(block.group()), encoding="utf-8")
    job = Job.from_toml(tmp_path / "job.toml")
    assert job == Job(name="customers", clusters=5, sites=("north", "south"))
