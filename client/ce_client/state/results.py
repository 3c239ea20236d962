"""A job's results at the site: `results/JOB/consensus.csv` and `report.json`, there as a whole or not at all."""

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
        """`cell`: how ids and labels are written."""
        self._directory = directory
        self._cell = cell

    def of(self, job: str) -> Path:
        return self._directory / job

    def check_writable(self) -> None:
        """Raises ConfigError before a job is computed whose results would have nowhere to go."""
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
        """A job whose name stands for another job's results here is refused, before it can overwrite them."""
        target = self.of(job.name)
        if target.is_symlink():
            raise ConfigError(f"{target}: is a link, and nothing is written through it: remove it")
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
        """Everything into a directory aside, which then takes its place; results of an earlier attempt are replaced."""
        target = self.of(job.name)
        aside = self._directory / f".{uuid4().hex}.part"
        try:
            aside.mkdir(parents=True)
            write_consensus(aside / CONSENSUS, ids, labels, memberships, classes, excluded, cell=self._cell)
            (aside / REPORT).write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
            for path in (aside / CONSENSUS, aside / REPORT):
                _sync(path)
            if target.exists():
                shutil.rmtree(target)
            aside.replace(target)
            _sync(self._directory)
        except (OSError, InputError) as error:
            raise JobFailed("this site cannot write its results: see its log, make room or set permissions") from error
        finally:
            with contextlib.suppress(OSError):
                shutil.rmtree(aside)
        return target


def _digest_in(report: Path) -> str | None:
    """Of the job that a report is of; None when it is none, or something else has its name."""
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
