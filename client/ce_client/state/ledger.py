"""The disclosure ledger: what has left this site, contribution by contribution, in one file that only grows.

It proves which bytes were sent, when, in which job, under which mode and into totals with whom; not what they mean.
Every line is chained to all lines before it, and the end of every attempt at a job is signed with the site's key.
`verify` finds, offline, a line that was changed, removed, moved or inserted. docs/ledger.md describes the format and
what cannot be found.

`record` returns after the operating system has the line, so that a daemon that is killed has sent nothing that is not
in the ledger; the line is on the disk when the attempt ends. A line contains hashes of arrays, names of arrays, columns
and sites, and sizes; never a label, an id, a category or a key.
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
from ce.protocol.messages.task import Array
from ce.service.atomic_files import make_directory
from ce_client.state.contributed_arrays import Body, ContributedArrays
from ce_client.state.hash_chain import (
    NO_LINES,
    BrokenLine,
    canonical,
    chained,
    check_line,
    raw_lines,
    split,
    with_hash,
)

FILE_NAME = "ledger.jsonl"
#: The purpose of the signatures: see `ce.identity.certificates.sign`.
PURPOSE = "ce ledger 1"
VERSION = 1
PRIVATE = 0o600

_ALWAYS = {"n", "kind", "time_s", "hash"}
#: The keys that each kind of line has in ledgers of every version.
_KEYS = {
    "ledger": _ALWAYS | {"version", "site"},
    "begin": _ALWAYS | {"job", "epoch", "job_digest", "roster", "mode", "randomise", "epsilon"},
    "contribution": _ALWAYS | {"job", "epoch", "round", "arrays", "notes"},
    "disclosure": _ALWAYS | {"job", "definition", "mode", "objects", "sha256"},
    "allow-roster": _ALWAYS | {"job", "roster"},
    "allow-definition": _ALWAYS | {"job", "definition", "mode"},
    "allow-redraw": _ALWAYS | {"job", "column", "epsilon"},
    "charge": _ALWAYS | {"job", "objects", "rho", "epsilon", "delta", "sha256", "state"},
    "release": _ALWAYS | {"job", "epoch", "size", "sha256"},
    "model": _ALWAYS | {"job", "sha256"},
    "labelling": _ALWAYS | {"job", "block", "objects", "sha256"},
    "allow-release": _ALWAYS | {"job", "definition"},
    "end": _ALWAYS | {"job", "epoch", "state", "signature"},
    "torn": _ALWAYS | {"bytes"},
}
#: Bytes per read, from the end, when the last two lines are searched.
_READ_BYTES = 1 << 16


class Ledger:
    """A site's ledger, open for writing. Only its daemon opens it; several jobs may write concurrently."""

    def __init__(self, path: Path, site: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        try:
            make_directory(path.parent)
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
        """The hash of the last line, which covers all lines so far."""
        return self._head

    @property
    def size(self) -> int:
        """The size of the file in bytes."""
        return self._size

    def begin(
        self,
        job: str,
        epoch: int,
        job_digest: bytes,
        roster: Iterable[str],
        mode: str,
        randomise: float = 0.0,
        epsilon: Mapping[str, float | None] | None = None,
        definition: Mapping[str, Any] | None = None,
        epsilon_row: float | None = None,
    ) -> bytes:
        """Record that an attempt at a job begins. Returns the new head.

        `epsilon` of randomised response is that of a label, by column, over all draws so far; None: without limit.
        `epsilon_row` is that of all labels of an object, and recorded if labels are randomised. `definition`: every key
        of the job.
        """
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
                **({"epsilon_row": epsilon_row} if randomise else {}),
                "definition": dict(definition or {}),
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
        """Record one contribution. Call it before the contribution is sent. Returns the new head.

        `arrays` are the words that are sent, `mode` the mode of all arrays or of each, `contributors` the sites whose
        parts are in each array's total.
        """
        described = ContributedArrays(arrays, mode, contributors)
        return self._append_body(described.line(job, epoch, round, arrays, notes))

    def contribution(
        self, job: str, epoch: int, round: int, described: ContributedArrays, arrays: Mapping[str, Array]
    ) -> bytes:
        """The same as `record`, for arrays that `described` fits."""
        return self._append_body(described.line(job, epoch, round, arrays))

    def disclosure(self, job: str, definition: str, mode: str, objects: int, sha256: str) -> bytes:
        """Record that totals of objects that several sites hold are about to be opened.

        `definition` names the file in `disclosures` that has their keyed ids, `sha256` is of that file.
        """
        line = {"kind": "disclosure", "job": job, "definition": definition, "mode": mode}
        return self._append({**line, "objects": objects, "sha256": sha256})

    def allow_definition(self, job: str, definition: str, mode: str) -> bytes:
        """Record the first use of an allowance: one more definition opens totals than the policy allows."""
        return self._append({"kind": "allow-definition", "job": job, "definition": definition, "mode": mode})

    def allow_roster(self, job: str, roster: Iterable[str]) -> bytes:
        """Record the first use of an allowance: label files go into totals of this roster beside those of another."""
        return self._append({"kind": "allow-roster", "job": job, "roster": sorted(roster)})

    def allow_redraw(self, job: str, column: str, epsilon: float | None) -> bytes:
        """Record the first use of another draw of a column's labels, and the epsilon of a label over all draws."""
        return self._append({"kind": "allow-redraw", "job": job, "column": column, "epsilon": epsilon})

    def about_release(self, kind: str, job: str, **values: str | float | None) -> bytes:
        """Record a change of what a sealed job has cost or opened (`ce_client.state.releases.ledger_lines`).

        When it returns, the line is on the disk. Returns the new head.
        """
        return self._append({"kind": kind, "job": job, **values}, sync=True)

    def end(self, job: str, epoch: int, state: str, sign: Callable[[bytes], bytes]) -> bytes:
        """Record that an attempt is over, and sign the head. Returns the new head.

        When it returns, all lines are on the disk. `sign` is `ce.identity.certificates.sign` with the site's key and
        PURPOSE.
        """
        return self._append({"kind": "end", "job": job, "epoch": epoch, "state": state}, sign)

    # Opening.

    def _continue(self, site: str) -> None:
        """Find the head, and cut off an incomplete last line: the daemon was killed before it sent that one."""
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
        """The bytes of an incomplete last line, and the last two complete lines if the file has two."""
        begin, found = size, b""
        while begin > 0 and found.count(b"\n") < 3:
            length = min(_READ_BYTES, begin)
            begin -= length
            found = os.pread(self._descriptor, length, begin) + found
        *lines, torn = found.split(b"\n")
        return len(torn), [line + b"\n" for line in lines[-2:]]

    def _read_last(self, lines: list[bytes]) -> tuple[bytes, int]:
        """Head and number of the last line, which must continue the line before it. `verify` checks the others."""
        before = NO_LINES
        if len(lines) == 2:
            parts = split(lines[0])
            before = b"" if parts is None else bytes.fromhex(parts[1])
        try:
            head, line = check_line(lines[-1], before)
        except BrokenLine as error:
            raise ConfigError(
                f"{self._path}: its last lines are not as the daemon wrote them: see ce-client ledger verify; to "
                "continue, move the file to an archive"
            ) from error
        return head, line["n"]

    def _refuse_other(self, site: str) -> None:
        first = next(entries(self._path))
        if first.get("site") != site:
            raise ConfigError(f"{self._path}: is not the ledger of site {site}: give each site its own state directory")

    # Writing.

    def _append(
        self, line: dict[str, Any], sign: Callable[[bytes], bytes] | None = None, *, sync: bool = False
    ) -> bytes:
        def body(number: int, time_s: float) -> bytes:
            whole = {**line, "n": number, "time_s": time_s}
            if sign is not None:
                whole["signature"] = sign(chained(self._head, canonical(whole))).hex()
            return canonical(whole)

        return self._append_body(body, sync=sync or sign is not None)

    def _append_body(self, body_of: Body, *, sync: bool = False) -> bytes:
        """Append the line that has this body, given its number and the time. Returns the new head."""
        with self._lock:
            if self._descriptor < 0:
                raise JobFailed("the ledger is closed: the daemon is stopping")
            self._refuse_changed()
            body = body_of(self._number + 1, round(time.time(), 3))
            head = chained(self._head, body)
            self._write(with_hash(body, head))
            self._head, self._number = head, self._number + 1
            if sync:
                self._sync()
        return head

    def _refuse_changed(self) -> None:
        """Raises JobFailed if the file was moved or changed: the chain would break, or later lines would be lost."""
        try:
            at_path, opened = self._path.stat(), os.fstat(self._descriptor)
            moved = at_path.st_ino != opened.st_ino or at_path.st_dev != opened.st_dev
            changed = opened.st_size != self._size
        except OSError:
            moved = changed = True
        if moved or changed:
            problem = "moved or removed" if moved else "changed by another program"
            raise JobFailed(
                f"the ledger of this site was {problem} while its daemon runs, and nothing is sent without it: "
                "put the right file in its place, then restart the daemon"
            )

    def _write(self, line: bytes) -> None:
        """Write the whole line, or nothing."""
        done = 0
        try:
            while done < len(line):
                done += os.write(self._descriptor, line[done:])
        except OSError as error:
            try:
                os.ftruncate(self._descriptor, self._size)
            except OSError:
                # An incomplete line stays. With this size every further line is refused.
                self._size = -1
            raise JobFailed(
                f"the ledger of this site cannot be written ({error.strerror}): nothing is sent without it; make room"
            ) from error
        self._size += len(line)

    def _sync(self) -> None:
        try:
            os.fsync(self._descriptor)
        except OSError as error:
            raise JobFailed(
                f"the ledger of this site cannot be written to its disk ({error.strerror}): make room"
            ) from error


# Reading.


@dataclass(frozen=True)
class Verification:
    """The outcome of `verify`."""

    lines: int = 0  # checked and found as they were written
    contributions: int = 0
    jobs: int = 0
    signed_ends: int = 0
    unsigned: int = 0  # contributions since the last signed end: only the chain protects them
    torn: int = 0  # incomplete lines that were cut off after the daemon was killed
    head: str = ""  # hex
    bad_line: int | None = None  # the first line with a problem; None: the problem is in no single line
    problem: str = ""  # empty: no problem was found

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
    """Check that every line is as it was written, and that every end is signed with the key of a certificate.

    `head` is a head that was stored elsewhere: if it is given, one of the lines must have it. Raises InputError if
    the file cannot be read.
    """
    found, before, jobs, wanted = Verification(), NO_LINES, set(), head
    for number, raw in enumerate(raw_lines(path), 1):
        try:
            before, line = check_line(raw, before)
            _check_place(line, number, certificates)
            if line["kind"] == "end":
                _check_signature(line, certificates, bytes.fromhex(found.head))
        except BrokenLine as error:
            return replace(found, bad_line=number, problem=str(error))
        if "job" in line:
            jobs.add(str(line["job"]))
        found = _counted(found, line, before, len(jobs))
        wanted = None if wanted == before else wanted
    if not found.lines:
        return replace(found, problem="the file is empty: even a new ledger has a first line")
    if wanted is not None:
        problem = "no line has this head: since it was noted, lines were removed or changed"
        return replace(found, problem=problem)
    return found


def entries(path: Path) -> Iterator[dict[str, Any]]:
    """Every line, not verified. None if there is no ledger yet."""
    if not path.exists():
        return
    for number, raw in enumerate(raw_lines(path), 1):
        if not raw.endswith(b"\n"):
            return  # a line that is being written, or was torn
        try:
            line = json.loads(raw)
        except (ValueError, RecursionError):
            line = None
        if not isinstance(line, dict) or not _KEYS.get(str(line.get("kind")), {"?"}) <= set(line):
            raise InputError(f"{path}, line {number}: is damaged: see ce-client ledger verify")
        yield line


def _check_place(line: dict[str, Any], number: int, certificates: Iterable[x509.Certificate]) -> None:
    if line["n"] != number:
        raise BrokenLine(f"its number is {line['n']}")
    if (line["kind"] == "ledger") != (number == 1):
        raise BrokenLine("a ledger begins with a line of the kind ledger, and has only one")
    if number == 1:
        if line.get("version") != VERSION:
            raise BrokenLine("is of a version of the ledger that this release does not know")
        for certificate in certificates:
            named = identity_of(certificate).name
            if line.get("site") != named:
                raise BrokenLine(f"is the ledger of another site than {named}")


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
    raise BrokenLine(
        "is not signed by this site's key: give the certificate that was valid then, if the key has changed"
    )


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
