"""A coordinator that lies, and honest sites: what reaches a chosen site is rewritten on the way.

A `LyingJob` is a table whose coordinator tells some sites something else than the others, and answers in their stead
where its own machine would be confused by that. Where no machine could follow, `ask` puts a task to a site by hand.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.serialization import Encoding

import ce
from ce.errors import AlteredTotals, BrokenTotals, CeError
from ce.identity.authority import Authority
from ce.identity.keys import PrivateKey, make_key
from ce.identity.names import Identity
from ce.job import Job
from ce.protocol.messages.task import Answer, Array, Task, task_digest
from ce.testing import PERMISSIVE, FrameByFrame, make_sites, write_labels
from ce.transport.array_chunks import Collector, to_chunks
from ce.transport.frames import AnswerReader, task_frames, task_header
from ce_client.attempt.attempt import SiteAttempt
from ce_client.attempt.refusal import CANNOT_GO_ON
from ce_client.config import ClientSettings
from ce_client.state.attempt_history import AttemptHistory
from ce_client.state.job_index import JobIndex
from ce_client.state.rosters import Rosters
from ce_coordinator.core.records import JobRecord
from ce_proto.v1 import arrays_pb2
from ce_proto.v1 import site_pb2 as pb

SITES = ("east", "north", "west")
SECRETS = {site: hashlib.sha256(site.encode()).digest() for site in SITES}
#: Blocks by number, as the coordinator counts them; the others are of one site each.
ALL, TWO = 0, 1
MEMBERS = {ALL: SITES, TWO: ("east", "north")}
#: The shared column's group.
COMMON = 0
NAME = "lied"
ROOM = 2**20

#: The site that is lied to, where it need not be another.
HEARER = "west"

#: Keys of policy.toml, by site.
Policies = Mapping[str, dict[str, object]]
#: Arrays that came up: by round and name, then by site.
Heard = dict[tuple[int, str], dict[str, Array]]

#: Laws of totals. Noise breaks all; which is found first depends on what is looked at first.
LAWS = (
    "0 <= objects <= all objects",
    "0 <= claims <= sites",
    "0 <= labels <= clusterings",
    "smallest <= a_ih",
    "a_ih <= largest",
    "sum_h a_ih = number of labels",
    "0 <= n_hr <= objects",
    "within its declared bound",
    "0 <= count <= objects",
)

#: North leaves out the objects that it holds alone; so does east in the second case.
LEAVES = {"north": {"min_objects": 3}}
LEAVE = LEAVES | {"east": {"min_objects": 3}}


def job_of(privacy: str, **more: Any) -> ce.Job:
    """A job of some ten rounds; the same starts in every mode."""
    asked = {"clusters": 2, "restarts": 2, "max_iterations": 3, "tolerance": 0.0, "sites": SITES} | more
    return ce.Job(name=NAME, privacy=privacy, **asked)  # type: ignore[arg-type]


def labels() -> dict[str, ce.LabelTable]:
    """Four objects of all sites, three of east and north, some of each site's own; a column that all share, two each.

    West has not seen all categories of what they share. Fewer than 16 objects, but more where those of each site are
    added up: the scale of a sum depends on it.
    """
    rng = np.random.default_rng(0)
    own = {"east": 2, "north": 2, "west": 4}
    claimed = {"east": ("a0", "a1", "b0"), "north": ("a2", "b1", "b2"), "west": ("a3",)}
    tables = {}
    for site in SITES:
        ids = [f"a{i}" for i in range(4)] + [f"b{i}" for i in range(3) if site in MEMBERS[TWO]]
        mine = [f"{site[0]}own{i}" for i in range(own[site])]
        ids = [str(i) for i in rng.permutation([*ids, *mine])]
        seen = 2 if site == "west" else 3  # categories
        common = [int(rng.integers(0, seen)) if i in (*claimed[site], *mine) else -1 for i in ids]
        cells = np.column_stack([common, rng.integers(0, 2, len(ids)), rng.integers(0, 3, len(ids))])
        tables[site] = ce.LabelTable.from_arrays(cells, ids=ids, columns=["common", f"{site}1", f"{site}2"])
    return tables


@dataclass(frozen=True)
class Scene:
    """Three sites with their files, and an operator who has the authority's key."""

    sites: Mapping[str, ClientSettings] = field(repr=False)
    authority: Authority = field(repr=False)

    @classmethod
    def set_up(cls, directory: Path) -> Scene:
        authority = Authority.create(directory / "authority", datetime.now(UTC))
        files = {}
        for site, table in labels().items():
            files[site] = directory / f"{site}.csv"
            write_labels(files[site], table)
        return cls(make_sites(directory, files, SECRETS, authority=authority), authority)

    def certified(self, name: str) -> tuple[PrivateKey, bytes]:
        """A key of the operator's own, and a certificate that it is a site's: the authority signs anything."""
        key = make_key()
        certificate = self.authority.issue(Identity("site", name), key, datetime.now(UTC), replace=True)
        return key, certificate.public_bytes(Encoding.DER)

    def clear(self, policies: Policies | None = None) -> None:
        """Nothing is left of former jobs; sites that take part in anything, but for what is said here."""
        for site, settings in self.sites.items():
            shutil.rmtree(settings.results, ignore_errors=True)
            AttemptHistory(settings.state).forget(NAME)
            JobIndex(settings.state).forget(NAME)
            keys = tomllib.loads(PERMISSIVE) | (policies or {}).get(site, {})
            settings.policy.write_text("".join(f"{key} = {json.dumps(value)}\n" for key, value in keys.items()))

    def allow(self, roster: Sequence[str]) -> None:
        """The same labels with other sites: allowed, so that something else must stand against it."""
        for settings in self.sites.values():
            Rosters(settings.state).allow(roster, NAME)

    def begin(self, job: ce.Job, *lies: Lie, policies: Policies | None = None) -> LyingJob:
        """A table with the job submitted and all sites connected."""
        self.clear(policies)
        table = LyingJob(self.sites, lies)
        table.connect()
        table.submit(job.definition())
        return table

    def finish(self, job: ce.Job, policies: Policies | None = None) -> JobRecord:
        """How it ends when nobody lies."""
        table = self.begin(job, policies=policies)
        table.run()
        return table.record


# Lies.

Change = Callable[[Any, "LyingJob"], Any]


@dataclass(frozen=True)
class Lie:
    """What is changed in which message, to whom; the first time only. Of a task also which step and iteration."""

    to: str
    kind: str
    change: Change
    step: int = 0
    iteration: int = 0
    epoch: int = 1
    revision: int = 0  # of an introduction, letters or an alignment
    stage: int = 1  # of letters
    signed: bool = True  # the digest of a task is made anew

    def about(self, site: str, kind: str, message: Any) -> bool:
        if (site, kind) != (self.to, self.kind) or message.epoch != self.epoch:
            return False
        if kind in ("introduction", "letters", "alignment") and message.revision != self.revision:
            return False
        if kind == "letters" and message.stage != self.stage:
            return False
        return kind != "task" or (self.step in (0, message.step) and self.iteration in (0, message.iteration))


class LyingJob(FrameByFrame):
    """A table whose coordinator lies, and notes what that leads to."""

    def __init__(self, sites: Mapping[str, ClientSettings], lies: Sequence[Lie] = ()) -> None:
        self._lies = list(lies)
        self._honest: dict[tuple[str, int, int], bytes] = {}  # digests, by site, epoch and round
        self.told: dict[str, list[pb.CoordinatorFrame]] = {site: [] for site in sites}
        #: What a site has sent since it was lied to.
        self.since: dict[str, list[pb.SiteFrame]] = {}
        self.refusals: dict[str, CeError] = {}
        #: Sites that have sent masked words, with the epoch.
        self.contributed: set[tuple[str, int]] = set()
        self.heard: Heard = {}
        #: What is done to a frame on its way up, so that the coordinator's own machine notices nothing.
        self.amend: Callable[[str, pb.SiteFrame], None] = lambda site, frame: None
        super().__init__(sites)

    @property
    def record(self) -> JobRecord:
        return self.machine.records[NAME]

    def deliver_down(self, site: str) -> None:
        frame = pb.CoordinatorFrame.FromString(self.down[site][0])
        kind = str(frame.WhichOneof("frame"))
        for lie in [own for own in self._lies if own.about(site, kind, getattr(frame, kind))]:
            self._lies.remove(lie)
            lie.change(getattr(frame, kind), self)
            self.since[site] = []
            if kind == "task" and lie.signed:
                self._honest[site, frame.task.epoch, frame.task.round] = frame.task.digest
                sign(frame.task, self.sites[site].site_attempts[NAME].attempt.job_digest)
        self.down[site][0] = frame.SerializeToString()
        self.told[site].append(frame)
        before = len(self.up)
        super().deliver_down(site)
        replies = [pb.SiteFrame.FromString(data) for _, data in list(self.up)[before:]]
        for answer in (reply.answer for reply in replies if reply.WhichOneof("frame") == "answer"):
            if any(not chunk.name.startswith("box/") for chunk in answer.chunks.chunks):
                self.contributed.add((site, answer.epoch))
        if site in self.since:
            self.since[site] += replies
        site_attempt = self.sites[site].site_attempts.get(NAME)
        if site_attempt is not None and site_attempt.refusal is not None:
            self.refusals[site] = site_attempt.refusal

    def deliver_up(self) -> None:
        session, data = self.up.popleft()
        site, frame = self._sessions[session], pb.SiteFrame.FromString(data)
        if frame.WhichOneof("frame") == "answer":
            answer = frame.answer
            for name, array in arrays_of(answer.chunks).items():
                self.heard.setdefault((answer.round, name), {})[site] = array
            answer.task_digest = self._honest.get((site, answer.epoch, answer.round), answer.task_digest)
        self.amend(site, frame)
        self.up.appendleft((session, frame.SerializeToString()))
        super().deliver_up()

    def pause(self, step: int = 0, iteration: int = 0) -> dict[str, SiteAttempt]:
        """Go on until every site is about to get a task of this step, and take these tasks away."""

        def waits(site: str) -> bool:
            if not self.down[site]:
                return False
            task = pb.CoordinatorFrame.FromString(self.down[site][0])
            wanted = task.WhichOneof("frame") == "task" and step in (0, task.task.step)
            return wanted and iteration in (0, task.task.iteration)

        while not all(map(waits, self.sites)):
            if self.up:
                self.deliver_up()
                continue
            self.deliver_down(next(site for site in self.sites if self.down[site] and not waits(site)))
        self.waiting = {site: pb.CoordinatorFrame.FromString(self.down[site].popleft()).task for site in self.sites}
        return {site: played_site.site_attempts[NAME] for site, played_site in self.sites.items()}

    def begin_again(self, site: str) -> None:
        """A site has lost its memory: a new epoch."""
        self.lose_stream(site)
        self.lose_memory(site)
        self.connect(site)


# Arrays in messages.


def arrays_of(chunks: arrays_pb2.ArrayChunks) -> dict[str, Array]:
    collector = Collector(ROOM)
    assert collector.feed(chunks)
    return {name: array.copy() for name, array in collector.arrays.items()}


def put(chunks: arrays_pb2.ArrayChunks, arrays: Mapping[str, Array]) -> None:
    """These arrays and no others, in the place of those that were there."""
    (own,) = to_chunks(arrays)
    chunks.CopyFrom(own)


def with_arrays(change: Callable[[dict[str, Array]], Any]) -> Change:
    """A lie about the arrays of an alignment or a task."""

    def lie(message: Any, table: LyingJob) -> None:
        arrays = arrays_of(message.chunks)
        change(arrays)
        put(message.chunks, arrays)

    return lie


def others(*names: str) -> Change:
    """Other numbers in the place of these, and likely ones."""

    def change(arrays: dict[str, Array]) -> None:
        for name in names:
            own = arrays[name]
            arrays[name] = own + 1 if own.dtype.kind == "i" else own * 0.5  # type: ignore[assignment]

    return with_arrays(change)


def sign(task: pb.Task, job_digest: bytes) -> None:
    """Whoever makes up a task can also make up its digest."""
    made = task_of(task)
    task.digest = task_digest(job_digest, task.epoch, made, made.hashes)


def task_of(message: pb.Task) -> Task:
    return replace(task_header(message), arrays=arrays_of(message.chunks))


# By hand.


def ask(site_attempt: SiteAttempt, task: Task) -> Answer:
    """A site's answer to a task that is made up, or the error with which it refuses."""
    digest = task_digest(site_attempt.attempt.job_digest, site_attempt.epoch, task, task.hashes)
    (frame,) = task_frames(site_attempt.job, site_attempt.epoch, task, digest)
    (reply,) = site_attempt.receive("task", frame.task)
    if site_attempt.refusal is not None:
        assert reply.WhichOneof("frame") == "refusal"
        raise site_attempt.refusal
    answer = AnswerReader(reply.answer, ROOM).feed(reply.answer.chunks)
    assert answer is not None
    return answer


def totals(answers: Mapping[str, Answer], *sites: str) -> dict[str, Array]:
    """The words of these sites, or of all, added up by name wherever they have the same shape."""
    found: dict[str, Array] = {}
    for site in sites or answers:
        for name, words in answers[site].arrays.items():
            if words.dtype == np.int64 and found.get(name, words).shape == words.shape:
                found[name] = found[name] + words if name in found else words  # type: ignore[assignment]
    return found


def mail(answers: Mapping[str, Answer], to: str) -> dict[str, Array]:
    """What the others have sealed for a site, as it goes down."""
    return {
        f"box/{sender}": answer.arrays[f"box/{to}"]
        for sender, answer in answers.items()
        if f"box/{to}" in answer.arrays
    }


# What may be changed in an introduction and in an alignment.


def enrolment_in(message: pb.Introduction, site: str) -> pb.EnrolmentSummary:
    return next(own for own in message.enrolments if own.site == site)


def column_in(message: pb.Alignment, name: str) -> pb.ColumnView:
    return next(own for own in message.columns if own.name == name)


def about_north(change: Callable[[pb.EnrolmentSummary], Any]) -> Change:
    return lambda message, _: change(enrolment_in(message, "north"))


def private_of(site: str, change: Callable[[int], int]) -> Change:
    """Another number of objects that a site holds alone."""

    def lie(message: pb.Alignment, table: LyingJob) -> None:
        message.private_objects[SITES.index(site)] = change(message.private_objects[SITES.index(site)])

    return lie


def set_to(name: str, value: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda message: setattr(message, name, value(getattr(message, name)))


def older(message: pb.Introduction, table: LyingJob) -> None:
    """North has signed both: the first with the objects that it then leaves out. So it would seem a larger crowd."""
    own, before = (enrolment_in(m, "north") for m in (message, earlier("introduction", table)))
    assert (own.objects, before.objects) == (7, 9)
    own.CopyFrom(before)


def earlier(kind: str, table: LyingJob, site: str = HEARER) -> Any:
    """What the site was told in the first epoch."""
    return next(
        getattr(frame, kind)
        for frame in table.told[site]
        if frame.WhichOneof("frame") == kind and getattr(frame, kind).epoch == 1
    )


# What comes of it.


@pytest.fixture(scope="module", name="scene")
def scene_fixture(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    return Scene.set_up(tmp_path_factory.mktemp("scene"))


@pytest.fixture(scope="module", name="truth")
def truth_fixture(scene: Scene) -> Heard:
    """What each site adds to each total: the same in `masked`, from the same starts."""
    table = scene.begin(job_of("plain"))
    table.run()
    assert table.record.state == "done"
    return table.heard


def assert_refused(table: LyingJob, error: type[CeError], says: str, site: str = HEARER) -> None:
    """The site has refused, in these words, and said nothing else since it was lied to. The coordinator hears them too,
    unless masked words have left the site before."""
    refusal = table.refusals[site]
    assert type(refusal) is error
    assert says in str(refusal)
    assert {frame.WhichOneof("frame") for frame in table.since[site]} == {"refusal"}
    record = table.record
    if (site, record.epoch) in table.contributed:
        assert_told_nothing(table, site)
        return
    assert (record.state, record.exit_code) == ("failed", error.exit_code)
    assert record.rule == getattr(refusal, "rule", "")
    assert record.reason.startswith(f"{site}: ")
    assert CANNOT_GO_ON not in record.reason


def assert_told_nothing(table: LyingJob, *sites: str) -> None:
    """The coordinator knows which of these sites was the first that could not go on, and nothing more."""
    record = table.record
    assert (record.state, record.exit_code, record.rule) == ("failed", 7, "")
    assert record.reason in [f"{site}: {CANNOT_GO_ON}" for site in sites]


def assert_broken(table: LyingJob) -> None:
    """Whoever reads the totals has found that they cannot be: in `masked` the home, which says so; in `blind` members,
    before they do anything with them, and they say to others only that they cannot go on."""
    record = table.record
    if Job.from_definition(record.definition).privacy == "masked":
        assert (record.state, record.exit_code) == ("failed", BrokenTotals.exit_code)
        assert not table.refusals
        assert any(f"breaks the law '{law}': masks did not cancel" in record.reason for law in LAWS)
        return
    assert table.refusals
    assert_told_nothing(table, *table.refusals)
    for error in table.refusals.values():
        assert isinstance(error, AlteredTotals)


def assert_noise(table: LyingJob, truth: Heard, name: str) -> None:
    """What the liar adds up of the last round has nothing in common with the total that it wanted."""
    round_ = max(at for at, other in table.heard if other == name)
    got, true = (total_of(heard[round_, name]) for heard in (table.heard, truth))
    assert (got != true).all()


def total_of(words: Mapping[str, Array]) -> Array:
    return np.sum(list(words.values()), axis=0)  # type: ignore[no-any-return]
