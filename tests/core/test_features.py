"""Features at the border: rows of unit length in any block, whitening that is the PCA it says, owners, refusals."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import reference
from tests.support.data import seeds_of_rng, some_rows

from suffuse.core import features
from suffuse.core.features import (
    Whitening,
    apply_whitening,
    check_matrix,
    check_owners,
    learn_whitening,
    unit_blocks,
    unit_rows,
)
from suffuse.errors import InvalidInput


@pytest.mark.parametrize("scale", [1e300, 1e-300, 5e-324])
def test_huge_and_tiny_values_keep_their_direction(scale):
    matrix = np.array([[1.0, 2.0, -2.0], [0.0, 0.0, 3.0], [-4.0, 0.0, 3.0]])
    if scale == 5e-324:  # the smallest number there is: it cannot hold fractions, these rows need none
        matrix = np.array([[1.0, 2.0, -2.0], [0.0, 0.0, 1.0]])
    np.testing.assert_allclose(unit_rows(matrix * scale, "features"), reference.unit_rows(matrix), rtol=1e-7)


def test_a_row_may_hold_huge_and_tiny_values_together():
    rows = unit_rows(np.array([[1e300, 1e-300], [-1e300, 1e300]]), "features")
    np.testing.assert_allclose(rows, [[1, 0], [-(0.5**0.5), 0.5**0.5]], rtol=1e-7)


def test_the_features_that_were_given_are_left_as_they_were():
    matrix = some_rows(np.random.default_rng(7), dtype="float64")
    before = matrix.copy()
    unit_rows(matrix, "features")
    list(unit_blocks(matrix, "features", learn_whitening(matrix, "features", 3, 1.0)))
    np.testing.assert_array_equal(matrix, before)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (np.nan, "row 3 of queries holds nan; remove the row or extract it again"),
        (np.inf, "row 3 of queries holds inf; remove the row or extract it again"),
        (-np.inf, "row 3 of queries holds -inf; remove the row or extract it again"),
        (0.0, "row 3 of queries is all zeros and has no direction; remove the row or extract it again"),
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
def test_a_row_without_direction_is_named(value, message, dtype):
    matrix = np.ones((5, 4), dtype)
    matrix[3:] = value
    with pytest.raises(InvalidInput) as refusal:
        unit_rows(matrix, "queries")
    assert str(refusal.value) == message


@pytest.mark.parametrize("whiten", [False, True])
def test_blocks_join_to_the_same_rows_as_one_block(monkeypatch, whiten):
    matrix = some_rows(np.random.default_rng(8), n=50)
    whitening = learn_whitening(matrix, "features", 3, 0.5) if whiten else None
    whole = np.concatenate(list(unit_blocks(matrix, "features", whitening)))
    monkeypatch.setattr(features, "_BLOCK_ROWS", 7)
    blocks = list(unit_blocks(matrix, "features", whitening))
    assert [len(block) for block in blocks] == [7, 7, 7, 7, 7, 7, 7, 1]
    np.testing.assert_array_equal(np.concatenate(blocks), whole)


@pytest.mark.parametrize("row", [0, 6, 7, 33, 49])
@pytest.mark.parametrize("value", [np.nan, 0.0])
def test_blocks_count_rows_from_the_start_of_the_file(monkeypatch, row, value):
    monkeypatch.setattr(features, "_BLOCK_ROWS", 7)
    matrix = some_rows(np.random.default_rng(9), n=50)
    matrix[row] = value
    with pytest.raises(InvalidInput, match=f"row {row} of features "):
        list(unit_blocks(matrix, "features", None))
    with pytest.raises(InvalidInput, match=f"row {row} of features "):
        learn_whitening(matrix, "features", 3, 1.0)


def test_a_row_that_whitening_leaves_without_direction_is_named(monkeypatch):
    monkeypatch.setattr(features, "_BLOCK_ROWS", 2)
    matrix = np.array([[1.0, 0, 0], [0, 1, 0], [0, 0, 1], [1, 0, 0]])
    onto_nothing = Whitening(np.array([0.0, 0, 1]), np.array([[1.0, 0], [0, 1], [0, 0]]))
    with pytest.raises(InvalidInput, match="row 2 of features after whitening is all zeros"):
        list(unit_blocks(matrix, "features", onto_nothing))


def obvious_pca(matrix):
    """Mean, eigenvalues (largest first) and eigenvectors of the covariance of the unit rows, by the SVD."""
    rows = reference.unit_rows(matrix)
    mean = rows.mean(axis=0)
    _, singular, axes = np.linalg.svd(rows - mean, full_matrices=False)
    return mean, singular**2 / len(rows), axes.T


@pytest.mark.parametrize("power", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("dimensions", [1, 4, 6])
def test_whitening_is_the_pca_of_the_gallery(monkeypatch, power, dimensions):
    monkeypatch.setattr(features, "_BLOCK_ROWS", 9)
    matrix = some_rows(np.random.default_rng(10), n=80, d=6) * np.array([9, 7, 5, 3, 2, 1], np.float32) + 2
    whitening = learn_whitening(matrix, "features", dimensions, power)
    mean, eigenvalues, axes = obvious_pca(matrix)
    expected = (axes / eigenvalues ** (power / 2))[:, :dimensions]
    np.testing.assert_allclose(whitening.mean, mean, atol=1e-7)
    # An eigenvector's sign is free.
    signs = np.sign((whitening.projection * expected).sum(axis=0))
    np.testing.assert_allclose(whitening.projection * signs, expected, atol=1e-4 * np.abs(expected).max())
    assert whitening.projection.shape == (6, dimensions)


def test_full_whitening_makes_the_covariance_the_identity_and_none_keeps_the_distances():
    matrix = some_rows(np.random.default_rng(11), n=200, d=6) * np.array([9, 7, 5, 3, 2, 1], np.float32) + 2
    rows = unit_rows(matrix, "features").astype(np.float64)
    white = learn_whitening(matrix, "features", 6, 1.0)
    projected = (rows - white.mean) @ white.projection
    np.testing.assert_allclose(projected.T @ projected / len(rows), np.eye(6), atol=1e-9)
    turned = learn_whitening(matrix, "features", 6, 0.0)
    np.testing.assert_allclose(turned.projection.T @ turned.projection, np.eye(6), atol=1e-12)


def test_the_same_gallery_in_another_order_gives_the_same_whitening_signs_included():
    rng = np.random.default_rng(12)
    matrix = some_rows(rng, n=80, d=6) * np.array([9, 7, 5, 3, 2, 1], np.float32)
    first = learn_whitening(matrix, "features", 4, 1.0)
    again = learn_whitening(matrix[rng.permutation(80)], "features", 4, 1.0)
    np.testing.assert_allclose(again.projection, first.projection, rtol=1e-6, atol=1e-9)
    # The sign is fixed by the axis itself, and not by what the library of the day returns.
    largest = np.abs(first.projection).argmax(axis=0)
    assert (first.projection[largest, np.arange(4)] > 0).all()


@settings(deadline=None, max_examples=30)
@given(seed=seeds_of_rng, n=st.integers(1, 40), d=st.integers(2, 20), power=st.sampled_from([0.0, 0.5, 1.0]))
def test_whitening_a_batch_equals_whitening_row_by_row(seed, n, d, power):
    rng = np.random.default_rng(seed)
    whitening = learn_whitening(rng.normal(size=(60, d)), "features", max(1, d // 2), power)
    rows = unit_rows(rng.normal(size=(n, d)), "queries")
    batch = apply_whitening(rows, whitening, "queries")
    singles = np.concatenate([apply_whitening(rows[i : i + 1], whitening, "queries") for i in range(n)])
    np.testing.assert_array_equal(batch, singles)
    expected = reference.unit_rows((rows.astype(np.float64) - whitening.mean) @ whitening.projection)
    np.testing.assert_allclose(batch, expected, rtol=1e-5, atol=1e-7)


def test_more_dimensions_than_the_features_have_are_refused():
    matrix = some_rows(np.random.default_rng(13), n=20, d=6)
    with pytest.raises(InvalidInput, match="cannot whiten features to 7 dimensions, more than its 6 dimensions"):
        learn_whitening(matrix, "features", 7, 1.0)


def test_more_dimensions_than_the_rows_can_span_are_refused():
    matrix = some_rows(np.random.default_rng(14), n=4, d=6)
    learn_whitening(matrix, "features", 3, 1.0)
    with pytest.raises(InvalidInput, match="more than the 3 directions that 4 rows can span; ask for fewer"):
        learn_whitening(matrix, "features", 4, 1.0)


@pytest.mark.parametrize("spread", [10.0, 1.0, 1e-3])
@pytest.mark.parametrize("d", [8, 64])
def test_features_that_span_few_directions_are_refused_with_their_number(spread, d):
    # However close together they are: what float32 rounds away must not be taken for a direction.
    rng = np.random.default_rng(15)
    plane = np.linalg.qr(rng.normal(size=(d, 4)))[0]
    weights = np.concatenate([np.ones((200, 1)), spread * rng.normal(size=(200, 3))], axis=1)
    matrix = weights @ plane.T
    message = "features spans only 4 directions around its mean; whiten to at most 4 dimensions"
    with pytest.raises(InvalidInput, match=message):
        learn_whitening(matrix, "features", 5, 1.0)
    assert learn_whitening(matrix, "features", 4, 1.0).projection.shape == (d, 4)


@pytest.mark.parametrize("power", [0.0, 1.0])
def test_features_that_are_all_the_same_cannot_be_whitened(power):
    matrix = np.tile(np.random.default_rng(16).normal(size=8), (20, 1))
    with pytest.raises(InvalidInput, match="features spans only 0 directions around its mean; build without whitening"):
        learn_whitening(matrix, "features", 2, power)


@pytest.mark.parametrize("dtype", [np.int8, np.int32, np.int64, np.uint8, np.uint64])
def test_owners_of_any_whole_type_become_int32(dtype):
    owners = check_owners(np.array([2, 0, 0, 1], dtype), 4, "owners")
    assert owners.dtype == np.int32
    np.testing.assert_array_equal(owners, [2, 0, 0, 1])


@pytest.mark.parametrize(
    ("owners", "message"),
    [
        ([0, 0, 1], "owners must be a one-dimensional array of whole numbers, got list"),
        (np.zeros(3), "owners must be a one-dimensional array of whole numbers, got float64 of shape"),
        (np.zeros(3, bool), "owners must be a one-dimensional array of whole numbers, got bool of shape"),
        (np.zeros((3, 1), int), r"owners must be a one-dimensional .* of shape \(3, 1\)"),
        (np.array(["a", "b", "c"]), "owners must be a one-dimensional array of whole numbers, got <U1"),
        (np.zeros(2, int), "owners has 2 entries for 3 regions; one per region"),
        (np.array([0, -1, -2]), "entry 1 of owners is -1; images are numbered from 0"),
        (np.array([0, 1, 2**31]), "entry 2 of owners is 2147483648"),
        (np.array([0, 1, 2**63], np.uint64), "entry 2 of owners is 9223372036854775808"),
    ],
)
def test_owners_that_cannot_be_are_refused(owners, message):
    with pytest.raises(InvalidInput, match=message):
        check_owners(owners, 3, "owners")


def test_queries_of_other_dimensions_are_refused_with_both_numbers():
    with pytest.raises(
        InvalidInput, match="queries have 4 dimensions, the index has 8; build and search with the same"
    ):
        check_matrix(np.ones((1, 4)), "queries", least_rows=1, dimensions=8)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        (np.ones(4), r"two dimensions \(rows, values\), found shape \(4,\)"),
        (np.ones((2, 4), np.int64), "type int64; use one of float16, .*, for instance features.astype"),
        (np.ones((2, 4), complex), "type complex128; use one of float16, float32, float64, uint8$"),
        (np.ones((0, 4)), "queries has 0 rows; at least 1 are needed"),
    ],
)
def test_matrices_of_another_kind_are_refused(matrix, message):
    with pytest.raises(InvalidInput, match=message):
        check_matrix(matrix, "queries", least_rows=1)
