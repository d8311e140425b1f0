"""Small indexes to search: how they are built, and what their columns are as dense matrices."""

import dataclasses

import numpy as np
from tests.support import reference

import suffuse
from suffuse import Params
from suffuse.core.columns import WALK_STEPS
from suffuse.core.graph import transition_of
from suffuse.core.neighbors import nearest_to_rows

N, D = 80, 10
WHOLE = Params(k=12, truncation=200, keep=200, iterations=500, tolerance=1e-10, values="float32")
SHORT = Params(k=6, truncation=15, keep=5)
REGIONS = dataclasses.replace(SHORT, pool="none")  # tests/index/test_pooling.py has the others
OWNERS = np.random.default_rng(3).permutation(np.arange(N) % 25)


def build_and_open(features, directory, params, **options):
    return suffuse.build(features, directory / "test.index", params, **options)


def exact_columns(features, params):
    """The inverse of L_alpha, of which every column is within reach of a walk."""
    s = reference.dense(transition_of(nearest_to_rows(features, 0, len(features), params.k), params))
    inverse = reference.inverse(params.alpha * s)
    assert (np.linalg.matrix_power((s > 0) + np.eye(len(s)), WALK_STEPS)[inverse > 1e-9] > 0).all()
    return inverse


def stored_column(index, i):
    """(ids, values) of column i of an index, as they are stored."""
    starts, stops, first, second = index.now.columns()
    places = slice(starts[i], stops[i])
    if index.params.values != "uint8":
        return first[places], second[places]
    entries = reference.decode_column(first[places].tolist(), second[i])
    return np.array([id for id, _ in entries], np.int64), np.array([value for _, value in entries])


def stored_columns(index, targets=None):
    """The columns of an index as a matrix, column i in [:, i]; over images if there are so many targets."""
    matrix = np.zeros((targets or len(index.features), len(index.features)))
    for i in range(len(index.features)):
        ids, values = stored_column(index, i)
        matrix[ids, i] = values
    return matrix


def far_field(index, seeds, weights):
    """G of all images of an index for one query, by its districts as they are stored."""
    members, shares, columns = index.now.districts
    between = np.zeros((len(columns.starts), len(columns.starts)))
    for h, (start, stop) in enumerate(zip(columns.starts, columns.stops, strict=True)):
        for g, value in reference.decode_column(columns.entries[start:stop].tolist(), columns.values[h]):
            between[g, h] = value
    return reference.far_field(members, shares, between, seeds, weights)


def count_far(index, ids, scores, near, seeds, weights, left_out=()):
    """How many hits of a full ranking districts give: all with G > 0, behind the `near` that columns reach.

    Their scores are in proportion to G, from the last score of the columns on; what is equal is in the order of ids.
    """
    field = far_field(index, seeds, weights)
    field[[*ids[:near].tolist(), *left_out]] = 0
    expected = np.flatnonzero(field > 0)
    far = slice(near, near + len(expected))
    found, last = ids[far], scores[near - 1] if near else 1
    assert sorted(found.tolist()) == expected.tolist()
    assert (scores[far] > 0).all()
    assert (np.diff(scores[far]) <= 0).all()
    np.testing.assert_allclose(scores[far], last * field[found] / field.max(), rtol=1e-5)
    places = np.column_stack(index.now.districts[:2])[found]
    twins = (places[1:] == places[:-1]).all(axis=1)
    assert (np.diff(found)[twins] > 0).all()
    return len(expected)


def same_hits(found, expected):
    assert found.ids.dtype == np.int64
    assert found.scores.dtype == np.float32
    np.testing.assert_array_equal(found.ids, expected.ids)
    np.testing.assert_array_equal(found.scores.view(np.uint32), expected.scores.view(np.uint32))
