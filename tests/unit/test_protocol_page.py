"""docs/protocol.md says of every step what ce.protocol.messages.steps says: the table of steps is made from it."""

from __future__ import annotations

from pathlib import Path

from ce.protocol.messages.sealed_steps import SEALED_TABLE
from ce.protocol.messages.steps import AFTER_THE_LAST, BEGINS_ITERATION, SHARES, TABLE, VOTES_ONLY, Asked, StepRule
from ce.transport.frames import PROTOCOL

PAGE = Path(__file__).parents[2] / "docs" / "protocol.md"
_FOLLOWS = {BEGINS_ITERATION: "iteration", AFTER_THE_LAST: "end", VOTES_ONLY: "VOTES (bc3e)"}
_NAMES = {"block": "block/b/{}", "claims": "block/b/claims/c", "columns": "columns/g/{}", "global": "global/{}"}


def _array(asked: Asked) -> str:
    shape = ", ".join(str(side) for side in asked.shape) + ", ..." * (asked.what == SHARES)
    return f"{'bc3e: ' * asked.votes_only}`{_NAMES[asked.scope].format(asked.what)}` ({shape})"


def _row(step: str, rule: StepRule) -> str:
    up = "; ".join(map(_array, rule.asks)) or ("boxes, see there" if step in ("keys", "decide") else "")
    follows = ", ".join(_FOLLOWS.get(entry, entry.upper()) for entry in rule.follows)
    return f"| {step.upper()}{' (blind)' * rule.blind_only} | {rule.about} | {up} | {follows} |"


def table_of_steps() -> str:
    rows = [_row(step, rule) for step, rule in TABLE.items()]
    return "\n".join(["| step | what for | up | may be followed by |", "| --- | --- | --- | --- |", *rows])


def test_the_page_has_the_table_of_steps() -> None:
    assert table_of_steps() in PAGE.read_text(encoding="utf-8"), table_of_steps()


def table_of_sealed_steps() -> str:
    rows = [
        f"| {step.upper()} | {rule.brings} | {rule.about} | {', '.join(entry.upper() for entry in rule.follows)} |"
        for step, rule in SEALED_TABLE.items()
    ]
    head = ["| step | the task brings | a site does, and answers | may be followed by |", "| --- | --- | --- | --- |"]
    return "\n".join([*head, *rows])


def test_the_page_has_the_table_of_sealed_steps() -> None:
    assert table_of_sealed_steps() in PAGE.read_text(encoding="utf-8"), table_of_sealed_steps()


def test_the_page_names_the_version() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert f"This is version {PROTOCOL}." in page
    assert f"The version is one number, here {PROTOCOL}." in page
