"""What new elements change: the k-NN lists that they enter, the edges that follow, and the columns around them.

enter_lists    a list that gains an element loses its last one
touched_nodes  whose row of S is another one now
to_solve       whose columns are solved again at once
solve          the columns of some elements, on the graph as it is now
concerned      the columns that hold a touched node: what they were solved for has changed
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core.blas import cores, in_blocks, on_every_core, one_thread
from suffuse.core.columns import (
    DAMAGED_COLUMN,
    CodedColumns,
    Columns,
    Entries,
    Held,
    Supports,
    columns,
    encode,
    group_size,
    joined,
    kernel_view,
    known,
    least_stored,
    packed,
    picked,
    places_of,
    plain_type,
    walked,
)
from suffuse.core.graph import Graph, affinity, inverse, order_of_wanted, reordered, transition
from suffuse.core.kernels.codes import LONGEST
from suffuse.core.kernels.growth import (
    APPENDED,
    DAMAGED,
    TO_CODE_ANEW,
    append_to_codes,
    enter_newcomers,
    extend_columns,
    find_above,
    meet_marked,
)
from suffuse.core.neighbors import (
    TILE,
    Features,
    Lists,
    Neighbors,
    chosen,
    in_order,
    largest_keys,
    nearest_of_shown,
    nearest_to_elements,
    nearest_to_rows,
    product,
    proposals,
    ranked,
    unpacked,
)
from suffuse.core.params import Params
from suffuse.errors import IndexBroken

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
    floors[before.ids[:, -1] == np.arange(old)] = -np.inf  # a list with free places
    floors[hidden[:old]] = np.inf
    # As in `neighbors.chosen`: a product only proposes.
    floors -= np.float32(4 * np.sqrt(features.shape[1]) * np.finfo(np.float32).eps)
    wanted = min(n, k + 8 if hidden.any() else k)  # a few more, for what is hidden
    count = proposals(wanted, n)
    wide = max(TILE, TILE * TILE // (n - old))

    def compared(start: int, stop: int) -> _Compared:
        with one_thread():
            return _compare(features, old, range(start, stop, wide), floors, count)

    parts = on_every_core(compared, n, wide)
    best = largest_keys(np.concatenate([part.keys for part in parts], axis=1), count)
    entered, newcomers = (np.concatenate([part[i] for part in parts]) for i in (1, 2))
    order = np.argsort(newcomers, kind="stable")
    own_ids = np.arange(old, n, dtype=np.uint32)
    own = chosen(features[old:], features, *unpacked(best), wanted, own_ids)
    if hidden.any():
        shown = ~hidden[own.ids]
        if (shown.sum(axis=1) < min(k, n - int(hidden.sum()))).any():
            own = nearest_of_shown(lambda count: nearest_to_rows(features, old, n, count), hidden, k)
        else:
            own = in_order(own, np.argsort(~shown, axis=1, kind="stable")[:, : min(k, n - int(hidden.sum()))])
    return own, entered[order], newcomers[order]


class _Compared(NamedTuple):
    """What the products of the new elements with some of all elements show."""

    keys: NDArray[np.uint64]  # (new, count), the nearest to each new one
    entered: NDArray[np.int64]  # (p,), older elements, and
    newcomers: NDArray[np.int64]  # (p,), a new one that is above the floor of each; for each of them in order


def _compare(features: Features, old: int, columns: range, floors: NDArray[np.float32], count: int) -> _Compared:
    """Compare the elements from `old` on with those of `columns`, whose step is how many are compared at a time."""
    n = len(features)
    best = Lists(n - old, count)
    near: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for i in range(old, n, TILE):
        for j in columns:
            sims = product(features[i : i + TILE], features[j : min(j + columns.step, columns.stop)])
            best.enter_rows(i - old, sims, j)
            new, listing = _above(sims, floors[j : j + sims.shape[1]])
            near.append((listing + j, new + i))
    entered, newcomers = (np.concatenate(part) for part in zip(*near, strict=True))
    return _Compared(best.largest(), entered, newcomers)


def _above(sims: NDArray[np.float32], floors: NDArray[np.float32]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The places (rows, columns) of what is not below the floor of its column, row by row."""
    room = max(sims.size // 64, 1)
    while True:
        rows, columns = np.empty(room, np.uint32), np.empty(room, np.uint32)
        found = find_above(sims, floors, rows, columns)
        if found <= room:
            return rows[:found].astype(np.int64), columns[:found].astype(np.int64)
        room = found


def _similarities(features: Features, a: NDArray[np.int64], b: NDArray[np.int64]) -> NDArray[np.float32]:
    """features[a] . features[b], pair by pair, with the bits that `neighbors` gives them."""
    sims = np.empty(len(a), np.float32)
    for start in range(0, len(a), _PAIRS):
        pairs = slice(start, start + _PAIRS)
        one = ranked(features[a[pairs]], features, b[pairs, None].astype(np.uint32), 1, None)
        sims[pairs] = one.sims[:, 0]
    return sims


def alpha_s_of(lists: Neighbors, params: Params) -> Graph:
    """alpha S (eq. 2) of the graph of these lists."""
    s = transition(affinity(lists, params.gamma))
    np.multiply(params.alpha, s.weights, out=s.weights)
    return s


def neighbors_in(graph: Graph, nodes: NDArray[np.integer]) -> NDArray[np.int64]:
    """The nodes themselves and all that have an edge with one of them, ascending."""
    indptr = graph.indptr.astype(np.int64)
    _, places = places_of(indptr[:-1], indptr[1:], nodes)
    met = np.zeros(len(indptr) - 1, bool)
    met[nodes] = met[graph.indices[places]] = True
    return np.flatnonzero(met)


def touched_nodes(before: Neighbors, grown: Grown, graph: Graph) -> NDArray[np.int64]:
    """The nodes whose row of S is not what it was: an edge came or went, or a neighbour's degree changed with one."""
    new = np.arange(len(before.ids), len(grown.lists.ids))
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
    starts, places = places_of(indptr[:-1], indptr[1:], nodes)
    moved = graph.weights[places] * np.repeat(mass, np.diff(starts))
    return np.bincount(graph.indices[places], moved, minlength=len(indptr) - 1).astype(np.float64, copy=False)


def solve(
    graph: Graph,
    wanted: NDArray[np.int64],
    params: Params,
    features: Features,
    owners: NDArray[np.int32] | None,
    stored: Held,
) -> tuple[NDArray[np.int32], Columns | CodedColumns]:
    """The columns of the wanted elements, and of a few near ones, on `graph`, which is alpha S; and whose they are.

    `stored` are the columns from before, which tell where to look for the new ones, unless they hold images.
    """
    group = group_size(params)
    is_wanted = np.zeros(len(features), bool)
    is_wanted[wanted] = True
    if params.support == "graph":
        order, count = order_of_wanted(graph, group, is_wanted)
    else:
        order, count = np.concatenate([wanted, np.flatnonzero(~is_wanted)]).astype(np.uint32), len(wanted)
    number = inverse(order)
    graph = reordered(graph, order)

    def find(rows: Features, start: int, stop: int, k: int) -> Neighbors:
        """NN_k of the nodes start..stop, by their numbers in the new order."""
        found = nearest_to_elements(rows, order[start:stop], k)
        return Neighbors(number[found.ids].astype(np.int32), found.sims)

    def told(alpha_s: Graph, start: int, stop: int, group: int, truncation: int) -> Supports:
        """The supports of the nodes start..stop, by the columns from before."""
        return known(alpha_s, start, stop, group, truncation, _WHOLE, order, number, *map(kernel_view, stored))

    def solved(start: int, stop: int) -> Columns | CodedColumns:
        supports_of = told if owners is None else walked
        with one_thread():
            block = columns(graph, start, stop, params, features, owners, find, order, supports_of)
        return encode(block) if params.values == "uint8" else block

    step = -(-count // (_BLOCKS * cores() * group)) * group
    return order[:count].astype(np.int32), joined(in_blocks(solved, count, step))


def concerned(stored: Held, nodes: NDArray[np.int64], reach: int, known: NDArray[np.integer]) -> NDArray[np.int64]:
    """The columns that hold an entry of one of these nodes, and `known` ones; columns hold ids below `reach`."""
    marked, is_known = np.zeros(reach, np.uint8), np.zeros(len(stored.starts), bool)
    marked[nodes[nodes < reach]] = 1
    is_known[known] = True
    asked = np.flatnonzero(~is_known)
    met = np.empty(len(asked), np.uint8)

    def some(start: int, stop: int) -> None:
        meet_marked(*map(kernel_view, picked(stored, asked[start:stop])), marked, met[start:stop])

    on_every_core(some, len(asked))
    is_known[asked] = met
    return np.flatnonzero(is_known)


# Columns that are extended at a time.
_BLOCK = 1024


class _More(NamedTuple):
    """Entries for some columns: those of wanted[i] are ids[indptr[i]:indptr[i + 1]], ascending, with their values."""

    wanted: NDArray[np.int32]
    indptr: NDArray[np.int64]
    ids: NDArray[np.uint32]
    values: NDArray[np.float32]

    def of(self, places: NDArray[np.integer]) -> "_More":
        """Those of some columns."""
        indptr, entries = places_of(self.indptr[:-1], self.indptr[1:], places)
        return _More(self.wanted[places], indptr, self.ids[entries], self.values[entries])


def extended(
    stored: Held, found: Entries, of: NDArray[np.integer], params: Params, is_stale: NDArray[np.bool_]
) -> tuple[NDArray[np.int32], list[Columns | CodedColumns]]:
    """Stale columns with entries for the new elements, in blocks, and whose they are.

    `found` are the columns of the new elements `of`.
    """
    new = np.repeat(of, np.diff(found.indptr))
    old = found.rows < len(is_stale)
    old[old] = is_stale[found.rows[old]]
    order = np.lexsort((new[old], found.rows[old]))
    rows = found.rows[old][order]
    wanted, first = np.unique(rows, return_index=True)
    more = _More(
        wanted,
        np.append(first, len(rows)).astype(np.int64),
        new[old][order].astype(np.uint32),
        found.values[old][order].astype(np.float32),
    )

    def some(start: int, stop: int) -> tuple[NDArray[np.int32], Columns | CodedColumns]:
        part = more.of(np.arange(start, stop))
        if params.values != "uint8":
            return part.wanted, _with_more(stored, part, params, len(is_stale))
        appended, block, again = _with_more_codes(stored, part, params, len(is_stale))
        rest = encode(_with_more(stored, part.of(again), params, len(is_stale)))
        return np.concatenate([appended, part.wanted[again]]), joined([block, rest])

    parts = in_blocks(some, len(wanted), _BLOCK)
    return np.concatenate([of for of, _ in parts]), [block for _, block in parts]


def _with_more(stored: Held, more: _More, params: Params, reach: int) -> Columns:
    """Columns with more entries, the largest of both."""
    count, width = len(more.wanted), min(params.keep, params.truncation)
    ids, numbers = np.empty((count, width), np.uint32), np.empty((count, width), np.float32)
    lengths = np.empty(count, np.int64)
    extend_columns(
        *map(kernel_view, picked(stored, more.wanted)), reach, *more[1:], least_stored(params), ids, numbers, lengths
    )
    if (lengths < 0).any():
        raise IndexBroken(DAMAGED_COLUMN)
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    entries = packed(numbers, lengths).astype(plain_type(params), copy=False)
    return Columns(indptr, packed(ids, lengths).view(np.int32), entries, np.zeros(count))


def _with_more_codes(
    stored: Held, more: _More, params: Params, reach: int
) -> tuple[NDArray[np.int32], CodedColumns, NDArray[np.int64]]:
    """Coded columns to which entries could be appended, and whose they are; and the places of those to code anew."""
    columns, count = picked(stored, more.wanted), len(more.wanted)
    if not ((columns.starts >= 0) & (columns.starts <= columns.stops) & (columns.stops <= len(columns.entries))).all():
        raise IndexBroken(DAMAGED_COLUMN)
    room = int((columns.stops - columns.starts).sum()) + LONGEST * len(more.ids)
    codes, ends, states = np.empty(room, np.uint8), np.empty(count, np.int64), np.empty(count, np.int64)
    append_to_codes(*columns, reach, min(params.keep, params.truncation), *more[1:], codes, ends, states)
    if (states == DAMAGED).any():
        raise IndexBroken(DAMAGED_COLUMN)
    done = states == APPENDED
    indptr = np.concatenate([[0], ends[done]])
    nothing = np.zeros(len(indptr) - 1)
    block = CodedColumns(indptr, codes[: indptr[-1]].copy(), columns.values[done], nothing.astype(np.int64), nothing)
    return more.wanted[done], block, np.flatnonzero(states == TO_CODE_ANEW)
