"""A played coordinator and played sites, for tests of models and clients: no socket, no waiting, one process.

The coordinator's machine, the sites' jobs, their files and every frame are the real ones. Two ways to play them:

- `FrameByFrame`: frames are delivered one at a time, in order; a test can look at each, change it, or lose it.
- `PlayedWorld`: a network with delays, a fake clock, and faults: processes killed between two events or at a write,
  streams that break or stall, a clock that jumps. `Checks` stop the run with a `Violation` when a promise is broken.

Example, a masked job of three sites:

    sites = make_sites(directory, {"north": table_1, "east": table_2, "west": table_3})
    job = ce.Job(name="job", clusters=2, sites=tuple(sites))
    played = FrameByFrame(sites)
    played.connect()
    played.submit(job.definition())
    played.run()
    assert played.store.job("job").state == "done"
    print((sites["north"].results / "job" / "consensus.csv").read_text())

This package needs `ce_coordinator` and `ce_client`; no other module of `ce` may import it. docs/testing.md has more.
"""

from ce.testing.checks import Checks
from ce.testing.clock import FakeClock
from ce.testing.faults import Faults, random_faults
from ce.testing.frame_by_frame import FrameByFrame
from ce.testing.network import COORDINATOR, Network, Stream
from ce.testing.sealed_checks import SealedChecks
from ce.testing.sites import PERMISSIVE, PlayedSite, fingerprints_of, make_sites, open_site, write_labels
from ce.testing.violation import Violation
from ce.testing.world import PlayedWorld

__all__ = [
    "COORDINATOR",
    "PERMISSIVE",
    "Checks",
    "FakeClock",
    "Faults",
    "FrameByFrame",
    "Network",
    "PlayedSite",
    "PlayedWorld",
    "SealedChecks",
    "Stream",
    "Violation",
    "fingerprints_of",
    "make_sites",
    "open_site",
    "random_faults",
    "write_labels",
]
