"""api.md: the public Python API, from signatures and docstrings."""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Iterator
from typing import Any

import ce
import ce.audit
import ce.metrics
import ce.testing
from ce.labels import Column
from ce.simulation import Excluded, SiteResult
from pages.markdown import anchor, code, docstring, head, table

INTRODUCTION = """\
The names on this page are public: a change of one is announced in [CHANGELOG.md](../CHANGELOG.md). All other names may
change. Scripts that use them: [examples/](../examples/). Errors: [errors.md](errors.md).
"""

#: Everything that is promised, by heading and by the name that a program uses.
SECTIONS: dict[str, dict[str, Any]] = {
    "Labels": {"ce.LabelTable": ce.LabelTable, "ce.labels.Column": Column},
    "Models": {
        f"ce.models.{name}": getattr(ce.models, name) for name in ("BCE", "BC3E", "Mixture", "Pairs", "estimator_of")
    },
    "Jobs of several sites": {
        "ce.Job": ce.Job,
        "ce.simulate": ce.simulate,
        "ce.Simulation": ce.Simulation,
        "ce.simulation.SiteResult": SiteResult,
        "ce.simulation.Excluded": Excluded,
    },
    "Audit": {
        "ce.audit.audit": ce.audit.audit,
        "ce.audit.Audit": ce.audit.Audit,
        "ce.audit.Finding": ce.audit.Finding,
    },
    "Metrics": {f"ce.metrics.{name}": getattr(ce.metrics, name) for name in ce.metrics.__all__},
    "Testing": {
        f"ce.testing.{name}": getattr(ce.testing, name)
        for name in ("make_sites", "write_labels", "FrameByFrame", "PlayedWorld", "Faults", "random_faults", "Checks")
    },
}
#: Public for other modules of ce, not for its users.
INTERNAL = {
    "steps",
    "resolve_classes",
    "from_definition",
    "do",
    "as_process",
    "patched",
    "sent_up",
    "sent_down",
    "saved",
}
#: What stands before the things of a section.
ABOUT = {"Metrics": ce.metrics, "Audit": ce.audit, "Testing": ce.testing}


def page() -> str:
    """The whole page."""
    lines = [head("Python API"), INTRODUCTION]
    anchors = _anchors()
    for title, things in SECTIONS.items():
        lines.append(f"- {title}: " + ", ".join(f"[`{name}`](#{anchors[name]})" for name in things))
    for title, things in SECTIONS.items():
        lines += ["", f"## {title}"]
        if title in ABOUT:
            lines += ["", *docstring(ABOUT[title])]
        for name, thing in things.items():
            lines += ["", f"### {name}", ""]
            lines += _class(name, thing) if inspect.isclass(thing) else _function(name, thing)
    return "\n".join([*lines, ""])


def _anchors() -> dict[str, str]:
    """Of every name; headings that differ in capitals only are numbered."""
    found: dict[str, str] = {}
    for things in SECTIONS.values():
        for name in things:
            before = sum(anchor(other) == anchor(name) for other in found)
            found[name] = f"{anchor(name)}-{before}" if before else anchor(name)
    return found


def _function(name: str, thing: Any) -> list[str]:
    return [*code(f"{name}{_signature(thing)}", "python"), "", *docstring(thing)]


def _class(name: str, thing: type[Any]) -> list[str]:
    lines = [*code(f"{name}{_signature(thing)}", "python"), "", *_described(thing)]
    if dataclasses.is_dataclass(thing) and (comments := _comments(thing)):
        lines += ["", *table(("field", ""), ((f"`{field}`", said) for field, said in comments.items()))]
    methods = list(_methods(thing))
    if methods:
        lines += ["", *table(("", ""), methods)]
    return lines


def _methods(thing: type[Any]) -> Iterator[tuple[str, str]]:
    """Public methods and properties, those of base classes last; generated methods of data classes are left out."""
    seen: set[str] = set()
    for base in thing.__mro__:
        if not base.__module__.startswith("ce"):
            continue
        for name, member in vars(base).items():
            if name.startswith("_") or name in seen | INTERNAL:
                continue
            seen.add(name)
            bound = getattr(thing, name)
            if isinstance(member, property):
                yield f"`.{name}`", _one_line(member.fget)
            elif callable(bound):
                yield f"`.{name}{_signature(bound, wrap=False)}`", _one_line(bound)


def _one_line(thing: Any) -> str:
    return " ".join(line.strip() for line in docstring(thing) if line)


def _comments(thing: type[Any]) -> dict[str, str]:
    """The comments beside the fields of a data class in its source, and in that of its base classes."""
    source = "\n".join(inspect.getsource(base) for base in thing.__mro__ if dataclasses.is_dataclass(base))
    found = {own.name: re.search(rf"(?m)^    {own.name}: .*?  # (.*)$", source) for own in dataclasses.fields(thing)}
    return {name: match.group(1) for name, match in found.items() if match}


def _described(thing: type[Any]) -> list[str]:
    """A docstring, its lists in numpydoc's form as lists with a title."""
    lines = (inspect.getdoc(thing) or "").splitlines()
    titles = [at for at in range(len(lines) - 1) if set(lines[at + 1]) == {"-"}]
    if not titles:
        return docstring(thing)
    out = lines[: titles[0]]
    for at, line in enumerate(lines[titles[0] :], titles[0]):
        if at in titles:
            out += [f"**{line}**", ""]
        elif line and set(line) != {"-"}:
            names, _, meaning = line.partition(" : ")
            out.append(f"  {line.strip()}" if line.startswith(" ") else f"- `{names}`: {meaning}")
        elif not line:
            out.append("")
    return out


def _signature(thing: Any, *, wrap: bool = True) -> str:
    """The parameters as they are declared; over several lines where one would be too long."""
    signature = inspect.signature(thing)
    parameters = [own for name, own in signature.parameters.items() if name != "self"]
    returns = (
        ""
        if inspect.isclass(thing) or signature.return_annotation is inspect.Signature.empty
        else (f" -> {_type(signature.return_annotation)}")
    )
    words: list[str] = []
    keyword_only = False
    for own in parameters:
        if own.kind is own.KEYWORD_ONLY and not keyword_only:
            words.append("*")
            keyword_only = True
        words.append(_parameter(own))
    line = f"({', '.join(words)}){returns}"
    if not wrap or len(line) < 90:
        return line
    return "(\n" + "".join(f"    {word},\n" for word in words) + f"){returns}"


def _parameter(own: inspect.Parameter) -> str:
    stars = "*" * (own.kind is own.VAR_POSITIONAL) + "**" * (own.kind is own.VAR_KEYWORD)
    text = f"{stars}{own.name}: {_type(own.annotation)}"
    if own.default is own.empty:
        return text
    factory = type(own.default).__name__ == "_HAS_DEFAULT_FACTORY_CLASS"
    return f"{text} = {'...' if factory else repr(own.default)}"


def _type(annotation: Any) -> str:
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
