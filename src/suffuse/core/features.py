"""Features at the border: check them once, scale them to unit length, whiten them.

Below `unit_rows` everything is float32, C-order, finite and of unit length; no other module checks again.
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.errors import InvalidInput

ACCEPTED_TYPES = ("float16", "float32", "float64", "uint8")


# Rows that are converted at a time, so that a memory-mapped file is never held whole in memory.
_BLOCK_ROWS = 8192


class Whitening(NamedTuple):
    """PCA whitening: x -> (x - mean) @ projection, then unit length."""

    mean: NDArray[np.float64]  # (d,)
    projection: NDArray[np.float64]  # (d, D)


def as_array(values: Any, name: str) -> NDArray[Any]:
    """Anything array-like as an array: lists of numbers, tensors and whatever else has `__array__`."""
    if isinstance(values, np.ndarray):
        return values
    try:
        array = np.asarray(values)
    except (TypeError, ValueError, RuntimeError) as error:  # of other lengths in each row; of a tensor with gradients
        raise InvalidInput(f"{name} cannot be read as an array: {error}; give rows of the same length") from error
    if array.dtype.kind not in "fiub":
        raise InvalidInput(f"{name} must be an array of numbers, got {type(values).__name__} of {array.dtype}")
    return array


def as_features(values: Any, name: str) -> NDArray[Any]:
    """The same for features: whole numbers in a list are not meant as a type."""
    array = as_array(values, name)
    return array.astype(np.float64) if isinstance(values, list | tuple) and array.dtype.kind in "iu" else array


def check_matrix(features: NDArray[Any], name: str, *, least_rows: int = 2, dimensions: int | None = None) -> None:
    """What can be told from shape and type alone: two dimensions, enough rows, an accepted type."""
    check_kind(features.shape, features.dtype, name)
    if len(features) < least_rows:
        raise InvalidInput(f"{name} has {len(features)} rows; at least {least_rows} are needed")
    if features.shape[1] == 0:
        raise InvalidInput(f"{name} has rows without values, shape {features.shape}; extract the features again")
    if dimensions is not None and features.shape[1] != dimensions:
        raise InvalidInput(
            f"{name} have {features.shape[1]} dimensions, the index has {dimensions};"
            " build and search with the same kind of features"
        )


def check_kind(shape: tuple[int, ...], dtype: np.dtype[Any], name: str) -> None:
    """Refuse a shape or a type of values that features cannot have."""
    if len(shape) != 2:
        raise InvalidInput(f"{name} must have two dimensions (rows, values), found shape {shape}")
    if dtype.name not in ACCEPTED_TYPES:
        raise InvalidInput(
            f"{name} has values of type {dtype}; use one of {', '.join(ACCEPTED_TYPES)}"
            f"{', for instance features.astype(numpy.float32)' if dtype.kind in 'iufb' else ''}"
        )


def unit_rows(features: NDArray[Any], name: str, *, first: int = 0) -> NDArray[np.float32]:
    """features / |features|, row by row, as float32; a row that has no direction is an error that names it.

    `first` is the number of the first row, for the message.
    """
    rows = features.astype(np.float64)
    # Scaled by the largest value first, so that neither huge nor tiny values leave the range when squared.
    largest = np.abs(rows).max(axis=1, keepdims=True)
    if not np.isfinite(largest).all():
        bad = int(np.argmin(np.isfinite(largest)))
        value = next(v for v in rows[bad] if not np.isfinite(v))
        raise InvalidInput(f"row {first + bad} of {name} holds {value}; remove the row or extract it again")
    if not largest.all():
        raise InvalidInput(
            f"row {first + int(np.argmin(largest))} of {name} is all zeros and has no direction; remove the row or"
            " extract it again"
        )
    rows /= largest
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return np.ascontiguousarray(rows, dtype=np.float32)


def unit_blocks(features: NDArray[Any], name: str, whitening: Whitening | None) -> Iterator[NDArray[np.float32]]:
    """All rows in order, a block at a time, whitened where wanted, of unit length."""
    for start in range(0, len(features), _BLOCK_ROWS):
        block = unit_rows(features[start : start + _BLOCK_ROWS], name, first=start)
        yield block if whitening is None else apply_whitening(block, whitening, name, first=start)


def learn_whitening(features: NDArray[Any], name: str, dimensions: int, power: float) -> Whitening:
    """PCA of the gallery's unit rows, without labels: each kept axis divided by eigenvalue ** (power / 2)."""
    n, d = features.shape
    if dimensions > min(d, n - 1):
        limit = f"its {d} dimensions" if d <= n - 1 else f"the {n - 1} directions that {n} rows can span"
        raise InvalidInput(f"cannot whiten {name} to {dimensions} dimensions, more than {limit}; ask for fewer")
    total, products = np.zeros(d), np.zeros((d, d))
    for block in unit_blocks(features, name, None):
        rows = block.astype(np.float64)
        total += rows.sum(axis=0)
        products += rows.T @ rows
    mean = total / n
    eigenvalues, axes = np.linalg.eigh(products / n - np.outer(mean, mean))
    eigenvalues, axes = eigenvalues[::-1][:dimensions], axes[:, ::-1][:, :dimensions]
    # Unit rows are known to float32's rounding and no better; dividing by that would turn noise into signal.
    rank = int((eigenvalues > np.finfo(np.float32).eps ** 2).sum())
    if rank < dimensions:
        remedy = f"whiten to at most {rank} dimensions" if rank else "build without whitening"
        raise InvalidInput(f"{name} spans only {rank} directions around its mean; {remedy}")
    # The sign of an eigenvector is arbitrary: fix it, so that the same data gives the same index everywhere.
    signs = np.sign(axes[np.abs(axes).argmax(axis=0), np.arange(dimensions)])
    return Whitening(mean, np.ascontiguousarray(axes * (signs / eigenvalues ** (power / 2))))


def apply_whitening(
    unit: NDArray[np.float32], whitening: Whitening, name: str, *, first: int = 0
) -> NDArray[np.float32]:
    """(x - mean) @ projection, then unit length again."""
    # In float64, so that the float32 result does not depend on how many rows are multiplied together.
    return unit_rows((unit - whitening.mean) @ whitening.projection, f"{name} after whitening", first=first)


def check_owners(owners: Any, regions: int, name: str) -> NDArray[np.int32]:
    """Owners as int32: one whole number per region, from 0."""
    if not isinstance(owners, np.ndarray) or owners.ndim != 1 or owners.dtype.kind not in "iu":
        found = f"{owners.dtype} of shape {owners.shape}" if isinstance(owners, np.ndarray) else type(owners).__name__
        raise InvalidInput(f"{name} must be a one-dimensional array of whole numbers, got {found}")
    if len(owners) != regions:
        raise InvalidInput(f"{name} has {len(owners)} entries for {regions} regions; one per region")
    if len(bad := np.flatnonzero((owners < 0) | (owners >= 2**31))):
        raise InvalidInput(f"entry {bad[0]} of {name} is {owners[bad[0]]}; images are numbered from 0")
    return owners.astype(np.int32)


def check_seeds(ids: Any, sims: Any, elements: int) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Seeds and similarities (m, s) from another search; a negative id, nothing found, becomes the similarity 0."""
    ids, sims = np.asarray(ids), np.asarray(sims)
    if ids.ndim != 2 or ids.shape != sims.shape or 0 in ids.shape:
        raise InvalidInput(f"ids and sims must be of one shape, (queries, seeds), got {ids.shape} and {sims.shape}")
    if ids.dtype.kind not in "iu":
        raise InvalidInput(f"ids must be whole numbers, got {ids.dtype}")
    if sims.dtype.kind not in "iuf":
        raise InvalidInput(f"sims must be numbers, got {sims.dtype}")
    if ids.max() >= elements:
        q, s = np.argwhere(ids >= elements)[0]
        raise InvalidInput(f"seed {s} of query {q} is element {ids[q, s]}, but there are {elements}, numbered from 0")
    if ids.min() >= 0 and np.isfinite(sims).all():  # as it should be
        return ids.astype(np.int64), sims.astype(np.float64)
    found = ids >= 0
    if (bad := found & ~np.isfinite(sims)).any():
        q, s = np.argwhere(bad)[0]
        raise InvalidInput(f"the similarity of seed {s} of query {q} is {sims[q, s]}; similarities must be finite")
    return np.where(found, ids, 0).astype(np.int64), np.where(found, sims, 0).astype(np.float64)
