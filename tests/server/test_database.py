"""The service over an index in a real PostgreSQL: it answers as it does for the index that was exported."""

import numpy as np
import pytest
from tests.support import serving
from tests.support.by_sql import rank_by_columns
from tests.support.serving import EXPORTED, D, N, check_hits, ids, name_of

import suffuse
from suffuse import Index, Params
from suffuse.index import search as similar
from suffuse.index.explain import explain
from suffuse.postgres import export_index
from suffuse.server import Limits
from suffuse.server.database import NO_GRAPH, DatabaseEngine
from suffuse.server.queries import Queries

pytest_plugins = ["tests.support.exported"]


@pytest.fixture(scope="module", params=EXPORTED)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def index(paths, kind):
    return Index.open(paths[kind]).now


@pytest.fixture(scope="module")
def client(server, paths, kind):
    with serving.serve(server.url, schema=f"served {kind}") as client:
        yield client


# --- search


@pytest.mark.parametrize("method", ["diffusion", "knn"])
@pytest.mark.parametrize(
    ("positive", "negative"), [([3], []), ([3, 8, 41], []), ([3, 8], [5]), ([3], [4, 5, 6]), ([10, 10], [11, 11])]
)
def test_hits_are_those_of_the_index(client, index, method, positive, negative):
    for top, seeds in ((12, 4), (N, 10), (1000, 1000)):
        answer = client.search(positive=positive, negative=negative, top=top, seeds=seeds, method=method)
        query = similar.compose(index, positive, negative)
        expected = similar.search(index, query, top, seeds, method=method, refine=0)
        if method == "diffusion" and index.has_districts:  # which are not in the database
            expected = rank_by_columns(index, query, top, seeds)
        check_hits(answer, expected, method)
        assert not {*positive, *negative} & set(ids(answer, method))
        assert answer["took_ms"] >= answer["results"][method]["took_ms"] > 0


def test_some_hits_are_reached_by_diffusion_and_some_are_not(client):
    scores = [hit["score"] for hit in client.search(positive=[3], negative=[5], top=N)["results"]["diffusion"]["hits"]]
    reached = sum(score > 0 for score in scores)
    assert 0 < reached < len(scores) == N - 2
    assert scores[reached:] == [0] * (N - 2 - reached)


def test_exact_seeds_and_links_find_the_same_here(server, paths, index, kind):
    request = suffuse.server.models.SearchRequest(positive=[3, 8], negative=[5], top=N, seeds=5)
    found = []
    for exact in (False, True):
        engine = DatabaseEngine(server.url, f"served {kind}", Queries(None, None, Limits()), exact=exact)
        with engine.open_view() as view:
            found.append(view.search(request))
        assert engine.summarize().images == N
        engine.close()
    assert ids(found[0]) == ids(found[1])


def test_vectors_are_prepared_searched_and_remembered(client, index):
    vectors = 7 * np.random.default_rng(1).normal(size=(2, D))
    answer = client.search(vectors=vectors.tolist(), top=9, method="diffusion")
    check_hits(answer, similar.search(index, similar.compose(index, vectors=index.prepare(vectors)), 9, refine=0))
    assert answer["query"].startswith("q-")
    assert ids(client.search(query=answer["query"], top=9)) == ids(answer)
    feedback = client.search(query=answer["query"], positive=[4], negative=[9], top=9, method="diffusion")
    query = similar.compose(index, [4], [9], index.prepare(vectors))
    check_hits(feedback, similar.search(index, query, 9, refine=0))
    taken_back = client.search(query=feedback["query"], positive=[], negative=[], top=9)
    assert ids(taken_back) == ids(answer)


def test_queries_of_items_are_told_by_their_ids(plain):
    answer = plain.search(positive=[3, 8], negative=[5], top=9)
    assert answer["query"] == "i:3,8,-5"
    assert ids(plain.search(query="i:3,8,-5", top=9)) == ids(answer)
    assert plain.search(query="i:3,8,-5", negative=[])["query"] == "i:3,8"


def test_both_lists_tell_the_rank_in_the_other(plain):
    answer = plain.search(positive=[3], top=10)
    everything = {kind: ids(plain.search(positive=[3], top=N, method=kind), kind) for kind in ("diffusion", "knn")}
    for method, other in (("diffusion", "knn"), ("knn", "diffusion")):
        assert ids(answer, method) == everything[method][:10]
        for hit in answer["results"][method]["hits"]:
            assert hit["other_rank"] == everything[other].index(hit["id"]) + 1
            assert hit == {**plain.json(f"/api/items/{hit['id']}"), **{k: hit[k] for k in ("score", "rank", "other_rank")}}  # fmt: skip  # noqa: E501


@pytest.mark.parametrize(
    "filter",
    [
        {"place": "Rome"}, {"place": ["Rome", "Paris", "Atlantis"]}, {"place": []}, {"good": True}, {"good": [False]},
        {"year": {"min": 2000, "max": 2020}}, {"year": {"min": 2010.5}, "place": "Rome"}, {"year": [1991, 2001.0]},
        {"year": {}}, {"year": {"max": 1e300}}, {"year": {"min": -1e300, "max": 1995}}, {"place": 3}, {"good": 1},
        {"place": "Ro\0me"}, {"place": "' OR true --"}, {"year": "1991"}, {},
    ],
)  # fmt: skip
def test_a_filter_leaves_what_it_leaves_of_the_index(plain, opened, filter):
    for method in ("diffusion", "knn"):
        request = {"positive": [3], "top": N, "filter": filter, "method": method, "refine": False}
        found = plain.search(**request)
        assert ids(found, method) == ids(opened.search(**request), method)
        assert len(ids(found, method)) < N - 1 or not filter


@pytest.mark.parametrize(
    "request_",
    [
        {}, {"negative": [3]}, {"positive": [N]}, {"positive": [2**31 - 1]}, {"positive": [-1]},
        {"positive": [3], "negative": [3]}, {"positive": [3], "top": 0}, {"positive": [3], "seeds": 1001},
        {"positive": [3], "filter": {"nothing": 1}}, {"positive": [3], "filter": {"odd": 1}},
        {"positive": [3], "filter": {"pl\0ace": 1}}, {"positive": [3], "filter": {"place": {"min": 1}}},
        {"vectors": [[1.0] * (D + 1)]}, {"vectors": [[1.0] * D, [1.0]]}, {"vectors": [[0.0] * D]}, {"vectors": [[]]},
        {"vectors": [[1.0] * D], "query": "i:3"}, {"query": f"i:{N}"}, {"query": "i:-3"}, {"query": "nonsense"},
        {"positive": [3, 8], "box": [0, 0, 1, 1]},
    ],
)  # fmt: skip
def test_requests_that_make_no_sense_are_told_so_in_the_same_words(plain, opened, request_):
    told, expected = (served.search(422, **request_)["error"]["message"] for served in (plain, opened))
    # JSON in a database does not keep the order of its keys.
    assert told.partition("fields are")[0] == expected.partition("fields are")[0]


def test_pictures_need_a_model_and_their_folder(server, paths, plain, tmp_path):
    upload = serving.file_of(serving.picture(4))
    plain.upload(upload, 409)
    plain.search(409, positive=[3], box=[0, 0, 1, 1])
    plain.get("/api/items/3/thumb", 404)
    serving.write_pictures(tmp_path)
    options = {"image_root": tmp_path, "extractor": serving.FakeModel()}
    with (
        serving.serve(server.url, schema="served plain", **options) as client,
        serving.serve(paths["plain"], **options) as expected,
    ):
        info = client.json("/api/info")
        assert info["pictures"]
        assert info["upload"]
        assert client.get("/api/items/3/thumb").content == expected.get("/api/items/3/thumb").content
        assert client.get("/api/items/3/image").content == (tmp_path / name_of(3)).read_bytes()
        for ask in (
            lambda served: served.upload(upload, refine=False),
            lambda served: served.upload(upload, box=[0, 0, 0.5, 1], refine=False),
            lambda served: served.search(positive=[3], box=[0.1, 0.1, 0.9, 0.8], refine=False),
        ):
            assert ids(ask(client)) == ids(ask(expected))
    with serving.serve(server.url, schema="served plain", extractor=serving.FakeModel(D + 1)) as client:
        client.upload(upload, 409)


# --- explain


@pytest.mark.parametrize(("positive", "negative"), [([3], []), ([3, 8], [5]), ([20, 21, 22], [23, 40])])
def test_contributions_are_those_of_the_index(client, index, positive, negative):
    answer = client.search(positive=positive, negative=negative, top=N, seeds=4, method="diffusion")
    y = similar.find_seeds(index, similar.compose(index, positive, negative), 4)
    for item in (*ids(answer)[:3], ids(answer)[-1], positive[0]):
        told = client.json("/api/explain", params={"query": answer["query"], "item": item, "seeds": 4})
        expected = explain(index, y, item)
        assert told["score"] == pytest.approx(expected.score, rel=1e-4, abs=1e-9)
        assert [one["seed"]["id"] for one in told["contributions"]] == [one.seed for one in expected.contributions]
        for one, other in zip(told["contributions"], expected.contributions, strict=True):
            assert one["seed"] == client.json(f"/api/items/{other.seed}")
            named = {key: value for key, value in other._asdict().items() if key != "seed"}
            assert {key: one[key] for key in named} == pytest.approx(named, rel=1e-3, abs=1e-9)
        assert told["item"] == client.json(f"/api/items/{item}")
        assert (told["chain"], told["chain_missing"]) == (None, NO_GRAPH)


def test_remembered_queries_are_explained(plain):
    answer = plain.search(vectors=[[1.0] * D], top=3)
    told = plain.json("/api/explain", params={"query": answer["query"], "item": ids(answer)[0]})
    assert told["score"] == pytest.approx(answer["results"]["diffusion"]["hits"][0]["score"], rel=1e-5)


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        ({"query": "i:3", "item": N}, 404),
        ({"query": "i:3", "item": 10**30}, 404),
        ({"query": "q-nothing", "item": 3}, 404),
        ({"query": f"i:{N}", "item": 3}, 422),
        ({"query": "what", "item": 3}, 422),
        ({"query": "i:3", "item": 3, "seeds": 0}, 422),
    ],
)
def test_explanations_of_nothing_are_refused(plain, asked, status):
    plain.json("/api/explain", status, params=asked)


# --- what there is


@pytest.mark.parametrize("options", [{}, {"token": "t"}])
def test_changes_are_to_be_made_to_the_index_itself(server, paths, options):
    with serving.serve(server.url, schema="served plain", **options) as client:
        client._client.headers["Authorization"] = "Bearer t"
        for method, address in (
            ("POST", "/api/items"), ("PUT", "/api/items/3"), ("DELETE", "/api/items/3"), ("POST", "/api/compact"),
        ):  # fmt: skip
            assert "export" in client(method, address, 501, json={"vectors": [[1.0] * D]}).json()["error"]["hint"]
        told = client.json("/api/changes")
        assert (told["enabled"], told["images"], told["stale"]) == (False, N, 0)
        assert told["generation"] >= 1


def test_it_tells_what_the_index_tells(plain, opened):
    told, expected = plain.json("/api/info"), opened.json("/api/info")
    assert told == {**expected, "name": "postgres/served plain", "chain": False}
    assert plain.json("/healthz") == plain.json("/readyz") == {"status": "ok"}
    assert f"suffuse_images {N}" in plain.get("/metrics").text
    plain.get("/docs")
    for id in (0, 5, N - 1):
        assert plain.json(f"/api/items/{id}") == opened.json(f"/api/items/{id}")
    for id in (N, 10**30):
        plain.json(f"/api/items/{id}", 404)


@pytest.mark.parametrize(
    "asked",
    [{}, {"limit": 7}, {"offset": 55, "limit": 10}, {"offset": N + 5}, {"offset": 2**31 - 1}, {"q": "PICTURE 1"},
     {"q": "b/", "offset": 3, "limit": 4}, {"q": "nothing like it"}, {"q": "%"}, {"q": "_"}, {"q": "\0"}, {"q": "'"}],
)  # fmt: skip
def test_pages_are_those_of_the_index(plain, opened, asked):
    assert plain.json("/api/items", params=asked) == opened.json("/api/items", params=asked)


def test_a_shuffled_order_stays_the_same_and_has_everything(plain):
    def listed(**asked):
        return [item["id"] for item in plain.json("/api/items", params=asked)["items"]]

    order = listed(shuffle=7, limit=500)
    assert sorted(order) == list(range(N))
    assert listed(shuffle=7, offset=20, limit=15) == order[20:35]
    assert listed(shuffle=2**53, limit=500) != order != list(range(N))
    assert listed(shuffle=7, q="b/", limit=500) == [id for id in order if id % 2]


def test_fields_of_all_kinds_are_told_as_the_index_tells_them(server, tmp_path):
    many = [{"name": f"x{id}", "tag": f"v{id % 70:03}", "none": None, "mixed": [1, "1"][id % 2]} for id in range(100)]
    for id, item in enumerate(many[:30]):
        item["size"] = [id - 3, 0.5, 1e20][id % 3]
        item["late ' \" %s {x}"] = "one"
    features = np.random.default_rng(2).normal(size=(100, 4))
    suffuse.build(features, tmp_path / "x.index", Params(k=5, keep=10), names=many)
    export_index(tmp_path / "x.index", server.url, "served fields")
    with serving.serve(server.url, schema="served fields") as client, serving.serve(tmp_path / "x.index") as opened:
        assert client.json("/api/info")["metadata"] == opened.json("/api/info")["metadata"]
        for filter in ({"late ' \" %s {x}": "one"}, {"size": 1e20}, {"size": {"min": 0.5}}, {"tag": ["v000"]}):
            request = {"positive": [50], "top": 100, "filter": filter, "method": "knn"}
            assert ids(client.search(**request), "knn") == ids(opened.search(**request), "knn") != []
