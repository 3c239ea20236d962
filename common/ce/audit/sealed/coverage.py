"""What the audit does with each array of a sealed job: the attacks that use it, or why it tells nothing about labels.

`tests/audit/test_coverage.py` compares this with the table of steps and with recorded jobs, so that no step and no
array is left out unnoticed.
"""

from __future__ import annotations

from collections.abc import Mapping

from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.steps import SealedStep

#: Attacks by name, or a sentence.
Reason = tuple[str, ...] | str

_TABLES = (
    "linear programming",
    "small categories",
    "several jobs",
    "edited own file",
    "chosen file",
    "two rosters",
    "edited foreign file",
    "unbounded jobs",
    "exact tables",
    "weighted rows",
)
_COMMITTED = "A hash with a fresh nonce of 32 bytes: it tells nothing before it is opened."

#: By step in which it is sent, kind of the array and what it has; boxes have nothing but their step.
COVERED: Mapping[tuple[SealedStep, str, str], Reason] = {
    # Answers of sites.
    ("meet", "box", ""): "How far the job has come at a site, and fresh keys of blocks, encrypted for one other site.",
    ("meet", "all", "state"): "How far the job has come at a site: no label has a part in it.",
    ("mask", "members", "masked"): ("ciphertexts", "dealt masks", "equal rows", "dealer and site"),
    ("mask", "dealer", "product_seed"): ("dealt masks", "dealer and site"),
    ("verify", "box", ""): "Masked words that check the dealer, encrypted for one other site, which learns from them "
    "only whether the dealt words are right.",
    ("commit", "all", "commitment"): _COMMITTED,
    ("release", "all", "nonce"): "The random bytes of a commitment that is now open.",
    ("release", "all", "share"): _TABLES,
    ("release", "all", "model"): ("nearly honest model", "winners"),
    ("score", "dealer", "argmax_seed"): "Random bytes of a site; what they mask is open to the members only, under a "
    "key that the dealer does not have.",
    ("score", "all", "blocks"): "Whether a block is compared, sent again or lost: no label has a part in it.",
    ("score", "box", ""): "The order of a block's rows, encrypted for its members.",
    ("compare", "members", "opening"): ("ciphertexts", "openings"),
    ("settle", "members", "commitment"): _COMMITTED,
    ("prove", "members", "dummies"): "Shares of the winners of rows that stand for no object.",
    ("reveal", "members", "winners"): ("winners", "crafted model", "nearly honest model", "ciphertexts"),
    ("reveal", "members", "digest"): "A hash of labels that all members of the block have, encrypted for them.",
    # What the coordinator, or the dealer, sends.
    ("meet", "model", "categories"): "How many labels each column has, which is public.",
    ("verify", "dealer", "products"): "Products of random words plus a random word that its receiver does not know.",
    ("score", "model", "weights"): ("crafted model", "nearly honest model"),
    ("score", "model", "beta"): ("crafted model", "nearly honest model"),
    ("compare", "dealer", "corrections"): "Random words: what makes the members' random numbers fit each other.",
}


def reason(step: SealedStep, name: str, *, came_before: SealedStep | None = None) -> Reason | None:
    """What the audit does with an array of a step; None: nothing is said about it.

    What a task passes on was sent in the step before: `came_before`.
    """
    array = ArrayName(name)
    what = "" if array.kind == "box" else array.what
    passed_on = array.kind in ("box", "all", "members") and came_before is not None
    return COVERED.get((came_before if passed_on and came_before is not None else step, array.kind, what))
