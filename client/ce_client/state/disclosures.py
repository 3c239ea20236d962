"""The rule "max_definitions": how many different jobs have opened totals of each object that several sites hold.

Totals of the same labels at many different points can be solved for the labels, and who submits jobs chooses the
points. So a site counts, for each object, the definitions (`Job.disclosure_definition`) whose totals were opened, over
all label files and job names, and refuses a job that would open one more than its policy allows, until that is allowed
here (`ce-client allow-definition`). The same definition with the same labels has the same totals, and costs nothing,
unless a mode shows them to somebody who has not seen them: `masked` after `blind`, `plain` after `masked`.

The state directory has one file for each definition: keyed ids, from which nobody without the site's secret gets an id.
They are on the disk before anything leaves. No command removes them.
"""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ce.errors import ConfigError, Refused
from ce.privacy.derivation import derive, joined
from ce.service.atomic_files import atomic_write
from ce_client.state.files import damaged, exclusive, read_json, write_json

DIRECTORY, ALLOWED = "disclosures", "allowed.json"
RULE = "max_definitions"

_ID_BYTES = 16
#: The beginning of a file, followed by 16 bytes that tell the key of its ids from another one.
_MAGIC = b"ce disclosures 1"
_HEAD_BYTES = len(_MAGIC) + _ID_BYTES
_DIGEST_BYTES = 32
#: By a bit for each mode that has cost one definition: how many those are.
_COSTS = np.array([bits.bit_count() for bits in range(256)], dtype=np.int64)

#: Modes, those first that show totals to more viewers. Files have a bit for each place.
_MODES = ("plain", "masked", "blind")

Ids = NDArray[np.void]


class RecordsDisclosures(Protocol):
    """A ledger, as far as it records disclosures and that an allowance is used."""

    def disclosure(self, job: str, definition: str, mode: str, objects: int, sha256: str) -> bytes: ...

    def allow_definition(self, job: str, definition: str, mode: str) -> bytes: ...


@dataclass(frozen=True)
class Disclosure:
    """Totals that a job is about to open."""

    definition: str  # hex: see `definition_key`
    mode: str  # the privacy of the job
    key_check: bytes = field(repr=False)  # of the key of the ids
    ids: Ids = field(repr=False)  # (n,) keyed, sorted: of the objects that several sites hold


@dataclass(frozen=True)
class Budget:
    """What a job takes of the definitions that the policy allows for each object."""

    definition: str  # hex
    mode: str
    objects: int  # of this site, that other sites hold too
    used: int  # the most definitions that have opened totals of one of these objects before
    after: int  # the same, after this job
    limit: int  # max_definitions
    over: int  # objects that would have more than the limit
    allowed: bool  # by ce-client allow-definition

    @property
    def refuses(self) -> bool:
        """True if the job is refused until its definition is allowed."""
        return self.over > 0 and not self.allowed

    @property
    def sentence(self) -> str:
        counted = f"{self.used:,} before this job, {self.after:,} with it, {self.limit:,} allowed"
        allowed = "; this one was allowed here" if self.over and self.allowed else ""
        return f"that open totals of {self.objects:,} objects that other sites hold too: {counted}{allowed}"


@dataclass(frozen=True)
class _Allowance:
    """A definition whose totals may be opened, whatever was opened before, in this mode or in a stronger one."""

    definition: str
    mode: str
    job: str  # for which it was given
    at: float
    recorded: bool = False  # in the ledger; that is done when it is first used

    def covers(self, definition: str, mode: str) -> bool:
        return self.definition == definition and _MODES.index(self.mode) <= _MODES.index(mode)


@dataclass(frozen=True)
class _Disclosed:
    """The content of a file: objects whose totals a definition has opened, and in which modes."""

    key_check: bytes = field(repr=False)
    ids: Ids = field(repr=False)  # (n,) sorted
    modes: NDArray[np.uint8] = field(repr=False)  # (n,) a bit, 1 << _MODES.index(mode), for each that cost one

    def modes_of(self, ids: Ids) -> NDArray[np.uint8]:
        """(n,) The modes of these objects; 0 for an object that is not in the file."""
        if not len(self.ids):
            return np.zeros(len(ids), dtype=np.uint8)
        at = np.minimum(np.searchsorted(self.ids, ids), len(self.ids) - 1)
        found: NDArray[np.uint8] = np.where(self.ids[at] == ids, self.modes[at], np.uint8(0))
        return found

    def with_mode(self, ids: Ids, mode: str) -> _Disclosed:
        """After totals of these objects were opened in a mode."""
        known = self.modes_of(ids)
        modes = np.where(_is_new(known, mode), known | np.uint8(1 << _MODES.index(mode)), known)
        others = ~_among(self.ids, ids)
        all_ids, all_modes = np.concatenate([self.ids[others], ids]), np.concatenate([self.modes[others], modes])
        order = np.argsort(all_ids, kind="stable")
        return replace(self, ids=all_ids[order], modes=all_modes[order])


def definition_key(*parts: bytes) -> str:
    """The name of a definition, in hex: SHA-256 of all that its totals follow from at this site."""
    return hashlib.sha256(joined(b"ce disclosed definition 1", *parts)).hexdigest()


def disclosure_of(definition: str, mode: str, secret: bytes, ids: Sequence[str] | NDArray[np.str_]) -> Disclosure:
    """What a job opens, with ids that are keyed with a key of this site. Ids are normalised (stripped, NFC)."""
    key = derive(secret, b"ce disclosed objects")
    keyed = b"".join(hmac.digest(key, id_.encode(), "sha256")[:_ID_BYTES] for id_ in np.asarray(ids).tolist())
    check = derive(secret, b"ce disclosed objects: which key")[:_ID_BYTES]
    return Disclosure(definition, mode, check, np.sort(np.frombuffer(keyed, dtype=f"V{_ID_BYTES}"), kind="stable"))


class Disclosures:
    """The definitions that have opened totals of objects of one site, in its state directory."""

    def __init__(self, state: Path) -> None:
        self._directory = state / DIRECTORY

    def budget(self, disclosure: Disclosure, limit: int) -> Budget:
        """What this would take of the budget. Changes nothing."""
        ids, definition, mode = disclosure.ids, disclosure.definition, disclosure.mode
        before = np.zeros(len(ids), dtype=np.int64)
        costs = np.ones(len(ids), dtype=np.int64)
        for path, disclosed in self._files() if len(ids) else ():
            if disclosed.key_check != disclosure.key_check:
                raise ConfigError(
                    f"{path}: was written with another secret, so that its objects cannot be counted: put the former "
                    "file of the secret back; if it is lost, move the directory to an archive"
                )
            modes = disclosed.modes_of(ids)
            before += _COSTS[modes]
            if path.stem == definition:
                costs = _is_new(modes, mode).astype(np.int64)
        after = before + costs
        over = (costs > 0) & (after > limit)
        return Budget(
            definition=definition,
            mode=mode,
            objects=len(ids),
            used=int(before.max(initial=0)),
            after=int(after.max(initial=0)),
            limit=limit,
            over=int(over.sum()),
            allowed=self.allowed(definition, mode),
        )

    def record(self, job: str, disclosure: Disclosure, limit: int, ledger: RecordsDisclosures) -> None:
        """Count it. Call it before anything is sent. Raises Refused if the policy does not allow it.

        When it returns, the count is on the disk, and the ledger has it: also if it costs nothing, so that the ledger
        gets it from the next attempt if the daemon is killed in between.
        """
        if not len(disclosure.ids):
            return
        with exclusive(self._directory):
            # Once more: another job may have begun since the preview of this one.
            budget = self.budget(disclosure, limit)
            refuse(budget, job)
            if budget.over:
                self._use_allowance(disclosure, ledger)
            path = self._path(disclosure.definition)
            content = _read(path) if path.exists() else None
            empty = _Disclosed(disclosure.key_check, disclosure.ids[:0], np.zeros(0, dtype=np.uint8))
            after = _content((_parsed(path, content) if content else empty).with_mode(disclosure.ids, disclosure.mode))
            if after != content:
                _write(path, after)
            ledger.disclosure(
                job, disclosure.definition, disclosure.mode, budget.objects, hashlib.sha256(after).hexdigest()
            )

    def allow(self, definition: str, mode: str, job: str) -> bool:
        """Allow a definition, whatever its job is called. False: that was allowed already."""
        with exclusive(self._directory):
            if self.allowed(definition, mode):
                return False
            self._write_allowances((*self._allowances(), _Allowance(definition, mode, job, time.time())))
        return True

    def allowed(self, definition: str, mode: str) -> bool:
        """True if totals of this definition may be opened in this mode, whatever was opened before."""
        return any(allowance.covers(definition, mode) for allowance in self._allowances())

    def usage(self) -> dict[int, int]:
        """How many objects have each number of definitions, the highest number first."""
        files = [disclosed for _, disclosed in self._files()]
        if not files:
            return {}
        ids, place = np.unique(np.concatenate([disclosed.ids for disclosed in files]), return_inverse=True)
        counts = np.zeros(len(ids), dtype=np.int64)
        np.add.at(counts, place.reshape(-1), _COSTS[np.concatenate([disclosed.modes for disclosed in files])])
        numbers, objects = np.unique(counts, return_counts=True)
        return dict(sorted(zip(numbers.tolist(), objects.tolist(), strict=True), reverse=True))

    def digest(self, definition: str) -> str | None:
        """SHA-256 of the file of a definition, in hex; None if there is no such file."""
        path = self._path(definition)
        return hashlib.sha256(_read(path)).hexdigest() if path.exists() else None

    def _use_allowance(self, disclosure: Disclosure, ledger: RecordsDisclosures) -> None:
        """Record the first use of an allowance in the ledger."""
        allowances = list(self._allowances())
        for at, allowance in enumerate(allowances):
            if allowance.covers(disclosure.definition, disclosure.mode) and not allowance.recorded:
                ledger.allow_definition(allowance.job, allowance.definition, allowance.mode)
                allowances[at] = replace(allowance, recorded=True)
        if tuple(allowances) != self._allowances():
            self._write_allowances(tuple(allowances))

    def _allowances(self) -> tuple[_Allowance, ...]:
        written: Any = read_json(self._directory / ALLOWED)
        if written is None:
            return ()
        try:
            found = tuple(_Allowance(**entry) for entry in written)
        except TypeError as error:
            raise damaged(self._directory / ALLOWED) from error
        if any(allowance.mode not in _MODES for allowance in found):
            raise damaged(self._directory / ALLOWED)
        return found

    def _write_allowances(self, allowances: tuple[_Allowance, ...]) -> None:
        write_json(self._directory / ALLOWED, [vars(allowance) for allowance in allowances])

    def _files(self) -> Iterator[tuple[Path, _Disclosed]]:
        for path in sorted(self._directory.glob("[0-9a-f]*.ids")):
            yield path, _parsed(path, _read(path))

    def _path(self, definition: str) -> Path:
        return self._directory / f"{definition}.ids"


def refuse(budget: Budget, job: str) -> None:
    """Raises Refused if a job would open totals of an object once more than the policy allows."""
    if budget.refuses:
        so_far = f"{budget.used:,} definition" + ("s" if budget.used != 1 else "")
        raise Refused(
            RULE,
            f"the job would open totals of {budget.over:,} objects that several sites hold by another definition, or "
            f"to another viewer, than before; {so_far} so far, and this site allows {budget.limit:,}: submit the same "
            f"definition as before, under any name; or, at the site, see ce-client allow-definition {job}",
        )


def _is_new(modes: NDArray[np.uint8], mode: str) -> NDArray[np.bool_]:
    """Whether totals in this mode are shown to somebody who has not seen them in these modes: the bits of modes that
    are as weak, or weaker, are not set."""
    found: NDArray[np.bool_] = (modes & np.uint8((2 << _MODES.index(mode)) - 1)) == 0
    return found


def _among(ids: Ids, others: Ids) -> NDArray[np.bool_]:
    """Whether each of `ids` is among `others`, which are sorted."""
    if not len(others):
        return np.zeros(len(ids), dtype=bool)
    at = np.minimum(np.searchsorted(others, ids), len(others) - 1)
    found: NDArray[np.bool_] = others[at] == ids
    return found


# Files: magic, key check, ids (16 bytes each, sorted), modes (1 byte each), SHA-256 of all before it.


def _content(disclosed: _Disclosed) -> bytes:
    content = _MAGIC + disclosed.key_check + disclosed.ids.tobytes() + disclosed.modes.tobytes()
    return content + hashlib.sha256(content).digest()


def _parsed(path: Path, content: bytes) -> _Disclosed:
    """Raises ConfigError for a damaged file: an empty one in its place would allow every job again."""
    body, digest = content[:-_DIGEST_BYTES], content[-_DIGEST_BYTES:]
    objects, rest = divmod(len(body) - _HEAD_BYTES, _ID_BYTES + 1)
    if rest or objects < 0 or not body.startswith(_MAGIC) or hashlib.sha256(body).digest() != digest:
        raise damaged(path)
    ids_end = _HEAD_BYTES + objects * _ID_BYTES
    ids = np.frombuffer(body[_HEAD_BYTES:ids_end], dtype=f"V{_ID_BYTES}")
    return _Disclosed(body[len(_MAGIC) : _HEAD_BYTES], ids, np.frombuffer(body[ids_end:], dtype=np.uint8))


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path}: cannot be read: {error.strerror}: run this as the daemon's user") from error


def _write(path: Path, content: bytes) -> None:
    try:
        with atomic_write(path) as file:
            file.write(content)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written: {error.strerror}: make room or set permissions") from error
