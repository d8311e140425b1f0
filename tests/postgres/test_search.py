"""Search and explain in SQL: the same hits and contributions as those of the index that was exported."""

import numpy as np
import psycopg
import pytest
from psycopg import sql
from tests.support import reference
from tests.support.by_sql import find_seeds, rank_by_columns
from tests.support.data import curves, lattice, scattered
from tests.support.postgres import assert_same_ranking

import suffuse
from suffuse import Index, InvalidInput, InvalidParams, Params
from suffuse.errors import DatabaseProblem
from suffuse.index import search as similar
from suffuse.index.explain import explain
from suffuse.postgres import PostgresIndex, export_index

N, D, M = 200, 12, 8
# Columns so short that diffusion never reaches everything.
KINDS = {
    "coded": Params(k=8, truncation=60, keep=30),
    "halves": Params(k=8, truncation=60, keep=30, values="float16"),
    "plain": Params(k=8, truncation=60, keep=30, values="float32"),
    "whitened": Params(k=8, truncation=60, keep=30, whiten=7),
    "paper": Params(k=8, truncation=60, keep=30, graph="paper"),
    "steep": Params(k=8, truncation=60, keep=30, graph="paper", gamma=60),
}


def items(count):
    return [{"name": f"picture {id}", "group": id % 3, "tags": ["a", "b"][: id % 2 + 1]} for id in range(count)]


def exported(server, folder, name, features, params):
    suffuse.build(features, folder / f"{name}.index", params, names=items(len(features)))
    export_index(folder / f"{name}.index", server.url, f"search {name}")
    return Index.open(folder / f"{name}.index"), PostgresIndex(server.url, f"search {name}")


@pytest.fixture(scope="module", params=KINDS)
def both(request, server, tmp_path_factory):
    """An index and its export."""
    features = curves(np.random.default_rng(0), N, D)
    return exported(server, tmp_path_factory.mktemp("search"), request.param, features, KINDS[request.param])


@pytest.fixture(scope="module")
def queries():
    """Some near the gallery, some far from it, none of unit length."""
    rng = np.random.default_rng(1)
    near = curves(np.random.default_rng(0), N, D)[rng.choice(N, M // 2)] + 0.05 * rng.normal(size=(M // 2, D))
    return 7 * np.concatenate([near, rng.normal(size=(M // 2, D))])


def similarities(index, queries):
    return index.prepare(queries).astype(np.float64) @ index.features.T.astype(np.float64)


@pytest.mark.parametrize(("top", "seeds"), [(1, 1), (10, 10), (N, 10), (N + 50, 3), (40, N + 1)])
def test_exact_hits_are_those_of_the_index(both, queries, top, seeds):
    index, database = both
    # From the similarities that SQL has: ranks between near marks depend on their last bits.
    seen, query = find_seeds(database, index.prepare(queries), seeds)[0], similar.ask(index.now, queries)
    np.testing.assert_allclose(seen.sims, similar.find_seeds(index.now, query, seeds).sims.reshape(M, -1), atol=5e-7)
    if index.params.graph == "paper":
        expected = similar.search(index.now, query, top, seeds, refine=0, found=seen)
    else:
        expected = rank_by_columns(index.now, query, top, seeds, seen)
    assert_same_ranking(database.search(queries, top, seeds, exact=True), expected, similarities(index, queries))


def test_behind_the_columns_sql_goes_on_by_cosine_where_an_index_has_districts(both, queries):
    index, database = both
    found, expected = database.search(queries, N, exact=True), index.search(queries, N, refine=0)
    sims = similarities(index, queries)
    for q in range(M):
        count = int((found.scores[q] > 0).sum())
        assert 0 < count < N
        assert set(found.ids[q, :count]) == set(expected.ids[q, :count])
        assert (np.diff(sims[q, found.ids[q, count:]]) <= 2e-6).all()
        assert (expected.scores[q, count] > 0) == index.now.has_districts


@pytest.mark.parametrize(
    ("name", "params", "count"),
    [
        ("local", Params(k=16, keep=20), 70),
        ("short", Params(k=50, keep=20), 30),  # no list has k entries
        ("pairs", Params(k=2, keep=20), 70),
        ("threes", Params(k=3, keep=20), 3),
        ("gamma", Params(k=16, keep=20, graph="paper"), 70),
        ("underflow", Params(k=16, keep=20, graph="paper", gamma=100), 70),
    ],
)
@pytest.mark.parametrize("kind", [scattered, curves, lattice])
def test_seeds_weigh_what_they_weigh_in_the_index(server, tmp_path, kind, name, params, count):
    rng = np.random.default_rng(7)
    index, database = exported(server, tmp_path, name, kind(rng, count, 10), params)
    # Far from all, near to one, and one of them: of a lattice products are exact, and ties are everywhere.
    vectors = np.concatenate([kind(rng, 8, 10), index.features[:2]])
    found, weights = find_seeds(database, vectors, count)
    expected = similar.find_seeds(index.now, similar.compose(index.now, vectors=vectors), count, exact=True)
    again = similar.find_seeds(index.now, similar.compose(index.now, vectors=vectors), count, found=found)
    np.testing.assert_allclose(found.sims.ravel(), expected.sims, atol=5e-7)
    np.testing.assert_allclose(weights.ravel(), again.weights, rtol=1e-9, atol=1e-200)
    # A steep power takes the last bits of similarities that many times.
    np.testing.assert_allclose(weights.ravel(), expected.weights, rtol=0, atol=1e-5 if params.gamma > 3 else 1e-6)
    twins = [reference.seed_weights(*one, index.features, params) for one in zip(*found, strict=True)]
    np.testing.assert_allclose(weights, twins, rtol=1e-9, atol=1e-200)
    if kind is lattice:
        np.testing.assert_array_equal(found.ids.ravel(), expected.ids)
        np.testing.assert_array_equal(found.sims.ravel(), expected.sims)
    assert (weights[found.sims <= 0] == 0).all()
    assert (found.sims <= 0).any()


def test_a_filter_leaves_out_hits_and_changes_nothing_else(both, queries):
    _, database = both
    everything = database.search(queries, N, exact=True)
    found = database.search(queries, 20, filter={"group": 1}, exact=True)
    for q in range(M):
        matching = everything.ids[q] % 3 == 1
        np.testing.assert_array_equal(found.ids[q], everything.ids[q][matching][:20])
        np.testing.assert_array_equal(found.scores[q], everything.scores[q][matching][:20])
    nested = database.search(queries, N, filter={"tags": ["b"], "group": 2}, exact=True)
    assert sorted(nested.ids[0]) == [id for id in range(N) if id % 3 == 2 and id % 2]
    assert database.search(queries, 10, filter={"group": 9}).ids.shape == (M, 0)


def test_contributions_are_those_of_the_index(both, queries):
    index, database = both
    for query in queries:
        y = similar.find_seeds(index.now, similar.compose(index.now, vectors=index.prepare(query[None])), 10)
        hits = index.search(query[None], N, refine=0)
        # The best hit, one in the middle, and one that was not reached.
        for item in hits.ids[0][[0, 8, N - 1]].tolist():
            told, expected = database.explain(query, item, exact=True), explain(index.now, y, item).contributions
            assert [one.seed for one in told] == [one.seed for one in expected]
            for ours, theirs in zip(told, expected, strict=True):
                np.testing.assert_allclose(ours[1:], theirs[1:], rtol=1e-4, atol=1e-9)


def test_an_embedding_that_was_read_from_the_database_finds_what_it_stands_for(both):
    index, database = both
    features = curves(np.random.default_rng(0), N, D)
    schema = sql.Identifier(database._schema.as_string().strip('"'))
    statement = sql.SQL(
        "SELECT h.id, h.score FROM {0}.items i, {0}.search(i.embedding, prepared => true, exact => true) h"
        " WHERE i.name = 'picture 17'"
    ).format(schema)
    found = database._connection.execute(statement).fetchall()
    expected = index.search(features[17:18], 10, refine=0)
    np.testing.assert_allclose([score for _, score in found], expected.scores[0], rtol=1e-4)


def test_links_find_what_comparing_with_everything_finds(server, tmp_path):
    rng = np.random.default_rng(3)
    for dimensions in (30, 2100, 4100):  # indexed as they are, as halves, and not at all
        features = scattered(rng, 90, dimensions)
        index, database = exported(server, tmp_path, f"long {dimensions}", features, Params(k=5, keep=20))
        # So few rows would be compared one by one.
        database._connection.execute("SET enable_seqscan = off")
        expected = index.search(features[:6], 10, refine=0)
        for exact in (False, True):
            found = database.search(features[:6], 10, exact=exact)
            assert_same_ranking(found, expected, similarities(index, features[:6]))
        assert database._connection.execute("SHOW hnsw.ef_search").fetchone() == ("40",)


def test_the_plan_of_a_search_uses_the_links(server, tmp_path):
    features = scattered(np.random.default_rng(4), 3000, 16)
    _, database = exported(server, tmp_path, "many", features, Params(k=5, keep=5, truncation=20))
    plan = "EXPLAIN SELECT id FROM \"search many\".items ORDER BY embedding <#> '[{}]' LIMIT 10"
    lines = database._connection.execute(plan.format(",".join(["1"] * 16)).encode()).fetchall()
    assert any("items_1_embedding_idx" in line for (line,) in lines)
    quick, exact = (database.search(features[:20], 10, exact=exact).ids for exact in (False, True))
    assert np.mean([np.isin(a, b).mean() for a, b in zip(quick, exact, strict=True)]) > 0.9


def test_names_and_metadata_come_with_the_hits(server, both):
    _, database = both
    found = database._connection.execute(
        sql.SQL("SELECT id, name, metadata FROM {}.search(%s, 3)").format(database._schema), [str([1.0] * D)]
    ).fetchall()
    wanted = items(N)
    assert len(found) == 3
    for id, name, metadata in found:
        assert {"name": name, **metadata} == wanted[id]


def test_any_search_path_will_do(both, queries):
    _, database = both
    before = database.search(queries, 5, exact=True)
    database._connection.execute("SET search_path = ''")
    after = database.search(queries, 5, exact=True)
    database._connection.execute("RESET search_path")
    np.testing.assert_array_equal(before.ids, after.ids)


def test_a_search_changes_nothing_so_a_replica_can_answer(both, queries):
    _, database = both
    before = database.search(queries, 5)
    database._connection.execute("SET default_transaction_read_only = on")
    after = database.search(queries, 5)
    database._connection.execute("RESET default_transaction_read_only")
    np.testing.assert_array_equal(before.ids, after.ids)


def test_it_says_how_large_it_is(both):
    index, database = both
    assert len(database) == N
    assert database.dimensions == index.dimensions == D


def test_bad_requests_are_named(both, queries):
    _, database = both
    for wrong, message in (
        (lambda: database.search(queries[:, :5]), "the embedding has 5 dimensions, the index has 12"),
        (lambda: database.search(np.zeros((1, D))), "row 0 of queries is all zeros"),
        (lambda: database.search(queries[0]), "queries must have two dimensions"),
        (lambda: database.explain(queries[0], N), f"there is no item {N}"),
        (lambda: database.explain(queries[0], -1), "there is no image -1"),
    ):
        with pytest.raises(InvalidInput, match=message) as told:
            wrong()
        assert not isinstance(told.value, DatabaseProblem)
    for top, seeds in ((0, 10), (10, 0), (True, 10), (10, 2.5)):
        with pytest.raises(InvalidParams, match="must be a whole number of at least 1"):
            database.search(queries, top, seeds)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ("search(NULL)", "0 dimensions, the index has 12"),
        ("search('[0,0,0,0,0,0,0,0,0,0,0,0]')", "all zeros"),
        ("search('[1,2,3]', prepared => true)", "has 3 dimensions, those in the index"),
        ("search(NULL, prepared => true)", "missing"),
        ("search('[1,2,3,4,5,6,7,8,9,10,11,12]', 0)", "at least 1"),
        ("search('[1,2,3,4,5,6,7,8,9,10,11,12]', NULL)", "at least 1"),
        ("search('[1,2,3,4,5,6,7,8,9,10,11,12]', 5, -1)", "at least 1"),
        ("explain('[1,2,3,4,5,6,7,8,9,10,11,12]', 1, 0)", "at least 1"),
        ("explain('[1,2,3,4,5,6,7,8,9,10,11,12]', NULL)", "no item"),
    ],
)
def test_the_functions_check_what_other_clients_send(both, call, message):
    _, database = both
    statement = sql.SQL("SELECT * FROM {}.").format(database._schema).as_string() + call
    with pytest.raises(psycopg.errors.InvalidParameterValue, match=message):
        database._connection.execute(statement)


def test_a_schema_without_an_index_says_so(server):
    with PostgresIndex(server.url, "nothing here") as database, pytest.raises(DatabaseProblem, match="suffuse export"):
        database.search(np.ones((1, D)))
