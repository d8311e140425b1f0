"""What new elements change: the k-NN lists that they enter, the edges that follow, and the columns around them.

enter_lists    a list that gains an element loses its last one
touched_nodes  whose row of S is another one now
solve          the columns of some elements, on the graph as it is now
concerned      the columns that hold a touched node: what they were solved for has changed
"""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.codes import CodedColumns, Held, encode
from suffuse.diffusion import Columns, columns, group_size
from suffuse.graph import Graph, affinity, inverse, order_along, reordered, transition
from suffuse.kernels.meet import meet_marked
from suffuse.machine import cores
from suffuse.neighbors import (
    TILE,
    Features,
    Neighbors,
    nearest_of_shown,
    nearest_to_elements,
    nearest_to_rows,
    one_thread,
    product,
    ranked,
)
from suffuse.params import Params

# Pairs whose similarity is computed at a time.
_PAIRS = 1 << 14


class Grown(NamedTuple):
    """The lists of all elements after some were added."""

    lists: Neighbors  # (n, k)
    changed: NDArray[np.int64]  # the older elements whose lists they entered


def enter_lists(features: Features, before: Neighbors, hidden: NDArray[np.bool_]) -> Grown:
    """The k-NN lists of all `features` (n, d), where `before` are those of the first rows, and the rest is new.

    Exact, if those before are. Elements that are hidden enter no list. Short lists end as `Neighbors` says.
    """
    old, k, n = len(before.ids), before.ids.shape[1], len(features)
    lists = Neighbors(np.concatenate([before.ids, _alone(old, n, k)]), np.zeros((n, k), np.float32))
    lists.sims[:old] = before.sims
    find_own = nearest_of_shown(lambda count: nearest_to_rows(features, old, n, count), hidden, k)
    lists.ids[old:, : find_own.ids.shape[1]], lists.sims[old:, : find_own.ids.shape[1]] = find_own
    entered, newcomers, sims = _entering(features, before, hidden)
    changed = np.unique(entered)
    if not len(changed):
        return Grown(lists, changed)
    # Everything that could be in the changed lists, as long columns: the list it could be in, the element, the sim.
    known = before.ids[changed]
    real = known != changed[:, None]
    real[:, 0] = True  # an element stands first in its own list, and at its end where the list is short
    of = np.concatenate([np.repeat(changed, real.sum(axis=1)), entered])
    ids = np.concatenate([known[real], newcomers]).astype(np.int32)
    all_sims = np.concatenate([before.sims[changed][real], sims])
    order = np.lexsort((ids, -all_sims, ids != of, of))
    of, ids, all_sims = of[order], ids[order], all_sims[order]
    place = np.arange(len(of)) - np.searchsorted(of, of)
    kept = place < k
    lists.ids[changed], lists.sims[changed] = changed[:, None], 0
    lists.ids[of[kept], place[kept]], lists.sims[of[kept], place[kept]] = ids[kept], all_sims[kept]
    return Grown(lists, changed)


def _alone(start: int, stop: int, k: int) -> NDArray[np.int32]:
    """Lists of nothing but the element itself."""
    return np.repeat(np.arange(start, stop, dtype=np.int32)[:, None], k, axis=1)


def _entering(
    features: Features, before: Neighbors, hidden: NDArray[np.bool_]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float32]]:
    """Which new element is near enough for which list: the list, the element, and their similarity."""
    old, n = len(before.ids), len(features)
    floors = before.sims[:, -1].copy()
    floors[before.ids[:, -1] == np.arange(old)] = -np.inf  # a list with free places
    floors[hidden[:old]] = np.inf
    # As in `neighbors.chosen`: a product only proposes.
    floors -= np.float32(4 * np.sqrt(features.shape[1]) * np.finfo(np.float32).eps)
    lists: list[NDArray[np.int64]] = []
    newcomers: list[NDArray[np.int64]] = []
    for i in range(old, n, TILE):
        wide = max(TILE, TILE * TILE // min(TILE, n - i))
        for j in range(0, old, wide):
            sims = product(features[i : min(i + TILE, n)], features[j : min(j + wide, old)])
            new, listing = np.nonzero(sims >= floors[j : j + wide])
            lists.append(listing + j)
            newcomers.append(new + i)
    of, ids = np.concatenate(lists), np.concatenate(newcomers)
    sims = _similarities(features, of, ids)
    return of, ids, sims


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
    return s._replace(weights=params.alpha * s.weights)


def neighbors_in(graph: Graph, nodes: NDArray[np.integer]) -> NDArray[np.int64]:
    """The nodes themselves and all that have an edge with one of them, ascending."""
    starts, stops = graph.indptr[nodes].astype(np.int64), graph.indptr[nodes + 1].astype(np.int64)
    ends = np.cumsum(stops - starts)
    places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(stops - ends, stops - starts)
    return np.union1d(nodes, graph.indices[places]).astype(np.int64)


def touched_nodes(before: Neighbors, grown: Grown, graph: Graph) -> NDArray[np.int64]:
    """The nodes whose row of S is not what it was: an edge came or went, or a neighbour's degree changed with one."""
    old = len(before.ids)
    new = np.arange(old, len(grown.lists.ids))
    lost_of, place = np.nonzero(~_listed(before.ids[grown.changed], grown.lists.ids[grown.changed]))
    listing, lost = grown.changed[lost_of], before.ids[grown.changed][lost_of, place]
    mutual = (before.ids[lost] == listing[:, None]).any(axis=1)
    ends = np.concatenate([neighbors_in(graph, new), listing[mutual], lost[mutual]])
    return neighbors_in(graph, np.unique(ends))


def _listed(ids: NDArray[np.int32], lists: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Whether each of ids (c, k) is somewhere in the same row of lists (c, k)."""
    listed = np.zeros(ids.shape, bool)
    for column in lists.T:
        listed |= ids == column[:, None]
    return listed


def solve(
    graph: Graph, wanted: NDArray[np.int64], params: Params, features: Features, owners: NDArray[np.int32] | None
) -> tuple[NDArray[np.int32], Columns | CodedColumns]:
    """The columns of the wanted elements on `graph`, which is alpha S, on all cores; and in which order they are."""
    group = group_size(params)
    along = order_along(graph, group) if params.support == "graph" else np.arange(len(features), dtype=np.uint32)
    is_wanted = np.zeros(len(features), bool)
    is_wanted[wanted] = True
    # Along the graph, so that those that are solved together are near to each other.
    order = np.concatenate([along[is_wanted[along]], along[~is_wanted[along]]])
    number = inverse(order)
    graph = reordered(graph, order)

    def find(rows: Features, start: int, stop: int, k: int) -> Neighbors:
        """NN_k of the nodes start..stop, by their numbers in the new order."""
        found = nearest_to_elements(rows, order[start:stop], k)
        return Neighbors(number[found.ids].astype(np.int32), found.sims)

    def solved(start: int) -> Columns | CodedColumns:
        stop = min(start + step, len(wanted))
        with one_thread():
            block = columns(graph, start, stop, params, features, owners, find, order)
        return encode(block) if params.values == "uint8" else block

    threads = cores()
    step = -(-len(wanted) // (4 * threads * group)) * group
    with ThreadPoolExecutor(threads) as pool:
        blocks = list(pool.map(solved, range(0, len(wanted), step)))
    return order[: len(wanted)].astype(np.int32), _joined(blocks)


def _joined(blocks: list[Columns | CodedColumns]) -> Columns | CodedColumns:
    fields = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in blocks[0]._fields[1:]}
    lengths = np.concatenate([np.diff(block.indptr) for block in blocks])
    fields["indptr"] = np.concatenate([[0], np.cumsum(lengths)])
    return type(blocks[0])(**fields)


def concerned(stored: Held, nodes: NDArray[np.int64], reach: int) -> NDArray[np.bool_]:
    """Which columns hold an entry of one of these nodes; columns hold ids below `reach`."""
    marked, met = np.zeros(reach, np.uint8), np.empty(len(stored.starts), np.uint8)
    marked[nodes[nodes < reach]] = 1
    views = [array.view({"int32": "u4", "float16": "u2"}.get(array.dtype.name, array.dtype)) for array in stored]
    meet_marked(*views, marked, met)
    return met.astype(bool)
