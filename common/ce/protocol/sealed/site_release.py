"""When a site opens its share, and when it must not: steps `meet`, `commit` and `release`.

A share is written down before its commitment leaves, and charged before it is opened. When a job is taken up again all
sites tell each other how far they were: if one may have opened its share, all send the same bytes again; a site that
has lost them ends the job. If none has, all shares are deleted and made anew, and nothing was charged.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping

import numpy as np

from ce.errors import BrokenTotals, JobFailed, MessageError
from ce.privacy.derivation import joined
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.task import Task
from ce.protocol.sealed.channel import Bytes, as_array, received
from ce.protocol.sealed.opened_shares import (
    AcceptedModel,
    check_commitments,
    check_model,
    commitment,
    opened_cells,
)
from ce.protocol.sealed.records import ReleaseRecord, ReleaseRequest
from ce.protocol.sealed.schedule import (
    COMMITMENT,
    DIGEST_SIZE,
    MODEL,
    NONCE,
    NONCE_SIZE,
    SHARE,
    ReleaseStatus,
    Schedule,
)
from ce.protocol.sealed.site_input import SiteContext
from ce.protocol.sealed.site_tables import SiteTables
from ce.protocol.topology.topology import Rows
from ce.ring import Words

_LOST = (
    "the shares of this job were opened in an earlier attempt, and {who}: the job cannot go on; submit it under "
    "another name, which is charged anew"
)


class SiteRelease:
    """One site's share in one attempt: made, committed to, opened, and checked with those of the others."""

    def __init__(self, context: SiteContext, schedule: Schedule, enrolment_digest: bytes, delta: float) -> None:
        self._context = context
        self._schedule = schedule
        self._delta = delta
        self._identity = hashlib.sha256(joined(b"ce sealed release 1", context.terms.digest, enrolment_digest)).digest()
        self._commitments: dict[str, bytes] = {}
        self._origin = context.attempt.epoch
        self.resumed = False  # whether a share of an earlier attempt is opened again
        self.cells: Words | None = None  # the opened tables, once they are checked

    @property
    def _record(self) -> ReleaseRecord | None:
        return self._context.records.release()

    @property
    def status(self) -> ReleaseStatus:
        """How far the release has come here. Raises JobFailed where this site takes part in no further attempt."""
        record = self._record
        if record is not None and record.state == "failed":
            raise JobFailed(
                "the dealer's words were wrong in an earlier attempt of this job, which was charged: this site takes "
                "part in no further attempt of it; find out why before another job"
            )
        if record is not None and record.state == "opening" and record.context != self._identity:
            raise JobFailed(_LOST.format(who="its sites, objects or columns have changed since"))
        return ReleaseStatus.of(record, self._context.terms.sites)

    @property
    def accepted(self) -> int:
        """Clusters of the model that this site has accepted; 0: none."""
        record = self._record
        return AcceptedModel.decoded(record.model, self._context.terms).n_clusters if record and record.model else 0

    # After `meet`.

    def compare(self, told: Mapping[str, ReleaseStatus]) -> None:
        """What all sites have told, this one included: whether shares of an earlier attempt are opened again."""
        terms = self._context.terms
        opening = {(status.origin, status.commitments) for status in told.values() if status.state == "opening"}
        if not opening:
            return
        if len(opening) > 1:
            raise JobFailed(_LOST.format(who="its sites do not agree on which"))
        self._origin, commitments = opening.pop()
        for site in terms.sites:
            if told[site].state is None or told[site].origin != self._origin:
                raise JobFailed(_LOST.format(who=f"{site} has lost its share"))
        self._commitments = dict(zip(terms.sites, commitments, strict=True))
        record = self._record
        assert record is not None  # as told
        if record.context != self._identity or not hmac.compare_digest(self._own(record), commitments[self._position]):
            raise JobFailed(_LOST.format(who=f"{self._context.site} has another share than it committed to"))
        self.resumed = True

    @property
    def _position(self) -> int:
        return self._context.terms.sites.index(self._context.site)

    def _own(self, record: ReleaseRecord) -> bytes:
        return commitment(self._context.terms, record.origin, self._context.site, record.nonce, record.share)

    # Steps.

    def reserve(self) -> None:
        """`mask`: budget, and the one labelling of each shared object. A share that was never opened is deleted."""
        context, given = self._context, self._context.input
        if self._record is not None:
            context.records.discard()
        rows = [given.rows[index] for index in sorted(given.rows)]
        shared = [given.rows[index] for index in sorted(context.blocks)]
        rho = context.terms.rho[context.site]
        context.records.reserve(ReleaseRequest(rho, self._delta, _together(rows), _together(shared)))

    def commit(self, task: Task, tables: SiteTables) -> dict[ArrayName, Bytes]:
        """`commit`: the finished share is on the disk before its commitment leaves."""
        context = self._context
        try:
            tables.check_dealer(task)
        except BrokenTotals:
            context.records.fail(context.attempt.epoch, self._identity)
            raise
        nonce, share = context.entropy(NONCE_SIZE), tables.share()
        context.records.commit(context.attempt.epoch, self._identity, nonce, share)
        own = commitment(context.terms, context.attempt.epoch, context.site, nonce, share)
        self._commitments[context.site] = own
        return {ArrayName.of_broadcast(COMMITMENT, context.site): as_array(own)}

    def release(self, task: Task) -> dict[ArrayName, Bytes]:
        """`release`: charged and written down with all commitments before the share leaves."""
        context, sites = self._context, self._context.terms.sites
        if not self.resumed:
            for site in sites:
                if site != context.site:
                    name = ArrayName.of_broadcast(COMMITMENT, site)
                    self._commitments[site] = received(task.arrays, name, DIGEST_SIZE)
        context.channel.bind(*(self._commitments[site] for site in sites))
        context.records.open(self._commitments)
        record = self._record
        if record is None or record.state != "opening":
            raise JobFailed("the share of this job is not on this site's disk: the job cannot go on")
        arrays = {NONCE: record.nonce, SHARE: record.share, **({MODEL: record.model} if record.model else {})}
        return {ArrayName.of_broadcast(what, context.site): as_array(content) for what, content in arrays.items()}

    def check(self, task: Task) -> AcceptedModel:
        """`score`: commitments, tables and model. The model is on the disk before anything is scored with it."""
        context, terms = self._context, self._context.terms
        record = self._record
        assert record is not None
        shares = {context.site: (record.nonce, record.share)}
        for site in terms.sites:
            if site != context.site:
                nonce = received(task.arrays, ArrayName.of_broadcast(NONCE, site), NONCE_SIZE)
                share = received(task.arrays, ArrayName.of_broadcast(SHARE, site), self._schedule.share_size)
                shares[site] = (nonce, share)
        check_commitments(terms, self._origin, shares, self._commitments)
        self.cells = opened_cells(terms, {site: share for site, (_, share) in shares.items()})
        model = AcceptedModel.from_arrays(task.arrays, terms)
        if record.model:
            if record.model != model.encoded:
                raise MessageError("model: expected the one that this site has accepted before, got another")
        else:
            check_model(terms, self.cells, model)
            context.records.accept_model(model.encoded)
        context.channel.bind(*(share for site in terms.sites for share in shares[site]), model.digest)
        return model


def _together(rows: list[Rows]) -> Rows:
    return np.concatenate(rows) if rows else np.zeros(0, dtype=np.intp)
