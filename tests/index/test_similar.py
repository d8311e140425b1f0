"""Search by pictures of the index, wanted and unwanted, against dense sums."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import reference
from tests.support.data import curves, scattered
from tests.support.indexes import D, N, build_and_open, count_far, stored_column, stored_columns

import suffuse
from suffuse import Index, InvalidInput, InvalidParams, Params
from suffuse.index import search as pipeline
from suffuse.index.search import NEGATIVE, REFINE_DEPTH, compose, find_seeds


def wanted(index, like=(), unlike=(), vectors=None):
    return compose(index.now, like, unlike, vectors)


def search(index, query, *args, allowed=None, **options):
    return pipeline.search(index.now, query._replace(allowed=allowed), *args, **options)


@pytest.fixture(scope="module", params=["uint8", "float32"])
def index(request, tmp_path_factory):
    features = curves(np.random.default_rng(2), N, D)
    params = Params(k=8, truncation=60, keep=30, values=request.param)
    return build_and_open(features, tmp_path_factory.mktemp("similar"), params)


@pytest.fixture(scope="module")
def pooled_index(gallery, tmp_path_factory):
    """Regions of 20 images whose columns hold images, so that there is a second look."""
    path = tmp_path_factory.mktemp("similar-pooled") / "x.index"
    suffuse.build(gallery, path, Params(k=8, truncation=60, keep=15), owners=np.arange(N) % 20)
    return Index.open(path)


def signed_seeds(index, positive, negative, seeds=5):
    """(ids, weights) of y: the seeds of what is wanted, then those of what is not."""
    ids, weights = reference.seeds_of(index.features[[*positive, *negative]], index.features, seeds, index.params)
    return ids, weights * np.repeat([1, -NEGATIVE], [seeds * len(positive), seeds * len(negative)])


def signed_sum(index, positive, negative, seeds=5):
    """f as a dense vector over images."""
    columns, params, n = stored_columns(index), index.params, len(index)
    assert index.owners is None
    plus = sum(reference.diffuse(index.features[[i]], index.features, columns, seeds, params) for i in positive)
    minus = sum((reference.diffuse(index.features[[i]], index.features, columns, seeds, params) for i in negative), 0)
    f = plus - NEGATIVE * minus
    assert f.shape == (n,)
    return f


@pytest.mark.parametrize(("positive", "negative"), [([3], []), ([3, 8], []), ([3, 8, 12], [5, 9]), ([3], [6])])
def test_the_sum_is_linear_in_what_is_wanted_and_what_is_not(index, positive, negative):
    f = signed_sum(index, positive, negative)
    found = search(index, wanted(index, positive, negative), top=N, seeds=5, refine=0)
    assert sorted([*found.ids.tolist(), *positive, *negative]) == list(range(N))
    expected = [i for i in reference.largest(np.maximum(f, 0), N) if i not in (*positive, *negative)]
    reached, named = len(expected), [*positive, *negative]
    far = count_far(index, *found, reached, *signed_seeds(index, positive, negative), named)
    assert np.count_nonzero(found.scores) == reached + far
    assert 3 < reached < N - 5
    np.testing.assert_allclose(found.scores[:reached], f[found.ids[:reached]], rtol=1e-5, atol=1e-9)
    assert set(found.ids[:reached].tolist()) == set(expected)
    assert (np.diff(found.scores) <= 0).all()


@pytest.mark.parametrize("method", ["diffusion", "knn"])
@pytest.mark.parametrize("refine", [0, None])
def test_one_picture_finds_what_its_vector_finds(index, method, refine):
    hits = index.search(np.array(index.features[7:8]), top=N, seeds=6, method=method, refine=refine)
    found = search(index, wanted(index, [7]), top=N, seeds=6, method=method, refine=refine)
    keep = hits.ids[0] != 7
    np.testing.assert_array_equal(found.ids, hits.ids[0][keep])
    np.testing.assert_allclose(found.scores, hits.scores[0][keep], rtol=1e-5, atol=1e-6)


def test_the_second_look_with_unwanted_pictures_is_the_cosine_of_the_signed_sum(index):
    positive, negative = [3, 8], [5]
    f = signed_sum(index, positive, negative)
    own = np.zeros((N, N))
    for i in range(N):
        ids, values = stored_column(index, i)
        own[i, ids[:REFINE_DEPTH]] = values[:REFINE_DEPTH]
    expected = own @ f / np.linalg.norm(f) / np.linalg.norm(own, axis=1)
    found = search(index, wanted(index, positive, negative), top=N, seeds=5)
    named = [*positive, *negative]
    left = [i for i in range(N) if f[i] > 0 and expected[i] > 1e-5 and i not in named]
    looked_at = np.arange(len(found.ids)) < len(left)
    assert looked_at.sum() > 5
    np.testing.assert_allclose(found.scores[looked_at], expected[found.ids[looked_at]], rtol=2e-3, atol=1e-5)
    assert set(left) == set(found.ids[looked_at].tolist())
    far = count_far(index, *found, len(left), *signed_seeds(index, positive, negative), named)
    assert np.count_nonzero(found.scores) == len(left) + far


def test_hits_behind_the_candidates_go_on_below_them(index):
    query = wanted(index, [3, 8], [5])
    plain, found = search(index, query, top=N, refine=0), search(index, query, top=N, refine=6)
    assert set(found.ids[:6].tolist()) <= set(plain.ids[:6].tolist())
    assert (np.diff(found.scores) <= 0).all()
    assert np.count_nonzero(found.scores) > 6


def test_what_is_not_wanted_pushes_its_neighbours_down(index):
    plain = search(index, wanted(index, [3]), top=N, refine=0)
    unwanted = int(plain.ids[0])
    neighbour = int(next(i for i in search(index, wanted(index, [unwanted]), top=5).ids if i != 3))
    after = search(index, wanted(index, [3], [unwanted]), top=N, refine=0)
    assert unwanted not in after.ids
    score = dict(zip(plain.ids.tolist(), plain.scores.tolist(), strict=True))[neighbour]
    assert dict(zip(after.ids.tolist(), after.scores.tolist(), strict=True))[neighbour] < score


def test_vectors_and_pictures_mix(index):
    vector = scattered(np.random.default_rng(3), 1, D)
    f = reference.diffuse(vector, index.features, stored_columns(index), 5, index.params)
    f = f + signed_sum(index, [4], [9])
    found = search(index, wanted(index, [4], [9], vector), top=N, seeds=5, refine=0)
    expected = [i for i in np.flatnonzero(f > 0).tolist() if i not in (4, 9)]
    reached = np.arange(len(found.ids)) < len(expected)
    assert sorted(found.ids[reached].tolist()) == expected
    parts = reference.seeds_of(vector, index.features, 5, index.params), signed_seeds(index, [4], [9])
    y = [np.concatenate(both) for both in zip(*parts, strict=True)]
    assert np.count_nonzero(found.scores) == len(expected) + count_far(index, *found, len(expected), *y, [4, 9])
    np.testing.assert_allclose(found.scores[reached], f[found.ids[reached]], rtol=1e-5, atol=1e-9)


def test_the_ranking_by_cosine_is_by_one_direction(index):
    vector = scattered(np.random.default_rng(3), 1, D)
    rows = index.features.astype(np.float64)
    expected = (rows @ (vector[0] + rows[4] - NEGATIVE * rows[9])) / 2
    found = search(index, wanted(index, [4], [9], vector), top=7, method="knn")
    rest = [i for i in np.argsort(-expected).tolist() if i not in (4, 9)][:7]
    assert found.ids.tolist() == rest
    np.testing.assert_allclose(found.scores, expected[rest], rtol=1e-5)


@settings(deadline=None, max_examples=25)
@given(
    allowed=st.sets(st.integers(0, N - 1), min_size=1, max_size=N),
    top=st.integers(1, N),
    refine=st.sampled_from([None, 0, 5]),
    method=st.sampled_from(["diffusion", "knn"]),
)
def test_a_filter_gives_as_many_hits_as_exist_in_the_order_without_it(index, allowed, top, refine, method):
    mask = np.isin(np.arange(N), list(allowed))
    query = wanted(index, [3], [5])
    found = search(index, query, top=top, method=method, refine=refine, allowed=mask)
    assert len(found.ids) == min(top, len(allowed - {3, 5}))
    assert set(found.ids.tolist()) <= allowed - {3, 5}
    if refine != 5:  # there the candidates are others
        everything = search(index, query, top=N, method=method, refine=refine)
        assert found.ids.tolist() == [i for i in everything.ids.tolist() if mask[i]][:top]
    assert mask.sum() == len(allowed)  # the caller's mask is not changed


@pytest.mark.parametrize("kind", ["regional_index", "pooled_index"])
@pytest.mark.parametrize("method", ["diffusion", "knn"])
def test_a_picture_of_regions_is_all_its_regions(kind, method, request):
    index = request.getfixturevalue(kind)
    rows = index.features[index.owners == 4]
    hits = index.search(np.array(rows), top=len(index), seeds=4, method=method, owners=np.zeros(len(rows), int))
    found = search(index, wanted(index, [4]), top=len(index), seeds=4, method=method)
    expected = [i for i in hits.ids[0].tolist() if i != 4 and i < 25]  # others of the index have no regions
    assert found.ids.tolist() == expected
    scores = dict(zip(hits.ids[0].tolist(), hits.scores[0].tolist(), strict=True))
    np.testing.assert_allclose(found.scores, [scores[i] for i in expected], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("kind", ["regional_index", "pooled_index"])
@pytest.mark.parametrize("method", ["diffusion", "knn"])
def test_regions_that_are_not_wanted_count_against(kind, method, request):
    index = request.getfixturevalue(kind)
    plain = search(index, wanted(index, [4]), top=30, method=method, refine=0)
    signed = search(index, wanted(index, [4], [int(plain.ids[0])]), top=30, method=method, refine=0)
    looked = search(index, wanted(index, [4], [int(plain.ids[0])]), top=30, method=method)
    before, after = (dict(zip(f.ids.tolist(), f.scores.tolist(), strict=True)) for f in (plain, signed))
    assert set(after) == set(before) - {int(plain.ids[0])} == set(looked.ids.tolist())
    if method == "diffusion":
        assert all(after[i] <= before[i] + 1e-6 for i in after)
    assert any(after[i] < before[i] for i in after)
    assert np.isfinite(looked.scores).all()


def test_the_second_look_of_regions_takes_the_roots_of_both_sides(pooled_index):
    query = wanted(pooled_index, [4], [7])
    y = find_seeds(pooled_index.now, query, 5)
    columns = stored_columns(pooled_index, 20)
    plus, minus = (
        np.sqrt(columns[:, y.ids[part]] @ np.abs(y.weights[part])) for part in (y.weights > 0, y.weights < 0)
    )
    images = pooled_index.now.candidates(np.arange(20))
    images = images._replace(values=images.values.view(np.float16))
    found = search(pooled_index, query, top=20, seeds=5)
    above = found.scores > 0
    assert above.sum() > 3
    length = np.sqrt(np.abs(plus**2 - minus**2).sum())
    for id, score in zip(found.ids[above].tolist(), found.scores[above].tolist(), strict=True):
        own = np.zeros(20)
        places = slice(images.starts[id], images.stops[id])
        own[images.entries[places]] = images.values[places]
        assert score == pytest.approx(own @ (plus - minus) / np.linalg.norm(own) / length, rel=1e-3, abs=1e-5)


def test_what_makes_no_sense_is_refused(index, regional_index):
    for positive, negative, message in (
        ([N], [], f"there is no image {N}; ids go from 0 to {N - 1}"),
        ([-1], [], "there is no image -1"),
        ([3], [4, 3], "image 3 is both wanted and not wanted"),
        ([], [4], "nothing is wanted"),
    ):
        with pytest.raises(InvalidInput, match=message):
            wanted(index, positive, negative)
    with pytest.raises(InvalidInput, match="image 26 has no regions"):
        wanted(regional_index, [26])
    for options in ({"top": 0}, {"seeds": 0}, {"method": "magic"}):
        with pytest.raises(InvalidParams, match="must be"):
            search(index, wanted(index, [1]), **options)


def test_whitened_features_are_not_whitened_twice(tmp_path):
    features = curves(np.random.default_rng(2), N, D)
    index = build_and_open(features, tmp_path, Params(k=8, truncation=60, keep=30, whiten=5))
    found = search(index, wanted(index, [7]), top=N, method="knn")
    rows = index.features.astype(np.float64)
    assert found.ids[:10].tolist() == [i for i in np.argsort(-(rows @ rows[7])).tolist() if i != 7][:10]
    by_vector = search(index, wanted(index, vectors=index.prepare(features[7:8])), top=N, method="knn")
    assert [i for i in by_vector.ids.tolist() if i != 7] == found.ids.tolist()
