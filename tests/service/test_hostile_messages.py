"""What a site with a valid certificate may send, and in what order: nothing takes the coordinator down or wedges a job.

Whole jobs without sockets, in any order of delivery, with slow computations, and with one site that lies, repeats itself,
loses its stream or its memory at any moment; then a real coordinator, with what only a real stream can bring.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mutations import MARK, damaged, mutated
from problems import deal, problem, ragged
from processes import write_labels
from tabletop import Table, make_sites

import ce
from ce.errors import CeError
from ce.protocol.handshake import Attempt, pseudonym_digest, sign_enrolment
from ce.protocol.topology import ColumnClaim, Enrolment
from ce.transport.wire import PROTOCOL
from ce_client.config import ClientSettings
from ce_client.resources import Resources
from ce_coordinator.core.instructions import Compute, Instruction
from ce_coordinator.core.limits import Limits
from ce_proto.v1 import site_pb2 as pb

SITES = ("north", "south", "west")
K = 2
#: "field: what is wrong with it", perhaps after the name of the site.
NAMES_A_FIELD = re.compile(r"(\w+: )?[\w/ ]+: [\w ,'/:_-]+")


def job_of(name: str, *sites: str, model: str = "bce") -> ce.Job:
    return ce.Job(
        name=name, model=model, clusters=K, sites=sites, restarts=2, max_iterations=2, privacy="plain"
    )


#: The job of all three, and those of two of them that the third has no part in.
TOGETHER = job_of("together", *SITES)
WITHOUT = {site: job_of(f"without-{site}", *(other for other in SITES if other != site)) for site in SITES}


class BusyTable(Table):
    """A table where frames of different streams overtake each other, and computations take their time."""

    def __init__(self, sites: Mapping[str, ClientSettings], rng: Random, limits: Limits | None = None) -> None:
        self.rng = rng
        self.work: list[tuple[Compute, Any]] = []
        self.corrupting: dict[str, list[int]] = {}  # seeds, for the next frames of a site
        self.sent: dict[str, list[bytes]] = {site: [] for site in sites}
        super().__init__(sites, limits)

    def do(self, steps: list[Instruction]) -> None:
        for step in steps:
            if isinstance(step, Compute):
                # In a thread: its effects may be there long before the machine hears of them.
                self.work.append((step, _result(step) if self.rng.random() < 0.5 else None))
            else:
                super().do([step])

    def step(self) -> bool:
        choices: list[tuple[str, Any]] = [("up", session) for session in dict(self.up)]
        choices += [("down", site) for site, frames in self.down.items() if frames and self.seats[site].session]
        choices += [("work", at) for at in range(len(self.work))]
        if not choices:
            return False
        kind, what = self.rng.choice(choices)
        if kind == "down":
            self.deliver_down(what)
        elif kind == "work":
            step, result = self.work.pop(what)
            self.do(self.machine.computed(step.job, step.epoch, result or _result(step), self.now))
        else:
            first = next(at for at, (session, _) in enumerate(self.up) if session == what)
            self.up.rotate(-first)
            frame = self.up.popleft()
            self.up.rotate(first)
            self.up.appendleft(frame)
            self.deliver_up()
        return True

    def deliver_up(self) -> None:
        session, frame = self.up[0]
        site = self._sessions[session]
        if self.corrupting.get(site):
            rng = Random(self.corrupting[site].pop())
            false = corrupted(pb.SiteFrame.FromString(frame), self.seats[site].resources, rng)
            if rng.random() < 0.5:
                self.up.popleft()  # instead of the right one, otherwise before it
            if false is None:
                self.lose(site)
            else:
                self.send(site, false)
        else:
            self.sent[site].append(frame)
            super().deliver_up()

    def lose(self, site: str) -> None:
        if self.seats[site].session is not None:
            self.lose_stream(site)

    def send(self, site: str, frame: pb.SiteFrame) -> None:
        """A frame from a site that nobody asked for."""
        session = self.seats[site].session
        if session is not None:
            self.do(self.machine.received(session, frame, self.now))

    def settle(self) -> None:
        """Go on, with all streams open again, until every job is over or nothing more happens."""
        for _ in range(20):
            self.run()
            closed = [site for site, seat in self.seats.items() if seat.session is None]
            if not closed:
                return
            self.connect(*closed)
        raise AssertionError("streams are closed again and again")


def _result(step: Compute) -> Any:
    try:
        return step.work()
    except Exception as error:
        return error


@dataclass(frozen=True)
class Scene:
    """Three sites with their files, and what undisturbed jobs give."""

    sites: Mapping[str, ClientSettings]
    bits: Mapping[str, tuple[bytes, ...]]
    frames: Mapping[str, list[pb.SiteFrame]]  # what each site sent

    def results(self, table: Table, job: ce.Job) -> tuple[bytes, ...]:
        return results(self.sites, table, job)

    def clear(self) -> None:
        for settings_ in self.sites.values():
            shutil.rmtree(settings_.results, ignore_errors=True)


def results(sites: Mapping[str, ClientSettings], table: Table, job: ce.Job) -> tuple[bytes, ...]:
    """The operator's report and every site's memberships."""
    record = table.machine.records[job.name]
    assert (record.state, record.reason) == ("done", "")
    own = (sites[site].results / job.name / "consensus.csv" for site in sorted(job.sites))
    return (record.result, *(path.read_bytes() for path in own))


@pytest.fixture(scope="module", name="scene")
def _scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    directory = tmp_path_factory.mktemp("scene")
    pooled = problem(3, k=K, clusterings=5, missing=0.1, n=16).table
    tables = deal(pooled, ragged(pooled, len(SITES), np.random.default_rng(0)))
    files = {}
    for site, table in zip(SITES, tables.values(), strict=True):
        files[site] = directory / f"{site}.csv"
        write_labels(files[site], table)
    sites = make_sites(directory, files, {site: hashlib.sha256(site.encode()).digest() for site in SITES})
    bits = {}
    frames: dict[str, list[pb.SiteFrame]] = {site: [] for site in SITES}
    for job in (TOGETHER, *WITHOUT.values()):
        undisturbed = Table(sites)
        undisturbed.connect()
        undisturbed.submit(job.definition())
        while undisturbed.up or undisturbed.step():
            for session, frame in undisturbed.up:
                frames[undisturbed._sessions[session]].append(pb.SiteFrame.FromString(frame))
            while undisturbed.up:
                undisturbed.deliver_up()
        bits[job.name] = results(sites, undisturbed, job)
    return Scene(sites, bits, frames)


# A site that lies.


@dataclass(frozen=True)
class Trouble:
    moment: int
    what: str
    seed: int


TROUBLES = st.lists(
    st.builds(
        Trouble,
        st.integers(0, 120),
        st.sampled_from(["frame", "frame", "repeat", "corrupt", "corrupt", "corrupt", "hello", "lose", "forget"]),
        st.integers(0, 2**32 - 1),
    ),
    min_size=1,
    max_size=8,
)


def lie(scene: Scene, table: BusyTable, site: str, rng: Random) -> pb.SiteFrame | None:
    """A frame that this site should not send now; None: it cannot even be read."""
    pick = rng.random()
    if pick < 0.1:
        frame = odd_frame(rng)
    elif pick < 0.3:
        frame = rng.choice(scene.frames[rng.choice(SITES)])
    else:
        frame = rng.choice(scene.frames[site])
    if rng.random() < 0.3:
        false = pb.SiteFrame.FromString(frame.SerializeToString())
    else:
        false = corrupted(frame, table.seats[site].resources, rng)
    kind = false and false.WhichOneof("frame")
    if false is not None and kind not in (None, "hello", "goodbye") and rng.random() < 0.7:
        run = table.machine.runs.get(TOGETHER.name)
        message = getattr(false, str(kind))
        message.job, message.epoch = TOGETHER.name, run.epoch if run else 1
    return false


def corrupted(frame: pb.SiteFrame, resources: Resources, rng: Random) -> pb.SiteFrame | None:
    """Fields changed, or bits flipped; None: it cannot even be read."""
    false: Any = mutated(frame, rng, rng.randint(1, 3)) if rng.random() < 0.75 else damaged(frame, rng)
    if false is not None and false.WhichOneof("frame") == "enrolment" and rng.random() < 0.7:
        sign(false.enrolment, resources)
    return false


def sign(enrolment: pb.Enrolment, resources: Resources) -> None:
    """A site may lie and sign it."""
    tokens = b"".join(part.data for part in enrolment.parts.parts)
    kinds = {pb.COLUMN_KIND_CLUSTERING: "clustering", pb.COLUMN_KIND_CLASSIFIER: "classifier"}
    written = {pb.CATEGORY_KIND_INTEGER: "integers", pb.CATEGORY_KIND_TEXT: "text"}
    columns = tuple(
        ColumnClaim(
            claim.name,
            kinds.get(claim.kind, "clustering"),  # type: ignore[arg-type]
            claim.soft,
            tuple(token.hex() for token in claim.categories),
            written.get(claim.categories_are),  # type: ignore[arg-type]
        )
        for claim in enrolment.columns
    )
    own = Enrolment(np.frombuffer(tokens[: len(tokens) // 16 * 16], dtype="V16"), columns)
    attempt = Attempt(enrolment.job, TOGETHER.definition(), enrolment.epoch, tuple(sorted(SITES)))
    enrolment.pseudonym_digest = pseudonym_digest(own)
    enrolment.signature = sign_enrolment(attempt, resources.settings.name, own, resources.key)


def odd_frame(rng: Random) -> pb.SiteFrame:
    job, epoch = TOGETHER.name, 1
    return rng.choice(
        [
            pb.SiteFrame(),
            pb.SiteFrame(hello=pb.Hello(site="north", protocol=PROTOCOL, instance=bytes(16))),
            pb.SiteFrame(goodbye=pb.Goodbye(reason=MARK)),
            pb.SiteFrame(more=pb.More(job=job, epoch=epoch)),
            pb.SiteFrame(ready=pb.Ready(job=job, epoch=epoch)),
            pb.SiteFrame(refusal=pb.Refusal(job=job, epoch=epoch, exit_code=2**32 - 1, rule="x\n" * 500)),
            pb.SiteFrame(refusal=pb.Refusal(job=job, epoch=epoch, sentence="\x1b[2J\n" * 1000)),
            pb.SiteFrame(answer=pb.Answer(job=job, epoch=epoch, round=99)),
            pb.SiteFrame(enrolment=pb.Enrolment(job=job, epoch=epoch, objects=2**64 - 1)),
            pb.SiteFrame(sealed_keys=pb.SealedKeys(job=job, epoch=epoch)),
            pb.SiteFrame(key_share=pb.KeyShare(job=job, epoch=epoch)),
        ]
    )


def cause(scene: Scene, table: BusyTable, site: str, trouble: Trouble) -> None:
    rng = Random(trouble.seed)
    seat = table.seats[site]
    if trouble.what == "lose":
        table.lose(site)
    elif trouble.what == "forget":
        table.lose(site)
        table.lose_memory(site)
    elif trouble.what == "hello":
        hello = pb.Hello(site=site, protocol=PROTOCOL, instance=bytes(16))
        hello.held.add(job=TOGETHER.name, epoch=rng.randrange(4))
        false_hello(table, site, mutated(hello, rng, rng.randint(0, 2)))  # type: ignore[arg-type]
    elif trouble.what == "repeat" and table.sent[site]:
        table.send(site, pb.SiteFrame.FromString(rng.choice(table.sent[site][-3:])))
    elif trouble.what == "corrupt":
        table.corrupting.setdefault(site, []).append(trouble.seed)
    elif seat.session is None:
        table.connect(site)
    else:
        frame = lie(scene, table, site, rng)
        if frame is None:
            table.lose(site)
        else:
            table.send(site, frame)


def false_hello(table: BusyTable, site: str, hello: pb.Hello) -> None:
    """Another stream of the same site, which says what it likes."""
    seat = table.seats[site]
    former = seat.session
    table._numbers += 1
    session = table._numbers
    table._sessions[session] = site
    seat.session = session
    down, up = table.down[site].copy(), table.up
    table.down[site].clear()
    table.up = deque((s, frame) for s, frame in table.up if s != former)
    try:
        steps = table.machine.connected(session, site, table.machine.sites[site].fingerprint, hello, table.now)
    except CeError:
        # Refused before anything changed: the stream that there was is still there.
        seat.session, table.down[site], table.up = former, down, up
        return
    for participant in seat.participants.values():
        participant.disconnected()
    table.do(steps)


def check_rest(table: BusyTable) -> None:
    """Every job is over, or waits for sites that are in it."""
    for run in table.machine.runs.values():
        assert run.awaited
        assert run.awaited <= set(run.roster)
        assert run.deadline < float("inf")


def check_notes(table: BusyTable) -> None:
    for note in table.notes:
        assert all(str(value).isprintable() for value in note.fields.values())
        # A refusal's own words are meant for a person.
        assert MARK not in str(note.fields) or note.event in ("site refuses job", "job failed")
        if note.event == "message refused":
            assert NAMES_A_FIELD.fullmatch(str(note.fields["reason"])), note
    for _, error in table.closed:
        assert MARK not in error


@settings(max_examples=60, derandomize=True)
@given(st.sampled_from(SITES), TROUBLES, st.integers(0, 2**32 - 1))
def test_nothing_that_a_site_sends_wedges_a_job_or_reaches_another(
    scene: Scene, hostile: str, troubles: list[Trouble], seed: int
) -> None:
    scene.clear()
    table = BusyTable(scene.sites, Random(seed))
    table.connect()
    other = WITHOUT[hostile]
    table.submit(TOGETHER.definition(), "1")
    table.submit(other.definition(), "2")
    for moment in range(121):
        for trouble in troubles:
            if trouble.moment == moment:
                cause(scene, table, hostile, trouble)
        if not table.step():
            check_rest(table)
    table.run()
    check_rest(table)
    # It behaves again: a stream like any other, and nothing but what its participants say.
    table.corrupting.clear()
    table.lose(hostile)
    table.settle()
    check_notes(table)
    assert scene.results(table, other) == scene.bits[other.name]
    assert table.machine.records[other.name].epoch == 1
    record = table.machine.records[TOGETHER.name]
    assert record.state in ("done", "failed")
    if record.state == "failed":
        assert record.reason
        assert record.exit_code in (3, 4, 5, 6, 7)
