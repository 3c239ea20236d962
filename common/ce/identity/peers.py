"""The peers that a site trusts: peers.toml, lines `NAME = "SHA256:..."`.

The operator runs the CA and could make certificates for sites that do not exist. So a site accepts another site only if
its key is pinned here, by a person who compared the fingerprint by telephone or in person, not through the coordinator.
No message here repeats a fingerprint that was presented: it would be copied instead of compared.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from cryptography import x509

from ce.errors import ConfigError, Refused
from ce.identity.certificates import check_fingerprint_text, fingerprint
from ce.identity.files import read_if_there, rewrite
from ce.identity.names import check_name

UNPINNED = "unpinned peer"
CHANGED = "changed key of a peer"

_HEADER = """\
# The sites that this site works with, and the fingerprints of their keys.
# Compare a fingerprint with the other site by telephone or in person, never by what the coordinator shows, then run
# `ce-client trust NAME SHA256:...`.

"""


class Peers:
    """The pins of one peers.toml. A missing file has no pins."""

    def __init__(self, path: Path, pins: Mapping[str, str]) -> None:
        self._path = path
        self._pins = dict(pins)

    @classmethod
    def read(cls, path: Path) -> Peers:
        return cls(path, _parse(_text_of(path), path))

    @property
    def pins(self) -> Mapping[str, str]:
        """Every pinned name and its fingerprint."""
        return MappingProxyType(self._pins)

    def pinned(self, name: str) -> str | None:
        return self._pins.get(name)

    def check(self, name: str, certificate: x509.Certificate) -> None:
        """Raise Refused unless the certificate's key is the one pinned for `name`."""
        check_name(name)
        known = self._pins.get(name)
        if known is None:
            raise Refused(
                UNPINNED,
                f"{name} is not among the peers that this site trusts: ask {name} for its fingerprint by telephone or "
                f"in person, not through the coordinator, then run `ce-client trust {name} SHA256:...` with it",
            )
        if known != fingerprint(certificate):
            raise Refused(
                CHANGED,
                f"{name} has another key than the one that this site trusts: another party may be posing as {name}. "
                f"Ask {name} by telephone or in person whether it made a new key; if it did, have its fingerprint read "
                f"out to you and run `ce-client trust --replace {name} SHA256:...` with it",
            )

    def trust(self, name: str, fingerprint: str, *, replace: bool = False) -> None:
        """Pin `name` to a fingerprint that a person compared. To change a pin, `replace` is required.

        Works on the file as it is now. Other lines and all comments stay.
        """
        check_name(name)
        wanted = check_fingerprint_text(fingerprint)
        text = _text_of(self._path)
        pins = _parse(text, self._path)
        known = pins.get(name)
        if known not in (None, wanted) and not replace:
            raise Refused(
                CHANGED,
                f"{name} is pinned to another key: if {name} told you by telephone or in person that it made a new "
                "one, trust it with --replace",
            )
        if known != wanted:
            pins[name] = wanted
            _refuse_shared(pins, self._path)
            _write(self._path, _with_pin(text or _HEADER, name, wanted), pins)
        self._pins = pins


def _text_of(path: Path) -> str:
    try:
        return (read_if_there(path) or b"").decode("utf-8-sig")
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not text in UTF-8: save it as such") from None


def _parse(text: str, path: Path) -> dict[str, str]:
    try:
        entries = tomllib.loads(text)
    except ValueError as error:  # not TOML, or a number of thousands of digits
        raise ConfigError(f'{path}: {error}; expected lines NAME = "SHA256:..."') from None
    except RecursionError:
        raise ConfigError(f'{path} is nested too deeply: expected lines NAME = "SHA256:..."') from None
    pins: dict[str, str] = {}
    for name, value in entries.items():
        if isinstance(value, dict):
            raise ConfigError(
                f'{path}: {name[:80]!r} is a table: expected lines NAME = "SHA256:..." under no table, and quotes '
                "around a NAME with dots"
            )
        try:
            check_name(name)
            pins[name] = check_fingerprint_text(value if isinstance(value, str) else "")
        except ConfigError as error:
            raise ConfigError(f"{path}, entry {name[:80]!r}: {error}") from None
    _refuse_shared(pins, path)
    return pins


def _refuse_shared(pins: Mapping[str, str], path: Path) -> None:
    """Raise ConfigError if two names have the same pin: one site would count twice in rules about numbers of sites."""
    first_name: dict[str, str] = {}
    for name, pin in pins.items():
        first = first_name.setdefault(pin, name)
        if first != name:
            raise ConfigError(f"{path}: {first} and {name} have the same fingerprint: correct or remove one")


def _with_pin(text: str, name: str, pin: str) -> str:
    """The text with the line of `name` changed, or added at its end."""
    key = name if "." not in name else f'"{name}"'
    line = f'{key} = "{pin}"'
    # A comment on the same line is removed, too: it is about the old key.
    changed, lines = re.subn(rf"""(?m)^[ \t]*(["']?){re.escape(name)}\1[ \t]*=[^\r\n]*""", lambda _: line, text)
    if lines:
        return changed
    separator = "" if text.endswith("\n") else "\n"
    return f"{text}{separator}{line}\n"


def _write(path: Path, text: str, pins: Mapping[str, str]) -> None:
    try:
        as_meant = _parse(text, path) == pins
    except ConfigError:
        as_meant = False
    if not as_meant:
        raise ConfigError(f"{path} is written in a way that cannot be changed line by line: change it by hand")
    rewrite(path, text.encode())
