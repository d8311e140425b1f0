"""What the bars are measured on: Oxford5k, fashion70k and the synthetic set, each made once and shared by all bars."""

import hashlib
import json
import time
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

import suffuse
from benchmarks import references, worker
from suffuse.core.blas import cores
from suffuse.core.columns import WALK_STEPS, group_size
from suffuse.core.features import apply_whitening, learn_whitening, unit_rows
from suffuse.core.graph import Graph, affinity, order_along, reorder, transition
from suffuse.core.kernels.supports import walk_supports
from suffuse.core.neighbors import Features, Neighbors
from suffuse.core.params import Params
from suffuse.research.datasets import read_folder
from suffuse.research.synthetic import manifold
from suffuse.store.files import write_array, write_json

# Vectors of the synthetic set that are kept out of the index, to ask with.
QUERIES = 500
SEEDS = 10
DIMENSIONS = 512
# What the bars name is fixed here; the rest (how columns are stored, when they are solved) is the product's to choose.
PARAMS = Params(k=50, support="graph", truncation=1000, keep=500)

# Files of an index that are not its columns; all others are, whatever form they are stored in.
_NOT_COLUMNS = ("features", "whitening", "item", "owners", "manifest", "hnsw", "seed", "graph")


class Subject(NamedTuple):
    """Unit rows with their graph."""

    name: str
    features: Features
    neighbors: Neighbors
    alpha_s: Graph
    along: Graph  # the same, its nodes numbered as a build numbers them


@dataclass(frozen=True, eq=False)
class Bench:
    """The choices of a run, and what its bars share."""

    n: int
    data: Path
    output: Path
    params: Params = PARAMS

    @property
    def cache(self) -> Path:
        """Where features, k-NN lists and indexes are kept from run to run."""
        (self.output / "cache").mkdir(parents=True, exist_ok=True)
        return self.output / "cache"

    @cached_property
    def oxford(self) -> Subject | None:
        """Oxford5k whitened to 512 dimensions; None where the data is not there."""
        folder = self.data / "oxford5k"
        if not folder.is_dir():
            return None
        raw = read_folder(folder).features
        whitening = learn_whitening(raw, "Oxford5k", DIMENSIONS, 1.0)
        features = apply_whitening(unit_rows(raw, "Oxford5k"), whitening, "Oxford5k")
        return subject("Oxford5k", features, references.knn_graph(features, self.params.k, cores()), self.params)

    @cached_property
    def features_file(self) -> Path:
        """The synthetic set as a file, and beside it the queries."""
        path = self._synthetic("features.npy")
        if not (path.exists() and self.queries_file.exists()):
            made = manifold(self.n + QUERIES, DIMENSIONS, rng=np.random.default_rng(0)).features
            write_array(self.queries_file, made[self.n :])
            write_array(path, made[: self.n])
        return path

    @property
    def queries_file(self) -> Path:
        """Vectors of the same kind that are not in the set."""
        return self._synthetic("queries.npy")

    @cached_property
    def features(self) -> Features:
        """The synthetic set in memory."""
        return np.asarray(np.load(self.features_file))

    @cached_property
    def queries(self) -> Features:
        """What the synthetic set is asked with."""
        _ = self.features_file
        return np.asarray(np.load(self.queries_file))

    @cached_property
    def knn_time(self) -> dict[str, float]:
        """CPU and wall seconds of the k-NN graph of the synthetic set by faiss alone, measured in this run."""
        features, k = self.features, self.params.k
        references.knn_graph(features[:256], k, cores())
        cpu, wall = time.process_time(), time.perf_counter()
        found = references.knn_graph(features, k, cores())
        taken = {"cpu": time.process_time() - cpu, "wall": time.perf_counter() - wall, "threads": cores()}
        write_array(self._synthetic("ids.npy"), found.ids)
        write_array(self._synthetic("sims.npy"), found.sims)
        return taken

    @cached_property
    def synthetic(self) -> Subject:
        """The synthetic set with its graph; the k-NN lists come from an earlier run if there was one."""
        ids, sims = self._synthetic("ids.npy"), self._synthetic("sims.npy")
        if not (ids.exists() and sims.exists()):
            _ = self.knn_time
        return subject(f"synthetic {self.n:,}", self.features, Neighbors(np.load(ids), np.load(sims)), self.params)

    @cached_property
    def seeds(self) -> Neighbors:
        """The seeds of the queries in the synthetic set, exact."""
        sims, ids = references.knn_batch(self.queries, self.features, SEEDS)
        return Neighbors(ids.astype(np.int32), sims)

    def built(
        self, params: Params | None = None, features: Path | None = None, *, anew: bool = False
    ) -> tuple[Path, dict[str, Any]]:
        """An index, built in a process of its own, and what that took; kept until parameters or code change."""
        params, file = params or self.params, features or self.features_file
        words = json.dumps([params.to_dict(), str(file.absolute()), file.stat().st_size], sort_keys=True)
        path = self.cache / f"{file.stem}-{hashlib.sha256(words.encode()).hexdigest()[:12]}.index"
        report, code = path.with_suffix(".json"), code_state()
        if not anew and path.exists() and report.exists():
            kept: dict[str, Any] = json.loads(report.read_bytes())
            if kept["code"] == code:
                return path, kept
        measured = {**worker.run("build", file, path, json.dumps(params.to_dict())), "code": code}
        write_json(report, measured)
        return path, measured

    def _synthetic(self, name: str) -> Path:
        # The generator is part of the name: what it made before a change is not what it makes now.
        state = hashlib.sha256(Path(suffuse.research.synthetic.__file__).read_bytes()).hexdigest()[:8]
        return self.cache / f"synthetic-{state}-{self.n}-{name}"


def subject(name: str, features: Features, neighbors: Neighbors, params: Params) -> Subject:
    """Unit rows (n, d) and their k-NN lists (n, k) with alpha S, as it is and numbered along the graph."""
    s = transition(affinity(neighbors, params.gamma))
    alpha_s = s._replace(weights=params.alpha * s.weights)
    return Subject(name, features, neighbors, alpha_s, reorder(alpha_s, order_along(alpha_s, group_size(params))))


class Sample(NamedTuple):
    """Nodes in a row of a graph that is numbered along itself, and the supports that their groups share."""

    nodes: range
    supports: NDArray[np.uint32]  # (groups, L)
    sizes: NDArray[np.int64]  # (groups,), how many entries of a support count

    def of_nodes(self) -> list[tuple[int, NDArray[np.uint32]]]:
        """Each node with its support, itself first."""
        group = -(-len(self.nodes) // len(self.sizes))
        pairs = []
        for node in self.nodes:
            row = (node - self.nodes.start) // group
            support = self.supports[row, : self.sizes[row]]
            pairs.append((node, np.concatenate([[np.uint32(node)], support[support != node]])))
        return pairs


def samples(alpha_s: Graph, truncation: int, count: int, params: Params, pieces: int = 5) -> list[Sample]:
    """About `count` nodes with their supports, from `pieces` places of the graph: whole groups, as in a build."""
    n, group = len(alpha_s.indptr) - 1, group_size(params)
    each, widest = max(count // pieces // group, 1) * group, min(truncation, n)
    found = []
    for start in range(0, n - each + 1, max(n // pieces // group, 1) * group):
        room, sizes = np.empty((each // group, widest), np.uint32), np.empty(each // group, np.int64)
        nodes = range(start, start + each)
        walk_supports(nodes.start, nodes.stop, group, *alpha_s, WALK_STEPS, room, sizes)
        found.append(Sample(nodes, room, sizes))
    return found[:pieces]


def column_bytes(files: dict[str, int]) -> int:
    """Bytes of the columns of an index, by its files."""
    return sum(size for name, size in files.items() if not name.startswith(_NOT_COLUMNS))


def code_state() -> str:
    """All modules of the package, hashed."""
    sources = sorted(Path(suffuse.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()
