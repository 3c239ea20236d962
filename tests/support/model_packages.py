"""Packages that offer models, as an installer leaves them on a path: a folder with a dist-info beside the modules."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

import pytest

from ce.declarations.registry import GROUP, look_again

#: The package that docs/adding-a-model.md shows.
EXAMPLE = Path(__file__).parents[1] / "models_example"


def write_package(
    directory: Path, name: str, entry_points: Mapping[str, str], modules: Mapping[str, str] | None = None
) -> None:
    """An installed package: what it offers in the group `ce.models`, and its modules' text by file name."""
    information = directory / f"{name.replace('-', '_')}-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    lines = [f"[{GROUP}]", *(f"{model} = {value}" for model, value in entry_points.items())]
    (information / "entry_points.txt").write_text("\n".join([*lines, ""]))
    for file, text in (modules or {}).items():
        (directory / file).write_text(text)


def install_example(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The example, with the entry points of its pyproject.toml, for this process and those that it starts."""
    project = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]
    write_package(directory, project["name"], project["entry-points"][GROUP])
    (directory / "hard_mixture").symlink_to(EXAMPLE / "hard_mixture", target_is_directory=True)
    use(directory, monkeypatch)


def use(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put a folder of packages on the path of this process and of those that it starts."""
    monkeypatch.syspath_prepend(directory)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(directory), os.environ.get("PYTHONPATH", "")]))
    look_again()
