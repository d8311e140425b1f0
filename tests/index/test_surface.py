"""What people write: builds by keywords, any array-like, images by id, filters, hits that read well, errors."""

import numpy as np
import pytest
from tests.support.data import clusters, scattered
from tests.support.indexes import same_hits

import suffuse
from suffuse import Hits, IndexBroken, IndexExists, IndexMissing, InvalidInput, InvalidParams, Params
from suffuse.index.snapshot import Snapshot

N, D = 60, 8
SMALL = {"k": 6, "truncation": 40, "keep": 20}
ITEMS = [{"name": f"photo {i}", "year": 1990 + i % 10, "place": "Rome" if i % 3 else "Paris"} for i in range(N)]


@pytest.fixture(scope="module")
def features():
    return clusters(np.random.default_rng(1), N, D, count=5)


@pytest.fixture(scope="module")
def index(features, tmp_path_factory):
    return suffuse.build(
        features, tmp_path_factory.mktemp("surface") / "x.index", names=ITEMS, with_graph=True, **SMALL
    )


class Tensor:
    """What torch and jax have in common."""

    def __init__(self, values):
        self.values = values

    def __array__(self, dtype=None, copy=None):
        return np.asarray(self.values, dtype)


def test_a_build_takes_keywords_and_returns_the_open_index(index, features):
    assert index.params == Params(with_graph=True, **SMALL)
    assert (index.summary.images, index.summary.dimensions) == (N, D)
    assert repr(index) == f"Index({str(index.path)!r}, images={N}, dimensions={D})"
    assert suffuse.open(index.path).summary is None
    same_hits(suffuse.open(index.path).search(features[:3]), index.search(features[:3]))


def test_params_and_keywords_are_not_mixed_and_unknown_ones_are_named(features, tmp_path):
    with pytest.raises(InvalidParams, match="params and alpha were given"):
        suffuse.build(features, tmp_path / "x.index", Params(k=5), alpha=0.9)
    with pytest.raises(InvalidParams, match="there is no parameter 'neighbors'; there are k, graph, alpha"):
        suffuse.build(features, tmp_path / "x.index", neighbors=5)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("kind", [list, tuple, Tensor], ids=["list", "tuple", "tensor"])
def test_features_and_queries_may_be_anything_like_an_array(index, features, tmp_path, kind):
    given = Tensor(features) if kind is Tensor else kind(features.tolist())
    built = suffuse.build(given, tmp_path / "x.index", **SMALL)
    np.testing.assert_allclose(built.features, index.features, atol=1e-6)
    same_hits(built.search(given), built.search(np.asarray(features, built.features.dtype)))
    assert len(built.add(given).ids) == N


def test_whole_numbers_in_a_list_are_numbers(tmp_path):
    rows = scattered(np.random.default_rng(3), 12, 4)
    whole = np.round(rows * 100).astype(int).tolist()
    index = suffuse.build(whole, tmp_path / "x.index", k=4)
    assert index.search(whole[3], method="knn")[0].id == 3


def test_one_vector_is_a_query(index, features):
    one, several = index.search(features[7], top=5), index.search(features[7:8], top=5)
    assert (one.ids.shape, several.ids.shape) == ((5,), (1, 5))
    same_hits(one, several[0])
    with pytest.raises(InvalidInput, match="owners are for several vectors"):
        index.search(features[7], owners=np.array([0]))


def test_a_context_lets_the_files_go(index):
    with suffuse.open(index.path) as opened:
        assert len(opened) == N
    assert repr(opened).endswith("closed)")
    with pytest.raises(InvalidInput, match=r"x\.index was closed; open it again"):
        opened.search(np.ones(D))


def test_ids_are_in_an_index_or_not(index):
    assert 3 in index
    assert np.int32(N - 1) in index
    assert not any(id in index for id in (N, -1, 2**63, True, 1.0, "3", None))


def test_hits_unpack_index_and_have_names(index, features):
    hits = index.search(features[:2], top=4)
    ids, scores = hits
    assert (len(hits), ids.shape, scores.dtype) == (2, (2, 4), np.float32)
    first = hits[0]
    assert isinstance(first, Hits)
    assert first[0] == (int(ids[0, 0]), float(scores[0, 0]), f"photo {ids[0, 0]}")
    assert hits.names == [[f"photo {id}" for id in row] for row in ids.tolist()]
    assert [row.to_list() for row in hits.rows()] == hits.to_list()
    assert first.to_list()[1] == {"id": int(ids[0, 1]), "score": float(scores[0, 1]), "name": f"photo {ids[0, 1]}"}


def test_hits_are_shown_as_a_table(index, features):
    lines = repr(index.search(features[7], top=30, method="knn")).splitlines()
    assert lines[0].split() == ["id", "score", "name"]
    assert lines[1].split()[0] == "7"
    assert lines[1].endswith("photo 7")
    assert (len(lines), lines[-1]) == (22, "... 30 hits")
    several = repr(index.search(features[:5], top=2)).splitlines()
    assert [line for line in several if "quer" in line] == ["query 0", "query 1", "query 2", "... 5 queries"]
    unnamed = Hits(np.array([4, -1]), np.zeros(2, np.float32))
    assert unnamed.to_list() == [{"id": 4, "score": 0.0, "name": "4"}]


@pytest.mark.parametrize("method", ["diffusion", "knn"])
def test_images_of_the_index_are_wanted_or_not(index, features, method):
    by_vector = index.search(features[7], top=N, method=method)
    by_id = index.search(like=7, top=N, method=method)
    assert by_id.ids.tolist() == [id for id in by_vector.ids.tolist() if id != 7]
    unlike = int(by_id.ids[0])
    without = index.search(like=[7], unlike=[unlike], top=N, method=method)
    assert {7, unlike}.isdisjoint(without.ids.tolist())
    assert len(without) == N - 2
    together = index.search(features[8], like=[7], top=5, method=method)
    assert 7 not in together.ids
    with pytest.raises(InvalidInput, match="there is no image 99"):
        index.search(like=[99])
    with pytest.raises(InvalidInput, match="like and unlike are ids of images"):
        index.search(like=[1.5])
    with pytest.raises(InvalidInput, match="nothing is asked for"):
        index.search()


@pytest.mark.parametrize(
    ("where", "fits"),
    [
        ({"place": "Paris"}, lambda item: item["place"] == "Paris"),
        ({"year": [1991, 1993]}, lambda item: item["year"] in (1991, 1993)),
        (
            {"year": {"min": 1995}, "place": ("Rome", "Oslo")},
            lambda item: item["year"] >= 1995 and item["place"] == "Rome",
        ),
        ({"year": {"min": 1992, "max": 1994}}, lambda item: 1992 <= item["year"] <= 1994),
        ({"place": "Oslo"}, lambda _: False),
    ],
)
def test_a_filter_leaves_images_with_that_metadata(index, features, where, fits):
    expected = {id for id, item in enumerate(ITEMS) if fits(item)}
    hits = index.search(features[4], top=N, where=where)
    assert set(hits.ids.tolist()) == expected
    several = index.search(features[:3], top=N, where=where)
    assert several.ids.shape == (3, len(expected))
    if expected:
        same_hits(several[1], index.search(features[1], top=N, where=where))


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"colour": "red"}, "there is no field 'colour' to filter by; fields are: year, place"),
        ({"place": {"min": 3}}, "the field 'place' holds no numbers"),
        ({"year": {"from": 3}}, "the filter of 'year' has the keys from; give min, max or both"),
    ],
)
def test_filters_that_make_no_sense_are_told(index, features, where, message):
    with pytest.raises(InvalidInput, match=message):
        index.search(features[0], where=where)


def test_an_explanation_sums_to_the_score(index, features):
    hits = index.search(features[9], top=3, refine=0)
    told = index.explain(hits[1], features[9])
    assert told.score == pytest.approx(hits[1].score, rel=1e-5)
    assert sum(one.amount for one in told.contributions) == pytest.approx(told.score)
    assert told.chain.nodes[-1] == hits[1].id
    by_id = index.search(like=[9], unlike=[30], top=3, refine=0)
    assert index.explain(by_id[0], like=[9], unlike=[30]).score == pytest.approx(by_id[0].score, rel=1e-5)


def test_arrays_are_ranked_without_files(index, features):
    hits = suffuse.rerank(features, features[:4], top=6, **SMALL)
    same_hits(hits, index.search(features[:4], top=6))
    assert hits.names == [[str(id) for id in row] for row in hits.ids.tolist()]


def test_what_was_renamed_says_so(index, features):
    with pytest.raises(InvalidParams, match="knn was renamed; write seed_index"):
        index.search(features[0], knn=object())


def test_errors_are_also_the_built_in_ones(index, features, tmp_path):
    with pytest.raises(FileNotFoundError) as missing:
        suffuse.open(tmp_path / "nowhere")
    assert missing.type is IndexMissing
    with pytest.raises(FileExistsError) as there:
        suffuse.build(features, index.path, **SMALL)
    assert there.type is IndexExists
    with pytest.raises(ValueError, match="alpha must be"):
        suffuse.build(features, tmp_path / "x.index", alpha=2)
    with pytest.raises(TypeError, match="there is no parameter"):
        suffuse.build(features, tmp_path / "x.index", kk=2)
    with pytest.raises(ValueError, match="queries have 3 dimensions"):
        index.search(np.ones(3))


def test_damage_is_worded_once(index, tmp_path, monkeypatch):
    monkeypatch.setattr("suffuse.index.snapshot.first_damaged_column", lambda *_: 0)
    now = Snapshot.open(index.path)
    monkeypatch.setattr("suffuse.store.files.first_damaged_span", lambda *_: 0)
    with pytest.raises(
        IndexBroken, match=r"^indptr\.npy was changed or damaged, near row \d+; copy or build the index again$"
    ):
        now.columns(np.array([3]))
