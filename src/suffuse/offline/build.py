"""Build an index: features in, an index directory out, block by block, resumable at any moment.

The work is done in a directory beside the future index, in stages (`tasks.STAGES`) whose tasks a pool runs. At the end
the directory `index` within it gets its name.
"""

import contextlib
import hashlib
import json
import logging
import os
import shutil
import time
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, ThreadPoolExecutor, as_completed, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse import __version__
from suffuse.core.blas import cores
from suffuse.core.features import check_matrix, check_owners, learn_whitening, unit_blocks
from suffuse.core.params import Params, Progress, refuse_cells
from suffuse.errors import BuildInterrupted, IndexExists, IndexProblem, InvalidInput, InvalidParams
from suffuse.offline import tasks
from suffuse.offline.cluster import workers_of
from suffuse.offline.memory import threads_that_fit
from suffuse.store import files, manifest
from suffuse.store.feature_files import load
from suffuse.store.files import UNFINISHED, lock_file, map_array, report_damage, sync_directory, write_array
from suffuse.store.items import check_items, encode_items
from suffuse.store.locks import keep_writers_out
from suffuse.store.manifest import FORMAT_VERSION, ITEMS_FILE, LIST_FILES, Manifest, describe_files, read_manifest

if TYPE_CHECKING:
    from distributed import Client

logger = logging.getLogger(__name__)

_Items = tuple[bytes, NDArray[np.int64]]  # names and metadata as the index holds them: lines, and where each begins


# Stages of many tasks: what is found of them is worth to be counted.
_DIVIDED = ("pairs", "neighbors", "edges", "drafts", "columns")


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


@report_damage
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
    refuse_cells(params)
    if not isinstance(features, np.ndarray):
        features = load(features).features
    check_matrix(features, "features")
    n = len(features)
    owners = None if owners is None else check_owners(owners, n, "owners")
    images = n if owners is None else int(owners.max()) + 1
    if names is not None and owners is not None:
        images = max(images, len(names))  # the last images may have no regions
    items = None if names is None else encode_items(check_items(names, images))
    work = _work_path(final)
    if memory is not None:
        jobs = threads_that_fit(memory, n, params.whiten or features.shape[1], params, jobs or cores(), features.nbytes)
    try:
        workers = _workers(executor, jobs, work)
        with _working_directory(final, force):
            _resume_or_clear(work, _plan(features, params, owners, items))
            with _own(work), workers as pool:
                stages = Stages(work, n, pool, progress)
                _write_inputs(stages, features, params, owners, items)
                run_stages(stages, params)
                whole = assemble(stages, params, images, pictures)
                manifest.write_manifest(stages.index, whole)
                _publish(work, final, force)
    except IndexProblem:
        raise  # some of them are also an OSError
    except OSError as error:
        raise BuildInterrupted(
            f"{error.strerror or error} ({error.filename or final}); what is finished is kept in"
            f" {work.name}, and the same build goes on from there once this is cured"
        ) from error
    except BrokenExecutor as error:
        raise BuildInterrupted(f"a worker died ({error}); the same build goes on with what is finished") from error
    return BuildSummary(
        path=final,
        elements=n,
        images=images,
        **{name: whole.counts[name] for name in ("dimensions", "entries", "unconverged")},
        bytes=manifest.size_on_disk(whole),
        resumed=stages.resumed,
        seconds=stages.seconds,
    )


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
    features: NDArray[Any], params: Params, owners: NDArray[np.int32] | None, items: _Items | None
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
        "names": None if items is None else hashlib.sha256(items[0]).hexdigest(),
    }


# --- the directory beside the future index


def _work_path(final: Path) -> Path:
    """Where an index is built; absolute, since workers may have another current directory."""
    if not final.name or final.name in (".", ".."):
        raise InvalidInput(f"{str(final)!r} is no name for an index; give a path such as photos.index")
    return final.with_name(final.name + ".building").absolute()


def _replaced_path(final: Path) -> Path:
    return final.with_name(final.name + ".replaced")


def remove(path: Path) -> None:
    """Remove a directory with all it holds, if it is there; of a link to one, only the link."""
    if path.is_symlink():
        path.unlink()
    elif path.exists():
        shutil.rmtree(path)


def refuse_overwriting(final: Path, force: bool) -> None:
    """Raise if there is something at the path of the future index that must not be replaced."""
    _work_path(final)  # which says if this is no name
    if not os.path.lexists(final):
        return
    if not force:
        raise IndexExists(f"{final} exists already; choose another name, or replace it with force=True")
    try:
        read_manifest(final)
    except IndexProblem as error:
        raise IndexExists(f"{final} exists and is not a sound index, so it is not replaced: {error}") from error
    with keep_writers_out(final):
        pass  # better refused now than after a long build


@contextlib.contextmanager
def _working_directory(final: Path, force: bool) -> Iterator[None]:
    """The directory beside the index, locked, once it is known that the index may be written.

    The lock goes with its process, however that ends.
    """
    work = _work_path(final)
    is_new = not work.exists()
    work.mkdir(parents=True, exist_ok=True)
    with contextlib.ExitStack() as stack:
        stream = stack.enter_context((work / "lock").open("w"))
        if not lock_file(stream.fileno()):
            raise IndexExists(f"another process is building in {work}; wait for it, or choose another name")
        try:
            _bring_back(final)
            refuse_overwriting(final, force)
        except BaseException:
            stack.close()
            if is_new:
                remove(work)
            raise
        yield


def _bring_back(final: Path) -> None:
    """If a forced build ended between its two renames, give the old index its name again."""
    if not os.path.lexists(final) and os.path.lexists(_replaced_path(final)):
        _replaced_path(final).rename(final)


def _resume_or_clear(work: Path, plan: dict[str, Any]) -> None:
    """Keep what an interrupted build of the same plan left, and remove what another one did."""
    path = work / "plan.json"
    if path.exists() and (changed := _plan_difference(path, plan)):
        logger.warning("%s holds an unfinished build with other %s: starting anew", work.name, changed)
        path.unlink()
    if path.exists() and not (work / "index").exists():
        path.unlink()  # that build got as far as its name: lists and graph went along
    if not path.exists():
        for stage in tasks.STAGES:
            remove(work / stage)
        files.write_json(path, plan)
    (work / "index").mkdir(exist_ok=True)
    for left_behind in work.glob(f"**/.*{UNFINISHED}"):
        left_behind.unlink(missing_ok=True)


def _plan_difference(path: Path, plan: dict[str, Any]) -> str:
    """Which parts of a plan differ from the plan in a file, in words; empty if none."""
    try:
        old = json.loads(path.read_bytes())
    except ValueError:
        old = None
    if not isinstance(old, dict) or not isinstance(old.get("params"), dict):
        return "content"
    parts = [key for key in plan if key != "params" and old.get(key) != plan[key]]
    before, after = old["params"], plan["params"]
    parts += [f"{key} ({before.get(key)}, now {after[key]})" for key in after if before.get(key) != after[key]]
    return ", ".join(parts)


@contextlib.contextmanager
def _own(work: Path) -> Iterator[None]:
    """Make a working directory that of this build alone, even if it fails: no task on a cluster may outlive it.

    Futures that are cancelled are only forgotten; what runs on a worker goes on. So a build waits for it at its end,
    as the next one does if this one is killed, also if that one runs on this machine alone (see `cluster`).
    """
    write_token(work)
    try:
        yield
    except BaseException:
        with contextlib.suppress(OSError):  # what went wrong before matters more
            write_token(work)
        raise


def write_token(work: Path) -> None:
    """Write a new token of who owns the directory, once no task with an older one runs."""
    with (work / "run").open("a+") as stream:
        if not lock_file(stream.fileno()):
            logger.warning("waiting for tasks on other machines that still run")
            lock_file(stream.fileno(), wait=True)
        # In place, not by a rename: the lock belongs to this file.
        stream.truncate(0)
        stream.write(uuid.uuid4().hex)
        stream.flush()


def _publish(work: Path, final: Path, force: bool) -> None:
    """Give the finished directory its name; an index that it replaces stays until that is done."""
    refuse_overwriting(final, force)  # again: a build takes long, and something may have appeared there
    replaced = _replaced_path(final)
    with contextlib.ExitStack() as stack:
        if os.path.lexists(final):
            # Else a writer that began before would write its manifest into the new index.
            stack.enter_context(keep_writers_out(final))
            remove(replaced)
            final.rename(replaced)
        try:
            (work / "index").rename(final)
        except BaseException:
            _bring_back(final)
            raise
        sync_directory(final.parent)
        # The index is whole: what cannot be removed now is no reason to fail, and the next build removes it.
        with contextlib.suppress(OSError):
            remove(replaced)
            (work / "plan.json").unlink()  # first, so that nobody resumes a build that is half removed
            shutil.rmtree(work)


# --- the stages


class Stages:
    """The stages of one build: where it works, who works, and what has been done."""

    def __init__(self, work: Path, n: int, pool: Executor, progress: Progress | None) -> None:
        self.work, self.n, self.pool = work, n, pool
        self.index = work / "index"  # the directory that becomes the index
        self.progress = progress or (lambda _stage, _done, _total: None)
        self.resumed = 0
        self.seconds: dict[str, float] = {}

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
        rows, starts = tasks.block_rows(self.n), tasks.block_starts(self.n)
        blocks = {tasks.block_path(self.work, stage, a): (a, min(a + rows, self.n)) for a in starts}
        self._run(stage, task, [blocks], lambda start, stop: stop - start)

    def is_done(self, stage: str) -> bool:
        """Whether all blocks of a stage are there."""
        return all(tasks.block_path(self.work, stage, start).exists() for start in tasks.block_starts(self.n))

    def run_singly(self, stage: str, task: Callable[[str, Any], None], *rounds: Mapping[Path, Any]) -> None:
        """Run a task with each argument whose result, its last file, is not there; one round after another."""
        self._run(stage, task, [{path: (of,) for path, of in results.items()} for results in rounds], lambda _: 1)

    def _run(
        self,
        stage: str,
        task: Callable[..., None],
        rounds: Sequence[Mapping[Path, tuple[Any, ...]]],
        size: Callable[..., int],
    ) -> None:
        """Run a task with all arguments of each round whose result is not there; `size` is their share of the work."""
        with self.stage(stage):
            (self.work / stage).mkdir(exist_ok=True)
            done, total = 0, sum(size(*arguments) for results in rounds for arguments in results.values())
            for results in rounds:
                pending: dict[Future[None], int] = {}
                with _none_left_running(pending):
                    for path, arguments in results.items():
                        if path.exists():
                            done += size(*arguments)
                            self.resumed += stage in _DIVIDED
                        else:
                            pending[self.pool.submit(task, str(self.work), *arguments)] = size(*arguments)
                    if done:
                        self.progress(stage, self.n * done // total, self.n)
                    for future in as_completed(pending):
                        future.result()
                        done += pending[future]
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


def _write_inputs(
    stages: Stages, features: NDArray[Any], params: Params, owners: NDArray[np.int32] | None, items: _Items | None
) -> None:
    """The unit rows, the whitening, owners and names: everything of the index that needs no graph."""
    with stages.stage("features"):
        index = stages.index
        if (index / "features.npy").exists():
            return
        for left_behind in index.iterdir():
            left_behind.unlink()  # also what workers of a killed build with another plan wrote at last
        dimensions, whitening = params.whiten or features.shape[1], None
        if params.whiten is not None:
            whitening = learn_whitening(features, "features", params.whiten, params.whiten_power)
            write_array(index / "whitening_mean.npy", whitening.mean)
            write_array(index / "whitening_projection.npy", whitening.projection)
        if owners is not None:
            write_array(index / "owners.npy", owners)
        if items is not None:
            files.write_bytes(index / ITEMS_FILE, [items[0]])
            write_array(index / "item_offsets.npy", items[1])
        # Last: this is the file that says that the stage is done.
        unit = unit_blocks(features, "features", whitening)
        files.write_blocks(index / "features.npy", np.float32, (len(features), dimensions), unit)


def run_stages(stages: Stages, params: Params) -> None:
    """Everything from the unit rows in index/features.npy to the columns.

    Where lists/ holds the k-NN lists already, they are not searched.
    """
    work, n = stages.work, stages.n
    lists, graph = work / "lists" / "sims.npy", work / "graph" / "summary.json"
    given = lists.exists() or graph.exists()
    if not given:
        refuse_cells(params)
    if seeds := tasks.seeds_results(work, params):
        stages.run_singly("seeds", tasks.seeds_task, seeds)
    if searches := tasks.search_results(work, params, lists_given=given):
        stages.run_singly("search", tasks.search_task, searches)
    if not given or stages.is_done("neighbors"):  # what an interrupted build has found is only counted
        if params.graph_search == "exact" and not stages.is_done("neighbors"):
            stages.run_singly("pairs", tasks.pair_task, *tasks.pairs_of_shards(work, n))
        stages.run_blocks("neighbors", tasks.neighbors_task)
        remove(work / "pairs")  # larger than all that comes after
    if not graph.exists():
        stages.run_singly("lists", tasks.lists_task, {lists: n})
        stages.run_blocks("edges", tasks.edges_task)
    stages.run_singly("graph", tasks.graph_task, {graph: n})
    if tasks.has_districts(work):
        stages.run_singly("districts", tasks.districts_task, {tasks.districts_path(work): n})
    for name in LIST_FILES if params.with_lists else ():
        found = work / "lists" / name.removeprefix("list_")
        if found.exists():  # else an earlier, interrupted build has moved it
            found.replace(stages.index / name)
    remove(work / "lists")
    remove(work / "edges")
    if tasks.has_drafts(params):
        if not tasks.supports_path(work).exists():
            stages.run_blocks("drafts", tasks.drafts_task)
        stages.run_singly("supports", tasks.supports_task, {tasks.supports_path(work): n})
        remove(work / "drafts")
    stages.run_blocks("columns", tasks.columns_task)


def assemble(
    stages: Stages, params: Params, images: int, pictures: dict[str, Any] | None, next_id: int | None = None
) -> Manifest:
    """Join the blocks of columns, and describe the whole in a manifest, which is yet to be written."""
    with stages.stage("index"):
        index, n = stages.index, stages.n
        for left_behind in index.glob(f".*{UNFINISHED}"):
            left_behind.unlink()  # by a worker that was killed, and whose task another one did
        joined = tasks.join_columns(stages.work, n)
        if tasks.has_districts(stages.work):
            tasks.place_in_districts(stages.work, n)
        if params.pool == "sum" and (index / "owners.npy").exists():
            tasks.pool_images(stages.work, images)
        dimensions = map_array(index / "features.npy").array.shape[1]
        whole = Manifest(
            created_by=f"suffuse {__version__}",
            params=params,
            counts={"elements": n, "images": images, "dimensions": dimensions, **joined._asdict()},
            graph=json.loads((stages.work / "graph" / "summary.json").read_bytes()),
            files=describe_files(index),
            pictures=pictures,
            next_id=images if next_id is None else next_id,
        )
        sync_directory(index)
    return whole
