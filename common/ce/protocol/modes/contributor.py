"""A site's end of a job in each privacy mode: what stands between its engine and the party that adds.

plain    the engine's answers as they are
masked   ... with pairwise masks, which cancel in the total
blind    ... with one more mask, so that the total can be read by its contributors only (`ce.protocol.modes.blind_site`)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from ce.protocol.attempt import Attempt
from ce.protocol.engine.aggregator import Outcome
from ce.protocol.engine.site import Site
from ce.protocol.engine.snapshots import Snapshot
from ce.protocol.messages.task import Answer, Task
from ce.protocol.modes.blind_site import BlindSite
from ce.protocol.modes.mask_context import MaskBinding, object_digests, view_digest
from ce.protocol.modes.saved_answer import answer_again, saved_answer
from ce.protocol.topology.site_view import SiteView
from ce.protocol.topology.topology import Rows
from ce.steps.model import Model


class Contributor(Protocol):
    """Answers the tasks of a job."""

    #: After a task that asks for a checkpoint: all that `resume` needs to give its answer again, in another attempt.
    checkpoint: Snapshot | None

    @property
    def outcome(self) -> Outcome | None:
        """Blind: what this site knows of the result, which the coordinator does not. None in the other modes."""

    def answer(self, task: Task) -> Answer: ...

    def resume(self, task: Task, checkpoint: Snapshot) -> Answer: ...


class DirectSite:
    """A site whose totals the coordinator reads: in `plain`, or in `masked` if it has a mask binding."""

    outcome = None

    def __init__(self, site: Site, masks: MaskBinding | None) -> None:
        self.checkpoint: Snapshot | None = None
        self._site = site
        self._masks = masks

    def answer(self, task: Task) -> Answer:
        answer = self._site.answer(task)
        due = task.checkpoint and self._site.begins_iteration(task)
        self.checkpoint = {"site": self._site.snapshot(), "answer": saved_answer(task, answer)} if due else None
        return self._masked(task, answer)

    def resume(self, task: Task, checkpoint: Snapshot) -> Answer:
        """The same sums of the same sites, under other masks: they reveal nothing that was not known."""
        answer = answer_again(task, checkpoint["answer"])
        self._site.restore(checkpoint["site"])
        return self._masked(task, answer)

    def _masked(self, task: Task, answer: Answer) -> Answer:
        return answer if self._masks is None else self._masks.mask(answer, view_digest(task))


def contributor(
    mode: str,
    attempt: Attempt,
    site: Site,
    view: SiteView,
    model: Model,
    objects: NDArray[Any],
    rows: Mapping[int, Rows],
    pair_keys: Mapping[str, bytes],
    enrolment_digest: bytes = b"",
) -> Contributor:
    """The site's end in this mode. `objects` are the pseudonyms that it has enrolled (or, on one machine, ids), `rows`
    their positions by block, `pair_keys` by peer."""
    if mode == "plain":
        return DirectSite(site, None)
    masks = MaskBinding(attempt, site.name, view, object_digests(objects, rows), pair_keys, enrolment_digest)
    if mode == "masked":
        return DirectSite(site, masks)
    known = None if objects.dtype.kind == "U" else {block: objects[positions] for block, positions in rows.items()}
    return BlindSite(attempt, site, view, model, masks, pair_keys, known)
