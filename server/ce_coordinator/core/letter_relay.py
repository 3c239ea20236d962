"""Introductions and letters of one revision of the enrolments: what all sites are sent before they are aligned.

The sites write to each other in two stages (`ce.protocol.keys.letters`). The coordinator waits until all letters of a
stage are there, checks their sizes, and passes them on; it cannot read them. They wait in rooms, which may be files:
those of fifty sites are many. In the second stage each site says how many categories take part of each clustering that
it shares: the holders of a column must say the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ce.errors import JobFailed, LimitReached, MessageError
from ce.protocol.attempt import Attempt
from ce.protocol.engine.accumulators import Accumulators
from ce.protocol.keys.letters import COMPARED, FIRST, SECOND, ObjectLists, box_size, holders_of
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.rooms import MemoryRoom, Rooms
from ce.protocol.messages.steps import ArraySpec
from ce.protocol.topology.enrolment import EnrolmentSummary
from ce.protocol.topology.site_view import Categories
from ce.transport.array_chunks import LARGEST_HEADER, chunks_of
from ce.transport.enrolment_codec import introduction_frame
from ce.transport.letters_codec import letters_down, read_vocabularies
from ce_proto.v1 import arrays_pb2
from ce_proto.v1 import site_pb2 as pb

Frames = Iterator[pb.CoordinatorFrame]

#: Bytes of all letters of one revision. Lists of objects take at most 12.8 MB of each site (`set_intersection`).
MOST_BYTES = 4 * 2**30


@dataclass
class _Arriving:
    """Letters of one site that are still on their way. Stage 0: they repeat letters that are here, and are dropped."""

    stage: int
    vocabularies: dict[str, int]


class LetterRelay:
    """The letters of all sites, for one revision. `stage` is the one whose letters are awaited, 3 when all are here."""

    def __init__(
        self,
        attempt: Attempt,
        signed: Mapping[str, tuple[EnrolmentSummary, bytes]],
        revision: int,
        lists: ObjectLists = COMPARED,
        rooms: Rooms = MemoryRoom,
    ) -> None:
        """`rooms`: where letters wait. Raises LimitReached if what the sites would write is more than the coordinator
        takes, and JobFailed if there is no room for it."""
        self.stage = FIRST
        self._attempt = attempt
        self._revision = revision
        self._lists = lists
        self._rooms = rooms
        self._summaries = {site: signed[site][0] for site in attempt.roster}
        self._introduction = introduction_frame(attempt, signed, revision)
        if self._introduction.ByteSize() > LARGEST_HEADER:
            raise LimitReached("what the sites have enrolled does not fit in a message: fewer columns need less")
        needed = sum(self._size(stage, site) for stage in (FIRST, SECOND) for site in attempt.roster)
        if needed > MOST_BYTES:
            raise LimitReached(
                f"what the sites write to each other takes {needed / 1e9:,.1f} GB at the coordinator, and it takes "
                f"{MOST_BYTES / 1e9:,.1f} GB: fewer sites need less"
            )
        #: By stage: from each site one box for each other site.
        self._letters = {FIRST: self._room(FIRST)}
        self._vocabularies: dict[str, dict[str, int]] = {}  # by site and column
        self._arriving: dict[str, _Arriving] = {}

    @property
    def awaited(self) -> set[str]:
        """The sites whose letters of this stage are not here."""
        return set() if self.complete else set(self._letters[self.stage].waiting)

    @property
    def complete(self) -> bool:
        return self.stage > SECOND

    @property
    def vocabularies(self) -> dict[str, Categories]:
        """Of each shared clustering the categories that take part, numbered. Raises JobFailed where holders differ."""
        found: dict[str, Categories] = {}
        said: dict[str, dict[str, int]] = {}
        for site, sizes in self._vocabularies.items():
            for column, size in sizes.items():
                said.setdefault(column, {})[site] = size
        for column, by_site in said.items():
            if len(set(by_site.values())) > 1:
                listed = ", ".join(f"{size:,} at {site}" for site, size in by_site.items())
                raise JobFailed(
                    f"the holders of column {column!r} do not agree on how many of its categories take part: {listed}; "
                    "one of them has not told the others the same"
                )
            found[column] = tuple(range(next(iter(by_site.values()))))
        return found

    def is_writing(self, site: str) -> bool:
        """Whether some, not all, of the site's letters have arrived."""
        return site in self._arriving

    def introduction(self) -> Frames:
        return iter((self._introduction,))

    def letters(self, site: str, stage: int) -> Frames:
        """What the others have written to a site in a stage that is complete."""
        boxes = {sender: box for (sender, to), box in self._letters[stage].boxes.items() if to == site}
        return letters_down(self._attempt, self._revision, stage, dict(sorted(boxes.items())))

    def frames_after_reconnect(self, site: str) -> Frames:
        """What the site may have missed while it had no stream."""
        self._arriving.pop(site, None)
        if self.complete:
            return self.letters(site, SECOND)
        if site not in self.awaited:
            return iter(())
        return self.introduction() if self.stage == FIRST else self.letters(site, FIRST)

    def receive(self, site: str, message: pb.Letters) -> bool:
        """A site's letters, or their beginning. True: the stage is complete."""
        if message.revision > self._revision or message.stage not in (FIRST, SECOND):
            raise MessageError(f"letters: expected revision {self._revision} and stage 1 or 2")
        if message.revision == self._revision and message.stage > self.stage:
            raise MessageError(f"letters: expected stage {self.stage}, got {message.stage}")
        repeated = message.revision < self._revision or site not in self.awaited or message.stage < self.stage
        if repeated:
            self._arriving[site] = _Arriving(0, {})
        else:
            self._arriving[site] = _Arriving(message.stage, self._checked_vocabularies(site, message))
            self._letters[message.stage].begin(site)
        return self.more(site, message.chunks)

    def more(self, site: str, chunks: arrays_pb2.ArrayChunks) -> bool:
        """The next chunks of a site's letters. True: the stage is complete."""
        arriving = self._arriving.get(site)
        if arriving is None:
            raise MessageError("more: no letters are under way")
        for chunk in chunks_of(chunks):
            if arriving.stage:
                self._letters[arriving.stage].add(site, chunk)
        if not chunks.last:
            return False
        del self._arriving[site]
        if not arriving.stage:
            return False
        self._letters[arriving.stage].end(site)
        if arriving.stage == SECOND:
            self._vocabularies[site] = arriving.vocabularies
        if self.awaited:
            return False
        self.stage += 1
        if self.stage == SECOND:
            self._letters[SECOND] = self._room(SECOND)
        return True

    def forget(self) -> None:
        """Iterations have begun: no site asks for its letters again."""
        self._letters = {}

    def _room(self, stage: int) -> Accumulators:
        """Room for the letters of a stage."""
        roster = self._attempt.roster

        def boxes(site: str) -> dict[ArrayName, ArraySpec]:
            sizes = {peer: self._box_size(stage, site, peer) for peer in roster if peer != site}
            return {ArrayName.of_box(peer): ArraySpec((size,)) for peer, size in sizes.items()}

        of_sites = {site: boxes(site) for site in roster}
        return Accumulators({}, of_sites, of_sites, self._rooms)

    def _size(self, stage: int, site: str) -> int:
        """Bytes of all letters of a site."""
        return sum(self._box_size(stage, site, peer) for peer in self._attempt.roster if peer != site)

    def _box_size(self, stage: int, site: str, peer: str) -> int:
        peers = len(self._attempt.roster) - 1
        return box_size(stage, self._summaries[site], self._summaries[peer], peers, self._lists)

    def _checked_vocabularies(self, site: str, message: pb.Letters) -> dict[str, int]:
        """What a site says about the columns that it shares, in the second stage."""
        sizes = read_vocabularies(message)
        expected: dict[str, int] = {}
        if message.stage == SECOND:
            for column in self._summaries[site].columns:
                holders = holders_of(column.name, self._summaries)
                if column.kind == "clustering" and len(holders) > 1:
                    expected[column.name] = sum(self._categories(holder, column.name) for holder in holders)
        if sizes.keys() != expected.keys() or any(sizes[column] > most for column, most in expected.items()):
            raise MessageError(
                "vocabularies: expected, in the second stage, one for each clustering that this site shares, with at "
                "most as many categories as its holders have enrolled"
            )
        return sizes

    def _categories(self, site: str, column: str) -> int:
        return next(entry.categories for entry in self._summaries[site].columns if entry.name == column)
