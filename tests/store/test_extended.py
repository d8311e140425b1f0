"""A file with rows behind it as one array: mapped where the system can, copied elsewhere."""

import mmap
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffuse.core import Damaged
from suffuse.store import files as arrays
from suffuse.store.files import map_array, map_extended

DTYPES = ("int32", "uint8", "float32", "float16", "int64")


@pytest.fixture(params=["mapped", "copied"])
def way(request, monkeypatch):
    """Both ways to the same array; the fallback is what systems get that are neither Linux nor macOS."""
    if request.param == "copied":
        monkeypatch.setattr(arrays, "_map_file_into", lambda *_: False)
    return request.param


def numbers(count, dtype, start=0):
    return (np.arange(start, start + count) % 251).astype(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, mmap.PAGESIZE - 128, mmap.PAGESIZE - 127, mmap.PAGESIZE, 3 * mmap.PAGESIZE + 5])
def test_the_rows_come_behind_those_of_the_file(way, tmp_path, dtype, size):
    before = numbers(size, dtype)
    np.save(tmp_path / "x.npy", before)
    for count in (1, 3, 2 * mmap.PAGESIZE + 1):
        more = numbers(count, dtype, start=100)
        found = map_extended(tmp_path / "x.npy", more)
        assert found.array.dtype == dtype
        np.testing.assert_array_equal(found.array, np.concatenate([before, more]))
        assert not found.array.flags.writeable
        np.testing.assert_array_equal(map_array(tmp_path / "x.npy").array, before)  # the file is as it was


@settings(deadline=None, max_examples=60)
@given(rows=st.integers(1, 900), more=st.integers(0, 50), width=st.integers(1, 9), dtype=st.sampled_from(DTYPES))
def test_rows_of_any_width_are_extended(tmp_path_factory, rows, more, width, dtype):
    path = tmp_path_factory.mktemp("extended") / "x.npy"
    before, behind = (
        numbers(rows * width, dtype).reshape(rows, width),
        numbers(more * width, dtype).reshape(more, width),
    )
    np.save(path, before)
    found = map_extended(path, behind)
    np.testing.assert_array_equal(found.array, np.concatenate([before, behind]))
    assert found.array.flags.c_contiguous


def test_the_array_outlives_its_file(way, tmp_path):
    before, more = numbers(50_000, "int32"), numbers(77, "int32", start=9)
    np.save(tmp_path / "x.npy", before)
    found = map_extended(tmp_path / "x.npy", more)
    (tmp_path / "x.npy").unlink()
    np.save(tmp_path / "x.npy", np.zeros(50_000, np.int32))
    np.testing.assert_array_equal(found.array, np.concatenate([before, more]))


def test_rows_of_another_type_or_order_become_those_of_the_file(way, tmp_path):
    before = np.arange(12, dtype=np.float32).reshape(4, 3)
    np.save(tmp_path / "x.npy", before)
    more = np.asfortranarray(np.arange(6, dtype=np.float32).reshape(2, 3))
    found = map_extended(tmp_path / "x.npy", more)
    np.testing.assert_array_equal(found.array, np.concatenate([before, more]))


def test_no_rows_are_the_file_itself(way, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(10))
    found = map_extended(tmp_path / "x.npy", np.empty(0, np.int64))
    assert found.map is map_array(tmp_path / "x.npy").map


def test_both_ways_may_be_told_what_will_be_read(way, tmp_path):
    before, more = numbers(100_000, "uint8"), numbers(10_000, "uint8")
    np.save(tmp_path / "x.npy", before)
    found = map_extended(tmp_path / "x.npy", more)
    found.expect_random_access()
    for start, stop in [(0, 1), (0, 110_000), (99_999, 100_001), (109_999, 110_000), (5, 5), (0, 110_001), (-3, 4)]:
        found.will_need([(start, stop)])
    np.testing.assert_array_equal(found.array, np.concatenate([before, more]))


def test_a_broken_file_is_refused_as_without_rows(way, tmp_path):
    np.save(tmp_path / "x.npy", np.arange(10))
    (tmp_path / "x.npy").write_bytes((tmp_path / "x.npy").read_bytes()[:-3])
    with pytest.raises(Damaged, match=r"x\.npy has .* bytes, its header promises"):
        map_extended(tmp_path / "x.npy", np.arange(2))


SIZES = """
import sys
from pathlib import Path
import numpy as np
from suffuse.store.files import map_extended

def own():  # pages that are this process's, and not of a file
    return int(next(line for line in open("/proc/self/status") if line.startswith("RssAnon")).split()[1]) << 10

path = Path(sys.argv[1])
before = own()
found = map_extended(path, np.ones(100, np.uint8))
assert int(found.array.sum(dtype=np.int64)) == (64 << 20) + 100  # every page was read
print(own() - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc")
def test_a_mapped_file_takes_no_memory_of_its_own(tmp_path):
    np.save(tmp_path / "x.npy", np.ones(64 << 20, np.uint8))
    told = subprocess.run([sys.executable, "-c", SIZES, tmp_path / "x.npy"], capture_output=True, text=True, check=True)
    assert int(told.stdout) < 16 << 20
