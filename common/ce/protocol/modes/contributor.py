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
from ce.protocol.modes.blind_site import BlindMember
from ce.protocol.modes.mask_binding import Cover, object_digests, told
from ce.protocol.modes.saved_answer import answer_again, kept_answer
from ce.protocol.topology.topology import Rows, View
from ce.steps.model import Model


class Member(Protocol):
    """Answers the tasks of a job."""

    #: After a task that said so: all that `resume` needs to give its answer again, in another attempt.
    kept: Snapshot | None

    def answer(self, task: Task) -> Answer: ...

    def resume(self, task: Task, kept: Snapshot) -> Answer: ...


class OpenMember:
    """A site in `plain`; in `masked`, if it has a cover."""

    def __init__(self, site: Site, cover: Cover | None) -> None:
        self.kept: Snapshot | None = None
        self._site = site
        self._cover = cover

    def answer(self, task: Task) -> Answer:
        answer = self._site.answer(task)
        keep = task.keep and self._site.begins_iteration(task)
        self.kept = {"site": self._site.snapshot(), "answer": kept_answer(task, answer)} if keep else None
        return self._hidden(task, answer)

    def resume(self, task: Task, kept: Snapshot) -> Answer:
        """The same sums of the same sites, under other masks: nothing that was not known is told."""
        answer = answer_again(task, kept["answer"])
        self._site.restore(kept["site"])
        return self._hidden(task, answer)

    def _hidden(self, task: Task, answer: Answer) -> Answer:
        return answer if self._cover is None else self._cover.hide(answer, told(task))


def member(
    mode: str,
    attempt: Attempt,
    site: Site,
    view: View,
    model: Model,
    objects: NDArray[Any],
    rows: Mapping[int, Rows],
    pair_keys: Mapping[str, bytes],
    story: bytes = b"",
) -> Member:
    """The site's end in this mode. `objects` are the pseudonyms that it has enrolled (or, on one machine, ids), `rows`
    their positions by block, `pair_keys` by peer."""
    if mode == "plain":
        return OpenMember(site, None)
    cover = Cover(attempt, site.name, view, object_digests(objects, rows), pair_keys, story)
    if mode == "masked":
        return OpenMember(site, cover)
    known = None if objects.dtype.kind == "U" else {block: objects[own] for block, own in rows.items()}
    return BlindMember(attempt, site, view, model, cover, pair_keys, known)
