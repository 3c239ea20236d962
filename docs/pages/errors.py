"""errors.md: every typed error and every rule, from the classes, the table of gRPC statuses and the list of rules."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import fields

import ce.service.checkpoints  # noqa: F401  # errors are declared here, too
import ce_coordinator.store.interface  # noqa: F401
from ce.errors import CeError
from ce.policy import Policy
from ce.rules import OF_COMMANDS, POLICY, RULES
from ce.transport.grpc_errors import CODES
from pages.markdown import head, table

INTRODUCTION = """\
Every error that ce raises on purpose is a `ce.errors.CeError`. Its message is one sentence that says what to do next
and never contains a label, an object id or a key. A command ends with the error's exit code
([exit-codes.md](exit-codes.md) has examples). Between the daemons, and to an operator's own program, an error is sent
as a gRPC status: the sentence in the details, the class in the trailing metadata `ce-error`, the rule of a refusal in
`ce-rule`. Any other exception is a defect: exit code 1, or the status INTERNAL without details.
"""

RULES_INTRODUCTION = """\
A refusal names its rule: `(rule: NAME)` ends the sentence, `Refused.rule` holds it, and both daemons count by it
([metrics.md](metrics.md)).
"""

NEXT = "Next: "


def page() -> str:
    """The whole page."""
    others = {name: rule for name, rule in (RULES | OF_COMMANDS).items() if name not in POLICY}
    return "\n".join(
        [
            head("Errors"),
            INTRODUCTION,
            "## Errors by class",
            "",
            "A class is indented below its base class: catching the base class catches it, too.",
            "",
            *table(("error", "exit code", "gRPC status", "meaning", "what to do"), _rows()),
            "",
            "## Rules",
            "",
            RULES_INTRODUCTION,
            "### Rules of a site's policy",
            "",
            "Keys of `policy.toml` ([configuration.md](configuration.md#policytoml)), which the site checks before it",
            "does what the coordinator asks.",
            "",
            *table(
                ("rule", "default", "refuses because", "what to do"),
                ((f"`{name}`", _default(name), rule.says, rule.remedy) for name, rule in POLICY.items()),
            ),
            "",
            "### Rules of the protocol, and limits",
            "",
            *table(
                ("rule", "refuses because", "what to do"),
                ((f"`{name}`", rule.says, rule.remedy) for name, rule in others.items()),
            ),
            "",
        ]
    )


def _rows() -> Iterator[tuple[str, ...]]:
    for depth, kind in _kinds(CeError):
        meaning, remedy = _said(kind)
        status = next((CODES[base].name for base in kind.__mro__ if base in CODES), "")
        yield f"{'&emsp;' * depth}`{kind.__name__}`", str(kind.exit_code), status, meaning, remedy


_PACKAGES = ("ce", "ce_coordinator", "ce_client")


def _kinds(kind: type[CeError], depth: int = 0) -> Iterator[tuple[int, type[CeError]]]:
    """An error and all kinds of it, as the code of the product declares them."""
    yield depth, kind
    ours = [own for own in kind.__subclasses__() if own.__module__.partition(".")[0] in _PACKAGES]
    # By where they are declared: the order of __subclasses__ is that in which modules happen to be imported.
    for below in sorted(ours, key=lambda own: (own.__module__, inspect.getsourcelines(own)[1])):
        yield from _kinds(below, depth + 1)


def _said(kind: type[CeError]) -> tuple[str, str]:
    """What an error means, and what to do next: the first and the last paragraph of its docstring."""
    paragraphs = [" ".join(own.split()) for own in (inspect.getdoc(kind) or "").split("\n\n")]
    if len(paragraphs) < 2 or not paragraphs[-1].startswith(NEXT):
        raise SystemExit(f"{kind.__name__}: its docstring does not end with what to do next")
    return " ".join(paragraphs[:-1]), paragraphs[-1].removeprefix(NEXT).rstrip(".")


def _default(rule: str) -> str:
    (own,) = (field for field in fields(Policy) if field.name == rule)
    value = own.default
    if isinstance(value, tuple):
        return ", ".join(f"`{one}`" for one in value) or "any"
    return f"`{str(value).lower() if isinstance(value, bool) else value}`"
