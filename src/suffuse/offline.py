"""Build an index: features in, an index directory out, block by block, resumable at any moment."""

import contextlib
import hashlib
import json
import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse import __version__
from suffuse.arrays import UNFINISHED, map_array, sync_directory, write_array, write_blocks, write_bytes
from suffuse.blocks import (
    block_path,
    block_rows,
    block_starts,
    columns_task,
    edges_task,
    graph_task,
    image_task,
    join_columns,
    lists_task,
    neighbors_task,
    pair_task,
    pairs_of_shards,
    search_results,
    search_task,
    seeds_results,
    seeds_task,
)
from suffuse.cluster import owned, workers_of
from suffuse.errors import BuildInterrupted, InvalidParams
from suffuse.features import check_matrix, check_owners, learn_whitening, load, unit_blocks
from suffuse.items import check_items, encode_items
from suffuse.machine import cores
from suffuse.manifest import FORMAT_VERSION, ITEMS_FILE, Manifest, describe_files, size_on_disk, write_manifest
from suffuse.memory import threads_that_fit
from suffuse.params import Params
from suffuse.shards import shard_starts
from suffuse.workplace import publish, refuse_overwriting, remove, work_path, working_directory

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

# Called with the stage's name, how many of its rows are done, and how many there are.
Progress = Callable[[str, int, int], None]

# Where seeds are searched approximately, "seeds" comes after "features". Where the graph's neighbours are, "search"
# comes before "neighbors" in place of "pairs".
STAGES = ("features", "pairs", "neighbors", "lists", "edges", "graph", "columns", "index")


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
            build_ = _Build(work, n, pool, progress or _silent)
            _write_inputs(build_, features, params, owners, items)
            if seeds := seeds_results(work, params):
                build_.run_singly("seeds", seeds_task, [seeds])
            if searches := search_results(work, params):
                build_.run_singly("search", search_task, [searches])
            if params.graph_search == "exact" and not build_.is_done("neighbors"):
                build_.run_singly("pairs", pair_task, pairs_of_shards(work, n))
            build_.run_blocks("neighbors", neighbors_task)
            remove(work / "pairs")  # larger than all that comes after
            graph = {work / "graph" / "summary.json": n}
            if not all(path.exists() for path in graph):
                build_.run_singly("lists", lists_task, [{work / "lists" / "sims.npy": n}])
                build_.run_blocks("edges", edges_task)
            build_.run_singly("graph", graph_task, [graph])
            remove(work / "lists")
            remove(work / "edges")
            build_.run_blocks("columns", columns_task)
            manifest = _assemble(build_, params, images, pictures)
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


def _silent(_stage: str, _done: int, _total: int) -> None:
    """The progress of a build that nobody watches."""


class _Build:
    """One build under way: where it works, who works, and what has been done."""

    def __init__(self, work: Path, n: int, pool: Executor, progress: Progress) -> None:
        self.work, self.n, self.pool, self.progress = work, n, pool, progress
        self.resumed = 0
        self.seconds: dict[str, float] = {}

    @property
    def index(self) -> Path:
        """The directory that becomes the index."""
        return self.work / "index"

    @contextlib.contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Report the begin and the end of a stage, and time it."""
        started = time.perf_counter()
        self.progress(name, 0, self.n)
        yield
        self.progress(name, self.n, self.n)
        self.seconds[name] = time.perf_counter() - started

    def run_blocks(self, stage: str, task: Callable[[str, int, int], None]) -> None:
        """Run the task for each block that is not yet done."""
        with self.stage(stage):
            (self.work / stage).mkdir(exist_ok=True)
            rows, done = block_rows(self.n), 0
            pending: dict[Future[None], int] = {}
            with _none_left_running(pending):
                for start in block_starts(self.n):
                    stop = min(start + rows, self.n)
                    if block_path(self.work, stage, start).exists():
                        self.resumed += 1
                        done += stop - start
                    else:
                        pending[self.pool.submit(task, str(self.work), start, stop)] = stop - start
                self.progress(stage, done, self.n)
                for future in as_completed(pending):
                    future.result()
                    done += pending[future]
                    self.progress(stage, done, self.n)

    def is_done(self, stage: str) -> bool:
        """Whether all blocks of a stage are there."""
        return all(block_path(self.work, stage, start).exists() for start in block_starts(self.n))

    def run_singly(self, stage: str, task: Callable[[str, Any], None], rounds: Sequence[Mapping[Path, Any]]) -> None:
        """Run a task with each argument whose result, the last file it writes, is not there; one round after another.

        Tasks do not stand for rows, so progress is their share of all.
        """
        with self.stage(stage):
            (self.work / stage).mkdir(exist_ok=True)
            done, total = 0, sum(len(results) for results in rounds)
            for results in rounds:
                pending: list[Future[None]] = []
                with _none_left_running(pending):
                    for path, argument in results.items():
                        if path.exists():
                            self.resumed += stage == "pairs"  # as much work as a block
                            done += 1
                        else:
                            pending.append(self.pool.submit(task, str(self.work), argument))
                    for future in as_completed(pending):
                        future.result()
                        done += 1
                        if done < total:  # `stage` reports the end
                            self.progress(stage, self.n * done // total, self.n)


@contextlib.contextmanager
def _none_left_running(futures: Collection[Future[None]]) -> Iterator[None]:
    """Let no task outlive a build that failed: it could write into the next one, which may have another plan."""
    try:
        yield
    except BrokenExecutor:
        raise  # the pool is ending its futures itself; to cancel one meanwhile would make it stumble
    except BaseException:
        wait([future for future in futures if not future.cancel()])
        raise


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
    build_: _Build,
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


def _assemble(build_: _Build, params: Params, images: int, pictures: dict[str, Any] | None) -> Manifest:
    """Join the blocks of columns, and describe the whole in a manifest."""
    with build_.stage("index"):
        index, n = build_.index, build_.n
        for left_behind in index.glob(f".*{UNFINISHED}"):
            left_behind.unlink()  # by a worker that was killed, and whose task another one did
        joined = join_columns(build_.work, n)
        if params.pool == "sum" and (index / "owners.npy").exists():
            image_task(str(build_.work), images)
        manifest = Manifest(
            created_by=f"suffuse {__version__}",
            params=params,
            counts={
                "elements": n,
                "images": images,
                "dimensions": map_array(index / "features.npy").array.shape[1],
                "entries": joined.entries,
                "unconverged": joined.unconverged,
            },
            graph=json.loads((build_.work / "graph" / "summary.json").read_bytes()),
            files=describe_files(index),
            pictures=pictures,
        )
        write_manifest(index, manifest)
        sync_directory(index)
    return manifest
