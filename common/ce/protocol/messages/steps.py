"""What a round asks for: the name and shape of every total, for every step. Home, sites and whoever merely adds agree.

Steps and arrays are listed in `ce.protocol.messages.task`.
"""

from __future__ import annotations

from ce.protocol.messages.task import Step
from ce.protocol.topology.topology import SiteView
from ce.steps.model import Model

Shapes = dict[str, tuple[int, ...]]


def first_step(model: Model, view: SiteView) -> Step:
    """The step that begins an iteration."""
    return "objects" if model.phases == 2 and view.needs_two_exchanges else "sums"


def asked(step: Step, view: SiteView, model: Model, starts: int, iteration: int) -> Shapes:
    """Name and shape of every total of a round, as far as this view reaches."""
    k = model.k
    shared = [block for block in view.blocks.values() if block.shared]
    shapes: Shapes = {}
    if step == "open":
        shapes["global/objects"] = (1,)
        for block in shared:
            shapes[f"block/{block.index}/labels"] = shapes[f"block/{block.index}/hidden"] = (block.size,)
            if model.uses_votes:
                shapes[f"block/{block.index}/ballots"] = (block.size,)
            for column in view.contested(block):
                shapes[f"block/{block.index}/claims/{column.index}"] = (block.size,)
    if step == "votes":
        for block in shared:
            shapes[f"block/{block.index}/votes"] = (k, block.size)
    if step in ("sums", "objects", "clusterings_only"):
        for block in shared:
            shapes[f"block/{block.index}/sums"] = (starts, k, block.size)
    if step in ("sums", "objects"):
        for name, shape in model.share_shapes(iteration).items():
            shapes[f"global/{name}"] = (starts, *shape)
        shapes["global/bound"] = shapes["global/moved"] = (starts,)
    if step in ("sums", "columns"):
        for group in view.groups.values():
            shapes[f"columns/{group.index}/sums"] = (starts, k, group.width)
    if step == "clusterings_only":
        shapes["global/agreement"] = (1, k * k)
    if step == "finish":
        shapes["global/sizes"] = (k,)
    return shapes


def shares_of(shapes: Shapes) -> Shapes:
    """Of these, the totals over all objects: what the members of a shared block still owe when they alone know it."""
    return {name: shape for name, shape in shapes.items() if name.startswith("global/")}
