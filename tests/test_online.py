"""Search: the sum of the seeds' columns, the same alone, in a batch and from many threads; by cosine where it ends."""

import dataclasses
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
import suffuse
from data import clusters, curves, duplicated, scattered, unit
from suffuse import Index, IndexBroken, InvalidInput, InvalidParams, Params
from suffuse.diffusion import WALK_STEPS
from suffuse.graph import affinity, transition
from suffuse.neighbors import nearest_to_rows

N, D = 80, 10
WHOLE = Params(k=12, truncation=200, keep=200, iterations=500, tolerance=1e-10, values="float32")
SHORT = Params(k=6, truncation=15, keep=5)
REGIONS = dataclasses.replace(SHORT, pool="none")  # tests/test_pooling.py has the others

seeds_of_rng = st.integers(0, 2**32 - 1)


def build_and_open(features, directory, params, **options):
    suffuse.build(features, directory / "test.index", params, **options)
    return Index.open(directory / "test.index")


def exact_columns(features, params):
    """The inverse of L_alpha, of which every column is within reach of a walk."""
    s = reference.dense(transition(affinity(nearest_to_rows(features, 0, len(features), params.k), params.gamma)))
    inverse = reference.inverse(params.alpha * s)
    assert (np.linalg.matrix_power((s > 0) + np.eye(len(s)), WALK_STEPS)[inverse > 1e-9] > 0).all()
    return inverse


def stored_columns(index):
    """The columns of an index as a matrix, column i in [:, i]."""
    stored = index._stored
    matrix = np.zeros((len(index.features), len(index.features)))
    for i in range(len(matrix)):
        places = slice(stored.indptr[i], stored.indptr[i + 1])
        matrix[stored.rows.array[places], i] = stored.values.array[places]
    return matrix


def same_hits(found, expected):
    assert found.ids.dtype == np.int64
    assert found.scores.dtype == np.float32
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.scores.view(np.uint32), expected.scores.view(np.uint32))


@pytest.fixture(scope="module")
def gallery():
    return curves(np.random.default_rng(6), N, D)


@pytest.fixture(scope="module")
def short_index(gallery, tmp_path_factory):
    """An index with columns so short that diffusion never reaches everything."""
    return build_and_open(gallery, tmp_path_factory.mktemp("short"), SHORT)


OWNERS = np.random.default_rng(3).permutation(np.arange(N) % 25)


@pytest.fixture(scope="module")
def regional_index(gallery, tmp_path_factory):
    """Regions of 25 images in mixed order, and three more images without any."""
    names = [f"{image}.jpg" for image in range(28)]
    return build_and_open(gallery, tmp_path_factory.mktemp("regional"), REGIONS, owners=OWNERS, names=names)


# --- diffusion


@pytest.mark.parametrize("support", ["graph", "features"])
@pytest.mark.parametrize("seeds", [1, 5, 3 * N])
def test_without_truncation_search_is_exact_diffusion(tmp_path, support, seeds):
    rng = np.random.default_rng(4)
    features, queries = clusters(rng, N, D, spread=0.8), clusters(rng, 6, D, spread=2.0)
    index = build_and_open(features, tmp_path, dataclasses.replace(WHOLE, support=support))
    columns = exact_columns(features, WHOLE)
    hits = index.search(queries, top=N, seeds=seeds, refine=0)
    for q in range(6):
        f = reference.diffuse(queries[q : q + 1], features, columns, min(seeds, N), WHOLE.gamma)
        reached = np.flatnonzero(f > 1e-6)
        expected = reached[np.argsort(-f[reached], kind="stable")]
        assert len(expected) > 10
        assert hits.ids[q, : len(expected)].tolist() == expected.tolist()
        np.testing.assert_allclose(hits.scores[q, : len(expected)], f[expected], rtol=1e-4)


@pytest.mark.parametrize("values", ["float16", "float32"])
def test_search_is_the_weighted_sum_of_the_stored_columns(tmp_path, gallery, values):
    index = build_and_open(gallery, tmp_path, dataclasses.replace(SHORT, values=values))
    queries = scattered(np.random.default_rng(1), 8, D)
    columns = stored_columns(index)
    hits = index.search(queries, top=7, seeds=4, refine=0)
    for q in range(8):
        f = reference.diffuse(queries[q : q + 1], gallery, columns, 4, SHORT.gamma)
        expected = reference.largest(f, 7)
        assert hits.ids[q, : len(expected)].tolist() == expected
        np.testing.assert_allclose(hits.scores[q, : len(expected)], f[expected], rtol=1e-6)


def test_gamma_weighs_the_seeds(tmp_path, gallery):
    query = scattered(np.random.default_rng(1), 1, D)
    for gamma in (1.0, 6.0):
        (tmp_path / str(gamma)).mkdir()
        index = build_and_open(gallery, tmp_path / str(gamma), dataclasses.replace(SHORT, gamma=gamma))
        f = reference.diffuse(query, gallery, stored_columns(index), 10, gamma)
        assert index.search(query, top=1, refine=0).scores[0, 0] == pytest.approx(f.max(), rel=1e-6)


def test_seeds_with_negative_similarity_have_no_weight(tmp_path):
    features = unit([[1, 0, 0], [1, 0.1, 0], [-1, 0, 0.1], [-1, 0.1, 0.1]])
    index = build_and_open(features, tmp_path, WHOLE)
    hits = index.search(features[:1], top=4, seeds=4)
    assert hits.ids[0].tolist() == [0, 1, 3, 2]
    assert (hits.scores[0, :2] > 0).all()
    assert hits.scores[0, 2:].tolist() == [0, 0]


def test_diffusion_follows_a_curve_that_cosine_leaves(tmp_path):
    # A half circle, and nearer to its first point than its middle is, a cluster that no edge joins with it.
    angles = np.linspace(0, np.pi, 60)
    curve = np.stack([np.cos(angles), np.sin(angles), 0 * angles], axis=1)
    features = unit(np.concatenate([curve, np.tile([0.8, 0, 0.6], (5, 1)) + 0.01 * np.eye(5, 3)]))
    index = build_and_open(features, tmp_path, dataclasses.replace(WHOLE, k=5))
    plain = index.search(features[:1], top=18, method="knn").ids[0]
    diffused = index.search(features[:1], top=18, seeds=3).ids[0]
    assert (plain >= 60).any()
    assert (diffused < 60).all()


# --- the same whatever the company


@settings(deadline=None, max_examples=25)
@given(seed=seeds_of_rng, m=st.integers(2, 20), top=st.integers(1, N), seeds=st.integers(1, 20))
@pytest.mark.parametrize("method", ["diffusion", "knn"])
def test_a_query_finds_the_same_alone_and_in_a_batch(short_index, method, seed, m, top, seeds):
    queries = scattered(np.random.default_rng(seed), m, D)
    together = short_index.search(queries, top, seeds, method=method)
    assert together.ids.shape == together.scores.shape == (m, top)
    for q in range(m):
        alone = short_index.search(queries[q : q + 1], top, seeds, method=method)
        same_hits(alone, suffuse.Hits(together.ids[q : q + 1], together.scores[q : q + 1]))


@settings(deadline=None, max_examples=25)
@given(seed=seeds_of_rng, sizes=st.lists(st.integers(1, 4), min_size=2, max_size=6), top=st.integers(1, 28))
@pytest.mark.parametrize("method", ["diffusion", "knn"])
def test_a_query_of_regions_finds_the_same_alone_and_in_a_batch(regional_index, method, seed, sizes, top):
    rng = np.random.default_rng(seed)
    regions, owners = scattered(rng, sum(sizes), D), np.repeat(np.arange(len(sizes)), sizes)
    together = regional_index.search(regions, top, method=method, owners=owners)
    for q in range(len(sizes)):
        own = regions[owners == q]
        alone = regional_index.search(own, top, method=method, owners=np.zeros(len(own), int))
        same_hits(alone, suffuse.Hits(together.ids[q : q + 1], together.scores[q : q + 1]))


def test_many_threads_find_what_one_finds(short_index):
    queries = scattered(np.random.default_rng(5), 40, D)
    expected = {method: short_index.search(queries, N, method=method) for method in ("diffusion", "knn")}
    together = threading.Barrier(8)

    def search(number):
        together.wait()
        return [
            (method, short_index.search(queries, N, method=method))
            for _ in range(10)
            for method in (("diffusion", "knn") if number % 2 else ("knn", "diffusion"))
        ]

    with ThreadPoolExecutor(8) as threads:
        for results in threads.map(search, range(8)):
            for method, hits in results:
                same_hits(hits, expected[method])


def test_the_length_and_type_of_a_query_do_not_matter(short_index):
    queries = np.random.default_rng(9).integers(1, 200, size=(5, D)).astype(np.uint8)
    expected = short_index.search(queries, N)
    same_hits(short_index.search(queries.astype(np.float64) * 1e200, N), expected)
    same_hits(short_index.search(np.asfortranarray(queries.astype(np.float32)), N), expected)


def test_queries_are_left_as_they_were(short_index):
    queries = 3 * scattered(np.random.default_rng(9), 5, D)
    before = queries.copy()
    short_index.search(queries)
    np.testing.assert_array_equal(queries, before)


# --- the whole ranking


@settings(deadline=None, max_examples=25)
@given(seed=seeds_of_rng, seeds=st.integers(1, 10))
def test_a_full_ranking_has_everyone_once_reached_first_then_the_rest_by_cosine(short_index, gallery, seed, seeds):
    query = scattered(np.random.default_rng(seed), 1, D)
    hits = short_index.search(query, top=len(short_index), seeds=seeds)
    ids, scores = hits.ids[0], hits.scores[0]
    reached = np.count_nonzero(scores)
    assert sorted(ids.tolist()) == list(range(N))
    assert reached < N
    assert (np.diff(scores) <= 0).all()
    assert (scores[:reached] > 0).all()
    by_cosine = reference.nearest(query, gallery, N)[0][0]
    assert ids[reached:].tolist() == [i for i in by_cosine if i not in set(ids[:reached].tolist())]


@settings(deadline=None, max_examples=25)
@given(seed=seeds_of_rng, top=st.integers(1, N), method=st.sampled_from(["diffusion", "knn"]))
def test_a_shorter_ranking_is_the_begin_of_a_longer_one(short_index, seed, top, method):
    query = scattered(np.random.default_rng(seed), 1, D)
    whole = short_index.search(query, N, 3, method=method)
    same_hits(short_index.search(query, top, 3, method=method), suffuse.Hits(whole.ids[:, :top], whole.scores[:, :top]))


@pytest.mark.parametrize("method", ["diffusion", "knn"])
def test_more_hits_than_images_are_all_images(short_index, method):
    queries = scattered(np.random.default_rng(2), 3, D)
    same_hits(short_index.search(queries, 10 * N, method=method), short_index.search(queries, N, method=method))


def test_more_seeds_than_elements_are_all_elements(short_index):
    queries = scattered(np.random.default_rng(2), 3, D)
    same_hits(short_index.search(queries, N, 10 * N), short_index.search(queries, N, N))


def test_the_ranking_by_cosine_equals_brute_force(short_index, gallery):
    queries = scattered(np.random.default_rng(2), 10, D)
    hits = short_index.search(queries, 30, method="knn")
    ids, sims = reference.nearest(queries, gallery, 30)
    np.testing.assert_array_equal(hits.ids, ids)
    np.testing.assert_allclose(hits.scores, sims, rtol=1e-6, atol=1e-7)


def test_duplicates_are_ranked_by_id(tmp_path):
    features = duplicated(np.random.default_rng(7), N, D, distinct=4)
    hits = build_and_open(features, tmp_path, SHORT).search(features[:1], N, method="knn")
    twins = [i for i in range(N) if np.array_equal(features[i], features[0])]
    assert hits.ids[0, : len(twins)].tolist() == twins


# --- regions


def grouped(rng, sizes):
    """Query regions, and which query each belongs to."""
    return scattered(rng, sum(sizes), D), np.repeat(np.arange(len(sizes)), sizes)


def test_the_score_of_an_image_is_the_sum_over_its_regions(regional_index, gallery):
    regions, owners = grouped(np.random.default_rng(8), [1, 3, 2])
    hits = regional_index.search(regions, top=28, seeds=4, owners=owners)
    columns = stored_columns(regional_index)
    assert hits.ids.shape == (3, 28)
    for q in range(3):
        f = reference.diffuse(regions[owners == q], gallery, columns, 4, SHORT.gamma, OWNERS, 28)
        expected = reference.largest(f, 28)
        assert 5 < len(expected) < 25
        assert hits.ids[q, : len(expected)].tolist() == expected
        np.testing.assert_allclose(hits.scores[q, : len(expected)], f[expected], rtol=1e-6)
        match = reference.match(regions[owners == q], gallery, OWNERS, 28)
        rest = [image for image in np.argsort(-match, kind="stable") if image not in expected]
        assert hits.ids[q, len(expected) :].tolist() == rest
        assert not hits.scores[q, len(expected) :].any()


def test_there_may_be_more_seeds_than_images(regional_index, gallery):
    region = scattered(np.random.default_rng(8), 1, D)
    hits = regional_index.search(region, top=10, seeds=40)
    f = reference.diffuse(region, gallery, stored_columns(regional_index), 40, SHORT.gamma, OWNERS, 28)
    assert hits.ids[0].tolist() == reference.largest(f, 10)
    np.testing.assert_allclose(hits.scores[0], np.sort(f)[::-1][:10], rtol=1e-6)


def test_without_truncation_regions_diffuse_exactly(tmp_path):
    rng = np.random.default_rng(4)
    features, regions = clusters(rng, N, D, spread=0.8), clusters(rng, 5, D, spread=2.0)
    index = build_and_open(features, tmp_path, WHOLE, owners=OWNERS)
    f = reference.diffuse(regions, features, exact_columns(features, WHOLE), 10, WHOLE.gamma, OWNERS, 25)
    hits = index.search(regions, top=25, owners=np.zeros(5, int), refine=0)
    assert hits.ids[0].tolist() == np.argsort(-f).tolist()
    np.testing.assert_allclose(hits.scores[0], np.sort(f)[::-1], rtol=1e-4)


@pytest.mark.parametrize("method", ["diffusion", "knn"])
def test_images_without_regions_come_last(regional_index, method):
    regions, owners = grouped(np.random.default_rng(8), [2, 2])
    hits = regional_index.search(regions, top=28, method=method, owners=owners)
    assert len(regional_index) == 28
    assert hits.ids[:, -3:].tolist() == [[25, 26, 27]] * 2


def test_the_ranking_of_regions_by_cosine_sums_the_best_match_of_each(regional_index, gallery):
    regions, owners = grouped(np.random.default_rng(8), [3, 1])
    hits = regional_index.search(regions, top=28, method="knn", owners=owners)
    for q in range(2):
        match = reference.match(regions[owners == q], gallery, OWNERS, 28)
        assert hits.ids[q].tolist() == np.argsort(-match, kind="stable").tolist()
        np.testing.assert_allclose(hits.scores[q], match[hits.ids[q]], rtol=1e-5, atol=1e-6)


def test_similarities_are_the_same_in_blocks(regional_index, monkeypatch):
    regions, owners = grouped(np.random.default_rng(8), [3, 1])
    expected = regional_index.search(regions, top=28, method="knn", owners=owners)
    monkeypatch.setattr("suffuse.matching._BLOCK_ROWS", 7)
    found = regional_index.search(regions, top=28, method="knn", owners=owners)
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-6)


def test_a_query_of_several_vectors_searches_an_index_of_images(short_index, gallery):
    regions, owners = grouped(np.random.default_rng(8), [3, 2])
    diffused = short_index.search(regions, top=N, seeds=4, owners=owners, refine=0)
    plain = short_index.search(regions, top=N, method="knn", owners=owners, refine=0)
    for q in range(2):
        f = reference.diffuse(regions[owners == q], gallery, stored_columns(short_index), 4, SHORT.gamma)
        expected = reference.largest(f, N)
        assert diffused.ids[q, : len(expected)].tolist() == expected
        sums = reference.similarities(regions[owners == q], gallery).sum(axis=0)
        assert plain.ids[q].tolist() == np.argsort(-sums, kind="stable").tolist()
        assert diffused.ids[q, len(expected) :].tolist() == [i for i in plain.ids[q] if i not in expected]


@pytest.mark.parametrize("method", ["diffusion", "knn"])
def test_the_order_of_query_rows_does_not_matter(regional_index, method):
    rng = np.random.default_rng(8)
    regions, owners = grouped(rng, [2, 3, 1])
    expected = regional_index.search(regions, top=28, method=method, owners=owners)
    for _ in range(5):
        order = rng.permutation(6)
        found = regional_index.search(regions[order], top=28, method=method, owners=owners[order])
        np.testing.assert_array_equal(found.ids, expected.ids)
        np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-6)


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
        (lambda q: q[0], r"queries must have two dimensions .* found shape \(10,\); for one vector use vector\[None"),
        (lambda q: q[None], r"queries must have two dimensions .* found shape \(1, 5, 10\)"),
        (lambda q: q[:0], "queries has 0 rows; at least 1"),
        (lambda q: q.tolist(), "queries must be a numpy array, got list"),
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
        ([0, 0, 1], "whole numbers, got list"),
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


def damage(path, change):
    array = np.load(path)
    change(array)
    np.save(path, array)


@pytest.mark.parametrize(
    ("file", "position", "value", "seed", "message"),
    [
        ("rows.npy", 0, N, 0, "rows.npy or owners.npy holds ids that do not exist"),
        ("rows.npy", 0, -1, 0, "rows.npy or owners.npy holds ids that do not exist"),
        ("owners.npy", slice(None), 10**6, 0, "rows.npy or owners.npy holds ids that do not exist"),
        ("indptr.npy", 1, 10**9, 0, "indptr.npy points outside the columns"),
        ("indptr.npy", 1, -5, 1, "indptr.npy points outside the columns"),
        ("indptr.npy", 40, 3, 39, "indptr.npy points outside the columns"),
    ],
)
def test_damaged_columns_are_noticed_and_not_followed(tmp_path, gallery, file, position, value, seed, message):
    build_and_open(gallery, tmp_path, REGIONS, owners=OWNERS)
    damage(tmp_path / "test.index" / file, lambda array: array.__setitem__(position, value))
    with pytest.raises(IndexBroken, match=message):
        Index.open(tmp_path / "test.index").search(gallery[seed : seed + 1], seeds=1)
