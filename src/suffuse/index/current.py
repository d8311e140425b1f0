"""What an index is with its changes: its k-NN lists, its graph, and the elements that are hidden."""

import numpy as np
from numpy.typing import NDArray

from suffuse.core.graph import affinity, transition
from suffuse.core.neighbors import Neighbors
from suffuse.errors import IndexBroken
from suffuse.index import sound
from suffuse.store.opening import Stored, Transition


def all_lists(stored: Stored) -> Neighbors:
    """The k-NN lists of all elements (elements, k), in memory; short ones end as `Neighbors` says."""
    lists, n, k = sound.lists(stored), len(stored.features), stored.manifest.params.k
    assert lists is not None
    ids, sims = np.empty((n, k), np.int32), np.zeros((n, k), np.float32)
    ids[:] = np.arange(n, dtype=np.int32)[:, None]
    base, width = lists.ids.shape
    ids[:base, :width], sims[:base, :width] = lists.ids, lists.sims
    ids[lists.changed], sims[lists.changed] = lists.changed_ids, lists.changed_sims
    if not 0 <= ids.min(initial=0) <= ids.max(initial=0) < n:
        raise IndexBroken("list_ids.npy holds an id that does not exist; run suffuse verify, then copy the index again")
    return Neighbors(ids, sims)


def hidden_elements(stored: Stored) -> NDArray[np.bool_] | None:
    """(elements,), those of images that were removed or replaced; None if there are none."""
    hidden = stored.ids.hidden.astype(bool)
    if not len(hidden):
        return None
    if stored.owners is None:
        return hidden
    check_owners_fit(stored)
    return hidden[stored.owners]


def check_owners_fit(stored: Stored) -> None:
    """Refuse owners that do not exist, which opening does not look for."""
    owners = sound.owners(stored)
    if owners is not None and not 0 <= owners.min() <= owners.max() < stored.ids.count:
        raise IndexBroken("owners.npy holds ids that do not exist; run suffuse verify, then copy the index again")


def fitting_owners(stored: Stored) -> NDArray[np.int32]:
    """The image of each region, of an index of regions; all of them exist."""
    check_owners_fit(stored)
    assert stored.owners is not None
    return stored.owners


def changed_graph(stored: Stored, hidden: NDArray[np.bool_] | None) -> Transition | None:
    """S of an index that was changed, without what is hidden; None if the index holds no graph, or no lists."""
    if stored.graph is None or stored.lists is None:
        return None
    lists = all_lists(stored)
    if hidden is not None:
        gone = hidden[lists.ids] | hidden[:, None]
        lists.ids[gone] = np.broadcast_to(np.arange(len(hidden), dtype=np.int32)[:, None], gone.shape)[gone]
    s = transition(affinity(lists, stored.manifest.params.gamma))
    return Transition(s.indptr.view(np.int64), s.indices.view(np.int32), s.weights.astype(np.float32))


def broken_columns(count: int, damage: str) -> IndexBroken:
    """What a kernel found that returned a negative count instead of entries."""
    found = damage if count == -1 else "indptr.npy points outside the columns"
    return IndexBroken(f"{found}; run suffuse verify, then copy the index again")
