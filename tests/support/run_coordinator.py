"""Frame by frame, with the coordinator's real runner on an event loop: records, timers, threads; no socket."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from ce.service.checkpoints import Checkpoints
from ce.testing import FrameByFrame
from ce_client.config import ClientSettings
from ce_coordinator.core.checkpoint_schedule import CheckpointInterval
from ce_coordinator.core.events import JobSubmitted
from ce_coordinator.core.instructions import Instruction
from ce_coordinator.core.limits import Limits
from ce_coordinator.core.machine import Machine
from ce_coordinator.core.records import JobRecord, SiteRecord
from ce_coordinator.service.runner import Runner
from ce_coordinator.store.interface import Store, StoreFailed
from ce_coordinator.store.memory import MemoryStore


class Disk(MemoryStore):
    """A store that is full when told so; every record that it takes is an event."""

    def __init__(self) -> None:
        super().__init__()
        self.full_for: set[str] = set()  # states of jobs that there is no room for
        self.saved: list[tuple[str, str]] = []

    def save_job(self, record: JobRecord) -> None:
        if record.state in self.full_for:
            raise StoreFailed("the write failed (SQLITE_FULL)")
        super().save_job(record)
        self.saved.append((record.name, record.state))

    def save_site(self, record: SiteRecord) -> None:
        if self.full_for:
            raise StoreFailed("the write failed (SQLITE_FULL)")
        super().save_site(record)


class RunnerFrameByFrame(FrameByFrame):
    """Made, and used, while an event loop runs."""

    def __init__(
        self,
        sites: Mapping[str, ClientSettings],
        store: Store,
        limits: Limits | None = None,
        interval: CheckpointInterval | None = None,
        checkpoints: Checkpoints | None = None,
    ) -> None:
        self.runner: Runner | None = None
        self.closed_with: dict[int, BaseException] = {}
        super().__init__(sites, limits, interval)
        interval = interval or CheckpointInterval(every_s=86_400)
        self.machine = Machine("table", "test", limits or Limits(), 1, store.jobs(), store.sites(), interval)
        self.machine.know({name: played_site.site_files.settings.name for name, played_site in self.sites.items()})
        self.runner = Runner(self.machine, store, checkpoints or self.checkpoints)
        self.now = self.runner.now()
        self.runner.start()

    def do(self, steps: list[Instruction]) -> None:
        if self.runner is None:
            return
        for session, site in self._sessions.items():
            if self.sites[site].session == session and session not in self.runner._streams:
                self.runner.opened(session)
        self.runner.carry_out(steps)
        self.fetch()

    def fetch(self) -> None:
        """Frames that wait on streams go on their way."""
        assert self.runner is not None
        for session, stream in list(self.runner._streams.items()):
            site = self._sessions[session]
            while stream.frames:
                frames = stream.frames.popleft()
                if self.sites[site].session == session:
                    self.down[site].extend(frame.SerializeToString() for frame in frames)
            if stream.closed.done():
                self.closed_with[session] = stream.closed.result()
                self.closed.append((site, str(stream.closed.result())))
                if self.sites[site].session == session:
                    self.sites[site].session = None
                    self.down[site].clear()
                self.runner.ended(session, "closed")

    def submit(self, definition: bytes, token: str = "token") -> None:
        assert self.runner is not None
        self.runner.handle(JobSubmitted(definition, token, "olga"))
        self.fetch()

    async def rest(self) -> None:
        """Deliver frames and wait for threads until nothing is under way."""
        assert self.runner is not None
        while True:
            self.run()
            working = self.runner._threads.working
            if not working:
                return
            while self.runner._threads.working >= working:
                await asyncio.sleep(0)  # until a thread has called back
            self.fetch()
