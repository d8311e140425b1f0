"""What an index tells of itself, and what it refuses: queries, counts, methods, owners, columns that cannot be."""

import dataclasses

import numpy as np
import pytest
from tests.support import reference
from tests.support.damage import change_array, put
from tests.support.data import scattered, unit
from tests.support.indexes import OWNERS, REGIONS, SHORT, D, N, build_and_open, same_hits

from suffuse import Index, IndexBroken, InvalidInput, InvalidParams

# --- what an index knows


def test_names_and_metadata_come_back_with_the_hits(tmp_path, gallery):
    names = [{"name": f"{i}.jpg", "year": 1900 + i} if i % 2 else f"{i}.jpg" for i in range(N)]
    index = build_and_open(gallery, tmp_path, SHORT, names=names)
    best = index.search(gallery[7:8], top=1, method="knn").ids[0, 0]
    assert best == 7
    assert index.items[best] == {"name": "7.jpg", "year": 1907}
    assert index.items[8] == {"name": "8.jpg"}
    assert index.items.name(best) == "7.jpg"


def test_an_index_shows_its_parameters_features_and_sizes(short_index, regional_index, gallery):
    assert (len(short_index), short_index.dimensions, short_index.params) == (N, D, SHORT)
    np.testing.assert_array_equal(short_index.features, gallery)
    assert short_index.owners is None
    assert short_index.items.name(3) == "3"
    assert len(regional_index) == 28
    np.testing.assert_array_equal(regional_index.owners, OWNERS)
    assert regional_index.items.name(27) == "27.jpg"


def test_an_index_is_read_only(short_index):
    with pytest.raises(ValueError, match="read-only"):
        short_index.features[0, 0] = 1.0


def test_queries_are_whitened_as_the_gallery_was(tmp_path):
    rng = np.random.default_rng(5)
    raw, queries = rng.normal(1.0, 1.0, (N, D)), rng.normal(1.0, 1.0, (6, D))
    index = build_and_open(raw, tmp_path, dataclasses.replace(SHORT, whiten=4, whiten_power=0.5))
    mean = np.load(tmp_path / "test.index" / "whitening_mean.npy")
    projection = np.load(tmp_path / "test.index" / "whitening_projection.npy")
    whitened = unit((unit(queries) - mean) @ projection)
    assert (index.dimensions, index.features.shape) == (D, (N, 4))
    np.testing.assert_allclose(index.prepare(queries), whitened, atol=1e-6)
    hits = index.search(queries, N, method="knn")
    np.testing.assert_array_equal(hits.ids, reference.nearest(whitened, index.features, N)[0])
    own = index.search(3 * raw, top=1, method="knn")
    assert own.ids[:, 0].tolist() == list(range(N))
    np.testing.assert_allclose(own.scores, 1.0, rtol=1e-5)


# --- what is refused


def with_a_nan(queries):
    queries = queries.copy()
    queries[2, 3] = np.nan
    return queries


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda q: q[:, :7], "queries have 7 dimensions, the index has 10; build and search with the same"),
        (lambda q: q[None], r"queries must have two dimensions .* found shape \(1, 5, 10\)"),
        (lambda q: q[:0], "queries has 0 rows; at least 1"),
        (lambda q: [*q.tolist(), [1.0]], "queries cannot be read as an array: .*; give rows of the same length"),
        (lambda _: "cats", "queries must be an array of numbers, got str"),
        (lambda q: q.astype(np.int64), "queries has values of type int64"),
        (with_a_nan, "row 2 of queries holds nan"),
        (lambda q: q * (np.arange(5) != 3)[:, None], "row 3 of queries is all zeros"),
    ],
)
def test_queries_that_cannot_be_searched_are_named(short_index, change, message):
    queries = scattered(np.random.default_rng(0), 5, D)
    with pytest.raises(InvalidInput, match=message):
        short_index.search(change(queries))


@pytest.mark.parametrize("name", ["top", "seeds"])
@pytest.mark.parametrize("value", [0, -1, 2.0, True, "3", None])
def test_counts_must_be_whole_numbers_from_one(short_index, gallery, name, value):
    with pytest.raises(InvalidParams, match=f"^{name} must be a whole number of at least 1, got {value!r}$"):
        short_index.search(gallery[:1], **{name: value})


def test_counts_may_be_numbers_of_numpy(short_index, gallery):
    same_hits(
        short_index.search(gallery[:2], top=np.int32(3), seeds=np.uint8(4)),
        short_index.search(gallery[:2], top=3, seeds=4),
    )


def test_an_unknown_method_is_refused_with_those_that_exist(short_index, gallery):
    with pytest.raises(InvalidParams, match="method must be one of diffusion, knn, got 'magic'"):
        short_index.search(gallery[:1], method="magic")


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        (np.array([0, 1]), "query owners has 2 entries for 3 regions"),
        (np.array([0.0, 0.0, 1.0]), "query owners must be a one-dimensional array of whole numbers, got float64"),
        (np.array([[0, 0, 1]]), r"whole numbers, got int64 of shape \(1, 3\)"),
        ([0.0, 0.0, 1.0], "whole numbers, got float64"),
        (np.array([0, -1, 1]), "entry 1 of query owners is -1"),
        (np.array([0, 0, 2]), "query 1 has no regions, although there are 3 queries"),
        (np.array([1, 1, 1]), "query 0 has no regions, although there are 2 queries"),
        (np.array([0, 2**31 - 1, 1]), "query 2 has no regions, although there are 2147483648 queries"),
        (np.array([0, 1, 2**31]), "entry 2 of query owners is 2147483648"),
    ],
)
def test_owners_that_do_not_fit_the_queries_are_refused(regional_index, gallery, owners, message):
    with pytest.raises(InvalidInput, match=message):
        regional_index.search(gallery[:3], owners=owners)


@pytest.mark.parametrize(
    ("file", "position", "value", "seed", "message"),
    [
        ("codes.npy", 0, N, 0, "codes.npy or owners.npy holds ids that do not exist"),
        ("codes.npy", slice(None), 255, 0, "codes.npy or owners.npy holds ids that do not exist"),
        ("owners.npy", slice(None), 10**6, 0, "owners.npy holds an id outside 0..24"),
        ("indptr.npy", 1, 10**9, 0, "indptr.npy points outside the columns"),
        ("indptr.npy", 1, -5, 1, "indptr.npy points outside the columns"),
        ("indptr.npy", 40, 3, 39, "indptr.npy points outside the columns"),
    ],
)
def test_damaged_columns_are_noticed_and_not_followed(tmp_path, gallery, file, position, value, seed, message):
    build_and_open(gallery, tmp_path, REGIONS, owners=OWNERS)
    change_array(file, put(position, value), sign=True)(tmp_path / "test.index")
    with pytest.raises(IndexBroken, match=message):
        Index.open(tmp_path / "test.index").search(gallery[seed : seed + 1], seeds=1)
