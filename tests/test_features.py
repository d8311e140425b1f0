"""Features at the border: every reader and type gives unit rows, and whitening is the PCA it says it is."""

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffuse import features
from suffuse.errors import InvalidInput
from suffuse.features import (
    ACCEPTED_TYPES,
    Whitening,
    apply_whitening,
    check_matrix,
    check_owners,
    learn_whitening,
    load,
    load_owners,
    unit_blocks,
    unit_rows,
)


def obvious_unit_rows(matrix):
    rows = np.asarray(matrix, np.float64)
    return np.stack([row / np.sqrt((row * row).sum()) for row in rows])


def some_rows(rng, n=12, d=5, dtype="float32"):
    if dtype == "uint8":
        return rng.integers(1, 256, size=(n, d), dtype=np.uint8)
    return (10 * rng.normal(size=(n, d))).astype(dtype)


def write_npy(path, matrix):
    np.save(path.with_suffix(".npy"), matrix)
    return path.with_suffix(".npy")


def write_npy_in_fortran_order(path, matrix):
    return write_npy(path, np.asfortranarray(matrix))


def write_npy_of_the_other_byte_order(path, matrix):
    return write_npy(path, matrix.astype(matrix.dtype.newbyteorder(">")))


def write_npz(path, matrix):
    np.savez(path.with_suffix(".npz"), features=matrix, other=np.zeros(3))
    return path.with_suffix(".npz")


def write_compressed_npz(path, matrix):
    np.savez_compressed(path.with_suffix(".npz"), features=matrix)
    return path.with_suffix(".npz")


def write_npz_under_another_name(path, matrix):
    np.savez(path.with_suffix(".npz"), features=np.zeros(1), gallery=matrix)
    return f"{path.with_suffix('.npz')}::gallery"


def write_h5(path, matrix):
    with h5py.File(path.with_suffix(".h5"), "w") as archive:
        archive["features"] = matrix
        archive["other"] = np.zeros((3, 3))
    return path.with_suffix(".h5")


def write_h5_with_one_matrix(path, matrix):
    with h5py.File(path.with_suffix(".hdf5"), "w") as archive:
        archive["deep/inside"] = matrix
        archive["labels"] = np.arange(len(matrix))
    return path.with_suffix(".hdf5")


def write_h5_with_a_chosen_matrix(path, matrix):
    with h5py.File(path.with_suffix(".h5"), "w") as archive:
        archive["features"] = np.zeros((3, 3))
        archive["group/name"] = matrix
    return f"{path.with_suffix('.h5')}::group/name"


def write_mat(path, matrix):
    """As Matlab writes X with one column per image: a 512-byte block of text, and the transposed matrix."""
    file = path.with_suffix(".mat")
    with h5py.File(file, "w", userblock_size=512) as archive:
        archive["X"] = matrix
        archive["X"].attrs["MATLAB_class"] = np.bytes_("double")
    with file.open("r+b") as stream:
        stream.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(116) + b"\0" * 8 + b"\x00\x02IM")
    return file


WRITERS = [
    write_npy,
    write_npy_in_fortran_order,
    write_npy_of_the_other_byte_order,
    write_npz,
    write_compressed_npz,
    write_npz_under_another_name,
    write_h5,
    write_h5_with_one_matrix,
    write_h5_with_a_chosen_matrix,
    write_mat,
]


@pytest.mark.parametrize("dtype", ACCEPTED_TYPES)
@pytest.mark.parametrize("write", WRITERS, ids=lambda write: write.__name__)
def test_every_kind_of_file_and_every_type_gives_the_rows_that_were_written(tmp_path, write, dtype):
    matrix = some_rows(np.random.default_rng(1), dtype=dtype)
    loaded = load(write(tmp_path / "features", matrix)).features
    np.testing.assert_array_equal(loaded, matrix)
    rows = unit_rows(loaded, "features")
    assert (rows.dtype, rows.flags.c_contiguous) == (np.float32, True)
    np.testing.assert_allclose(rows, obvious_unit_rows(matrix), rtol=1e-7, atol=0)


def write_fvecs(path, matrix):
    words = np.empty((len(matrix), matrix.shape[1] + 1), "<i4")
    words[:, 0] = matrix.shape[1]
    words[:, 1:] = matrix.astype("<f4").view("<i4")
    words.tofile(path)
    return path


def test_fvecs_files_give_the_rows_that_were_written(tmp_path):
    matrix = some_rows(np.random.default_rng(2))
    loaded = load(write_fvecs(tmp_path / "features.fvecs", matrix)).features
    assert loaded.dtype == np.float32
    np.testing.assert_array_equal(loaded, matrix)
    np.testing.assert_allclose(unit_rows(loaded, "features"), obvious_unit_rows(matrix), rtol=1e-7, atol=0)


def base_map(array):
    while array is not None and not (isinstance(array, np.memmap) and array.filename):
        array = array.base
    return array


@pytest.mark.parametrize("kind", ["npy", "fvecs"])
def test_npy_and_fvecs_files_are_memory_mapped_and_read_only(tmp_path, kind):
    matrix = some_rows(np.random.default_rng(3))
    path = tmp_path / f"features.{kind}"
    if kind == "npy":
        np.save(path, matrix)
    else:
        write_fvecs(path, matrix)
    for transpose in (False, True):
        loaded = load(path, transpose=transpose).features
        assert base_map(loaded) is not None
        with pytest.raises(ValueError, match="read-only"):
            loaded[0, 0] = 1


@pytest.mark.parametrize("suffix", [".npy", ".npz", ".h5"])
def test_transpose_turns_columns_into_rows(tmp_path, suffix):
    matrix = some_rows(np.random.default_rng(4))
    writers = {".npy": write_npy, ".npz": write_npz, ".h5": write_h5}
    path = writers[suffix](tmp_path / "features", np.ascontiguousarray(matrix.T))
    np.testing.assert_array_equal(load(path, transpose=True).features, matrix)
    assert load(path).features.shape == (5, 12)


def test_a_suffix_in_capitals_is_the_same_kind(tmp_path):
    matrix = some_rows(np.random.default_rng(5))
    write_npy(tmp_path / "features", matrix).rename(tmp_path / "FEATURES.NPY")
    np.testing.assert_array_equal(load(str(tmp_path / "FEATURES.NPY")).features, matrix)


def test_labels_of_an_npz_file_come_with_the_features_and_other_files_have_none(tmp_path):
    matrix = some_rows(np.random.default_rng(6))
    np.savez(tmp_path / "both.npz", features=matrix, labels=np.arange(12) % 3)
    np.testing.assert_array_equal(load(tmp_path / "both.npz").labels, np.arange(12) % 3)
    assert load(write_npz(tmp_path / "features", matrix)).labels is None
    assert load(write_npy(tmp_path / "features", matrix)).labels is None


@pytest.mark.parametrize("scale", [1e300, 1e-300, 5e-324])
def test_huge_and_tiny_values_keep_their_direction(scale):
    matrix = np.array([[1.0, 2.0, -2.0], [0.0, 0.0, 3.0], [-4.0, 0.0, 3.0]])
    if scale == 5e-324:  # the smallest number there is: it cannot hold fractions, these rows need none
        matrix = np.array([[1.0, 2.0, -2.0], [0.0, 0.0, 1.0]])
    np.testing.assert_allclose(unit_rows(matrix * scale, "features"), obvious_unit_rows(matrix), rtol=1e-7)


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
    rows = obvious_unit_rows(matrix)
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
@given(
    seed=st.integers(0, 2**32 - 1), n=st.integers(1, 40), d=st.integers(2, 20), power=st.sampled_from([0.0, 0.5, 1.0])
)
def test_whitening_a_batch_equals_whitening_row_by_row(seed, n, d, power):
    rng = np.random.default_rng(seed)
    whitening = learn_whitening(rng.normal(size=(60, d)), "features", max(1, d // 2), power)
    rows = unit_rows(rng.normal(size=(n, d)), "queries")
    batch = apply_whitening(rows, whitening, "queries")
    singles = np.concatenate([apply_whitening(rows[i : i + 1], whitening, "queries") for i in range(n)])
    np.testing.assert_array_equal(batch, singles)
    expected = obvious_unit_rows((rows.astype(np.float64) - whitening.mean) @ whitening.projection)
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


def test_owners_are_read_from_an_npy_file(tmp_path):
    np.save(tmp_path / "owners.npy", np.array([0, 0, 1]))
    np.testing.assert_array_equal(load_owners(str(tmp_path / "owners.npy")), [0, 0, 1])


def test_queries_of_other_dimensions_are_refused_with_both_numbers():
    with pytest.raises(
        InvalidInput, match="queries have 4 dimensions, the index has 8; build and search with the same"
    ):
        check_matrix(np.ones((1, 4)), "queries", least_rows=1, dimensions=8)


@pytest.mark.parametrize(
    ("matrix", "message"),
    [
        ([[1.0, 2.0]], "queries must be a numpy array, got list; use numpy.asarray"),
        (np.ones(4), r"two dimensions \(rows, values\), found shape \(4,\); for one vector use vector\[None, :\]"),
        (np.ones((2, 4), np.int64), "type int64; use one of float16, .*, for instance features.astype"),
        (np.ones((2, 4), complex), "type complex128; use one of float16, float32, float64, uint8$"),
        (np.ones((0, 4)), "queries has 0 rows; at least 1 are needed"),
    ],
)
def test_matrices_of_another_kind_are_refused(matrix, message):
    with pytest.raises(InvalidInput, match=message):
        check_matrix(matrix, "queries", least_rows=1)


@pytest.mark.parametrize("userblock", [0, 512], ids=["HDF5", "with Matlab's user block"])
def test_an_hdf5_dataset_in_one_piece_is_memory_mapped_and_a_compressed_one_is_read(tmp_path, userblock):
    rows = np.random.default_rng(9).standard_normal((7, 5)).astype(np.float32)
    with h5py.File(tmp_path / "x.h5", "w", userblock_size=userblock) as archive:
        archive["features"] = rows
        archive.create_dataset("small", data=rows, compression="gzip")
    mapped, read = load(tmp_path / "x.h5").features, load(f"{tmp_path / 'x.h5'}::small").features
    assert isinstance(mapped, np.memmap)
    assert not mapped.flags.writeable
    assert not isinstance(read, np.memmap)
    np.testing.assert_array_equal(mapped, rows)
    np.testing.assert_array_equal(read, rows)
