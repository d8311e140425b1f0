"""What new elements change: the k-NN lists that they enter, the edges that follow, and the columns around them.

enter_lists    a list that gains an element loses its last one
touched_nodes  whose row of S is another one now
to_solve       whose columns are solved again at once
solve          the columns of some elements, on the graph as it is now
concerned      the columns that hold a touched node: what they were solved for has changed
"""

import functools
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core import Damaged, columns, neighbors
from suffuse.core.blas import cores, in_blocks, on_every_core, one_thread
from suffuse.core.columns import DAMAGED_COLUMN, Columns, Solved, gather_spans
from suffuse.core.graph import Graph, inverse, order_of_wanted, reorder, transition_of
from suffuse.core.kernels.codes import APPENDED, DAMAGED, LONGEST, TO_CODE_ANEW, append_to_codes
from suffuse.core.kernels.growth import enter_newcomers, extend_columns, find_above, meet_marked
from suffuse.core.neighbors import TILE, Features, Neighbors
from suffuse.core.params import Params

# Pairs whose similarity is computed at a time: so few that their rows stay in the cache.
_PAIRS = 1 << 10

# Columns that are solved besides those of the new elements and of their neighbours: so few that they do not count where
# an index is large, and that a change keeps a small one fresh. Measured on Oxford5k (docs/how-it-works.md).
_BEYOND = 512

# Neighbours whose columns are read whole to find the support of a group; of the others it is the head. Measured on
# Oxford5k, the others tell no more as a whole, and take twice the time.
_WHOLE = 8

# Blocks of columns that each thread solves: so many that none waits long for the others at the end.
_BLOCKS = 16


class Grown(NamedTuple):
    """The lists of all elements after some were added."""

    lists: Neighbors  # (n, k)
    changed: NDArray[np.int64]  # the older elements whose lists they entered
    fallen: NDArray[np.int64]  # (f, 2): an older element, and one that its list lost


def enter_lists(features: Features, before: Neighbors, hidden: NDArray[np.bool_]) -> Grown:
    """The k-NN lists of all `features` (n, d), where `before` are those of the first rows, and the rest is new.

    Exact, if those before are. Elements that are hidden enter no list. Short lists end as `Neighbors` says.
    """
    old, k, n = len(before.ids), before.ids.shape[1], len(features)
    alone = np.repeat(np.arange(old, n, dtype=np.int32)[:, None], k, axis=1)
    lists = Neighbors(np.concatenate([before.ids, alone]), np.zeros((n, k), np.float32))
    lists.sims[:old] = before.sims
    own, entered, newcomers = _products(features, before, hidden)
    lists.ids[old:, : own.ids.shape[1]], lists.sims[old:, : own.ids.shape[1]] = own
    sims = _similarities(features, entered, newcomers)
    out = np.empty(len(entered), np.uint32)
    enter_newcomers(
        entered.astype(np.uint32), newcomers.astype(np.uint32), sims, lists.ids.view(np.uint32), lists.sims, out
    )
    came = out != newcomers
    lost = came & (out < old)  # else there was room, or another newcomer had to go again
    fallen = np.stack([entered[lost], out[lost].astype(np.int64)], axis=1)
    return Grown(lists, np.unique(entered[came]), fallen)


def _products(
    features: Features, before: Neighbors, hidden: NDArray[np.bool_]
) -> tuple[Neighbors, NDArray[np.int64], NDArray[np.int64]]:
    """The lists of the new elements; and which of them is near enough for which older list, by the new one's id."""
    old, k, n = len(before.ids), before.ids.shape[1], len(features)
    floors = before.sims[:, -1].copy()
    floors[before.ids[:, -1] == np.arange(old)] = -np.inf  # a list that is not full
    floors[hidden[:old]] = np.inf
    # As in `neighbors.choose_nearest`: a product only proposes.
    floors -= np.float32(4 * np.sqrt(features.shape[1]) * np.finfo(np.float32).eps)
    wanted = min(n, k + 8 if hidden.any() else k)  # a few more, for what is hidden
    count = neighbors.count_proposals(wanted, n)
    wide = max(TILE, TILE * TILE // (n - old))

    def compare(start: int, stop: int) -> tuple[NDArray[np.uint64], NDArray[np.int64], NDArray[np.int64]]:
        """Keys of the nearest to each new element in start..stop; the pairs above the floor of the older one."""
        best = neighbors.Lists(n - old, count)
        near: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
        with one_thread():
            for i in range(old, n, TILE):
                for j in range(start, stop, wide):
                    sims = neighbors.multiply(features[i : i + TILE], features[j : min(j + wide, stop)])
                    best.enter_rows(i - old, sims, j)
                    new, listing = _above(sims, floors[j : j + sims.shape[1]])
                    near.append((listing + j, new + i))
        entered, newcomers = (np.concatenate(part) for part in zip(*near, strict=True))
        return best.largest(), entered, newcomers

    keys, *pairs = zip(*on_every_core(compare, n, wide), strict=True)
    entered, newcomers = (np.concatenate(part) for part in pairs)
    order = np.argsort(newcomers, kind="stable")
    best = neighbors.unpack_keys(neighbors.largest_keys(np.concatenate(keys, axis=1), count))
    own = neighbors.choose_nearest(features[old:], features, *best, wanted, np.arange(old, n, dtype=np.uint32))
    if not hidden.any():
        return own, entered[order], newcomers[order]

    def find(count: int) -> Neighbors:
        return own if count <= wanted else neighbors.nearest_to_rows(features, old, n, count)

    return neighbors.nearest_visible(find, hidden, k), entered[order], newcomers[order]


def _above(sims: NDArray[np.float32], floors: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Rows and columns of what is not below the floor of its column, row by row."""
    room = max(sims.size // 64, 1)
    while True:
        above = np.empty((2, room), np.uint32)
        found = find_above(sims, floors, *above)
        if found <= room:
            return above[0, :found].astype(np.int64), above[1, :found].astype(np.int64)
        room = found


def _similarities(features: Features, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.float32]:
    """features[a] . features[b], pair by pair, with the bits that `neighbors` gives them."""
    sims = np.empty(len(a), np.float32)
    for start in range(0, len(a), _PAIRS):
        pairs = slice(start, start + _PAIRS)
        one = neighbors.rank(features[a[pairs]], features, b[pairs, None].astype(np.uint32), 1, None)
        sims[pairs] = one.sims[:, 0]
    return sims


def alpha_s_of(lists: Neighbors, params: Params) -> Graph:
    """alpha S (eq. 2) of the graph of these lists."""
    s = transition_of(lists, params)
    np.multiply(params.alpha, s.weights, out=s.weights)
    return s


def neighbors_in(graph: Graph, nodes: NDArray[np.integer]) -> NDArray[np.int64]:
    """The nodes themselves and all that have an edge with one of them, ascending."""
    indptr = graph.indptr.astype(np.int64)
    _, offsets = gather_spans(indptr[:-1], indptr[1:], nodes)
    met = np.zeros(len(indptr) - 1, bool)
    met[nodes] = met[graph.indices[offsets]] = True
    return np.flatnonzero(met)


def touched_nodes(before: Neighbors, grown: Grown, graph: Graph, params: Params) -> NDArray[np.int64]:
    """The nodes whose row of S is not what it was: an edge came or went, or a neighbour's degree changed with one.

    Where edges are weighed by lists, all edges of a node whose list changed did, too, and the degrees at their ends.
    """
    new = np.arange(len(before.ids), len(grown.lists.ids))
    if params.graph == "local":
        return neighbors_in(graph, neighbors_in(graph, np.union1d(new, grown.changed)))
    listing, lost = grown.fallen.T
    mutual = (before.ids[lost] == listing[:, None]).any(axis=1)
    return neighbors_in(graph, np.union1d(neighbors_in(graph, new), grown.fallen[mutual]))


def to_solve(graph: Graph, new: NDArray[np.int64], hidden: NDArray[np.bool_]) -> NDArray[np.int64]:
    """The new nodes, their neighbours, and others that two steps from the new ones reach with the most mass."""
    once = _step(graph, new, np.ones(len(new)))
    near = np.flatnonzero(once)
    twice = _step(graph, near, once[near])
    twice[near] = twice[new] = twice[hidden] = 0
    beyond = np.argsort(-twice, kind="stable")[:_BEYOND]
    return np.union1d(np.union1d(new, near), beyond[twice[beyond] > 0])


def _step(graph: Graph, nodes: NDArray[np.int64], mass: NDArray[np.float64]) -> NDArray[np.float64]:
    """alpha S v, by node, where v is `mass` at some nodes."""
    indptr = graph.indptr.astype(np.int64)
    starts, offsets = gather_spans(indptr[:-1], indptr[1:], nodes)
    moved = graph.weights[offsets] * np.repeat(mass, np.diff(starts))
    return np.bincount(graph.indices[offsets], moved, minlength=len(indptr) - 1).astype(np.float64, copy=False)


def solve(
    graph: Graph,
    wanted: NDArray[np.int64],
    params: Params,
    features: Features,
    owners: NDArray[np.int32] | None,
    stored: Columns,
) -> tuple[NDArray[np.int32], Solved]:
    """The columns of the wanted elements, and of a few near ones, on `graph`, which is alpha S; and whose they are.

    `stored` are the columns from before, which tell where to look for the new ones, unless they hold images.
    """
    group = columns.group_size(params)
    is_wanted = np.zeros(len(features), bool)
    is_wanted[wanted] = True
    if params.support == "graph":
        order, count = order_of_wanted(graph, group, is_wanted)
    else:
        order, count = np.concatenate([wanted, np.flatnonzero(~is_wanted)]).astype(np.uint32), len(wanted)
    number = inverse(order)
    graph = reorder(graph, order)

    def find(rows: Features, start: int, stop: int, k: int) -> Neighbors:
        """NN_k of the nodes start..stop, by their numbers in the new order."""
        found = neighbors.nearest_to_elements(rows, order[start:stop], k)
        return Neighbors(number[found.ids].astype(np.int32), found.sims)

    supports_of = functools.partial(columns.find_known, _WHOLE, order, number, stored) if owners is None else None

    def solve_block(start: int, stop: int) -> Solved:
        with one_thread():
            block = columns.solve_columns(graph, start, stop, params, features, owners, find, order, supports_of)
        return block.encode() if params.values == "uint8" else block

    step = -(-count // (_BLOCKS * cores() * group)) * group
    return order[:count].astype(np.int32), Solved.concat(in_blocks(solve_block, count, step))


def concerned(stored: Columns, nodes: NDArray[np.int64], reach: int, known: NDArray[np.integer]) -> NDArray[np.int64]:
    """The columns that hold an entry of one of these nodes, and `known` ones; columns hold ids below `reach`."""
    marked, is_known = np.zeros(reach, np.uint8), np.zeros(len(stored.starts), bool)
    marked[nodes[nodes < reach]] = 1
    is_known[known] = True
    asked = np.flatnonzero(~is_known)
    met = np.empty(len(asked), np.uint8)

    def some(start: int, stop: int) -> None:
        meet_marked(*stored.take(asked[start:stop]).for_kernels(), marked, met[start:stop])

    on_every_core(some, len(asked))
    is_known[asked] = met
    return np.flatnonzero(is_known)


# Columns that are extended at a time.
_BLOCK = 1024


def extend_stale(
    stored: Columns, found: Columns, of: NDArray[np.integer], params: Params, is_stale: NDArray[np.bool_]
) -> tuple[NDArray[np.int32], list[Columns]]:
    """Stale columns with entries for the new elements, in blocks, and whose they are.

    `found` are the columns of the new elements `of`.
    """
    new = np.repeat(of, np.diff(found.indptr))
    old = found.entries < len(is_stale)
    old[old] = is_stale[found.entries[old]]
    order = np.lexsort((new[old], found.entries[old]))
    rows = found.entries[old][order]
    wanted, first = np.unique(rows, return_index=True)
    more = Columns.of(
        np.append(first, len(rows)), new[old][order].astype(np.uint32), found.values[old][order].astype(np.float32)
    )
    reach = len(is_stale)

    def extend_block(start: int, stop: int) -> tuple[NDArray[np.int32], Columns]:
        ids, added = wanted[start:stop], more.decode(np.arange(start, stop))
        before = stored.take(ids)
        if params.values != "uint8":
            return ids, _add_entries(before, added, params, reach).columns
        done, block, again = _append_codes(before, added, params, reach)
        rest = _add_entries(before.take(again), added.decode(again), params, reach).encode().columns
        return np.concatenate([ids[done], ids[again]]), Columns.concat([block, rest])

    parts = in_blocks(extend_block, len(wanted), _BLOCK)
    return np.concatenate([of for of, _ in parts]), [block for _, block in parts]


def _add_entries(before: Columns, more: Columns, params: Params, reach: int) -> Solved:
    """Columns with more entries, the largest of both."""
    ids, numbers, lengths = columns.room_for_columns(len(more.starts), min(params.keep, params.truncation))
    floor = columns.least_stored(params)
    extend_columns(*before.for_kernels(), reach, more.indptr, *more[2:], floor, ids, numbers, lengths)
    if (lengths < 0).any():
        raise Damaged(DAMAGED_COLUMN)
    packed = columns.pack_columns(ids, numbers, lengths, columns.plain_type(params))
    return Solved(packed, lengths, np.zeros(len(lengths)))


def _append_codes(
    before: Columns, more: Columns, params: Params, reach: int
) -> tuple[NDArray[np.int64], Columns, NDArray[np.int64]]:
    """Coded columns to which entries could be appended, and which they are; and which have to be coded anew."""
    if not before.lie_inside():
        raise Damaged(DAMAGED_COLUMN)
    count, room = len(more.starts), int((before.stops - before.starts).sum()) + LONGEST * len(more.entries)
    codes, ends, states = np.empty(room, np.uint8), np.empty(count, np.int64), np.empty(count, np.int64)
    keep = min(params.keep, params.truncation)
    append_to_codes(*before, reach, keep, more.indptr, *more[2:], codes, ends, states)
    if (states == DAMAGED).any():
        raise Damaged(DAMAGED_COLUMN)
    done = np.flatnonzero(states == APPENDED)
    indptr = np.concatenate([[0], ends[done]])
    block = Columns.of(indptr, codes[: indptr[-1]].copy(), before.values[done])
    return done, block, np.flatnonzero(states == TO_CODE_ANEW)
