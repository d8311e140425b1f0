"""Which tests share a process when several run at once (`pytest -n auto`), and which of them start first."""

import fnmatch
import os

from xdist.scheduler import LoadScopeScheduling

# Files that share something expensive, or whose processes must not compete with each other, run in one process: they
# are a group. Every other file is a group of its own. Paths are those of node ids.
GROUPS = {
    "tests/server/test_page_*.py": "browser",
    "tests/offline/test_cluster*.py": "cluster",
    "tests/postgres/*.py": "database",
    "tests/server/test_database*.py": "database",
}
# The longest groups, longest first, so that all workers end at about the same time. `pytest --durations=0` shows them.
LONGEST = [
    "cluster",
    "browser",
    "tests/index/test_living_disk.py",
    "tests/index/test_living_kill.py",
    "tests/offline/test_crash_processes.py",
    "tests/test_fuzz_cases.py",
    "tests/index/test_living_readers.py",
    "tests/server/test_fuzz.py",
    "tests/offline/test_crash_moments.py",
    "tests/server/test_process.py",
    "database",
]
MOST_WORKERS = 8


def group_of(nodeid):
    path = nodeid.split("::")[0]
    return next((group for files, group in GROUPS.items() if fnmatch.fnmatch(path, files)), path)


class GroupScheduling(LoadScopeScheduling):
    """Keeps a group in one process, and starts groups in the order in which they were collected.

    xdist's own `--dist loadgroup` does not do with pytest 9.2: the group that it appends to a node id is lost.
    """

    def __init__(self, config, log=None):
        config.option.loadscopereorder = False
        super().__init__(config, log)

    def _split_scope(self, nodeid):
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config, log):
    return GroupScheduling(config, log)


def pytest_collection_modifyitems(items):
    ranks = {group: rank for rank, group in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(group_of(item.nodeid), len(ranks)))


def pytest_xdist_auto_num_workers():
    """A worker for each core that this process may use; xdist itself takes two threads of a core for one."""
    usable = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return min(len(usable), MOST_WORKERS)
