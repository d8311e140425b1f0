"""How much memory a build takes, and how many threads fit into what there is.

Estimates of what a process holds at most in each stage, from the sizes of its arrays; docs/performance.md compares them
with measured peaks. Files that are mapped count as if they were held, although the system can take them back.
"""

from suffuse.core.neighbors import TILE, count_proposals, shard_starts
from suffuse.core.params import Params
from suffuse.errors import InvalidParams
from suffuse.offline.tasks import block_rows

GIGABYTE = 1e9

# Python with numpy, scipy, numba and faiss, and what their allocators keep.
_PROGRAM = 350e6
# Arrays of keys in a pair of shards: two lists of twice the length, and their sorted copies.
_COPIES_OF_KEYS = 8
# Bytes per node of what a thread walks and solves with (kernels.supports, kernels.solve, and positions).
_SCRATCH = 81
# Bytes per entry of the drafts of all columns, which are mapped.
_DRAFT = 2
# Bytes per possible edge of what is mapped at a time: the lists, or the graph that columns walk on.
_EDGE = 12
# Bytes per node of what numbers the nodes along the graph (kernels.graph), and degrees and counts.
_NODE = 120
# Bytes per element of the links of HNSW, while faiss makes them and as they are copied out, and of its tables.
_LINKS = 2 * 264 + 280


def needed(
    n: int, dimensions: int, params: Params, jobs: int, *, shard_rows: int, block_rows: int, given: float = 0.0
) -> float:
    """Bytes that a build of n elements holds at most, on so many threads; `given` are those of the features given."""
    features = 4.0 * n * dimensions
    pairs = jobs * (shard_rows * count_proposals(params.k, n) * 8.0 * _COPIES_OF_KEYS + 4.0 * TILE * TILE)
    lists = float(n) * min(params.k, n)
    wanted = max(params.keep, params.truncation if params.support == "features" else 0)
    graph = _EDGE * lists + _NODE * n + jobs * 36.0 * block_rows * min(params.k, n)
    drafts = _DRAFT * float(n) * min(params.keep, n) if params.support == "graph" else 0.0
    columns = _EDGE * lists + drafts + jobs * (_SCRATCH * n + 24.0 * block_rows * min(wanted, n))
    linked = "hnsw" in (params.seed_search, params.graph_search, params.support_search)
    links = features + _LINKS * n if linked else 0.0  # faiss has a copy of the features
    return _PROGRAM + given + features + max(pairs, graph, columns, links)


def threads_that_fit(gigabytes: float, n: int, dimensions: int, params: Params, jobs: int, given: float = 0.0) -> int:
    """The most threads, `jobs` at most, with which a build stays below so many gigabytes."""
    rows = block_rows(n)
    sizes = {"shard_rows": shard_starts(n, rows).step, "block_rows": rows}
    for threads in range(jobs, 0, -1):
        if needed(n, dimensions, params, threads, **sizes, given=given) <= gigabytes * GIGABYTE:
            return threads
    least = needed(n, dimensions, params, 1, **sizes, given=given) / GIGABYTE
    raise InvalidParams(
        f"memory must be at least {least:.1f} GB for {n:,} elements of {dimensions} dimensions, got {gigabytes:g};"
        " whiten to fewer dimensions, or lower k"
    )
