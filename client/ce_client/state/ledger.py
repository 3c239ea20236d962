"""The disclosure ledger: what has left this site, contribution by contribution, in one file that only grows.

It proves which bytes were sent, when, in which job, under which mode and into totals with whom; not what they meant.
Every line is chained to all lines before it, and the end of every attempt at a job is signed with the site's key: a
line that is changed, removed, moved or put in later is found by `verify`, offline. docs/ledger.md has the format, and
what can not be found.

A line is with the operating system before `record` returns, so that a daemon that is killed has sent nothing that is
not here; it is on the disk when the attempt ends. There is never a label, an id, a category or a key in it: hashes of
arrays, names of arrays, columns and sites, sizes.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from cryptography import x509

from ce.errors import CeError, ConfigError, InputError, JobFailed
from ce.identity.certificates import identity_of
from ce.identity.certificates import verify as verify_signature
from ce.protocol.messages.task import Array, array_hash
from ce_client.state.hash_chain import NO_LINES, Broken, canonical, chained, checked, joined, raw_lines, split

FILE_NAME = "ledger.jsonl"
#: What the site's key signs for: see `ce.identity.certificates.sign`.
PURPOSE = "ce ledger 1"
VERSION = 1
PRIVATE = 0o600

_ALWAYS = {"n", "kind", "time_s", "hash"}
#: What lines of each kind have.
_KEYS = {
    "ledger": _ALWAYS | {"version", "site"},
    "begin": _ALWAYS | {"job", "epoch", "job_digest", "roster", "mode", "randomise", "epsilon"},
    "contribution": _ALWAYS | {"job", "epoch", "round", "arrays", "notes"},
    "allow-roster": _ALWAYS | {"job", "roster"},
    "end": _ALWAYS | {"job", "epoch", "state", "signature"},
    "torn": _ALWAYS | {"bytes"},
}
#: Of words, of bytes that are sealed, of reals. To ask `dtype.name` takes longer than to hash a small array.
_TYPE_NAMES = {"i": "int64", "u": "uint8", "f": "float64"}
#: Bytes that are read at once, from the end, to find the last two lines.
_STRETCH = 1 << 16


class Ledger:
    """A site's ledger, open for writing. Only its daemon has it open; several jobs may write at once."""

    def __init__(self, path: Path, site: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, PRIVATE)
        except OSError as error:
            raise ConfigError(f"{path}: cannot be written: {error.strerror}: nothing is sent without it") from error
        try:
            self._continue(site)
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    @property
    def head(self) -> bytes:
        """The hash that stands for all lines so far."""
        return self._head

    @property
    def size(self) -> int:
        """Bytes of all lines so far."""
        return self._size

    def begin(
        self,
        job: str,
        epoch: int,
        job_digest: bytes,
        roster: Iterable[str],
        mode: str,
        randomise: float = 0.0,
        epsilon: Mapping[str, float] | None = None,
    ) -> bytes:
        """An attempt at a job begins. `epsilon`: of randomised response, by column. Returns the new head."""
        return self._append(
            {
                "kind": "begin",
                "job": job,
                "epoch": epoch,
                "job_digest": job_digest.hex(),
                "roster": sorted(roster),
                "mode": mode,
                "randomise": randomise,
                "epsilon": dict(epsilon or {}),
            }
        )

    def record(
        self,
        job: str,
        epoch: int,
        round: int,
        arrays: Mapping[str, Array],
        mode: str | Mapping[str, str],
        contributors: Mapping[str, tuple[str, ...]],
        notes: Sequence[str] = (),
    ) -> bytes:
        """One contribution, as it is about to be sent: call it before. Returns the new head.

        `arrays` are the words that are sent, `mode` that of all or of each, `contributors` whose parts are in each
        array's total.
        """
        described = {
            name: {
                "shape": list(array.shape),
                "type": _TYPE_NAMES[array.dtype.kind],
                "mode": mode if isinstance(mode, str) else mode[name],
                "contributors": list(contributors[name]),
                "sha256": array_hash(array).hex(),
            }
            for name, array in arrays.items()
        }
        line = {"kind": "contribution", "job": job, "epoch": epoch, "round": round, "arrays": described}
        return self._append({**line, "notes": list(notes)})

    def allow_roster(self, job: str, roster: Iterable[str]) -> bytes:
        """Label files that were contributed under another roster are, from here on, under this one too."""
        return self._append({"kind": "allow-roster", "job": job, "roster": sorted(roster)})

    def end(self, job: str, epoch: int, state: str, sign: Callable[[bytes], bytes]) -> bytes:
        """An attempt is over; all lines so far are signed, and on the disk when this returns. Returns the new head.

        `sign` is `ce.identity.certificates.sign` with the site's key and PURPOSE.
        """
        return self._append({"kind": "end", "job": job, "epoch": epoch, "state": state}, sign)

    # Opening.

    def _continue(self, site: str) -> None:
        """Find the head, and cut off a line that a daemon was killed in: nothing of it was sent."""
        size = os.fstat(self._descriptor).st_size
        torn, lines = self._last_lines(size)
        if torn:
            os.ftruncate(self._descriptor, size - torn)
        self._size, self._head, self._number = size - torn, NO_LINES, 0
        if lines:
            self._head, self._number = self._read_last(lines)
            self._refuse_other(site)
        try:
            if not lines:
                self._append({"kind": "ledger", "version": VERSION, "site": site})
            if torn:
                self._append({"kind": "torn", "bytes": torn})
        except JobFailed as error:
            raise ConfigError(f"{self._path}: {error}") from error

    def _last_lines(self, size: int) -> tuple[int, list[bytes]]:
        """Bytes of a torn last line, and the last two whole ones; fewer only where there are not two."""
        begin, found = size, b""
        while begin > 0 and found.count(b"\n") < 3:
            length = min(_STRETCH, begin)
            begin -= length
            found = os.pread(self._descriptor, length, begin) + found
        *lines, torn = found.split(b"\n")
        return len(torn), [line + b"\n" for line in lines[-2:]]

    def _read_last(self, lines: list[bytes]) -> tuple[bytes, int]:
        """Head and number of the last line, which must follow the one before it. The rest is for `verify`."""
        before = NO_LINES
        if len(lines) == 2:
            parts = split(lines[0])
            before = b"" if parts is None else bytes.fromhex(parts[1])
        try:
            head, line = checked(lines[-1], before)
        except Broken as error:
            raise ConfigError(
                f"{self._path}: its last lines are not as the daemon wrote them: see ce-client ledger verify; to go "
                "on, move the file away and keep it"
            ) from error
        return head, line["n"]

    def _refuse_other(self, site: str) -> None:
        first = next(entries(self._path))
        if first.get("site") != site:
            raise ConfigError(f"{self._path}: is not the ledger of site {site}: each site has a state of its own")

    # Writing.

    def _append(self, line: dict[str, Any], sign: Callable[[bytes], bytes] | None = None) -> bytes:
        with self._lock:
            if self._descriptor < 0:
                raise JobFailed("the ledger is closed: the daemon is stopping")
            self._refuse_changed()
            line = {**line, "n": self._number + 1, "time_s": round(time.time(), 3)}
            if sign is not None:
                line["signature"] = sign(chained(self._head, canonical(line))).hex()
            body = canonical(line)
            head = chained(self._head, body)
            self._write(joined(body, head))
            self._head, self._number = head, self._number + 1
            if sign is not None:
                self._sync()
        return head

    def _refuse_changed(self) -> None:
        """Whoever moves the file away or writes into it would break the chain, or hide what follows."""
        try:
            there, own = self._path.stat(), os.fstat(self._descriptor)
            moved = (there.st_ino, there.st_dev) != (own.st_ino, own.st_dev)
            changed = own.st_size != self._size
        except OSError:
            moved = changed = True
        if moved or changed:
            problem = "moved or removed" if moved else "changed by somebody else"
            raise JobFailed(
                f"the ledger of this site was {problem} while its daemon runs, and nothing is sent without it: see "
                "that it is right, then restart the daemon"
            )

    def _write(self, line: bytes) -> None:
        """All of it or nothing."""
        done = 0
        try:
            while done < len(line):
                done += os.write(self._descriptor, line[done:])
        except OSError as error:
            try:
                os.ftruncate(self._descriptor, self._size)
            except OSError:
                # Half a line is there, and so every further one is refused: its size is not what we know.
                self._size = -1
            raise JobFailed(
                f"the ledger of this site cannot be written ({error.strerror}): nothing is sent without it; make room"
            ) from error
        self._size += len(line)

    def _sync(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise JobFailed(f"the ledger of this site cannot be kept on its disk ({error.strerror})") from error


# Reading.


@dataclass(frozen=True)
class Verification:
    """What an offline look at a ledger found."""

    lines: int = 0  # that are as they were written
    contributions: int = 0
    jobs: int = 0
    signed_ends: int = 0
    unsigned: int = 0  # contributions since the last signed end: so far only the chain speaks for them
    torn: int = 0  # times that a line was cut off because the daemon was killed in it
    head: str = ""  # hex
    bad_line: int | None = None  # the first that is not as it was written; None: no single line is to blame
    problem: str = ""  # empty: none was found

    @property
    def ok(self) -> bool:
        return not self.problem

    @property
    def sentence(self) -> str:
        if not self.ok:
            return f"line {self.bad_line:,}: {self.problem}" if self.bad_line else self.problem
        counted = f"{self.contributions:,} contributions in {self.jobs:,} jobs, {self.signed_ends:,} signed ends"
        return f"{counted}; {self.unsigned:,} contributions since the last of them" if self.unsigned else counted


def verify(path: Path, *certificates: x509.Certificate, head: bytes | None = None) -> Verification:
    """Whether every line is as it was written, and every end signed by a key of one of these certificates.

    `head` is one that was kept elsewhere: then also whether it is that of a line here. Raises InputError when there is
    no ledger to look at.
    """
    found, before, jobs, wanted = Verification(), NO_LINES, set(), head
    for number, raw in enumerate(raw_lines(path), 1):
        try:
            before, line = checked(raw, before)
            _check_place(line, number, certificates)
            if line["kind"] == "end":
                _check_signature(line, certificates, bytes.fromhex(found.head))
        except Broken as error:
            return replace(found, bad_line=number, problem=str(error))
        if "job" in line:
            jobs.add(str(line["job"]))
        found = _counted(found, line, before, len(jobs))
        wanted = None if wanted == before else wanted
    if not found.lines:
        return replace(found, problem="it is empty: even a new ledger has a first line")
    if wanted is not None:
        problem = "no line has this head: lines that were here when it was noted are gone, or are others now"
        return replace(found, problem=problem)
    return found


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """Every line, as it stands there; nothing is verified. Nothing where there is no ledger yet."""
    if not path.exists():
        return
    for number, raw in enumerate(raw_lines(path), 1):
        if not raw.endswith(b"\n"):
            return  # being written, or torn
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict) or not _KEYS.get(str(line.get("kind")), {"?"}) <= set(line):
            raise InputError(f"{path}, line {number}: is damaged: see ce-client ledger verify")
        yield line


def _check_place(line: dict[str, Any], number: int, certificates: Iterable[x509.Certificate]) -> None:
    if line["n"] != number:
        raise Broken(f"says that it is line {line['n']}")
    if (line["kind"] == "ledger") != (number == 1):
        raise Broken("a ledger begins with a line of the kind ledger, and has only one")
    if number == 1:
        if line.get("version") != VERSION:
            raise Broken("is of a version of the ledger that this release does not know")
        for certificate in certificates:
            named = identity_of(certificate).name
            if line.get("site") != named:
                raise Broken(f"is the ledger of another site than {named}")


def _check_signature(line: dict[str, Any], certificates: Sequence[x509.Certificate], before: bytes) -> None:
    """What is signed is the head that the line would have without its signature."""
    unsigned = {key: value for key, value in line.items() if key != "signature"}
    message = chained(before, canonical(unsigned))
    for certificate in certificates:
        try:
            signature = bytes.fromhex(str(line.get("signature")))
            verify_signature(certificate, signature, message, purpose=PURPOSE, field="signature")
        except (CeError, ValueError):
            continue
        return
    raise Broken("is not signed by this site's key: give the certificate that was valid then, if the key has changed")


def _counted(found: Verification, line: dict[str, Any], head: bytes, jobs: int) -> Verification:
    kind = line["kind"]
    sent, ended = kind == "contribution", kind == "end"
    return replace(
        found,
        lines=found.lines + 1,
        contributions=found.contributions + sent,
        jobs=jobs,
        signed_ends=found.signed_ends + ended,
        unsigned=0 if ended else found.unsigned + sent,
        torn=found.torn + (kind == "torn"),
        head=head.hex(),
    )
