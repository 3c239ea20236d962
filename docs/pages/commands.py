"""commands.md: every command and option, from the declarations that parse them, with their examples."""

from __future__ import annotations

import inspect
from collections.abc import Iterator

import click

from ce.cli.entry import CONTEXT
from ce.cli.main import cli as ce
from ce_client.cli.main import cli as client
from ce_coordinator.cli.main import cli as coordinator
from pages.markdown import anchor, code, head, table

INTRODUCTION = """\
Every command has `--help` (`-h`), which says the same as this page; each of the three programs has `--version`. Exit
codes are the same everywhere: [exit-codes.md](exit-codes.md). What is in the files:
[configuration.md](configuration.md).
"""

PROGRAMS = {"ce": ce, "ce-coordinator": coordinator, "ce-client": client}


def page() -> str:
    """The whole page."""
    lines = [head("Commands"), INTRODUCTION]
    for name, group in PROGRAMS.items():
        found = list(_commands(group, name))
        lines += [f"- [`{name}`](#{anchor(name)}): " + ", ".join(f"[{_last(c)}](#{anchor(c)})" for c, _ in found)]
    for name, group in PROGRAMS.items():
        lines += ["", f"## {name}", "", *_described(name, group)]
        for path, command in _commands(group, name):
            lines += ["", f"### {path}", "", *_described(path, command)]
    return "\n".join([*lines, ""])


def _commands(group: click.Group, path: str) -> Iterator[tuple[str, click.Command]]:
    """All commands below a group, in the order of its help, each with its whole name."""
    for name in group.list_commands(click.Context(group)):
        command = group.commands[name]
        yield f"{path} {name}", command
        if isinstance(command, click.Group):
            yield from _commands(command, f"{path} {name}")


def _last(path: str) -> str:
    return path.partition(" ")[2]


def _described(path: str, command: click.Command) -> list[str]:
    # A command remembers the help option that it was first asked for.
    context = click.Context(command, info_name=path, help_option_names=CONTEXT["help_option_names"])
    usage = " ".join(command.collect_usage_pieces(context))
    lines = [*_help(command), "", *code(f"{path} {usage}"), ""]
    rows = [_row(parameter) for parameter in command.params if _is_shown(parameter)]
    lines += table(("", "takes", "default", "meaning"), rows) if rows else ["It has no options."]
    return lines


def _help(command: click.Command) -> list[str]:
    """Paragraphs as they are; what click is told not to wrap, which are the examples, as code."""
    if not command.help:
        raise SystemExit(f"the command {command.name} has no help")
    lines: list[str] = []
    for paragraph in inspect.cleandoc(command.help).split("\n\n"):
        first, *rest = paragraph.splitlines()
        if first == "\b":
            title, *shown = rest
            lines += ["", title, "", *code(inspect.cleandoc("\n".join(["", *shown])), "sh")]
        else:
            lines += ["", first, *rest]
    return lines[1:]


def _is_shown(parameter: click.Parameter) -> bool:
    return parameter.name not in ("help", "version") and not getattr(parameter, "hidden", False)


def _row(parameter: click.Parameter) -> tuple[str, ...]:
    if isinstance(parameter, click.Option):
        names = ", ".join(f"`{name}`" for name in (*parameter.opts, *parameter.secondary_opts))
        takes = "" if parameter.is_flag else _takes(parameter)
        default = "required" if parameter.required else _default(parameter)
        return names, takes, default, parameter.help or ""
    optional = "" if parameter.required else " (optional)"
    name = parameter.human_readable_name + "..." * (parameter.nargs == -1)
    return f"`{name}`", _takes(parameter) + optional, "", ""


def _takes(parameter: click.Parameter) -> str:
    own = parameter.type
    if isinstance(own, click.Choice):
        return ", ".join(map(str, own.choices))
    if isinstance(parameter, click.Option) and parameter.metavar:
        return parameter.metavar
    return {"integer": "a whole number", "integer range": "a whole number", "float": "a number", "text": "a text"}.get(
        own.name, "a path" if isinstance(own, click.Path) else own.name
    )


def _default(option: click.Option) -> str:
    """What `--help` shows as the default; nothing where it shows none."""
    shown = option.get_help_extra(click.Context(click.Command("any"))).get("default", "")
    return f"`{shown}`" if shown and not option.is_flag else ""
