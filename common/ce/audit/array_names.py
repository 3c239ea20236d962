"""Names of the arrays that the audit reads, and scopes of rules. No other module of the audit writes or parses them.

block/3/sums      an array of the block of objects 3          scope block/3
columns/0/beta    an array of the group of columns 0          scope columns/0
global/alpha      an array of the whole job                   scope global
"""

from __future__ import annotations

ALPHA = "global/alpha"
WEIGHTS = "global/weights"

GLOBAL_SCOPE = "global"
#: The scope of rules about columns that no group is named for.
COLUMNS_SCOPE = "columns"


def object_sums(block: int) -> str:
    """Sums of the block's objects, of one site or of all."""
    return f"block/{block}/sums"


def message(block: int) -> str:
    """Messages of the block's objects, which the home sends to its members."""
    return f"block/{block}/message"


def label_counts(block: int) -> str:
    """The number of labels of each of the block's objects at all sites together."""
    return f"block/{block}/labels"


def votes(block: int) -> str:
    """Votes per class of the block's objects."""
    return f"block/{block}/votes"


def column_sums(group: int) -> str:
    """Sums of a group of shared columns, of one holder or of all."""
    return f"columns/{group}/sums"


def beta(group: int) -> str:
    """Parameters of a group of shared columns, which the home sends to the holders."""
    return f"columns/{group}/beta"


def is_message(name: str) -> bool:
    """Whether an array has the messages of a block."""
    return name.endswith("/message")


def block_scope(block: int) -> str:
    """The scope of a block's arrays."""
    return f"block/{block}"


def column_scope(group: int) -> str:
    """The scope of the arrays of a group of shared columns."""
    return f"columns/{group}"


def is_column_scope(scope: str) -> bool:
    """Whether rules of this scope are about shared columns."""
    return scope.startswith(COLUMNS_SCOPE)
