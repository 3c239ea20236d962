"""The shared blocks of a home, one after the other in every array: what was counted of their objects before the first
iteration, and which of them this home speaks for.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ce.errors import Refused
from ce.protocol.engine.accumulators import Accumulators
from ce.protocol.engine.invariants import check_opening
from ce.protocol.engine.object_state import ObjectState
from ce.protocol.engine.snapshots import Snapshot
from ce.protocol.engine.starting_parameters import object_weights
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.task import Array
from ce.protocol.topology.site_view import SiteView
from ce.ring import Reals, Scale, SentWords, Words
from ce.steps.model import Opening, State

#: By block, in the order that its members share.
Pseudonyms = Mapping[int, NDArray[Any]]


class SharedObjects:
    """`speaker`: the site that speaks only for the blocks whose first member it is; None: this home speaks for all."""

    def __init__(self, view: SiteView, speaker: str | None, pseudonyms: Pseudonyms | None) -> None:
        self._view = view
        self._pseudonyms = pseudonyms
        self._speaker = speaker
        self._blocks = [block for block in view.blocks.values() if block.shared]
        ends = np.cumsum([b.size for b in self._blocks], dtype=int).tolist()
        self._slices = {b.index: slice(e - b.size, e) for b, e in zip(self._blocks, ends, strict=True)}
        self.labels: Words  # (n,) number of cluster labels of each object
        self.labelled: Words  # (n,) 1 where an object has a label or a vote anywhere
        self.spoken: Words  # (n,) ... and this home speaks for it
        self.counts: dict[str, Array]  # by name, for the members of each block

    def together(self, totals: Accumulators, what: str, shape: tuple[int, ...]) -> SentWords:
        """The totals of all blocks, one after the other, of the width in which they are sent; `shape` is what stands
        before the objects."""
        parts: list[Any] = [totals.as_sent(ArrayName.of_block(index, what)) for index in self._slices]
        if len(parts) == 1:
            only: SentWords = parts[0]
            return only
        return np.concatenate(parts or [np.zeros((*shape, 0), dtype=np.int64)], axis=-1)

    @property
    def members(self) -> dict[tuple[str, ...], slice]:
        """Which objects each set of sites holds."""
        return {block.members: self._slices[block.index] for block in self._blocks}

    def apart(self, what: str, array: NDArray[Any]) -> dict[str, Array]:
        """An array over all blocks as one array for each."""
        return {ArrayName.of_block(index, what): array[..., part] for index, part in self._slices.items()}

    def open(self, totals: Accumulators, names: Iterable[str], scales: Mapping[str, Scale], ballots: bool) -> Words:
        """Take what was counted. (1,) how many objects, of those that this home speaks for, have a label."""
        self._refuse_overlaps(totals, scales)
        for name in names:
            check_opening(name, totals[name], self._view, scales)
        counted = ("labels", "hidden", "ballots") if ballots else ("labels", "hidden")
        known = {what: self.together(totals, what, ()).astype(np.int64, copy=False) for what in counted}
        labels = known["labels"]
        # An object without a label anywhere is there to be answered for, but counts nothing.
        voted = known["ballots"] > 0 if ballots else np.zeros(len(labels), dtype=bool)
        self._take(labels, ((labels > 0) | voted).astype(np.int64))
        self.counts = {}
        for what, words in known.items():
            self.counts |= self.apart(what, words.astype(np.float64))
        found: Words = self.spoken.sum(keepdims=True)
        return found

    def objects(self, votes: Reals, starts: int) -> ObjectState:
        """Their side of the object step, once all is known that is known before the first iteration. Called once: what
        is needed for that alone is forgotten."""
        given: State = {}
        if self._pseudonyms is not None:
            tokens = [self._pseudonyms[block.index] for block in self._blocks]
            pseudonyms = np.concatenate(tokens) if tokens else np.empty(0, dtype="V16")
            given["weights"] = object_weights(pseudonyms, starts, len(votes))
        self._pseudonyms, self.counts = None, {}
        opening = Opening(self.labels.astype(np.float64), votes, given)
        return ObjectState(opening, None if self.spoken.all() else self.spoken)

    def snapshot(self) -> Snapshot:
        return {"labels": self.labels, "labelled": self.labelled}

    def restore(self, snapshot: Snapshot) -> None:
        self._take(snapshot["labels"], snapshot["labelled"])

    def _take(self, labels: Words, labelled: Words) -> None:
        self.labels, self.labelled = labels, labelled
        self.spoken = labelled * self._spoken_for()

    def _spoken_for(self) -> Words:
        counted = np.ones(len(self.labels), dtype=np.int64)
        if self._speaker is not None:
            for block in self._blocks:
                counted[self._slices[block.index]] = block.members[0] == self._speaker
        return counted

    def _refuse_overlaps(self, totals: Accumulators, scales: Mapping[str, Scale]) -> None:
        for block in self._blocks:
            for column in self._view.contested(block):
                name = ArrayName.of_claims(block.index, column.index)
                claims = totals[name]
                check_opening(name, claims, self._view, scales)
                twice = int((claims > 1).sum())
                if twice:
                    holders = " and ".join(site for site in column.holders if site in block.members)
                    raise Refused(
                        "overlapping cells",
                        f"column {column.name!r}: objects with a label at more than one of {holders}: {twice}; "
                        "a cell belongs to one site: drop the label at all but one, or rename the column at one",
                    )
