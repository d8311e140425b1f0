"""The index on disk: what is written is read back, files appear whole or not at all, and old indexes stay readable."""

import hashlib
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.support.data import clusters

import suffuse
from suffuse.core.features import learn_whitening, unit_blocks
from suffuse.core.params import Params
from suffuse.errors import IndexBroken
from suffuse.index.snapshot import Snapshot, verify
from suffuse.store import files as arrays
from suffuse.store.files import map_array, sha256_of, write_array, write_blocks, write_bytes, write_json
from suffuse.store.manifest import FORMAT_VERSION, read_manifest, size_on_disk, write_manifest

GOLDEN = Path(__file__).parents[1] / "golden"

DTYPES = st.sampled_from(["float16", "float32", "float64", "int32", "int64", "uint16", "uint32"]).map(np.dtype)
ARRAYS = hnp.arrays(DTYPES, hnp.array_shapes(min_dims=1, max_dims=3, min_side=0, max_side=5))


@pytest.fixture(scope="session")
def regional(tmp_path_factory):
    """(features, owners, names, path) of a small regional index with whitening and names."""
    rng = np.random.default_rng(20)
    features = clusters(rng, 60, 8)
    owners = rng.permutation(np.arange(60) % 20)
    names = [{"name": f"photo {id} — é", "year": 1990 + id} for id in range(20)]
    path = tmp_path_factory.mktemp("store") / "regional.index"
    params = Params(k=8, truncation=30, keep=12, whiten=6, whiten_power=0.5)
    suffuse.build(features, path, params, owners=owners, names=names)
    return features, owners, names, path


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    """(features, path) of a small index of whole images, float32, without names."""
    features = clusters(np.random.default_rng(21), 50, 8)
    path = tmp_path_factory.mktemp("store") / "plain.index"
    suffuse.build(features, path, Params(k=8, truncation=30, keep=12, values="float32"))
    return features, path


@pytest.fixture(scope="session")
def scratch(tmp_path_factory):
    """A file to write again and again."""
    return tmp_path_factory.mktemp("arrays") / "array.npy"


def same(found, expected):
    return (found.dtype, found.shape, found.tobytes()) == (expected.dtype, expected.shape, expected.tobytes())


@settings(deadline=None, max_examples=100)
@given(array=ARRAYS, transposed=st.booleans())
def test_what_is_written_is_read_back_bit_by_bit(scratch, array, transposed):
    array = array.T if transposed else array
    write_array(scratch, array)
    mapped = map_array(scratch)
    assert same(mapped.array, array)
    assert mapped.array.flags.c_contiguous
    assert not mapped.array.flags.writeable
    assert same(np.load(scratch, allow_pickle=False), array)


@settings(deadline=None, max_examples=50)
@given(array=ARRAYS, rows=st.integers(1, 4))
def test_blocks_of_any_size_make_the_same_file(scratch, array, rows):
    write_array(scratch, array)
    whole = scratch.read_bytes()
    blocks = (array[start : start + rows] for start in range(0, len(array), rows))
    write_blocks(scratch, array.dtype, array.shape, blocks)
    assert scratch.read_bytes() == whole


def test_a_scalar_is_read_back(tmp_path):
    write_array(tmp_path / "a.npy", np.array(3.5))
    assert map_array(tmp_path / "a.npy").array == 3.5


def failing_blocks():
    yield np.zeros(1000)
    raise OSError(28, "No space left on device")


def files_in(directory):
    return sorted(path.name for path in directory.rglob("*"))


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_beside_it(tmp_path, error):
    def failing():
        yield np.zeros(1000)
        raise error

    path = tmp_path / "a.npy"
    write_array(path, np.arange(5))
    with pytest.raises(error):
        write_blocks(path, np.float64, (2000,), failing())
    np.testing.assert_array_equal(np.load(path), np.arange(5))
    assert files_in(tmp_path) == ["a.npy"]


def test_a_first_write_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(OSError, match="No space left"):
        write_blocks(tmp_path / "a.npy", np.float64, (2000,), failing_blocks())
    assert files_in(tmp_path) == []


def test_a_write_that_cannot_be_renamed_leaves_nothing_beside_it(tmp_path):
    (tmp_path / "a.npy").mkdir()
    with pytest.raises(OSError, match="directory"):
        write_array(tmp_path / "a.npy", np.arange(5))
    assert files_in(tmp_path) == ["a.npy"]


def test_a_file_is_not_there_before_its_last_byte(tmp_path):
    seen = []

    def watching():
        for _ in range(3):
            seen.append((tmp_path / "a.bin").exists())
            yield b"part"

    write_bytes(tmp_path / "a.bin", watching())
    assert seen == [False] * 3
    assert (tmp_path / "a.bin").read_bytes() == b"partpartpart"


def test_json_is_the_same_bytes_for_the_same_value_and_refuses_nan(tmp_path):
    write_json(tmp_path / "a.json", {"b": 1, "a": [1.5, None]})
    first = (tmp_path / "a.json").read_bytes()
    write_json(tmp_path / "a.json", {"a": [1.5, None], "b": 1})
    assert (tmp_path / "a.json").read_bytes() == first
    with pytest.raises(ValueError, match="not JSON compliant"):
        write_json(tmp_path / "a.json", {"a": float("nan")})
    assert (tmp_path / "a.json").read_bytes() == first
    assert files_in(tmp_path) == ["a.json"]


@pytest.mark.parametrize("size", [0, 1, 16, 17, 100])
def test_the_hash_of_a_file_does_not_depend_on_how_it_is_read(tmp_path, monkeypatch, size):
    content = np.random.default_rng(22).bytes(size)
    (tmp_path / "a").write_bytes(content)
    monkeypatch.setattr(arrays, "_HASH_BYTES", 16)
    assert sha256_of(tmp_path / "a") == hashlib.sha256(content).hexdigest()


def test_advice_to_the_kernel_is_taken_for_any_part_of_a_file(tmp_path):
    write_array(tmp_path / "a.npy", np.arange(100_000, dtype=np.int32))
    mapped = map_array(tmp_path / "a.npy")
    mapped.expect_random_access()
    for start, stop in [(0, 0), (0, 1), (7, 8), (5, 5), (99_999, 100_000), (0, 100_000)]:
        mapped.will_need([(start, stop)])
    np.testing.assert_array_equal(mapped.array, np.arange(100_000))


def test_an_index_holds_what_it_was_built_from(regional):
    features, owners, names, path = regional
    stored = Snapshot.open(path)
    whitening = learn_whitening(features, "features", 6, 0.5)
    np.testing.assert_array_equal(stored.features, np.concatenate(list(unit_blocks(features, "features", whitening))))
    np.testing.assert_array_equal(stored.whitening.mean, whitening.mean)
    np.testing.assert_array_equal(stored.whitening.projection, whitening.projection)
    np.testing.assert_array_equal(stored.owners, owners)
    assert list(stored.items) == names
    assert [stored.columns().entries.dtype, stored.columns().values.dtype] == [np.uint8, np.float32]
    assert {"elements": 60, "images": 20, "dimensions": 6}.items() <= stored.manifest.counts.items()
    assert (stored.columns().starts[0], stored.columns().stops[-1]) == (0, len(stored.columns().entries))
    np.testing.assert_array_equal(stored.columns().starts[1:], stored.columns().stops[:-1])


def test_an_index_without_owners_whitening_and_names_has_none(plain):
    _, path = plain
    stored = Snapshot.open(str(path))
    assert (stored.owners, stored.whitening, stored.items[49]) == (None, None, {})
    assert [stored.columns().entries.dtype, stored.columns().values.dtype] == [np.int32, np.float32]
    assert stored.columns().stops[-1] == len(stored.columns().entries) == stored.manifest.counts["entries"]
    assert len(stored.items) == 50


def test_a_manifest_survives_writing_and_reading(regional, tmp_path):
    manifest = read_manifest(regional[-1])
    assert manifest.version == FORMAT_VERSION
    assert manifest.params == Params(k=8, truncation=30, keep=12, whiten=6, whiten_power=0.5)
    write_manifest(tmp_path, manifest)
    assert read_manifest(tmp_path) == manifest
    assert (tmp_path / "manifest.json").read_bytes() == (regional[-1] / "manifest.json").read_bytes()


DISTRICTS = [
    "districts.npy", "district_shares.npy", "district_indptr.npy", "district_codes.npy", "district_scales.npy",
]  # fmt: skip


def test_a_directory_holds_the_files_that_its_manifest_names_and_nothing_else(regional, plain):
    always = ["features.npy", "indptr.npy", "list_ids.npy", "list_sims.npy", "marks.npy", "pages.npy"]
    plainly, coded = ["rows.npy", "values.npy", *DISTRICTS], ["codes.npy", "scales.npy"]
    extras = ["item_offsets.npy", "items.jsonl", "owners.npy", "whitening_mean.npy", "whitening_projection.npy"]
    extras += ["image_indptr.npy", "image_rows.npy", "image_values.npy"]
    for path, expected in ((regional[-1], [*always, *coded, *extras]), (plain[-1], [*always, *plainly])):
        assert files_in(path) == sorted([*expected, "manifest.json"])
        assert sorted(read_manifest(path).files) == sorted(expected)


def test_every_array_opens_with_plain_numpy_and_without_pickle(regional, plain):
    for path in (regional[-1], plain[-1]):
        files = read_manifest(path).files
        for file in path.glob("*.npy"):
            array = np.load(file, allow_pickle=False)
            assert [array.dtype.name, list(array.shape)] == [files[file.name]["dtype"], files[file.name]["shape"]]
            np.testing.assert_array_equal(map_array(file).array, array)


def test_a_fresh_index_verifies_and_all_its_bytes_are_counted(regional, plain):
    for path in (regional[-1], plain[-1]):
        size = sum(file.stat().st_size for file in path.iterdir() if file.name != "manifest.json")
        assert verify(path) == size_on_disk(read_manifest(path)) == size
        assert suffuse.verify(str(path)) == size


DATA = ["features.npy", "codes.npy", "scales.npy", "owners.npy", "whitening_mean.npy", "whitening_projection.npy"]


@pytest.mark.parametrize(
    "name", [*DATA, "marks.npy", "items.jsonl", *(name for name in DISTRICTS if name != "district_indptr.npy")]
)
def test_opening_reads_no_data_but_verifying_reads_it_all(regional, plain, tmp_path, name):
    path = tmp_path / "copy.index"
    source, images = (plain[-1], 50) if name in DISTRICTS else (regional[-1], 20)
    shutil.copytree(source, path)
    whole = (path / name).read_bytes()
    # The last byte is data in every file; one bit of it is enough.
    (path / name).write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    assert len(suffuse.Index.open(path)) == images
    with pytest.raises(IndexBroken, match=f"{name} has the hash .*: it was changed or damaged; copy or build"):
        verify(path)
    (path / name).write_bytes(whole)
    assert verify(path) > 0


def test_an_open_index_can_be_moved_and_a_copy_is_the_same_index(plain, tmp_path):
    features, path = plain
    before = suffuse.Index.open(path).search(features[:3], top=5)
    shutil.copytree(path, tmp_path / "a.index")
    index = suffuse.Index.open(tmp_path / "a.index")
    (tmp_path / "a.index").rename(tmp_path / "b.index")
    for found in (index.search(features[:3], top=5), suffuse.Index.open(tmp_path / "b.index").search(features[:3], 5)):
        np.testing.assert_array_equal(found.ids, before.ids)
        np.testing.assert_array_equal(found.scores, before.scores)


EXPECTED = [
    {"version": 1, **case} | {"search": {"refine": 0} | case["search"]}
    for name in ("expected.json", "expected-2.json", "expected-3.json", "expected-4.json")
    for case in json.loads((GOLDEN / name).read_text())
]


@pytest.mark.parametrize("case", EXPECTED, ids=lambda case: f"{case['index']} {case['search']}")
def test_an_index_of_every_format_version_opens_verifies_and_gives_the_hits_it_gave(case):
    """Written once by tests/golden/make.py, make_2.py, make_3.py and make_4.py; every later version must read them."""
    path = GOLDEN / case["index"]
    assert verify(path) == size_on_disk(read_manifest(path))
    index = suffuse.Index.open(path)
    assert index.manifest.version == case["version"]
    assert index.params == Params.from_dict(case["params"])  # written before some of today's parameters existed
    assert index.items.name(3) == case["name_of_3"]
    owners = None if case["owners"] is None else np.array(case["owners"])
    hits = index.search(np.load(GOLDEN / "queries.npy"), **case["search"], owners=owners)
    np.testing.assert_array_equal(hits.ids, case["ids"])
    np.testing.assert_allclose(hits.scores, case["scores"], rtol=1e-4)


def test_the_golden_files_stay_small():
    files = [path for path in GOLDEN.rglob("*") if path.is_file()]
    for version in range(1, FORMAT_VERSION + 1):
        sizes = [path.stat().st_size for path in files if f"version-{version}" in str(path.relative_to(GOLDEN))]
        assert 0 < sum(sizes) < 45_000
    assert sum(path.stat().st_size for path in files) < 50_000 * FORMAT_VERSION


@pytest.mark.parametrize("version", [3, 4])
def test_the_golden_index_that_changed_has_segments_and_the_compacted_one_a_base_of_its_own(version):
    """Else they would not show that either still opens."""
    changed, compacted = (read_manifest(GOLDEN / f"version-{version}{kind}.index") for kind in ("", "-images"))
    assert (changed.base, len(changed.segments)) == ("", 1)
    assert (compacted.base, len(compacted.segments)) == ("base-000003", 1)
    assert "ids.npy" in compacted.files
    ids = suffuse.Index.open(GOLDEN / f"version-{version}-images.index").ids
    assert ids.list_visible().tolist() == sorted(set(range(34)) - {2, 9})
    assert ids.hidden.sum() == 2
