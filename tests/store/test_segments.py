"""Segments: what is written is read, what does not fit is refused, and merged ones do what they do one by one."""

import dataclasses
import io
import json
import re
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.data import seeds_of_rng

from suffuse.core import Damaged
from suffuse.core.params import Params
from suffuse.store.files import sha256_of
from suffuse.store.manifest import Manifest
from suffuse.store.segments import (
    Segment,
    empty_segment,
    merge_segments,
    read_segments,
    segment_types,
    update_stale,
    write_segment,
)

ELEMENTS, IMAGES, D, NEXT, DISTRICTS = 9, 6, 4, 50, 3
NAME = "segment-000002.npz"
KINDS = {
    "coded images": (Params(k=3), False),
    "images of the paper's graph": (Params(k=3, graph="paper"), False),
    "plain images": (Params(k=3, values="float16"), False),
    "pooled regions": (Params(k=3, values="float32"), True),
    "coded regions": (Params(k=3), True),
}


def has_districts(params, regional):
    return params.graph == "local" and not regional


def manifest_of(params, regional, segments=()):
    districts = {"district_scales.npy": {"shape": [DISTRICTS]}} if has_districts(params, regional) else {}
    images = IMAGES if regional else ELEMENTS
    return Manifest(
        created_by="a test",
        params=params,
        counts={"elements": ELEMENTS, "images": images, "dimensions": D, "entries": 0, "unconverged": 0},
        graph={},
        files=({"owners.npy": {}} if regional else {}) | districts,
        next_id=NEXT,
        segments=list(segments),
    )


def random_segment(rng, params, regional, before=None):
    """A change that fits an index of that extent (elements, images), of which any part may be empty."""
    elements, images = before or (ELEMENTS, IMAGES if regional else ELEMENTS)
    added = int(rng.integers(0, 4))
    made = min(added, int(rng.integers(1, 3))) if regional else added
    elements, images, coded = elements + added, images + made, params.values == "uint8"

    def some(count):
        return rng.permutation(count)[: rng.integers(0, count + 1)].astype(np.int32)

    def pointers(count, most):
        return np.concatenate([[0], np.cumsum(rng.integers(0, most, count))]).astype(np.int64)

    lines = [
        json.dumps({"name": f"{rng.integers(99)}"}).encode() + b"\n" if rng.random() < 0.7 else b"" for _ in range(made)
    ]
    placed = added if has_districts(params, regional) else 0
    of_lists, of_columns, of_images = some(elements), some(elements), some(images)
    column_indptr, image_indptr = pointers(len(of_columns), 5), pointers(len(of_images), 4)
    types = segment_types(params)
    arrays = {
        "features": rng.normal(size=(added, D)),
        "owners": rng.integers(images - made, images, added) if regional and added else np.empty(0),
        "ids": rng.permutation(NEXT)[:made],
        "item_text": np.frombuffer(b"".join(lines), np.uint8),
        "item_offsets": np.concatenate([[0], np.cumsum([len(line) for line in lines])]),
        "removed": some(images),
        "list_of": of_lists,
        "list_ids": rng.integers(0, elements, (len(of_lists), params.k)),
        "list_sims": rng.normal(size=(len(of_lists), params.k)),
        "column_of": of_columns,
        "column_indptr": column_indptr,
        "column_entries": rng.integers(0, min(elements, images), column_indptr[-1]),
        "column_values": rng.uniform(size=len(of_columns) if coded else column_indptr[-1]),
        "stale": np.setdiff1d(some(elements), of_columns),
        "image_of": of_images,
        "image_indptr": image_indptr,
        "image_rows": rng.integers(0, images, image_indptr[-1]),
        "image_values": rng.uniform(size=image_indptr[-1]),
        "districts": rng.integers(-1, DISTRICTS, (placed, 2)),
        "district_shares": rng.uniform(size=placed),
    }
    return Segment(**{name: np.asarray(array).astype(types[name][0]) for name, array in arrays.items()})


def same(a, b):
    for name, x, y in zip(Segment._fields, a, b, strict=True):
        assert x.dtype == y.dtype, name
        np.testing.assert_array_equal(x, y, err_msg=name)


# Merging


class Overlaid:
    """An index as dictionaries, over which segments are laid one after the other: slow and obvious."""

    def __init__(self):
        self.features, self.owners, self.ids, self.lines = [], [], [], []
        self.districts, self.shares = [], []
        self.hidden, self.stale = set(), set()
        self.lists, self.columns, self.vectors = {}, {}, {}

    def lay(self, segment, coded):
        self.features += segment.features.tolist()
        self.owners += segment.owners.tolist()
        self.ids += segment.ids.tolist()
        self.districts += segment.districts.tolist()
        self.shares += segment.district_shares.tolist()
        text, at = segment.item_text.tobytes(), segment.item_offsets
        self.lines += [text[at[i] : at[i + 1]] for i in range(len(at) - 1)]
        self.hidden |= set(segment.removed.tolist())
        for i, element in enumerate(segment.list_of.tolist()):
            self.lists[element] = (segment.list_ids[i].tolist(), segment.list_sims[i].tolist())
        for i, element in enumerate(segment.column_of.tolist()):
            places = slice(segment.column_indptr[i], segment.column_indptr[i + 1])
            values = segment.column_values[i : i + 1] if coded else segment.column_values[places]
            self.columns[element] = (segment.column_entries[places].tolist(), values.tolist())
        for i, image in enumerate(segment.image_of.tolist()):
            places = slice(segment.image_indptr[i], segment.image_indptr[i + 1])
            self.vectors[image] = (segment.image_rows[places].tolist(), segment.image_values[places].tolist())
        self.stale = (self.stale - set(segment.column_of.tolist())) | set(segment.stale.tolist())
        return self


@settings(deadline=None, max_examples=150)
@given(kind=st.sampled_from(sorted(KINDS)), seed=seeds_of_rng, count=st.integers(1, 4))
def test_merged_segments_do_what_they_do_one_after_the_other(kind, seed, count):
    (params, regional), rng = KINDS[kind], np.random.default_rng(seed)
    elements, images, segments = ELEMENTS, IMAGES if regional else ELEMENTS, []
    one_by_one, coded = Overlaid(), params.values == "uint8"
    for _ in range(count):
        segments.append(random_segment(rng, params, regional, (elements, images)))
        elements, images = elements + len(segments[-1].features), images + len(segments[-1].ids)
        one_by_one.lay(segments[-1], coded)
    together = merge_segments(segments)
    assert vars(Overlaid().lay(together, coded)) == vars(one_by_one)
    for name, (dtype, dimensions) in segment_types(params).items():
        array = getattr(together, name)
        assert (array.dtype, array.ndim) == (dtype, dimensions), name
    for name in ("list_of", "column_of", "image_of", "stale"):
        assert len(set(getattr(together, name).tolist())) == len(getattr(together, name)), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_change_that_changes_nothing_merges_into_any_other(kind):
    params, regional = KINDS[kind]
    segment = random_segment(np.random.default_rng(3), params, regional)
    nothing = empty_segment(params, D)
    for together in (merge_segments([segment]), merge_segments([nothing, segment]), merge_segments([segment, nothing])):
        same(together, segment._replace(stale=np.sort(segment.stale)))


# Writing and reading


@settings(deadline=None, max_examples=60)
@given(kind=st.sampled_from(sorted(KINDS)), seed=seeds_of_rng)
def test_what_is_written_is_read(tmp_path_factory, kind, seed):
    (params, regional), rng = KINDS[kind], np.random.default_rng(seed)
    directory = tmp_path_factory.mktemp("segments")
    first = random_segment(rng, params, regional)
    extent = ELEMENTS + len(first.features), (IMAGES if regional else ELEMENTS) + len(first.ids)
    second = random_segment(rng, params, regional, extent)
    told = [write_segment(directory, f"segment-00000{i}.npz", s) for i, s in ((1, first), (2, second))]
    for described in told:
        path = directory / described["name"]
        assert described == {"name": path.name, "bytes": path.stat().st_size, "sha256": sha256_of(path)}
    found, reached = read_segments(directory, manifest_of(params, regional, told))
    assert reached == (extent[0] + len(second.features), extent[1] + len(second.ids))
    for a, b in zip(found, (first, second), strict=True):
        same(a, b)


def test_the_same_segment_is_the_same_bytes(tmp_path):
    segment = random_segment(np.random.default_rng(1), *KINDS["coded images"])
    told = [write_segment(tmp_path, f"segment-00000{i}.npz", segment) for i in (1, 2)]
    assert told[0]["sha256"] == told[1]["sha256"]


# Refusals


def whole_segment(params, regional):
    """A segment in which no array is empty that can hold anything."""
    empty = set() if regional else {"owners"}
    empty |= set() if has_districts(params, regional) else {"districts", "district_shares"}
    for seed in range(1000):
        segment = random_segment(np.random.default_rng(seed), params, regional)
        if all(array.size for name, array in segment._asdict().items() if name not in empty):
            return segment
    raise AssertionError("no seed gives a whole segment")


def changed(array, place, value):
    array = array.copy()
    array[place] = value
    return array


WITH_DISTRICTS = [kind for kind in KINDS if has_districts(*KINDS[kind])]
WITHOUT_DISTRICTS = [kind for kind in KINDS if kind not in WITH_DISTRICTS]
OUTSIDE = rf"districts holds a district outside 0\.\.{DISTRICTS - 1}"
MISFITS = {
    # field: what becomes of it, what is said, of which kinds
    "features: dimensions": ("features", lambda a: a[:, :-1], r"features has the shape", KINDS),
    "features: one too few": ("features", lambda a: a[:-1], r"has the shape|elements and \d+ images", KINDS),
    "owners: too few": ("owners", lambda a: a[:-1], r"owners has the shape", ["pooled regions", "coded regions"]),
    "owners: of images": ("owners", lambda _: np.zeros(1, np.int32), r"owners has the shape", ["coded images"]),
    "ids: one too many": ("ids", lambda a: np.append(a, a[:1]), r"item_offsets has the shape", KINDS),
    "item_offsets: too few": ("item_offsets", lambda a: a[:-1], r"item_offsets has the shape", KINDS),
    "list_ids: other k": ("list_ids", lambda a: a[:, :-1], r"list_ids has the shape", KINDS),
    "list_sims: other k": ("list_sims", lambda a: a[:, :-1], r"list_sims has the shape", KINDS),
    "list_of: too few": ("list_of", lambda a: a[:-1], r"list_ids has the shape", KINDS),
    "column_of: too few": ("column_of", lambda a: a[:-1], r"column_indptr has the shape", KINDS),
    "column_values: too few": ("column_values", lambda a: a[:-1], r"column_values has the shape", KINDS),
    "image_of: too few": ("image_of", lambda a: a[:-1], r"image_indptr has the shape", KINDS),
    "image_values: too few": ("image_values", lambda a: a[:-1], r"image_values has the shape", KINDS),
    "column_entries: too few": ("column_entries", lambda a: a[:-1], r"column_(indptr does not|values has the)", KINDS),
    "item_text: too short": ("item_text", lambda a: a[:-1], r"item_offsets does not fit", KINDS),
    "image_rows: too few": ("image_rows", lambda a: a[:-1], r"image_values has the shape", KINDS),
    "column_indptr: later start": ("column_indptr", lambda a: changed(a, 0, 1), r"column_indptr does not fit", KINDS),
    "column_indptr: backwards": ("column_indptr", lambda a: changed(a, 1, 10**6), r"column_indptr does not fit", KINDS),
    "image_indptr: negative": ("image_indptr", lambda a: changed(a, 1, -1), r"image_indptr does not fit", KINDS),
    "item_offsets: farther": ("item_offsets", lambda a: changed(a, -1, a[-1] + 1), r"item_offsets does not fit", KINDS),
    "features: nan": ("features", lambda a: changed(a, (0, 0), np.nan), r"numbers that are not finite", KINDS),
    "list_sims: inf": ("list_sims", lambda a: changed(a, (0, 0), np.inf), r"numbers that are not finite", KINDS),
    "districts: too few": ("districts", lambda a: a[:-1], r"districts has the shape", WITH_DISTRICTS),
    "districts: one each": ("districts", lambda a: a[:, :1], r"districts has the shape", WITH_DISTRICTS),
    "districts: of none": ("districts", lambda _: np.zeros((1, 2), np.int32), r"districts has", WITHOUT_DISTRICTS),
    "districts: one too large": ("districts", lambda a: changed(a, (0, 1), DISTRICTS), OUTSIDE, WITH_DISTRICTS),
    "districts: below none": ("districts", lambda a: changed(a, (0, 0), -2), OUTSIDE, WITH_DISTRICTS),
    "shares: too few": ("district_shares", lambda a: a[:-1], r"district_shares has the shape", WITH_DISTRICTS),
    "shares: of none": ("district_shares", lambda _: np.zeros(1, np.float16), r"shares has the sh", WITHOUT_DISTRICTS),
    "shares: nan": ("district_shares", lambda a: changed(a, 0, np.nan), r"numbers that are not finite", WITH_DISTRICTS),
}  # fmt: skip


def limited(params, regional):
    """Which arrays hold ids; codes are checked as they are read."""
    always = ["ids", "removed", "list_of", "list_ids", "column_of", "stale", "image_of", "image_rows"]
    return always + ["owners"] * regional + ["column_entries"] * (params.values != "uint8")


def reading(directory, segment, params, regional, most=""):
    described = write_segment(directory, NAME, segment)
    with pytest.raises(Damaged) as refusal:
        read_segments(directory, manifest_of(params, regional, [described]))
    assert str(refusal.value).startswith(NAME)
    assert str(refusal.value).endswith(most)
    return str(refusal.value)


@pytest.mark.parametrize("name", MISFITS)
def test_a_part_that_does_not_fit_the_others_is_refused(tmp_path, name):
    field, become, said, kinds = MISFITS[name]
    for kind in kinds:
        params, regional = KINDS[kind]
        segment = whole_segment(params, regional)
        read_segments(tmp_path, manifest_of(params, regional, [write_segment(tmp_path, NAME, segment)]))  # it was sound
        message = reading(tmp_path, segment._replace(**{field: become(getattr(segment, field))}), params, regional)
        assert "does not fit the index: " in message

        assert re.search(said, message), (kind, message)


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind in KINDS for field in limited(*KINDS[kind])])
def test_an_id_that_does_not_exist_is_refused_and_the_last_one_is_not(tmp_path, kind, field):
    params, regional = KINDS[kind]
    segment = whole_segment(params, regional)
    elements, images = ELEMENTS + len(segment.features), (IMAGES if regional else ELEMENTS) + len(segment.ids)
    of_images = {"owners", "removed", "image_of", "image_rows"} | ({"column_entries"} if regional else set())
    limit = NEXT if field == "ids" else images if field in of_images else elements
    array = getattr(segment, field)
    first = (0,) * array.ndim
    last = segment._replace(**{field: changed(array, first, limit - 1)})
    read_segments(tmp_path, manifest_of(params, regional, [write_segment(tmp_path, NAME, last)]))
    for wrong in (-1, limit):
        message = reading(tmp_path, segment._replace(**{field: changed(array, first, wrong)}), params, regional)
        assert f"{field} holds an id outside 0..{limit - 1}" in message


@pytest.mark.parametrize("field", Segment._fields)
def test_an_array_of_another_type_or_none_at_all_is_refused(tmp_path, field):
    params, regional = KINDS["coded images"]
    segment = whole_segment(params, regional)
    other = segment._replace(**{field: getattr(segment, field).astype(np.float64)})
    assert f"holds {field} of type float64 and shape " in reading(tmp_path, other, params, regional)
    deeper = segment._replace(**{field: getattr(segment, field)[None]})
    assert f"{field} of type {getattr(segment, field).dtype} and shape (1, " in reading(
        tmp_path, deeper, params, regional
    )
    arrays = {name: array for name, array in segment._asdict().items() if name != field}
    assert field in refused_bytes(tmp_path, npz(arrays), params, regional)


def test_a_segment_from_before_version_4_has_no_districts_and_is_read(tmp_path):
    params, regional = KINDS["images of the paper's graph"]
    segment = whole_segment(params, regional)
    arrays = segment._asdict()
    del arrays["districts"], arrays["district_shares"]
    (tmp_path / NAME).write_bytes(npz(arrays))
    described = {"name": NAME, "bytes": len(npz(arrays)), "sha256": sha256_of(tmp_path / NAME)}
    (found,), _ = read_segments(tmp_path, manifest_of(params, regional, [described]))
    same(found, segment)


def npz(arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def refused_bytes(directory, data, params=KINDS["coded images"][0], regional=False):
    """What is said about a file of these bytes, whose hash is in the manifest."""
    (directory / NAME).write_bytes(data)
    described = {"name": NAME, "bytes": len(data), "sha256": sha256_of(directory / NAME)}
    with pytest.raises(Damaged, match=f"{NAME} ") as refusal:
        read_segments(directory, manifest_of(params, regional, [described]))
    return str(refusal.value)


def with_features(header):
    """A segment whose features begin with this header."""
    segment = whole_segment(*KINDS["coded images"])
    buffer = io.BytesIO(npz(segment._asdict()))
    made = io.BytesIO()
    with zipfile.ZipFile(buffer) as before, zipfile.ZipFile(made, "w") as after:
        for name in before.namelist():
            after.writestr(name, header if name == "features.npy" else before.read(name))
    return made.getvalue()


def npy_header(text):
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode()


BAD_FILES = {
    "empty": b"",
    "text": b"no archive",
    "an array": npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (0,)}"),
    "objects": with_features(npy_header("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}") + b"\x80\x04N."),
    "endless": with_features(npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (4611686018427387904,)}")),
    "a header that is no Python": with_features(npy_header("{'descr': '<f4', (")),
    "a header of nothing": with_features(npy_header("")),
    "a deep header": with_features(npy_header("(" * 5000)),
    "a negative shape": with_features(npy_header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4)}")),
    "no magic": with_features(b"x"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_file_that_is_no_segment_is_refused_even_if_its_hash_is_right(tmp_path, name):
    refused_bytes(tmp_path, BAD_FILES[name])


def test_an_encrypted_or_oddly_packed_segment_is_refused(tmp_path):
    sound = npz(whole_segment(*KINDS["coded images"])._asdict())
    for place, value in ((6, 1), (8, 99)):  # of each header in the archive: flags, and the method of packing
        data = bytearray(sound)
        for signature, offset in ((b"PK\x03\x04", 0), (b"PK\x01\x02", 2)):
            at = data.find(signature)
            while at >= 0:
                data[at + place + offset] = value
                at = data.find(signature, at + 1)
        refused_bytes(tmp_path, bytes(data))


def test_a_segment_that_is_gone_changed_or_no_file_is_refused(tmp_path):
    params, regional = KINDS["plain images"]
    manifest = manifest_of(params, regional, [write_segment(tmp_path, NAME, whole_segment(params, regional))])
    whole = (tmp_path / NAME).read_bytes()
    for place in (0, len(whole) // 2, len(whole) - 1):
        (tmp_path / NAME).write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(Damaged, match=f"{NAME} was changed or damaged"):
            read_segments(tmp_path, manifest)
    (tmp_path / NAME).unlink()
    with pytest.raises(Damaged, match=f"{NAME} is missing"):
        read_segments(tmp_path, manifest)
    (tmp_path / NAME).mkdir()
    with pytest.raises(Damaged, match=f"{NAME} cannot be read: .*"):
        read_segments(tmp_path, manifest)


def test_a_segment_of_another_index_is_refused(tmp_path):
    """Sound in itself, and larger than this index by what another change brought."""
    params, regional = KINDS["plain images"]
    described = write_segment(tmp_path, NAME, whole_segment(params, regional))
    manifest = manifest_of(dataclasses.replace(params, k=4), regional, [described])
    with pytest.raises(Damaged, match="does not fit the index: list_ids has the shape"):
        read_segments(tmp_path, manifest)


@settings(deadline=None, max_examples=100)
@given(*[st.lists(st.integers(0, 12), unique=True) for _ in range(3)])
def test_what_is_stale_is_what_was_and_was_not_solved_and_what_became_so(stale, solved, more):
    found = update_stale(*(np.array(part, np.int32) for part in (stale, solved, more)))
    assert found.dtype == np.int32
    assert found.tolist() == sorted((set(stale) - set(solved)) | set(more))
