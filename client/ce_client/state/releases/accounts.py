"""What sealed jobs have cost each object of this site, and what one more job would cost.

A release costs all objects that a site brings into it the same rho (`ce.privacy.zcdp`), which adds up over releases:
epsilon of an object is that of the sum. What jobs under way have reserved counts as if it were spent. Of the same
labels of a shared object there is one labelling: each tells the other holders a little, and many of them everything.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ce.errors import Refused
from ce.policy import Policy
from ce.privacy.zcdp import epsilon_of
from ce.ring import Reals
from ce_client.state.releases.keyed_ids import Ids, among, ids_of

EPSILON_RULE = "max_epsilon"
LABELLING_RULE = "one labelling"
#: Of an epsilon that is exactly the limit the sum may be above it by so much.
_ROUNDING = 1e-6


@dataclass(frozen=True)
class Spending:
    """What one job has spent, or reserved."""

    digest: str  # of the job, hex
    job: str
    state: str
    at: float
    rho: float
    objects: Ids = field(repr=False)  # sorted
    labellings: Ids = field(repr=False)  # sorted: objects that it labels, or has reserved the right to
    entered: Ids = field(repr=False)  # sorted: of these, those whose labels were opened
    definition: str = ""  # hex

    @property
    def spent(self) -> bool:
        """Whether it is charged for good; a reservation is freed if the job ends before its tables are opened."""
        return self.state in ("opening", "failed")

    @property
    def taken(self) -> Ids:
        """Labellings that no other job may have."""
        return self.entered if self.state == "failed" else self.labellings


@dataclass(frozen=True)
class ReleaseCost:
    """What a job takes of the epsilon that the policy allows, before anything has left."""

    definition: str  # hex: of the job without its name
    objects: int  # that the site brings into the tables
    shared: int  # of these, objects that are labelled together with other sites
    epsilon: float | None  # of this release alone, for this site's labels of one object; None: without limit
    before: float | None  # the largest of one of these objects so far, reservations of other jobs too
    after: float | None  # the same, with this job
    limit: float  # max_epsilon
    delta: float  # max_delta: at which these epsilons are
    over: int  # objects that would be above the limit
    labelled: int  # shared objects that another job has labelled with the same labels, or is about to
    allowed: bool  # one release of this definition, by ce-client allow-release

    @property
    def exceeds(self) -> bool:
        """True if the job does more than the policy allows."""
        return self.over > 0 or self.labelled > 0

    @property
    def refuses(self) -> bool:
        """True if the job is refused until a person here allows it."""
        return self.exceeds and not self.allowed

    @property
    def sentence(self) -> str:
        epsilon, before, after = map(epsilon_words, (self.epsilon, self.before, self.after))
        told = (
            f"{epsilon} for this site's labels of one object (at delta {self.delta:g}), {self.objects:,} objects: "
            f"{before} before this job, {after} with it, {self.limit:g} allowed"
        )
        return told + ("; this release was allowed here" if self.exceeds and self.allowed else "")


def epsilon_words(epsilon: float | None) -> str:
    return "without limit" if epsilon is None else f"{epsilon:.3g}"


def refuse(cost: ReleaseCost, job: str) -> None:
    """Raises Refused if a job costs more than the policy allows, and no person here has allowed it.

    The sentence leaves this site: it says nothing about its other jobs, but that there are some.
    """
    if not cost.refuses:
        return
    if cost.over:
        raise Refused(
            EPSILON_RULE,
            f"the tables of this job, with those of jobs before it, would tell more about this site's labels of some "
            f"objects than the epsilon of {cost.limit:g} that it allows: use a smaller epsilon; or, at the site, see "
            f"ce-client budget and ce-client allow-release {job}",
        )
    raise Refused(
        LABELLING_RULE,
        "another job labels, or has labelled, some of the same objects with the same labels of this site, and each "
        "labelling tells other holders more about them: use the labels of that job; or, at the site, see ce-client "
        f"budget and ce-client allow-release {job}",
    )


def spendings(database: sqlite3.Connection, *, but: str = "") -> list[Spending]:
    """What all jobs have spent or reserved, the oldest first, without the job of the digest `but`."""
    entered: dict[str, list[bytes]] = {}
    for digest, labellings in database.execute("SELECT digest, labellings FROM labels WHERE state = 'entered'"):
        entered.setdefault(digest, []).append(labellings)
    rows = database.execute(
        "SELECT digest, job, state, at, rho, objects, labellings, definition FROM releases WHERE digest != ? "
        "ORDER BY at, digest",
        (but,),
    )
    return [
        Spending(
            digest,
            job,
            state,
            at,
            rho,
            ids_of(objects),
            ids_of(labellings),
            np.sort(ids_of(b"".join(entered.get(digest, ())))),
            definition,
        )
        for digest, job, state, at, rho, objects, labellings, definition in rows
    ]


def rho_of_objects(objects: Ids, spent: Iterable[Spending]) -> Reals:
    """(n,) the rho of each object, over these jobs."""
    total = np.zeros(len(objects))
    for one in spent:
        total[among(objects, one.objects)] += one.rho
    return total


def labelled(labellings: Ids, spent: Iterable[Spending]) -> NDArray[np.bool_]:
    """(n,) whether one of these jobs has taken each labelling."""
    found = np.zeros(len(labellings), dtype=bool)
    for one in spent:
        found |= among(labellings, one.taken)
    return found


def labelled_times(database: sqlite3.Connection) -> NDArray[np.intp]:
    """Of each object whose labels were opened to its other holders, how often, with whatever labels of this site."""
    found = database.execute("SELECT objects FROM labels WHERE state = 'entered'").fetchall()
    _, times = np.unique(ids_of(b"".join(objects for (objects,) in found)), return_counts=True)
    return times


def cost_of(
    definition: str,
    rho: float,
    objects: Ids,
    shared: Ids,
    others: list[Spending],
    policy: Policy,
    *,
    allowed: bool,
) -> ReleaseCost:
    """What a job would cost beside `others`. `shared`: labellings of its shared objects."""
    before = rho_of_objects(objects, others)
    over = _is_over(before + rho, policy)
    return ReleaseCost(
        definition=definition,
        objects=len(objects),
        shared=len(shared),
        epsilon=largest_epsilon(np.array([rho]), policy.max_delta),
        before=largest_epsilon(before, policy.max_delta),
        after=largest_epsilon(before + rho, policy.max_delta),
        limit=policy.max_epsilon,
        delta=policy.max_delta,
        over=int(over.sum()),
        labelled=int(labelled(shared, others).sum()),
        allowed=allowed,
    )


def _is_over(rho: Reals, policy: Policy) -> NDArray[np.bool_]:
    """(n,) which objects would have more than the policy allows.

    A site that allows exact tables has set no limit to objects that were in one.
    """
    values, place = np.unique(rho, return_inverse=True)
    above = np.array(
        [
            not (policy.allow_exact and math.isinf(value))
            and epsilon_of(value, policy.max_delta) > policy.max_epsilon * (1 + _ROUNDING)
            for value in values.tolist()
        ],
        dtype=bool,
    )
    found: NDArray[np.bool_] = above[place.reshape(-1)] if len(values) else np.zeros(0, dtype=bool)
    return found


def largest_epsilon(rho: Reals, delta: float) -> float | None:
    """Of the object with the largest rho; None: without limit."""
    epsilon = epsilon_of(float(rho.max(initial=0.0)), delta)
    return None if math.isinf(epsilon) else epsilon


def usage(spent: list[Spending], delta: float) -> dict[float | None, int]:
    """How many objects have each epsilon, the largest first; None: without limit."""
    if not spent:
        return {}
    objects = np.unique(np.concatenate([one.objects for one in spent]))
    # Sums of the same numbers in another order may differ in their last digits.
    values, counts = np.unique(rho_of_objects(objects, spent).round(12), return_counts=True)
    found: dict[float | None, int] = {}
    for value, count in zip(reversed(values), reversed(counts.tolist()), strict=True):
        epsilon = largest_epsilon(np.array([value]), delta)
        found[epsilon] = found.get(epsilon, 0) + count
    return found
