"""Readers of feature files: .npy, .npz, .fvecs, HDF5 and Matlab v7.3. Sizes in a file are checked, not trusted."""

import contextlib
import math
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core.features import ACCEPTED_TYPES, check_kind, check_matrix
from suffuse.errors import InvalidInput, SuffuseError, first_line, name_extra

# How the files begin. Checked here, since numpy takes everything else for a pickle, and says so.
_NPY_MAGIC, _ZIP_MAGIC = (b"\x93NUMPY",), (b"PK\x03\x04", b"PK\x05\x06")
# By version; version 3 is for names of fields, which features do not have.
_NPY_HEADERS = {b"\1\0": np.lib.format.read_array_header_1_0, b"\2\0": np.lib.format.read_array_header_2_0}
# A small file can promise any number of bytes. Features compress to a tenth at best; what compresses better is not
# features.
_MOST_UNPACKED, _MOST_SHRINKING = 64 << 20, 200


class Loaded(NamedTuple):
    """What a feature file holds."""

    features: NDArray[Any]  # (n, d), often memory-mapped, not yet checked row by row
    labels: NDArray[Any] | None  # (n,), from .npz files only


def load(path: str | Path, *, transpose: bool = False, least_rows: int = 2) -> Loaded:
    """Read .npy, .npz, .fvecs, .h5/.hdf5 or Matlab v7.3 .mat; `FILE.h5::NAME` chooses a dataset inside the file.

    `transpose` turns a matrix with one column per image into one with one row per image. HDF5 shows a Matlab
    matrix transposed, so a .mat file with one *column* per image, the custom of the field, needs nothing.
    """
    name, _, inside = str(path).partition("::")
    file = Path(name)
    if not file.exists():
        raise InvalidInput(f"there is no file {file}; give the path of a feature file")
    if file.is_dir():
        raise InvalidInput(f"{file} is a directory; give the path of a feature file")
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise InvalidInput(f"{file.name}: unknown kind of file {file.suffix!r}; known are {', '.join(_READERS)}")
    if file.stat().st_size == 0:
        raise InvalidInput(f"{file.name} is empty (0 bytes); write the features again")
    with describe_damage(file):
        loaded = reader(file, inside)
    features = loaded.features.T if transpose and loaded.features.ndim == 2 else loaded.features
    check_matrix(features, file.name, least_rows=least_rows)
    if loaded.labels is not None and loaded.labels.shape != features.shape[:1]:
        raise InvalidInput(
            f"{file.name}: {len(features)} features but labels of shape {loaded.labels.shape}; one label per row"
        )
    return Loaded(features, loaded.labels)


def check_unpacked(file: Path, promised: int) -> None:
    """Refuse a file that promises absurdly many bytes for its own size, before they are asked for."""
    size = file.stat().st_size
    if promised > max(_MOST_UNPACKED, _MOST_SHRINKING * size):
        raise InvalidInput(
            f"{file.name} promises {promised} bytes, more than {_MOST_SHRINKING} times its own {size}; if it is sound,"
            " write it again as .npy"
        )


def load_owners(path: str | Path) -> NDArray[Any]:
    """Read which image (or query) each region belongs to: a .npy file of whole numbers."""
    file = Path(path)
    if not file.is_file():
        raise InvalidInput(f"there is no file {file}; give a .npy file with the image of each region")
    with describe_damage(file):
        return np.array(_read_npy(file, "").features)


def import_h5py() -> Any:
    """The module h5py, which only HDF5 and Matlab v7.3 files need."""
    with name_extra("h5py", "hdf5"):
        import h5py
    return h5py


@contextlib.contextmanager
def describe_damage(file: Path, remedy: str = "write it again") -> Iterator[None]:
    """Turn what numpy, zipfile, tokenize, zlib and h5py raise for a damaged file into one kind of error."""
    try:
        yield
    except SuffuseError:
        raise
    except Exception as error:
        objects = "pickle" in str(error) or "Python objects" in str(error)
        words = "it holds Python objects, which are never loaded" if objects else first_line(error)
        raise InvalidInput(f"{file.name} cannot be read: {words}; {remedy}") from error


def _read_npy(file: Path, inside: str) -> Loaded:
    _refuse_dataset(file, inside)
    _check_magic(file, _NPY_MAGIC, "a .npy file")
    # A map is never longer than the file; without one, numpy would allocate whatever the file promises.
    return Loaded(np.load(file, mmap_mode="r", allow_pickle=False), None)


def _read_npz(file: Path, inside: str) -> Loaded:
    _check_magic(file, _ZIP_MAGIC, "an .npz archive")
    with zipfile.ZipFile(file) as archive:
        members = {info.filename.removesuffix(".npy"): info for info in archive.infolist()}
        wanted = inside or "features"
        if wanted not in members:
            held = ", ".join(members) or "nothing"
            raise InvalidInput(f"{file.name} has no array {wanted!r}, it holds {held}; choose with {file.name}::NAME")
        labels = _read_member(file, archive, members["labels"]) if "labels" in members else None
        return Loaded(_read_member(file, archive, members[wanted]), labels)


def _read_member(file: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> NDArray[Any]:
    """An array of an .npz archive, its size checked first: numpy allocates whatever the header promises."""
    name = info.filename.removesuffix(".npy")
    if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise InvalidInput(f"{file.name}: {name!r} is packed as numpy never does; write it again with numpy.savez")
    check_unpacked(file, info.file_size)
    with archive.open(info) as stream:
        start = stream.read(8)
        header = _NPY_HEADERS.get(start[6:])
        if not start.startswith(_NPY_MAGIC) or header is None:
            raise InvalidInput(f"{file.name}: {name!r} is not an array; write it again with numpy.savez")
        shape, _, dtype = header(stream)
        promised = math.prod(shape) * dtype.itemsize
        if promised > info.file_size and not dtype.hasobject:  # objects are refused below, in words of their own
            raise InvalidInput(
                f"{file.name}: {name!r} promises {promised} bytes and has {info.file_size}; write it again"
            )
        stream.seek(0)
        return np.asarray(np.lib.format.read_array(stream, allow_pickle=False))


def _read_fvecs(file: Path, inside: str) -> Loaded:
    """Each row is an int32 d followed by d float32 values."""
    _refuse_dataset(file, inside)
    size = file.stat().st_size
    with file.open("rb") as stream:
        dimensions = int.from_bytes(stream.read(4), "little", signed=True)
    if dimensions <= 0 or size % (4 * (dimensions + 1)):
        raise InvalidInput(
            f"{file.name} is not .fvecs: {size} bytes do not hold rows of {dimensions} values; write it again"
        )
    words = np.memmap(file, "<i4", mode="r").reshape(-1, dimensions + 1)
    if len(bad := np.flatnonzero(words[:, 0] != dimensions)):
        raise InvalidInput(
            f"{file.name}: row {bad[0]} says it has {words[bad[0], 0]} values, the first has {dimensions};"
            " the file is damaged or not .fvecs; write it again"
        )
    return Loaded(words.view("<f4")[:, 1:], None)


def _read_hdf5(file: Path, inside: str) -> Loaded:
    h5py = import_h5py()
    if not h5py.is_hdf5(file):
        hint = "; in Matlab, save with the option '-v7.3'" if file.suffix.lower() == ".mat" else ""
        raise InvalidInput(f"{file.name} is not an HDF5 file{hint or '; write it again'}")
    with h5py.File(file, "r") as archive:
        found: list[str] = []
        archive.visititems(lambda name, node: found.append(name) if _is_matrix(node) else None)
        wanted = inside.strip("/") or ("features" if "features" in archive or len(found) != 1 else found[0])
        dataset = archive.get(wanted)
        if not isinstance(dataset, h5py.Dataset) or dataset.shape is None:
            held = ", ".join(found) or "no matrix"
            raise InvalidInput(f"{file.name} has no dataset {wanted!r}, it holds {held}; choose with {file.name}::NAME")
        if dataset.external is not None:
            raise InvalidInput(f"{file.name} has its values in other files, which are not opened; write it again")
        check_kind(dataset.shape, dataset.dtype, file.name)
        # A dataset that is stored in one piece (neither chunked nor compressed) can be mapped like a .npy file.
        offset = dataset.id.get_offset()
        if offset is not None and dataset.size:
            return Loaded(np.memmap(file, dataset.dtype, mode="r", offset=offset, shape=dataset.shape), None)
        for shape in (dataset.shape, dataset.chunks or ()):  # HDF5 allocates whole chunks
            check_unpacked(file, math.prod(shape) * dataset.dtype.itemsize)
        return Loaded(np.asarray(dataset), None)


def _is_matrix(node: Any) -> bool:
    return len(getattr(node, "shape", ()) or ()) == 2 and node.dtype.name in ACCEPTED_TYPES


def _check_magic(file: Path, magic: tuple[bytes, ...], kind: str) -> None:
    with file.open("rb") as stream:
        found = stream.read(8)
    if not found.startswith(magic):
        known = {_NPY_MAGIC: "a .npy file", _ZIP_MAGIC: "a zip archive, perhaps .npz"}
        other = f"something that begins with {found!r}"
        looks = next((words for start, words in known.items() if found.startswith(start)), other)
        raise InvalidInput(f"{file.name} is not {kind} but {looks}; rename it or write it again")


def _refuse_dataset(file: Path, inside: str) -> None:
    if inside:
        raise InvalidInput(f"{file.name} holds one array only; leave out '::{inside}'")


_READERS = {".npy": _read_npy, ".npz": _read_npz, ".fvecs": _read_fvecs}
_READERS |= dict.fromkeys((".h5", ".hdf5", ".mat"), _read_hdf5)
SUFFIXES = tuple(_READERS)
