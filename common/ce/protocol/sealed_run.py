"""Run a sealed job over the tables of several sites, on one machine: the parties and frames of the daemons.

`ce.simulate` and the audit call it. Sites keep their records in memory; random bytes are the system's unless given.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ce.job import EXACT, Job
from ce.labels import LabelTable
from ce.policy import Policy
from ce.protocol.attempt import Attempt
from ce.protocol.engine.aggregator import Progress, add_answer
from ce.protocol.local_alignment import LocalAlignment, align_tables, clean, local_pair_keys
from ce.protocol.local_run import TransportTo
from ce.protocol.messages.rooms import MemoryRoom, Rooms
from ce.protocol.messages.transport import InMemory
from ce.protocol.minimums import Exclusion, SiteMinimums
from ce.protocol.modes.mask_context import object_digests
from ce.protocol.sealed.channel import Entropy
from ce.protocol.sealed.coordinator import SealedCoordinator
from ce.protocol.sealed.dealer import Dealer
from ce.protocol.sealed.records import MemoryRecords, Records
from ce.protocol.sealed.site import SealedSite
from ce.protocol.sealed.site_input import SiteInput
from ce.protocol.topology.enrolment import with_tokens
from ce.protocol.topology.topology import Topology
from ce.protocol.topology.vocabularies import Wishes


@dataclass(frozen=True)
class SealedRun:
    """A finished sealed job: each site with its outcome, and what the coordinator knows."""

    topology: Topology
    sites: dict[str, SealedSite]
    coordinator: SealedCoordinator
    exchanges: int
    bytes_sent: int
    participating: dict[str, NDArray[np.bool_]] = field(repr=False)  # by site: of its objects
    excluded: dict[str, tuple[Exclusion, ...]]  # what rules left out, by site


@dataclass(frozen=True)
class SealedParties:
    """All parties of one attempt, before its first round."""

    coordinator: SealedCoordinator
    sites: dict[str, SealedSite]


def run_sealed(
    job: Job,
    tables: Mapping[str, LabelTable],
    *,
    job_key: bytes | None = None,
    policies: Mapping[str, Policy] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    transport_to: TransportTo | None = None,
    entropy: Mapping[str, Entropy] | None = None,
    records: Mapping[str, Records] | None = None,
) -> SealedRun:
    """Run `job` over the sites' tables. With a `job_key` objects and categories go by pseudonyms and tokens.

    `entropy` and `records`, by site, are for tests: without them random bytes are the system's, and records are empty.
    """
    minimums = {
        site: SiteMinimums(policy, job.privacy, site, tables[site], exact=job.epsilon == EXACT, job_key=job_key)
        for site, policy in (policies or {}).items()
    }
    while True:
        enrolled = {site: minimums[site].table if minimums else table for site, table in tables.items()}
        wishes = {site: minimums[site].wishes if minimums else Wishes() for site in tables}
        aligned = align_tables(False, enrolled, wishes, job_key, counted=False)
        if clean(minimums, {site: rules.check(*aligned.of(site)) for site, rules in minimums.items()}):
            break
    participating = {site: minimums[site].participating if minimums else table for site, table in tables.items()}
    named = participating if job_key is None else {s: with_tokens(t, job_key) for s, t in participating.items()}
    attempt = Attempt(job.name, job.definition(), 1, aligned.topology.sites)
    hidden = {site: policy.min_foreign_columns for site, policy in (policies or {}).items()}
    parties = sealed_parties(
        job, attempt, aligned, named, on_progress, entropy=entropy, records=records, min_foreign_columns=hidden
    )
    bytes_sent = play(parties, transport_to)
    return SealedRun(
        aligned.topology,
        parties.sites,
        parties.coordinator,
        parties.coordinator.exchanges,
        bytes_sent,
        {site: np.isin(table.ids, participating[site].ids) for site, table in tables.items()},
        {site: rules.excluded for site, rules in minimums.items() if rules.excluded},
    )


def sealed_parties(
    job: Job,
    attempt: Attempt,
    aligned: LocalAlignment,
    tables: Mapping[str, LabelTable],
    on_progress: Callable[[Progress], None] | None = None,
    *,
    entropy: Mapping[str, Entropy] | None = None,
    records: Mapping[str, Records] | None = None,
    min_foreign_columns: Mapping[str, int] | None = None,
    dealer: Dealer | None = None,
    rooms: Rooms = MemoryRoom,
) -> SealedParties:
    """Coordinator and sites of one attempt over aligned tables (with tokens, where the job uses them)."""
    topology = aligned.topology
    pair_keys = local_pair_keys(attempt)
    digests: dict[int, bytes] = {}
    sites = {}
    for site, table in sorted(tables.items()):
        view, summaries, rows = aligned.of(site)
        objects = aligned.enrolments[site].objects
        digests |= object_digests(objects, rows)
        sites[site] = SealedSite(
            attempt,
            site,
            job,
            summaries,
            view,
            SiteInput.of(table, view, rows, objects),
            pair_keys[site],
            aligned.enrolment_digest,
            MemoryRecords() if records is None else records[site],
            entropy=os.urandom if entropy is None else entropy[site],
            min_foreign_columns=(min_foreign_columns or {}).get(site, 0),
        )
    coordinator = SealedCoordinator(
        job, attempt.job_digest, topology.whole(), digests, on_progress, dealer=dealer, rooms=rooms
    )
    return SealedParties(coordinator, sites)


def play(parties: SealedParties, transport_to: TransportTo | None = None) -> int:
    """All rounds; bytes that were sent."""
    coordinator = parties.coordinator
    handlers = {name: site.answer for name, site in parties.sites.items()}
    with nullcontext(InMemory(handlers)) if transport_to is None else transport_to(handlers) as transport:
        while coordinator.open_round is not None:
            for name, answer in transport.exchange(coordinator.tasks()):
                add_answer(coordinator, name, answer)
            coordinator.advance()
        return transport.bytes_sent
