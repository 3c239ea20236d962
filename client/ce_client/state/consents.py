"""Decisions of a site's people about jobs: one file per job, valid for that job definition and roster only."""

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
    """The decisions of one site, below its state directory."""

    def __init__(self, state: Path) -> None:
        self._directory = state / DIRECTORY

    def decide(self, job: str, digest: bytes, roster: Iterable[str], decision: Decision) -> None:
        """Write a decision; it replaces an earlier one."""
        content = {"job": job, "job_digest": digest.hex(), "roster": sorted(roster), "decision": decision}
        write_json(self._path(job), {**content, "at": time.time()})

    def decision(self, job: str, digest: bytes, roster: Iterable[str]) -> Decision | None:
        """The decision about this job; None: there is none yet.

        Raises Refused if the decision was about another job definition or roster of the same name.
        """
        content = read_json(self._path(job))
        if content is None:
            return None
        try:
            decision = content["decision"]
            subject = (content["job"], content["job_digest"], content["roster"])
        except (TypeError, KeyError) as error:
            raise damaged(self._path(job)) from error
        if decision not in ("approved", "declined"):
            raise damaged(self._path(job))
        if subject != (job, digest.hex(), sorted(roster)):
            raise Refused(
                RULE,
                f"the job is not the one that was {decision} here: its definition or its sites have changed since; "
                "submit it under another name, or see ce-client preview and decide again",
            )
        return "approved" if decision == "approved" else "declined"

    def forget(self, job: str) -> bool:
        """Remove the decision; False if there was none."""
        return remove(self._path(job))

    def _path(self, job: str) -> Path:
        return self._directory / f"{name_of(job)}.json"
