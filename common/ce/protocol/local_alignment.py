"""Sites on one machine, before their first round: who holds what, what rules leave out, and keys between pairs.

`ce.protocol.local_run` and `ce.protocol.sealed_run` begin with it; over a network the daemons do the same by messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from ce.labels import LabelTable
from ce.privacy.pair_keys import EphemeralKey
from ce.protocol.attempt import Attempt
from ce.protocol.minimums import Findings, SiteMinimums
from ce.protocol.topology.enrolment import Enrolment, EnrolmentSummary, enrol, enrolment_digest, with_private_objects
from ce.protocol.topology.site_view import SiteView
from ce.protocol.topology.topology import Rows, Topology, align, refuse_clashing_columns
from ce.protocol.topology.vocabularies import Wishes, agree


@dataclass(frozen=True)
class LocalAlignment:
    """What all sites have enrolled, and what follows from it."""

    enrolments: dict[str, Enrolment]
    wishes: dict[str, Wishes]
    topology: Topology
    rows: dict[str, dict[int, Rows]]

    @cached_property
    def summaries(self) -> dict[str, EnrolmentSummary]:
        """What each site has enrolled, as far as the others may know."""
        alone = {block.members[0]: block.size for block in self.topology.blocks if not block.shared}
        private = {site: alone.get(site, 0) for site in self.enrolments}
        summaries = {site: enrolment.summary(wishes=self.wishes[site]) for site, enrolment in self.enrolments.items()}
        return with_private_objects(summaries, private)

    @property
    def enrolment_digest(self) -> bytes:
        """What masks and boxes are bound to."""
        return enrolment_digest(self.summaries, {site: one.private_objects for site, one in self.summaries.items()})

    def of(self, site: str) -> tuple[SiteView, dict[str, EnrolmentSummary], dict[int, Rows]]:
        """As one site is sent it."""
        return self.topology.view(site), self.summaries, self.rows[site]


def align_tables(
    votes: bool,
    tables: Mapping[str, LabelTable],
    wishes: dict[str, Wishes],
    job_key: bytes | None,
    *,
    counted: bool = True,
) -> LocalAlignment:
    """`votes`: whether the model uses classifiers. With a `job_key` objects and categories go by pseudonyms. `counted`:
    sites tell how many labels a column has, which they do not in a sealed job."""
    least = {site: None if counted else wishes[site].min_objects for site in tables}
    enrolments = {site: enrol(table, votes, job_key, least=least[site]) for site, table in tables.items()}
    refuse_clashing_columns(enrolments)
    return LocalAlignment(enrolments, wishes, *align(enrolments, agree(tables, wishes, job_key)))


def clean(minimums: Mapping[str, SiteMinimums], findings: Mapping[str, Findings]) -> bool:
    """Whether no rule is broken. Each site leaves out what breaks one."""
    broken = {site: found for site, found in findings.items() if not found.clean}
    for site, found in broken.items():
        minimums[site].leave_out(found)
    return not broken


def local_pair_keys(attempt: Attempt) -> dict[str, dict[str, bytes]]:
    """Keys of every pair of sites: real ones; on one machine no signature has to show whose they are."""
    keys = {site: EphemeralKey() for site in attempt.roster}
    return {
        site: {peer: key.pair_key(other.public, *attempt.context) for peer, other in keys.items() if peer != site}
        for site, key in keys.items()
    }
