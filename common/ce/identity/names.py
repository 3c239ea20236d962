"""Identities: a role and a name, written `ce://ROLE/NAME` as the URI name of a certificate.

Names become file names, keys of peers.toml and words on a command line. So they consist of characters that a person can
read out on the telephone and that no shell, path or terminal interprets.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, cast, get_args

from ce.errors import ConfigError

Role = Literal["coordinator", "site", "operator"]
ROLES: tuple[Role, ...] = get_args(Role)

SCHEME = "ce://"
#: The host name in every coordinator's certificate. Clients check it whatever address they connect to, so that a
#: coordinator can change its address, or be behind a forwarded port, with the same certificate.
COORDINATOR_SERVER_NAME = "ce-coordinator"

_NAME = re.compile(r"[a-z0-9]([a-z0-9._-]{0,61}[a-z0-9])?")
#: Number of characters of an invalid name that an error repeats.
_REPEATED = 80


def check_name(name: str) -> None:
    """Raise ConfigError if `name` cannot be the name of a site, an operator or a coordinator."""
    if _NAME.fullmatch(name) is None or ".." in name:
        raise ConfigError(
            f"{name[:_REPEATED]!r} cannot be a name: use 1 to 63 lower-case letters, digits, dots, hyphens and "
            "underscores, with a letter or digit at both ends and no two dots in a row"
        )


@dataclass(frozen=True, order=True)
class Identity:
    """A site, an operator or a coordinator, by name. Raises ConfigError for a name that `check_name` refuses."""

    role: Role
    name: str

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ConfigError(f"{self.role[:_REPEATED]!r} is not a role: use one of {', '.join(ROLES)}")
        check_name(self.name)

    def __str__(self) -> str:
        return f"{self.role} {self.name}"

    @property
    def uri(self) -> str:
        return f"{SCHEME}{self.role}/{self.name}"

    @classmethod
    def from_uri(cls, uri: str) -> Identity:
        """The identity that `uri` names. Raises ConfigError if it names none."""
        role, slash, name = uri.removeprefix(SCHEME).partition("/")
        if not (uri.startswith(SCHEME) and slash):
            raise ConfigError(f"{uri[:_REPEATED]!r} is not an identity: expected {SCHEME}ROLE/NAME")
        return cls(cast("Role", role), name)
