"""A table where everything takes its time and one site lies: for tests of what a coordinator and a site withstand."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import ce
from ce.errors import CeError
from ce.protocol.attempt import Attempt
from ce.protocol.keys.handshake import sign_enrolment
from ce.protocol.topology.enrolment import ColumnClaim, Enrolment
from ce.protocol.topology.vocabularies import Wishes
from ce.testing import FrameByFrame, make_sites, write_labels
from ce.transport.frames import PROTOCOL
from ce_client.config import ClientSettings
from ce_client.daemon.site_files import SiteFiles
from ce_client.state.attempt_history import AttemptHistory
from ce_client.state.job_index import JobIndex
from ce_client.state.rosters import Rosters
from ce_coordinator.core.events import Event
from ce_coordinator.core.instructions import Compute, Instruction, LoadCheckpoint, SaveCheckpoint
from ce_coordinator.core.limits import Limits
from ce_proto.v1 import site_pb2 as pb
from support.mutations import MARK, damaged, mutated
from support.problems import deal, problem, ragged

SITES = ("north", "south", "west")
SECRETS = {site: hashlib.sha256(site.encode()).digest() for site in SITES}
K = 2


def job_of(name: str, *sites: str, model: str = "bce", **more: Any) -> ce.Job:
    return ce.Job(
        name=name, model=model, clusters=K, sites=sites, restarts=2, max_iterations=2, privacy="plain", **more
    )


#: The job of all three, and those of two of them that the third has no part in.
TOGETHER = job_of("together", *SITES)
WITHOUT = {site: job_of(f"without-{site}", *(other for other in SITES if other != site)) for site in SITES}


class BusyJobs(FrameByFrame):
    """Frames of different streams overtake each other, and computations end when they like."""

    def __init__(self, sites: Mapping[str, ClientSettings], rng: Random, limits: Limits | None = None) -> None:
        self.rng = rng
        #: What a runner does on a thread, with the event that answers it, if that is there already.
        self.work: list[tuple[Compute | SaveCheckpoint | LoadCheckpoint, Event | None]] = []
        self.corrupting: dict[str, list[int]] = {}  # seeds, for the next frames of a site
        self.sent: dict[str, list[bytes]] = {site: [] for site in sites}
        self.heard: dict[str, list[bytes]] = {site: [] for site in sites}
        super().__init__(sites, limits)

    def do(self, steps: list[Instruction]) -> None:
        for step in steps:
            if isinstance(step, Compute | SaveCheckpoint | LoadCheckpoint):
                # On a thread: its effects may be there long before the machine hears of them.
                self.work.append((step, self.answer_of(step) if self.rng.random() < 0.5 else None))
            else:
                super().do([step])

    def step(self) -> bool:
        choices: list[tuple[str, Any]] = [("up", session) for session in dict(self.up)]
        choices += [("down", site) for site, frames in self.down.items() if frames and self.sites[site].session]
        choices += [("work", at) for at in range(len(self.work))]
        if not choices:
            return False
        kind, what = self.rng.choice(choices)
        if kind == "down":
            self.deliver_down(what)
        elif kind == "work":
            step, event = self.work.pop(what)
            self.do(self.machine.handle(event or self.answer_of(step), self.now))
        else:
            at = next(at for at, (session, _) in enumerate(self.up) if session == what)
            first = self.up[at]
            del self.up[at]
            self.up.appendleft(first)
            self.deliver_up()
        return True

    def deliver_down(self, site: str) -> None:
        self.heard[site].append(self.down[site][0])
        super().deliver_down(site)

    def deliver_up(self) -> None:
        session, frame = self.up[0]
        site = self._sessions[session]
        if not self.corrupting.get(site):
            self.sent[site].append(frame)
            super().deliver_up()
            return
        rng = Random(self.corrupting[site].pop())
        false = corrupted(pb.SiteFrame.FromString(frame), self.sites[site].site_files, rng)
        if rng.random() < 0.5:
            self.up.popleft()  # instead of the right one; otherwise before it
        if false is None:
            self.lose(site)
        else:
            self.send(site, false)

    def lose(self, site: str) -> None:
        if self.sites[site].session is not None:
            self.lose_stream(site)

    def forget(self, site: str) -> None:
        """Its daemon is started again."""
        self.lose(site)
        self.lose_memory(site)

    def send(self, site: str, frame: pb.SiteFrame) -> None:
        """A frame that no participant made, at once."""
        session = self.sites[site].session
        if session is not None:
            self.do(self.machine.received(session, frame, self.now))

    def greet(self, site: str, hello: pb.Hello) -> bool:
        """Another stream of the same site, which says what it likes. Whether it is let in."""
        played_site = self.sites[site]
        self._numbers += 1
        session = self._numbers
        try:
            steps = self.machine.connected(session, site, self.machine.sites[site].fingerprint, hello, self.now)
        except CeError:
            return False  # before anything has changed
        self.up = deque((s, frame) for s, frame in self.up if s != played_site.session)
        self.down[site].clear()
        self._sessions[session] = site
        played_site.session = session
        for site_attempt in played_site.site_attempts.values():
            site_attempt.disconnected()
        self.do(steps)
        return True

    def global_step(self) -> None:
        """Go on, closed streams opened again, until nothing more happens."""
        for _ in range(30):
            self.run()
            closed = [site for site, played_site in self.sites.items() if played_site.session is None]
            if not closed:
                return
            self.connect(*closed)
        raise AssertionError("streams are closed again and again")


@dataclass(frozen=True)
class Scene:
    """Three sites with their files, and what undisturbed jobs give."""

    sites: Mapping[str, ClientSettings] = field(repr=False)
    bits: Mapping[str, tuple[Any, ...]] = field(repr=False)
    frames: Mapping[str, list[pb.SiteFrame]] = field(repr=False)  # what each site sent

    @classmethod
    def set_up(cls, directory: Path) -> Scene:
        pooled = problem(3, k=K, clusterings=5, missing=0.1, n=16).table
        tables = deal(pooled, ragged(pooled, len(SITES), np.random.default_rng(0)))
        files = {}
        for site, table in zip(SITES, tables.values(), strict=True):
            files[site] = directory / f"{site}.csv"
            write_labels(files[site], table)
        scene = cls(make_sites(directory, files, SECRETS), {}, {site: [] for site in SITES})
        # The same labels with different sites: that is nobody's concern here.
        for settings in scene.sites.values():
            for job in (TOGETHER, *WITHOUT.values()):
                Rosters(settings.state).allow(job.sites, job.name)
        bits: dict[str, tuple[Any, ...]] = {}
        frames = scene.frames
        for job in (TOGETHER, *WITHOUT.values()):
            table = scene.begin(Random(0), job)
            table.run()
            bits[job.name] = scene.results(table, job)
            for site, sent in table.sent.items():
                frames[site].extend(map(pb.SiteFrame.FromString, sent))
        return cls(scene.sites, bits, frames)

    def begin(self, rng: Random, *jobs: ce.Job, limits: Limits | None = None) -> BusyJobs:
        """A table with these jobs submitted and all sites connected, which know nothing of former ones."""
        for site in self.sites.values():
            shutil.rmtree(site.results, ignore_errors=True)
            for job in (TOGETHER, *WITHOUT.values(), *jobs):
                AttemptHistory(site.state).forget(job.name)
                JobIndex(site.state).forget(job.name)
        table = BusyJobs(self.sites, rng, limits)
        table.connect()
        for job in jobs:
            table.submit(job.definition(), job.name)
        return table

    def results(self, table: FrameByFrame, job: ce.Job) -> tuple[Any, ...]:
        """The operator's report, but for the traffic, and every site's memberships. The job must be done."""
        record = table.machine.records[job.name]
        assert (record.state, record.reason) == ("done", "")
        report = json.loads(record.result)
        del report["bytes"]
        own = (self.sites[site].results / job.name / "consensus.csv" for site in sorted(job.sites))
        return (report, *(path.read_bytes() for path in own))


# Lies.


@dataclass(frozen=True)
class Trouble:
    """Something goes wrong at a site, after so many steps."""

    moment: int
    what: str
    seed: int = 0


WHAT = ("frame", "frame", "repeat", "corrupt", "corrupt", "corrupt", "hello", "lose", "forget", "connect")


def cause(scene: Scene, table: BusyJobs, site: str, trouble: Trouble) -> None:
    rng = Random(trouble.seed)
    if trouble.what == "lose":
        table.lose(site)
    elif trouble.what == "forget":
        table.forget(site)
    elif trouble.what == "connect" or table.sites[site].session is None:
        table.connect(site)
    elif trouble.what == "hello":
        hello = pb.Hello(site=site, protocol=PROTOCOL, instance=bytes(16))
        hello.held.add(job=TOGETHER.name, epoch=rng.randrange(4))
        table.greet(site, mutated(hello, rng, rng.randint(0, 2)))  # type: ignore[arg-type]
    elif trouble.what == "repeat":
        for frame in table.sent[site][-3:]:
            table.send(site, pb.SiteFrame.FromString(frame))
    elif trouble.what == "corrupt":
        table.corrupting.setdefault(site, []).append(trouble.seed)
    else:
        frame = lie(scene, table, site, rng)
        if frame is None:
            table.lose(site)
        else:
            table.send(site, frame)


def lie(scene: Scene, table: BusyJobs, site: str, rng: Random) -> pb.SiteFrame | None:
    """A frame of another moment, another site or another job, perhaps corrupted; None: it cannot even be read."""
    whose = site if rng.random() < 0.8 else rng.choice(SITES)
    frame = odd_frame(rng) if rng.random() < 0.15 else rng.choice(scene.frames[whose])
    false: pb.SiteFrame | None = pb.SiteFrame.FromString(frame.SerializeToString())
    if rng.random() < 0.7:
        false = corrupted(frame, table.sites[site].site_files, rng)
    kind = None if false is None else false.WhichOneof("frame")
    if kind not in (None, "hello", "goodbye") and rng.random() < 0.7:
        run = table.machine.runs.get(TOGETHER.name)
        message = getattr(false, str(kind))
        message.job, message.epoch = TOGETHER.name, run.epoch if run else 1
    return false


def odd_frame(rng: Random) -> pb.SiteFrame:
    job = {"job": TOGETHER.name, "epoch": 1}
    return rng.choice(
        [
            pb.SiteFrame(),
            pb.SiteFrame(hello=pb.Hello(site="north", protocol=PROTOCOL, instance=bytes(16))),
            pb.SiteFrame(goodbye=pb.Goodbye(reason=MARK)),
            pb.SiteFrame(more=pb.More(**job)),
            pb.SiteFrame(ready=pb.Ready(**job)),
            pb.SiteFrame(refusal=pb.Refusal(**job, exit_code=2**32 - 1, rule="x\n" * 500)),
            pb.SiteFrame(refusal=pb.Refusal(**job, sentence="\x1b[2J\n" * 1000)),
            pb.SiteFrame(answer=pb.Answer(**job, round=99, step=pb.STEP_SUMS)),
            pb.SiteFrame(enrolment=pb.Enrolment(**job, objects=2**64 - 1)),
            pb.SiteFrame(encrypted_keys=pb.EncryptedKeys(**job)),
            pb.SiteFrame(key_share=pb.KeyShare(**job)),
            pb.SiteFrame(letters=pb.Letters(**job, stage=rng.randrange(4))),
        ]
    )


def corrupted(frame: pb.SiteFrame, site_files: SiteFiles, rng: Random) -> pb.SiteFrame | None:
    """Fields changed, or bits flipped; None: it cannot even be read."""
    false: Any = mutated(frame, rng, rng.randint(1, 3)) if rng.random() < 0.75 else damaged(frame, rng)
    if false is not None and false.WhichOneof("frame") == "enrolment" and rng.random() < 0.7:
        sign(false.enrolment, site_files)
    return false


def sign(enrolment: pb.Enrolment, site_files: SiteFiles) -> None:
    """A site may lie and sign it."""
    tokens = b"".join(part.data for part in enrolment.chunks.chunks)
    kinds = {pb.COLUMN_KIND_CLUSTERING: "clustering", pb.COLUMN_KIND_CLASSIFIER: "classifier"}
    written = {pb.CATEGORY_KIND_INTEGER: "integers", pb.CATEGORY_KIND_TEXT: "text"}
    columns = tuple(
        ColumnClaim(
            claim.name,
            kinds.get(claim.kind, "clustering"),  # type: ignore[arg-type]
            claim.soft,
            tuple(range(min(claim.category_count, 10**6))),
            written.get(claim.categories_are),  # type: ignore[arg-type]
            claim.labels,
        )
        for claim in enrolment.columns
    )
    own = Enrolment(np.frombuffer(tokens[: len(tokens) // 16 * 16], dtype="V16"), columns)
    attempt = Attempt(enrolment.job, TOGETHER.definition(), enrolment.epoch, SITES)
    wishes = Wishes(enrolment.min_sites, enrolment.min_objects)
    summary = own.summary(enrolment.revision, enrolment.pseudonym_salt, enrolment.key_commitment, wishes)
    enrolment.pseudonym_digest = summary.pseudonym_digest
    enrolment.signature = sign_enrolment(attempt, site_files.settings.name, summary, site_files.key)
