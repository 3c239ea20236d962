"""The jobs of one site: which attempt a message is for, what is written when a job begins and ends.

No socket and no clock: the daemon passes messages in, and lets workers process them.
"""

from __future__ import annotations

import logging
from itertools import islice
from pathlib import Path
from typing import Any

from ce.errors import CeError, ConfigError, MessageError, Refused
from ce.job import LONGEST_NAME, Job
from ce.service.logs import fields
from ce.transport.frames import MOST_HELD, one_line
from ce_client.attempt.attempt import SiteAttempt
from ce_client.attempt.rounds import results_of
from ce_client.daemon.site_files import SiteFiles
from ce_client.state.job_index import AWAITING_CONSENT, JobEntry, JobIndex
from ce_client.state.ledger import FILE_NAME as LEDGER
from ce_client.state.ledger import Ledger
from ce_client.state.releases.store import Releases
from ce_proto.v1 import site_pb2 as pb

log = logging.getLogger("ce_client")

#: The rule by which sealed jobs are refused where their budget cannot be counted.
UNCOUNTED_RULE = "counted releases"
#: States in which a coordinator may end a job.
ENDS = ("done", "failed", "cancelled")


class SiteJobs:
    """The attempts that a site takes part in, by job."""

    def __init__(self, site_files: SiteFiles, ledger: Ledger) -> None:
        self.coordinator = ""  # the name in its Welcome
        self.site_attempts: dict[str, SiteAttempt] = {}
        self._site_files = site_files
        self._settings = site_files.settings
        self._ledger = ledger
        self._job_index = JobIndex(self._settings.state)
        self._noted: dict[str, JobEntry] = {}
        self._results = results_of(self._settings)
        entries = self._job_index.entries()
        site_files.checkpoints.remove_all_but(entry.job for entry in entries if not entry.over)
        for entry in entries:
            if entry.state == "done":  # results that could not be published when the job ended
                self._publish(entry.job, entry.epoch)
        self._results.discard_all_but(entry.job for entry in entries if not entry.over or entry.state == "done")
        self._releases = Releases(self._settings.state)
        self._releases.begin((entry.job for entry in entries if not entry.over), ledger, site_files.policy().max_delta)
        self._compared: tuple[int, int] | None = None  # releases that were counted, and those that the ledger has more
        try:
            self._compare_releases()
        except CeError as error:  # a ledger that cannot be read: sealed jobs are refused when they are offered
            log.error("releases cannot be compared with the ledger", extra=fields(reason=str(error)))

    def held(self) -> list[pb.Held]:
        """The jobs for Hello, at most `MOST_HELD`: those in memory, and those under way when a former daemon ended."""
        held = {job: attempt.epoch for job, attempt in self.site_attempts.items()}
        for entry in self._job_index.entries():
            if not entry.over:
                held.setdefault(entry.job, 0)
        return [pb.Held(job=job, epoch=epoch) for job, epoch in islice(held.items(), MOST_HELD)]

    def addressed(self, kind: str, message: Any) -> SiteAttempt | None:
        """The attempt that a message is for; an offer makes a new one. None: the message is of an attempt that is over.

        An offer beyond this site's limits makes an attempt that only refuses, and is not `engaged`.
        """
        attempt = self.site_attempts.get(message.job)
        if kind == "offer" and (attempt is None or attempt.epoch < message.epoch):
            attempt = self._begin(message, attempt)
        return attempt if attempt is not None and attempt.epoch == message.epoch else None

    def engaged(self, site_attempt: SiteAttempt) -> bool:
        """True if this site takes part in the attempt, so that more than a refusal will follow."""
        return self.site_attempts.get(site_attempt.job) is site_attempt

    def ended(self, message: pb.Ended) -> None:
        """The coordinator says that a job is over, or that it will be offered again (state "waits").

        Its words are shortened to one line, as they may be printed.
        """
        state = message.state if message.state in (*ENDS, "waits") else "failed"
        message = pb.Ended(
            job=message.job,
            epoch=message.epoch,
            state=state,
            reason=one_line(message.reason),
            rule=one_line(message.rule, 100),
        )
        attempt = self.site_attempts.pop(message.job, None)
        if attempt is not None:
            self._close(attempt, message.state)
        if message.state == "waits":
            return
        self._site_files.checkpoints.remove(message.job)
        try:
            self._releases.over(message.job)
            self._compare_releases()
        except CeError as error:
            log.error("the end of a job is not in its releases", extra=fields(job=message.job, reason=str(error)))
        known = self._job_index.find(message.job)
        if attempt is not None or (known is not None and not known.over):
            self._note_end(message, attempt)

    def states(self) -> list[str]:
        """The state of every job that this site is in."""
        return [self._noted[job].state for job in self.site_attempts if job in self._noted]

    def stopped(self) -> None:
        """The daemon ends."""
        for attempt in self.site_attempts.values():
            self._close(attempt, "stopped")

    def note(self, site_attempt: SiteAttempt) -> None:
        """Write the state of a job if it has changed."""
        if not self.engaged(site_attempt):
            return
        state = self._noted[site_attempt.job].state
        if site_attempt.refusal is not None:
            self._note_refusal(site_attempt, site_attempt.refusal)
        elif site_attempt.rounds_answered and state in ("offered", AWAITING_CONSENT):
            self._note(self._entry(site_attempt, "running"))
        elif site_attempt.waits_for_consent and state != AWAITING_CONSENT:
            hint = f"ce-client preview {site_attempt.job}, then approve or decline it"
            log.warning("job waits for approval", extra=fields(job=site_attempt.job, hint=hint))
            self._note(self._entry(site_attempt, AWAITING_CONSENT, "waits for ce-client approve or decline"))

    def _begin(self, offer: pb.Offer, former: SiteAttempt | None) -> SiteAttempt:
        if former is not None:
            self._close(self.site_attempts.pop(offer.job), "begun again")
        attempt = SiteAttempt(offer, self.coordinator, self._site_files, self._ledger)
        try:
            self._check_limits(offer, former is not None)
            if _is_sealed(offer):
                self._refuse_uncounted()
        except CeError as error:
            # Stored neither in memory nor on the disk: a coordinator may offer any number of jobs.
            attempt.refusal = error
            log.error("job refused", extra=fields(reason=str(error)))
            return attempt
        self.site_attempts[offer.job] = attempt
        log.info("job offered", extra=fields(job=offer.job, epoch=offer.epoch, sites=len(offer.roster)))
        self._note(self._entry(attempt, "offered"))
        return attempt

    def _check_limits(self, offer: pb.Offer, known: bool) -> None:
        """Raises Refused for an offer beyond the limits of client.toml. `known`: this site is in the job already."""
        limits = self._settings.limits
        if len(offer.roster) > limits.sites_per_job:
            raise Refused(
                "limits.sites_per_job", f"this site takes part in jobs of up to {limits.sites_per_job:,} sites"
            )
        if len(offer.job) > LONGEST_NAME or any(len(site) > LONGEST_NAME for site in offer.roster):
            raise MessageError(f"offer: expected names of at most {LONGEST_NAME} characters, got a longer one")
        entry = self._job_index.find(offer.job)
        if entry is not None and entry.state in ENDS:
            raise Refused(
                "finished job",
                f"this job is over here ({entry.state}), and its results stay as they are: submit it by another name",
            )
        if known:
            return
        if len(self.site_attempts) >= limits.jobs_at_once:
            raise Refused(
                "limits.jobs_at_once",
                f"this site is in {len(self.site_attempts):,} jobs, and in no more at once: submit this one by another "
                "name when some of them are over",
            )
        if entry is None and self._job_index.count() >= limits.jobs_remembered:
            raise Refused(
                "limits.jobs_remembered",
                f"this site has files of {limits.jobs_remembered:,} jobs, and allows no more: its people can forget "
                "some (ce-client forget); then submit this one by another name",
            )

    def _compare_releases(self) -> int:
        """Releases that the ledger has charged and the database lacks. The whole ledger is read when the daemon starts,
        and when the database has fewer releases than before: then it was deleted or replaced."""
        count, before = self._releases.count(), self._compared
        if before is not None and count >= before[0] and (before[1] == 0 or count == before[0]):
            self._compared = count, before[1]
            return before[1]
        lacking = self._releases.lacking(self._settings.state / LEDGER)[0]
        if lacking:
            database = str(self._releases.database.path)
            log.error("sealed jobs are refused", extra=fields(releases=database, lacking=lacking))
        self._compared = count, lacking
        return lacking

    def _refuse_uncounted(self) -> None:
        """Raises Refused if what sealed jobs have cost here is not known any more."""
        if self._compare_releases():
            raise Refused(
                UNCOUNTED_RULE,
                "this site does not know any more what sealed jobs have cost its objects: at the site, see ce-client "
                "check, and restore state/releases.sqlite from a backup",
            )

    def _close(self, site_attempt: SiteAttempt, state: str) -> None:
        site_attempt.close()
        try:
            site_attempt.ended(state)
        except CeError as error:
            log.error("the end of a job is not in the ledger", extra=fields(job=site_attempt.job, reason=str(error)))

    def _publish(self, job: str, epoch: int) -> Path | None:
        """Give the results of a job that is done their name; None if there are none, or that fails."""
        try:
            return self._results.publish(job, epoch)
        except ConfigError as error:
            log.error("results cannot be published", extra=fields(job=job, reason=str(error)))
            return None

    def _note_end(self, message: pb.Ended, attempt: SiteAttempt | None) -> None:
        published = None
        if message.state == "done" and (attempt is None or attempt.refusal is None):
            published = self._publish(message.job, message.epoch)
        else:
            self._results.discard(message.job)
        if attempt is None:
            # It ended while this site was not connected.
            entry = JobEntry(message.job, message.state, message.epoch, reason=message.reason, rule=message.rule)
            self._note(entry)
        elif attempt.refusal is None:
            self._note(self._entry(attempt, message.state, message.reason, message.rule))
        else:
            # This site's reason says more than the sentence that it sent to the coordinator.
            self._note_refusal(attempt, attempt.refusal)
        self._noted.pop(message.job, None)
        level = logging.INFO if message.state == "done" else logging.WARNING
        named: dict[str, str | int] = {"job": message.job, "state": message.state}
        if message.reason:
            named["reason"] = message.reason
        if published is not None:
            named["results"] = str(published)
        if attempt is not None and attempt.finished:
            named |= attempt.participation
        log.log(level, "job over", extra=fields(**named))

    def _note_refusal(self, site_attempt: SiteAttempt, error: CeError) -> None:
        noted = self._noted.get(site_attempt.job)
        if noted is None or noted.state != "refused":
            log.error("job refused", exc_info=error, extra=fields(job=site_attempt.job))
        self._note(self._entry(site_attempt, "refused", str(error), getattr(error, "rule", "")))

    def _entry(self, site_attempt: SiteAttempt, state: str, reason: str = "", rule: str = "") -> JobEntry:
        attempt = site_attempt.attempt
        model = privacy = ""
        try:
            job = Job.from_definition(attempt.definition)
            model, privacy = job.model, job.privacy
        except ConfigError:
            pass
        rounds = site_attempt.rounds_answered if state != "running" else 0
        return JobEntry(
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

    def _note(self, entry: JobEntry) -> None:
        if self._noted.get(entry.job) != entry:
            self._noted[entry.job] = entry
            self._job_index.write(entry)


def _is_sealed(offer: pb.Offer) -> bool:
    try:
        return Job.from_definition(bytes(offer.definition)).sealed
    except CeError:
        return False  # refused by a rule of its own
