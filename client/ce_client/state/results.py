"""A job's results at the site: `results/JOB/consensus.csv` and `report.json`; both are written, or neither."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Callable
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

CONSENSUS, REPORT = "consensus.csv", "report.json"


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
            self._directory.mkdir(parents=True, exist_ok=True)
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
        if os.path.lexists(target) and _digest_in(target / REPORT) != digest.hex():
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
        """Write both files to a temporary directory, then rename it; results of an earlier attempt are replaced."""
        target = self.of(job.name)
        partial = self._directory / f".{uuid4().hex}.part"
        try:
            partial.mkdir(parents=True)
            write_consensus(partial / CONSENSUS, ids, labels, memberships, classes, excluded, cell=self._cell)
            (partial / REPORT).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
            for path in (partial / CONSENSUS, partial / REPORT):
                _sync(path)
            if target.exists():
                shutil.rmtree(target)
            partial.replace(target)
            _sync(self._directory)
        except (OSError, InputError) as error:
            raise JobFailed("this site cannot write its results: see its log, make room or set permissions") from error
        finally:
            with contextlib.suppress(OSError):
                shutil.rmtree(partial)
        return target


def _digest_in(report: Path) -> str | None:
    """The job digest in a report; None if the file is not a report."""
    try:
        handle = os.open(report, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                return None
            digest = json.loads(file.read()).get("job_digest")
            return digest if isinstance(digest, str) else None
    except (OSError, ValueError, AttributeError, RecursionError):
        return None


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
