"""The rule "one roster per label file".

Totals of the same labels under two rosters differ by the parts of the sites in which the rosters differ. Who sees both
totals can subtract them and gets exact counts. So a site stores under which roster it contributed a label file, and
refuses another roster, also in another job, until it is allowed here (`ce-client allow-roster`).

A label file is identified by its path and by its content: after it is renamed, or after new labels are put in its
place, it is still the same file.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ce.errors import InputError, Refused
from ce_client.state.files import damaged, exclusive, read_json, write_json

FILE_NAME = "rosters.json"
RULE = "one roster per label file"

Roster = tuple[str, ...]


class RecordsAllowances(Protocol):
    """A ledger, as far as it records that an allowance is used."""

    def allow_roster(self, job: str, roster: Roster) -> bytes: ...


@dataclass(frozen=True)
class _Use:
    """A label file was contributed under a roster."""

    path: str
    digest: str  # SHA-256 of its content, hex
    roster: Roster
    job: str  # the first job
    at: float


@dataclass(frozen=True)
class _Allowance:
    """Label files of this site may be contributed under this roster, whatever rosters they were under before."""

    roster: Roster
    job: str  # for which it was given
    at: float
    recorded: bool = False  # in the ledger; that is done when it is first used


@dataclass(frozen=True)
class _Content:
    """The content of the file."""

    uses: tuple[_Use, ...] = ()
    allowed: tuple[_Allowance, ...] = ()


def content_digest(labels: Path) -> bytes:
    """SHA-256 of a label file as it is now."""
    try:
        with labels.open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        raise InputError(f"{labels}: cannot be read: {error.strerror}") from error


class Rosters:
    """The rosters under which one site contributed its label files, in its state directory."""

    def __init__(self, state: Path) -> None:
        self._path = state / FILE_NAME

    def others(self, labels: Path, digest: bytes, roster: Iterable[str]) -> tuple[Roster, ...]:
        """The other rosters that this path, or this content, was contributed under; empty if `roster` was one too."""
        return _others(self._read(), labels, digest, _sorted(roster))

    def check(self, labels: Path, digest: bytes, roster: Iterable[str]) -> None:
        """Raises Refused unless these labels may be contributed under this roster."""
        self._refuse(self._read(), labels, digest, _sorted(roster))

    def _refuse(self, content: _Content, labels: Path, digest: bytes, roster: Roster) -> None:
        others = _others(content, labels, digest, roster)
        if others and roster not in {allowance.roster for allowance in content.allowed}:
            raise Refused(
                RULE,
                f"this site contributed the same label file with {' and with '.join(map(_listed, others))}; totals "
                f"with {_listed(roster)} beside those would show what single sites added: take part in jobs of the "
                "same sites only, or see ce-client allow-roster JOB",
            )

    def remember(self, labels: Path, digest: bytes, roster: Iterable[str], job: str, ledger: RecordsAllowances) -> None:
        """Store that these labels are contributed under this roster. Call it before anything is sent.

        The first use of an allowance is recorded in the ledger.
        """
        roster = _sorted(roster)
        with exclusive(self._path.parent):
            content = self._read()
            allowed = list(content.allowed)
            # Once more: another job may have begun since this one was offered.
            self._refuse(content, labels, digest, roster)
            if _others(content, labels, digest, roster):
                for at, allowance in enumerate(allowed):
                    if allowance.roster == roster and not allowance.recorded:
                        ledger.allow_roster(allowance.job, roster)
                        allowed[at] = _Allowance(roster, allowance.job, allowance.at, True)
            path = str(labels.resolve())
            known = any((use.path, use.digest, use.roster) == (path, digest.hex(), roster) for use in content.uses)
            uses = content.uses if known else (*content.uses, _Use(path, digest.hex(), roster, job, time.time()))
            after = _Content(uses, tuple(allowed))
            if after != content:
                self._write(after)

    def allow(self, roster: Iterable[str], job: str) -> bool:
        """Allow label files of this site under this roster too. False: that was allowed already."""
        roster = _sorted(roster)
        with exclusive(self._path.parent):
            content = self._read()
            if roster in {allowance.roster for allowance in content.allowed}:
                return False
            self._write(_Content(content.uses, (*content.allowed, _Allowance(roster, job, time.time()))))
        return True

    def _read(self) -> _Content:
        """The content. A damaged file is an error: an empty one in its place would allow every roster."""
        written: Any = read_json(self._path)
        if written is None:
            return _Content()
        try:
            return _Content(
                tuple(_Use(**{**use, "roster": tuple(use["roster"])}) for use in written["uses"]),
                tuple(_Allowance(**{**entry, "roster": tuple(entry["roster"])}) for entry in written["allowed"]),
            )
        except (TypeError, KeyError) as error:
            raise damaged(self._path) from error

    def _write(self, content: _Content) -> None:
        write_json(
            self._path,
            {"uses": [vars(use) for use in content.uses], "allowed": [vars(entry) for entry in content.allowed]},
        )


def _others(content: _Content, labels: Path, digest: bytes, roster: Roster) -> tuple[Roster, ...]:
    """Path and content have separate lists of rosters: a file with the content of another one has those of both."""
    path = str(labels.resolve())
    by_path = {use.roster for use in content.uses if use.path == path}
    by_content = {use.roster for use in content.uses if use.digest == digest.hex()}
    return tuple(sorted({other for known in (by_path, by_content) if roster not in known for other in known}))


def _sorted(roster: Iterable[str]) -> Roster:
    return tuple(sorted(set(roster)))


def _listed(roster: Roster) -> str:
    return ", ".join(roster)
