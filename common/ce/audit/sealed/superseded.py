"""Attacks on jobs over totals, by name, and why each finds nothing to work on in a sealed job.

`tests/audit/test_sealed_attacks.py` compares the names with `ce.audit.ATTACKS`, so that a new attack on totals fails
there until somebody has thought about sealed jobs, and looks in recordings for the arrays that these attacks need.
"""

from __future__ import annotations

from collections.abc import Mapping

_NO_SUMS = "No sum of an object leaves a site, in the clear or masked: there are no object sums in a sealed job."
_NO_MESSAGES = "No message of an object is sent: the only answer about an object is its winner, opened once."
_NO_STARTS = "There are no starts: the model follows from the opened tables alone, and its start from their digest."
_NO_COLUMN_SUMS = "No column sums are asked for: tables of pairs are opened once, as one noisy total of all sites."
_NO_VOTES = "There are no classifiers in a sealed job, and no votes."

SUPERSEDED: Mapping[str, str] = {
    "distinct rows": _NO_SUMS,
    "phi inversion": _NO_SUMS,
    "clustered parts": _NO_SUMS,
    "unmixed parts": _NO_SUMS,
    "votes": _NO_VOTES,
    "distinct totals": _NO_SUMS,
    "trajectories": _NO_MESSAGES,
    "decode, secret starts": _NO_STARTS,
    "decode, shared columns": "Parameters of all columns are known to all, but there is no total to decode with them.",
    "unmixing": _NO_SUMS,
    "fitting": _NO_SUMS,
    "alternating": _NO_SUMS,
    "flat sums": _NO_SUMS,
    "subtraction": "There is no total of an object from which a site could subtract its own part.",
    "clustered residuals": "There is no total of an object from which a site could subtract its own part.",
    "equality classes": "No number of an object is opened but its winner: equal label rows cannot be recognised; "
    "rows of ciphertext are clustered instead.",
    "histograms": _NO_COLUMN_SUMS,
    "peeling": _NO_COLUMN_SUMS,
    "decode, public starts": _NO_STARTS,
    "two rosters": "There are no totals of objects to subtract; tables of two rosters are played as releases.",
    "repeated jobs": "A further job opens tables with fresh noise and another charge, and no further number of an "
    "object; played as releases.",
    "smoothing": "Smoothing is not a choice of a sealed job, and no total depends on it.",
    "crafted messages": _NO_MESSAGES,
    "reset and probe": _NO_MESSAGES,
    "left-out members": "A block's members are bound to every message between them; there is no total that would be "
    "smaller without one of them.",
    "pattern counts": "Column sums are not asked for, and tables do not depend on parameters.",
    "one site's parameters": "Tables do not depend on parameters, and members that were sent two models cannot read "
    "each other.",
    "unanimous votes": _NO_VOTES,
    "the paper's rows": "A reference for jobs over totals: no row of parameters is sent.",
}
