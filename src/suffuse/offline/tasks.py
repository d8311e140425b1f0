"""The tasks of a build: functions of file paths, which threads, processes or a cluster can run.

A working directory holds everything that tasks read and write:

    plan.json             parameters and fingerprints of the build
    index/                the future index; features.npy is there before the first task
    search/               ivfadc.faiss, or the links of HNSW, for the stages that search by them
    pairs/A-B.npy         keys of the nearest in shard B of the rows of shard A (`neighbors.search_pair`)
    neighbors/START.npz   ids and sims of a block of rows
    lists/*.npy           the same of all rows, by element
    edges/START.npz       the affinity A of a block of rows, and their sums
    graph/*.npy           alpha S, the order of its nodes, their degrees, and summary.json
    districts/home.npy    the district of each element; columns of districts go straight into the index
    drafts/START.npz      first solutions of the columns of a block of nodes, in that order
    supports/*.npy        the same of all nodes: columns are solved again on the supports that they show
    columns/START.npz     columns of a block of nodes, in that order

Each file appears whole or not at all, so a file that exists is a task that is done.
"""

import functools
import io
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from suffuse.core import ann, columns, districts, neighbors
from suffuse.core.ann import HnswGraph
from suffuse.core.blas import load_faiss, one_thread
from suffuse.core.columns import Columns, FindSupports, Solved, gather_spans, group_size
from suffuse.core.graph import (
    Graph,
    balance,
    degrees_of,
    inverse,
    number_rows,
    order_along,
    summarize,
    sums_of_balanced,
    transition,
    weigh_edges,
)
from suffuse.core.kernels.solve import LANES
from suffuse.core.neighbors import Features, Find, Neighbors, known_ranks, nearest_to_rows, shard_starts, take_marks
from suffuse.core.params import Params
from suffuse.store.files import map_array, write_array, write_blocks, write_bytes, write_json, write_side_by_side
from suffuse.store.manifest import (
    ARRAY_TYPES,
    DISTRICT_FILES,
    GRAPH_FILES,
    IMAGE_FILES,
    MARKS_FILE,
    MEMBER_FILES,
    column_files,
)

# The stages of a build in their order; "index" joins the parts. Some are left out: "seeds" unless the index holds links
# for its seeds, "search" where no stage searches approximately, "pairs" where the graph's neighbours are not searched
# exactly, "districts" in an index of regions or with the graph of the paper, "drafts" and "supports" where columns do
# not share supports. A stage has the directory of its name.
STAGES = (
    "features", "seeds", "search", "pairs", "neighbors", "lists", "edges", "graph", "districts", "drafts", "supports",
    "columns", "index",
)  # fmt: skip

_LIST_TYPES = {"ids": np.int32, "sims": np.float32}
_GRAPH_TYPES = dict(zip(Graph._fields, (np.uint64, np.uint32, np.float64), strict=True))
Approximate = Literal["ivfadc", "hnsw"]


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


def _read_blocks(work: Path, stage: str, name: str, n: int) -> Iterator[NDArray[Any]]:
    """One array of each block; one file open at a time, since a build may have more blocks than open files."""
    return (np.load(block_path(work, stage, start))[name] for start in block_starts(n))


def _write_npz(path: Path, **arrays: NDArray[Any]) -> None:
    """Write what a task found, whole."""
    buffer = io.BytesIO()
    np.savez(buffer, allow_pickle=False, **arrays)
    write_bytes(path, [buffer.getvalue()])


def _read_params(work: Path) -> Params:
    return Params.from_dict(json.loads((work / "plan.json").read_bytes())["params"])


def _map_features(work: Path) -> Features:
    return map_array(work / "index" / "features.npy").array


# --- approximate search


def seeds_results(work: Path, params: Params) -> dict[Path, None]:
    """The last file of the links for seeds, where the index has any."""
    return {_links_path(work / "index", HnswGraph._fields[-1]): None} if params.seed_search == "hnsw" else {}


def search_results(work: Path, params: Params, *, lists_given: bool) -> dict[Path, Approximate]:
    """What is needed to search approximately while building, by its last file; stages share it."""
    used = set() if lists_given else {params.graph_search}
    if params.support == "features":
        used.add(params.support_search)
    results: dict[Path, Approximate] = {}
    if "ivfadc" in used:
        results[work / "search" / "ivfadc.faiss"] = "ivfadc"
    if "hnsw" in used and params.seed_search != "hnsw":  # else the links for seeds serve
        results[_links_path(work / "search", HnswGraph._fields[-1])] = "hnsw"
    return results


def _links_path(directory: Path, name: str) -> Path:
    return directory / f"hnsw_{name}.npy"


def seeds_task(work: str, _: None) -> None:
    """The links by which a search finds its seeds, straight into the index; on all threads of this process."""
    _write_links(Path(work), "index", threads=load_faiss().omp_get_max_threads())


def search_task(work: str, search: Approximate) -> None:
    """The approximate index of all rows, for the build alone."""
    if search == "hnsw":
        _write_links(Path(work), "search", threads=1)
    else:
        write_bytes(Path(work) / "search" / "ivfadc.faiss", [ann.train_ivfadc(_map_features(Path(work)))])


def _write_links(work: Path, directory: str, threads: int) -> None:
    graph = ann.build_hnsw(_map_features(work), threads=threads)
    for name, array in graph._asdict().items():
        write_array(_links_path(work / directory, name), array)


def _search_in(work: Path, search: str, params: Params) -> Find:
    """How the neighbours of rows are found."""
    if search == "exact":
        return nearest_to_rows
    if search == "ivfadc":
        trained = ann.read_ivfadc(str(work / "search" / "ivfadc.faiss"), params.probes)
        return functools.partial(ann.nearest_by_ivfadc, trained)
    directory = work / ("index" if params.seed_search == "hnsw" else "search")
    links = HnswGraph(*(map_array(_links_path(directory, name)).array for name in HnswGraph._fields))
    return functools.partial(ann.nearest_along_links, links, params.ef)


# --- neighbours


def _pair_path(work: Path, a: int, b: int) -> Path:
    """The file of the nearest in the shard that starts at b, for the rows of the shard that starts at a."""
    return work / "pairs" / f"{a:010d}-{b:010d}.npy"


def pairs_of_shards(work: Path, n: int) -> tuple[dict[Path, tuple[int, int]], dict[Path, tuple[int, int]]]:
    """The pairs of shards by the last file of each: every shard with itself, and then with every later one."""
    starts = shard_starts(n, block_rows(n))
    alone = {_pair_path(work, a, a): (a, a) for a in starts}
    return alone, {_pair_path(work, b, a): (a, b) for a, b in itertools.combinations(starts, 2)}


def pair_task(work: str, pair: tuple[int, int]) -> None:
    """Which elements of two shards are near to each other; of one with itself, if `pair` names it twice."""
    directory = Path(work)
    features, k = _map_features(directory), _read_params(directory).k
    starts, n = shard_starts(len(features), block_rows(len(features))), len(features)
    a, b = (range(start, min(start + starts.step, n)) for start in pair)
    with one_thread():
        if a == b:
            write_array(_pair_path(directory, a.start, a.start), neighbors.search_shard(features, a.start, a.stop, k))
            return
        own = (map_array(_pair_path(directory, shard.start, shard.start)).array for shard in (a, b))
        near_a, near_b = neighbors.search_pair(features, a, b, *own)
    write_array(_pair_path(directory, a.start, b.start), near_a)
    write_array(_pair_path(directory, b.start, a.start), near_b)


def neighbors_task(work: str, start: int, stop: int) -> None:
    """k-NN of the rows start..stop against all."""
    directory = Path(work)
    features, params = _map_features(directory), _read_params(directory)
    with one_thread():
        if params.graph_search == "exact":
            starts = shard_starts(len(features), block_rows(len(features)))
            own = start - start % starts.step
            lists = [map_array(_pair_path(directory, own, other)).array[start - own : stop - own] for other in starts]
            found = neighbors.merge_shards(features, start, stop, lists, params.k)
        else:
            found = _search_in(directory, params.graph_search, params)(features, start, stop, params.k)
    _write_npz(block_path(directory, "neighbors", start), ids=found.ids, sims=found.sims)


def lists_task(work: str, n: int) -> None:
    """The k-NN lists of all blocks in two files, which the next stages map."""
    directory = Path(work)
    shape = (n, min(_read_params(directory).k, n))
    for name, dtype in _LIST_TYPES.items():
        parts = _read_blocks(directory, "neighbors", name, n)
        write_blocks(directory / "lists" / f"{name}.npy", dtype, shape, parts)


def _map_lists(work: Path) -> Neighbors:
    return Neighbors(*(map_array(work / "lists" / f"{name}.npy").array for name in _LIST_TYPES))


# --- the graph


def edges_task(work: str, start: int, stop: int) -> None:
    """The rows start..stop of the affinity A, with their sums: the degrees of these nodes."""
    directory = Path(work)
    a = weigh_edges(_map_lists(directory), _read_params(directory), range(start, stop))
    _write_npz(block_path(directory, "edges", start), **a._asdict(), degrees=degrees_of(a))


def graph_task(work: str, n: int) -> None:
    """alpha S from all edges, its nodes numbered along the graph if walks are to follow it.

    Rows come and go in blocks; what is held is a few numbers per node, and files that are mapped.
    """
    directory, params = Path(work), _read_params(Path(work))
    counts = np.concatenate([np.diff(indptr) for indptr in _read_blocks(directory, "edges", "indptr", n)])
    degrees = np.concatenate(list(_read_blocks(directory, "edges", "degrees", n)))

    def rows_of_a() -> Iterator[tuple[int, Graph]]:
        for start in block_starts(n):
            with np.load(block_path(directory, "edges", start)) as a:
                yield start, Graph(*(a[name] for name in Graph._fields))

    sums = degrees
    if params.graph == "local":
        degrees = np.concatenate([balance(a, start, degrees) for start, a in rows_of_a()])
        sums = sums_of_balanced(sums, degrees)
        _write_marks(directory, params.k, n)

    def rows_of_s() -> Iterator[Graph]:
        return (transition(a, start, degrees) for start, a in rows_of_a())

    if params.with_graph:
        _write_graph({directory / "index" / file: ARRAY_TYPES[file][0] for file in GRAPH_FILES}, counts, rows_of_s())
    files = {directory / "graph" / f"{name}.npy": dtype for name, dtype in _GRAPH_TYPES.items()}
    order = np.arange(n, dtype=np.uint32)
    _write_graph(files, counts, (s._replace(weights=params.alpha * s.weights) for s in rows_of_s()))
    alpha_s = _map_alpha_s(directory)
    summary = summarize(alpha_s)
    if params.support == "graph":
        order = order_along(alpha_s, group_size(params))
        number = inverse(order)
        blocks = (order[start : start + block_rows(n)] for start in block_starts(n))
        _write_graph(files, counts[order], (number_rows(alpha_s, nodes, number) for nodes in blocks))
    write_array(directory / "graph" / "order.npy", order)
    write_array(directory / "graph" / "degrees.npy", sums[order])
    write_json(directory / "graph" / "summary.json", {**summary._asdict(), "most_listed": _most_listed(directory, n)})


def _write_marks(work: Path, k: int, n: int) -> None:
    """How near the list of each element is at the known ranks."""
    lists, rows = _map_lists(work), block_rows(n)
    blocks = (range(start, min(start + rows, n)) for start in block_starts(n))
    marks = (
        take_marks(Neighbors(lists.ids[b.start : b.stop], lists.sims[b.start : b.stop]), k, np.array(b)) for b in blocks
    )
    write_blocks(work / "index" / MARKS_FILE, np.float16, (n, len(known_ranks(k))), marks)


def _write_graph(files: dict[Path, Any], counts: NDArray[np.uint64], blocks: Iterable[Graph]) -> None:
    """A graph from blocks of its rows, into files of those types; `counts` are the entries of each row."""
    indptr = np.concatenate([np.zeros(1, np.uint64), np.cumsum(counts)])
    (path, dtype), *entries = files.items()
    write_array(path, indptr.astype(dtype))
    shaped = {path: (dtype, (int(indptr[-1]),)) for path, dtype in entries}
    write_side_by_side(shaped, ((block.indices, block.weights) for block in blocks))


def _map_alpha_s(work: Path) -> Graph:
    return Graph(*(map_array(work / "graph" / f"{name}.npy").array for name in Graph._fields))


def _most_listed(work: Path, n: int) -> int:
    """How many list the element that most do. Hubs are near to everything; mutual edges hide them, lists show them."""
    ids, times = _map_lists(work).ids, np.zeros(n, np.int64)
    for start in block_starts(n):
        block = ids[start : start + block_rows(n)]
        others, counts = np.unique(block[:, 1:][block[:, 1:] != block[:, :1]], return_counts=True)
        times[others] += counts
    return 1 + int(times.max())  # each element lists itself, once


# --- districts


def has_districts(work: Path) -> bool:
    """Whether the index gets districts: where the graph is ours, and elements are images."""
    return _read_params(work).graph == "local" and not (work / "index" / "owners.npy").exists()


def districts_path(work: Path) -> Path:
    """The last file of the districts."""
    return work / "districts" / "home.npy"


def districts_task(work: str, _: int) -> None:
    """The districts, their columns, and the district of each element."""
    directory, params = Path(work), _read_params(Path(work))
    alpha_s, degrees = _map_alpha_s(directory), map_array(directory / "graph" / "degrees.npy").array
    with one_thread():
        groups = districts.coarsen(alpha_s, degrees)
        coarse = districts.coarsen(groups.alpha_s, groups.degrees)
        solved = districts.solve_districts(coarse, params)
    for name, array in zip(DISTRICT_FILES, (solved.indptr, solved.entries, solved.values), strict=True):
        write_array(directory / "index" / name, array)
    home = districts.find_homes(alpha_s, groups, coarse, _map_order(directory), _map_lists(directory).ids)
    write_array(districts_path(directory), home)


def place_in_districts(work: Path, n: int) -> None:
    """The districts of each element, by the finished columns."""
    index, params, home = work / "index", _read_params(work), map_array(districts_path(work)).array
    stored = Columns.of(*(map_array(index / name).array for name in ("indptr.npy", *column_files(params))))
    blocks = (np.arange(start, min(start + block_rows(n), n)) for start in block_starts(n))
    placed = (districts.place_columns(stored.heads(rows), home) for rows in blocks)
    files = {index / MEMBER_FILES[0]: (np.int32, (n, 2)), index / MEMBER_FILES[1]: (np.float16, (n,))}
    write_side_by_side(files, placed)


# --- columns


def has_drafts(params: Params) -> bool:
    """Whether columns are drafted first: where they share supports, which have to suit all of a group."""
    return group_size(params) > 1


def drafts_task(work: str, start: int, stop: int) -> None:
    """Drafts of the columns of the nodes start..stop, over nodes."""
    directory = Path(work)
    with one_thread():
        block = columns.draft_columns(_map_alpha_s(directory), start, stop, _read_params(directory)).encode()
    _write_columns(block_path(directory, "drafts", start), block)


def _write_columns(path: Path, block: Solved) -> None:
    (_, _, entries, values), lengths, residuals = block
    indptr = block.columns.indptr
    _write_npz(path, indptr=indptr, entries=entries, values=values, lengths=lengths, residuals=residuals)


def supports_task(work: str, n: int) -> None:
    """The drafts of all nodes, in files that can be mapped."""
    parts, directory = functools.partial(_read_blocks, Path(work), "drafts", n=n), Path(work) / "supports"
    indptr = _join_indptr(parts("indptr"))
    write_array(directory / "indptr.npy", indptr)
    write_array(directory / "scales.npy", np.concatenate(list(parts("values"))))
    write_blocks(supports_path(Path(work)), np.uint8, (int(indptr[-1]),), parts("entries"))


def supports_path(work: Path) -> Path:
    """The last file of the drafts of all nodes."""
    return work / "supports" / "codes.npy"


def _join_indptr(blocks: Iterable[NDArray[np.int64]]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(np.concatenate([np.diff(block) for block in blocks]))])


def _supports_by_drafts(work: Path) -> FindSupports:
    draft = Columns.of(*(map_array(work / "supports" / f"{name}.npy").array for name in ("indptr", "codes", "scales")))
    itself = np.arange(len(draft.starts), dtype=np.uint32)
    return functools.partial(columns.find_known, len(itself), itself, itself, draft)


def columns_task(work: str, start: int, stop: int) -> None:
    """Columns of the nodes start..stop, in the order of the graph."""
    directory = Path(work)
    features, params, order = _map_features(directory), _read_params(directory), _map_order(directory)
    owners_path = directory / "index" / "owners.npy"
    owners = map_array(owners_path).array if params.pool == "sum" and owners_path.exists() else None
    find = _search_in(directory, params.support_search, params) if params.support == "features" else nearest_to_rows
    supports_of = _supports_by_drafts(directory) if has_drafts(params) else None
    with one_thread():
        block = columns.solve_columns(
            _map_alpha_s(directory), start, stop, params, features, owners, find, order, supports_of
        )
    _write_columns(block_path(directory, "columns", start), block.encode() if params.values == "uint8" else block)


def _map_order(work: Path) -> NDArray[np.uint32]:
    """Which element each node is."""
    return map_array(work / "graph" / "order.npy").array


def join_columns(work: Path, n: int) -> ColumnCounts:
    """Write the columns of all blocks into the index, by element, never all of them in memory."""
    index, params = work / "index", _read_params(work)
    parts = functools.partial(_read_blocks, work, "columns", n=n)
    node_of, found = inverse(_map_order(work)), _join_indptr(parts("indptr"))

    def by_element(part: str, name: str, dtype: DTypeLike) -> None:
        # First as the blocks have them, in a file that can be mapped; then element after element.
        by_node = work / "columns" / f"{name}.npy"
        write_blocks(by_node, dtype, (int(found[-1]),), parts(part))
        entries = map_array(by_node).array
        nodes = (node_of[start : start + block_rows(n)] for start in block_starts(n))
        ordered = (entries[gather_spans(found[:-1], found[1:], of)[1]] for of in nodes)
        write_blocks(index / f"{name}.npy", dtype, entries.shape, ordered)
        by_node.unlink()

    write_array(index / "indptr.npy", np.concatenate([[0], np.cumsum(np.diff(found)[node_of])]))
    entries = int(found[-1])
    if params.values == "uint8":
        entries = sum(int(lengths.sum()) for lengths in parts("lengths"))
        by_element("entries", "codes", np.uint8)
        write_array(index / "scales.npy", np.concatenate(list(parts("values")))[node_of])
    else:
        by_element("entries", "rows", np.int32)
        by_element("values", "values", params.values)
    return ColumnCounts(entries, sum(int((residuals > params.tolerance).sum()) for residuals in parts("residuals")))


def pool_images(work: Path, images: int) -> None:
    """The vectors of images that the second look compares with, from the finished columns of a regional index."""
    index, params = work / "index", _read_params(work)
    stored = (map_array(index / name).array for name in ("indptr.npy", *column_files(params)))
    owners, dtype = map_array(index / "owners.npy").array, columns.image_type(params)
    vectors = columns.image_vectors(Columns.of(*stored).decode, owners, images, params.keep, dtype)
    for name, array in zip(IMAGE_FILES, (vectors.indptr, vectors.entries, vectors.values), strict=True):
        write_array(index / name, array)
