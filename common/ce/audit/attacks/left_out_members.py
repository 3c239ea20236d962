"""Left-out members: the coordinator tells some holders of shared objects that these are theirs alone, and the others
that there are fewer members.

All that a site is sent is consistent, so that masks cancel and every law holds: the job runs as if the others had never
had these objects. The total of a smaller block has fewer columns, and attacks work that fail on the whole block. Sites
that compare with each other what they share refuse this. The audit plays it as a job in which the ids of the left-out
sites are different.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from itertools import combinations

import numpy as np

from ce.audit.recording import Recording
from ce.labels import LabelTable
from ce.policy import Policy


def remaining_members(plain: Recording, block: int, policy: Policy) -> tuple[str, ...]:
    """The members with fewest columns that satisfy the policy's minimums; none if all members are needed."""
    members = plain.topology.blocks[block].members
    hidden = {
        site: sum(not column.shared and site in column.holders for column in plain.topology.clusterings)
        for site in members
    }
    for size in range(max(policy.min_sites, 2), len(members)):
        found = []
        for some in combinations(members, size):
            columns = [hidden[site] for site in some]
            # A member knows its own columns; all must have some, or they would not be in the block's total.
            if min(columns) > 0 and sum(columns) - max(columns) >= policy.min_foreign_columns:
                found.append((sum(columns), some))
        if found:
            return min(found)[1]
    return ()


def without_members(tables: Mapping[str, LabelTable], remaining: tuple[str, ...]) -> dict[str, LabelTable]:
    """The same labels; what the other sites hold looks like objects of their own."""
    return {
        site: table if site in remaining else replace(table, ids=np.array([f"{site}/{i}" for i in table.ids]))
        for site, table in tables.items()
    }
