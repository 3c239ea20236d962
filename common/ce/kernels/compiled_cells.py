"""The cell steps as fused loops: one pass over the objects, with the bits of the array functions of `ce.kernels.cells`.

Eight objects are a group, and a group's labels in a column stand side by side: codes are (groups, columns, 8), indices
into tables of one row per category. Clusters come last and are padded by zeros to whole vectors; the last row of a
table is zero, or is for nothing: a missing label has its index, and so has the place of an object that is not there.

A cell is computed twice, once for its normaliser and once for its words, because two multiplications cost less than
to keep it.
"""

from __future__ import annotations

import numpy as np

from ce.kernels.cells import LANES
from ce.kernels.elementary import SMALLEST_NORMAL
from ce.kernels.lanes import (
    LARGEST_SMALL,
    add,
    add_lanes_in_order,
    all_same,
    any_words,
    load,
    one_where_equal,
    over,
    small_words,
    store,
    times,
)
from ce.kernels.machine_code import of_numbers, stored

#: Groups whose logarithms are taken together: enough for long loops, few enough for the cache.
_BATCH = 8

_log = of_numbers["log"]

with stored() as compiled:

    @compiled
    def posterior_sums(message, table, codes, weights, unit, bound_unit, objects, counts, bound):  # type: ignore[no-untyped-def]
        """phi of each cell, rounded, into objects (starts, k, n) and counts (starts, rows, width); ln of its
        normaliser, rounded, into bound (starts,). True unless a normaliser is not a normal number."""
        starts, k, n = message.shape
        groups, m = codes.shape[:2]
        rows, width = table.shape[1:]
        small = unit <= LARGEST_SMALL
        fine = True
        of_group = np.zeros(LANES * width)  # the message, object by object
        sums = np.zeros(LANES * width, dtype=np.int64)
        factors = np.zeros(LANES)
        normalisers = np.ones(_BATCH * m * LANES)
        logs = np.zeros(_BATCH * m * LANES, dtype=np.int64)
        codes, table, counts = codes.reshape(-1), table.reshape(-1), counts.reshape(-1)
        for s in range(starts):
            first = s * rows * width
            for begin in range(0, groups, _BATCH):
                end = min(begin + _BATCH, groups)
                for g in range(begin, end):
                    i = g * LANES
                    members = min(LANES, n - i)
                    alone = True
                    for o in range(members):
                        alone &= weights[i + o] == 1
                    for h in range(k):
                        for o in range(members):
                            of_group[o * width + h] = message[s, h, i + o]
                    sums[:] = 0
                    for c in range(m):
                        at = (g * m + c) * LANES
                        total = all_same(0.0)
                        for lane in range(0, width, LANES):
                            row = first + lane
                            total = add_lanes_in_order(
                                total,
                                times(load(of_group, lane), load(table, row + width * codes[at])),
                                times(load(of_group, lane + width), load(table, row + width * codes[at + 1])),
                                times(load(of_group, lane + 2 * width), load(table, row + width * codes[at + 2])),
                                times(load(of_group, lane + 3 * width), load(table, row + width * codes[at + 3])),
                                times(load(of_group, lane + 4 * width), load(table, row + width * codes[at + 4])),
                                times(load(of_group, lane + 5 * width), load(table, row + width * codes[at + 5])),
                                times(load(of_group, lane + 6 * width), load(table, row + width * codes[at + 6])),
                                times(load(of_group, lane + 7 * width), load(table, row + width * codes[at + 7])),
                            )
                        total = one_where_equal(total, codes, at, rows - 1)
                        store(normalisers, at - begin * m * LANES, total)
                        store(factors, 0, over(all_same(unit), total))
                        for o in range(LANES):
                            row = first + width * codes[at + o]
                            factor = all_same(factors[o])
                            for lane in range(0, width, LANES):
                                mine = o * width + lane
                                phi = times(times(load(of_group, mine), load(table, row + lane)), factor)
                                words = small_words(phi) if small else any_words(phi)
                                store(sums, mine, add(load(sums, mine), words))
                                if not alone:
                                    words = times(words, all_same(weights[min(i + o, n - 1)]))
                                store(counts, row + lane, add(load(counts, row + lane), words))
                    for h in range(k):
                        for o in range(members):
                            objects[s, h, i + o] = sums[o * width + h]
                for cell in range((end - begin) * m * LANES):
                    fine &= normalisers[cell] >= SMALLEST_NORMAL
                    logs[cell] = np.int64(np.rint(_log(normalisers[cell]) * bound_unit))
                for i in range(begin * LANES, min(end * LANES, n)):
                    mine = (i // LANES - begin) * m * LANES + i % LANES
                    of_object = np.int64(0)
                    for c in range(m):
                        of_object += logs[mine + c * LANES]
                    bound[s] += of_object * weights[i]
        return fine

    @compiled
    def lookup_sums(table, codes, objects):  # type: ignore[no-untyped-def]
        """Add the rows of table (starts, rows, width), words, at the labels of each object: objects (starts, k, n)."""
        starts, k, n = objects.shape
        groups, m = codes.shape[:2]
        rows, width = table.shape[1:]
        sums = np.zeros(LANES * width, dtype=np.int64)
        codes, table = codes.reshape(-1), table.reshape(-1)
        for s in range(starts):
            for g in range(groups):
                sums[:] = 0
                for c in range(m):
                    for o in range(LANES):
                        row = (s * rows + codes[(g * m + c) * LANES + o]) * width
                        for lane in range(0, width, LANES):
                            mine = o * width + lane
                            store(sums, mine, add(load(sums, mine), load(table, row + lane)))
                for h in range(k):
                    for o in range(min(LANES, n - g * LANES)):
                        objects[s, h, g * LANES + o] = sums[o * width + h]

    @compiled
    def count_sums(words, codes, weights, counts):  # type: ignore[no-untyped-def]
        """Add each object's words (starts, k, n) to the rows of its labels: counts (starts, rows, width)."""
        starts, k, n = words.shape
        groups, m = codes.shape[:2]
        rows, width = counts.shape[1:]
        of_group = np.zeros(LANES * width, dtype=np.int64)
        codes, counts = codes.reshape(-1), counts.reshape(-1)
        for s in range(starts):
            for g in range(groups):
                for h in range(k):
                    for o in range(min(LANES, n - g * LANES)):
                        of_group[o * width + h] = words[s, h, g * LANES + o] * weights[g * LANES + o]
                for c in range(m):
                    for o in range(LANES):
                        row = (s * rows + codes[(g * m + c) * LANES + o]) * width
                        for lane in range(0, width, LANES):
                            mine = load(of_group, o * width + lane)
                            store(counts, row + lane, add(load(counts, row + lane), mine))
