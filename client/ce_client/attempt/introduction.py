"""What this site and the others tell each other before they are aligned, for one revision of their enrolments.

The coordinator introduces the sites: it sends what each of them has enrolled and signed. They then write letters to
each other (`ce.protocol.keys.letters`), in two stages. Whatever comes again after a broken stream is answered as
before; something else in its place is refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping

import numpy as np

from ce.errors import MessageError
from ce.privacy.derivation import joined
from ce.privacy.set_intersection import BlindedItems
from ce.protocol.keys.letters import FIRST, SECOND, Overlap, SiteLetters, object_lists
from ce.protocol.messages.task import Array
from ce.protocol.topology.site_view import Categories
from ce.transport.enrolment_codec import pseudonym_bytes, read_introduction
from ce.transport.letters_codec import letters_up, read_boxes
from ce_client.attempt.enrolment import SiteEnrolment
from ce_client.attempt.recorder import AttemptRecorder
from ce_client.attempt.setup import PreparedAttempt
from ce_proto.v1 import site_pb2 as pb

Frames = Iterator[pb.SiteFrame]


class Introduction:
    """One introduction, and the letters that follow it."""

    def __init__(
        self,
        message: pb.Introduction,
        prepared: PreparedAttempt,
        site: str,
        enrolled: SiteEnrolment,
        recorder: AttemptRecorder,
    ) -> None:
        """Raises MessageError or Refused unless every site has signed what is shown of it, with the same job key."""
        summaries = prepared.handshake.check_enrolments(enrolled.summary, read_introduction(message))
        last = max(summary.revision for summary in summaries.values())
        if message.revision != last:
            # So that another alignment always means another enrolment, and with it other masks.
            raise MessageError(
                f"introduction: expected revision {last}, that of the last enrolment, got {message.revision}"
            )
        self.revision = message.revision
        self.summaries = summaries
        self._digest = _digest(message)
        self._prepared = prepared
        self._enrolled = enrolled
        self._recorder = recorder
        self._letters = SiteLetters(
            prepared.offered.attempt,
            site,
            message.revision,
            summaries,
            prepared.handshake.pair_keys,
            prepared.job_key,
            object_lists(prepared.offered.job),
        )
        self._boxes: dict[int, dict[str, bytes]] = {}  # what this site has written, by stage
        self._received: dict[int, bytes] = {}  # digests of what the others have written, by stage

    @property
    def complete(self) -> bool:
        """Whether all letters have come."""
        return SECOND in self._received

    @property
    def overlaps(self) -> Mapping[str, Overlap]:
        """By peer: which of this site's objects it has enrolled, too."""
        return self._letters.overlaps

    @property
    def vocabularies(self) -> Mapping[str, Categories]:
        """Of each clustering that this site shares, the tokens of the categories that take part."""
        return self._letters.vocabularies

    def refuse_another(self, message: pb.Introduction) -> None:
        """Raises MessageError unless this is the same introduction once more."""
        if _digest(message) != self._digest:
            raise MessageError(f"introduction: another one of revision {self.revision} than before")

    def refuse_other_wishes(self, former: Introduction) -> None:
        """Raises MessageError if a site asks for other minimums of categories than before.

        It could learn by them, revision by revision, how many labels of a category another site has.
        """
        for site, summary in self.summaries.items():
            if summary.wishes != former.summaries[site].wishes:
                raise MessageError(f"enrolment of {site}: min_sites and min_objects are not those of its first one")

    def first_letters(self, blinded: BlindedItems) -> Frames:
        """The answer to the introduction, the same each time."""
        if FIRST not in self._boxes:
            objects = pseudonym_bytes(self._enrolled.enrolment)
            self._write(FIRST, self._letters.begin(blinded, objects, self._enrolled.labels))
        return self._frames(FIRST)

    def take_letters(self, stage: int, arrays: Mapping[str, Array]) -> Frames:
        """Letters of the others. Those of the first stage are answered by those of the second."""
        boxes = read_boxes(arrays)
        digest = hashlib.sha256(joined(*(part for s in sorted(boxes) for part in (s.encode(), boxes[s])))).digest()
        if stage not in (FIRST, SECOND) or stage - 1 not in (0, *self._received) or FIRST not in self._boxes:
            raise MessageError(f"letters: expected stage 1, then 2, got {stage}")
        if self._received.get(stage, digest) != digest:
            raise MessageError(f"letters: others of revision {self.revision} and stage {stage} than before")
        if stage not in self._received:
            if stage == FIRST:
                self._write(SECOND, self._letters.answer(boxes))
            else:
                self._letters.end(boxes)
            self._received[stage] = digest
        return self._frames(SECOND) if stage == FIRST else iter(())

    def _write(self, stage: int, boxes: dict[str, bytes]) -> None:
        """In the ledger before it can be sent."""
        self._recorder.letters(stage, {site: np.frombuffer(box, np.uint8) for site, box in boxes.items()})
        self._boxes[stage] = boxes

    def _frames(self, stage: int) -> Frames:
        sizes = {name: len(found) for name, found in self.vocabularies.items()} if stage == SECOND else {}
        return letters_up(self._prepared.offered.attempt, self.revision, stage, self._boxes[stage], sizes)


def _digest(message: pb.Introduction) -> bytes:
    return hashlib.sha256(message.SerializeToString(deterministic=True)).digest()
