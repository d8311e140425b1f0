"""The weighted sum of columns and its largest entries: the online half of Algorithm 1."""

import numpy as np

from suffuse.kernels.codes import OUTSIDE
from suffuse.kernels.jit import compiled, f4, f8, i8, readonly, u1, u2, u4, u8, void, writable
from suffuse.kernels.select import key_of, write_largest
from suffuse.kernels.table import add_columns, clear, new_table

_QUERIES = (readonly(i8), readonly(u4), readonly(f8))
_SPANS = (readonly(i8), readonly(i8))
_IMAGES = (readonly(u4), readonly(u1), i8)
_HITS = (writable(i8, 2), writable(f4, 2), writable(i8))


@compiled(
    void(*_QUERIES, *_SPANS, readonly(u1), readonly(f4), *_IMAGES, *_HITS),
    void(*_QUERIES, *_SPANS, readonly(u4), readonly(u2), *_IMAGES, *_HITS),
    void(*_QUERIES, *_SPANS, readonly(u4), readonly(f4), *_IMAGES, *_HITS),
)
def combine_columns(
    query_ptr, seeds, weights, starts, stops, entries, values, owners, hidden, targets, ids, scores, out
):  # fmt: skip
    """f = sum_j weights[j] * column[seeds[j]] (Algorithm 1), its largest entries first, ties to the smaller id.

    Query q has the seeds query_ptr[q]:query_ptr[q + 1]. The columns are starts, stops, rows and values, or starts,
    stops, codes and scales (`table`). `owners` maps elements to images, whose scores are summed; empty where elements
    are images. `hidden` is 1 for images that are no hits; empty where all are. `targets` is the number of images.
    out[q] = number of entries written to ids[q] and scores[q]; -1 if a column is damaged, or columns or owners hold an
    id that does not exist; -2 if a column lies outside.
    The sum lives in a hash table, so that memory follows the seeds' columns and not the database.
    """
    columns = (starts, stops, entries, values)
    table = new_table(query_ptr, seeds, columns, targets)
    slots, sums, used, _, _ = table
    keys = np.empty(used.shape[0], np.uint64)
    for q in range(u8(query_ptr.shape[0] - 1)):
        first, last = u8(query_ptr[q]), u8(query_ptr[q + u8(1)])
        count = add_columns(first, last, seeds, weights, columns, owners, targets, table)
        if count >= OUTSIDE:
            out[q] = i8(count)
            continue
        positive = u8(0)
        for place in range(count):
            slot = u8(used[place])
            score = f4(sums[slot])
            shown = hidden.shape[0] == 0 or hidden[u8(slots[slot])] == u1(0)
            if shown and score > f4(0.0):
                keys[positive] = key_of(score, slots[slot])
                positive += u8(1)
        clear(table, count)
        out[q] = i8(write_largest(keys, positive, ids[q], scores[q]))
