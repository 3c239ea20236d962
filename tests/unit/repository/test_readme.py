"""What the README shows runs as it stands."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from ce.job import Job

ROOT = Path(__file__).parents[3]


def test_the_python_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {}
    python = re.findall(r"(?s)```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"))
    assert len(python) == 2
    for block in python:
        exec(block, names)
    assert len(names["result"].sites["north"].labels) == 1650


def test_the_job_file_of_the_documentation_is_valid_and_shows_the_defaults(tmp_path: Path) -> None:
    text = (ROOT / "docs" / "formats.md").read_text(encoding="utf-8")
    block = re.search(r"(?s)```toml\n(.*?)```", text.split("## job.toml")[1])
    assert block is not None
    (tmp_path / "job.toml").write_text(block[1], encoding="utf-8")
    job = Job.from_toml(tmp_path / "job.toml")
    assert job == Job(name="customers", clusters=5, sites=("north", "south"))
