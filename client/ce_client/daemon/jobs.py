"""The jobs of one site: which there are, who of them a message is for, what is noted down when one begins and ends.

No socket and no clock: the daemon passes messages in, and lets participants work on them.
"""

from __future__ import annotations

import logging
from itertools import islice
from typing import Any

from ce.errors import CeError, ConfigError, MessageError, Refused
from ce.job import LONGEST_NAME, Job
from ce.service.logs import fields
from ce.transport.frames import MOST_HELD, one_line
from ce_client.attempt.attempt import SiteAttempt
from ce_client.daemon.site_files import SiteFiles
from ce_client.state.job_index import Entry, JobIndex
from ce_client.state.ledger import Ledger
from ce_proto.v1 import site_pb2 as pb

log = logging.getLogger("ce_client")

#: How a job may end, as a coordinator says it.
ENDS = ("done", "failed", "cancelled")


class SiteJobs:
    """What a site is engaged in."""

    def __init__(self, site_files: SiteFiles, ledger: Ledger) -> None:
        self.coordinator = ""  # the name of the one at the other end
        self.site_attempts: dict[str, SiteAttempt] = {}
        self._site_files = site_files
        self._settings = site_files.settings
        self._ledger = ledger
        self._job_index = JobIndex(self._settings.state)
        self._noted: dict[str, Entry] = {}
        site_files.checkpoints.remove_all_but(entry.job for entry in self._job_index.entries() if not entry.over)

    def held(self) -> list[pb.Held]:
        """What to say in Hello: jobs in memory, and those that were under way when a former daemon ended."""
        held = {name: own.epoch for name, own in self.site_attempts.items()}
        for entry in self._job_index.entries():
            if not entry.over:
                held.setdefault(entry.job, 0)
        return [pb.Held(job=name, epoch=epoch) for name, epoch in islice(held.items(), MOST_HELD)]

    def addressed(self, kind: str, message: Any) -> SiteAttempt | None:
        """Whom a message is for: an offer of a new attempt makes one. None: it is of an attempt that is over.

        One that this site has no room for is answered by a participant that only refuses, and is not `engaged`.
        """
        own = self.site_attempts.get(message.job)
        if kind == "offer" and (own is None or own.epoch < message.epoch):
            own = self._begin(message, own)
        return own if own is not None and own.epoch == message.epoch else None

    def engaged(self, site_attempt: SiteAttempt) -> bool:
        """Whether this site is in the job, so that there is more to come than a refusal."""
        return self.site_attempts.get(site_attempt.job) is site_attempt

    def ended(self, over: pb.Ended) -> None:
        """The coordinator says that a job is over, or that it will be offered again. It is kept as it may be shown."""
        state = over.state if over.state in (*ENDS, "waits") else "failed"
        over = pb.Ended(
            job=over.job, epoch=over.epoch, state=state, reason=one_line(over.reason), rule=one_line(over.rule, 100)
        )
        own = self.site_attempts.pop(over.job, None)
        if own is not None:
            self._close(own, over.state)
        if over.state == "waits":
            return
        self._site_files.checkpoints.remove(over.job)
        known = self._job_index.find(over.job)
        if own is not None or (known is not None and not known.over):
            self._note_end(over, own)

    def states(self) -> list[str]:
        """Of every job that this site is in."""
        return [self._noted[job].state for job in self.site_attempts if job in self._noted]

    def stopped(self) -> None:
        """The daemon ends."""
        for own in self.site_attempts.values():
            self._close(own, "stopped")

    def note(self, site_attempt: SiteAttempt) -> None:
        """Write down where a job stands, when that has changed."""
        if not self.engaged(site_attempt):
            return
        if site_attempt.refusal is not None:
            self._note_refusal(site_attempt, site_attempt.refusal)
        elif site_attempt.rounds_answered and self._noted[site_attempt.job].state in ("offered", "asks"):
            self._note(self._entry(site_attempt, "running"))
        elif site_attempt.waits_for_consent and self._noted[site_attempt.job].state != "asks":
            hint = f"ce-client preview {site_attempt.job}, then approve or decline it"
            log.warning("job waits for approval", extra=fields(job=site_attempt.job, hint=hint))
            self._note(self._entry(site_attempt, "asks", "waits for ce-client approve or decline"))

    def _begin(self, offer: pb.Offer, former: SiteAttempt | None) -> SiteAttempt:
        if former is not None:
            self._close(self.site_attempts.pop(offer.job), "begun again")
        own = SiteAttempt(offer, self.coordinator, self._site_files, self._ledger)
        try:
            self._refuse_too_much(offer, former is not None)
        except CeError as error:
            # Neither in memory nor on the disk: a coordinator may offer any number of jobs.
            own.refusal = error
            log.error("job refused", extra=fields(reason=str(error)))
            return own
        self.site_attempts[offer.job] = own
        log.info("job offered", extra=fields(job=offer.job, epoch=offer.epoch, sites=len(offer.roster)))
        self._note(self._entry(own, "offered"))
        return own

    def _refuse_too_much(self, offer: pb.Offer, known: bool) -> None:
        limits = self._settings.limits
        if len(offer.roster) > limits.sites_per_job:
            raise Refused(
                "limits.sites_per_job", f"this site takes part in jobs of up to {limits.sites_per_job:,} sites"
            )
        if len(offer.job) > LONGEST_NAME or any(len(site) > LONGEST_NAME for site in offer.roster):
            raise MessageError("offer: a name is longer than any")
        if known:
            return
        if len(self.site_attempts) >= limits.jobs_at_once:
            raise Refused(
                "limits.jobs_at_once",
                f"this site is in {len(self.site_attempts):,} jobs, and in no more at once: submit this one by another "
                "name when some of them are over",
            )
        if self._job_index.find(offer.job) is None and self._job_index.count() >= limits.jobs_remembered:
            raise Refused(
                "limits.jobs_remembered",
                f"this site keeps notes of {limits.jobs_remembered:,} jobs, and of no more: its people can forget some "
                "(ce-client forget); then submit this one by another name",
            )

    def _close(self, site_attempt: SiteAttempt, state: str) -> None:
        site_attempt.close()
        try:
            site_attempt.ended(state)
        except CeError as error:
            log.error("the end of a job is not in the ledger", extra=fields(job=site_attempt.job, reason=str(error)))

    def _note_end(self, over: pb.Ended, own: SiteAttempt | None) -> None:
        if own is None:
            # It ended while this site was away.
            self._note(Entry(over.job, over.state, over.epoch, reason=over.reason, rule=over.rule))
        elif own.refusal is None:
            self._note(self._entry(own, over.state, over.reason, over.rule))
        else:
            # Why this site refused it knows better than it told anybody: that is what stays written down.
            self._note_refusal(own, own.refusal)
        self._noted.pop(over.job, None)
        level = logging.INFO if over.state == "done" else logging.WARNING
        named = {"job": over.job, "state": over.state}
        if over.reason:
            named["reason"] = over.reason
        if own is not None and own.finished:
            named["results"] = str(self._settings.results / over.job)
        log.log(level, "job over", extra=fields(**named))

    def _note_refusal(self, site_attempt: SiteAttempt, error: CeError) -> None:
        if self._noted.get(site_attempt.job, Entry("", "", 0)).state != "refused":
            log.error("job refused", exc_info=error, extra=fields(job=site_attempt.job))
        self._note(self._entry(site_attempt, "refused", str(error), getattr(error, "rule", "")))

    def _entry(self, site_attempt: SiteAttempt, state: str, reason: str = "", rule: str = "") -> Entry:
        attempt = site_attempt.attempt
        model = privacy = ""
        try:
            job = Job.from_definition(attempt.definition)
            model, privacy = job.model, job.privacy
        except ConfigError:
            pass
        rounds = site_attempt.rounds_answered if state != "running" else 0
        return Entry(
            attempt.job,
            state,
            attempt.epoch,
            model,
            privacy,
            attempt.roster,
            self.coordinator,
            reason=reason,
            rule=rule,
            rounds=rounds,
        )

    def _note(self, entry: Entry) -> None:
        if self._noted.get(entry.job) != entry:
            self._noted[entry.job] = entry
            self._job_index.write(entry)
