"""Which arrays each site is sent in a round, and which it is asked for.

Rounds of a stage have arrays of the same names and shapes again and again. Who gets which is worked out when they
change, not in every round; and sites whose part is the same share one plan, so that they can share one task.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.steps import Arrays, ArraySpec, Step
from ce.protocol.messages.task import Task
from ce.protocol.topology.site_view import SiteView


@dataclass(frozen=True)
class SitePlan:
    """One site's part of a round. Nobody changes it: it may be that of other sites and rounds, too."""

    sent: tuple[ArrayName, ...]  # the arrays of the task
    asked: Mapping[str, ArraySpec]  # the arrays of the answer, by name


@dataclass(frozen=True)
class _Known:
    """The plans of the last round of one step, and what they follow from."""

    sites: tuple[str, ...]
    sent: tuple[str, ...]
    asked: Arrays
    plans: Mapping[str, SitePlan]


class RoundPlans:
    """Plans of the sites of one view."""

    def __init__(self, view: SiteView) -> None:
        self._view = view
        self._known: dict[Step, _Known] = {}

    def of(self, step: Step, sites: tuple[str, ...], sent: Iterable[str], asked: Arrays) -> Mapping[str, SitePlan]:
        """The plan of each of these sites. `asked`: the same object as in the last round of this step where nothing has
        changed (`AskedArrays`)."""
        names = tuple(sent)
        known = self._known.get(step)
        if known is None or known.asked is not asked or known.sent != names or known.sites != sites:
            known = self._known[step] = _Known(sites, names, asked, self._made(sites, names, asked))
        return known.plans

    def _made(self, sites: tuple[str, ...], sent: tuple[str, ...], asked: Arrays) -> dict[str, SitePlan]:
        plans: dict[object, SitePlan] = {}
        found = {}
        for site in sites:
            receives, answers = (self._of_site(site, map(ArrayName, names)) for names in (sent, asked))
            if (receives, answers) not in plans:
                plans[receives, answers] = SitePlan(receives, {name: asked[name] for name in answers})
            found[site] = plans[receives, answers]
        return found

    def _of_site(self, site: str, names: Iterable[ArrayName]) -> tuple[ArrayName, ...]:
        return tuple(name for name in names if site in name.contributors(self._view))


def shared_tasks(plans: Mapping[str, SitePlan], make: Callable[[SitePlan], Task]) -> dict[str, Task]:
    """The task of each site: one for all sites that have the same plan."""
    made = {id(plan): plan for plan in plans.values()}
    tasks = {key: make(plan) for key, plan in made.items()}
    return {site: tasks[id(plan)] for site, plan in plans.items()}
