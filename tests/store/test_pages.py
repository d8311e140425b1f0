"""Sums of pages: as the slow sum has them, any damage of a word changes one, and what is read is what is checked."""

import gc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import damage
from tests.support.data import curves

from suffuse import Index, Params, build
from suffuse.core import Damaged
from suffuse.core.kernels.checksums import PAGE, WEIGHTS
from suffuse.errors import IndexBroken
from suffuse.store.files import UNCHECKED, Checksums, map_array, map_file, split_checksums, sum_files, write_array


def slow_sums(data):
    """The sums of all pages, by whole numbers of any length."""
    sums = []
    for start in range(0, len(data), PAGE):
        page = data[start : start + PAGE].ljust(PAGE, b"\0")
        words = [int.from_bytes(page[i : i + 4], "little") for i in range(0, PAGE, 4)]
        sums.append(sum(word * weight for word, weight in zip(words, map(int, WEIGHTS), strict=True)) % 2**64)
    return sums


def written(path, data):
    path.write_bytes(data)
    return path


def test_weights_are_odd_and_all_different_and_begin_as_splitmix64_does():
    assert (WEIGHTS % 2 == 1).all()
    assert len(set(WEIGHTS.tolist())) == PAGE // 4
    assert int(WEIGHTS[0]) == 0xE220A8397B1DCDAF  # its first output for the seed 0, which is odd


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 3 * PAGE + 5), st.integers(0, 2**32 - 1))
def test_sums_are_those_of_the_slow_sum(tmp_path_factory, size, seed):
    data = np.random.default_rng(seed).bytes(size)
    path = written(tmp_path_factory.mktemp("sums") / "data", data)
    assert sum_files([path]).tolist() == slow_sums(data)


@settings(deadline=None, max_examples=60)
@given(st.data())
def test_whatever_happens_to_one_word_changes_the_sum_of_its_page_and_no_other(tmp_path_factory, data):
    place = tmp_path_factory.mktemp("word")
    content = bytearray(np.random.default_rng(data.draw(st.integers(0, 99))).bytes(2 * PAGE + 17))
    before = sum_files([written(place / "before", bytes(content))])
    start = data.draw(st.integers(0, len(content) // 4)) * 4
    word = bytes(content[start : start + 4])
    others = st.binary(min_size=len(word), max_size=len(word)).filter(lambda other: other != word)
    content[start : start + 4] = data.draw(others)
    after = sum_files([written(place / "after", bytes(content))])
    assert np.flatnonzero(before != after).tolist() == [start // PAGE]


def test_the_sums_of_files_follow_each_other_by_name(tmp_path):
    sizes = {"b": PAGE + 1, "a": 3, "empty": 0, "pages.npy": 999}
    for name, size in sizes.items():
        written(tmp_path / name, bytes(number % 251 for number in range(size)))
    files = {name: {"bytes": size} for name, size in sizes.items()}
    sums = sum_files(tmp_path / name for name in ("a", "b", "empty"))
    found = split_checksums(sums, files)
    assert {name: part.tolist() for name, part in found.items()} == {
        name: slow_sums((tmp_path / name).read_bytes()) for name in ("a", "b", "empty")
    }
    with pytest.raises(Damaged, match=r"pages\.npy holds 2 checksums, the files have 3 blocks"):
        split_checksums(sums[1:], files)


@pytest.fixture
def rows(tmp_path):
    """An array whose rows of 1,000 bytes lie across pages, and the sums of its file."""
    path = tmp_path / "rows.npy"
    write_array(path, np.random.default_rng(0).integers(0, 2**31, (60, 250)).astype(np.int32))
    return path, sum_files([path])


def pages_of(path, sums):
    array, map, offset = map_array(path)
    return Checksums.of(path.name, map, offset, array.itemsize * array.shape[1], sums)


def damaged(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    return written(path.with_name("damaged.npy"), bytes(content))


def refused(check, *rows):
    """Whether the rows are refused, as damaged."""
    try:
        check(*rows)
    except Damaged as error:
        return "was changed or damaged, near row" in str(error)
    return False


def test_rows_are_refused_whose_pages_are_damaged_and_no_others(rows):
    path, sums = rows
    page = 5
    for row in range(60):
        pages = pages_of(damaged(path, page * PAGE + 100), sums)
        first, last = (128 + 1000 * row) // PAGE, (128 + 1000 * (row + 1) - 1) // PAGE
        assert refused(pages.check_rows, np.array([row])) == (first <= page <= last)
        pages = pages_of(damaged(path, page * PAGE + 100), sums)
        assert refused(pages.check_spans, np.array([row]), np.array([row + 1])) == (first <= page <= last)


def test_every_page_is_looked_at_by_a_check_of_the_whole(rows):
    path, sums = rows
    pages_of(path, sums).check_whole()
    for page in range(len(sums)):
        place = min(page * PAGE + PAGE - 1, path.stat().st_size - 1)
        if page:  # in the first one the header would be damaged
            assert refused(pages_of(damaged(path, place), sums).check_whole)


def test_rows_behind_the_file_and_spans_of_nothing_are_of_no_concern(rows):
    path, sums = rows
    pages = pages_of(damaged(path, 2 * PAGE), sums)
    pages.check_rows(np.array([1000, 2**31 - 1]))
    pages.check_spans(np.array([30, -5, 2**60]), np.array([30, 7, 2**60 + 3]))
    pages.check_rows(np.empty(0, np.int64))


def test_a_page_is_looked_at_once_while_the_file_stays_mapped(rows):
    path, sums = rows
    pages = pages_of(path, sums)
    pages.check_rows(np.array([0, 59]))
    again = pages_of(path, sums)
    assert again.kernel[3] is pages.kernel[3]
    assert np.flatnonzero(again.kernel[3]).tolist() == [0, len(sums) - 1]
    del pages, again
    gc.collect()
    assert not pages_of(path, sums).kernel[3].any()


def test_a_file_without_sums_is_taken_for_sound(rows):
    path, _ = rows
    pages = Checksums(damaged(path, 2 * PAGE).name)
    assert pages.kernel is UNCHECKED
    pages.check_whole()
    pages.check_rows(np.arange(60))
    pages.check_spans(np.arange(60), np.arange(60) + 1)


def test_sums_that_do_not_fit_the_file_are_refused(rows):
    path, sums = rows
    for wrong in (sums[:-1], np.append(sums, sums)):
        with pytest.raises(Damaged, match=r"rows\.npy has 60128 bytes, which its checksums do not fit"):
            Checksums.of("rows.npy", map_file(path), 128, 1000, wrong)


# --- in an index: searches that do not read a damaged page are answered, all others refused

N, D = 600, 64
SMALL = {"k": 8, "truncation": 60, "keep": 20}
KINDS = {
    "coded": (Params(**SMALL, with_graph=True), None),
    "plain": (Params(**SMALL, values="float16"), None),
    "linked": (Params(**SMALL, seed_search="hnsw"), None),
    "whitened": (Params(**SMALL, whiten=16), None),
    "regions": (Params(**SMALL, pool="none"), np.arange(N) // 3),
    "pooled": (Params(**SMALL), np.arange(N) // 3),
}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """An index of each kind."""
    features = curves(np.random.default_rng(3), N, D)
    place, paths = tmp_path_factory.mktemp("made"), {}
    for kind, (params, owners) in KINDS.items():
        images = N if owners is None else int(owners.max()) + 1
        names = [f"picture {number} {'x' * 100}" for number in range(images)]
        build(features, place / kind, params, owners=owners, names=names)
        paths[kind] = place / kind
    return features, paths


def answers(path, features):
    """What searches find, one by one, with names; an error where one is refused."""
    found = []
    for query in features[::40]:
        try:
            index = Index.open(path)
            hits = index.search(query[None], top=8, seeds=3)
            found.append(
                [*hits.ids[0].tolist(), *hits.scores[0].tolist(), *map(index.items.name, hits.ids[0].tolist())]
            )
        except IndexBroken as error:
            found.append(error)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_no_search_is_answered_otherwise_from_a_damaged_file(made, tmp_path, kind):
    features, paths = made
    expected = answers(paths[kind], features)
    assert not any(isinstance(found, IndexBroken) for found in expected)
    rng = np.random.default_rng(4)
    outcomes = set()
    for file in sorted(paths[kind].iterdir()):
        if file.suffix not in (".npy", ".jsonl"):
            continue
        copy = tmp_path / file.stem
        copy.mkdir()
        for other in paths[kind].iterdir():
            (copy / other.name).hardlink_to(other)
        for _ in range(4):
            content = bytearray(file.read_bytes())
            content[int(rng.integers(min(128, len(content) - 1), len(content)))] ^= 1 << int(rng.integers(8))
            (copy / file.name).unlink()
            (copy / file.name).write_bytes(bytes(content))
            for found, right in zip(answers(copy, features), expected, strict=True):
                outcomes.add(type(found))
                assert isinstance(found, IndexBroken) or found == right, file.name
    assert outcomes == {list, IndexBroken}


def test_a_damaged_graph_leads_no_chain(made, tmp_path):
    _, paths = made
    for name in ("graph_indptr.npy", "graph_indices.npy", "graph_weights.npy"):
        copy = tmp_path / name
        copy.mkdir()
        for other in paths["coded"].iterdir():
            (copy / other.name).write_bytes(other.read_bytes())
        content = bytearray((copy / name).read_bytes())
        content[len(content) // 2] ^= 4
        (copy / name).write_bytes(bytes(content))
        index = Index.open(copy)
        with pytest.raises(IndexBroken, match=f"{name} was changed or damaged"):
            _ = index.graph


def test_an_index_without_sums_is_searched_as_before(made, tmp_path):
    features, paths = made
    copy = tmp_path / "x.index"
    copy.mkdir()
    for other in paths["coded"].iterdir():
        (copy / other.name).write_bytes(other.read_bytes())
    (copy / "pages.npy").unlink()
    damage.drop_at("files", "pages.npy")(copy)
    assert answers(copy, features) == answers(paths["coded"], features)


def test_every_page_of_the_links_that_a_search_reads_is_looked_at(made, tmp_path):
    """Each file of the links with one page changed at a time: a search that is not refused finds the same."""
    features, paths = made
    expected = answers(paths["linked"], features)
    for name in ("hnsw_links.npy", "hnsw_upper_start.npy", "hnsw_upper.npy", "hnsw_entry.npy"):
        copy = tmp_path / name
        copy.mkdir()
        for other in paths["linked"].iterdir():
            (copy / other.name).write_bytes(other.read_bytes())
        array = np.load(copy / name)
        for start in range(0, array.size, PAGE // array.itemsize):
            changed = array.copy()
            # Numbers that exist, so that nothing but the sums can tell.
            changed.ravel()[start : start + PAGE // array.itemsize] = np.clip(array.ravel()[start] - 1, 0, None)
            write_array(copy / name, changed)
            found = answers(copy, features)
            assert any(isinstance(one, IndexBroken) for one in found)
            assert all(isinstance(one, IndexBroken) or one == right for one, right in zip(found, expected, strict=True))
