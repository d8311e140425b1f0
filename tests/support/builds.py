"""Builds to compare: their input, their bytes, what lies beside them, and whether a broken one resumes."""

import json

import numpy as np
from tests.support.data import clusters

from suffuse.core.params import Params
from suffuse.index.snapshot import verify
from suffuse.offline.build import build
from suffuse.offline.tasks import STAGES, block_starts

N, D = 600, 16
PARAMS = Params(k=10, truncation=60, keep=30)
SUPPORTS = ("graph", "features")
# Those of a build without approximate search, whose columns do not share supports.
EXACT_STAGES = tuple(stage for stage in STAGES if stage not in ("seeds", "search", "drafts", "supports"))


def with_support(support, **others):
    return Params(**PARAMS.to_dict() | {"support": support} | others)


def directory_bytes(path):
    """Every file below a directory, by its name from there."""
    return {str(file.relative_to(path)): file.read_bytes() for file in sorted(path.rglob("*")) if file.is_file()}


def names_beside(path):
    return sorted(entry.name for entry in path.parent.iterdir())


def finished_blocks(path):
    """Blocks that are there; their number only grows."""
    work = path.with_name(path.name + ".building")
    return len(list(work.glob("neighbors/*.npz"))) + len(list(work.glob("columns/*.npz")))


def finished_tasks(path):
    """Tasks whose last file is there: blocks; and pairs of shards, edges and drafts as long as they are needed."""
    work = path.with_name(path.name + ".building")
    pairs = [file.stem.split("-") for file in work.glob("pairs/*.npy")]
    later = [a >= b for a, b in pairs]  # of the two files of a pair, the one of the later shard comes last
    n = json.loads((work / "plan.json").read_bytes())["features"]["shape"][0] if (work / "plan.json").exists() else 0
    if len(list(work.glob("neighbors/*.npz"))) == len(block_starts(n)):
        later = []
    edges = [] if (work / "graph" / "summary.json").exists() else list(work.glob("edges/*.npz"))
    drafts = [] if (work / "supports" / "codes.npy").exists() else list(work.glob("drafts/*.npz"))
    return sum(later) + len(edges) + len(drafts) + finished_blocks(path)


class Given:
    """Features in memory and in a file, and the bytes of an undisturbed build of them."""

    params = Params(k=10, truncation=100, keep=50)

    def __init__(self, directory, n, **others):
        self.params = Params(**self.params.to_dict() | others)
        self.features = clusters(np.random.default_rng(5), n, 8, count=20)
        self.file = directory / "features.npy"
        np.save(self.file, self.features)
        self.build(directory / "expected.index")
        self.expected = directory_bytes(directory / "expected.index")

    def build(self, path, **others):
        return build(self.features, path, self.params, **others)


def assert_resumes(given, path):
    """The next build keeps what is done, and gives what an undisturbed one gives."""
    finished = finished_tasks(path)
    summary = given.build(path)
    assert summary.resumed == finished
    assert directory_bytes(path) == given.expected
    assert names_beside(path) == [path.name]
    verify(path)
    return finished
