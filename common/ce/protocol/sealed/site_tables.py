"""A site's part in the pair tables, from masked rows to its share: steps `mask`, `verify` and `commit`.

Products with other sites are words that only add up together (`ce.privacy.dealt_products`); local counts, noise and the
masks of the roster are added before anything is written down. Seeds and masked rows live here only, in memory.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from ce.pair_tables import TableLayout, pair_tables
from ce.privacy.dealt_products import SiteProducts
from ce.privacy.discrete_gaussian import DiscreteGaussian
from ce.privacy.ring_words import SEED_SIZE, RingWords, Stream, stream_of
from ce.protocol.messages.array_names import ArrayName
from ce.protocol.messages.task import Task
from ce.protocol.sealed.channel import Bytes, as_array, received
from ce.protocol.sealed.schedule import MASKED, PRODUCT_SEED, Schedule
from ce.protocol.sealed.site_input import SiteContext


class SiteTables:
    """One site's products and its share, in one attempt."""

    def __init__(self, context: SiteContext, schedule: Schedule, pair_keys: Mapping[str, bytes]) -> None:
        self._context = context
        self._schedule = schedule
        self._pair_keys = dict(pair_keys)
        self._blocks = schedule.blocks_of(context.site)
        self._seed = context.entropy(SEED_SIZE)
        self._hashes: dict[int, bytes] = {}  # of the masked rows that this site has sent, by block
        terms = context.terms
        self._products = SiteProducts(
            context.site,
            self._seed,
            terms.ring,
            schedule.products,
            terms.widths,
            terms.categories_of(context.site),
            [context.input.of_block(index) for index in self._blocks],
            context.entropy(SEED_SIZE),
        )

    def masked_rows(self) -> dict[ArrayName, Bytes]:
        """For the members of each block; and the seed, for the dealer."""
        context, arrays = self._context, dict[ArrayName, Bytes]()
        for index in self._blocks:
            rows = self._products.masked_rows(context.blocks[index][1])
            self._hashes[index] = hashlib.sha256(rows).digest()
            arrays[ArrayName.of_members(index, MASKED, context.site)] = context.channel.to_block(index, MASKED, rows)
        if self._blocks:
            arrays[ArrayName.to_dealer(PRODUCT_SEED)] = as_array(self._seed)
        return arrays

    def multiply(self, task: Task) -> dict[ArrayName, Bytes]:
        """Take the rows of the others and the dealer's words, and send each first of a pair what checks the dealer."""
        context, schedule, products = self._context, self._schedule, self._products
        for index in self._blocks:
            block, digest = context.blocks[index]
            hashes = {context.site: self._hashes[index]}
            for sender in block.members:
                if sender != context.site:
                    size = schedule.masked_size(index, sender)
                    rows = context.channel.from_block(index, MASKED, sender, task, size)
                    hashes[sender] = hashlib.sha256(rows).digest()
                    products.receive_rows(digest, sender, rows)
            context.channel.bind_block(index, *(hashes[member] for member in block.members))
        firsts = sorted(products.awaited_dealt)
        for first in firsts:
            size = schedule.dealt_size(first, context.site)
            products.receive_dealt(first, received(task.arrays, ArrayName.of_products(first), size))
        return {ArrayName.of_box(f): context.channel.to_peer(f, products.check_message(f)) for f in firsts}

    def check_dealer(self, task: Task) -> None:
        """Raises BrokenTotals where the dealer's words are wrong."""
        context = self._context
        contents = {
            second: context.channel.from_peer(second, task, self._schedule.check_size(context.site, second))
            for second in sorted(self._products.awaited_checks)
        }
        for second, content in contents.items():
            self._products.receive_check(second, content)

    def share(self) -> bytes:
        """Products, local counts, noise and the masks of the roster, as it is sent: packed words."""
        terms, context = self._context.terms, self._context
        words = terms.layout.packed(self._sums()).astype(np.uint32)
        if terms.noise is not None:
            sampler = DiscreteGaussian(terms.noise.site_variance)
            words += terms.ring.reduced(sampler.sample(Stream(context.entropy(SEED_SIZE)), len(words)))
        for peer, key in self._pair_keys.items():
            stream = stream_of(key, b"ce sealed share mask 1", terms.digest, context.channel.transcript)
            mask = terms.ring.drawn(stream, len(words))
            words += mask if context.site < peer else -mask
        return terms.ring.packed(words & terms.ring.mask)

    def _sums(self) -> RingWords:
        """(D, D) symmetric: this site's shares of all tables, modulo 2^32; a column with itself is left to `packed`."""
        terms, site = self._context.terms, self._context.site
        sums = np.zeros((terms.layout.width, terms.layout.width), dtype=np.uint32)
        cells = terms.cells_of(site)
        if len(terms.columns_of(site)) > 1:
            sums[np.ix_(cells, cells)] = self._local_counts()
        for partner in self._products.partners:
            product = self._products.product(partner)
            first, second = sorted((site, partner))
            rows, columns = terms.cells_of(first), terms.cells_of(second)
            sums[np.ix_(rows, columns)] += product
            sums[np.ix_(columns, rows)] += product.T
        return sums

    def _local_counts(self) -> RingWords:
        """Labels of an object that are both here, over all rows: of every block, and of objects held alone."""
        terms, given = self._context.terms, self._context.input
        layout = TableLayout(given.columns, terms.categories_of(self._context.site))
        counts: NDArray[np.float64] = pair_tables(given.codes, layout)
        return terms.ring.reduced(counts.astype(np.int64))
