"""Bring your own k-NN: seeds of a faiss index or of a vector database, diffusion by ours."""

import warnings

import numpy as np
import pytest
from tests.support.data import clusters, scattered

import suffuse
from suffuse import Index, InvalidInput, InvalidParams, Params
from suffuse.core.blas import load_faiss
from suffuse.core.neighbors import nearest

N, D, SEEDS = 300, 12, 7


@pytest.fixture(scope="module")
def features():
    return clusters(np.random.default_rng(0), N, D, count=12)


@pytest.fixture(scope="module")
def queries():
    return clusters(np.random.default_rng(1), 20, D, count=12)


@pytest.fixture(scope="module")
def index(features, tmp_path_factory):
    path = tmp_path_factory.mktemp("own") / "x.index"
    suffuse.build(features, path, Params(k=10, truncation=100, keep=60))
    return Index.open(path)


def flat(vectors, metric="L2"):
    faiss = load_faiss()
    made = faiss.IndexFlatL2(vectors.shape[1]) if metric == "L2" else faiss.IndexFlatIP(vectors.shape[1])
    made.add(np.ascontiguousarray(vectors, np.float32))
    return made


def assert_same(a, b):
    np.testing.assert_array_equal(a.ids, b.ids)
    np.testing.assert_allclose(a.scores, b.scores, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("metric", ["L2", "IP"])
def test_an_exact_index_of_faiss_gives_the_hits_of_our_search(index, features, queries, metric):
    assert_same(index.search(queries, 15, SEEDS, seed_index=flat(features, metric)), index.search(queries, 15, SEEDS))


def test_only_ids_count_not_the_length_of_its_vectors(index, features, queries):
    # Twice as long: distances are others, the order is the same.
    found = index.search(2 * queries, 15, SEEDS, seed_index=flat(2 * features))
    assert_same(found, index.search(queries, 15, SEEDS))


def test_an_index_over_vectors_before_whitening_gets_them_so(features, queries, tmp_path):
    suffuse.build(features, tmp_path / "w.index", Params(k=10, truncation=100, keep=60, whiten=6))
    whitened, raw = Index.open(tmp_path / "w.index"), flat(features, "IP")
    ids = raw.search(queries, SEEDS)[1]
    rows = whitened.prepare(queries)
    sims = np.einsum("qd,qkd->qk", rows, whitened.features[ids])
    expected = whitened.combine(ids, sims, 5)
    assert_same(whitened.search(queries, 5, SEEDS, seed_index=raw), expected)


def test_places_without_a_neighbour_weigh_nothing(index, features, queries):
    class Short:
        def search(self, x, k):
            found = nearest(np.ascontiguousarray(x), features, k)
            return found.sims, np.where(np.arange(k) < 3, found.ids, -1)

    assert_same(index.search(queries, 5, SEEDS, seed_index=Short()), index.search(queries, 5, 3))


class Answers:
    def __init__(self, ids):
        self.ids = ids

    def search(self, _x, _k):
        return None, self.ids


@pytest.mark.parametrize(
    ("knn", "told"),
    [
        (flat(scattered(np.random.default_rng(0), 10, D)), "holds 10 vectors, this one 300"),
        (flat(scattered(np.random.default_rng(0), N, D + 1)), "cannot search queries of 20x12"),
        (Answers(np.full((20, SEEDS), N)), f"found the id {N}"),
        (Answers(np.zeros((3, SEEDS), int)), "expected ids"),
        (Answers(np.zeros((20, SEEDS))), "answered with float64"),
    ],
)
def test_an_index_of_something_else_is_told(index, queries, knn, told):
    with pytest.raises(InvalidInput, match=told):
        index.search(queries, 5, SEEDS, seed_index=knn)


def test_queries_with_owners_are_for_combine(index, features, queries):
    with pytest.raises(InvalidParams, match="combine"):
        index.search(queries, 5, SEEDS, seed_index=flat(features), owners=np.arange(20) // 2)


def test_seeds_of_a_vector_database(index, features, queries):
    # The example of docs/own-knn.md, on a database that runs in this process.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of what it is built on
        from qdrant_client import QdrantClient, models
    client = QdrantClient(":memory:")
    client.create_collection("photos", models.VectorParams(size=D, distance=models.Distance.COSINE))
    client.upload_collection("photos", vectors=features, ids=range(N))
    asked = [models.QueryRequest(query=query.tolist(), limit=SEEDS) for query in queries]
    answers = client.query_batch_points("photos", asked)
    ids = np.array([[point.id for point in answer.points] for answer in answers])
    sims = np.array([[point.score for point in answer.points] for answer in answers])
    assert_same(index.combine(ids, sims, 15), index.search(queries, 15, SEEDS))
    client.close()
