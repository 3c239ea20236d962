"""What the people of this site said to a job: one small file per job, bound to the very job and roster they saw."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from ce.errors import Refused
from ce_client.state.files import damaged, name_of, read_json, remove, write_json

Decision = Literal["approved", "declined"]
DIRECTORY = "consents"
RULE = "consent"


class Consents:
    """Those of one site, below its state directory."""

    def __init__(self, state: Path) -> None:
        self._directory = state / DIRECTORY

    def decide(self, job: str, digest: bytes, roster: Iterable[str], decision: Decision) -> None:
        """Write down what was said; it takes the place of what was said before."""
        said = {"job": job, "job_digest": digest.hex(), "roster": sorted(roster), "decision": decision}
        write_json(self._path(job), {**said, "at": time.time()})

    def decision(self, job: str, digest: bytes, roster: Iterable[str]) -> Decision | None:
        """What was said to this job; None: nothing yet. Refused when it was said to another job of that name."""
        said = read_json(self._path(job))
        if said is None:
            return None
        try:
            decision, seen = said["decision"], (said["job"], said["job_digest"], said["roster"])
        except (TypeError, KeyError) as error:
            raise damaged(self._path(job)) from error
        if decision not in ("approved", "declined"):
            raise damaged(self._path(job))
        if seen != (job, digest.hex(), sorted(roster)):
            raise Refused(
                RULE,
                f"the job is not the one that was {decision} here: its definition or its sites have changed since; "
                "submit it under another name, or see ce-client preview and decide again",
            )
        return "approved" if decision == "approved" else "declined"

    def forget(self, job: str) -> bool:
        """Whether there was anything to forget."""
        return remove(self._path(job))

    def _path(self, job: str) -> Path:
        return self._directory / f"{name_of(job)}.json"
