"""What a site stores of a job from one attempt to the next, so that totals of two attempts cannot be subtracted.

All attempts at a job have the same starts. If labels, policy or topology changed between two attempts, the difference
of their totals would be one site's part. So the first attempt fixes all three, and a later attempt in which one of them
differs is refused. After a refusal the site refuses every later attempt as well. Rounds are counted over all attempts,
and so are attempts at a sealed job that send masked words and open nothing.
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
    """The attempts at one job so far. It is stored until `ce-client forget`."""

    job_digest: str  # hex
    labels: str = ""  # SHA-256 of the label file
    rules: str = ""  # SHA-256 of the policy's repr
    alignments: dict[str, str] = field(default_factory=dict)  # by revision and absent sites: SHA-256 of the alignment
    rounds: int = 0  # answered, over all attempts
    masked: int = 0  # attempts at a sealed job in which masked words have left, without tables of an earlier one
    refused: str = ""  # the error's class if this site has refused the job


class AttemptHistory:
    """The attempts at all jobs, below the state directory."""

    def __init__(self, state: Path) -> None:
        self._directory = state / DIRECTORY

    def of(self, job: str, job_digest: bytes) -> AttemptRecord:
        """The record of a job. Raises Refused if another job had this name: attempts of both would be taken for one."""
        content = read_json(self._path(job))
        if content is None:
            return AttemptRecord(job_digest.hex())
        try:
            record = AttemptRecord(**content)
            counts = (record.rounds, record.masked)
            sound = isinstance(record.alignments, dict) and all(type(one) is int and one >= 0 for one in counts)
        except TypeError as error:
            raise damaged(self._path(job)) from error
        if not sound:
            raise damaged(self._path(job))
        if record.job_digest != job_digest.hex():
            raise Refused(RULE, "this site was in another job of this name: submit this one by another name")
        return record

    def begin(self, job: str, job_digest: bytes, labels: bytes, policy: Policy) -> AttemptRecord:
        """Begin an attempt. Raises Refused unless labels and policy are those of the attempts before it."""
        record = self.of(job, job_digest)
        if record.refused:
            raise Refused(
                RULE, "this site has refused this job, and does not look at it again: submit it by another name"
            )
        rules = hashlib.sha256(repr(policy).encode()).hexdigest()
        if record.labels and (record.labels, record.rules) != (labels.hex(), rules):
            raise Refused(
                RULE,
                "the labels or the rules of this site have changed since the job began, and totals of both would show "
                "the difference: submit it by another name",
            )
        return self._write(job, replace(record, labels=labels.hex(), rules=rules))

    def align(self, job: str, record: AttemptRecord, alignment: str, *parts: bytes) -> AttemptRecord:
        """Store the digest of an alignment. Raises Refused if it was another one in an earlier attempt."""
        digest = hashlib.sha256(joined(*parts)).hexdigest()
        if record.alignments.get(alignment, digest) != digest:
            raise Refused(
                RULE,
                "who shares what with whom is not what it was in an earlier attempt at this job, and totals of both "
                "would show the difference: submit it by another name",
            )
        return self._write(job, replace(record, alignments={**record.alignments, alignment: digest}))

    def mask(self, job: str, record: AttemptRecord, most: int) -> AttemptRecord:
        """Masked words of a sealed job are about to leave. Raises Refused if they have in `most` attempts."""
        if record.masked >= most:
            raise Refused(
                "limits.attempts_per_job",
                f"masked words of this job have left this site in {record.masked:,} attempts, none of which has opened "
                "its tables, and it allows no more: find out why they failed, then submit it by another name",
            )
        return self._write(job, replace(record, masked=record.masked + 1))

    def end(self, job: str, record: AttemptRecord, rounds: int, refused: str = "") -> AttemptRecord:
        """Store the rounds answered so far and, if this site has refused the job, why. A refusal stays."""
        return self._write(job, replace(record, rounds=rounds, refused=record.refused or refused))

    def forget(self, job: str) -> bool:
        """Remove the record; False if there was none."""
        return remove(self._path(job))

    def _write(self, job: str, record: AttemptRecord) -> AttemptRecord:
        write_json(self._path(job), asdict(record))
        return record

    def _path(self, job: str) -> Path:
        return self._directory / f"{name_of(job)}.json"
