"""Writes to disks of a played world: each may be the last that its process makes."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import ce.service.atomic_files
from ce.service.checkpoints import CheckpointId, MemoryCheckpoints
from ce_client.state.ledger import Ledger
from ce_client.state.releases.database import ReleaseDatabase


class Killed(BaseException):
    """The process at work is killed. Not an Exception: no code under test may catch it."""


class Disks:
    """Counts the writes of the process at work, and kills it before or after the one that was chosen."""

    def __init__(self, at_work: str) -> None:
        self.at_work = at_work
        self._planned: dict[str, tuple[int, bool]] = {}  # by process: writes until it is killed; before that write?

    def kill_at(self, process: str, count: int, *, before: bool) -> None:
        """Kill a process at its `count`-th write from now, before or after the write happens."""
        self._planned[process] = (count, before)

    def forget(self, process: str) -> None:
        """Cancel what `kill_at` has planned."""
        self._planned.pop(process, None)

    def write(self, work: Callable[[], None]) -> None:
        """One write of the process at work."""
        self._maybe_kill(before=True)
        work()
        self._maybe_kill(before=False)

    def _maybe_kill(self, before: bool) -> None:
        planned = self._planned.get(self.at_work)
        if planned is None or planned[1] != before:
            return
        count = planned[0] - 1
        self._planned[self.at_work] = (count, before)
        if count <= 0:
            del self._planned[self.at_work]
            raise Killed

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        """Let the writes of sites pass through here: files that are replaced as a whole, lines of ledgers, and
        transactions of sealed jobs."""
        disks = self
        atomic_write, append = ce.service.atomic_files.atomic_write, Ledger._append
        transaction = ReleaseDatabase.transaction

        class OneWrite:
            """A file that is replaced as a whole is one write: it happens, or it does not."""

            def __init__(self, path: Path) -> None:
                self._inner = atomic_write(path)

            def __enter__(self) -> Any:
                disks._maybe_kill(before=True)
                return self._inner.__enter__()

            def __exit__(self, *exception: Any) -> Any:
                found = self._inner.__exit__(*exception)
                disks._maybe_kill(before=False)
                return found

        def append_line(ledger: Ledger, *line: Any, **how: Any) -> bytes:
            found: list[bytes] = []
            disks.write(lambda: found.append(append(ledger, *line, **how)))
            return found[0]

        @contextlib.contextmanager
        def one_transaction(database: ReleaseDatabase) -> Iterator[sqlite3.Connection]:
            disks._maybe_kill(before=True)
            with transaction(database) as opened:
                yield opened
            disks._maybe_kill(before=False)

        with contextlib.ExitStack() as patches:
            # Processes are killed here, not machines: no need to wait for the disk.
            patches.enter_context(mock.patch("os.fsync", return_value=None))
            for module in ("ce.service.checkpoints", "ce_client.state.files"):
                patches.enter_context(mock.patch(f"{module}.atomic_write", OneWrite))
            patches.enter_context(mock.patch.object(Ledger, "_append", append_line))
            patches.enter_context(mock.patch.object(ReleaseDatabase, "transaction", one_transaction))
            patches.enter_context(mock.patch.object(ReleaseDatabase, "connection_class", _Unsynced))
            yield


class _Unsynced(sqlite3.Connection):
    """Writes are in the file when a transaction ends, but do not wait for the disk."""

    def execute(self, statement: str, *values: Any) -> sqlite3.Cursor:
        return super().execute(statement.replace("synchronous = FULL", "synchronous = OFF"), *values)


class CoordinatorCheckpoints(MemoryCheckpoints):
    """The coordinator's checkpoints; each is one write. They outlive its process."""

    def __init__(self, disks: Disks) -> None:
        super().__init__()
        self._disks = disks

    def save(self, job: str, context: bytes, checkpoint_id: CheckpointId, snapshot: Mapping[str, Any]) -> None:
        """Save one more as one write; the two newest of a job stay."""
        self._disks.write(lambda: super(CoordinatorCheckpoints, self).save(job, context, checkpoint_id, snapshot))

    def all_ids(self, job: str) -> set[CheckpointId]:
        """Those that are saved now, of any context."""
        return set(self._saved.get(job, {}))
