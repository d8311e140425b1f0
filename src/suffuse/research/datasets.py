"""Public data sets: downloaded by name, and read into one shape of features, queries and who should be found."""

import functools
import json
import math
import os
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core.features import check_matrix, check_owners
from suffuse.errors import InvalidInput, name_extra
from suffuse.research import evaluation
from suffuse.research.evaluation import Ids, Judgement
from suffuse.store import pickles as plain_pickle
from suffuse.store.feature_files import check_unpacked, import_h5py, load, load_owners
from suffuse.store.files import write_bytes
from suffuse.store.matlab import read_matrices

if TYPE_CHECKING:
    from suffuse.core.params import Progress

_CLASSIC_KEYS, _REVISITED_KEYS = ("ok", "junk"), ("easy", "hard", "junk")
_CHUNK_BYTES = 1 << 16
_TIMEOUT_SECONDS = 60.0  # without a single byte


class Dataset(NamedTuple):
    """Everything an evaluation needs. Ids of the protocols are rows of `features`."""

    name: str
    features: NDArray[Any]  # (n, d), one row per image, not yet of unit length
    queries: NDArray[Any]  # (m, d)
    protocols: dict[str, list[Judgement]]  # "classic"; or "easy", "medium", "hard"; or "classes": m judgements each
    kind: evaluation.Kind  # of the average precision that is the custom for this set
    image_names: list[str]  # (n,)
    query_names: list[str]  # (m,)
    regional: "Regional | None" = None
    thumbnails: Path | None = None  # a folder of NAME.jpg


class Truth(NamedTuple):
    """A file of ground truth. Ids of the protocols are rows of `image_names`."""

    image_names: list[str]
    query_names: list[str]
    protocols: dict[str, list[Judgement]]


class Regional(NamedTuple):
    """Several vectors per image and per query."""

    regions: NDArray[Any]  # (r, D)
    region_owners: NDArray[Any]  # (r,), the image of each
    query_regions: NDArray[Any]  # (s, D)
    query_region_owners: NDArray[Any]  # (s,), the query of each


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
        raise InvalidInput(f"{file.name} does not name every image and all {len(queries)} queries; add the names")
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
        protocols = evaluation.judge_revisited(lists)
    else:
        protocols = {"classic": [evaluation.judge(query["ok"], query["junk"]) for query in lists]}
    return Truth(list(images), list(names), protocols)


def read_regional(regions: Path, region_owners: Path, query_regions: Path, query_region_owners: Path) -> Regional:
    """The regions of images and of queries, each from its file."""
    rows, query_rows = load(regions).features, load(query_regions, least_rows=1).features
    return Regional(rows, load_owners(region_owners), query_rows, load_owners(query_region_owners))


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
    (m, d), judged = queries.shape, len(truth.query_names)
    if d != features.shape[1]:
        raise InvalidInput(f"{name}: queries have {d} dimensions, features {features.shape[1]}; extract both alike")
    if m != judged:
        raise InvalidInput(f"{name}: {m} queries, the truth judges {judged}; they must agree")
    if regional is not None:
        regional = _check_regional(regional, len(features), m, name)
    if gallery_names is not None:
        features, regional, truth = _match(name, features, regional, truth, gallery_names)
    images, listed = len(features), len(truth.image_names)
    if images < listed or (images > listed and not distractors):
        raise InvalidInput(
            f"{name}: {images} features, the truth lists {listed} images; use the truth of this gallery,"
            " or give the names of its images"
        )
    names = truth.image_names + [f"distractor {i}" for i in range(images - listed)]
    return Dataset(name, features, queries, truth.protocols, "official", names, truth.query_names, regional, thumbnails)


def read_folder(folder: str | Path, revisited: bool = False) -> Dataset:
    """A folder with gallery_rmac.npy, queries_rmac.npy, ground_truth.json and, where there are any, regions and thumbs.

    revisited  the queries, their regions and the truth of the files that begin with `revisited_`: without the
               photographs of the queries in the gallery, see `assemble`
    """
    root, prefix = Path(folder), "revisited_" if revisited else ""
    if not root.is_dir():
        raise InvalidInput(f"there is no folder {root}; give one with gallery_rmac.npy and ground_truth.json")
    names = ("regions", "region_owners", f"{prefix}query_regions", f"{prefix}query_region_owners")
    files, thumbnails = [root / f"{name}.npy" for name in names], root / "thumbs"
    return assemble(
        f"{prefix.replace('_', ' ')}{root.resolve().name}",
        load(root / "gallery_rmac.npy").features,
        load(root / f"{prefix}queries_rmac.npy", least_rows=1).features,
        read_truth(root / f"{prefix}ground_truth.json"),
        gallery_names=read_truth(root / "ground_truth.json").image_names if revisited else None,
        regional=read_regional(*files) if all(file.exists() for file in files) else None,
        thumbnails=thumbnails if thumbnails.is_dir() else None,
    )


def read_class_set(path: str | Path, queries: int, rng: np.random.Generator, *, leave_one_out: bool = False) -> Dataset:
    """An .npz of `features` and `labels`, where an element is positive if it has the query's label.

    queries        how many random elements become queries
    leave_one_out  queries stay in the gallery and are junk for themselves. That is transductive: the graph is built
                   with the queries in it, which helps any method that uses the graph. By default they are taken out.
    """
    file = Path(path)
    features, labels = load(file)
    if labels is None:
        raise InvalidInput(f"{file.name} has no labels; write them beside the features with numpy.savez")
    n = len(features)
    most = n if leave_one_out else n - 2  # a gallery has two elements at least
    if not 1 <= queries <= most:
        raise InvalidInput(f"{file.name}: {queries} queries of {n} elements; choose between 1 and {most}")
    chosen = np.sort(rng.choice(n, queries, replace=False))
    kept = np.arange(n) if leave_one_out else np.setdiff1d(np.arange(n), chosen)
    if leave_one_out:
        judgements = evaluation.judge_leaving_one_out(labels, chosen)
    else:
        judgements = evaluation.judge_classes(labels[kept], labels[chosen])
    return Dataset(
        file.stem, features[kept], features[chosen], {"classes": judgements}, "classes",
        [str(i) for i in kept], [str(i) for i in chosen],
    )  # fmt: skip


def read_mat(path: str | Path, truth: str | Path | None = None, *, regional: bool = False) -> Dataset:
    """Published features in Matlab files: Iscen's SET_NETWORK.mat, or revisitop's SET_resnet_rsfm120k_gem.mat.

    truth     by default gnd_SET.pkl beside the file; oxford105k and paris106k begin with oxford5k and paris6k and may
              use theirs
    regional  also read Iscen's regional features, some twenty vectors per image, which may not fit in memory

    Iscen's files are HDF5 with a cell per image: /glob/V and /glob/Q hold one vector each, /reg/V and /reg/Q several.
    Those of revisitop are of Matlab's older kind, with a column per image in X and per query in Q.
    """
    h5py = import_h5py()
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
            matrices = read_matrices(file, ("X", "Q"))
            if "X" not in matrices or "Q" not in matrices:
                raise InvalidInput(f"{file.name} holds no X and Q; it is not one of the files that revisitop published")
            features, queries = (np.ascontiguousarray(matrices[name].T) for name in "XQ")
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


def _part(held: Any, key: str, file: Path) -> Any:
    found = held.get(key) if isinstance(held, dict) else None
    if isinstance(found, np.ndarray) and found.ndim == 1:
        found = found.tolist()
    if not isinstance(found, list | tuple):
        raise InvalidInput(f"{file.name} has no list {key!r}; it is not a ground truth that is known here")
    return found


def _ids(value: Any, images: int, what: str) -> Ids:
    # Looked at before numpy does: it would follow lists within lists, and a pickle can share one without end.
    flat = isinstance(value, list | tuple) and all(isinstance(id, int | np.integer) for id in value)
    ids = np.asarray(value) if flat or isinstance(value, np.ndarray) else np.empty((0, 0))
    if ids.shape == (0,):
        return np.empty(0, np.int64)
    if ids.ndim != 1 or ids.dtype.kind not in "iu":
        raise InvalidInput(f"{what} is not a list of whole numbers; write the rows of images in the list, from 0")
    if len(bad := ids[(ids < 0) | (ids >= images)]):
        raise InvalidInput(f"{what} names image {bad[0]} of {images}; images are numbered from 0")
    return ids.astype(np.int64)


def _check_regional(regional: Regional, images: int, queries: int, name: str) -> Regional:
    """Owners that exist, one per region."""

    def check(rows: NDArray[Any], owners: NDArray[Any], count: int, what: str) -> NDArray[np.int32]:
        check_matrix(rows, what, least_rows=1)
        checked = check_owners(owners, len(rows), f"{what} owners")
        if (last := checked.max()) >= count:
            raise InvalidInput(f"{what} belong to {last}, the last is {count - 1}; use owners of this gallery")
        return checked

    owners = check(*regional[:2], images, f"{name}: regions")
    query_owners = check(*regional[2:], queries, f"{name}: query regions")
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

    protocols = {
        key: [Judgement(*(np.sort(np.searchsorted(kept, rows[ids])) for ids in judged)) for judged in judgements]
        for key, judgements in truth.protocols.items()
    }
    if regional is not None:
        inside = np.isin(regional.region_owners, kept)
        owners = np.searchsorted(kept, regional.region_owners[inside]).astype(np.int32)
        regional = regional._replace(regions=regional.regions[inside], region_owners=owners)
    return features[kept], regional, Truth([gallery_names[row] for row in kept], truth.query_names, protocols)


@functools.cache
def list_public() -> dict[str, dict[str, Any]]:
    """The public data sets of public.toml by name: `title`, and `files` with their `url` and, where known, `sha256`."""
    return tomllib.loads((Path(__file__).parent / "public.toml").read_text())


def fetch(name: str, folder: str | Path, base: str | None = None, progress: "Progress | None" = None) -> list[Path]:
    """Download the files of a public data set that are not in `folder` yet; return where they are.

    base  an address under which all the files lie, in place of those of the authors: a mirror
    """
    public = list_public()
    if name not in public:
        raise InvalidInput(f"there is no known data set {name!r}; known are {', '.join(public)}")
    paths = []
    for file in public[name]["files"]:
        path = Path(folder) / file["url"].rpartition("/")[2]
        url = file["url"] if base is None else f"{base.rstrip('/')}/{path.name}"
        paths.append(download(url, path, sha256=file.get("sha256"), progress=progress))
    return paths


def download(url: str, path: Path, *, sha256: str | None = None, progress: "Progress | None" = None) -> Path:
    """Download a file by http or https, check its SHA-256, and return its path; one that is there is only checked.

    sha256  the hash of the file. Where it is None, the first download writes it to PATH.sha256, in the format of
            sha256sum, and the file must have that hash from then on.
    """
    if not url.lower().startswith(("http://", "https://")):
        raise InvalidInput(f"{url} is not an address of http or https; download it otherwise and put it at {path}")
    with name_extra("pooch", "research"):
        import pooch
        import requests
    pooch.get_logger().setLevel("WARNING")  # it would write between the progress bars
    note = path.with_name(f"{path.name}.sha256")
    if sha256 is None and note.exists():
        sha256 = note.read_text().partition(" ")[0]
    if path.exists():
        if sha256 is not None and (found := pooch.file_hash(str(path))) != sha256:
            raise InvalidInput(f"{path} has the SHA-256 {found}, expected {sha256}; delete it and fetch again")
        return path

    def resume(url: str, output: str, _: Any) -> None:
        part, reached = path.with_name(f".{path.name}.part"), 0
        report = None if progress is None else functools.partial(progress, path.name)
        while not _continue(url, part, report):
            if part.stat().st_size <= reached:  # each attempt must gain something
                raise InvalidInput(f"{url}: the connection ended after {reached} bytes; fetch again to continue there")
            reached = part.stat().st_size
        os.replace(part, output)
        part.with_suffix(".source").unlink()

    try:
        pooch.retrieve(url, sha256, path.name, path.parent, downloader=resume)
        if sha256 is None:
            write_bytes(note, [f"{pooch.file_hash(str(path))}  {path.name}\n".encode()])
    except InvalidInput:
        raise
    except requests.ConnectionError as error:
        raise InvalidInput(f"{url} cannot be reached: {error}; check the network, then fetch again") from error
    except requests.RequestException as error:
        raise InvalidInput(f"{url} cannot be fetched: {error}; what has arrived is kept, fetch again") from error
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error}; choose another folder") from error
    except ValueError as error:  # of pooch
        raise InvalidInput(f"{url} has another SHA-256 than {sha256}; it has changed, use another source") from error
    return path


def _continue(url: str, part: Path, report: Callable[[int, int], None] | None) -> bool:
    """Request what is missing of a file and append it to `part`; return whether the file is whole.

    Only a server that names the version of its file (ETag, Last-Modified) is asked for the rest: it sends the rest of
    that version, or else a new one from the beginning.
    """
    import requests

    start, headers = 0, {"Accept-Encoding": "identity"}
    source = part.with_suffix(".source")  # of which address and version it is a part, a line each
    origin, _, version = source.read_text().partition("\n") if source.exists() else ("", "", "")
    if part.exists() and origin == url and version:
        start = part.stat().st_size
        headers |= {"Range": f"bytes={start}-", "If-Range": version}
    with requests.get(url, headers=headers, stream=True, timeout=_TIMEOUT_SECONDS) as response:
        told = response.headers
        if start and response.status_code == requests.codes.range_not_satisfiable:
            part.unlink()  # it is as long as the file, or longer
            return _continue(url, part, report)
        if not response.ok:
            raise InvalidInput(f"{url}: the server says {response.status_code} {response.reason}; try another address")
        if response.status_code != requests.codes.partial:
            start, version = 0, told.get("ETag") or told.get("Last-Modified", "")
            # A weak version cannot vouch for single bytes.
            source.write_text(f"{url}\n{'' if version.startswith('W/') else version}")
        elif not (sent := told.get("Content-Range", "no range")).startswith(f"bytes {start}-"):
            part.unlink()
            raise InvalidInput(f"{url}: the server sent {sent}, not what follows {start} bytes; fetch it anew")
        total = start + int(told.get("Content-Length", 0))
        with part.open("ab" if start else "wb") as stream:
            try:
                for chunk in response.iter_content(_CHUNK_BYTES):
                    stream.write(chunk)
                    if report is not None:
                        report(stream.tell(), max(total, stream.tell()))
            except (requests.ConnectionError, requests.exceptions.ChunkedEncodingError):
                return False
            os.fsync(stream.fileno())
    return True
