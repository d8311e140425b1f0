"""Names and metadata of many pictures: found as by looking at one after another."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient
from tests.support.data import scattered

import suffuse
from suffuse import Params
from suffuse.errors import InvalidInput
from suffuse.index.catalogue import Catalogue
from suffuse.server import create_app
from suffuse.store.ids import Ids
from suffuse.store.items import Items, encode_items

# Letters whose lower case is longer, that need several bytes, or that end a name inside.
texts = st.text(st.sampled_from("abAB ßİıσς\0é日\n"), max_size=6)


def catalogue(items):
    text, offsets = encode_items(items)
    ids = Ids(len(items))
    return Catalogue(ids, Items(ids, memoryview(text), offsets))


def folded(text):
    return text.replace("\0", " ").casefold()


@settings(deadline=None, max_examples=200)
@given(names=st.lists(texts, min_size=1, max_size=8), text=texts)
def test_names_are_found_as_one_by_one(names, text):
    listed = catalogue([{"name": name} for name in names]).list_ids(text, None)
    assert listed.tolist() == [id for id, name in enumerate(names) if folded(text) in folded(name)]


values = {
    "number": st.integers(-3, 3) | st.sampled_from([0.5, 1e300, -0.0]),
    "string": st.sampled_from(["", "a", "b", "1"]),
    "boolean": st.booleans(),
}


@pytest.mark.parametrize("kind", sorted(values))
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_filters_let_through_what_has_the_value(kind, data):
    have = data.draw(st.lists(st.none() | values[kind], min_size=1, max_size=8).filter(any_value))
    wanted = data.draw(st.lists(values[kind], max_size=3))
    found = catalogue([{} if value is None else {"field": value} for value in have]).match({"field": wanted})
    assert found.tolist() == [value is not None and value in wanted for value in have]


def any_value(have):
    return any(value is not None for value in have)


def test_a_range_lets_through_numbers_within_it():
    ages = catalogue([{"age": 3}, {"age": 7.5}, {}, {"age": 9}])
    for low, high, expected in ((3, 8, [0, 1]), (None, 7.5, [0, 1]), (4, None, [1, 3]), (None, None, [0, 1, 3])):
        assert np.flatnonzero(ages.match({"age": {"min": low, "max": high}})).tolist() == expected


def test_truth_is_no_number_and_an_unknown_field_is_named():
    flags = catalogue([{"flag": True}, {"flag": False}])
    assert not flags.match({"flag": 1}).any()
    with pytest.raises(InvalidInput, match="fields are: flag"):
        flags.match({"flga": True})


def test_whole_numbers_of_any_length_are_told(tmp_path):
    features, big = scattered(np.random.default_rng(0), 4, 3), [1, 10**30, -(10**400), 5]
    items = [{"name": str(id), "big": value} for id, value in enumerate(big)]
    suffuse.build(features, tmp_path / "x.index", Params(k=2, truncation=4, keep=4), names=items)
    with TestClient(create_app(tmp_path / "x.index")) as client:
        listed = client.get("/api/items")
        assert [item["metadata"]["big"] for item in listed.json()["items"]] == big
        assert client.get("/api/info").status_code == 200
        request = {"positive": [0], "method": "knn", "filter": {"big": {"min": 2}}}
        hits = client.post("/api/search", json=request).json()["results"]["knn"]["hits"]
        assert {hit["id"] for hit in hits} == {1, 3}
