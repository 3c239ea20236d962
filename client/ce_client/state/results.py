"""A job's results at the site: `results/JOB/consensus.csv` and `report.json`; both are there, or neither.

They are written when this site has finished, before it says so, to a hidden directory: the job may still fail. When the
coordinator says that the job is done, the directory gets the name of the job; when the job failed, it is removed. Only
the daemon's user can read them.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
from numpy.typing import NDArray

from ce.consensus_file import as_it_is, write_consensus
from ce.errors import ConfigError, InputError, JobFailed, Refused
from ce.job import Job
from ce.protocol.topology.site_view import Categories
from ce.ring import Reals
from ce.service.atomic_files import PRIVATE, PRIVATE_DIRECTORY, make_directory
from ce_client.state.files import name_of

CONSENSUS, REPORT = "consensus.csv", "report.json"
#: How the names of hidden directories end, with results of jobs that are not over.
_UNPUBLISHED = ".unpublished"


class Results:
    """The result directory of one site."""

    def __init__(self, directory: Path, cell: Callable[[Any], Any] = as_it_is) -> None:
        """`cell` converts ids and labels before they are written."""
        self._directory = directory
        self._cell = cell

    def of(self, job: str) -> Path:
        """The directory of a job's results."""
        return self._directory / job

    def check_writable(self) -> None:
        """Raises ConfigError if results could not be written: call it before the job is computed."""
        try:
            make_directory(self._directory)
            probe = self._directory / f".{uuid4().hex}.part"
            probe.mkdir()
            probe.rmdir()
        except OSError as error:
            raise ConfigError(
                f"{self._directory}: cannot be written: {error.strerror}: results is a directory that the daemon may "
                "write to"
            ) from error

    def refuse_other(self, job: Job, digest: bytes) -> None:
        """Raises Refused if there are results of another job of this name, which would be overwritten."""
        target = self.of(job.name)
        if target.is_symlink():
            raise ConfigError(f"{target}: is a symbolic link, and results are not written through links: remove it")
        if os.path.lexists(target) and _report_in(target).get("job_digest") != digest.hex():
            raise Refused(
                "results of another job",
                f"this site has results of another job named {job.name}: give the new one another name",
            )

    def write(
        self,
        job: Job,
        ids: NDArray[np.str_],
        labels: NDArray[Any],
        memberships: Reals,
        classes: Categories,
        report: dict[str, Any],
        excluded: NDArray[np.bool_] | None = None,
    ) -> Path:
        """Write both files to a temporary directory, then rename it to the hidden one, which `publish` renames.

        Those of an earlier attempt are replaced.
        """
        target, unpublished = self.of(job.name), self._unpublished(job.name)
        partial = self._directory / f".{uuid4().hex}.part"
        try:
            make_directory(self._directory)
            partial.mkdir(mode=PRIVATE_DIRECTORY)
            write_consensus(partial / CONSENSUS, ids, labels, memberships, classes, excluded, cell=self._cell)
            (partial / REPORT).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
            for path in (partial / CONSENSUS, partial / REPORT):
                path.chmod(PRIVATE)
                _sync(path)
            if target.is_symlink():
                raise NotADirectoryError(f"{target}: is a symbolic link")
            _move(partial, unpublished)
        except (OSError, InputError) as error:
            raise JobFailed("this site cannot write its results: see its log, make room or set permissions") from error
        finally:
            with contextlib.suppress(OSError):
                shutil.rmtree(partial)
        return unpublished

    def publish(self, job: str, epoch: int) -> Path | None:
        """The job is done: its results get their name. None: there are none of this attempt. Raises ConfigError."""
        target, unpublished = self.of(job), self._unpublished(job)
        if _report_in(unpublished).get("epoch") != epoch:
            return None
        try:
            if target.is_symlink():
                raise NotADirectoryError(f"{target}: is a symbolic link")
            _move(unpublished, target)
        except OSError as error:
            raise ConfigError(
                f"{unpublished} has the results of job {job}, and cannot be renamed to {target}: "
                f"{error.strerror or error}: remove what is in the way, then restart the daemon"
            ) from error
        return target

    def discard(self, job: str) -> bool:
        """The job is over without results: remove those that were not published; False if there were none."""
        unpublished = self._unpublished(job)
        if not os.path.lexists(unpublished):
            return False
        shutil.rmtree(unpublished, ignore_errors=True)
        return True

    def discard_all_but(self, jobs: Iterable[str]) -> None:
        """Remove unpublished results of all jobs but these."""
        keep = {self._unpublished(job) for job in jobs}
        for path in self._directory.glob(f".*{_UNPUBLISHED}"):
            if path not in keep:
                shutil.rmtree(path, ignore_errors=True)

    def _unpublished(self, job: str) -> Path:
        return self._directory / f".{name_of(job)}{_UNPUBLISHED}"


def _move(source: Path, target: Path) -> None:
    """Rename a directory of results; what has the new name is removed."""
    if target.exists():
        shutil.rmtree(target)
    source.replace(target)
    _sync(target.parent)


def _report_in(directory: Path) -> dict[str, Any]:
    """The report in a directory of results; empty if there is none."""
    try:
        handle = os.open(directory / REPORT, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            report = json.loads(file.read()) if stat.S_ISREG(os.fstat(handle).st_mode) else None
            return report if isinstance(report, dict) else {}
    except (OSError, ValueError, RecursionError):
        return {}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
