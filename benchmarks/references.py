"""What Suffuse is measured against, written as plainly as the papers say it: scipy, and faiss alone.

paper_column      Yang et al.: slice S to the support, then scipy's conjugate gradient
online_diffusion  Iscen et al.: conjugate gradient on the whole graph, for each query
knn_graph         the k-NN lists of all elements, by faiss alone
knn_one, knn_batch  the k-NN of queries, by faiss alone
"""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, eye_array
from scipy.sparse.linalg import cg

from suffuse.core.blas import load_faiss, one_thread
from suffuse.core.graph import Graph
from suffuse.core.neighbors import Features, Neighbors

# Rows that faiss searches at a time: enough for BLAS, and the same for every thread.
_BLOCK_ROWS = 2048


def as_scipy(graph: Graph) -> Any:
    """A graph as scipy's compressed rows, with the 32-bit ids that scipy is fastest with."""
    n = len(graph.indptr) - 1
    kind = np.int32 if len(graph.indices) < 2**31 else np.int64
    return csr_array((graph.weights, graph.indices.astype(kind), graph.indptr.astype(kind)), shape=(n, n))


def laplacian(alpha_s: Graph) -> Any:
    """L_alpha = I - alpha S, as the paper's code holds it."""
    return (eye_array(len(alpha_s.indptr) - 1, format="csr") - as_scipy(alpha_s)).tocsr()


def paper_column(l_alpha: Any, support: NDArray[np.integer], iterations: int, tolerance: float) -> NDArray[np.float64]:
    """c on the support J, whose first element is the column's own: L_alpha[J, J] c = e, by slicing and `cg`."""
    sliced = l_alpha[support][:, support]
    e = np.zeros(len(support))
    e[0] = 1.0
    column, _ = cg(sliced, e, rtol=tolerance, atol=0.0, maxiter=iterations)
    return np.asarray(column)


def paper_columns(
    l_alpha: Any, supports: Iterable[NDArray[np.integer]], iterations: int, tolerance: float
) -> list[NDArray[np.float64]]:
    """Columns one after the other."""
    return [paper_column(l_alpha, support, iterations, tolerance) for support in supports]


def walk_support(alpha_s: Any, nodes: NDArray[np.integer], truncation: int, steps: int) -> NDArray[np.intp]:
    """The nodes with the most mass over all steps of v <- alpha S v, v cut to its L largest after each; alpha_s is
    scipy's."""
    v = np.zeros(alpha_s.shape[0])
    v[nodes] = 1.0
    mass = v.copy()
    for _ in range(steps):
        spread, v = alpha_s @ v, np.zeros_like(v)
        frontier = best(spread, truncation)
        v[frontier] = spread[frontier]
        mass += v
    mass[nodes] = np.inf
    found = best(mass, truncation)
    return found[mass[found] > 0]


def online_diffusion(
    alpha_s: Any, ids: NDArray[np.integer], weights: NDArray[np.float64], iterations: int = 20, tolerance: float = 1e-6
) -> NDArray[np.float64]:
    """f = L_alpha^-1 y on the whole graph by conjugate gradient, y = weights at ids; alpha_s is scipy's."""
    f, residual = np.zeros(alpha_s.shape[0]), np.zeros(alpha_s.shape[0])
    residual[ids] = weights
    direction, squared = residual.copy(), residual @ residual
    target = tolerance * tolerance * squared
    for _ in range(iterations):
        if squared <= target:
            break
        image = direction - alpha_s @ direction
        step = squared / (direction @ image)
        f += step * direction
        residual -= step * image
        previous, squared = squared, residual @ residual
        direction = residual + squared / previous * direction
    return f


def best(scores: NDArray[np.float64], top: int) -> NDArray[np.intp]:
    """The ids of the largest scores, largest first."""
    chosen = np.argpartition(-scores, top)[:top] if top < len(scores) else np.arange(len(scores))
    return chosen[np.argsort(-scores[chosen], kind="stable")]


def knn_graph(features: Features, k: int, threads: int) -> Neighbors:
    """The k nearest of every element by faiss, blocks of rows over threads; nothing is done to the result.

    One thread of faiss in each of ours: its own threads spend a quarter more CPU, waiting for each other.
    """
    faiss = load_faiss()
    n = len(features)
    ids, sims = np.empty((n, k), np.int32), np.empty((n, k), np.float32)

    def search(start: int) -> None:
        with one_thread():
            rows = features[start : start + _BLOCK_ROWS]
            found_sims, found = faiss.knn(rows, features, k, metric=faiss.METRIC_INNER_PRODUCT)
            ids[start : start + _BLOCK_ROWS], sims[start : start + _BLOCK_ROWS] = found, found_sims

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(search, range(0, n, _BLOCK_ROWS)))
    return Neighbors(ids, sims)


def knn_one(query: Features, features: Features, k: int) -> Any:
    """The k-NN of one query (1, d) by faiss alone."""
    faiss = load_faiss()
    return faiss.knn(query, features, k, metric=faiss.METRIC_INNER_PRODUCT)


def knn_batch(queries: Features, features: Features, k: int) -> Any:
    """The k-NN of many queries (m, d) at once by faiss alone."""
    faiss = load_faiss()
    return faiss.knn(queries, features, k, metric=faiss.METRIC_INNER_PRODUCT)
