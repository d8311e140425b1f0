"""Every ranking method by its name, prepared for a data set: what a comparison runs.

A method is prepared once (its offline part, timed) and then ranks queries. All take raw queries, so that whitening
and scaling are in the time of each.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from suffuse.core.graph import Graph, affinity, transition
from suffuse.core.neighbors import Features, Neighbors, nearest_to_rows
from suffuse.core.params import Params
from suffuse.core.regions import Regions
from suffuse.errors import InvalidParams
from suffuse.index.index import Index, build
from suffuse.index.search import Hits, Pooling
from suffuse.research import baselines
from suffuse.research.datasets import Dataset

# Rows whose neighbours are searched at a time.
_BLOCK_ROWS = 2048
# Where `sql` puts its index: beside a user's own, which an evaluation must not replace.
SQL_SCHEMA = "suffuse_evaluate"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a comparison is run with, apart from the data."""

    params: Params = field(default_factory=Params)  # of the global index; the support is each method's own
    regional_params: Params = field(default_factory=Params)  # of the regional index
    seeds: int = 10  # nearest elements of a query vector that diffusion starts from
    regional_seeds: int = 3  # the same, of each region of a query
    refine: int = 500  # candidates that `refined` looks at again
    pooling: Pooling = "sum"  # how `regional` makes one score of an image's regions
    weight: float = 0.2  # share of the regional scores in `fusion`; the paper fuses with other global scores: 0.75
    expand: int = 10  # neighbours of query expansion
    postgres: str | None = None  # the URL of the database that `sql` exports to
    spectral_rank: int = 500  # eigenvectors of `spectral`

    def __post_init__(self) -> None:
        if not 0 <= self.weight <= 1:
            raise InvalidParams(f"weight must be a number at least 0 and at most 1, got {self.weight!r}")
        for name, count in {"seeds": self.seeds, "regional seeds": self.regional_seeds}.items():
            if count < 1:
                raise InvalidParams(f"{name} must be a whole number of at least 1, got {count!r}")


class Queries(NamedTuple):
    """Raw queries, with their regions if there are any."""

    features: NDArray[Any]  # (m, d)
    regions: NDArray[Any] | None = None  # (s, D)
    owners: NDArray[np.int64] | None = None  # (s,), from 0 to m - 1, sorted

    @classmethod
    def of(cls, dataset: Dataset) -> Self:
        """All queries of a data set."""
        if dataset.regional is None:
            return cls(dataset.queries)
        _, _, regions, owners = dataset.regional
        order = np.argsort(owners, kind="stable")
        return cls(dataset.queries, regions[order], owners[order].astype(np.int64))

    def take(self, start: int, stop: int) -> "Queries":
        """The queries start..stop, numbered from 0."""
        if self.regions is None or self.owners is None:
            return Queries(self.features[start:stop])
        first, last = np.searchsorted(self.owners, [start, stop])
        return Queries(self.features[start:stop], self.regions[first:last], self.owners[first:last] - start)

    def prepare_regions(self, index: Index) -> tuple[Features, NDArray[np.int64]]:
        """The regions as `index` compares them, and where those of each query start."""
        assert self.regions is not None
        assert self.owners is not None
        query_ptr = np.concatenate([[0], np.cumsum(np.bincount(self.owners))]).astype(np.int64)
        return index.prepare(self.regions), query_ptr


class Prepared(NamedTuple):
    """A method that is ready to rank."""

    rank: Callable[[Queries, int], Hits]
    offline_seconds: float
    bytes: int  # kept for the online part, features included


class Graphs(NamedTuple):
    """The lists and graphs of a gallery."""

    lists: Neighbors
    a: Graph
    s: Graph
    list_seconds: float
    seconds: float  # of the lists and the graphs

    def scale(self, alpha: float) -> Graph:
        """Alpha S."""
        return self.s._replace(weights=alpha * self.s.weights)


def make_graphs(features: Features, params: Params) -> Graphs:
    """The exact lists of unit rows, and A and S of them, as in the paper: what the methods of others run on."""
    started, starts = time.perf_counter(), range(0, len(features), _BLOCK_ROWS)
    blocks = [nearest_to_rows(features, a, min(a + _BLOCK_ROWS, len(features)), params.k) for a in starts]
    lists = Neighbors(*(np.concatenate(part) for part in zip(*blocks, strict=True)))
    list_seconds = time.perf_counter() - started
    a = affinity(lists, params.gamma)
    return Graphs(lists, a, transition(a), list_seconds, time.perf_counter() - started)


def _count_bytes(*arrays: NDArray[Any]) -> int:
    return sum(array.nbytes for array in arrays)


def _cost(index: Index) -> tuple[float, int]:
    """The seconds of a build, and its bytes."""
    assert index.summary is not None
    return sum(index.summary.seconds.values()), index.summary.bytes


@dataclass(frozen=True)
class Workshop:
    """A data set with the offline parts that several methods share, each made when it is first needed."""

    dataset: Dataset
    setting: Setting
    folder: Path  # where indexes are built

    def build(self, name: str, params: Params, *, regional: bool = False) -> Index:
        """Build an index of the images or of their regions."""
        features, owners = self.dataset.features, None
        if regional:
            if self.dataset.regional is None:
                raise InvalidParams(f"{self.dataset.name} has no regional features; leave the regional methods out")
            features, owners, _, _ = self.dataset.regional
        return build(features, self.folder / f"{name}.index", params, owners=owners, force=True)

    @cached_property
    def graph_index(self) -> Index:
        """Our index; its features, whitened and scaled, are what the other global methods search."""
        return self.build("graph", replace(self.setting.params, support="graph"))

    @cached_property
    def paper_index(self) -> Index:
        """The paper's: columns on the L nearest elements, stored whole."""
        params = self.setting.params
        # As they are: our code for columns would cost the paper's up to three points of mAP.
        plain = replace(params, graph="paper", support="features", keep=params.truncation, values="float16")
        return self.build("paper", plain)

    @cached_property
    def regional_index(self) -> Index:
        """The index of regions."""
        return self.build("regional", self.setting.regional_params, regional=True)

    @cached_property
    def unpooled_index(self) -> Index:
        """The index of regions with columns over regions, for poolings other than the sum."""
        return self.build("unpooled", replace(self.setting.regional_params, pool="none"), regional=True)

    @property
    def features(self) -> Features:
        """The global features, whitened and of unit length."""
        return self.graph_index.features

    @property
    def regions(self) -> Regions:
        """The regional features, of unit length."""
        index = self.regional_index
        assert index.owners is not None
        return Regions(index.features, index.owners, len(index))

    @cached_property
    def graphs(self) -> Graphs:
        """The lists and graphs of the global features."""
        return make_graphs(self.features, self.setting.params)

    @cached_property
    def regional_graphs(self) -> Graphs:
        """The lists and graphs of the regions."""
        return make_graphs(self.regions.features, self.setting.regional_params)


def _prepare_baseline(shop: Workshop, method: Any, seconds: float = 0.0, extra_bytes: int = 0) -> Prepared:
    """A baseline over the global features as our index holds them."""
    index = shop.graph_index
    size = index.features.nbytes + extra_bytes
    return Prepared(lambda queries, top: method.rank(index.prepare(queries.features), top), seconds, size)


def _prepare_expansion(shop: Workshop, alpha: float) -> Prepared:
    return _prepare_baseline(shop, baselines.QueryExpansion(shop.features, shop.setting.expand, alpha))


def _prepare_augmentation(shop: Workshop) -> Prepared:
    augmented = baselines.augment_database(shop.features, shop.graphs.lists, shop.setting.expand)
    return _prepare_baseline(shop, baselines.Cosine(augmented), shop.graphs.list_seconds)


def _prepare_online(shop: Workshop, slicing: Literal["whole", "late", "early"]) -> Prepared:
    graphs, params = shop.graphs, shop.setting.params
    graph = graphs.a if slicing == "early" else graphs.scale(params.alpha)
    method = baselines.Online(shop.features, graph, params, shop.setting.seeds, slicing=slicing)
    return _prepare_baseline(shop, method, graphs.seconds, _count_bytes(*graph))


def _prepare_spectral(shop: Workshop) -> Prepared:
    graphs, setting, started = shop.graphs, shop.setting, time.perf_counter()
    method = baselines.Spectral.build(shop.features, graphs.s, setting.params, setting.spectral_rank, setting.seeds)
    return _prepare_baseline(shop, method, graphs.seconds + time.perf_counter() - started, method.bytes)


def _prepare_index(shop: Workshop, name: Literal["paper", "graph", "refined"]) -> Prepared:
    index, seeds = shop.paper_index if name == "paper" else shop.graph_index, shop.setting.seeds
    refine = shop.setting.refine if name == "refined" else 0
    return Prepared(lambda queries, top: index.search(queries.features, top, seeds, refine=refine), *_cost(index))


def _prepare_regional(shop: Workshop, refined: bool) -> Prepared:
    setting = shop.setting
    pooling: Pooling = "sum" if refined else setting.pooling
    refine = setting.refine if refined else 0
    index = shop.regional_index if pooling == "sum" else shop.unpooled_index

    def rank(queries: Queries, top: int) -> Hits:
        _, regions, owners = queries
        return index.search(regions, top, setting.regional_seeds, owners=owners, refine=refine, pooling=pooling)

    return Prepared(rank, *_cost(index))


def _prepare_sql(shop: Workshop) -> Prepared:
    """The same index as `graph`, exported and searched by its SQL function alone, with exact seeds."""
    url, seeds = shop.setting.postgres, shop.setting.seeds
    if url is None:
        raise InvalidParams("method 'sql' needs a database; give its URL as `postgres` of the setting")
    from suffuse.postgres import PostgresIndex, export_index

    exported = export_index(shop.graph_index.path, url, SQL_SCHEMA)
    index, seconds = PostgresIndex(url, SQL_SCHEMA), _cost(shop.graph_index)[0] + exported.seconds
    return Prepared(lambda asked, top: index.search(asked.features, top, seeds, exact=True), seconds, exported.bytes)


def _prepare_regions_online(shop: Workshop) -> Prepared:
    images, index = shop.graph_index, shop.regional_index
    regions, graphs = shop.regions, shop.regional_graphs
    method = baselines.OnlineRegional(shop.features, regions, graphs.a, shop.setting.regional_params)

    def rank(queries: Queries, top: int) -> Hits:
        return method.rank(*queries.prepare_regions(index), top, images.prepare(queries.features))

    return Prepared(rank, graphs.seconds, _count_bytes(shop.features, regions.features, regions.owners, *graphs.a))


def _prepare_match(shop: Workshop, expanded: bool = False) -> Prepared:
    index, regions = shop.regional_index, shop.regions
    method = baselines.RMatch(regions, shop.setting.expand if expanded else 0)
    size = _count_bytes(regions.features, regions.owners)
    return Prepared(lambda queries, top: method.rank(*queries.prepare_regions(index), top), 0.0, size)


def _prepare_matched(shop: Workshop) -> Prepared:
    """Seeds by R-match, columns of the global index: regions say where to start, images where to go."""
    index, matches, setting = shop.graph_index, _prepare_match(shop), shop.setting
    seconds, size = _cost(index)

    def rank(queries: Queries, top: int) -> Hits:
        seeds = matches.rank(queries, max(setting.seeds, top))
        # An image without regions has the score -inf.
        ids, sims = seeds.ids[:, : setting.seeds], np.maximum(seeds.scores[:, : setting.seeds], 0)
        hits = index.combine(ids, sims, top, refine=setting.refine)
        for q, found in enumerate(hits.ids):
            unreached = found < 0
            rest = seeds.ids[q][~np.isin(seeds.ids[q], found)]
            found[unreached] = rest[: unreached.sum()]
        return hits

    return Prepared(rank, seconds, size + matches.bytes)


def _prepare_fusion(shop: Workshop) -> Prepared:
    matched, regional = _prepare_matched(shop), _prepare_regional(shop, refined=True)
    images, weight = len(shop.dataset.features), shop.setting.weight

    def rank(queries: Queries, top: int) -> Hits:
        ours, theirs = (scale_scores(method.rank(queries, images)) for method in (matched, regional))
        return baselines.sort_scores((weight * theirs + (1 - weight) * ours).astype(np.float32), top)

    return Prepared(rank, matched.offline_seconds + regional.offline_seconds, matched.bytes + regional.bytes)


def scale_scores(hits: Hits) -> NDArray[np.float64]:
    """Scores by image id (m, n), scaled per query so that the best is 1."""
    scores = np.zeros(hits.ids.shape)
    np.put_along_axis(scores, hits.ids, hits.scores.astype(np.float64), axis=1)
    return np.asarray(scores / np.maximum(scores.max(axis=1, keepdims=True), np.finfo(np.float64).tiny))


class Method(NamedTuple):
    """A name's meaning: what it is, and the function `prepare(shop, *variant)`."""

    what: str
    prepare: Callable[..., Prepared]
    variant: tuple[Any, ...] = ()


_GLOBAL = {
    "knn": Method("cosine ranking", lambda shop: _prepare_baseline(shop, baselines.Cosine(shop.features))),
    "aqe": Method("average query expansion", _prepare_expansion, (0.0,)),
    "alpha-qe": Method("query expansion weighted by sim^3", _prepare_expansion, (3.0,)),
    "dba": Method("database-side augmentation", _prepare_augmentation),
    "online": Method("diffusion per query on the whole graph (Iscen et al. 2017)", _prepare_online, ("whole",)),
    "online-early": Method("the same on the L nearest, truncated before normalisation", _prepare_online, ("early",)),
    "online-late": Method("the same, sliced after normalisation", _prepare_online, ("late",)),
    "spectral": Method("fast spectral ranking (Iscen et al. 2018)", _prepare_spectral),
    "paper": Method("the paper: its graph and seeds, offline columns on the L nearest", _prepare_index, ("paper",)),
    "graph": Method("ours: offline columns on the walk's support", _prepare_index, ("graph",)),
    "refined": Method("ours, with a second look at the first hits", _prepare_index, ("refined",)),
}
# Methods that need regional features.
REGIONAL = {
    "r-match": Method("best similarity of each query region, summed", _prepare_match, (False,)),
    "r-match-aqe": Method("the same with expanded query regions", _prepare_match, (True,)),
    "matched": Method("ours: seeds by r-match, columns of the global graph, with a second look", _prepare_matched),
    "online-regional": Method("diffusion per query on regions of the nearest images (Iscen)", _prepare_regions_online),
    "regional": Method("offline diffusion over regions, pooled to images", _prepare_regional, (False,)),
    "regional-refined": Method("the same, with a second look at the first hits", _prepare_regional, (True,)),
    "fusion": Method("weighted mean of regional-refined and matched scores", _prepare_fusion),
}
METHODS = _GLOBAL | REGIONAL


def prepare(name: str, shop: Workshop) -> Prepared:
    """The method of that name, ready for the workshop's data set."""
    if name == "sql":  # not in METHODS: it needs a database as well as data
        return _prepare_sql(shop)
    check_names([name])
    return METHODS[name].prepare(shop, *METHODS[name].variant)


def check_names(names: Iterable[str]) -> None:
    """Refuse names that no method has."""
    for name in names:
        if name not in METHODS:
            raise InvalidParams(f"method {name!r} is unknown; known are: {', '.join(METHODS)}")


def list_available(dataset: Dataset) -> list[str]:
    """The names of the methods that this data set has the features for."""
    return list(_GLOBAL if dataset.regional is None else METHODS)
