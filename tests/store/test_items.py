"""Names and metadata: read from four kinds of files, kept as JSON lines, parsed only where asked for."""

import contextlib
import json
import string

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffuse.errors import IndexBroken, InvalidInput
from suffuse.store.ids import Ids
from suffuse.store.items import Items, add_labels, check_items, encode_items, load_items

# A line separator (U+2028) and NEL (U+0085) inside: lines end at "\n" only.
NAMES = ["Zürich", "東京\u2028塔", "one, two", 'a "quoted" one', "🗼", "e\u0301\u0085"]


def opened(given_items):
    text, offsets = encode_items(check_items(given_items, len(given_items)))
    return Items(Ids(len(given_items)), memoryview(text), offsets)


def test_names_are_read_from_a_text_file_one_per_line(tmp_path):
    path = tmp_path / "names.txt"
    path.write_text("\n".join(NAMES) + "\n", encoding="utf-8")
    assert load_items(path) == NAMES
    path.write_bytes("\r\n".join(NAMES).encode())
    assert load_items(str(path)) == NAMES


def test_an_empty_line_of_a_text_file_is_an_image_without_name_and_keeps_its_place(tmp_path):
    (tmp_path / "names.txt").write_text("a\n\nc\n\n")
    assert load_items(tmp_path / "names.txt") == ["a", "", "c", ""]
    (tmp_path / "names.txt").write_text("")
    assert load_items(tmp_path / "names.txt") == []


def test_a_byte_order_mark_is_not_part_of_the_first_name(tmp_path):
    (tmp_path / "names.txt").write_bytes(b"\xef\xbb\xbfa\nb\n")
    assert load_items(tmp_path / "names.txt") == ["a", "b"]


def test_names_and_metadata_are_read_from_a_csv_file_with_a_header(tmp_path):
    path = tmp_path / "names.csv"
    path.write_text('name,year\nZürich,1990\n"one, two",\n"two\nlines\u2028three",1\n', encoding="utf-8")
    assert load_items(path) == [
        {"name": "Zürich", "year": "1990"},
        {"name": "one, two", "year": ""},
        {"name": "two\nlines\u2028three", "year": "1"},
    ]


def test_names_are_read_from_a_json_list(tmp_path):
    path = tmp_path / "names.json"
    mixed = [*NAMES, {"name": "x", "tags": ["a", {"b": 1.5}], "none": None}]
    path.write_text(json.dumps(mixed, ensure_ascii=False), encoding="utf-8")
    assert load_items(path) == mixed


@pytest.mark.parametrize("ensure_ascii", [False, True])
def test_names_are_read_from_json_lines(tmp_path, ensure_ascii):
    path = tmp_path / "names.JSONL"
    objects = [{"name": name, "id": number} for number, name in enumerate(NAMES)]
    lines = [json.dumps(line, ensure_ascii=ensure_ascii) for line in objects]
    path.write_text("\n".join(lines) + "\n\n", encoding="utf-8")
    assert load_items(path) == objects


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("names.txt", b"caf\xe9\n", "names.txt cannot be read as names: 'utf-8' codec can't decode .*; write it again"),
        ("names.csv", b"name\n\xff\n", "names.csv cannot be read as names: 'utf-8' codec"),
        ("names.csv", b"name\n" + b"x" * 200_000, "names.csv cannot be read as names: field larger than field limit"),
        ("names.json", b'["a", "b"', "names.json cannot be read as names: Expecting ',' delimiter"),
        ("names.json", b'{"a": 1}', "^names.json holds dict; write a list of names$"),
        ("names.json", b'"a"', "^names.json holds str; write a list of names$"),
        ("names.json", b"[" * 100_000, "names.json cannot be read as names: "),
        ("names.json", b"[1" + b"0" * 5000 + b"]", "names.json cannot be read as names: Exceeds the limit"),
        ("names.jsonl", b'{"name": "a"}\n{"name": \n', "names.jsonl cannot be read as names: Expecting value"),
        ("names.jsonl", b"", None),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_file_that_cannot_be_read_is_named(tmp_path, name, content, message):
    (tmp_path / name).write_bytes(content)
    if message is None:
        assert load_items(tmp_path / name) == []
        return
    with pytest.raises(InvalidInput, match=message):
        load_items(tmp_path / name)


def test_a_missing_file_or_a_directory_is_named(tmp_path):
    with pytest.raises(InvalidInput, match=r"there is no file .*nowhere\.txt; give the path of a file with names"):
        load_items(tmp_path / "nowhere.txt")
    with pytest.raises(InvalidInput, match="there is no file"):
        load_items(tmp_path)


@pytest.mark.parametrize("count", [0, 1, 3])
def test_another_number_of_names_than_images_is_refused(count):
    with pytest.raises(InvalidInput, match=f"{count} names for 2 images; give one name per image"):
        check_items(["a"] * count, 2)


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (3, "name 1 is 3; give text, or an object with a name and metadata"),
        (None, "name 1 is None; give text"),
        (["a"], r"name 1 is \['a'\]; give text"),
        ({1: "a"}, r"name 1 is \{1: 'a'\}; give text"),
        ({"name": "a", None: ["too", "many"]}, "name 1 is .*; give text, or an object"),
        ({"name": 3}, "name 1 is 3, which is not text"),
        ({"name": None}, "name 1 is None, which is not text"),
    ],
)
def test_a_name_that_is_neither_text_nor_an_object_is_refused_with_its_number(item, message):
    with pytest.raises(InvalidInput, match=message):
        check_items(["a", item], 2)


def nested(depth):
    value = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "value",
    [np.float32(1), np.arange(3), {1, 2}, b"bytes", float("nan"), float("inf"), {(1, 2): 3}, "\ud800", nested(100_000)],
    ids=["numpy number", "array", "set", "bytes", "nan", "inf", "tuple as key", "half a character", "nested"],
)
def test_metadata_that_is_not_json_is_refused_with_its_number(value):
    checked = check_items(["a", {"name": "b", "more": value}], 2)
    with pytest.raises(InvalidInput, match=r"name 1 holds more than plain JSON values: .*; convert or remove it"):
        encode_items(checked)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)
objects = st.dictionaries(st.text(string.ascii_letters), values, max_size=3).map(
    lambda found: {key: value for key, value in found.items() if key != "name"}
)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.text() | objects | st.tuples(st.text(), objects).map(lambda pair: {"name": pair[0]} | pair[1])))
def test_what_is_encoded_is_read_back(given_items):
    stored = opened(given_items)
    expected = [{"name": item} if isinstance(item, str) else item for item in given_items]
    assert list(stored) == expected
    assert len(stored) == len(expected)
    assert [stored.name(id) for id in range(len(stored))] == [
        item.get("name", str(id)) for id, item in enumerate(expected)
    ]


def test_labels_become_metadata_beside_the_names():
    labels = np.array([3, 1], np.uint8)
    assert add_labels(["a", {"name": "b", "year": 1}], labels) == [
        {"name": "a", "label": 3},
        {"name": "b", "year": 1, "label": 1},
    ]
    assert list(opened(add_labels(None, np.array(["cat", "dog"])))) == [{"label": "cat"}, {"label": "dog"}]
    with pytest.raises(InvalidInput, match="1 names for 2 images; give one name per image"):
        add_labels(["a"], labels)


def test_an_image_without_name_is_called_by_its_id():
    assert opened(["a", {"year": 3}, ""]).name(1) == "1"
    assert opened(["a", {"year": 3}, ""]).name(2) == ""
    nameless = Items(Ids(3))
    assert ([nameless.name(id) for id in range(3)], nameless[2], len(nameless)) == (["0", "1", "2"], {}, 3)


@pytest.mark.parametrize("id", [-1, 3, 2**40])
def test_an_image_that_does_not_exist_is_refused(id):
    for stored in (opened(["a", "b", "c"]), Items(Ids(3))):
        with pytest.raises(InvalidInput, match=f"there is no image {id}; ids go from 0 to 2"):
            stored[id]


def test_only_the_lines_that_are_asked_for_are_read():
    text, offsets = encode_items(check_items(["a", "b", "c", "d"], 4))
    damaged = bytearray(text)
    damaged[: offsets[1]] = b"\xff" * offsets[1]
    stored = Items(Ids(4), memoryview(bytes(damaged)), offsets)
    assert stored.name(2) == "c"
    with pytest.raises(
        IndexBroken, match=r"items\.jsonl is damaged at the line of image 0; copy or build the index again"
    ):
        stored[0]
    assert stored.name(3) == "d"


@settings(deadline=None, max_examples=100)
@given(data=st.binary(min_size=0, max_size=60), cuts=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=4, max_size=4))
def test_damaged_lines_and_offsets_give_an_item_or_a_clear_error(data, cuts):
    stored = Items(Ids(3), memoryview(data), np.array(cuts, np.int64))
    for id in range(3):
        with contextlib.suppress(IndexBroken):
            assert isinstance(stored[id], dict)


def test_a_line_that_holds_no_object_is_an_error():
    stored = Items(Ids(2), memoryview(b'["a"]\n"b"\n'), np.array([0, 6, 10]))
    for id in range(2):
        with pytest.raises(IndexBroken, match=f"items.jsonl holds no object at the line of image {id}"):
            stored.name(id)
