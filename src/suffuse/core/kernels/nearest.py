"""The largest entries of each row, or of each column, of a product that comes tile by tile.

What is kept of a row is a list of keys, twice as long as wanted: a similarity above the row's floor is appended, and
when the list is full its larger half stays and the floor rises. So most entries cost one comparison.
"""

import numpy as np

from suffuse.core.kernels.jit import compiled, f4, f8, helper, i4, i8, readonly, u4, u8, void, writable
from suffuse.core.kernels.select import id_of, largest_first, signed_key, signed_score, sort_descending

# Entries that are compared at once, and counted in float32, which the compiler turns into vectors; a branch for each
# entry would be ten times slower.
_LANES = 64


@helper
def _append(sim, id, keys, counts, floors, place):
    """Append an entry to the list at `place`; halve the list where it is full."""
    count = u8(counts[place])
    keys[place, count] = signed_key(sim, id)
    count += u8(1)
    if count == u8(keys.shape[1]):
        wanted = count // u8(2)
        row = keys[place]
        largest_first(row, count, wanted)
        lowest = row[0]
        for k in range(u8(1), wanted):
            lowest = min(lowest, row[k])
        floors[place] = signed_score(lowest)
        count = wanted
    counts[place] = i8(count)


@helper
def _none_above(row, start, floors, first, is_own):
    """Whether none of _LANES entries from `start` on is above floors[first], or, if each has its own, above that."""
    above, floor = f4(0.0), floors[first]
    if is_own:
        for lane in range(u8(_LANES)):
            above += f4(1.0) if row[start + lane] > floors[first + lane] else f4(0.0)
    else:
        for lane in range(u8(_LANES)):
            above += f4(1.0) if row[start + lane] > floor else f4(0.0)
    return above == f4(0.0)


@helper
def _keep_largest(sims, first_id, of_columns, keys, counts, floors):
    width = u8(sims.shape[1])
    for i in range(u8(sims.shape[0])):
        row = sims[i]
        for start in range(u8(0), width, u8(_LANES)):
            stop = min(start + u8(_LANES), width)
            if stop - start == u8(_LANES) and _none_above(row, start, floors, start if of_columns else i, of_columns):
                continue
            for j in range(start, stop):
                place, other = (j, i) if of_columns else (i, j)
                if row[j] > floors[place]:
                    _append(row[j], u8(first_id) + other, keys, counts, floors, place)


_LISTS = (writable(u8, 2), writable(i8), writable(f4))


@compiled(void(readonly(f4, 2), i8, *_LISTS))
def keep_largest_of_rows(sims, first_id, keys, counts, floors):
    """Enter sims[i, j] into list i under the id first_id + j; keys (m, 2 p), counts (m,), floors (m,)."""
    _keep_largest(sims, first_id, False, keys, counts, floors)


@compiled(void(readonly(f4, 2), i8, *_LISTS))
def keep_largest_of_columns(sims, first_id, keys, counts, floors):
    """Enter sims[i, j] into list j under the id first_id + i; keys (n, 2 p), counts (n,), floors (n,)."""
    _keep_largest(sims, first_id, True, keys, counts, floors)


_FIRST = np.float32(np.inf)
# Places of the features that are read in turn. One query is bound by memory, whose hardware fetches ahead in each of
# several streams: four take two thirds of the time of one.
_STREAMS = 4


# Rows of each stream that all queries are compared with before the next ones are read: they stay in the cache, so that
# eight queries take three times as long as one, and each gets the same numbers in every batch.
_ROWS = 16


@compiled(void(readonly(f4, 2), readonly(f4, 2), writable(f4, 2)))
def scan(queries, features, out):
    """out[q, i] = queries[q] . features[i], up to rounding."""
    dimensions, each = u8(queries.shape[1]), u8(features.shape[0]) // u8(_STREAMS)
    for first in range(u8(0), each, u8(_ROWS)):
        last = min(first + u8(_ROWS), each)
        for q in range(u8(queries.shape[0])):
            for i in range(first, last):
                a, b, c, d = f4(0.0), f4(0.0), f4(0.0), f4(0.0)
                for t in range(dimensions):
                    a += features[i, t] * queries[q, t]
                    b += features[i + each, t] * queries[q, t]
                    c += features[i + u8(2) * each, t] * queries[q, t]
                    d += features[i + u8(3) * each, t] * queries[q, t]
                out[q, i], out[q, i + each] = a, b
                out[q, i + u8(2) * each], out[q, i + u8(3) * each] = c, d
    for q in range(u8(queries.shape[0])):
        for i in range(u8(_STREAMS) * each, u8(features.shape[0])):
            total = f4(0.0)
            for t in range(dimensions):
                total += features[i, t] * queries[q, t]
            out[q, i] = total


@compiled(void(readonly(f4, 2), readonly(f4, 2), readonly(u4, 2), readonly(u4), writable(i4, 2), writable(f4, 2)))
def rank_pairs(queries, features, ids, own, best, out):
    """best[q] = those of ids[q] with the largest similarity queries[q] . features[id], as many as there is room for.

    The largest first, ties by id; out[q] = their similarities. Where queries are elements themselves, `own` says which,
    and own[q] comes first however large it is; else it is empty.
    Summed in float64: a BLAS product differs in its last bits with the size of the batch, and then ties
    between duplicates are broken by chance.
    """
    dimensions, count, wanted = u8(queries.shape[1]), u8(ids.shape[1]), u8(best.shape[1])
    keys = np.empty(count, np.uint64)
    for q in range(u8(ids.shape[0])):
        own_similarity = f4(0.0)
        for c in range(count):
            element = u8(ids[q, c])
            total = f8(0.0)
            for t in range(dimensions):
                total += f8(queries[q, t]) * f8(features[element, t])
            similarity = f4(total + f8(0.0))  # which makes 0 of -0
            if own.shape[0] > 0 and element == u8(own[q]):
                similarity, own_similarity = _FIRST, similarity
            keys[c] = signed_key(similarity, element)
        if wanted < count:
            largest_first(keys, count, wanted)
        sort_descending(keys, wanted)
        for place in range(wanted):
            similarity = signed_score(keys[place])
            best[q, place] = i4(id_of(keys[place]))
            out[q, place] = own_similarity if similarity == _FIRST else similarity


@compiled(void(readonly(f4, 2), readonly(u4), writable(f4, 2)))
def raise_to_best(sims, owners, out):
    """out[owners[i], r] = max(out[owners[i], r], sims[i, r]).

    One row per gallery region: the inner loop runs over the query's regions, which lie together in both arrays,
    so owners may come in any order.
    """
    width = u8(sims.shape[1])
    for i in range(u8(sims.shape[0])):
        image = u8(owners[i])
        for r in range(width):
            out[image, r] = max(out[image, r], sims[i, r])
