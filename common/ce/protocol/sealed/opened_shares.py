"""The opened tables: the sum of all shares, checked, and the model that was fitted to it.

Site and coordinator compute the same from the same shares. A site also checks the commitments, so that nobody has
chosen a share after seeing the others, and the model, which it fits itself (`ce.pair_tables.check_fit`).
"""

from __future__ import annotations

import hashlib
import hmac
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ce.errors import BrokenTotals, MessageError
from ce.pair_tables import (
    MOST_CLUSTERS,
    SEALED_TOLERANCE,
    PairFit,
    cell_words,
    check_fit,
    fit_pairs,
    weight_words,
)
from ce.privacy.derivation import joined, number
from ce.privacy.ring_words import RingWords
from ce.privacy.score_words import score_words
from ce.privacy.secure_argmax import WINNER_MODULUS
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.task import Array
from ce.protocol.sealed.schedule import BETA, WEIGHTS
from ce.protocol.sealed.site_input import Codes
from ce.protocol.sealed.terms import SPREAD, Terms
from ce.ring import Reals, Words


def commitment(terms: Terms, origin: int, site: str, nonce: bytes, share: bytes) -> bytes:
    """What a site says before it opens its share of the attempt `origin`."""
    roster = joined(*(name.encode() for name in terms.sites))
    parts = (terms.job_digest, number(origin), roster, site.encode(), nonce, share)
    return hashlib.sha256(joined(b"ce sealed share 1", *parts)).digest()


def check_commitments(
    terms: Terms, origin: int, shares: Mapping[str, tuple[bytes, bytes]], commitments: Mapping[str, bytes]
) -> None:
    """That every site has opened what it committed to: nonce and share. Raises MessageError."""
    for site in terms.sites:
        if not hmac.compare_digest(commitment(terms, origin, site, *shares[site]), commitments[site]):
            raise MessageError(f"share of {site}: is not the one that it committed to")


def opened_cells(terms: Terms, shares: Mapping[str, bytes]) -> Words:
    """(n_cells,) the tables with their noise: the sum of the shares. Raises BrokenTotals where no labels can have them.

    The total of a whole table is checked, too: a share with one huge column would show that of another site.
    """
    ring, layout = terms.ring, terms.layout
    total = np.zeros(layout.n_cells, dtype=np.uint32)
    for site in terms.sites:
        total += ring.unpacked(shares[site], layout.n_cells)
    slack = SPREAD * terms.sd
    cells = ring.from_below(total & ring.mask, -math.ceil(slack))
    at = 0
    for (i, j), largest in zip(layout.pairs, terms.largest.tolist(), strict=True):
        size = layout.categories[i] * layout.categories[j]
        table = cells[at : at + size]
        at += size
        if table.min() < -slack or table.max() > largest + slack:
            raise BrokenTotals("the pair tables", "a cell has at least 0 and at most all objects", terms.sites)
        if not -slack * math.sqrt(size) <= int(table.sum()) <= largest + slack * math.sqrt(size):
            raise BrokenTotals("the pair tables", "a table has at least 0 and at most all objects", terms.sites)
    return cells


@dataclass(frozen=True)
class AcceptedModel:
    """Weights and beta of all columns, in the order of the terms' layout."""

    weights: Reals = field(repr=False)  # (k,)
    beta: Reals = field(repr=False)  # (D, k)

    @property
    def n_clusters(self) -> int:
        return len(self.weights)

    @cached_property
    def encoded(self) -> bytes:
        """The model as bytes: weights, then beta row by row, as 64-bit numbers."""
        return self.weights.astype("<f8").tobytes() + np.ascontiguousarray(self.beta, dtype="<f8").tobytes()

    @cached_property
    def digest(self) -> bytes:
        return hashlib.sha256(joined(b"ce sealed model 1", self.encoded)).digest()

    @property
    def arrays(self) -> dict[ArrayName, Array]:
        """As a task brings it."""
        return {ArrayName.of_model(WEIGHTS): self.weights, ArrayName.of_model(BETA): self.beta}

    def score_words(self, terms: Terms, site: str, codes: Codes, *, with_weights: bool) -> RingWords:
        """(k + 1, n) whole-number scores of a site's labels; the last candidate is "no label anywhere"."""
        cells = cell_words(self.beta[terms.cells_of(site)], terms.score_unit)
        weights = weight_words(self.weights, terms.score_unit) if with_weights else None
        return score_words(codes, terms.categories_of(site), cells, weights)

    def score_alone(self, terms: Terms, site: str, codes: Codes) -> tuple[NDArray[np.int32], Reals]:
        """(n,) labels (-1: no label) and (n, k) memberships from one site's labels, by the same whole numbers."""
        words = self.score_words(terms, site, codes, with_weights=True).view(np.int32)
        found = words.argmax(axis=0).astype(np.int32)
        scores = (words[:-1] // WINNER_MODULUS).T / terms.score_unit
        chances = np.exp(scores - scores.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        return np.where(found == self.n_clusters, np.int32(-1), found), chances

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, Array], terms: Terms) -> AcceptedModel:
        """Raises MessageError for other shapes and types; whether the numbers are right `check_model` says."""
        weights, beta = arrays.get(ArrayName.of_model(WEIGHTS)), arrays.get(ArrayName.of_model(BETA))
        if weights is None or beta is None:
            raise MessageError("model: expected weights and beta, got not both")
        if weights.dtype != np.float64 or weights.ndim != 1 or not 1 <= len(weights) <= MOST_CLUSTERS:
            raise MessageError(f"weights: expected 1 to {MOST_CLUSTERS} numbers, got shape {weights.shape}")
        shape = (terms.layout.width, len(weights))
        if beta.dtype != np.float64 or beta.shape != shape:
            raise MessageError(f"beta: expected numbers of shape {shape}, got shape {beta.shape}")
        return cls(weights.astype(np.float64, copy=False), beta.astype(np.float64, copy=False))

    @classmethod
    def decoded(cls, content: bytes, terms: Terms) -> AcceptedModel:
        """The model of `encoded`. Raises MessageError for another number of bytes, and for numbers that are none."""
        rows = 1 + terms.layout.width
        clusters, odd = divmod(len(content), 8 * rows)
        if odd or not 1 <= clusters <= MOST_CLUSTERS:
            raise MessageError("model: expected the bytes of a model of these columns, got another number of them")
        numbers = np.frombuffer(content, dtype="<f8").astype(np.float64).reshape(rows, clusters)
        if not np.isfinite(numbers).all():
            raise MessageError("model: expected finite numbers, got others")
        return cls(numbers[0], numbers[1:])


def _tables(terms: Terms, cells: Words) -> Reals:
    return terms.layout.unpacked(cells.astype(np.float64)).astype(np.float64, copy=False)


def fit_model(terms: Terms, cells: Words) -> PairFit:
    """The fit of a sealed job: its start and its stop are the same for all parties."""
    return fit_pairs(
        _tables(terms, cells),
        terms.layout,
        terms.clusters,
        sd=terms.sd,
        seed=terms.fit_seed(cells),
        tolerance=SEALED_TOLERANCE,
    )


def check_model(terms: Terms, cells: Words, model: AcceptedModel) -> None:
    """That a model is what a fit of the tables gives. Raises MessageError, with a sentence without their numbers."""
    tables = _tables(terms, cells)
    seed = terms.fit_seed(cells)
    problem = check_fit(tables, terms.layout, terms.sd, seed, model.weights, model.beta, terms.clusters)
    if problem is not None:
        raise MessageError(f"model: {problem}")
