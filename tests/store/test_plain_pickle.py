"""Pickles: plain data and arrays are read, and what wants more than to be read is refused before it runs."""

import contextlib
import os
import pickle
import re
import struct

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.dataset_files import write_pickle

from suffuse.errors import InvalidInput
from suffuse.research.datasets import read_truth
from suffuse.store import pickles as plain_pickle

PLAIN = {
    "matrix": np.arange(6).reshape(2, 3), "fortran": np.asfortranarray(np.arange(6.0).reshape(2, 3)),
    "words": np.array(["ab", "c"]), "bytes": np.array([b"ab"]), "none": np.array([], np.int16), "zero": np.array(5),
    "big": np.arange(3, dtype=">i4"), "truth": np.array([True, False]), "complex": np.array([1j]),
    "single": np.float32(2.5), "list": [1, 2.5, "é", None, True, b"\xff\x00", b"", 10**30, (1, ())], "set": {1, 2},
}  # fmt: skip


@pytest.mark.parametrize("protocol", range(6))
def test_plain_data_survives_every_protocol(protocol):
    found = plain_pickle.loads(pickle.dumps(PLAIN, protocol), "x")
    assert found.keys() == PLAIN.keys()
    for key, value in PLAIN.items():
        assert type(found[key]) is type(value), key
        np.testing.assert_array_equal(np.asarray(found[key]), np.asarray(value)) if key not in ("list", "set") else None
        assert getattr(found[key], "dtype", None) == getattr(value, "dtype", None)
    assert (found["list"], found["set"]) == (PLAIN["list"], PLAIN["set"])


def test_arrays_written_by_older_numpy_and_python_2_are_read():
    old = pickle.dumps({"ok": np.array([3, 200])}, 2).replace(b"numpy._core", b"numpy.core")
    assert plain_pickle.loads(old, "x")["ok"].tolist() == [3, 200]
    raw = np.array([3, 200], "<i8").tobytes()
    python2 = (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I0\ntU\x01btR(I1\n(I2\ntcnumpy\ndtype\n"
        b"(U\x02i8I0\nI1\ntR(I3\nU\x01<NNNI-1\nI-1\nI0\ntbI00\nU" + bytes([len(raw)]) + raw + b"tb."
    )
    assert plain_pickle.loads(python2, "x").tolist() == [3, 200]


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner, inner),
)


@given(json_like, st.integers(0, 5))
def test_what_is_written_plain_is_read_the_same(value, protocol):
    assert plain_pickle.loads(pickle.dumps(value, protocol), "x") == value


class Gadget:
    def __init__(self, function, *arguments):
        self.reduced = (function, arguments)

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_would_run_a_command_is_refused_before_it_runs(tmp_path, protocol):
    marker = tmp_path / "ran"
    file = tmp_path / "gnd_oxford5k.pkl"
    write_pickle(file, [{"ok": Gadget(os.system, f"touch {marker}"), "junk": []}], protocol)
    with pytest.raises(InvalidInput, match=r"gnd_oxford5k\.pkl is refused: it names (posix|nt)\.system, which is not"):
        read_truth(file)
    assert not marker.exists()


def call(module, name, *arguments):
    """A pickle that calls module.name(*arguments), by names as they are written, dots and all."""
    text = [pickle.dumps(argument, 4)[2:-1] for argument in (module, name)]
    values = b"".join(pickle.dumps(argument, 2)[2:-1] for argument in arguments)
    return b"\x80\x04" + b"".join(text) + b"\x93(" + values + b"tR."


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("builtins", "eval"), ("builtins", "exec"), ("builtins", "getattr"), ("builtins", "__import__"),
        ("builtins", "open"), ("builtins", "bytearray"), ("builtins", "set.__class__"), ("subprocess", "Popen"),
        ("numpy", "load"), ("numpy", "fromfile"), ("numpy", "ndarray.tofile"), ("numpy", "dtype.type"),
        ("numpy._core.multiarray", "fromfile"), ("numpy.testing._private.utils", "runstring"),
        ("copyreg", "__newobj__"), ("operator", "attrgetter"), ("functools", "partial"), ("importlib", "import_module"),
        ("types", "CodeType"), ("suffuse.store.pickles", "load"), ("_codecs", "decode"), ("collections", "OrderedDict"),
    ],
)  # fmt: skip
def test_every_other_name_is_refused_and_told(module, name):
    with pytest.raises(InvalidInput, match=re.escape(f"x is refused: it names {module}.{name}, which")):
        plain_pickle.loads(call(module, name, "1"), "x")


def array_of(code, state, raw, shape=(1,)):
    """A pickle of an array whose dtype, dtype state and contents are chosen freely."""
    reconstruct = b"cnumpy._core.multiarray\n_reconstruct\n(cnumpy\nndarray\nK\x00\x85C\x01btR"
    values = [pickle.dumps(value, 3)[2:-1] for value in (shape, code, state, raw)]
    dtype = b"cnumpy\ndtype\n(" + values[1] + b"\x89\x88tR" + values[2] + b"b"
    return b"\x80\x03" + reconstruct + b"(K\x01" + values[0] + dtype + b"\x89" + values[3] + b"tb."


ADDRESS = struct.pack("<Q", 0xDEADBEEF)
PLAIN_STATE = (3, "<", None, None, None, -1, -1, 0)


def test_the_arrays_of_the_next_tests_are_right_where_nothing_is_wrong():
    assert plain_pickle.loads(array_of("i8", PLAIN_STATE, struct.pack("<q", 7)), "x").tolist() == [7]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        # Flags of 0 would make numpy take the bytes for the address of a Python object.
        (array_of("O8", (3, "|", None, None, None, -1, -1, 0), ADDRESS), "an array of type 'O8'"),
        (array_of("V8", (3, "|", None, ("a",), {"a": ("O", 0)}, 8, 1, 0), ADDRESS), "an array of type 'V8'"),
        (array_of("i8", (3, "<", None, ("a",), {"a": ("O", 0)}, 8, 1, 0), ADDRESS), "an array of records"),
        (array_of("i8", (3, "<", ("i8", (9,)), None, None, 72, 8, 0), ADDRESS), "an array of records"),
        (array_of("i8", (3, "O", None, None, None, -1, -1, 0), ADDRESS), "odd byte order 'O'"),
        (array_of("i8,O", PLAIN_STATE, ADDRESS), "an array of type 'i8,O'"),
        (array_of("i8", PLAIN_STATE, ADDRESS, shape=(2,)), r"shape \(2,\) and type int64 in 8 bytes"),
        (array_of("i8", PLAIN_STATE, ADDRESS, shape=(2**40,)), "in 8 bytes"),
        (array_of("i8", PLAIN_STATE, ADDRESS, shape=(-1,)), r"an array of shape \(-1,\)"),
        (array_of("S0", PLAIN_STATE, b"", shape=(2**40,)), "in 0 bytes"),
        (array_of("i8", PLAIN_STATE, [1]), "does not consist of bytes"),
        (call("numpy._core.multiarray", "_reconstruct", "ndarray", (2**40,), b"b"), "an array of an unknown class"),
        (call("numpy", "ndarray", (2**40,)), "a call of numpy.ndarray"),
        (call("builtins", "bytes", 2**50), "a call of bytes with values"),
        (call("_codecs", "encode", "x", "rot13"), "bytes encoded by 'rot13'"),
        (b"cnumpy\nndarray\n.", "it holds a function or a type"),
        (b"cnumpy\ndtype\n(U\x02i8tR.", "it holds a function or a type"),
        # A state for a name: attributes that would stay when the next file is read.
        (b"\x80\x02c_codecs\nencode\n}U\x01aK\x01sb.", "a state for _codecs.encode"),
        (b"\x80\x02c_codecs\nencode\nN}U\x08__call__K\x01s\x86b.", "a state for _codecs.encode"),
        (b"Pname\n.", "refers to something outside of the file, 'name'"),
        (b"\x80\x02]r\xff\xff\xff\x7f.", "entry 2147483647 in a pickle of 9 bytes"),
        (b"\x80\x02]q\x00h\x00a.", "it contains itself"),
        (b"]" * 100_000 + b"a" * 99_999 + b".", "nested too deeply"),
    ],
)
def test_tricks_with_allowed_names_are_refused(data, words):
    with pytest.raises(InvalidInput, match=f"x is refused: .*{words}"):
        plain_pickle.loads(data, "x")


def test_shared_parts_are_not_copied_over_and_over():
    value = []
    for _ in range(200):
        value = [value, value]  # 2 ** 200 leaves if each were visited
    found = plain_pickle.loads(pickle.dumps(value, 2), "x")
    assert found[0] is found[1]


@pytest.mark.parametrize("data", [b"", b"nonsense", b"\x80\x04\x95", b"\x82\x01.", b"0.", b"cnumpy\ndtype\n)\x81."])
def test_damaged_pickles_are_refused(data):
    with pytest.raises(InvalidInput, match="x cannot be read as a pickle"):
        plain_pickle.loads(data, "x")


@given(st.binary(max_size=60), st.integers(0, 5), st.data())
def test_changed_bytes_never_do_anything_but_fail_or_load(noise, protocol, data):
    content = bytearray(pickle.dumps(PLAIN, protocol))
    start = data.draw(st.integers(0, len(content)))
    content[start : start + len(noise)] = noise
    with contextlib.suppress(InvalidInput):
        plain_pickle.loads(bytes(content), "x")


def test_a_pickle_that_is_not_there_is_named(tmp_path):
    with pytest.raises(InvalidInput, match="there is no file"):
        plain_pickle.load(tmp_path / "gnd.pkl")
