"""The tasks of a build that make columns: drafts of them, the columns themselves, and their files in the index."""

import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import DTypeLike, NDArray

from suffuse.core.blas import one_thread
from suffuse.core.columns import (
    FindSupports,
    Supports,
    columns,
    draft_columns,
    encode,
    group_size,
    held,
    image_type,
    image_vectors,
    known,
    places_of,
    plain,
)
from suffuse.core.graph import Graph, inverse
from suffuse.core.neighbors import nearest_to_rows
from suffuse.core.params import Params
from suffuse.offline.tasks import (
    alpha_s_in,
    block_path,
    block_rows,
    block_starts,
    order_in,
    params_in,
    search_in,
    write_npz,
)
from suffuse.store.files import map_array, write_array, write_blocks
from suffuse.store.manifest import column_files


class ColumnCounts(NamedTuple):
    """What the manifest says about all columns together."""

    entries: int
    unconverged: int


def has_drafts(params: Params) -> bool:
    """Whether columns are drafted first: where they share supports, which have to suit all of a group."""
    return group_size(params) > 1


def drafts_task(work: str, start: int, stop: int) -> None:
    """Drafts of the columns of the nodes start..stop, over nodes."""
    directory, params = Path(work), params_in(Path(work))
    with one_thread():
        block = encode(draft_columns(alpha_s_in(directory), start, stop, params))
    write_npz(block_path(directory, "drafts", start), **block._asdict())


def draft_task(work: str, n: int) -> None:
    """The drafts of all nodes, in files that can be mapped."""
    directory = Path(work)

    def parts(name: str) -> Iterator[NDArray[Any]]:
        return (np.load(block_path(directory, "drafts", start))[name] for start in block_starts(n))

    indptr = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(block) for block in parts("indptr")]))])
    write_array(directory / "draft" / "indptr.npy", indptr)
    write_array(directory / "draft" / "scales.npy", np.concatenate(list(parts("scales"))))
    write_blocks(draft_path(directory), np.uint8, (int(indptr[-1]),), parts("codes"))


def draft_path(work: Path) -> Path:
    """The last file of all drafts."""
    return work / "draft" / "codes.npy"


def _drafted(directory: Path) -> FindSupports:
    """Who finds supports by the drafts."""
    draft = held(*(map_array(directory / "draft" / f"{name}.npy").array for name in ("indptr", "codes", "scales")))
    itself, every = np.arange(len(draft.starts), dtype=np.uint32), len(draft.starts)

    def find(alpha_s: Graph, start: int, stop: int, group: int, truncation: int) -> Supports:
        return known(alpha_s, start, stop, group, truncation, every, itself, itself, *draft)

    return find


def columns_task(work: str, start: int, stop: int) -> None:
    """Columns of the nodes start..stop, in the order of the graph."""
    directory, params = Path(work), params_in(Path(work))
    alpha_s = alpha_s_in(directory)
    features = map_array(directory / "index" / "features.npy").array
    owners_path = directory / "index" / "owners.npy"
    owners = map_array(owners_path).array if params.pool == "sum" and owners_path.exists() else None
    find = search_in(directory, params.support_search, params) if params.support == "features" else nearest_to_rows
    supports_of = _drafted(directory) if has_drafts(params) else None
    with one_thread():
        block = columns(alpha_s, start, stop, params, features, owners, find, order_in(directory), supports_of)
    stored = encode(block) if params.values == "uint8" else block
    write_npz(block_path(directory, "columns", start), **stored._asdict())


def join_columns(work: Path, n: int) -> ColumnCounts:
    """Write the columns of all blocks into the index, by element, never all of them in memory."""
    index, params, order = work / "index", params_in(work), order_in(work)

    def parts(name: str) -> Iterator[NDArray[Any]]:
        return (np.load(block_path(work, "columns", start))[name] for start in block_starts(n))

    def by_element(name: str, dtype: DTypeLike) -> None:
        # First as the blocks have them, in a file that can be mapped; then element after element.
        write_blocks(work / "columns" / f"{name}.npy", dtype, (int(found[-1]),), parts(name))
        joined = map_array(work / "columns" / f"{name}.npy").array
        ids = (place[start : start + block_rows(n)] for start in block_starts(n))
        write_blocks(
            index / f"{name}.npy", dtype, joined.shape, (joined[places_of(found[:-1], found[1:], of)[1]] for of in ids)
        )
        (work / "columns" / f"{name}.npy").unlink()

    place = inverse(order)
    found = np.concatenate([[0], np.cumsum(np.concatenate([np.diff(block) for block in parts("indptr")]))])
    write_array(index / "indptr.npy", np.concatenate([[0], np.cumsum(np.diff(found)[place])]))
    entries = int(found[-1])
    if params.values == "uint8":
        entries = sum(int(lengths.sum()) for lengths in parts("lengths"))
        by_element("codes", np.uint8)
        write_array(index / "scales.npy", np.concatenate(list(parts("scales")))[place])
    else:
        by_element("rows", np.int32)
        by_element("values", params.values)
    return ColumnCounts(entries, sum(int((residuals > params.tolerance).sum()) for residuals in parts("residuals")))


def image_task(work: str, images: int) -> None:
    """The vectors of images that the second look compares with, from the finished columns of a regional index."""
    index, params = Path(work) / "index", params_in(Path(work))
    stored = (map_array(index / name).array for name in ("indptr.npy", *column_files(params)))
    columns_of = functools.partial(plain, held(*stored))
    owners, dtype = map_array(index / "owners.npy").array, image_type(params)
    vectors = image_vectors(columns_of, owners, images, params.keep, dtype)
    for name, array in vectors._asdict().items():
        write_array(index / f"image_{name}.npy", array)
