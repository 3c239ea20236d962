"""One attempt at a job, as every party in it knows it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

from ce.privacy.derivation import joined, number

#: Alignments of one attempt: each leaves out what fell below a minimum in the one before.
MOST_REVISIONS = 20


@dataclass(frozen=True)
class Attempt:
    """One try at a job; its number is the epoch. Everything that is signed or encrypted is bound to its context."""

    job: str
    definition: bytes = field(repr=False)
    epoch: int
    roster: tuple[str, ...]  # in order of name

    @cached_property
    def job_digest(self) -> bytes:
        return hashlib.sha256(self.definition).digest()

    @property
    def context(self) -> tuple[bytes, ...]:
        return (self.job_digest, number(self.epoch), joined(*(site.encode() for site in self.roster)))
