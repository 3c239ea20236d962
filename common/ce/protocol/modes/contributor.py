"""A site's end of a job in each privacy mode: what stands between its engine and whoever adds.

plain    the engine's answers as they are
masked   ... with pairwise masks, which cancel in the total
blind    ... with one more mask, so that the total can be read by its contributors only (`ce.protocol.modes.blind_site`)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from ce.protocol.engine.site import Site
from ce.protocol.engine.snapshots import Snapshot
from ce.protocol.keys.handshake import Attempt
from ce.protocol.messages.task import Answer, Task
from ce.protocol.modes.blind_site import BlindSite
from ce.protocol.modes.mask_binding import MaskBinding, object_digests, told
from ce.protocol.modes.saved_answer import answer_again, saved_answer
from ce.protocol.topology.topology import Rows, SiteView
from ce.steps.model import Model


class Contributor(Protocol):
    """Answers the tasks of a job."""

    #: After a task that said so: all that `resume` needs to give its answer again, in another attempt.
    kept: Snapshot | None

    def answer(self, task: Task) -> Answer: ...

    def resume(self, task: Task, kept: Snapshot) -> Answer: ...


class DirectSite:
    """A site in `plain`; in `masked`, if it has a cover."""

    def __init__(self, site: Site, cover: MaskBinding | None) -> None:
        self.kept: Snapshot | None = None
        self._site = site
        self._cover = cover

    def answer(self, task: Task) -> Answer:
        answer = self._site.answer(task)
        keep = task.checkpoint and self._site.begins_iteration(task)
        self.kept = {"site": self._site.snapshot(), "answer": saved_answer(task, answer)} if keep else None
        return self._hidden(task, answer)

    def resume(self, task: Task, kept: Snapshot) -> Answer:
        """The same sums of the same sites, under other masks: nothing that was not known is told."""
        answer = answer_again(task, kept["answer"])
        self._site.restore(kept["site"])
        return self._hidden(task, answer)

    def _hidden(self, task: Task, answer: Answer) -> Answer:
        return answer if self._cover is None else self._cover.mask(answer, told(task))


def member(
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
    cover = MaskBinding(attempt, site.name, view, object_digests(objects, rows), pair_keys, enrolment_digest)
    if mode == "masked":
        return DirectSite(site, cover)
    known = None if objects.dtype.kind == "U" else {block: objects[own] for block, own in rows.items()}
    return BlindSite(attempt, site, view, model, cover, pair_keys, known)
