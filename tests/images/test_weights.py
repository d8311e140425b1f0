"""Torch files: tensors are read, and everything else is refused before anything happens."""

import contextlib
import os
import pickle
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.pictures import HEAD, tensor, torch_file

from suffuse.errors import InvalidInput
from suffuse.images.weights import parse_weights

END = b".\x80\x02](X\x01\x00\x00\x000e."
NUMBERS = b"\x04" + bytes(7) + np.arange(4, dtype="<f4").tobytes()


def test_tensors_are_read_in_any_order_of_their_axes():
    matrix = np.arange(24, dtype=np.float32).reshape(2, 3, 4)
    tensors = {"a": matrix, "turned": matrix.transpose(2, 0, 1), "zero": np.array(7, np.float32),
               "one": np.ones((1, 3, 1), np.float32), "none": np.zeros((0, 2), np.float32)}  # fmt: skip
    found = parse_weights(torch_file(tensors), "x")
    assert list(found) == list(tensors)
    for name, array in tensors.items():
        assert found[name].shape == array.shape
        assert found[name].flags.c_contiguous
        np.testing.assert_array_equal(found[name], array)


def described(body):
    """A torch file whose fourth pickle is the given one, with one storage of four numbers."""
    return HEAD + b"\x80\x02" + body + END + NUMBERS


def one(*arguments, **options):
    return b"}X\x01\x00\x00\x00a" + tensor("0", 4, *arguments, **options) + b"s"


def test_the_files_of_the_next_test_are_right_where_nothing_is_wrong():
    assert parse_weights(described(one(0, (4,), (1,))), "x")["a"].tolist() == [0, 1, 2, 3]
    assert parse_weights(described(one(1, (2,), (1,))), "x")["a"].tolist() == [1, 2]


class Gadget:
    def __init__(self, function, *arguments):
        self.reduced = (function, arguments)

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("protocol", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("place", ["first", "tensors"])
def test_a_file_that_would_run_a_command_is_refused_before_it_runs(tmp_path, protocol, place):
    marker = tmp_path / "ran"
    hostile = pickle.dumps({"a": Gadget(os.system, f"touch {marker}")}, protocol)
    data = hostile if place == "first" else HEAD + hostile + END[1:] + NUMBERS
    with pytest.raises(InvalidInput, match=r"weights\.pth is refused"):
        parse_weights(data, "weights.pth")
    assert not marker.exists()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"cos\nsystem\n(X\x01\x00\x00\x00atR", "it names os.system, which is not allowed"),
        (b"cbuiltins\neval\n)R", "it names builtins.eval"),
        (b"ctorch\nload\n)R", "it names torch.load"),
        (b"ccollections\nOrderedDict\n(K\x01tR", "a call of OrderedDict with values"),
        (b"ctorch\nFloatStorage\n)R", "a call of torch.FloatStorage"),
        (b"ctorch\nFloatStorage\n)\x81", "the instruction NEWOBJ"),
        (b"X\x02\x00\x00\x00osX\x06\x00\x00\x00system\x93", "the instruction STACK_GLOBAL"),
        (b"(ios\nsystem\n", "the instruction INST"),
        (b"\x82\x01", "the instruction EXT1"),
        (b"Pname\n", "the instruction PERSID"),
        (b"}X\x01\x00\x00\x00aK\x01s", "something else than named tensors"),
        (b"}K\x01" + tensor("0", 4, 0, (4,), (1,)) + b"s", "something else than named tensors"),
        (b"]", "something else than named tensors"),
        (b"ctorch\nFloatStorage\n}b", "a state for torch.FloatStorage"),
        (b"K\x01}b", "something else than named tensors"),
        (b"K\x01K\x01K\x01s", "no dictionary"),
        (b"(X\x04\x00\x00\x00fileX\x04\x00\x00\x00/etctQ", "no storage"),
        (one(0, (5,), (1,)), "5 numbers in a storage of 4"),
        (one(1, (4,), (1,)), "4 numbers in a storage of 4"),
        (one(-1, (4,), (1,)), "a size of -1"),
        (one(0, (-4,), (1,)), "a size of -4"),
        (one(0, (4,), (0,)), "with strides"),
        (one(0, (2, 2), (1, 1)), "with strides"),
        (one(0, (2, 2), (1,)), "with strides"),
        (one(0, (2**40,), (0,)), "numbers in a storage"),
        (one(0, (2**20, 2**20, 2**20), (0, 0, 0)), "numbers in a storage"),
        (one(0, (4,), (1,), kind=b"torch\nDoubleStorage"), "should hold 4 numbers"),
        (one(0, (4,), (1,), kind=b"torch\nQUInt8Storage"), "it names torch.QUInt8Storage"),
    ],
)
def test_anything_but_tensors_is_refused_and_told(body, words):
    with pytest.raises(InvalidInput, match=f"x is refused: .*{re.escape(words)}"):
        parse_weights(described(body), "x")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "cannot be read as a torch file"),
        (b"PK\x03\x04 a zip file, as newer torch writes", "cannot be read as a torch file"),
        (b"\x80\x02K\x01.", "not a torch file of the old format"),
        (HEAD, "cannot be read as a torch file"),
        (HEAD.replace(b"\x88u.", b"\x89u."), "not little-endian"),
        (torch_file({"a": np.zeros(3, np.float32)})[:-1], "should hold 3 numbers"),
        (torch_file({"a": np.zeros(3, np.float32)}, counts={0: 2**60}), "should hold 3 numbers"),
        (torch_file({"a": np.zeros(3, np.float32)}, keys=["0", "1"]), "list of its storages"),
        (HEAD + b"\x80\x02\x85\x85.", "cannot be read as a torch file"),
        (described(b"}K\x01a"), "cannot be read as a torch file: .*append"),
        (described(b"}}K\x01K\x01sb"), "cannot be read as a torch file"),
        (HEAD + b"\x80\x02}}.", "cannot be read as a torch file"),
    ],
)
def test_damaged_files_are_refused(data, words):
    with pytest.raises(InvalidInput, match=words):
        parse_weights(data, "x")


@given(st.binary(min_size=1, max_size=40), st.data())
def test_changed_bytes_never_do_anything_but_fail_or_load(noise, data):
    content = bytearray(torch_file({"a": np.arange(6, dtype=np.float32).reshape(2, 3)}))
    start = data.draw(st.integers(0, len(content)))
    content[start : start + len(noise)] = noise
    with contextlib.suppress(InvalidInput):
        for array in parse_weights(bytes(content), "x").values():
            assert isinstance(array, np.ndarray)
