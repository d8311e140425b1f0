"""Build an index: features in, an index directory out, block by block, resumable at any moment."""

import contextlib
import hashlib
import logging
from collections.abc import Sequence
from concurrent.futures import BrokenExecutor, Executor, ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse import __version__
from suffuse.core.blas import cores
from suffuse.core.features import check_matrix, check_owners, learn_whitening, unit_blocks
from suffuse.core.neighbors import shard_starts
from suffuse.core.params import Params
from suffuse.errors import BuildInterrupted, InvalidParams
from suffuse.offline.cluster import owned, workers_of
from suffuse.offline.memory import threads_that_fit
from suffuse.offline.runner import Progress, Stages, assemble, run_stages
from suffuse.offline.tasks import block_rows
from suffuse.offline.workplace import publish, refuse_overwriting, work_path, working_directory
from suffuse.store.feature_files import load
from suffuse.store.files import write_array, write_blocks, write_bytes
from suffuse.store.items import check_items, encode_items
from suffuse.store.manifest import FORMAT_VERSION, ITEMS_FILE, size_on_disk, write_manifest

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)


class BuildSummary(NamedTuple):
    """What a build made, and what it took."""

    path: Path
    elements: int
    images: int
    dimensions: int
    entries: int
    unconverged: int
    bytes: int
    resumed: int  # blocks and pairs of shards that an earlier, interrupted build had finished
    seconds: dict[str, float]  # by stage


def build(
    features: NDArray[Any] | str | Path,
    path: str | Path,
    params: Params | None = None,
    *,
    owners: NDArray[Any] | None = None,
    names: Sequence[Any] | None = None,
    pictures: dict[str, Any] | None = None,
    executor: "Executor | Client | None" = None,
    jobs: int | None = None,
    memory: float | None = None,
    force: bool = False,
    progress: Progress | None = None,
) -> BuildSummary:
    """Build the index of `features` at `path`: neighbours, graph, columns.

    features  (n, d), one row per image, or per region if `owners` says which image each region belongs to
    names     a name, or an object with a name and metadata, for each image
    pictures  where the images are and what made features of them: a JSON object that the manifest keeps
    executor  runs the tasks: any concurrent.futures.Executor whose workers see the same files, or a Dask client; else
              `jobs` threads
    memory    gigabytes that the build may hold: fewer threads if that many need more, an error if one does
    force     replace an index that is already there, once the new one is whole

    The work is done in a directory beside `path`. A build that was cut short leaves no index; the same call
    goes on where it stopped.
    """
    final = Path(path)
    params = params or Params()
    if not isinstance(features, np.ndarray):
        features = load(features).features
    check_matrix(features, "features")
    n = len(features)
    owners = None if owners is None else check_owners(owners, n, "owners")
    images = n if owners is None else int(owners.max()) + 1
    if names is not None and owners is not None:
        images = max(images, len(names))  # the last images may have no regions
    items = None if names is None else check_items(names, images)
    try:
        refuse_overwriting(final, force)
        workers = _workers(executor, _fitting(jobs, memory, features, params), work_path(final).absolute())
        plan = _plan(features, params, owners, items)
        with working_directory(final, plan, force) as work, owned(work), workers as pool:
            build_ = Stages(work, n, pool, progress)
            _write_inputs(build_, features, params, owners, items)
            run_stages(build_, params)
            manifest = assemble(build_, params, images, pictures)
            write_manifest(build_.index, manifest)
            publish(work, final, force)
    except OSError as error:
        raise BuildInterrupted(
            f"{error.strerror or error} ({error.filename or final}); what is finished is kept in"
            f" {work_path(final).name}, and the same build goes on from there once this is cured"
        ) from error
    except BrokenExecutor as error:
        raise BuildInterrupted(f"a worker died ({error}); the same build goes on with what is finished") from error
    return BuildSummary(
        path=final,
        elements=n,
        images=images,
        dimensions=manifest.counts["dimensions"],
        entries=manifest.counts["entries"],
        unconverged=manifest.counts["unconverged"],
        bytes=size_on_disk(manifest),
        resumed=build_.resumed,
        seconds=build_.seconds,
    )


def _fitting(jobs: int | None, memory: float | None, features: NDArray[Any], params: Params) -> int | None:
    """The number of jobs, lowered to what fits into so many gigabytes, where a bound is given."""
    if memory is None:
        return jobs
    n, dimensions = len(features), params.whiten or features.shape[1]
    return threads_that_fit(
        memory, n, dimensions, params, jobs or cores(),
        shard_rows=shard_starts(n, block_rows(n)).step, block_rows=block_rows(n), given=features.nbytes,
    )  # fmt: skip


def _workers(
    executor: "Executor | Client | None", jobs: int | None, work: Path
) -> contextlib.AbstractContextManager[Executor]:
    if executor is not None:
        if jobs is not None:
            raise InvalidParams("give an executor, or a number of jobs or a bound of memory, not both")
        return workers_of(executor, work)
    if jobs is not None and jobs < 1:
        raise InvalidParams(f"jobs must be a whole number of at least 1, got {jobs!r}")
    # Threads, since the kernels and faiss release the GIL; they share the memory maps at no cost.
    return ThreadPoolExecutor(jobs or cores())


def _plan(
    features: NDArray[Any], params: Params, owners: NDArray[np.int32] | None, items: list[dict[str, Any]] | None
) -> dict[str, Any]:
    """Everything that decides the content of the index; a build resumes only if all of it is the same."""
    digest = hashlib.sha256()
    for start in range(0, len(features), 4096):
        digest.update(np.ascontiguousarray(features[start : start + 4096]).data)
    return {
        "created_by": f"suffuse {__version__}",
        "format_version": FORMAT_VERSION,
        "params": params.to_dict(),
        "features": {"shape": list(features.shape), "dtype": features.dtype.name, "sha256": digest.hexdigest()},
        "owners": None if owners is None else hashlib.sha256(owners.data).hexdigest(),
        "names": None if items is None else hashlib.sha256(encode_items(items)[0]).hexdigest(),
    }


def _write_inputs(
    build_: Stages,
    features: NDArray[Any],
    params: Params,
    owners: NDArray[np.int32] | None,
    items: list[dict[str, Any]] | None,
) -> None:
    """The unit rows, the whitening, owners and names: everything of the index that needs no graph."""
    with build_.stage("features"):
        index = build_.index
        if (index / "features.npy").exists():
            return
        for left_behind in index.iterdir():
            left_behind.unlink()  # also what workers of a killed build with another plan wrote at last
        n, dimensions, whitening = len(features), params.whiten or features.shape[1], None
        if params.whiten is not None:
            whitening = learn_whitening(features, "features", params.whiten, params.whiten_power)
            write_array(index / "whitening_mean.npy", whitening.mean)
            write_array(index / "whitening_projection.npy", whitening.projection)
        if owners is not None:
            write_array(index / "owners.npy", owners)
        if items is not None:
            text, offsets = encode_items(items)
            write_bytes(index / ITEMS_FILE, [text])
            write_array(index / "item_offsets.npy", offsets)
        # Last: this is the file that says that the stage is done.
        write_blocks(index / "features.npy", np.float32, (n, dimensions), unit_blocks(features, "features", whitening))
