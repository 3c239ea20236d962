"""The coordinator's limits, and the settings that are the same for all its jobs."""

from __future__ import annotations

from dataclasses import dataclass

from ce.errors import ConfigError
from ce.protocol.messages.rooms import MemoryRoom, Rooms
from ce.service.settings import setting
from ce_coordinator.core.checkpoint_schedule import CheckpointInterval


@dataclass(frozen=True)
class Limits:
    """The defaults suit a machine with a few gigabytes of memory."""

    jobs_at_once: int = setting(32, "Jobs that run at the same time; further ones wait in line.")
    jobs_waiting: int = setting(1000, "Jobs that may wait in line; a further submission is refused.")
    sites_per_job: int = setting(200, "Sites that one job may name.")
    attempts_per_job: int = setting(
        1000,
        "Attempts at one job. When a site has lost its state, another begins; after the last one the job fails.",
    )
    attempts_per_site: int = setting(
        20,
        "Further attempts at one job that one site may cause because it has lost its state: its daemon was restarted, "
        "or says so. After the last one the job fails, and names the site.",
    )
    largest_min_cluster: int = setting(
        1000,
        "Largest min_cluster that the policy of a site may ask for. A job with a site that asks for more fails, and "
        "names the site: it would withhold the whole result from the operator.",
    )
    streams: int = setting(500, "Streams and operators' calls that may be open at once.")
    streams_per_certificate: int = setting(
        50, "Those of one certificate, so that it cannot use up all of them; a further one is refused."
    )
    messages_waiting: int = setting(
        20_000, "Messages that may wait until a site reads them; when there are more, its stream is closed."
    )
    objects_per_site: int = setting(50_000_000, "Objects that one site may enrol in one job.")
    columns_per_site: int = setting(10_000, "Columns that one site may enrol in one job.")
    categories_per_column: int = setting(100_000, "Categories that one column may have.")
    round_bytes: int = setting(
        4 * 2**30,
        "Bytes of the totals of one round of one job, in memory; of a sealed job, of what is passed on, on the disk of "
        "the store. A job that needs more is refused.",
    )

    def __post_init__(self) -> None:
        for key, value in vars(self).items():
            if value < 1:
                raise ConfigError(f"limits.{key} is a whole number of at least 1")


@dataclass(frozen=True)
class JobSettings:
    """Settings of the coordinator that apply to every job."""

    limits: Limits
    min_cluster: int  # clusters with fewer objects are withheld from the operator
    checkpoint_interval: CheckpointInterval
    rooms: Rooms = MemoryRoom  # for what is only passed on
