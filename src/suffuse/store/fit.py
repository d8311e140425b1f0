"""Whether the files of an index fit each other: their shapes follow from a few counts and parameters."""

from typing import Any

from numpy.typing import NDArray

from suffuse.errors import IndexBroken
from suffuse.store.manifest import GRAPH_FILES, HNSW_FILES, IMAGE_FILES, LIST_FILES, MANIFEST, Manifest, column_files


def check_fit(manifest: Manifest, arrays: dict[str, NDArray[Any]]) -> None:
    """The shapes of all arrays follow from a few counts."""
    n, images, dimensions, entries = (manifest.counts[of] for of in ("elements", "images", "dimensions", "entries"))
    expected: dict[str, tuple[int, ...]] = {
        "features.npy": (n, dimensions),
        "indptr.npy": (n + 1,),
        "scales.npy": (n,),
        "rows.npy": (entries,),
        "values.npy": (entries,),
        "owners.npy": (n,),
        "item_offsets.npy": (images + 1,),
        "image_indptr.npy": (images + 1,),
        "graph_indptr.npy": (n + 1,),
        "list_ids.npy": (n, min(n, manifest.params.k)),
        "list_sims.npy": (n, min(n, manifest.params.k)),
        "ids.npy": (images,),
    }
    for name, shape in expected.items():
        if name in arrays and arrays[name].shape != shape:
            raise IndexBroken(
                f"{name} has the shape {arrays[name].shape}, the counts say {shape}; build the index again"
            )
    if "owners.npy" not in arrays and images != n:
        said = f"{MANIFEST} counts {images} images and {n} elements, but names no owners.npy"
        raise IndexBroken(f"{said}; build the index again")
    indptr, stored = arrays["indptr.npy"], arrays[column_files(manifest.params)[0]]
    if stored.ndim != 1 or indptr[0] != 0 or indptr[-1] != len(stored):
        raise IndexBroken(
            f"indptr.npy runs from {indptr[0]} to {indptr[-1]}, expected 0 to {stored.size}; copy or build the index"
            " again"
        )
    if present := [name for name in IMAGE_FILES if name in arrays]:
        if len(present) < len(IMAGE_FILES):
            raise IndexBroken(f"{present[0]} is there without the other image vectors; copy or build the index again")
        ends, shapes = arrays["image_indptr.npy"], {arrays[name].shape for name in IMAGE_FILES[1:]}
        expected_type = "float16" if manifest.params.values == "uint8" else arrays["values.npy"].dtype.name
        if shapes != {(int(ends[-1]),)} or arrays["image_values.npy"].dtype.name != expected_type:
            raise IndexBroken("image_rows.npy and image_values.npy do not fit image_indptr.npy; build the index again")
    links = [name for name in HNSW_FILES if name in arrays]
    if len(links) != (len(HNSW_FILES) if manifest.params.seed_search == "hnsw" else 0):
        raise IndexBroken(
            f"{MANIFEST} has seed_search={manifest.params.seed_search!r} and names {len(links)} of the"
            f" {len(HNSW_FILES)} files of links; copy or build the index again"
        )
    _check_graph(manifest, arrays)
    if sum(name in arrays for name in LIST_FILES) != (len(LIST_FILES) if manifest.params.with_lists else 0):
        raise IndexBroken(
            f"{MANIFEST} has with_lists={manifest.params.with_lists}, which does not fit the files that it names;"
            " copy or build the index again"
        )
    mean, projection = arrays.get("whitening_mean.npy"), arrays.get("whitening_projection.npy")
    if mean is projection is None and manifest.params.whiten is not None:
        raise IndexBroken(
            f"{MANIFEST} has whiten={manifest.params.whiten}, but names no whitening_mean.npy; build the index again"
        )
    if (mean is None) != (projection is None):
        raise IndexBroken("only one of whitening_mean.npy and whitening_projection.npy is there; build the index again")
    if mean is not None and projection is not None and (mean.ndim != 1 or projection.shape != (len(mean), dimensions)):
        raise IndexBroken(
            f"whitening_projection.npy has the shape {projection.shape}, which does not fit whitening_mean.npy of shape"
            f" {mean.shape} and {dimensions} dimensions; build the index again"
        )


def _check_graph(manifest: Manifest, arrays: dict[str, NDArray[Any]]) -> None:
    present = [name for name in GRAPH_FILES if name in arrays]
    if len(present) != (len(GRAPH_FILES) if manifest.params.with_graph else 0):
        raise IndexBroken(
            f"{MANIFEST} has with_graph={manifest.params.with_graph} and names {len(present)} of the {len(GRAPH_FILES)}"
            " files of the graph; copy or build the index again"
        )
    if present:
        indptr, *entries = (arrays[name] for name in GRAPH_FILES)
        if indptr[0] != 0 or {array.shape for array in entries} != {(int(indptr[-1]),)}:
            raise IndexBroken(
                "graph_indices.npy and graph_weights.npy do not fit graph_indptr.npy; build the index again"
            )
