"""Searches and explanations over HTTP say what the library says."""

import numpy as np
import pytest
from tests.support import serving
from tests.support.serving import D, N, ids

from suffuse import Index, Params
from suffuse.index import search as similar
from suffuse.index.explain import explain
from suffuse.server import Limits


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return serving.build(tmp_path_factory.mktemp("search"))


@pytest.fixture(scope="module")
def index(path):
    return Index.open(path).now


@pytest.fixture(scope="module")
def client(path):
    with serving.serve(path) as client:
        yield client


@pytest.mark.parametrize("method", ["diffusion", "knn"])
@pytest.mark.parametrize("refine", [True, False])
@pytest.mark.parametrize(("positive", "negative"), [([3], []), ([3, 8], [5])])
def test_hits_are_those_of_the_library(client, index, method, refine, positive, negative):
    request = {"positive": positive, "negative": negative, "top": 12, "seeds": 4, "refine": refine, "method": method}
    answer = client.search(**request)
    query = similar.compose(index, positive, negative)
    found = similar.search(index, query, 12, 4, method=method, refine=None if refine else 0)
    assert set(answer["results"]) == {method}
    hits = answer["results"][method]["hits"]
    assert [hit["id"] for hit in hits] == found.ids.tolist()
    np.testing.assert_allclose([hit["score"] for hit in hits], found.scores, rtol=1e-6)
    assert [hit["rank"] for hit in hits] == list(range(1, 13))
    assert {hit["other_rank"] for hit in hits} == {None}
    assert hits[0] == {**client.json(f"/api/items/{hits[0]['id']}"), "score": hits[0]["score"], "rank": 1, "other_rank": None}  # fmt: skip  # noqa: E501
    assert answer["took_ms"] >= answer["results"][method]["took_ms"] > 0


def test_both_lists_tell_the_rank_in_the_other(client):
    answer = client.search(positive=[3], top=10)
    everything = {method: ids(client.search(positive=[3], top=N, method=method), method) for method in ("diffusion", "knn")}  # fmt: skip  # noqa: E501
    for method, other in (("diffusion", "knn"), ("knn", "diffusion")):
        assert ids(answer, method) == everything[method][:10]
        for hit in answer["results"][method]["hits"]:
            assert hit["other_rank"] == everything[other].index(hit["id"]) + 1


def test_ranks_beyond_the_first_thousand_are_not_told(client, monkeypatch):
    monkeypatch.setattr("suffuse.server.engine.OTHER_RANKS", 2)
    hits = client.search(positive=[3], top=N)["results"]["knn"]["hits"]
    assert sorted(hit["other_rank"] for hit in hits if hit["other_rank"]) == [1, 2]


def test_vectors_are_searched_and_remembered(client, index):
    vectors = np.random.default_rng(1).normal(size=(2, D))
    answer = client.search(vectors=vectors.tolist(), top=9, method="diffusion")
    query = similar.compose(index, vectors=index.prepare(vectors))
    assert ids(answer) == similar.search(index, query, 9).ids.tolist()
    assert answer["query"].startswith("q-")
    again = client.search(query=answer["query"], top=9, method="diffusion")
    assert ids(again) == ids(answer)
    feedback = client.search(query=answer["query"], positive=[4], negative=[9], top=9, method="diffusion")
    query = similar.compose(index, [4], [9], index.prepare(vectors))
    assert ids(feedback) == similar.search(index, query, 9).ids.tolist()
    # The token of an answer holds its feedback, until other feedback is given.
    assert ids(client.search(query=feedback["query"], top=9, method="diffusion")) == ids(feedback)
    taken_back = client.search(query=feedback["query"], positive=[], negative=[], top=9, method="diffusion")
    assert ids(taken_back) == ids(answer)


def test_queries_of_items_are_told_by_their_ids(client):
    answer = client.search(positive=[3, 8], negative=[5], top=9)
    assert answer["query"] == "i:3,8,-5"
    assert ids(client.search(query="i:3,8,-5", top=9)) == ids(answer)
    assert not {3, 8, 5} & set(ids(answer) + ids(answer, "knn"))
    assert client.search(query="i:3,8,-5", negative=[])["query"] == "i:3,8"
    assert client.search(positive=[3, 3])["query"] == "i:3"


def test_tokens_are_forgotten_in_the_order_of_their_use(path):
    with serving.serve(path, limits=Limits(remembered=2)) as client:
        first, second = (client.search(vectors=[[1.0] * D], top=1)["query"] for _ in range(2))
        client.search(query=first, top=1)  # which makes a third, in place of the second
        client.search(404, query=second)


@pytest.mark.parametrize(
    ("filter", "right"),
    [
        ({"place": "Rome"}, lambda item: item["place"] == "Rome"),
        ({"place": ["Rome", "Paris", "Atlantis"]}, lambda item: item["place"] in ("Rome", "Paris")),
        ({"good": True}, lambda item: item["good"]),
        ({"year": {"min": 2000, "max": 2020}}, lambda item: 2000 <= item.get("year", 0) <= 2020),
        (
            {"year": {"min": 2010.5}, "place": "Rome"},
            lambda item: item.get("year", 0) > 2010 and item["place"] == "Rome",
        ),
        ({"year": [1991, 2001]}, lambda item: item.get("year") in (1991, 2001)),
        ({"year": {}}, lambda item: "year" in item),
        ({"place": 3}, lambda _: False),
        ({"good": 1}, lambda _: False),
        ({}, lambda _: True),
    ],
)
def test_a_filter_leaves_all_that_fit(client, filter, right):
    expected = {id for id, item in enumerate(serving.items()) if right(item)} - {3}
    for method in ("diffusion", "knn"):
        answer = client.search(positive=[3], top=N, filter=filter, method=method)
        assert set(ids(answer, method)) == expected


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"negative": [3]},
        {"positive": []},
        {"positive": [N]},
        {"positive": [-1]},
        {"positive": [3], "negative": [3]},
        {"positive": "3"},
        {"positive": [3.5]},
        {"positive": [10**30]},
        {"positive": [3] * 101},
        {"positive": [3], "negative": [4] * 101},
        {"positive": [3], "top": 0},
        {"positive": [3], "top": 1001},
        {"positive": [3], "seeds": 1001},
        {"positive": [3], "method": "magic"},
        {"positive": [3], "unknown": 1},
        {"positive": [3], "filter": {"nothing": 1}},
        {"positive": [3], "filter": {"place": {"min": 1}}},
        {"positive": [3], "filter": {"year": {"least": 1}}},
        {"positive": [3], "filter": {"place": None}},
        {"positive": [3], "filter": "place"},
        {"vectors": []},
        {"vectors": [[]]},
        {"vectors": [[1.0] * (D + 1)]},
        {"vectors": [[1.0] * D, [1.0]]},
        {"vectors": [[0.0] * D]},
        {"vectors": [["1"] * D]},
        {"vectors": [[1.0] * D] * 101},
        {"vectors": [[1.0] * D], "query": "i:3"},
        {"query": "i:"},
        {"query": "i:3,"},
        {"query": "i:--3"},
        {"query": "i:3;8"},
        {"query": f"i:{N}"},
        {"query": "i:-3"},
        {"query": "nonsense"},
        {"query": "i:" + ",".join(["3"] * 101)},
        {"positive": [3, 8], "box": [0, 0, 1, 1]},
        {"vectors": [[1.0] * D], "box": [0, 0, 1, 1]},
        {"positive": [3], "box": [0, 0, 1]},
    ],
)
def test_requests_that_make_no_sense_are_told_so(client, request_):
    client.search(422, **request_)


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"null", b"[]", b'"x"', b'{"positive": [NaN]}', b'{"vectors": [[NaN, 1, 1, 1, 1, 1, 1, 1]]}',
     b'{"vectors": [[Infinity, 1, 1, 1, 1, 1, 1, 1]]}', b'{"vectors": [[1e999, 1, 1, 1, 1, 1, 1, 1]]}',
     b"\xff\xfe", b'{"query": "\\ud800"}', b"[" * 100_000, b'{"positive": [3], "filter": ' + b'{"a":' * 9000],
)  # fmt: skip
def test_bodies_that_are_no_request_are_told_so(client, body):
    client("POST", "/api/search", 422, content=body, headers={"Content-Type": "application/json"})


def test_other_kinds_of_bodies_are_refused(client):
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/xml", ""):
        client("POST", "/api/search", 415, content=b"{}", headers={"Content-Type": kind})


def test_explanations_are_those_of_the_library(client, index):
    answer = client.search(positive=[3, 8], negative=[5], top=5, seeds=4)
    for hit in answer["results"]["diffusion"]["hits"]:
        told = client.json("/api/explain", params={"query": answer["query"], "item": hit["id"], "seeds": 4})
        y = similar.find_seeds(index, similar.compose(index, [3, 8], [5]), 4)
        expected = explain(index, y, hit["id"])
        assert told["score"] == pytest.approx(expected.score)
        assert [one["seed"]["id"] for one in told["contributions"]] == [one.seed for one in expected.contributions]
        assert sum(one["share"] for one in told["contributions"]) == pytest.approx(1)
        for one, other in zip(told["contributions"], expected.contributions, strict=True):
            assert one["seed"] == client.json(f"/api/items/{other.seed}")
            assert {key: one[key] for key in ("similarity", "weight", "entry", "amount", "share")} == pytest.approx(
                {key: value for key, value in other._asdict().items() if key != "seed"}
            )
        assert [node["id"] for node in told["chain"]["nodes"]] == expected.chain.nodes
        assert told["chain"]["strength"] == pytest.approx(told["chain"]["start"] * np.prod(told["chain"]["steps"]))
        assert told["chain_missing"] is None
        assert told["item"] == client.json(f"/api/items/{hit['id']}")


def test_remembered_queries_are_explained(client):
    answer = client.search(vectors=[[1.0] * D], top=3, method="diffusion")
    first = ids(answer)[0]
    told = client.json("/api/explain", params={"query": answer["query"], "item": first})
    assert told["score"] > 0


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"query": "i:3", "item": N}, 404),
        ({"query": "q-nothing", "item": 3}, 404),
        ({"query": "i:3"}, 422),
        ({"item": 3}, 422),
        ({"query": "what", "item": 3}, 422),
        ({"query": "i:3", "item": -1}, 422),
        ({"query": "i:3", "item": 3, "seeds": 0}, 422),
        ({"query": "i:3", "item": 3, "seeds": 1001}, 422),
        ({"query": "x" * 5000, "item": 3}, 422),
    ],
)
def test_explanations_of_nothing_are_refused(client, asked, status):
    client.json("/api/explain", status, params=asked)


@pytest.mark.parametrize("pool", ["sum", "none"])
def test_an_index_of_regions_is_served(tmp_path, pool):
    import suffuse

    params = Params(k=8, truncation=60, keep=15, pool=pool, with_graph=True)
    suffuse.build(serving.features(), tmp_path / "x.index", params, owners=np.arange(N) % 20)
    model = serving.FakeModel()
    with serving.serve(tmp_path / "x.index", extractor=model) as client:
        assert client.json("/api/info")["regional"]
        answer = client.search(positive=[3], negative=[4], top=7)
        assert len(ids(answer)) == len(ids(answer, "knn")) == 7
        told = client.json("/api/explain", params={"query": answer["query"], "item": ids(answer)[0]})
        assert told["chain"]["nodes"][-1]["id"] == ids(answer)[0]
        assert len(ids(client.upload(serving.file_of(serving.picture(1)), top=7))) == 7
        assert len(model.seen) == 2  # two regions
