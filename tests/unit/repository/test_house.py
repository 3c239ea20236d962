"""The rules of the house: names of modules, sizes of folders and classes, names of arrays, complete layers."""

from __future__ import annotations

import ast
import re
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
#: What the product is made of.
SOURCES = ("common/ce", "server/ce_coordinator", "client/ce_client")
#: Nouns that end like a gerund.
NOUNS = {"recording", "scoring", "testing", "ring"}
MOST_MODULES, LONGEST_CLASS, MOST_ATTRIBUTES = 14, 250, 20
#: Files that people read.
TEXTS = {".py", ".md", ".toml", ".yml", ".yaml", ".sh", ".proto"}
#: Rooms with one module per command or per attack.
LARGE_ROOMS = {"cli", "attacks"}


def modules(*roots: str) -> Iterator[Path]:
    for root in roots:
        yield from (path for path in sorted((ROOT / root).rglob("*.py")) if "_pb2" not in path.name)


def test_no_module_is_named_by_a_gerund() -> None:
    found = [path.stem for path in modules(*SOURCES, "tests", "benchmarks", "docs", "examples", "deploy")]
    words = {stem: stem.removeprefix("test_") for stem in found}
    gerunds = {stem for stem, name in words.items() if re.fullmatch(r"[a-z]+ing", name) and name not in NOUNS}
    assert not gerunds


def test_folders_are_small() -> None:
    sizes = Counter(path.parent for path in modules(*SOURCES) if path.name != "__init__.py")
    assert {folder: n for folder, n in sizes.items() if n > MOST_MODULES and folder.name not in LARGE_ROOMS} == {}


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    for path in modules("common/ce/protocol", "server", "client"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                yield f"{path.relative_to(ROOT)}:{node.name}", node


def attributes(node: ast.ClassDef) -> set[str]:
    """Names that the class or its methods assign on the instance."""
    found = {
        item.target.id for item in node.body if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
    }
    for item in ast.walk(node):
        targets = item.targets if isinstance(item, ast.Assign) else [getattr(item, "target", None)]
        for target in targets:
            for leaf in target.elts if isinstance(target, ast.Tuple) else [target]:
                if isinstance(leaf, ast.Attribute) and isinstance(leaf.value, ast.Name) and leaf.value.id == "self":
                    found.add(leaf.attr)
    return found


def test_classes_are_small() -> None:
    lengths = {name: (node.end_lineno or 0) - node.lineno + 1 for name, node in classes()}
    assert {name: lines for name, lines in lengths.items() if lines > LONGEST_CLASS} == {}
    counted = {name: len(attributes(node)) for name, node in classes()}
    assert {name: n for name, n in counted.items() if n > MOST_ATTRIBUTES} == {}


@pytest.mark.parametrize("prefix", ["block/", "columns/", "global/", "box/"])
def test_names_of_arrays_are_built_and_parsed_in_one_module(prefix: str) -> None:
    found = set()
    for path in modules(*SOURCES):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        documented = {
            id(node.body[0].value)
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            text = isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in documented
            if text and prefix in node.value:  # type: ignore[attr-defined, operator]
                found.add(str(path.relative_to(ROOT)))
    assert found <= {"common/ce/protocol/messages/array_names.py"}


def contracts() -> list[dict[str, Any]]:
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    found: list[dict[str, Any]] = configuration["tool"]["importlinter"]["contracts"]
    return found


def test_the_layers_name_every_package_and_module_of_the_library() -> None:
    [layers] = [contract["layers"] for contract in contracts() if "ce.cli" in str(contract.get("layers"))]
    named = {name.strip(" ()") for layer in layers for name in re.split(r"[|:]", layer)}
    here = ROOT / "common/ce"
    parts = {path.stem for path in here.glob("*.py")} | {path.parent.name for path in here.glob("*/__init__.py")}
    assert {f"ce.{part}" for part in parts - {"__init__"}} == named


def test_the_brain_imports_neither_store_nor_files() -> None:
    """import-linter checks it; here that the contract is there."""
    forbidden = {
        module
        for contract in contracts()
        if contract["type"] == "forbidden" and "ce_coordinator.core" in contract["source_modules"]
        for module in contract["forbidden_modules"]
    }
    assert forbidden >= {"ce_coordinator.store", "ce_coordinator.service", "sqlite3", "pathlib", "os"}


def test_no_path_of_one_machine_is_in_the_repository() -> None:
    where = re.compile(r"(?<![\w./])/(work|root|home/\w+)/")
    folders = ("common", "server", "client", "proto", "tests", "docs", "deploy", "examples", "benchmarks")
    texts = [path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in TEXTS]
    texts += [path for path in ROOT.iterdir() if path.suffix in TEXTS]
    here = Path(__file__)
    assert [str(path) for path in texts if path != here and where.search(path.read_text(encoding="utf-8"))] == []
