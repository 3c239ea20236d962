"""What the audit does with each array of the protocol: the attacks that use it, or why it tells nothing about labels.

`tests/audit/test_coverage.py` compares this with the table of steps and with recorded jobs, so that no step and no
array is left out unnoticed.

Sums and messages of a job with `precision = "single"` are the same arrays, of the same numbers, rounded at a coarser
scale before they are added, masked and sent: who reads them learns no more, and masks and tags are as strong
(`ce.privacy.mac`). Attacks play the job in double precision, which gives them all bits. The width of an array says
whether the job has few clusterings, whose number its parties know. That the same labels would be seen twice, in one job
of each precision, is what the budget of definitions counts: the precision is part of a definition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from ce.audit.attack_plan import ATTACKS, BY_COORDINATOR, BY_SITE
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.steps import SHARES

Scope = Literal["block", "claims", "columns", "global", "box", "all", "members", "dealer", "model"]
#: Attacks by name, or a sentence.
Reason = tuple[str, ...] | str

_OBJECT_SUMS = tuple(name for name in ATTACKS if name in {**BY_COORDINATOR, **BY_SITE} and name != "votes")
_FEW_NUMBERS = "A few numbers over all objects of all sites in each iteration; rules say how many sites it takes."
_CHECK = "Random words without the key of its contributors, who know what it is computed from."

COVERED: Mapping[tuple[Scope, str], Reason] = {
    # Asked of sites.
    ("block", "sums"): (*_OBJECT_SUMS, "equality classes", "two rosters", "repeated jobs", "smoothing"),
    ("block", "labels"): ("repeated jobs",),
    ("block", "hidden"): ("repeated jobs",),
    ("block", "votes"): ("votes", "unanimous votes", "repeated jobs"),
    ("block", "ballots"): "How many classifiers voted on an object, not for which class.",
    ("claims", "claims"): "Whether some site has a label in a cell, not which label; two such sites stop the job.",
    ("columns", "sums"): ("histograms", "peeling", "crafted messages", "pattern counts", "one site's parameters"),
    ("global", SHARES): _FEW_NUMBERS,
    ("global", "bound"): _FEW_NUMBERS,
    ("global", "moved"): _FEW_NUMBERS,
    ("global", "objects"): "The number of objects, which the operator is told.",
    ("global", "agreement"): "k * k counts over objects that sites hold alone: classes of the votes by classes of the "
    "clusterings. The operator is told Cohen's kappa of them.",
    ("global", "sizes"): "Sizes of the clusters, which are part of the result.",
    ("block", "mac"): _CHECK,
    ("columns", "mac"): _CHECK,
    ("global", "mac"): _CHECK,
    # Sent to sites.
    ("block", "message"): ("trajectories", "subtraction", "fitting", "alternating", "crafted messages"),
    ("columns", "beta"): ("decode, shared columns", "pattern counts", "one site's parameters"),
    ("block", "memberships"): ("repeated jobs",),
    ("block", "labelled"): "Whether an object has a label at any site, which follows from how many it has.",
    # Between sites.
    ("box", ""): "Encrypted by one site for another one.",
}


def reason(name: str, of_model: frozenset[str] = frozenset()) -> Reason | None:
    """What the audit does with an array; None: nothing is said about it. `of_model`: names of the model's totals over
    all objects and of its globals, which follow from these."""
    array = ArrayName(name)
    if array.is_claims:
        return COVERED["claims", "claims"]
    if array.kind == "box":
        return COVERED["box", ""]
    found = COVERED.get((array.kind, array.what))
    if found is None and array.kind == "global" and array.what in of_model:
        return COVERED["global", SHARES]
    return found
