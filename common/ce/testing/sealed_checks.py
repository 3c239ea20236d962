"""What must hold in a played sealed job, whatever fault happens; `Checks` calls it.

Frames are seen where they leave a site, with its database and ledger as they are at that moment. What the members of a
block send each other is encrypted then: it is seen before, too.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from unittest import mock

import numpy as np

from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.task import Answer, Array, Task
from ce.protocol.sealed.channel import Bytes, Channel
from ce.protocol.sealed.opened_shares import AcceptedModel, commitment
from ce.protocol.sealed.schedule import COMMITMENT, MASKED, NONCE, SHARE
from ce.protocol.sealed.site import SealedSite
from ce.protocol.sealed.terms import Terms
from ce.ring import Words
from ce.testing.sealed_randomness import SealedRandomness
from ce.testing.violation import Violation
from ce_client.state.ledger import FILE_NAME as LEDGER
from ce_client.state.ledger import entries
from ce_client.state.releases.database import FILE_NAME as DATABASE

if TYPE_CHECKING:
    from ce.testing.world import PlayedWorld

#: What members of a block open of their shares of the winners.
_OPENINGS = ("dummies", "winners")


@dataclass(frozen=True)
class Opened:
    """What a site has computed from the opened shares."""

    terms: Terms
    cells: Words  # the tables
    model: AcceptedModel


@dataclass(frozen=True)
class _Box:
    """What was encrypted for the members of a block."""

    block: bytes  # digest
    members: tuple[str, ...]
    what: str
    content: bytes


class SealedChecks:
    """Raise Violation when a promise about sealed jobs is broken.

    While the world runs:

    - nothing random is used twice (`SealedRandomness`);
    - masked rows leave a site only after it has reserved what the job costs;
    - a commitment leaves only after the share is on the disk, and is the one of that share;
    - a share leaves only after it is charged, on the disk and in the ledger, and after all sites have committed;
    - all shares that a site ever opens for a job are the same bytes, and so are its labels of a block;
    - all sites compute the same tables and accept the same model, in all attempts.

    `check_releases`, at the end: every site is charged once for a share that it has opened, and nothing stays reserved.
    """

    def __init__(self, world: PlayedWorld) -> None:
        self._world = world
        self._randomness = SealedRandomness()
        self._terms: dict[str, Terms] = {}  # by site: of its last attempt
        self._boxes: dict[bytes, _Box] = {}  # by the bytes that are sent
        self._commitments: dict[tuple[str, bytes], set[bytes]] = {}  # sent, by site and block; b"": of the tables
        self._openings: dict[tuple[str, bytes, str], bytes] = {}  # sent, by site, block and what
        self.opened: dict[str, Opened] = {}  # by site

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        """Observe random bytes, boxes and answers."""
        answer, to_block = SealedSite.answer, Channel.to_block
        checks = self

        def answer_observed(site: SealedSite, task: Task) -> Answer:
            found = answer(site, task)
            checks._answered(site, task)
            return found

        def to_block_observed(channel: Channel, block: int, what: str, content: bytes) -> Bytes:
            box = to_block(channel, block, what, content)
            known, digest = channel._blocks[block]
            checks._boxes[box.tobytes()] = _Box(digest, known.members, what, content)
            return box

        with (
            mock.patch.object(SealedSite, "answer", answer_observed),
            mock.patch.object(Channel, "to_block", to_block_observed),
            self._randomness.patched(),
        ):
            yield

    def _answered(self, site: SealedSite, task: Task) -> None:
        assert site.terms is not None
        self._terms[site.name] = site.terms
        if task.step != "score":
            return
        assert site.model is not None
        assert site._rounds is not None
        cells = site._rounds._release.cells
        assert cells is not None
        found = self.opened.setdefault(site.name, Opened(site.terms, cells, site.model))
        for name, other in self.opened.items():
            if not np.array_equal(cells, other.cells):
                raise Violation(f"{site.name} computes other tables than {name}")
            if site.model.encoded != other.model.encoded:
                raise Violation(f"{site.name} accepts another model than {name}")
        if site.model.encoded != found.model.encoded:
            raise Violation(f"{site.name} accepts a second model")

    # What leaves a site.

    def sent_up(self, site: str, arrays: Mapping[str, Array]) -> None:
        """A site sends these arrays."""
        names = {ArrayName(name): array for name, array in arrays.items()}
        for name, array in names.items():
            if name.kind == "all" and name.what == COMMITMENT:
                self._commits(site, array.tobytes())
            elif name.kind == "all" and name.what == SHARE:
                self._opens(site, names[ArrayName.of_broadcast(NONCE, site)].tobytes(), array.tobytes())
            elif name.kind == "members":
                self._sends_members(site, array.tobytes())

    def _commits(self, site: str, sent: bytes) -> None:
        record = self._release(site, "committed")
        expected = commitment(self._terms[site], record["origin"], site, record["nonce"], record["share"])
        if sent != expected:
            raise Violation(f"{site} commits to another share than it has on its disk")
        self._commitments.setdefault((site, b""), set()).add(sent)

    def _opens(self, site: str, nonce: bytes, share: bytes) -> None:
        before = self._openings.setdefault((site, b"", SHARE), nonce + share)
        if before != nonce + share:
            raise Violation(f"{site} opens two shares of one job")
        record = self._release(site, "opening")
        if (record["nonce"], record["share"]) != (nonce, share):
            raise Violation(f"{site} opens another share than it has on its disk")
        self._expect_commitments(site, b"", json.loads(record["commitments"]), self._terms[site].sites)
        recorded = {line["sha256"] for line in self._ledger(site, "release")}
        if recorded != {hashlib.sha256(share).hexdigest()} or not self._ledger(site, "charge"):
            raise Violation(f"{site} opens a share that is not in its ledger")

    def _sends_members(self, site: str, sent: bytes) -> None:
        box = self._boxes[sent]
        if box.what == MASKED:
            self._release(site, "reserved")
        elif box.what == COMMITMENT:
            self._labels(site, box, "settled")
            self._commitments.setdefault((site, box.block), set()).add(box.content)
        elif box.what in _OPENINGS:
            before = self._openings.setdefault((site, box.block, box.what), box.content)
            if before != box.content:
                raise Violation(f"{site} opens the labels of a block twice, with other bytes")
            record = self._labels(site, box, "entered")
            self._expect_commitments(site, box.block, json.loads(record["commitments"]), box.members)
            if box.block.hex() not in {line["block"] for line in self._ledger(site, "labelling")}:
                raise Violation(f"{site} opens labels that are not in its ledger")

    def _expect_commitments(
        self, site: str, block: bytes, written: Mapping[str, str], senders: tuple[str, ...]
    ) -> None:
        for sender in senders:
            sent = self._commitments.get((sender, block), set())
            if bytes.fromhex(written.get(sender, "")) not in sent:
                raise Violation(f"{site} opens something before {sender} has committed to its part")

    # What is on a site's disk.

    def _rows(self, site: str, statement: str, *values: object) -> list[dict[str, Any]]:
        path = self._world.settings[site].state / DATABASE
        if not path.exists():
            return []
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.row_factory = sqlite3.Row
            return [dict(row) for row in database.execute(statement, values)]

    def _release(self, site: str, least: str) -> dict[str, Any]:
        """The record of the release, which is in this state at least."""
        order = ("reserved", "committed", "opening")
        found = self._rows(site, "SELECT * FROM releases WHERE job = ?", self._world.job.name)
        if len(found) != 1 or found[0]["state"] not in order[order.index(least) :]:
            raise Violation(f"{site} sends what it has not recorded: expected {least}")
        return found[0]

    def _labels(self, site: str, box: _Box, least: str) -> dict[str, Any]:
        order = ("settled", "entered")
        found = self._rows(site, "SELECT * FROM labels WHERE block = ?", box.block)
        if len(found) != 1 or found[0]["state"] not in order[order.index(least) :]:
            raise Violation(f"{site} sends of a block what it has not recorded: expected {least}")
        return found[0]

    def _ledger(self, site: str, kind: str) -> list[dict[str, Any]]:
        path = self._world.settings[site].state / LEDGER
        if not path.exists():
            return []
        job = self._world.job.name
        return [line for line in entries(path) if line["kind"] == kind and line["job"] == job]

    # Faults, and the end.

    def disk_lost(self, site: str) -> None:
        """The disk of a site is empty. A share alone says nothing: where another site has not opened its own, the site
        may make another one; so may the members of a block."""
        for key in [key for key in self._openings if key[0] == site]:
            _, block, what = key
            needed = self._terms[site].sites if not block else self._members(block)
            if any((other, block, what) not in self._openings for other in needed):
                del self._openings[key]

    def _members(self, block: bytes) -> tuple[str, ...]:
        return next(box.members for box in self._boxes.values() if box.block == block)

    def opened_by(self, site: str) -> bool:
        """Whether a site has opened its share, and has it still."""
        return (site, b"", SHARE) in self._openings

    def check_releases(self) -> None:
        """Once the job is over and all sites know it."""
        for site in self._world.settings:
            found = self._rows(site, "SELECT * FROM releases")
            if any(row["state"] in ("reserved", "committed") for row in found):
                raise Violation(f"a reservation of {site} outlives the job")
            if len(found) > 1:
                raise Violation(f"{site} is charged {len(found)} times for one job")
            charges = {(line["objects"], line["rho"], line["sha256"]) for line in self._ledger(site, "charge")}
            if len(charges) != len(found):
                raise Violation(f"{site} has {len(charges)} charges in its ledger, and {len(found)} in its database")
            for row in found:
                rho, objects = self._terms[site].rho[site], hashlib.sha256(row["objects"]).hexdigest()
                finite = None if math.isinf(rho) else rho
                if row["rho"] != rho or {(told, sha256) for _, told, sha256 in charges} != {(finite, objects)}:
                    raise Violation(f"{site} is charged something else than the noise of the job costs")
