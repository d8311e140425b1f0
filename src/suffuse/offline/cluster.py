"""Build on a Dask cluster: a client of it, and tasks that run only where and while they should.

A task (`tasks`) is a function of file paths, so a cluster needs nothing but a folder that all its machines see. What
a cluster adds are tasks that outlive their build: the process that builds may be killed while workers go on. Such a
task must not write into the next build, which may have another plan. So a working directory has a file `run` with the
token of the build that owns it:

    a task    runs under a shared lock of that file, and only if it holds the token that the task was given
    a build   writes its token under the exclusive lock: it waits until every task before it has ended, and a task that
              starts later finds another token

The same look tells a worker that does not see the folder, or sees another one at the same path.

distributed is imported where it is used: a build on one machine does not need it.
"""

import contextlib
import importlib
import logging
import os
import re
import socket
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Executor, Future
from pathlib import Path
from typing import TYPE_CHECKING, Any

from suffuse import __version__
from suffuse.core.blas import cores
from suffuse.errors import BuildInterrupted, InvalidParams, name_extra
from suffuse.store.files import lock_file

if TYPE_CHECKING:
    from distributed import Client
    from distributed.cfexecutor import ClientExecutor

logger = logging.getLogger(__name__)

# How often the scheduler gives a task that raised an error to a worker again: a network file system has bad moments.
# A task whose worker died is given to another one in any case, up to the scheduler's own `allowed-failures`.
RETRIES = 2

# Long enough for any network, short enough to wait for.
_SECONDS_TO_CONNECT = 5

# What takes a worker longest to import.
_TASKS = "suffuse.offline.tasks"

# Whether new workers are forked from a process that has imported all they need. macOS's libraries do not bear it.
_FORKS = sys.platform == "linux"

# For the process that workers are forked from: one that has threads cannot be forked. Dask tells each new worker the
# same, and to give freed memory back at once (MALLOC_TRIM_THRESHOLD_), which is left out here: every block of products
# would take its memory from the system anew.
_ONE_THREAD = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}

_LOCAL = re.compile(r"local(?::([1-9][0-9]*))?")
_ADDRESS = re.compile(r"(?!local:)(?:[a-z]+://)?[^\s/]+:[0-9]+")


@contextlib.contextmanager
def client_of(where: "str | Client") -> Iterator["Client"]:
    """A client that `build` takes as its executor.

    where  the address of a running scheduler; `local` or `local:N` for N new processes on this machine, as many as
           there are cores unless N is given, which end with the context; or a client, which is left open
    """
    local = _LOCAL.fullmatch(where) if isinstance(where, str) else None
    if local:
        _begin_to_import()  # before this process does
    distributed = _load_distributed()
    if not isinstance(where, str):
        yield where
    elif local:
        with _quiet(), _local_cluster(int(local[1] or cores())) as client:
            yield client
    elif _ADDRESS.fullmatch(where):
        try:
            client = distributed.Client(where, timeout=_SECONDS_TO_CONNECT, set_as_default=False)
        except (OSError, ValueError) as error:
            raise BuildInterrupted(
                f"no Dask scheduler answers at {where} ({error}); start one with: dask scheduler"
            ) from error
        with client:
            yield client
    else:
        raise InvalidParams(f"a cluster is tcp://HOST:PORT of a Dask scheduler, local or local:N, got {where!r}")


def _load_distributed() -> Any:
    with name_extra("distributed", "dask"):
        import distributed
    return distributed


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Let the scheduler and the workers of a local cluster log no news, in whatever way this process logs."""
    theirs = logging.getLogger("distributed")
    before = theirs.level
    theirs.setLevel(max(before, logging.WARNING))
    try:
        yield
    finally:
        theirs.setLevel(before)


@contextlib.contextmanager
def _local_cluster(workers: int) -> Iterator["Client"]:
    import dask

    distributed = _load_distributed()
    # A build needs it in this process, too, which else would only wait until workers are there.
    threading.Thread(target=importlib.import_module, args=[_TASKS]).start()
    with (
        dask.config.set(
            {
                # Not a fork of this process: one of a process that has used OpenMP hangs.
                "distributed.worker.multiprocessing-method": "forkserver" if _FORKS else "spawn",
                # Dask looks at its event loops every 20 ms, into a worker's stack every 10 ms and at the system twice a
                # second. Together this took a twelfth of a core while nothing else was done; its pages show enough so.
                "distributed.admin.tick.interval": "500ms",
                "distributed.worker.profile.interval": "100ms",
                "distributed.admin.system-monitor.interval": "2s",
            }
        ),
        distributed.LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            dashboard_address="127.0.0.1:0",
            # A limit would count pages of mapped files, and end workers that hold nothing else.
            memory_limit=0,
            scheduler_kwargs={"dashboard": False},  # it comes when it is asked for
        ) as cluster,
        distributed.Client(cluster, set_as_default=False) as client,
    ):
        _dashboard_when_asked_for(cluster.scheduler)
        yield client


def _dashboard_when_asked_for(scheduler: Any) -> None:
    """Add the dashboard to a scheduler when its first page is asked for: its import takes a second of a core."""
    application = scheduler.http_application
    find_handler = application.find_handler

    def find_or_add(request: Any, **options: Any) -> Any:
        application.find_handler = find_handler
        with contextlib.suppress(ImportError):  # a Dask without bokeh has none
            pages: Any = importlib.import_module("distributed.dashboard.scheduler")
            pages.connect(application, scheduler.http_server, scheduler)
        return find_handler(request, **options)

    application.find_handler = find_or_add


def _begin_to_import() -> None:
    """Start the process that workers will be forked from: it imports once, meanwhile, what takes each of them seconds.

    It ends with this process, and waits in between: the next local cluster starts in no time.
    """
    if not _FORKS:
        return
    from multiprocessing import forkserver

    before = {name: os.environ.get(name) for name in _ONE_THREAD}
    os.environ.update(_ONE_THREAD)
    try:
        forkserver.set_forkserver_preload(["distributed", _TASKS])
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def workers_of(executor: "Executor | Client", work: Path) -> contextlib.AbstractContextManager[Executor]:
    """Who runs the tasks of a build in that directory: a Dask client or its executor with care, any other as it is."""
    given: Any = executor
    if "distributed" in sys.modules:  # else nobody can have a client
        from distributed.cfexecutor import ClientExecutor

        if isinstance(given, _load_distributed().Client):
            given = given.get_executor()
        if isinstance(given, ClientExecutor):
            _check_versions(given)
            return _tasks_on(given, work)
    return contextlib.nullcontext(given)


def _check_versions(executor: Any) -> None:
    """Raise if the scheduler, or a worker that the executor may use, has no Suffuse, or another one.

    A worker without it would not refuse a task but end, and the build would wait for another worker forever.
    """

    def look(dask_worker: Any) -> tuple[str | None, set[Any]]:
        """The version there, and all that a worker is called by; Dask gives the scheduler by this name, too."""
        # Inside, so that it travels as it is: nothing of Suffuse may be there.
        address = dask_worker.address
        known_as = {getattr(dask_worker, "name", None), address, address.split("://")[-1], dask_worker.ip}
        try:
            import suffuse
        except ImportError:
            return None, known_as
        return suffuse.__version__, known_as

    inside = vars(executor)  # distributed has no other way to ask an executor whose it is
    client, options = inside["_client"], inside["_kwargs"]
    found = client.run(look)
    if options.get("workers") and not options.get("allow_other_workers"):
        chosen = options["workers"]
        wanted = {chosen} if isinstance(chosen, str | int) else set(chosen)
        found = {worker: seen for worker, seen in found.items() if wanted & seen[1]}
    if not found:
        logger.warning("the scheduler at %s has no workers yet; the build waits for one", client.scheduler.address)
    for where, (version, _) in {"the scheduler": client.run_on_scheduler(look), **found}.items():
        if version != __version__:
            raise BuildInterrupted(_other_version(where, version))


def _other_version(where: str, version: str | None, expected: str = __version__) -> str:
    return (
        f"{where} has {f'suffuse {version}' if version else 'no suffuse'}, the build has {expected};"
        " install the same version for the scheduler and all workers"
    )


@contextlib.contextmanager
def _tasks_on(executor: "ClientExecutor", work: Path) -> Iterator[Executor]:
    from distributed import KilledWorker

    try:
        yield _OnCluster(executor, (work / "run").read_text())
    except KilledWorker as error:
        raise BuildInterrupted(
            f"every worker that tried the task {error.task} died, {error.allowed_failures + 1} in all, the last at"
            f" {error.last_worker.address}; most often memory is short, and fewer workers on a machine need less;"
            " the same build goes on with what is finished"
        ) from error
    except CancelledError as error:
        raise BuildInterrupted(
            "the Dask scheduler ended or cannot be reached any more; the same build goes on with what is finished"
        ) from error
    except ImportError as error:
        raise BuildInterrupted(
            f"a worker cannot load the tasks ({error}); install suffuse {__version__} with all it needs on all workers"
        ) from error


class _OnCluster(Executor):
    """Submits tasks with what a worker needs to know to refuse them."""

    def __init__(self, executor: "ClientExecutor", token: str) -> None:
        self._executor, self._token = executor, token

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """A task that a worker runs if it can: its first argument is the working directory."""
        # A key of its own, as pure=False gives: else a task of the next build could be taken for this one. Its first
        # word is what the dashboard shows.
        key = f"{fn.__name__.removesuffix('_task')}-{uuid.uuid4().hex}"
        submit: Callable[..., Future[Any]] = self._executor.submit
        return submit(run_task, self._token, __version__, fn, *args, **kwargs, key=key, retries=RETRIES)


def run_task(token: str, version: str, task: Callable[..., None], work: str, *args: Any) -> None:
    """On a worker: run a task, if this is the build that it belongs to."""
    if version != __version__:
        raise BuildInterrupted(_other_version(f"the worker at {socket.gethostname()}", __version__, version))
    with _of_this_build(Path(work), token):
        from suffuse.core.blas import load_faiss  # heavy, and the process that asks for a cluster may not need it

        # Dask allows a process one thread. A task that shares its machine takes one anyway; one that uses what there is
        # is alone in its stage, and all other workers wait for it.
        load_faiss().omp_set_num_threads(cores())
        task(work, *args)


@contextlib.contextmanager
def _of_this_build(work: Path, token: str) -> Iterator[None]:
    """Keep the next build waiting while a task runs; raise if the directory is not that of the task's build."""
    try:
        stream = (work / "run").open()
    except OSError as error:
        raise BuildInterrupted(_not_shared(work, f"cannot open it: {error.strerror}")) from error
    with stream:
        lock_file(stream.fileno(), shared=True, wait=True)
        if stream.read() != token:
            raise BuildInterrupted(_not_shared(work, "has another build there"))
        yield


def _not_shared(work: Path, found: str) -> str:
    return (
        f"the worker at {socket.gethostname()} does not see the files of this build: it looked for {work} and {found};"
        " all workers need the same folder, at the same path, on a file system that they share"
    )
