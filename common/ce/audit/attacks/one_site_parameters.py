"""One site's parameters: a site that holds two groups of shared columns is sent other beta of one group than its
co-holders, and its part in the column sums of the other group stands alone.

Masks between two sites are bound to the globals and to the beta of all groups that both hold, and not to the beta of
other groups, which not both are sent. The coordinator of a `masked` job uses a second group as a lever:

    reset   all objects go into the last cluster
    mark    labels of the lever go into the first cluster, at the one site only
    read    beta of the target group is such that an object goes into the first cluster if and only if it was marked

The first cluster's sums of the target group are then label counts of one site. The lever's own sums, and those over
all sites, are noise, because holders of the lever were sent different arrays; the coordinator does not need them.
`min_sites` does not stop this: it counts the contributors to a total, not those who can be told apart in it. The rule
"one set of holders" does; it applies under `shared_objects = "exclude"`. In `blind` the coordinator sends none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np

from ce.audit.adversary_views import Histograms, scale_of
from ce.audit.attacks.crafted_messages import AttackOver, dumped_private_objects
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.task import Answer, Array, Task
from ce.protocol.messages.transport import Transport
from ce.protocol.topology.site_view import ColumnGroup
from ce.protocol.topology.topology import Topology
from ce.ring import Words, decode
from ce.steps.model import Model

#: What is sent in each exchange.
STEPS = ("reset", "reset", "mark", "read")
_EMPTY, _NEVER, _READ = 0.01, 1e-200, 1e-30


class OneSiteParameters:
    """A transport whose coordinator takes one site's part out of the sums of `target`. Raises AttackOver at the end."""

    def __init__(
        self, inner: Transport, site: str, target: ColumnGroup, lever: ColumnGroup, topology: Topology, model: Model
    ) -> None:
        self._inner = inner
        self._site = site
        self._target, self._lever = target, lever
        self._scale = scale_of(model, topology, 0, "columns")
        self._exchanges = 0
        self.counts: Histograms = {}
        self.bytes_sent = 0

    def exchange(self, tasks: Mapping[str, Task]) -> Iterator[tuple[str, Answer]]:
        if next(iter(tasks.values())).step != "sums":
            yield from self._inner.exchange(tasks)
            return
        step = STEPS[self._exchanges]
        self._exchanges += 1
        sent = {site: replace(t, arrays={**t.arrays, **self._craft(t, site, step)}) for site, t in tasks.items()}
        total: Words = np.zeros(1, dtype=np.int64)
        for site, answer in self._inner.exchange(sent):
            words = answer.arrays.get(ArrayName.of_columns(self._target.index, "sums"))
            total = total if words is None else total + words.astype(np.int64)
            yield site, replace(answer, arrays=_without_noise(answer.arrays))
        if step == "read":
            counted = np.rint(decode(total, self._scale)[0, 0]).astype(np.int64)
            self.counts = {(self._site, column): counted[where] for column, where in self._target.slices.items()}
            raise AttackOver

    def _craft(self, task: Task, site: str, step: str) -> dict[str, Array]:
        crafted: dict[str, Array] = dumped_private_objects(task)
        for name, array in task.arrays.items():
            match ArrayName(name).what:
                case "alpha" if step == "read":
                    crafted[name] = np.full_like(array, _EMPTY)
                case "beta":
                    beta = np.full_like(array, _NEVER)
                    beta[:, -1] = 1.0
                    group = ArrayName(name).number
                    if step == "mark" and group == self._lever.index and site == self._site:
                        beta[:, 0], beta[:, -1] = 1.0, _NEVER
                    if step == "read" and group == self._target.index:
                        beta[:, 0], beta[:, -1] = 1.0, _READ
                    crafted[name] = beta
                case "message":
                    crafted[name] = np.zeros_like(array)
                    crafted[name][:, -1] = 1.0
        return crafted


def _without_noise(arrays: Mapping[str, Array]) -> dict[str, Array]:
    """What the home of the simulation goes on with: it would refuse sums over the lever's holders, which are noise."""
    return {name: words if ArrayName(name).kind == "block" else np.zeros_like(words) for name, words in arrays.items()}
