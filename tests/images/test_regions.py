"""The grid of R-MAC and the poolings, each beside its slow and obvious twin."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from suffuse.images.regions import Region, list_regions, normalize, pool_gem, pool_regions, pool_rmac

sides = st.integers(1, 40)


def grid_twin(height, width):
    """The published recipe step by step: squares by their middles, as in the authors' description."""
    shorter, longer = min(height, width), max(height, width)
    best, best_error = 0, math.inf
    for extra in (1, 2, 3, 4, 5, 6):
        step = Fraction(longer - shorter, extra)
        error = abs((shorter * shorter - shorter * step) / (shorter * shorter) - Fraction(4, 10))
        if error < best_error:
            best, best_error = extra, error
    found = []
    for scale in (1, 2, 3):
        side = math.floor(2 * shorter / (scale + 1))
        if side == 0:
            continue
        down, across = scale, scale
        if height < width:
            across += best
        if height > width:
            down += best
        for row in range(down):
            top = 0 if down == 1 else math.floor((height - side) * row / (down - 1) + 1e-9)
            for column in range(across):
                left = 0 if across == 1 else math.floor((width - side) * column / (across - 1) + 1e-9)
                found.append((top, left, side))
    return found


@given(sides, sides)
def test_the_grid_is_that_of_its_twin(height, width):
    assert list_regions(height, width) == grid_twin(height, width)


@pytest.mark.parametrize(
    ("shape", "count"), [((16, 16), 14), ((12, 16), 20), ((16, 12), 20), ((10, 16), 20), ((1, 1), 1)]
)
def test_the_grid_has_as_many_regions_as_in_the_paper(shape, count):
    assert len(list_regions(*shape)) == count


@given(sides, sides)
def test_regions_lie_inside_the_map_and_the_largest_reach_its_ends(height, width):
    regions = list_regions(height, width)
    assert all(0 <= top <= height - side and 0 <= left <= width - side for top, left, side in regions)
    assert regions[0] == Region(0, 0, min(height, width))
    largest = [region for region in regions if region.side == min(height, width)]
    assert max(region.top + region.side for region in largest) == height
    assert max(region.left + region.side for region in largest) == width


@given(sides, sides)
def test_a_turned_map_has_turned_regions(height, width):
    assert {(left, top, side) for top, left, side in list_regions(height, width)} == set(list_regions(width, height))


maps = arrays.arrays(
    np.float32,
    st.tuples(st.integers(1, 3), st.integers(1, 9), st.integers(1, 9)),
    elements=st.floats(0, 6, width=32),
)


def pooled_twin(features):
    rows = []
    for top, left, side in grid_twin(*features.shape[1:]):
        row = [
            max(float(channel[y][x]) for y in range(top, top + side) for x in range(left, left + side))
            for channel in features
        ]
        length = math.sqrt(sum(value * value for value in row))
        rows.append([value / length if length > 1e-12 else value for value in row])
    return rows


@given(maps)
def test_regions_are_pooled_as_by_the_twin(features):
    np.testing.assert_allclose(pool_regions(features), pooled_twin(features), atol=1e-6)


@given(maps)
def test_rmac_is_the_sum_of_the_regions_at_unit_length(features):
    total = [sum(column) for column in zip(*pooled_twin(features), strict=True)]
    length = math.sqrt(sum(value * value for value in total))
    expected = [value / length if length > 1e-12 else value for value in total]
    np.testing.assert_allclose(pool_rmac(features), expected, atol=1e-5)


@given(maps, st.sampled_from([1.0, 2.0, 3.0, 5.5]))
def test_gem_is_the_generalised_mean(features, power):
    means = []
    for channel in features:
        values = [max(float(value), 1e-6) ** power for row in channel for value in row]
        means.append((sum(values) / len(values)) ** (1 / power))
    length = math.sqrt(sum(value * value for value in means))
    expected = [value / length if length > 1e-12 else value for value in means]
    np.testing.assert_allclose(pool_gem(features, power), expected, rtol=1e-4, atol=1e-6)


def test_a_row_of_nothing_stays_nothing():
    assert normalize(np.zeros((2, 3), np.float32)).tolist() == [[0, 0, 0]] * 2
