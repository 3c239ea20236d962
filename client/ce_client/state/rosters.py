"""One roster per label file.

Totals of the same labels under two rosters differ by the parts of the sites in which the rosters differ: whoever sees
both subtracts them, and has exact counts. So a site remembers under which roster it contributed a label file, and
refuses another one, also in another job, until somebody here allows it (`ce-client allow-roster`).

A label file is known by its path and by its content: renaming it, or putting new labels in its place, makes it no
other file.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ce.errors import InputError, Refused
from ce_client.state.files import damaged, read_json, turn, write_json

FILE_NAME = "rosters.json"
RULE = "one roster per label file"

Roster = tuple[str, ...]


class RecordsAllowances(Protocol):
    """What a ledger does with the use of an allowance."""

    def allow_roster(self, job: str, roster: Roster) -> bytes: ...


@dataclass(frozen=True)
class _Use:
    """A label file was contributed under a roster."""

    path: str
    digest: str  # SHA-256 of its content, hex
    roster: Roster
    job: str  # the first of them
    at: float


@dataclass(frozen=True)
class _Allowance:
    roster: Roster
    job: str  # for which it was given
    at: float
    recorded: bool = False  # in the ledger, where it belongs once it is used


@dataclass(frozen=True)
class _Memory:
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
    """What one site remembers, in its state directory."""

    def __init__(self, state: Path) -> None:
        self._path = state / FILE_NAME

    def others(self, labels: Path, digest: bytes, roster: Iterable[str]) -> tuple[Roster, ...]:
        """The rosters that stand against this one: those that this path, or this content, was contributed under."""
        return _others(self._read(), labels, digest, _sorted(roster))

    def check(self, labels: Path, digest: bytes, roster: Iterable[str]) -> None:
        """Raises Refused unless these labels may be contributed under this roster."""
        self._refuse(self._read(), labels, digest, _sorted(roster))

    def _refuse(self, memory: _Memory, labels: Path, digest: bytes, own: Roster) -> None:
        others = _others(memory, labels, digest, own)
        if others and own not in {allowance.roster for allowance in memory.allowed}:
            raise Refused(
                RULE,
                f"this site contributed the same label file with {' and with '.join(map(_listed, others))}; totals "
                f"with {_listed(own)} beside those would show what single sites added: take part in jobs of the same "
                "sites only, or see ce-client allow-roster JOB",
            )

    def remember(self, labels: Path, digest: bytes, roster: Iterable[str], job: str, ledger: RecordsAllowances) -> None:
        """These labels are about to be contributed under this roster. Call it before anything is sent.

        An allowance that is used here for the first time is written to the ledger.
        """
        own = _sorted(roster)
        with turn(self._path.parent):
            memory = self._read()
            allowed = list(memory.allowed)
            # Again: another job may have begun since this one was offered.
            self._refuse(memory, labels, digest, own)
            if _others(memory, labels, digest, own):
                for at, allowance in enumerate(allowed):
                    if allowance.roster == own and not allowance.recorded:
                        ledger.allow_roster(allowance.job, own)
                        allowed[at] = _Allowance(own, allowance.job, allowance.at, True)
            path = str(labels.resolve())
            known = any((use.path, use.digest, use.roster) == (path, digest.hex(), own) for use in memory.uses)
            uses = memory.uses if known else (*memory.uses, _Use(path, digest.hex(), own, job, time.time()))
            after = _Memory(uses, tuple(allowed))
            if after != memory:
                self._write(after)

    def allow(self, roster: Iterable[str], job: str) -> bool:
        """Let label files of this site be contributed under this roster too. False: that was allowed already."""
        own = _sorted(roster)
        with turn(self._path.parent):
            memory = self._read()
            if own in {allowance.roster for allowance in memory.allowed}:
                return False
            self._write(_Memory(memory.uses, (*memory.allowed, _Allowance(own, job, time.time()))))
        return True

    def _read(self) -> _Memory:
        """A damaged file is an error: to begin anew would be to forget what must not be forgotten."""
        written: Any = read_json(self._path)
        if written is None:
            return _Memory()
        try:
            return _Memory(
                tuple(_Use(**{**use, "roster": tuple(use["roster"])}) for use in written["uses"]),
                tuple(_Allowance(**{**own, "roster": tuple(own["roster"])}) for own in written["allowed"]),
            )
        except (TypeError, KeyError) as error:
            raise damaged(self._path) from error

    def _write(self, memory: _Memory) -> None:
        write_json(
            self._path,
            {"uses": [vars(use) for use in memory.uses], "allowed": [vars(own) for own in memory.allowed]},
        )


def _others(memory: _Memory, labels: Path, digest: bytes, own: Roster) -> tuple[Roster, ...]:
    """Path and content each have rosters of their own: a file whose content came from elsewhere has those of both."""
    path = str(labels.resolve())
    by_path = {use.roster for use in memory.uses if use.path == path}
    by_content = {use.roster for use in memory.uses if use.digest == digest.hex()}
    return tuple(sorted({roster for known in (by_path, by_content) if own not in known for roster in known}))


def _sorted(roster: Iterable[str]) -> Roster:
    return tuple(sorted(set(roster)))


def _listed(roster: Roster) -> str:
    return ", ".join(roster)
