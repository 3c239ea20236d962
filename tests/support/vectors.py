"""Known answers and whole jobs of tests/vectors, and the programs that make them."""

from __future__ import annotations

import ast
import importlib
import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

TESTS = Path(__file__).parents[1]
VECTORS, INDEPENDENT = TESTS / "vectors", TESTS / "independent"


def vectors(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((VECTORS / f"{name}.json").read_text(encoding="ascii"))
    return found


def program(name: str) -> ModuleType:
    """A program of tests/vectors, or a module of the independent site; they find each other by their names alone."""
    for folder in (VECTORS, INDEPENDENT):
        if str(folder) not in sys.path:
            sys.path.append(str(folder))
    return importlib.import_module(name)


def imported_by(path: Path) -> set[str]:
    """First parts of the names of all that a file imports."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(str(node.module).split(".")[0])
    return found
