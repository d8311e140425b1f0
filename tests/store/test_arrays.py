"""Files that appear whole or not at all, and maps of them that are shared."""

import gc

import numpy as np
import pytest

from suffuse.store import files as arrays
from suffuse.store.files import map_array, write_array, write_blocks, write_side_by_side


def test_a_file_is_mapped_once_as_long_as_somebody_needs_it(tmp_path):
    write_array(tmp_path / "a.npy", np.arange(10))
    first, second = map_array(tmp_path / "a.npy"), map_array(tmp_path / "a.npy")
    assert first.map is second.map
    # A new file of the same name is another one, and who has the old one goes on with it.
    write_array(tmp_path / "a.npy", np.arange(10) + 5)
    third = map_array(tmp_path / "a.npy")
    assert third.map is not first.map
    assert (first.array.tolist(), third.array[0]) == (list(range(10)), 5)
    gc.collect()
    before = len(arrays._MAPS)
    del first, second, third
    gc.collect()
    assert len(arrays._MAPS) == before - 2


def test_blocks_side_by_side_become_arrays(tmp_path):
    blocks = [(np.arange(3), np.ones(2)), (np.arange(3, 5), np.zeros(1))]
    files = {tmp_path / "ids.npy": (np.int32, (5,)), tmp_path / "values.npy": (np.float32, (3,))}
    write_side_by_side(files, blocks)
    ids, values = (map_array(path).array for path in files)
    assert (ids.tolist(), ids.dtype) == ([0, 1, 2, 3, 4], np.int32)
    assert (values.tolist(), values.dtype) == ([1.0, 1.0, 0.0], np.float32)


def test_blocks_that_fail_leave_the_old_files(tmp_path):
    def blocks():
        yield np.arange(2)
        raise OSError("the disk is full")

    write_array(tmp_path / "a.npy", np.arange(3))
    with pytest.raises(OSError, match="full"):
        write_blocks(tmp_path / "a.npy", np.int64, (4,), blocks())
    assert map_array(tmp_path / "a.npy").array.tolist() == [0, 1, 2]
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]
