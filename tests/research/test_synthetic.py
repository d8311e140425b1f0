"""The synthetic set: unit rows on curves and beside them, whose graph looks like that of real features at any size."""

import numpy as np
import pytest

from suffuse.core.graph import affinity, summarize, transition
from suffuse.core.neighbors import nearest_to_rows
from suffuse.research.synthetic import NO_CURVE, ON_CURVES, SIZES, manifold

K = 50


def made(n, d, seed=0):
    return manifold(n, d, rng=np.random.default_rng(seed))


def graph_of(n, d):
    features = made(n, d).features
    return summarize(transition(affinity(nearest_to_rows(features, 0, n, K), 3.0)))


@pytest.fixture(scope="module")
def some():
    return made(2500, 512)


def test_rows_are_what_lies_below_the_border(some):
    assert some.features.shape == (2500, 512)
    assert some.features.dtype == np.float32
    assert some.features.flags.c_contiguous
    np.testing.assert_allclose(np.linalg.norm(some.features, axis=1), 1, atol=1e-5)


def test_the_same_generator_makes_the_same_set_and_another_one_does_not(some):
    again, other = made(2500, 512), made(2500, 512, seed=1)
    assert np.array_equal(some.features, again.features)
    assert np.array_equal(some.labels, again.labels)
    assert not np.array_equal(some.features, other.features)


def test_labels_are_curves_of_bounded_size_beside_distractors(some):
    on_curves = some.labels[some.labels != NO_CURVE]
    assert abs(len(on_curves) / 2500 - ON_CURVES) < 0.05
    numbers, sizes = np.unique(on_curves, return_counts=True)
    assert len(numbers) > 20
    assert sizes.max() <= SIZES[1]


def test_elements_of_a_curve_are_nearer_to_each_other_than_to_others(some):
    lists = nearest_to_rows(some.features, 0, 2500, 6).ids[:, 1:]
    on_curves = some.labels != NO_CURVE
    same = some.labels[lists[on_curves]] == some.labels[on_curves][:, None]
    assert same.mean() > 0.7


def test_elements_of_a_curve_are_not_born_together(some):
    assert (some.labels[1:] == some.labels[:-1])[some.labels[1:] != NO_CURVE].mean() < 0.1


def test_the_graph_has_the_degrees_of_real_features_and_a_few_isolated_nodes():
    facts = graph_of(5000, 512)
    assert 20 <= facts.degree_mean <= 40
    assert 0 < facts.isolated < 0.05 * 5000
    assert facts.largest_component > 0.95 * 5000


def test_a_larger_set_has_more_topics_and_the_same_neighbourhoods():
    small, large = graph_of(5000, 128), graph_of(15_000, 128)
    assert abs(small.degree_mean - large.degree_mean) < 3
    assert abs(small.isolated / 5000 - large.isolated / 15_000) < 0.01
    assert large.largest_component > 0.95 * 15_000, "topics are connected"


@pytest.mark.parametrize(("n", "d"), [(1, 8), (20, 1), (60, 3), (7501, 4)])
def test_any_size_will_do(n, d):
    features, labels = made(n, d)
    assert features.shape == (n, d)
    assert labels.shape == (n,)
    assert np.isfinite(features).all()
