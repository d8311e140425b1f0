"""Seeds from a k-NN index that the user has already, in place of ours."""

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from suffuse.core.neighbors import Features, Neighbors
from suffuse.errors import InvalidInput


class OwnKnn(Protocol):
    """What faiss calls an index, and whatever else can be asked in the same way."""

    def search(self, x: Any, k: int, /) -> tuple[Any, Any]:
        """Scores and ids (m, k) of the nearest of each row of x; an id of -1 stands for nothing found."""
        ...


def nearest_by_own(knn: OwnKnn, queries: NDArray[Any], rows: Features, features: Features, k: int) -> Neighbors:
    """NN_k of queries as such an index finds them; it must hold the elements of ours, in the same order.

    It gets the queries as they were given, and only its ids count: its metric and the length of its vectors do not
    matter, as similarities are those of `rows` and `features`, the same in the space of our index.
    Places where it found nothing hold the id 0 and the similarity 0, so that they weigh nothing.
    """
    total = getattr(knn, "ntotal", len(features))
    if total != len(features):
        raise InvalidInput(
            f"the k-NN index holds {total} vectors, this one {len(features)}; give one of the same elements"
        )
    try:
        found = np.asarray(knn.search(np.ascontiguousarray(queries, np.float32), k)[1])
    except (AssertionError, RuntimeError, TypeError, ValueError) as error:  # what faiss raises, and what others may
        shape = "x".join(map(str, queries.shape))
        raise InvalidInput(
            f"the k-NN index cannot search queries of {shape}: {error or 'wrong size'}; give one of the same vectors"
        ) from error
    if found.ndim != 2 or len(found) != len(rows) or found.dtype.kind not in "iu":
        raise InvalidInput(
            f"the k-NN index answered with {found.dtype} of shape {found.shape}, expected ids ({len(rows)}, k)"
        )
    if found.size and found.max() >= len(features):
        raise InvalidInput(f"the k-NN index found the id {found.max()}, but ids go from 0 to {len(features) - 1}")
    missing = found < 0
    ids = np.where(missing, 0, found).astype(np.int32)
    sims = np.array([features[near] @ row for row, near in zip(rows, ids, strict=True)], np.float32)
    return Neighbors(ids, np.where(missing, np.float32(0), sims))
