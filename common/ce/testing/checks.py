"""What must hold at every moment of a played world, whatever fault happens."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from unittest import mock

import ce.privacy.masks
import ce.service.checkpoints
from ce.errors import MessageError
from ce.protocol.messages.task import array_hash
from ce.service.checkpoints import CheckpointId
from ce.testing.sealed_checks import SealedChecks
from ce.testing.violation import Violation
from ce.transport.array_chunks import Collector
from ce_client.state.ledger import FILE_NAME as LEDGER
from ce_client.state.ledger import entries, verify
from ce_coordinator.core.records import JobRecord
from ce_proto.v1 import site_pb2 as pb

if TYPE_CHECKING:
    from ce.testing.world import PlayedWorld


class Checks:
    """Raise Violation when a promise is broken.

    While the world runs:

    - a job that is over stays as it ended;
    - the coordinator announces no epoch and no end before it has saved it;
    - a site's public key stays the same within an epoch;
    - a site saves a checkpoint only after the coordinator has saved its own of the same moment;
    - no site masks twice with the same keystream;
    - what `sealed` checks of a sealed job.

    `check_ledgers`, at the end: everything that was sent is in the site's ledger, and the ledger is whole.
    """

    def __init__(self, world: PlayedWorld) -> None:
        self._world = world
        self._keys: dict[str, set[bytes]] = {}  # by site: of all keystreams that it has masked with
        self._public_keys: dict[tuple[str, int], bytes] = {}  # by site and epoch
        self._answers: dict[str, set[tuple[int, int, str]]] = {}  # by site: (epoch, round, hash) of each array sent
        self._states: dict[str, str] = {}
        self.lost_disks: set[str] = set()  # of sites
        self.sealed = SealedChecks(world)

    @contextlib.contextmanager
    def patched(self) -> Iterator[None]:
        """Observe masks and the sites' checkpoints."""
        checks = self
        mask, keystream = ce.privacy.masks.Masks.mask, ce.privacy.masks.Keystream
        save = ce.service.checkpoints.CheckpointFiles.save
        masking: list[str] = []

        def save_checked(files: Any, job: str, context: bytes, checkpoint_id: CheckpointId, snapshot: Any) -> None:
            checks._site_saves(job, checkpoint_id)
            save(files, job, context, checkpoint_id, snapshot)

        def mask_observed(masks: Any, *rest: Any) -> Any:
            masking.append(masks._site)
            try:
                return mask(masks, *rest)
            finally:
                masking.pop()

        class ObservedKeystream(keystream):  # type: ignore[misc, valid-type]
            """Used by a mask: a key may be used once."""

            def __init__(self, key: bytes) -> None:
                if masking:
                    checks._masks_with(masking[-1], key)
                super().__init__(key)

        with (
            mock.patch.object(ce.service.checkpoints.CheckpointFiles, "save", save_checked),
            mock.patch.object(ce.privacy.masks.Masks, "mask", mask_observed),
            mock.patch.object(ce.privacy.masks, "Keystream", ObservedKeystream),
            self.sealed.patched(),
        ):
            yield

    def _site_saves(self, job: str, checkpoint_id: CheckpointId) -> None:
        saved = self._world.checkpoints.all_ids(job)
        if not self._world.over and checkpoint_id not in saved:
            raise Violation(f"a site saves checkpoint {checkpoint_id}, which the coordinator has not saved: {saved}")

    def _masks_with(self, site: str, key: bytes) -> None:
        used = self._keys.setdefault(site, set())
        if key in used:
            raise Violation(f"{site} uses a keystream twice")
        used.add(key)

    def saved(self, record: JobRecord) -> None:
        """The coordinator has saved the record of a job: one that is over stays as it ended."""
        before = self._states.get(record.name, "submitted")
        if before in ("done", "failed", "cancelled") and record.state != before:
            raise Violation(f"a job that was {before} is {record.state}")
        self._states[record.name] = record.state

    def sent_down(self, site: str, frame: pb.CoordinatorFrame) -> None:
        """The coordinator sends a frame: what it announces is what it has saved."""
        kind = frame.WhichOneof("frame")
        record = self._world.record
        if kind == "offer":
            self._world.attempts = max(self._world.attempts, frame.offer.epoch)
            if record.epoch < frame.offer.epoch:
                raise Violation("an epoch is offered that is not saved")
        if kind == "peers":
            for peer in frame.peers.peers:
                known = self._public_keys.setdefault((peer.site, frame.peers.epoch), peer.public_key)
                if known != peer.public_key:
                    raise Violation(f"{peer.site} has two public keys in one epoch")
        if kind == "ended" and frame.ended.state not in ("waits", record.state) and site not in record.left_behind:
            raise Violation("an end is announced that is not saved")

    def sent_up(self, site: str, frame: pb.SiteFrame) -> None:
        """A site sends a frame: its arrays must be in the ledger when `check_ledgers` looks."""
        if frame.WhichOneof("frame") == "answer":
            answer = frame.answer
            collector = Collector(2**30)
            if not collector.feed(answer.chunks):
                raise MessageError("an answer of a played world must fit in one frame: use fewer objects")
            sent = self._answers.setdefault(site, set())
            for array in collector.arrays.values():
                sent.add((answer.epoch, answer.round, array_hash(array).hex()))
            if self._world.job.privacy == "sealed":
                self.sealed.sent_up(site, collector.arrays)

    def disk_lost(self, site: str) -> None:
        """A site has an empty disk: its ledger begins anew."""
        self.lost_disks.add(site)
        self._answers.pop(site, None)
        self.sealed.disk_lost(site)

    def check_ledgers(self, rosters: set[tuple[str, ...]]) -> None:
        """Every array that was sent is in the ledger, which is whole; all were sent under one of these rosters."""
        for site, settings in self._world.settings.items():
            path = settings.state / LEDGER
            if not path.exists():
                continue
            played = self._world.sites[site]
            assert played is not None
            found = verify(path, played.site_files.certificate)
            if not found.ok:
                raise Violation(f"the ledger of {site}: {found.sentence}")
            recorded = set()
            for line in entries(path):
                if line["kind"] == "begin" and tuple(line["roster"]) not in rosters:
                    raise Violation(f"{site} contributed under the roster {line['roster']}")
                for array in line.get("arrays", {}).values():
                    recorded.add((line["epoch"], line["round"], array["blake3"]))
            missing = self._answers.get(site, set()) - recorded
            if missing:
                raise Violation(f"{len(missing)} arrays of {site} are not in its ledger")
