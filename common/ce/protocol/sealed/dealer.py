"""The dealer of a sealed job: from the sites' seeds, words with which pairs of sites multiply and blocks compare.

A role behind an interface: by default the coordinator plays it (`LocalDealer`). A dealer learns no label; together with
a site it learns all labels of the objects that this site holds.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol

from ce.privacy.argmax_dealer import corrections
from ce.privacy.dealt_products import ProductBlock, dealer_products
from ce.privacy.ring_words import Ring


class Dealer(Protocol):
    """Answers what the sites need, from their seeds of this attempt."""

    def products(self, seeds: Mapping[str, bytes]) -> Mapping[tuple[str, str], bytes]:
        """For each pair (first, second) of sites with a common block, in order of name: the bytes for the second."""

    def corrections(
        self, context: bytes, seeds: Sequence[bytes], rows: int, candidates: int
    ) -> Iterator[tuple[int, Iterable[bytes]]]:
        """Of one block, by its digest: level by level, the bytes for its last member, in parts that are made as they
        are asked for. `seeds` in order of members, `rows` with the dummies."""


class LocalDealer:
    """The dealer in the coordinator's process. Keeps nothing."""

    def __init__(self, ring: Ring, blocks: Sequence[ProductBlock], widths: Mapping[str, int]) -> None:
        self._ring = ring
        self._blocks = list(blocks)
        self._widths = dict(widths)

    def products(self, seeds: Mapping[str, bytes]) -> Mapping[tuple[str, str], bytes]:
        return dealer_products(self._ring, dict(seeds), self._blocks, self._widths)

    def corrections(
        self, context: bytes, seeds: Sequence[bytes], rows: int, candidates: int
    ) -> Iterator[tuple[int, Iterable[bytes]]]:
        return corrections(list(seeds), context, rows, candidates)
