"""Which mode a job has, and which sites cannot take part in it."""

from __future__ import annotations

from collections.abc import Iterable

from ce.errors import CeError, ConfigError, Refused
from ce.job import Job, check_collusion
from ce.protocol.messages.rooms import MemoryRoom, Rooms
from ce_coordinator.core.modes.job_mode import JobMode
from ce_coordinator.core.modes.over_totals import OverTotals
from ce_coordinator.core.modes.sealed import Sealed
from ce_coordinator.core.site_directory import SiteDirectory
from ce_proto.v1 import site_pb2 as pb

#: Modes that an implementation of a site may leave out: the feature, and what to do instead.
_FEATURES = {
    "blind": (pb.FEATURE_BLIND, 'submit the job with privacy = "masked", or without the site'),
    "sealed": (pb.FEATURE_SEALED, "submit the job without the site"),
}


def mode_of(job: Job, rooms: Rooms = MemoryRoom) -> JobMode:
    """`rooms`: for what is only passed on. Raises ConfigError where the job cannot run between daemons."""
    return Sealed(job, rooms) if job.sealed else OverTotals(job)


def missing_feature(job: Job, directory: SiteDirectory, sites: Iterable[str]) -> Refused | None:
    """Why one of these sites cannot take part: its software leaves out what the job needs."""
    if job.privacy not in _FEATURES:
        return None
    feature, remedy = _FEATURES[job.privacy]
    lacking = [site for site in sites if feature in directory.lacks.get(site, ())]
    if not lacking:
        return None
    sentence = f"the software of {', '.join(lacking)} takes no part in {job.privacy} jobs"
    return Refused("feature of a site", f"{sentence}: {remedy}")


def unfit_roster(job: Job, directory: SiteDirectory, roster: tuple[str, ...]) -> CeError | None:
    """Why these sites cannot begin an attempt."""
    if job.sealed:
        try:
            check_collusion(job.collusion, len(roster))
        except ConfigError as error:
            return error
    return missing_feature(job, directory, roster)
