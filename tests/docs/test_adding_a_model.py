"""docs/adding-a-model.md shows the files of the example, byte for byte, and all that a declaration can say."""

from __future__ import annotations

import dataclasses

from support.model_packages import EXAMPLE
from support.pages import ROOT, blocks

from ce.declarations import ModelDeclaration

TEXT = (ROOT / "docs" / "adding-a-model.md").read_text(encoding="utf-8")
BLOCKS = blocks(TEXT, "docs/adding-a-model.md")


def test_the_code_of_the_page_is_the_code_of_the_example() -> None:
    shown = {block.text.strip() for block in BLOCKS if block.language in ("python", "toml")}
    files = [path for path in EXAMPLE.rglob("*") if path.suffix in (".py", ".toml")]
    assert shown == {path.read_text(encoding="utf-8").strip() for path in files}
    listed = next(block.text for block in BLOCKS if block.language == "text")
    assert sorted(listed.split()) == sorted(path.relative_to(EXAMPLE).as_posix() for path in files)


def test_every_field_of_a_declaration_is_explained() -> None:
    for field in dataclasses.fields(ModelDeclaration):
        assert f"`{field.name}`" in TEXT, field.name
