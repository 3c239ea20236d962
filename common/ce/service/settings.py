"""The settings of a daemon: declared once, then read, sampled and documented from that one declaration.

    @dataclass(frozen=True, kw_only=True)
    class Limits:
        '''What the coordinator accepts.'''

        jobs: int = setting(4, "Jobs that run at the same time, 1 to 100.")

    @dataclass(frozen=True, kw_only=True)
    class CoordinatorSettings:
        listen: str = setting("0.0.0.0:8443", "Address and port that sites connect to.")
        certificate: Path = setting(REQUIRED, "The coordinator's certificate, PEM.")
        limits: Limits = field(default_factory=Limits)  # the table [limits]

A value comes from the environment (CE_COORDINATOR_LIMITS_JOBS), else from the file, else from the declaration. Ranges
are checked in `__post_init__`, which raises a ConfigError that names the key ("limits.jobs is from 1 to 100"). A path
is relative to the directory of the file, also if it comes from the environment or the declaration.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import sys
import textwrap
import tomllib
import types
import typing
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeVar, Union

from ce.errors import ConfigError

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

T = TypeVar("T")
Settings = TypeVar("Settings", bound="DataclassInstance")

#: Marks a setting without a default.
REQUIRED: Any = dataclasses.MISSING
#: Longest line of a comment in a sample, in characters.
COMMENT_WIDTH = 100


def setting(default: T, comment: str, *, secret: bool = False) -> T:
    """Declare a key. The comment says its meaning, unit and range; a secret is not in the repr."""
    metadata = {"comment": " ".join(comment.split()), "secret": secret, "default": default}
    declared: Any
    if isinstance(default, dict):
        declared = dataclasses.field(default_factory=default.copy, repr=not secret, metadata=metadata)
    else:
        declared = dataclasses.field(default=default, repr=not secret, metadata=metadata)
    return typing.cast(T, declared)


def check_address(key: str, address: str, *, least_port: int = 1) -> None:
    """Raises ConfigError, which names the key, unless `address` is host:port. An IPv6 host must be in brackets."""
    host, _, port = address.rpartition(":")
    bare = host.removeprefix("[").removesuffix("]") if host.startswith("[") and host.endswith("]") else host
    is_host = bare != "" and (":" not in bare or bare != host) and not any(c.isspace() or c in "/[]" for c in bare)
    is_port = port.isascii() and port.isdecimal() and len(port) <= 5 and least_port <= int(port) <= 65535
    if not is_host or not is_port:
        raise ConfigError(f"{key} is host:port, like hub.example.org:8443")


class KeyReference(NamedTuple):
    """One row of the documentation's table of settings."""

    key: str
    type: str
    default: str
    variable: str
    comment: str


def read_settings(
    cls: type[Settings],
    path: Path,
    *,
    env_prefix: str,
    environ: Mapping[str, str] = os.environ,
    also: Collection[str] = (),
) -> Settings:
    """Read a settings file; variables of the environment override it.

    `also` names variables that begin with the prefix and are no setting, such as CE_COORDINATOR_CONFIG.
    """
    keys = list(_keys(cls))
    written = _read_toml(path, keys)
    overridden = _read_environment(keys, env_prefix, environ, also)
    directory = path.absolute().parent
    values: dict[str, dict[str, Any]] = {table: {} for table in ("", *_tables(cls))}
    for key in keys:
        if key.dotted in overridden:
            value = overridden[key.dotted]
        elif key.dotted in written:
            value = written[key.dotted]
        elif key.default is REQUIRED:
            variable = key.variable(env_prefix)
            raise ConfigError(f"{path}: {key.dotted} is missing: add it there, or set {variable}")
        else:
            value = key.default
        # None is a default, or an optional value that an empty variable unsets.
        values[key.table][key.name] = None if value is None else key.kind.build(value, directory)
    source = str(path)
    if overridden:
        source += f" (with {', '.join(key.variable(env_prefix) for key in keys if key.dotted in overridden)})"
    try:
        for table, nested in _tables(cls).items():
            values[""][table] = nested(**values[table])
        return cls(**values[""])
    except ConfigError as error:
        raise ConfigError(f"{source}: {error}") from error


def settings_of(cls: type[Settings], given: Mapping[str, Any]) -> Settings:
    """Settings from keys that a program gives instead of a file; a key of a table is written with a dot."""
    keys = {key.dotted: key for key in _keys(cls)}
    values: dict[str, dict[str, Any]] = {table: {} for table in ("", *_tables(cls))}
    for name, value in given.items():
        if name not in keys:
            raise ConfigError(f"unknown key {name}{_hint(str(name), keys)}")
        key, written = keys[name], list(value) if isinstance(value, tuple) else value
        values[key.table][key.name] = key.kind.build(_check(key, written, name), Path())
    for key in keys.values():
        if key.default is REQUIRED and key.name not in values[key.table]:
            raise ConfigError(f"{key.dotted} is missing")
    for table, nested in _tables(cls).items():
        values[""][table] = nested(**values[table])
    return cls(**values[""])


def sample(cls: type[DataclassInstance], heading: str, /, **given: Any) -> str:
    """A settings file in which every key appears with its comment.

    Keys with a default are commented out. Required keys need a value in `given`, where a key of a table is written
    with a dot: sample(cls, "...", **{"tls.key": "key.pem"}).
    """
    keys = list(_keys(cls))
    if unknown := set(given) - {key.dotted for key in keys}:
        raise TypeError(f"{cls.__name__} has no setting {', '.join(sorted(unknown))}")
    tables = _tables(cls)
    lines = [line for paragraph in heading.strip().splitlines() for line in _comment(paragraph) or ["#"]]
    table = ""
    for key in keys:
        lines.append("")
        if key.table != table:
            table = key.table
            lines += [*_comment(_purpose(tables[table])), f"[{table}]", ""]
        value = given.get(key.dotted)
        if value is not None:
            lines += [*_comment(key.comment), f"{key.name} = {_toml(value)}"]
        elif key.default is REQUIRED:
            raise TypeError(f"{cls.__name__}: a sample needs a value for {key.dotted}, which has no default")
        elif key.default is None:
            lines += [*_comment(f"{key.comment} Not set by default."), f"# {key.name} = {key.kind.example}"]
        else:
            lines += [*_comment(key.comment), f"# {key.name} = {_toml(key.default)}"]
    return "\n".join(lines) + "\n"


def reference(cls: type[DataclassInstance], env_prefix: str) -> list[KeyReference]:
    """Every key, for the documentation."""
    rows = []
    for key in _keys(cls):
        kind = key.kind.words + (" (secret)" if key.secret else "")
        default = "required" if key.default is REQUIRED else "not set" if key.default is None else _toml(key.default)
        rows.append(KeyReference(key.dotted, kind, default, key.variable(env_prefix), key.comment))
    return rows


@dataclass(frozen=True)
class _Kind:
    """How values of one type are written, read and checked."""

    words: str
    accepts: Callable[[Any], bool]
    parse: Callable[[str], Any]  # text of a variable, to the value that TOML would give; ValueError if it cannot
    build: Callable[[Any, Path], Any]
    example: str


def _same(value: Any, directory: Path) -> Any:
    return value


def _is_number(value: Any) -> bool:
    """True for a number that a float can represent as finite or infinite; not for NaN."""
    return (type(value) is float and value == value) or (type(value) is int and abs(value) <= sys.float_info.max)


def _is_path(value: Any) -> bool:
    return isinstance(value, str) and value != "" and "\0" not in value


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _parse_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise ValueError
    return text.lower() == "true"


def _parse_texts(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _is_lists(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(items, list) and all(isinstance(item, str) or type(item) is int for item in items)
        for items in value.values()
    )


def _parse_lists(text: str) -> Any:
    """An inline table, as it would be written in the file: { a = ["x", "y"], b = [1, 2] }."""
    content = tomllib.loads(f"value = {text}")
    if set(content) != {"value"}:
        raise ValueError
    return content["value"]


def _build_lists(value: Mapping[str, list[Any]], directory: Path) -> dict[str, tuple[Any, ...]]:
    return {name: tuple(items) for name, items in value.items()}


_KINDS: dict[Any, _Kind] = {
    str: _Kind("a text", lambda value: isinstance(value, str), str, _same, '"..."'),
    int: _Kind("a whole number", lambda value: type(value) is int, int, _same, "0"),
    float: _Kind("a number", _is_number, float, lambda value, _: float(value), "0.0"),
    bool: _Kind("true or false", lambda value: isinstance(value, bool), _parse_bool, _same, "false"),
    Path: _Kind("a path", _is_path, str, lambda value, directory: directory / value, '"..."'),
    tuple[str, ...]: _Kind("a list of texts", _is_texts, _parse_texts, lambda value, _: tuple(value), '["..."]'),
    Mapping[str, tuple[int, ...] | tuple[str, ...]]: _Kind(
        "a table of lists of whole numbers or of texts",
        _is_lists,
        _parse_lists,
        _build_lists,
        "{}",
    ),
}


def _kind(hint: Any) -> tuple[_Kind, bool]:
    """How a declared type is written, and whether it may be None."""
    optional = typing.get_origin(hint) in (Union, types.UnionType) and type(None) in typing.get_args(hint)
    if optional:
        rest = [part for part in typing.get_args(hint) if part is not type(None)]
        hint = rest[0] if len(rest) == 1 else hint
    if typing.get_origin(hint) is Literal:
        choices = typing.get_args(hint)
        words = f"one of {', '.join(choices)}"
        return _Kind(words, lambda value: value in choices, str, _same, _toml(choices[0])), optional
    if hint not in _KINDS:
        raise TypeError(f"settings cannot be of the type {hint}")
    return _KINDS[hint], optional


_FOUND = {
    bool: "true or false",
    int: "a whole number",
    float: "a number",
    str: "a text",
    list: "a list",
    dict: "a table",
    type(None): "nothing",
}


def _check(key: _Key, value: Any, source: str) -> Any:
    """Return the value if it has the declared type. The error never contains the value, which may be a secret."""
    if key.kind.accepts(value):
        return value
    found = "an empty text" if value == "" else _FOUND.get(type(value), "a date or a time")
    expects_text = key.kind.parse is str
    unlike = "" if found == key.kind.words or (found == "a text" and expects_text) else f", not {found}"
    raise ConfigError(f"{source} is {key.kind.words}{unlike}")


@dataclass(frozen=True)
class _Key:
    """One declared key; `table` is empty for keys that are in no table."""

    table: str
    name: str
    kind: _Kind
    optional: bool
    default: Any
    comment: str
    secret: bool

    @property
    def dotted(self) -> str:
        return f"{self.table}.{self.name}" if self.table else self.name

    def variable(self, prefix: str) -> str:
        return f"{prefix.removesuffix('_')}_{self.dotted.replace('.', '_')}".upper()


def _keys(cls: type[DataclassInstance], table: str = "") -> Iterator[_Key]:
    """Every key in the order of a TOML file: keys of tables last."""
    nested = {} if table else _tables(cls)
    hints = typing.get_type_hints(cls)
    for declared in fields(cls):
        if declared.name in nested or not declared.init:
            continue
        if "comment" not in declared.metadata:
            raise TypeError(f"{cls.__name__}.{declared.name} is not declared with setting()")
        yield _Key(
            table,
            declared.name,
            *_kind(hints[declared.name]),
            declared.metadata["default"],
            declared.metadata["comment"],
            declared.metadata["secret"],
        )
    for name, inner in nested.items():
        yield from _keys(inner, name)


def _tables(cls: type[DataclassInstance]) -> dict[str, type[DataclassInstance]]:
    hints = typing.get_type_hints(cls)
    return {
        f.name: hints[f.name] for f in fields(cls) if isinstance(hints[f.name], type) and is_dataclass(hints[f.name])
    }


def _read_toml(path: Path, keys: list[_Key]) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            content = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also an integer of thousands of digits, or too deep nesting
        raise ConfigError(f"{path}: is not TOML: {error}") from error
    known = {key.dotted: key for key in keys}
    tables = {key.table for key in keys if key.table}
    written: dict[str, Any] = {}
    for name, value in content.items():
        if name not in tables:
            written[name] = value
        elif isinstance(value, dict):
            written |= {f"{name}.{inner}": inner_value for inner, inner_value in value.items()}
        else:
            raise ConfigError(f"{path}: {name} is a table: write [{name}], and its keys below it")
    for dotted, value in written.items():
        if dotted not in known:
            raise ConfigError(f"{path}: unknown key {dotted}{_hint(dotted, [*known, *tables])}")
        _check(known[dotted], value, f"{path}: {dotted}")
    return written


def _read_environment(
    keys: list[_Key], prefix: str, environ: Mapping[str, str], also: Collection[str]
) -> dict[str, Any]:
    known = {key.variable(prefix): key for key in keys}
    if len(known) < len(keys):
        raise TypeError("two settings would have the same environment variable")
    overridden: dict[str, Any] = {}
    for variable, text in environ.items():
        if not variable.startswith(f"{prefix.removesuffix('_')}_") or variable in also:
            continue
        if variable not in known:
            raise ConfigError(f"unknown environment variable {variable}{_hint(variable, [*known, *also])}")
        key = known[variable]
        if key.optional and text == "":
            overridden[key.dotted] = None
            continue
        source = f"environment variable {variable}"
        try:
            value = key.kind.parse(text)
        except ValueError:  # without the cause, whose text contains the value
            raise ConfigError(f"{source} is {key.kind.words}") from None
        overridden[key.dotted] = _check(key, value, source)
    return overridden


def _hint(name: str, known: Iterable[str]) -> str:
    """The nearest known name; a key of this name in another table comes first."""
    known = list(known)
    last = name.rpartition(".")[2]
    close = [other for other in known if other.rpartition(".")[2] == last] or difflib.get_close_matches(name, known, 1)
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"


def _purpose(table: type[DataclassInstance]) -> str:
    """The first paragraph of a table's docstring, unless dataclasses wrote it."""
    doc = table.__doc__ or ""
    return "" if doc.startswith(f"{table.__name__}(") else doc.strip().split("\n\n")[0]


def _comment(text: str) -> list[str]:
    return [f"# {line}" for line in textwrap.wrap(" ".join(text.split()), COMMENT_WIDTH - 2, break_long_words=False)]


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, tuple | list):
        return f"[{', '.join(_toml(item) for item in value)}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_toml(key)} = {_toml(items)}' for key, items in value.items())} }}" if value else "{}"
    text = str(value)
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise ConfigError("a name that is not UTF-8 cannot be written to a settings file: rename it")
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
