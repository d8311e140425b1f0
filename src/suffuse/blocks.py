"""The tasks of a build: functions of file paths, so that threads, processes or a cluster can run them.

A working directory holds everything that tasks read and write:

    plan.json             parameters and fingerprints of the build
    index/                the future index; features.npy is there before the first task
    search/KIND.faiss     an approximate index of the features, for the stages that search by it
    search/cells-*.npy    the cells of the features, where the graph is searched by them
    pairs/A-B.npy         keys of the nearest in shard B of the rows of shard A (see `shards`)
    neighbors/START.npz   ids and sims of a block of rows
    lists/*.npy           the same of all rows, by element
    edges/START.npz       the affinity A of a block of rows, and their sums
    graph/*.npy           alpha S, the order of its nodes, and summary.json
    drafts/START.npz      rough columns of a block of nodes, in that order, which tell the supports of the real ones
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
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from suffuse import approximate
from suffuse.arrays import map_array, write_array, write_blocks, write_bytes, write_json, write_side_by_side
from suffuse.cells import Cells, make_cells, nearest_in_cells
from suffuse.codes import encode, held, plain
from suffuse.diffusion import (
    FindSupports,
    Supports,
    columns,
    draft_columns,
    group_size,
    image_type,
    image_vectors,
    known,
    places_of,
)
from suffuse.graph import Graph, affinity, degrees_of, inverse, order_along, renumbered, summarize, transition
from suffuse.hnsw import HnswGraph, build_hnsw, nearest_by_hnsw
from suffuse.kernels.lanes import LANES
from suffuse.manifest import ARRAY_TYPES, GRAPH_FILES, column_files
from suffuse.neighbors import Features, Find, Neighbors, load_faiss, nearest_to_rows, one_thread
from suffuse.params import GraphSearch, Params
from suffuse.shards import between, merged, shard_starts, within

_LIST_TYPES = {"ids": np.int32, "sims": np.float32}
_GRAPH_TYPES = dict(zip(Graph._fields, (np.uint64, np.uint32, np.float64), strict=True))


class ColumnCounts(NamedTuple):
    """What the manifest says about all columns together."""

    entries: int
    unconverged: int


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
            for name, array in make_cells(features, _params(directory).probes)._asdict().items():
                write_array(directory / "search" / f"cells-{name}.npy", array)
        else:
            approximate.write_index(_search_path(directory, search), features, search)


def _cells(directory: Path) -> Cells:
    return Cells(*(map_array(directory / "search" / f"cells-{name}.npy").array for name in Cells._fields))


def seeds_task(work: str, _: None) -> None:
    """The links by which a search finds its seeds, straight into the index; on all threads of this process."""
    index = Path(work) / "index"
    graph = build_hnsw(map_array(index / "features.npy").array, threads=load_faiss().omp_get_max_threads())
    for name, array in graph._asdict().items():
        write_array(index / f"hnsw_{name}.npy", array)


def _find(directory: Path, search: GraphSearch, params: Params) -> Find:
    if search == "exact":
        return nearest_to_rows
    index = approximate.read_index(_search_path(directory, search), search, params)
    return functools.partial(approximate.nearest_to_rows, index)


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
    directory, k = Path(work), _params(Path(work)).k
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
    directory, params = Path(work), _params(Path(work))
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
            found = _find(directory, params.graph_search, params)(features, start, stop, params.k)
    _write_npz(block_path(directory, "neighbors", start), ids=found.ids, sims=found.sims)


def lists_task(work: str, n: int) -> None:
    """The k-NN lists of all blocks in two files by element, which the next stages map."""
    directory, params = Path(work), _params(Path(work))
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
    directory, params = Path(work), _params(Path(work))
    a = affinity(_lists(directory), params.gamma, range(start, stop))
    _write_npz(block_path(directory, "edges", start), **a._asdict(), degrees=degrees_of(a))


def graph_task(work: str, n: int) -> None:
    """alpha S from all edges, its nodes numbered along the graph if walks are to follow it.

    Rows come and go in blocks; what is held is a few numbers per node, and files that are mapped.
    """
    directory, params = Path(work), _params(Path(work))
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
    alpha_s = _alpha_s(directory)
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


def _alpha_s(directory: Path) -> Graph:
    return Graph(*(map_array(directory / "graph" / f"{name}.npy").array for name in Graph._fields))


def _most_listed(directory: Path, n: int) -> int:
    """How many list the element that most do. Hubs are near to everything; mutual edges hide them, lists show them."""
    ids, times = _lists(directory).ids, np.zeros(n, np.int64)
    for start in block_starts(n):
        block = ids[start : start + block_rows(n)]
        others, counts = np.unique(block[:, 1:][block[:, 1:] != block[:, :1]], return_counts=True)
        times[others] += counts
    return 1 + int(times.max())  # each element lists itself, once


def has_drafts(params: Params) -> bool:
    """Whether columns are drafted first: where they share supports, which have to suit all of a group."""
    return group_size(params) > 1


def drafts_task(work: str, start: int, stop: int) -> None:
    """Drafts of the columns of the nodes start..stop, over nodes."""
    directory, params = Path(work), _params(Path(work))
    with one_thread():
        block = encode(draft_columns(_alpha_s(directory), start, stop, params))
    _write_npz(block_path(directory, "drafts", start), **block._asdict())


def draft_task(work: str, n: int) -> None:
    """The drafts of all nodes, in files that can be mapped."""
    directory = Path(work)

    def parts(name: str) -> Iterator[NDArray[Any]]:
        return (np.load(block_path(directory, "drafts", start))[name] for start in block_starts(n))

    indptr = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(block) for block in parts("indptr")]))])
    write_array(directory / "draft" / "indptr.npy", indptr)
    write_array(directory / "draft" / "scales.npy", np.concatenate(list(parts("scales"))))
    write_blocks(draft_path(directory), np.uint8, (int(indptr[-1]),), parts("codes"))


def draft_path(work: Path) -> Path:
    """The last file of all drafts."""
    return work / "draft" / "codes.npy"


def _drafted(directory: Path) -> FindSupports:
    """Who finds supports by the drafts."""
    draft = held(*(map_array(directory / "draft" / f"{name}.npy").array for name in ("indptr", "codes", "scales")))
    itself, every = np.arange(len(draft.starts), dtype=np.uint32), len(draft.starts)

    def find(alpha_s: Graph, start: int, stop: int, group: int, truncation: int) -> Supports:
        return known(alpha_s, start, stop, group, truncation, every, itself, itself, *draft)

    return find


def columns_task(work: str, start: int, stop: int) -> None:
    """Columns of the nodes start..stop, in the order of the graph."""
    directory, params = Path(work), _params(Path(work))
    alpha_s = _alpha_s(directory)
    features = map_array(directory / "index" / "features.npy").array
    owners_path = directory / "index" / "owners.npy"
    owners = map_array(owners_path).array if params.pool == "sum" and owners_path.exists() else None
    find = _find(directory, params.support_search, params) if params.support == "features" else nearest_to_rows
    supports_of = _drafted(directory) if has_drafts(params) else None
    with one_thread():
        block = columns(alpha_s, start, stop, params, features, owners, find, _order(directory), supports_of)
    stored = encode(block) if params.values == "uint8" else block
    _write_npz(block_path(directory, "columns", start), **stored._asdict())


def _order(directory: Path) -> NDArray[np.uint32]:
    return map_array(directory / "graph" / "order.npy").array


def join_columns(work: Path, n: int) -> ColumnCounts:
    """Write the columns of all blocks into the index, by element, never all of them in memory."""
    index, params, order = work / "index", _params(work), _order(work)

    def parts(name: str) -> Iterator[NDArray[Any]]:
        return (np.load(block_path(work, "columns", start))[name] for start in block_starts(n))

    def by_element(name: str, dtype: DTypeLike) -> None:
        # First as the blocks have them, in a file that can be mapped; then element after element.
        write_blocks(work / "columns" / f"{name}.npy", dtype, (int(found[-1]),), parts(name))
        joined = map_array(work / "columns" / f"{name}.npy").array
        ids = (place[start : start + block_rows(n)] for start in block_starts(n))
        write_blocks(
            index / f"{name}.npy", dtype, joined.shape, (joined[places_of(found[:-1], found[1:], of)[1]] for of in ids)
        )
        (work / "columns" / f"{name}.npy").unlink()

    place = inverse(order)
    found = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(block) for block in parts("indptr")]))])
    write_array(index / "indptr.npy", np.concatenate([[0], np.cumsum(np.diff(found)[place])]))
    entries = int(found[-1])
    if params.values == "uint8":
        entries = sum(int(lengths.sum()) for lengths in parts("lengths"))
        by_element("codes", np.uint8)
        write_array(index / "scales.npy", np.concatenate(list(parts("scales")))[place])
    else:
        by_element("rows", np.int32)
        by_element("values", params.values)
    return ColumnCounts(entries, sum(int((residuals > params.tolerance).sum()) for residuals in parts("residuals")))


def image_task(work: str, images: int) -> None:
    """The vectors of images that the second look compares with, from the finished columns of a regional index."""
    index, params = Path(work) / "index", _params(Path(work))
    stored = (map_array(index / name).array for name in ("indptr.npy", *column_files(params)))
    columns_of = functools.partial(plain, held(*stored))
    owners, dtype = map_array(index / "owners.npy").array, image_type(params)
    vectors = image_vectors(columns_of, owners, images, params.keep, dtype)
    for name, array in vectors._asdict().items():
        write_array(index / f"image_{name}.npy", array)


def _params(directory: Path) -> Params:
    return Params.from_dict(json.loads((directory / "plan.json").read_bytes())["params"])


def _write_npz(path: Path, **arrays: NDArray[Any]) -> None:
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_bytes(path, [buffer.getvalue()])
