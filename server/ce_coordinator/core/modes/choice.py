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

#: What an implementation of a site may leave out, by key and value of a job: the feature, and what to do instead.
_FEATURES = {
    ("privacy", "blind"): (pb.FEATURE_BLIND, 'submit the job with privacy = "masked", or without the site'),
    ("privacy", "sealed"): (pb.FEATURE_SEALED, "submit the job without the site"),
    ("precision", "single"): (pb.FEATURE_SINGLE, 'submit the job with precision = "double", or without the site'),
}


def mode_of(job: Job, rooms: Rooms = MemoryRoom) -> JobMode:
    """`rooms`: for what is only passed on. Raises ConfigError where the job cannot run between daemons."""
    return Sealed(job, rooms) if job.sealed else OverTotals(job)


def missing_feature(job: Job, directory: SiteDirectory, sites: Iterable[str]) -> Refused | None:
    """Why one of these sites cannot take part: its software leaves out what the job needs."""
    sites = tuple(sites)
    for (key, value), (feature, remedy) in _FEATURES.items():
        lacking = [site for site in sites if feature in directory.lacks.get(site, ())]
        if getattr(job, key) == value and lacking:
            kind = value if key == "privacy" else f"{value}-{key}"
            sentence = f"the software of {', '.join(lacking)} takes no part in {kind} jobs"
            return Refused("feature of a site", f"{sentence}: {remedy}")
    return None


def unfit_roster(job: Job, directory: SiteDirectory, roster: tuple[str, ...]) -> CeError | None:
    """Why these sites cannot begin an attempt."""
    if job.sealed:
        try:
            check_collusion(job.collusion, len(roster))
        except ConfigError as error:
            return error
    return missing_feature(job, directory, roster)
