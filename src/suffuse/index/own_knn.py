"""Seeds from a k-NN index that the user has already, in place of ours: asked for them, or given with what it found."""

from typing import Any, Protocol

import numpy as np

from suffuse.core.features import as_features, check_seeds
from suffuse.core.neighbors import Neighbors, reorder_lists
from suffuse.errors import InvalidInput, InvalidParams
from suffuse.index.search import Hits, Query, Seeds, check_count, check_refine, diffuse, reach_districts, weigh
from suffuse.index.snapshot import Snapshot
from suffuse.store.files import report_damage


class SeedIndex(Protocol):
    """What faiss calls an index, and whatever else can be asked in the same way."""

    def search(self, x: Any, k: int, /) -> tuple[Any, Any]:
        """Scores and ids (m, k) of the nearest of each row of x; an id of -1 stands for nothing found."""


def ask_seed_index(snapshot: Snapshot, seed_index: SeedIndex, queries: Any, query: Query, count: int) -> Neighbors:
    """The nearest elements of queries as a user's own index finds them; it must hold our elements, in the same order.

    It gets the queries as they were given, and only its ids count: similarities are those in the space of our index.
    Where it found nothing, the id is 0 and the similarity 0, so that it weighs nothing.
    """
    if snapshot.hidden_elements is not None:
        raise InvalidParams(
            "seed_index must be None for an index with removed images; compact it first, or use combine"
        )
    n, given = snapshot.shape[0], np.atleast_2d(as_features(queries, "queries"))
    total = getattr(seed_index, "ntotal", n)
    if total != n:
        raise InvalidInput(f"the k-NN index holds {total} vectors, this one {n}; give one of the same elements")
    try:
        found = np.asarray(seed_index.search(np.ascontiguousarray(given, np.float32), min(int(count), n))[1])
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:  # what faiss raises, and what others may
        shape = "x".join(map(str, given.shape))
        raise InvalidInput(
            f"the k-NN index cannot search queries of {shape}: {error or 'wrong size'}; give one of the same vectors"
        ) from error
    rows = query.vectors
    if found.ndim != 2 or len(found) != len(rows) or found.dtype.kind not in "iu":
        raise InvalidInput(
            f"the k-NN index answered with {found.dtype} of shape {found.shape}, expected ids ({len(rows)}, k)"
        )
    if found.size and found.max() >= n:
        raise InvalidInput(f"the k-NN index found the id {found.max()}, but ids go from 0 to {n - 1}")
    missing = found < 0
    ids = np.where(missing, 0, found).astype(np.int32)
    near = snapshot.rows(ids.ravel()).reshape(*ids.shape, -1)
    sims = np.array([others @ row for row, others in zip(rows, near, strict=True)], np.float32)
    near_first = np.argsort(-np.where(missing, 0, sims), axis=1, kind="stable")
    return reorder_lists(Neighbors(ids, np.where(missing, np.float32(0), sims)), near_first)


@report_damage
def combine(snapshot: Snapshot, ids: Any, sims: Any, top: int = 10, *, refine: int | None = None) -> Hits:
    """The `top` best images for queries whose nearest elements are known already, as `Index.combine` says."""
    check_count("top", top)
    refine = check_refine(snapshot, refine)
    images = not snapshot.is_regional
    seeds, similar = check_seeds(ids, sims, snapshot.manifest.next_id if images else snapshot.shape[0])
    if images:
        rows = snapshot.ids.find_rows(seeds)
        similar, seeds = np.where(rows < 0, 0, similar), np.maximum(rows, 0)
    elif (hidden := snapshot.hidden_elements) is not None:
        similar = np.where(hidden[seeds], 0, similar)
    near = Neighbors(seeds.astype(np.int32), similar)  # type: ignore[arg-type]  # with all digits that were given
    if snapshot.params.graph == "local" and (similar[:, 1:] > similar[:, :-1]).any():  # most give the nearest first
        near = reorder_lists(near, np.argsort(-similar, axis=1, kind="stable"))
    ptr = np.arange(len(seeds) + 1, dtype=np.int64) * seeds.shape[1]
    y = Seeds(ptr, near.ids.ravel(), weigh(snapshot, near).ravel(), near.sims.astype(np.float32).ravel())
    top = min(int(top), len(snapshot))
    found = reach_districts(snapshot, y, diffuse(snapshot, y, top, refine, None), top, None)
    found.rows[np.arange(found.rows.shape[1]) >= found.counts[:, None]] = -1
    return Hits(snapshot.name_rows(found.rows), found.scores, snapshot.items)
