"""Parameters are checked at birth, and every refusal has the same form."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffuse.core.params import LARGEST_COUNT, Params
from suffuse.errors import InvalidParams, SuffuseError

COUNT_OF_2 = "a whole number of at least 2"
COUNT_OF_1 = "a whole number of at least 1"
OPEN_UNIT = "a number above 0 and below 1"
CLOSED_UNIT = "a number at least 0 and at most 1"
EXPONENT = "a number above 0 and at most 100"


@pytest.mark.parametrize(
    ("name", "found", "wanted"),
    [
        ("k", 0, COUNT_OF_2),
        ("k", 1, COUNT_OF_2),
        ("k", -3, COUNT_OF_2),
        ("k", True, COUNT_OF_2),
        ("k", np.True_, COUNT_OF_2),
        ("k", 2.5, COUNT_OF_2),
        ("k", 50.0, COUNT_OF_2),
        ("k", "50", COUNT_OF_2),
        ("k", None, COUNT_OF_2),
        ("k", LARGEST_COUNT + 1, f"at most {LARGEST_COUNT}"),
        ("alpha", 0, OPEN_UNIT),
        ("alpha", 1, OPEN_UNIT),
        ("alpha", 1.5, OPEN_UNIT),
        ("alpha", -0.1, OPEN_UNIT),
        ("alpha", float("nan"), OPEN_UNIT),
        ("alpha", np.float32("nan"), OPEN_UNIT),
        ("alpha", float("inf"), OPEN_UNIT),
        ("alpha", True, OPEN_UNIT),
        ("alpha", "0.99", OPEN_UNIT),
        ("alpha", 0.5j, OPEN_UNIT),
        ("gamma", 0, EXPONENT),
        ("gamma", 101, EXPONENT),
        ("gamma", 10**400, EXPONENT),
        ("graph", "x", "'local' or 'paper'"),
        ("graph", None, "'local' or 'paper'"),
        ("support", "x", "'graph' or 'features'"),
        ("support", None, "'graph' or 'features'"),
        ("support", ["graph"], "'graph' or 'features'"),
        ("support", np.array(["graph", "features"]), "'graph' or 'features'"),
        ("truncation", 0, COUNT_OF_1),
        ("truncation", True, COUNT_OF_1),
        ("keep", 0, COUNT_OF_1),
        ("iterations", 0, COUNT_OF_1),
        ("tolerance", 0, OPEN_UNIT),
        ("tolerance", 1, OPEN_UNIT),
        ("whiten", 0, COUNT_OF_1),
        ("whiten", False, COUNT_OF_1),
        ("whiten", True, COUNT_OF_1),
        ("whiten_power", -0.1, CLOSED_UNIT),
        ("whiten_power", 1.1, CLOSED_UNIT),
        ("values", "float64", "'uint8' or 'float16' or 'float32'"),
        ("pool", "max", "'sum' or 'none'"),
        ("graph_search", "approximate", "'exact' or 'ivfadc' or 'hnsw'"),
        ("graph_search", None, "'exact' or 'ivfadc' or 'hnsw'"),
        ("support_search", "IVFADC", "'exact' or 'ivfadc' or 'hnsw'"),
        ("probes", 0, COUNT_OF_1),
        ("probes", True, COUNT_OF_1),
        ("with_graph", 1, "True or False"),
        ("with_graph", "yes", "True or False"),
        ("with_lists", 1, "True or False"),
        ("with_lists", None, "True or False"),
        ("probes", 1.5, COUNT_OF_1),
        ("ef", 0, COUNT_OF_1),
        ("ef", "128", COUNT_OF_1),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_bad_parameter_is_refused_in_one_sentence_that_names_it_and_what_was_found(name, found, wanted):
    with pytest.raises(InvalidParams) as refusal:
        Params(**{name: found})
    assert str(refusal.value) == f"{name} must be {wanted}, got {found!r}"


def test_a_refusal_is_a_suffuse_error_and_a_value_error():
    with pytest.raises(ValueError, match="k must be") as refusal:
        Params(k=0)
    assert isinstance(refusal.value, SuffuseError)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("k", 2),
        ("k", LARGEST_COUNT),
        ("alpha", 1e-9),
        ("alpha", 1 - 1e-9),
        ("gamma", 100),
        ("whiten", None),
        ("whiten", 1),
        ("whiten_power", 0),
        ("whiten_power", 1),
        ("truncation", 1),
        ("keep", 1),
        ("iterations", 1),
        ("values", "float32"),
        ("graph", "paper"),
        ("support", "features"),
        ("graph_search", "ivfadc"),
        ("support_search", "hnsw"),
        ("probes", 1),
        ("ef", 1),
    ],
)
def test_the_edge_of_each_range_is_accepted(name, value):
    assert getattr(Params(**{name: value}), name) == value


def test_columns_that_outgrow_float16_need_another_type():
    with pytest.raises(
        InvalidParams, match=r"values must be 'uint8' or 'float32' for alpha 0\.99999, .* got 'float16'"
    ):
        Params(alpha=0.99999, values="float16")
    for values in ("uint8", "float32"):
        assert Params(alpha=0.99999, values=values).alpha == 0.99999
    assert Params(alpha=1 - 1 / 65000, values="float16").values == "float16"


@st.composite
def parameters(draw):
    """Accepted parameters, as Python's or as numpy's numbers."""
    count = st.integers(2, 10_000)
    share = st.floats(0.0, 1.0, exclude_min=True, exclude_max=True)
    wide = {
        "k": draw(count),
        "alpha": draw(st.floats(0.0, 0.9999, exclude_min=True)),
        "gamma": draw(st.floats(0.1, 100.0)),
        "truncation": draw(count),
        "keep": draw(count),
        "iterations": draw(count),
        "tolerance": draw(share),
        "whiten": draw(count),
        "whiten_power": draw(st.floats(0.0, 1.0)),
        "probes": draw(count),
        "ef": draw(count),
    }
    if draw(st.booleans()):
        whole = draw(st.sampled_from([np.int16, np.int64, np.uint16]))
        wide = {name: whole(value) if isinstance(value, int) else np.float64(value) for name, value in wide.items()}
    texts = {
        "graph": draw(st.sampled_from(["local", "paper"])),
        "support": draw(st.sampled_from(["graph", "features"])),
        "values": draw(st.sampled_from(["uint8", "float16", "float32"])),
        "pool": draw(st.sampled_from(["sum", "none"])),
        "graph_search": draw(st.sampled_from(["exact", "ivfadc", "hnsw"])),
        "support_search": draw(st.sampled_from(["exact", "ivfadc", "hnsw"])),
        "seed_search": draw(st.sampled_from(["exact", "hnsw"])),
        "with_graph": draw(st.booleans()),
        "with_lists": draw(st.booleans()),
    }
    whiten = {} if draw(st.booleans()) else {"whiten": None}
    return wide | texts | whiten


@settings(deadline=None, max_examples=50)
@given(parameters())
def test_parameters_survive_the_way_through_json_as_plain_values(given_values):
    params = Params(**given_values)
    stored = params.to_dict()
    assert {type(value) for value in stored.values()} <= {int, float, str, bool, type(None)}
    assert stored == given_values
    assert Params.from_dict(json.loads(json.dumps(stored))) == params


def test_whole_numbers_become_floats_where_floats_are_meant():
    assert type(Params(gamma=3).gamma) is float
    assert type(Params(whiten_power=np.int8(1)).whiten_power) is float


def test_an_unknown_name_is_refused_and_the_known_ones_are_listed():
    with pytest.raises(
        InvalidParams,
        match="unknown parameter 'kk'; known are: alpha, ef, gamma, graph, graph_search, iterations, k, keep",
    ):
        Params.from_dict(Params().to_dict() | {"kk": 3})


# Parameters that came later, with the values that describe the indexes from before.
LATER = {
    "graph": "paper", "pool": "none", "graph_search": "exact", "support_search": "exact", "seed_search": "exact",
    "probes": 32, "ef": 128, "with_graph": False, "with_lists": False,
}  # fmt: skip


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(Params) if field.name not in LATER])
def test_a_missing_name_is_an_error_and_not_a_default(name):
    values = Params().to_dict()
    del values[name]
    with pytest.raises(InvalidParams, match=f"parameter '{name}' is missing"):
        Params.from_dict(values)


@pytest.mark.parametrize("name", LATER)
def test_a_parameter_that_came_later_describes_the_indexes_from_before(name):
    values = Params().to_dict()
    del values[name]
    assert getattr(Params.from_dict(values), name) == LATER[name]


def test_from_dict_checks_the_values_too():
    with pytest.raises(InvalidParams, match="alpha must be a number above 0 and below 1, got 1"):
        Params.from_dict(Params().to_dict() | {"alpha": 1})


def test_parameters_are_frozen_and_given_by_name_only():
    params = Params()
    with pytest.raises(dataclasses.FrozenInstanceError):
        params.k = 3
    with pytest.raises(TypeError):
        Params(50)
    assert hash(params) == hash(Params())
    assert params == Params()
    assert params != Params(k=51)


def test_the_defaults_are_the_ones_that_the_documentation_promises():
    assert Params().to_dict() == {
        "k": 50,
        "graph": "local",
        "alpha": 0.99,
        "gamma": 3.0,
        "support": "graph",
        "truncation": 1000,
        "keep": 400,
        "iterations": 100,
        "tolerance": 1e-4,
        "whiten": None,
        "whiten_power": 1.0,
        "values": "uint8",
        "pool": "sum",
        "graph_search": "exact",
        "support_search": "exact",
        "seed_search": "exact",
        "probes": 32,
        "ef": 128,
        "with_graph": False,
        "with_lists": True,
    }
