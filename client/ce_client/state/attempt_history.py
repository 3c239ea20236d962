"""What a site remembers of a job from one attempt to the next, so that two cannot be played against each other.

Two attempts at a job have the same starts. Were the labels, the rules or who shares what with whom different in them,
the difference of two totals would be one site's part. So the first attempt says how it is, and a later one that is not
the same is refused; so is every later one of a job that this site has refused. Rounds are counted over all attempts.
"""

from __future__ import annotations

import hashlib
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from ce.errors import Refused
from ce.policy import Policy
from ce.privacy.derivation import joined
from ce_client.state.files import damaged, name_of, read_json, remove, write_json

DIRECTORY = "attempts"
RULE = "same in every attempt"


@dataclass(frozen=True)
class AttemptRecord:
    """Of one job: kept as long as the site keeps anything of it."""

    job_digest: str  # hex
    labels: str = ""  # SHA-256 of the label file
    rules: str = ""  # SHA-256 of the policy
    alignments: dict[str, str] = field(default_factory=dict)  # by revision and sites: SHA-256 of what was told
    rounds: int = 0  # answered, over all attempts
    refused: str = ""  # the rule or the reason, if this site has refused


class AttemptHistory:
    """The attempts at all jobs, below the state directory."""

    def __init__(self, state: Path) -> None:
        self._directory = state / DIRECTORY

    def of(self, job: str, job_digest: bytes) -> AttemptRecord:
        """What is known of a job. Refused when it is of another one of the same name, which has the same starts."""
        written = read_json(self._path(job))
        if written is None:
            return AttemptRecord(job_digest.hex())
        try:
            known = AttemptRecord(**written)
            sound = isinstance(known.alignments, dict) and type(known.rounds) is int and known.rounds >= 0
        except TypeError as error:
            raise damaged(self._path(job)) from error
        if not sound:
            raise damaged(self._path(job))
        if known.job_digest != job_digest.hex():
            raise Refused(RULE, "this site was in another job of this name: submit this one by another name")
        return known

    def begin(self, job: str, job_digest: bytes, labels: bytes, policy: Policy) -> AttemptRecord:
        """An attempt begins: with the same labels and rules as those before it, or not at all."""
        known = self.of(job, job_digest)
        if known.refused:
            raise Refused(
                RULE, "this site has refused this job, and does not look at it again: submit it by another name"
            )
        rules = hashlib.sha256(repr(policy).encode()).hexdigest()
        if known.labels and (known.labels, known.rules) != (labels.hex(), rules):
            raise Refused(
                RULE,
                "the labels or the rules of this site have changed since the job began, and totals of both would show "
                "the difference: submit it by another name",
            )
        return self._write(job, replace(known, labels=labels.hex(), rules=rules))

    def align(self, job: str, known: AttemptRecord, alignment: str, *said: bytes) -> AttemptRecord:
        """What an alignment says, which every attempt must say alike."""
        told = hashlib.sha256(joined(*said)).hexdigest()
        before = known.alignments.get(alignment)
        if before not in (None, told):
            raise Refused(
                RULE,
                "who shares what with whom is not what it was in an earlier attempt at this job, and totals of both "
                "would show the difference: submit it by another name",
            )
        return self._write(job, replace(known, alignments={**known.alignments, alignment: told}))

    def end(self, job: str, known: AttemptRecord, rounds: int, refused: str = "") -> AttemptRecord:
        """An attempt is over, or this site is out of it."""
        return self._write(job, replace(known, rounds=rounds, refused=known.refused or refused))

    def forget(self, job: str) -> bool:
        """Whether there was anything to forget."""
        return remove(self._path(job))

    def _write(self, job: str, known: AttemptRecord) -> AttemptRecord:
        write_json(self._path(job), asdict(known))
        return known

    def _path(self, job: str) -> Path:
        return self._directory / f"{name_of(job)}.json"
