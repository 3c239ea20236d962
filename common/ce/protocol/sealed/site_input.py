"""What a site brings into a sealed job (labels as codes, which rows are in which block) and what it has at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ce.errors import InputError, MessageError
from ce.labels import LabelTable
from ce.protocol.attempt import Attempt
from ce.protocol.modes.mask_context import object_digests
from ce.protocol.sealed.channel import Channel, Entropy
from ce.protocol.sealed.records import Records
from ce.protocol.sealed.terms import Terms
from ce.protocol.topology.site_view import Block, SiteView
from ce.protocol.topology.topology import Rows
from ce.protocol.topology.vocabularies import restricted
from ce.ring import Reals

Codes = NDArray[np.int32]


@dataclass(frozen=True)
class SiteInput:
    """Labels (n, m) of one site, -1 where there is none. Columns in name order, those with a category only."""

    columns: tuple[str, ...]
    codes: Codes = field(repr=False)
    rows: Mapping[int, Rows] = field(repr=False)  # by block: positions of its objects, in the order of all members
    objects: Mapping[int, bytes] = field(repr=False)  # by block: the digest of its objects in this order

    @classmethod
    def of(cls, table: LabelTable, view: SiteView, rows: Mapping[int, Rows], objects: NDArray[Any]) -> SiteInput:
        """From the table that takes part (with tokens, where the job uses them). `objects`: what it has enrolled.

        Labels of categories that do not take part are missing. Raises InputError for soft labels, and MessageError for
        a shared block whose objects are not in ascending order: each order would be a block of its own, with labels of
        its own, of the same objects.
        """
        for index, positions in rows.items():
            ascending = np.array_equal(np.argsort(objects[positions], kind="stable"), np.arange(len(positions)))
            if view.blocks[index].shared and not ascending:
                raise MessageError("alignment: objects of a shared block are not in the order of their pseudonyms")
        names = tuple(sorted(column.name for column in view.clusterings if column.categories))
        return cls(names, codes_of(table, view), dict(rows), object_digests(objects, rows))

    def of_block(self, block: int) -> Codes:
        """(rows of the block, m) in the order that its members share."""
        return self.codes[self.rows[block]]


def codes_of(table: LabelTable, view: SiteView) -> Codes:
    """(n, m) labels of a table in the job's categories, -1 where there is none: columns in name order, those with a
    category that takes part. A column that the table lacks has no labels. Raises InputError for soft labels."""
    here = {column.name: column for column in table.clusterings}
    taking_part = sorted((column for column in view.clusterings if column.categories), key=lambda column: column.name)
    codes = np.full((table.n_objects, len(taking_part)), -1, dtype=np.int32)
    for at, known in enumerate(taking_part):
        column = here.get(known.name)
        if column is None:
            continue
        if column.soft:
            raise InputError(f"column {known.name!r}: a sealed job takes hard labels, and these are probabilities")
        found = restricted(column, column.categories, known.categories).recode(known.categories).codes
        assert found is not None
        codes[:, at] = found
    return codes


@dataclass(frozen=True)
class SiteContext:
    """What the parts of a site's end of one attempt have in common."""

    attempt: Attempt
    site: str
    terms: Terms
    view: SiteView
    input: SiteInput = field(repr=False)
    blocks: Mapping[int, tuple[Block, bytes]] = field(repr=False)  # shared blocks of this site, with their digests
    channel: Channel = field(repr=False)
    records: Records = field(repr=False)
    entropy: Entropy = field(repr=False)
    min_foreign_columns: int = 0


@dataclass(frozen=True)
class SealedOutcome:
    """What a site knows at the end of a sealed job, of the rows of its input."""

    labels: NDArray[np.int32] = field(repr=False)  # (n,) clusters; -1: no label anywhere, or its block was stopped
    #: (n, k): of objects that this site alone holds; NaN for shared objects, of which only the label is known.
    memberships: Reals = field(repr=False)
    n_clusters: int
    stopped: tuple[int, ...] = ()  # blocks whose objects end without a label: a member stayed away ...
    lost: tuple[int, ...] = ()  # ... or, of these, has lost what it had opened in an earlier attempt
