"""What a sealed job would open of this site, and what it costs: known before anything that follows from labels leaves.

The noise follows from the columns of all sites; what it costs is added to what other jobs have cost the same objects.
The budget is reserved when the first masked rows leave (`ce.protocol.sealed.site_release`), under a lock, once more.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from ce.errors import InputError, Refused
from ce.labels import LabelTable
from ce.privacy.derivation import joined
from ce.protocol.sealed.records import ReleaseRequest
from ce.protocol.sealed.terms import SealedColumn, Terms
from ce.protocol.topology.site_view import SiteView
from ce.protocol.topology.topology import Rows
from ce_client.attempt.recorder import AttemptRecorder
from ce_client.attempt.setup import PreparedAttempt
from ce_client.daemon.site_files import SiteFiles
from ce_client.state.releases.accounts import ReleaseCost, refuse
from ce_client.state.releases.job_records import JobRecords, SealedJob
from ce_client.state.releases.keyed_ids import keyed_objects


@dataclass(frozen=True)
class SealedRelease:
    """The tables and labels of one job, at this site."""

    job: str
    site: str
    terms: Terms
    cost: ReleaseCost
    records: JobRecords = field(repr=False)

    @property
    def begun(self) -> bool:
        """Whether masked words have left in an earlier attempt."""
        return self.records.release() is not None

    def refuse(self) -> None:
        """Raises Refused if it costs more than the policy allows. What is charged already costs nothing more."""
        if not self.begun:
            refuse(self.cost, self.job)


def sealed_release(
    prepared: PreparedAttempt,
    view: SiteView,
    rows: Mapping[int, Rows],
    labels: LabelTable,
    site_files: SiteFiles,
    recorder: AttemptRecorder,
) -> SealedRelease:
    """`labels` take part, at these rows by block. Raises Refused where no such job can run."""
    offered, site = prepared.offered, site_files.settings.name
    attempt = offered.attempt
    columns = [SealedColumn(c.name, c.holders, len(c.categories)) for c in view.all_columns if c.kind == "clustering"]
    try:
        terms = Terms.of(offered.job, attempt.job_digest, attempt.roster, columns, view.sizes.objects)
    except InputError as error:
        raise Refused("usable columns", str(error)) from error
    roster = joined(*(name.encode() for name in attempt.roster))
    job = SealedJob(
        attempt.job_digest.hex(),
        attempt.job,
        hashlib.sha256(joined(b"ce sealed definition 1", offered.job.disclosure_digest, roster)).hexdigest(),
        keyed_objects(site_files.secret, _whole_rows(prepared.labels, labels)),
    )
    records = recorder.releases(job)
    shared = [rows[index] for index in sorted(rows) if view.blocks[index].shared]
    request = ReleaseRequest(
        terms.rho[site],
        offered.job.delta,
        np.arange(labels.n_objects),
        np.concatenate([np.zeros(0, dtype=np.intp), *shared]),
    )
    return SealedRelease(attempt.job, site, terms, records.cost(request), records)


def _whole_rows(labels: LabelTable, participating: LabelTable) -> LabelTable:
    """All labels of the objects that take part, in their order: also of columns and categories that do not."""
    order = np.argsort(labels.ids)
    return labels.select(order[np.searchsorted(labels.ids, participating.ids, sorter=order)])
