"""The tasks of a build up to its graph: functions of file paths, which threads, processes or a cluster can run.

Those of columns are in `column_blocks`. A working directory holds everything that tasks read and write:

    plan.json             parameters and fingerprints of the build
    index/                the future index; features.npy is there before the first task
    search/KIND.faiss     an approximate index of the features, for the stages that search by it
    search/cells-*.npy    the cells of the features, where the graph is searched by them
    pairs/A-B.npy         keys of the nearest in shard B of the rows of shard A (see `shards`)
    neighbors/START.npz   ids and sims of a block of rows
    lists/*.npy           the same of all rows, by element
    edges/START.npz       the affinity A of a block of rows, and their sums
    graph/*.npy           alpha S, the order of its nodes, and summary.json
    drafts/START.npz      columns of a block of nodes, in that order, to be solved again on the supports that they tell
    draft/*.npy           the same of all nodes
    columns/START.npz     columns of a block of nodes, in that order

Each file appears whole or not at all, so a file that exists is a task that is done.
"""

import functools
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffuse.core import ann
from suffuse.core.ann import HnswGraph, build_hnsw, nearest_by_hnsw
from suffuse.core.blas import load_faiss, one_thread
from suffuse.core.cells import Cells, make_cells, nearest_in_cells
from suffuse.core.columns import group_size
from suffuse.core.graph import Graph, affinity, degrees_of, inverse, order_along, renumbered, summarize, transition
from suffuse.core.kernels.solve import LANES
from suffuse.core.neighbors import Features, Find, Neighbors, between, merged, nearest_to_rows, shard_starts, within
from suffuse.core.params import GraphSearch, Params
from suffuse.store.files import map_array, write_array, write_blocks, write_bytes, write_json, write_side_by_side
from suffuse.store.manifest import ARRAY_TYPES, GRAPH_FILES

_LIST_TYPES = {"ids": np.int32, "sims": np.float32}
_GRAPH_TYPES = dict(zip(Graph._fields, (np.uint64, np.uint32, np.float64), strict=True))


def block_starts(n: int) -> Sequence[int]:
    """Where the blocks of n rows start; depends on n only, so that a resumed build finds its blocks."""
    return range(0, n, block_rows(n))


def block_rows(n: int) -> int:
    """Rows of a block: small enough to resume often and to keep all cores busy, large enough for BLAS."""
    return min(max(n // 32, 128), 2048) // LANES * LANES  # whole groups of columns


def block_path(work: Path, stage: str, start: int) -> Path:
    """The file of the block that begins at row `start`."""
    return work / stage / f"{start:010d}.npz"


def plan_difference(path: Path, plan: dict[str, Any]) -> str:
    """Which parts of a plan differ from the plan in a file, in words; empty if none."""
    try:
        old = json.loads(path.read_bytes())
    except ValueError:
        old = None
    if not isinstance(old, dict) or not isinstance(old.get("params"), dict):
        return "content"
    parts = [key for key in plan if key != "params" and old.get(key) != plan[key]]
    before, after = old["params"], plan["params"]
    parts += [f"{key} ({before.get(key)}, now {after[key]})" for key in after if before.get(key) != after[key]]
    return ", ".join(parts)


def search_results(work: Path, params: Params) -> dict[Path, GraphSearch]:
    """The approximate indexes that a build needs, by file; stages that search by the same kind share one."""
    used: set[GraphSearch] = set() if _is_linked(params) else {params.graph_search}
    if params.support == "features":
        used.add(params.support_search)
    return {_search_path(work, search): search for search in sorted(used - {"exact"})}


def _is_linked(params: Params) -> bool:
    """Whether the graph is searched along the links that the index has for its seeds."""
    return params.graph_search == params.seed_search == "hnsw"


def _search_path(work: Path, search: GraphSearch) -> Path:
    # The last file of the cells stands for all of them.
    return work / "search" / (f"cells-{Cells._fields[-1]}.npy" if search == "cells" else f"{search}.faiss")


def seeds_results(work: Path, params: Params) -> dict[Path, None]:
    """The last file of the links for seeds, where the index has any."""
    return {work / "index" / f"hnsw_{HnswGraph._fields[-1]}.npy": None} if params.seed_search == "hnsw" else {}


def search_task(work: str, search: GraphSearch) -> None:
    """The approximate index of all rows; one thread, so that the same rows give the same index."""
    directory = Path(work)
    features = map_array(directory / "index" / "features.npy").array
    with one_thread():
        if search == "cells":
            for name, array in make_cells(features, params_in(directory).probes)._asdict().items():
                write_array(directory / "search" / f"cells-{name}.npy", array)
        else:
            write_bytes(_search_path(directory, search), [ann.train_index(features, search)])


def _cells(directory: Path) -> Cells:
    return Cells(*(map_array(directory / "search" / f"cells-{name}.npy").array for name in Cells._fields))


def seeds_task(work: str, _: None) -> None:
    """The links by which a search finds its seeds, straight into the index; on all threads of this process."""
    index = Path(work) / "index"
    graph = build_hnsw(map_array(index / "features.npy").array, threads=load_faiss().omp_get_max_threads())
    for name, array in graph._asdict().items():
        write_array(index / f"hnsw_{name}.npy", array)


def search_in(directory: Path, search: GraphSearch, params: Params) -> Find:
    """How the neighbours of rows are found."""
    if search == "exact":
        return nearest_to_rows
    index = ann.read_index(str(_search_path(directory, search)), search, params)
    return functools.partial(ann.nearest_by_faiss, index)


def pair_path(work: Path, a: int, b: int) -> Path:
    """The file of the nearest in the shard that starts at b, for the rows of the shard that starts at a."""
    return work / "pairs" / f"{a:010d}-{b:010d}.npy"


def pairs_of_shards(work: Path, n: int) -> tuple[dict[Path, tuple[int, int]], dict[Path, tuple[int, int]]]:
    """The pairs of shards by the last file of each: every shard with itself, and then with every later one."""
    starts = shard_starts(n, block_rows(n))
    alone = {pair_path(work, a, a): (a, a) for a in starts}
    return alone, {pair_path(work, b, a): (a, b) for a, b in itertools.combinations(starts, 2)}


def pair_task(work: str, pair: tuple[int, int]) -> None:
    """Which elements of two shards are near to each other; of one with itself, if `pair` names it twice."""
    directory, k = Path(work), params_in(Path(work)).k
    features = map_array(directory / "index" / "features.npy").array
    starts, n = shard_starts(len(features), block_rows(len(features))), len(features)
    a, b = (range(start, min(start + starts.step, n)) for start in pair)
    with one_thread():
        if a == b:
            write_array(pair_path(directory, a.start, a.start), within(features, a.start, a.stop, k))
            return
        own = (map_array(pair_path(directory, shard.start, shard.start)).array for shard in (a, b))
        near_a, near_b = between(features, a, b, *own)
    write_array(pair_path(directory, a.start, b.start), near_a)
    write_array(pair_path(directory, b.start, a.start), near_b)


def _nearest_by_pairs(directory: Path, features: Features, start: int, stop: int, k: int) -> Neighbors:
    starts = shard_starts(len(features), block_rows(len(features)))
    own = start - start % starts.step
    lists = [map_array(pair_path(directory, own, other)).array[start - own : stop - own] for other in starts]
    return merged(features, start, stop, lists, k)


def neighbors_task(work: str, start: int, stop: int) -> None:
    """k-NN of the rows start..stop against all; where the graph is searched by cells, of those positions (`Cells`)."""
    directory, params = Path(work), params_in(Path(work))
    features = map_array(directory / "index" / "features.npy").array
    with one_thread():
        if params.graph_search == "exact":
            found = _nearest_by_pairs(directory, features, start, stop, params.k)
        elif params.graph_search == "cells":
            found = nearest_in_cells(features, _cells(directory), start, stop, min(params.k, len(features)))
        elif _is_linked(params):
            links = HnswGraph(
                *(map_array(directory / "index" / f"hnsw_{name}.npy").array for name in HnswGraph._fields)
            )
            own = np.arange(start, stop, dtype=np.uint32)
            found = nearest_by_hnsw(features[start:stop], features, links, params.k, params.ef, own_ids=own)
        else:
            found = search_in(directory, params.graph_search, params)(features, start, stop, params.k)
    write_npz(block_path(directory, "neighbors", start), ids=found.ids, sims=found.sims)


def lists_task(work: str, n: int) -> None:
    """The k-NN lists of all blocks in two files by element, which the next stages map."""
    directory, params = Path(work), params_in(Path(work))
    shape = (n, min(params.k, n))

    def parts(name: str) -> Iterator[NDArray[Any]]:
        # One file open at a time: a large build has more blocks than a process may have open files.
        return (np.load(block_path(directory, "neighbors", start))[name] for start in block_starts(n))

    for name, dtype in _LIST_TYPES.items():
        path = directory / "lists" / f"{name}.npy"
        if params.graph_search != "cells":
            write_blocks(path, dtype, shape, parts(name))
            continue
        by_position, place = path.with_name("positions.npy"), inverse(_cells(directory).order.view(np.uint32))
        write_blocks(by_position, dtype, shape, parts(name))
        lists = map_array(by_position).array
        blocks = (place[start : start + block_rows(n)] for start in block_starts(n))
        write_blocks(path, dtype, shape, (lists[positions] for positions in blocks))


def _lists(directory: Path) -> Neighbors:
    return Neighbors(*(map_array(directory / "lists" / f"{name}.npy").array for name in _LIST_TYPES))


def edges_task(work: str, start: int, stop: int) -> None:
    """The rows start..stop of the affinity A, with their sums: the degrees of these nodes."""
    directory, params = Path(work), params_in(Path(work))
    a = affinity(_lists(directory), params.gamma, range(start, stop))
    write_npz(block_path(directory, "edges", start), **a._asdict(), degrees=degrees_of(a))


def graph_task(work: str, n: int) -> None:
    """alpha S from all edges, its nodes numbered along the graph if walks are to follow it.

    Rows come and go in blocks; what is held is a few numbers per node, and files that are mapped.
    """
    directory, params = Path(work), params_in(Path(work))
    counts, degrees = (np.concatenate(parts) for parts in zip(*_counts_and_degrees(directory, n), strict=True))

    def rows_of_s() -> Iterator[Graph]:
        for start in block_starts(n):
            with np.load(block_path(directory, "edges", start)) as a:
                yield transition(Graph(*(a[name] for name in Graph._fields)), start, degrees)

    if params.with_graph:
        _write_graph({directory / "index" / file: ARRAY_TYPES[file][0] for file in GRAPH_FILES}, counts, rows_of_s())
    files = {directory / "graph" / f"{name}.npy": dtype for name, dtype in _GRAPH_TYPES.items()}
    order = np.arange(n, dtype=np.uint32)
    _write_graph(files, counts, (s._replace(weights=params.alpha * s.weights) for s in rows_of_s()))
    alpha_s = alpha_s_in(directory)
    summary = summarize(alpha_s)
    if params.support == "graph":
        order = order_along(alpha_s, group_size(params))
        number = inverse(order)
        blocks = (order[start : start + block_rows(n)] for start in block_starts(n))
        rows = (renumbered(alpha_s, nodes, number) for nodes in blocks)
        _write_graph(files, counts[order], rows)
    write_array(directory / "graph" / "order.npy", order)
    write_json(directory / "graph" / "summary.json", {**summary._asdict(), "most_listed": _most_listed(directory, n)})


def _counts_and_degrees(directory: Path, n: int) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.float64]]]:
    for start in block_starts(n):
        with np.load(block_path(directory, "edges", start)) as a:
            yield np.diff(a["indptr"]), a["degrees"]


def _write_graph(files: dict[Path, Any], counts: NDArray[np.uint64], blocks: Iterable[Graph]) -> None:
    """A graph from blocks of its rows, into files of those types; `counts` are the entries of each row."""
    indptr = np.concatenate([np.zeros(1, np.uint64), np.cumsum(counts)])
    (path, dtype), *entries = files.items()
    write_array(path, indptr.astype(dtype))
    shape = (int(indptr[-1]),)
    write_side_by_side(
        {path: (dtype, shape) for path, dtype in entries}, ((block.indices, block.weights) for block in blocks)
    )


def alpha_s_in(directory: Path) -> Graph:
    """alpha S, of the nodes in their order."""
    return Graph(*(map_array(directory / "graph" / f"{name}.npy").array for name in Graph._fields))


def _most_listed(directory: Path, n: int) -> int:
    """How many list the element that most do. Hubs are near to everything; mutual edges hide them, lists show them."""
    ids, times = _lists(directory).ids, np.zeros(n, np.int64)
    for start in block_starts(n):
        block = ids[start : start + block_rows(n)]
        others, counts = np.unique(block[:, 1:][block[:, 1:] != block[:, :1]], return_counts=True)
        times[others] += counts
    return 1 + int(times.max())  # each element lists itself, once


def order_in(directory: Path) -> NDArray[np.uint32]:
    """Which element each node is."""
    return map_array(directory / "graph" / "order.npy").array


def params_in(directory: Path) -> Params:
    """What is built."""
    return Params.from_dict(json.loads((directory / "plan.json").read_bytes())["params"])


def write_npz(path: Path, **arrays: NDArray[Any]) -> None:
    """Write what a task found, whole."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_bytes(path, [buffer.getvalue()])
