"""Public data sets from their files: features, queries and who should be found, in one shape for all of them."""

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core.features import check_matrix, check_owners
from suffuse.errors import InvalidInput
from suffuse.research.evaluation import (
    Ids,
    Judgement,
    Kind,
    class_judgements,
    judge,
    leave_one_out_judgements,
    revisited_protocols,
)
from suffuse.store import pickles as plain_pickle
from suffuse.store.feature_files import check_unpacked, load, load_owners
from suffuse.store.matlab import read_matrices

_CLASSIC_KEYS, _REVISITED_KEYS = ("ok", "junk"), ("easy", "hard", "junk")


class Dataset(NamedTuple):
    """Everything an evaluation needs. Ids of the protocols are rows of `features`."""

    name: str
    features: NDArray[Any]  # (n, d), one row per image, not yet of unit length
    queries: NDArray[Any]  # (m, d)
    protocols: dict[str, list[Judgement]]  # "classic"; or "easy", "medium", "hard"; or "classes": m judgements each
    kind: Kind  # of the average precision that is the custom for this set
    image_names: list[str]  # (n,)
    query_names: list[str]  # (m,)
    regions: NDArray[Any] | None = None  # (r, D), several rows per image; all four of these or none
    region_owners: NDArray[np.int32] | None = None  # (r,), the image of each
    query_regions: NDArray[Any] | None = None  # (s, D)
    query_region_owners: NDArray[np.int32] | None = None  # (s,)
    thumbnails: Path | None = None  # a folder of NAME.jpg
    labels: NDArray[Any] | None = None  # (n,), for class sets


class Truth(NamedTuple):
    """A file of ground truth. Ids of the protocols are places in `image_names`."""

    image_names: list[str]
    query_names: list[str]
    protocols: dict[str, list[Judgement]]


class Regional(NamedTuple):
    """Several vectors per image and per query."""

    regions: NDArray[Any]
    region_owners: NDArray[Any]
    query_regions: NDArray[Any]
    query_region_owners: NDArray[Any]


def read_truth(path: str | Path) -> Truth:
    """Ground truth of Oxford or Paris, classic (ok, junk) or revisited (easy, hard, junk): its keys tell which.

    .json  {"images": [name], "queries": [{"name", "ok", "junk"}]}
    .pkl   {"imlist": [name], "qimlist": [name], "gnd": [{"ok", "junk"}]}, as in cnnimageretrieval and revisitop;
           read by `plain_pickle`, which runs nothing that is in the file
    """
    file = Path(path)
    if not file.is_file():
        raise InvalidInput(f"there is no file {file}; give a ground truth, .json or .pkl")
    if file.suffix.lower() == ".pkl":
        held = plain_pickle.load(file)
        images, names, queries = (_part(held, key, file) for key in ("imlist", "qimlist", "gnd"))
    elif file.suffix.lower() == ".json":
        try:
            held = json.loads(file.read_bytes())
        except (ValueError, RecursionError) as error:
            raise InvalidInput(f"{file.name} is not JSON: {error}; write it again") from error
        images, queries = _part(held, "images", file), _part(held, "queries", file)
        names = [query.get("name") if isinstance(query, dict) else None for query in queries]
    else:
        raise InvalidInput(f"{file.name}: unknown kind of ground truth {file.suffix!r}; known are .json and .pkl")
    if not queries or len(names) != len(queries) or not all(isinstance(name, str) for name in [*images, *names]):
        raise InvalidInput(
            f"{file.name} does not name every image and each of its {len(queries)} queries; add the names"
        )
    for keys in (_REVISITED_KEYS, _CLASSIC_KEYS):
        if all(isinstance(query, dict) and set(keys) <= set(query) for query in queries):
            break
    else:
        raise InvalidInput(f"{file.name}: each query needs ok and junk, or easy, hard and junk; write them")
    lists = [
        {key: _ids(query[key], len(images), f"{file.name}: {key} of query {name}") for key in keys}
        for name, query in zip(names, queries, strict=True)
    ]
    if keys == _REVISITED_KEYS:
        return Truth(list(images), list(names), revisited_protocols(lists))
    return Truth(list(images), list(names), {"classic": [judge(query["ok"], query["junk"]) for query in lists]})


def assemble(
    name: str,
    features: NDArray[Any],
    queries: NDArray[Any],
    truth: Truth,
    *,
    gallery_names: Sequence[str] | None = None,
    distractors: bool = False,
    regional: Regional | None = None,
    thumbnails: Path | None = None,
) -> Dataset:
    """Features and truth as one data set.

    gallery_names  of the rows, where the truth lists its images in another order or fewer of them: they are matched
                   by name, and rows that the truth does not list are left out of the gallery. The revisited protocol
                   does so on purpose: those are the queries' own photographs, and whoever finds them finds the query.
    distractors    the gallery may go on after the images of the truth with others that nobody should find
    """
    check_matrix(features, f"{name}: features")
    check_matrix(queries, f"{name}: queries", least_rows=1)
    if queries.shape[1] != features.shape[1]:
        raise InvalidInput(
            f"{name}: queries have {queries.shape[1]} dimensions, features {features.shape[1]}; extract both alike"
        )
    if len(queries) != len(truth.query_names):
        raise InvalidInput(
            f"{name}: {len(queries)} queries, the truth judges {len(truth.query_names)}; they must agree"
        )
    if regional is not None:
        regional = _check_regional(regional, len(features), len(queries), name)
    if gallery_names is not None:
        features, regional, truth = _match(name, features, regional, truth, gallery_names)
    images, listed = len(features), len(truth.image_names)
    if images < listed or (images > listed and not distractors):
        raise InvalidInput(
            f"{name}: {images} features, the truth lists {listed} images; use the truth of this gallery,"
            " or give the names of its images"
        )
    names = truth.image_names + [f"distractor {i}" for i in range(images - listed)]
    dataset = Dataset(
        name, features, queries, truth.protocols, "official", names, truth.query_names, thumbnails=thumbnails
    )
    return dataset if regional is None else dataset._replace(**regional._asdict())


def oxford_folder(folder: str | Path, revisited: bool = False) -> Dataset:
    """A folder with gallery_rmac.npy, queries_rmac.npy, ground_truth.json and, where there are any, regions and thumbs.

    revisited  the queries, their regions and the truth of the files that begin with `revisited_`: without the
               photographs of the queries in the gallery, see `assemble`
    """
    root, prefix = Path(folder), "revisited_" if revisited else ""
    if not root.is_dir():
        raise InvalidInput(f"there is no folder {root}; give one with gallery_rmac.npy and ground_truth.json")
    regional, (regions, owners) = None, ("regions.npy", "region_owners.npy")
    queries, query_owners = f"{prefix}query_regions.npy", f"{prefix}query_region_owners.npy"
    if all((root / file).exists() for file in (regions, owners, queries, query_owners)):
        regional = Regional(
            load(root / regions).features, load_owners(root / owners),
            load(root / queries, least_rows=1).features, load_owners(root / query_owners),
        )  # fmt: skip
    thumbnails = root / "thumbs"
    return assemble(
        f"{prefix.replace('_', ' ')}{root.resolve().name}",
        load(root / "gallery_rmac.npy").features,
        load(root / f"{prefix}queries_rmac.npy", least_rows=1).features,
        read_truth(root / f"{prefix}ground_truth.json"),
        gallery_names=read_truth(root / "ground_truth.json").image_names if revisited else None,
        regional=regional,
        thumbnails=thumbnails if thumbnails.is_dir() else None,
    )


def class_set(
    path: str | Path, queries: int | None, rng: np.random.Generator, *, leave_one_out: bool = False
) -> Dataset:
    """An .npz of `features` and `labels`, where an element is positive if it has the query's label.

    queries        how many random elements become queries; None means all, with `leave_one_out` only
    leave_one_out  queries stay in the gallery and are junk for themselves. That is transductive: the graph is built
                   with the queries in it, which helps any method that uses the graph. By default they are taken out.
    """
    file = Path(path)
    features, labels = load(file)
    if labels is None:
        raise InvalidInput(f"{file.name} has no labels; write them beside the features with numpy.savez")
    n = len(features)
    if queries is None and leave_one_out:
        queries = n
    most = n if leave_one_out else n - 2  # a gallery has two elements at least
    if queries is None or not 1 <= queries <= most:
        raise InvalidInput(f"{file.name}: {queries} queries of {n} elements; choose between 1 and {most}")
    chosen = np.sort(rng.choice(n, queries, replace=False))
    kept = np.arange(n) if leave_one_out else np.setdiff1d(np.arange(n), chosen)
    judgements = (
        leave_one_out_judgements(labels, chosen) if leave_one_out else class_judgements(labels[kept], labels[chosen])
    )
    return Dataset(
        file.stem, features[kept], features[chosen], {"classes": judgements}, "classes",
        [str(i) for i in kept], [str(i) for i in chosen], labels=labels[kept],
    )  # fmt: skip


def mat_set(path: str | Path, truth: str | Path | None = None, *, regional: bool = False) -> Dataset:
    """Published features in Matlab files: Iscen's SET_NETWORK.mat, or revisitop's SET_resnet_rsfm120k_gem.mat.

    truth     by default gnd_SET.pkl beside the file; oxford105k and paris106k begin with oxford5k and paris6k and may
              use theirs
    regional  also read Iscen's regional features, some twenty vectors per image, which may not fit in memory

    Iscen's files are HDF5 with a cell per image: /glob/V and /glob/Q hold one vector each, /reg/V and /reg/Q several.
    Those of revisitop are of Matlab's older kind, with a column per image in X and per query in Q.
    """
    import h5py

    file = Path(path)
    if not file.is_file():
        raise InvalidInput(f"there is no file {file}; fetch it, or give the path of a published .mat file")
    gallery = file.stem.partition("_")[0]
    smaller = {"oxford105k": "oxford5k", "paris106k": "paris6k"}
    if truth is None:
        beside = [file.with_name(f"gnd_{name}.pkl") for name in (gallery, smaller.get(gallery, gallery))]
        truth = next((candidate for candidate in beside if candidate.exists()), beside[-1])
    judged = read_truth(truth)
    parts = None
    try:
        if h5py.is_hdf5(file):
            with h5py.File(file, "r") as archive:
                features, queries = (_cells(archive, f"glob/{side}", file, single=True)[0] for side in "VQ")
                if regional:
                    parts = Regional(*_cells(archive, "reg/V", file), *_cells(archive, "reg/Q", file))
        else:
            features, queries = _columns(file)
    except InvalidInput:
        raise
    except Exception as error:  # h5py and zlib have kinds of their own for a damaged file
        raise InvalidInput(f"{file.name} cannot be read: {error}; fetch it again") from error
    return assemble(file.stem, features, queries, judged, distractors=gallery in smaller, regional=parts)


def _cells(archive: Any, where: str, file: Path, *, single: bool = False) -> tuple[NDArray[Any], NDArray[np.int32]]:
    """The vectors of a Matlab cell array of matrices, one cell per image, and the image of each vector."""
    if where not in archive or archive[where].dtype.kind != "O":
        raise InvalidInput(f"{file.name} has no cells /{where}; it is not one of the files that Iscen et al. published")
    if archive[where].external is not None or math.prod(archive[where].shape) > file.stat().st_size // 8:
        raise InvalidInput(f"{file.name} has not the cells that it promises; the file is damaged, fetch it again")
    # HDF5 shows a Matlab matrix transposed: (vectors, d). An empty one holds its shape instead of values.
    cells = [archive[reference] for reference in archive[where][()].ravel()]
    check_unpacked(file, sum(math.prod(cell.shape) * cell.dtype.itemsize for cell in cells))
    check_unpacked(file, max(math.prod(cell.chunks or ()) * cell.dtype.itemsize for cell in cells))
    counts = np.array([0 if "MATLAB_empty" in cell.attrs else cell.shape[0] for cell in cells])
    odd = (counts != 1) if single else (counts == 0)
    odd |= [cell.shape[1:] != cells[0].shape[1:] for cell in cells]
    if len(bad := np.flatnonzero(odd)):
        raise InvalidInput(
            f"{file.name}: cell {bad[0]} of /{where} holds {counts[bad[0]]} vectors, an array of shape"
            f" {cells[bad[0]].shape}; the file is damaged, fetch it again"
        )
    ends = np.cumsum(counts)
    vectors = np.empty((ends[-1], cells[0].shape[1]), cells[0].dtype)
    for cell, end, count in zip(cells, ends, counts, strict=True):
        vectors[end - count : end] = cell[()]
    return vectors, np.repeat(np.arange(len(cells), dtype=np.int32), counts)


def _columns(file: Path) -> tuple[NDArray[Any], NDArray[Any]]:
    held = read_matrices(file, ("X", "Q"))
    if "X" not in held or "Q" not in held:
        raise InvalidInput(f"{file.name} holds no X and Q; it is not one of the files that revisitop published")
    return np.ascontiguousarray(held["X"].T), np.ascontiguousarray(held["Q"].T)


def _part(held: Any, key: str, file: Path) -> Any:
    found = held.get(key) if isinstance(held, dict) else None
    if isinstance(found, np.ndarray) and found.ndim == 1:
        found = found.tolist()
    if not isinstance(found, list | tuple):
        raise InvalidInput(f"{file.name} has no list {key!r}; it is not a ground truth that is known here")
    return found


def _ids(value: Any, images: int, what: str) -> Ids:
    # Looked at before numpy does: it would follow lists within lists, and a pickle can share one without end.
    flat = isinstance(value, np.ndarray) or (
        isinstance(value, list | tuple) and all(isinstance(id, int | np.integer) for id in value)
    )
    ids = np.asarray(value) if flat else np.empty((0, 0))
    if ids.shape == (0,):
        return np.empty(0, np.int64)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise InvalidInput(f"{what} is not a list of whole numbers; write the places of images in the list, from 0")
    if len(bad := ids[(ids < 0) | (ids >= images)]):
        raise InvalidInput(f"{what} names image {bad[0]} of {images}; images are numbered from 0")
    return ids.astype(np.int64)


def _check_regional(regional: Regional, images: int, queries: int, name: str) -> Regional:
    """Owners that exist, one per region."""

    def checked(regions: NDArray[Any], owners: NDArray[Any], count: int, what: str) -> NDArray[np.int32]:
        check_matrix(regions, what, least_rows=1)
        found = check_owners(owners, len(regions), f"{what} owners")
        if found.max() >= count:
            raise InvalidInput(f"{what} belong to {found.max()}, the last is {count - 1}; use owners of this gallery")
        return found

    owners = checked(regional.regions, regional.region_owners, images, f"{name}: regions")
    query_owners = checked(regional.query_regions, regional.query_region_owners, queries, f"{name}: query regions")
    return regional._replace(region_owners=owners, query_region_owners=query_owners)


def _match(
    name: str, features: NDArray[Any], regional: Regional | None, truth: Truth, gallery_names: Sequence[str]
) -> tuple[NDArray[Any], Regional | None, Truth]:
    """The rows whose names the truth lists, in their order, and the truth in terms of these rows."""
    row_of = {image: row for row, image in enumerate(gallery_names)}
    if len(row_of) != len(features):
        raise InvalidInput(f"{name}: {len(row_of)} different names for {len(features)} features; give one for each")
    if missing := [image for image in truth.image_names if image not in row_of]:
        raise InvalidInput(f"{name}: {len(missing)} images of the truth have no features, such as {missing[0]!r}")
    rows = np.array([row_of[image] for image in truth.image_names], np.int64)
    kept = np.unique(rows)
    if len(kept) != len(rows):
        raise InvalidInput(f"{name}: the truth lists an image twice; list each once")

    def moved(ids: Ids) -> Ids:
        return np.sort(np.searchsorted(kept, rows[ids]))

    protocols = {
        key: [Judgement(moved(judged.positives), moved(judged.junk)) for judged in judgements]
        for key, judgements in truth.protocols.items()
    }
    if regional is not None:
        inside = np.isin(regional.region_owners, kept)
        owners = np.searchsorted(kept, regional.region_owners[inside]).astype(np.int32)
        regional = regional._replace(regions=regional.regions[inside], region_owners=owners)
    return features[kept], regional, Truth([gallery_names[row] for row in kept], truth.query_names, protocols)
