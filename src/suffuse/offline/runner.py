"""The stages of a build after its inputs are there: neighbours, graph, columns, and the finished directory."""

import contextlib
import json
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import BrokenExecutor, Executor, Future, as_completed, wait
from pathlib import Path
from typing import Any

from suffuse import __version__
from suffuse.core.params import Params
from suffuse.offline.column_tasks import (
    columns_task,
    draft_path,
    draft_task,
    drafts_task,
    has_drafts,
    image_task,
    join_columns,
)
from suffuse.offline.tasks import (
    block_path,
    block_rows,
    block_starts,
    edges_task,
    graph_task,
    lists_task,
    neighbors_task,
    pair_task,
    pairs_of_shards,
    search_results,
    search_task,
    seeds_results,
    seeds_task,
)
from suffuse.offline.workplace import remove
from suffuse.store.files import UNFINISHED, map_array, sync_directory
from suffuse.store.manifest import LIST_FILES, Manifest, describe_files

# Called with the stage's name, how many of its rows are done, and how many there are.
Progress = Callable[[str, int, int], None]

# Where seeds are searched approximately, "seeds" comes after "features". Where the graph's neighbours are, "search"
# comes before "neighbors" in place of "pairs". Where columns share supports, "drafts" and "draft" come before them.
STAGES = ("features", "pairs", "neighbors", "lists", "edges", "graph", "columns", "index")


def _silent(_stage: str, _done: int, _total: int) -> None:
    """The progress of a build that nobody watches."""


class Stages:
    """The stages of one build: where it works, who works, and what has been done."""

    def __init__(self, work: Path, n: int, pool: Executor, progress: Progress | None) -> None:
        self.work, self.n, self.pool, self.progress = work, n, pool, progress or _silent
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


def run_stages(build: Stages, params: Params) -> None:
    """Everything from the unit rows in index/features.npy to the columns.

    Where lists/ holds the k-NN lists already, they are not searched.
    """
    work, n = build.work, build.n
    if seeds := seeds_results(work, params):
        build.run_singly("seeds", seeds_task, [seeds])
    if searches := search_results(work, params):
        build.run_singly("search", search_task, [searches])
    lists = {work / "lists" / "sims.npy": n}
    graph = {work / "graph" / "summary.json": n}
    given = any(path.exists() for path in (*lists, *graph))
    if not given or build.is_done("neighbors"):  # what an interrupted build has found is only counted
        _find_neighbors(build, params)
    if not all(path.exists() for path in graph):
        build.run_singly("lists", lists_task, [lists])
        build.run_blocks("edges", edges_task)
    build.run_singly("graph", graph_task, [graph])
    for name in LIST_FILES if params.with_lists else ():
        found = work / "lists" / name.removeprefix("list_")
        if found.exists():  # else an earlier, interrupted build has moved it
            found.replace(build.index / name)
    remove(work / "lists")
    remove(work / "edges")
    if has_drafts(params):
        if not draft_path(work).exists():
            build.run_blocks("drafts", drafts_task)
        build.run_singly("draft", draft_task, [{draft_path(work): n}])
        remove(work / "drafts")
    build.run_blocks("columns", columns_task)


def _find_neighbors(build: Stages, params: Params) -> None:
    if params.graph_search == "exact" and not build.is_done("neighbors"):
        build.run_singly("pairs", pair_task, pairs_of_shards(build.work, build.n))
    build.run_blocks("neighbors", neighbors_task)
    remove(build.work / "pairs")  # larger than all that comes after


def assemble(
    build: Stages,
    params: Params,
    images: int,
    pictures: dict[str, Any] | None,
    next_id: int | None = None,
) -> Manifest:
    """Join the blocks of columns, and describe the whole in a manifest, which is yet to be written."""
    with build.stage("index"):
        index, n = build.index, build.n
        for left_behind in index.glob(f".*{UNFINISHED}"):
            left_behind.unlink()  # by a worker that was killed, and whose task another one did
        joined = join_columns(build.work, n)
        if params.pool == "sum" and (index / "owners.npy").exists():
            image_task(str(build.work), images)
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
            graph=json.loads((build.work / "graph" / "summary.json").read_bytes()),
            files=describe_files(index),
            pictures=pictures,
            next_id=images if next_id is None else next_id,
        )
        sync_directory(index)
    return manifest
