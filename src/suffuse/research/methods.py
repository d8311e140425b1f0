"""Every ranking method by its name, prepared for a data set: what a comparison runs.

A method is prepared once (its offline part, timed) and then ranks queries. All take raw queries, so that whitening
and scaling are in the time of each.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core.graph import Graph, affinity, transition
from suffuse.core.neighbors import Neighbors, nearest_to_rows
from suffuse.core.params import Params
from suffuse.errors import InvalidParams
from suffuse.index.index import Index
from suffuse.index.online import Pooling
from suffuse.offline.build import BuildSummary, build
from suffuse.offline.runner import Progress
from suffuse.research.baselines.expansion import Cosine, QueryExpansion, augment_database
from suffuse.research.baselines.per_query import Online, OnlineEarly, OnlineLate, OnlineRegional
from suffuse.research.baselines.ranking import Ranking, by_score
from suffuse.research.baselines.regions import Regions, RMatch, RMatchExpansion
from suffuse.research.baselines.spectral import Spectral
from suffuse.research.datasets import Dataset

# Where `sql` puts its index: beside a user's own, which an evaluation must not replace.
SQL_SCHEMA = "suffuse_evaluate"


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What a comparison is run with, apart from the data.

    params           of the global index; the support is each method's own
    regional_params  of the regional index
    seeds            nearest elements of a query vector that diffusion starts from, for global and regional features
    refine           candidates that `refined` looks at again
    pooling          how `regional` makes one score of an image's regions: "sum", "max" or "gmp"
    weight           share of the regional scores in `fusion` (the paper, which fuses with other global scores: 0.75)
    expand           neighbours of query expansion
    postgres         the URL of the database that `sql` exports to
    spectral_rank    eigenvectors of `spectral`
    """

    params: Params = field(default_factory=Params)
    regional_params: Params = field(default_factory=Params)
    seeds: int = 10
    regional_seeds: int = 3
    refine: int = 500
    pooling: Pooling = "sum"
    weight: float = 0.2
    expand: int = 10
    postgres: str | None = None
    spectral_rank: int = 500


class Queries(NamedTuple):
    """Raw queries, with their regions where there are any."""

    features: NDArray[Any]  # (m, d)
    regions: NDArray[Any] | None = None  # (s, D)
    owners: NDArray[np.int64] | None = None  # (s,), from 0 to m - 1


class Prepared(NamedTuple):
    """A method that is ready to rank."""

    rank: Callable[[Queries, int], Ranking]
    offline_seconds: float
    bytes: int  # kept for the online part, features included


@dataclass(frozen=True)
class Workshop:
    """A data set with the offline parts that several methods share, each made when it is first needed."""

    dataset: Dataset
    setting: Setting
    folder: Path  # where indexes are built
    progress: Progress | None = None
    _built: dict[str, tuple[Index, BuildSummary]] = field(default_factory=dict)

    def index(self, name: str, params: Params) -> tuple[Index, BuildSummary]:
        """The global index with these parameters, built once."""
        return self._build(name, self.dataset.features, params, None)

    @cached_property
    def graph_index(self) -> tuple[Index, BuildSummary]:
        """Our index; its features, whitened and scaled, are what the other global methods search."""
        return self.index("graph", replace(self.setting.params, support="graph"))

    @cached_property
    def regional_index(self) -> tuple[Index, BuildSummary]:
        """The index of regions."""
        if self.dataset.regions is None:
            raise InvalidParams(f"{self.dataset.name} has no regional features; leave the regional methods out")
        return self._build("regional", self.dataset.regions, self.setting.regional_params, self.dataset.region_owners)

    @cached_property
    def unpooled_index(self) -> tuple[Index, BuildSummary]:
        """The index of regions with columns over regions, for poolings other than the sum."""
        if self.dataset.regions is None:
            raise InvalidParams(f"{self.dataset.name} has no regional features; leave the regional methods out")
        params = replace(self.setting.regional_params, pool="none")
        return self._build("unpooled", self.dataset.regions, params, self.dataset.region_owners)

    @cached_property
    def lists(self) -> tuple[Neighbors, float]:
        """The k-NN lists of the gallery, and the seconds they took."""
        features, started = self.graph_index[0].features, time.perf_counter()
        found = nearest_to_rows(features, 0, len(features), self.setting.params.k)
        return found, time.perf_counter() - started

    @cached_property
    def graphs(self) -> tuple[Graph, Graph, float]:
        """A and S of the global features, and the seconds they took, neighbours included."""
        lists, seconds = self.lists
        started = time.perf_counter()
        a = affinity(lists, self.setting.params.gamma)
        return a, transition(a), seconds + time.perf_counter() - started

    @cached_property
    def regional_affinity(self) -> tuple[Graph, float]:
        """A of the regions, and the seconds it took, neighbours included."""
        features, started = self.regional_index[0].features, time.perf_counter()
        params = self.setting.regional_params
        a = affinity(nearest_to_rows(features, 0, len(features), params.k), params.gamma)
        return a, time.perf_counter() - started

    def _build(
        self, name: str, features: NDArray[Any], params: Params, owners: NDArray[Any] | None
    ) -> tuple[Index, BuildSummary]:
        if name not in self._built:
            path = self.folder / f"{name}.index"
            summary = build(features, path, params, owners=owners, force=True, progress=self.progress)
            self._built[name] = (Index.open(path), summary)
        return self._built[name]


def _prepared(shop: Workshop, method: Any, seconds: float = 0.0, extra_bytes: int = 0) -> Prepared:
    """A baseline over the global features as our index holds them."""
    index = shop.graph_index[0]
    return Prepared(
        lambda queries, top: method.rank(index.prepare(queries.features), top),
        seconds,
        index.features.nbytes + extra_bytes,
    )


def _knn(shop: Workshop) -> Prepared:
    return _prepared(shop, Cosine(shop.graph_index[0].features))


def _aqe(shop: Workshop) -> Prepared:
    return _prepared(shop, QueryExpansion(shop.graph_index[0].features, shop.setting.expand))


def _alpha_qe(shop: Workshop) -> Prepared:
    return _prepared(shop, QueryExpansion(shop.graph_index[0].features, shop.setting.expand, alpha=3.0))


def _dba(shop: Workshop) -> Prepared:
    lists, seconds = shop.lists
    return _prepared(shop, Cosine(augment_database(shop.graph_index[0].features, lists, shop.setting.expand)), seconds)


def _graph_bytes(graph: Graph) -> int:
    return sum(array.nbytes for array in graph)


def _on_alpha_s(shop: Workshop, kind: type[Online] | type[OnlineLate]) -> Prepared:
    _, s, seconds = shop.graphs
    alpha_s = s._replace(weights=shop.setting.params.alpha * s.weights)
    method = kind(shop.graph_index[0].features, alpha_s, shop.setting.params, shop.setting.seeds)
    return _prepared(shop, method, seconds, _graph_bytes(s))


def _online(shop: Workshop) -> Prepared:
    return _on_alpha_s(shop, Online)


def _online_early(shop: Workshop) -> Prepared:
    a, _, seconds = shop.graphs
    method = OnlineEarly(shop.graph_index[0].features, a, shop.setting.params, shop.setting.seeds)
    return _prepared(shop, method, seconds, _graph_bytes(a))


def _online_late(shop: Workshop) -> Prepared:
    return _on_alpha_s(shop, OnlineLate)


def _spectral(shop: Workshop) -> Prepared:
    _, s, seconds = shop.graphs
    started, setting = time.perf_counter(), shop.setting
    features = shop.graph_index[0].features
    method = Spectral.build(features, s, setting.params, setting.spectral_rank, setting.seeds)
    return _prepared(shop, method, seconds + time.perf_counter() - started, method.bytes)


def _searched(built: tuple[Index, BuildSummary], seeds: int, refine: int) -> Prepared:
    index, summary = built

    def rank(queries: Queries, top: int) -> Ranking:
        return Ranking(*index.search(queries.features, top, seeds, refine=refine))

    return Prepared(rank, sum(summary.seconds.values()), summary.bytes)


def _features(shop: Workshop) -> Prepared:
    params = shop.setting.params
    # The paper stores the whole column, as it is: our code for columns would cost it up to three points of mAP.
    built = shop.index("features", replace(params, support="features", keep=params.truncation, values="float16"))
    return _searched(built, shop.setting.seeds, refine=0)


def _graph(shop: Workshop) -> Prepared:
    return _searched(shop.graph_index, shop.setting.seeds, refine=0)


def _refined(shop: Workshop) -> Prepared:
    return _searched(shop.graph_index, shop.setting.seeds, shop.setting.refine)


def _sql(shop: Workshop) -> Prepared:
    """The same index as `graph`, exported and searched by its SQL function alone, with exact seeds."""
    url, (_, built) = shop.setting.postgres, shop.graph_index
    if url is None:
        raise InvalidParams("method 'sql' needs a database; give its URL by --postgres")
    from suffuse.postgres import PostgresIndex, export_index

    done = export_index(built.path, url, SQL_SCHEMA)
    index = PostgresIndex(url, SQL_SCHEMA)

    def rank(queries: Queries, top: int) -> Ranking:
        return Ranking(*index.search(queries.features, top, shop.setting.seeds, exact=True))

    return Prepared(rank, sum(built.seconds.values()) + done.seconds, done.bytes)


def _searched_by_region(shop: Workshop, refine: int, pooling: Pooling) -> Prepared:
    index, summary = shop.regional_index if pooling == "sum" else shop.unpooled_index
    setting = shop.setting

    def rank(queries: Queries, top: int) -> Ranking:
        assert queries.regions is not None
        hits = index.search(
            queries.regions, top, setting.regional_seeds, owners=queries.owners, refine=refine, pooling=pooling
        )
        return Ranking(*hits)

    return Prepared(rank, sum(summary.seconds.values()), summary.bytes)


def _regional(shop: Workshop) -> Prepared:
    return _searched_by_region(shop, refine=0, pooling=shop.setting.pooling)


def _regional_refined(shop: Workshop) -> Prepared:
    return _searched_by_region(shop, refine=shop.setting.refine, pooling="sum")


def _online_regional(shop: Workshop) -> Prepared:
    regions = shop.regional_index[0]
    assert regions.owners is not None
    index, gallery = shop.graph_index[0], Regions(regions.features, regions.owners, len(regions))
    a, seconds = shop.regional_affinity
    method = OnlineRegional(index.features, gallery, a, shop.setting.regional_params)

    def rank(queries: Queries, top: int) -> Ranking:
        assert queries.regions is not None
        assert queries.owners is not None
        rows, query_ptr = regions.prepare(queries.regions), _pointers(queries.owners)
        return method.rank(rows, query_ptr, top, index.prepare(queries.features))

    kept = index.features.nbytes + regions.features.nbytes + regions.owners.nbytes + _graph_bytes(a)
    return Prepared(rank, seconds, kept)


def _matched(shop: Workshop, make: Callable[[Regions], Any]) -> Prepared:
    index = shop.regional_index[0]
    assert index.owners is not None
    method = make(Regions(index.features, index.owners, len(index)))

    def rank(queries: Queries, top: int) -> Ranking:
        assert queries.regions is not None
        assert queries.owners is not None
        rows, query_ptr = index.prepare(queries.regions), _pointers(queries.owners)
        ranked: Ranking = method.rank(rows, query_ptr, top)
        return ranked

    return Prepared(rank, 0.0, index.features.nbytes + index.owners.nbytes)


def _r_match(shop: Workshop) -> Prepared:
    return _matched(shop, RMatch)


def _r_match_aqe(shop: Workshop) -> Prepared:
    return _matched(shop, lambda gallery: RMatchExpansion(gallery, shop.setting.expand))


def _matched_seeds(shop: Workshop) -> Prepared:
    """Seeds by R-match, walks on the graph of global features: regions say where to start, images where to go."""
    index, built = shop.graph_index
    regions, setting = _r_match(shop), shop.setting

    def rank(queries: Queries, top: int) -> Ranking:
        seeds = regions.rank(queries, max(setting.seeds, top))
        first = slice(0, setting.seeds)
        # An image without regions has the score -inf.
        hits = index.combine(seeds.ids[:, first], np.maximum(seeds.scores[:, first], 0), top, refine=setting.refine)
        for q, found in enumerate(hits.ids):
            unreached = found < 0
            rest = seeds.ids[q][~np.isin(seeds.ids[q], found)]
            found[unreached] = rest[: unreached.sum()]
        return Ranking(*hits)

    return Prepared(rank, sum(built.seconds.values()), built.bytes + regions.bytes)


def _pointers(owners: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the regions of each query start; owners are sorted."""
    return np.concatenate([[0], np.cumsum(np.bincount(owners))]).astype(np.int64)


def _fusion(shop: Workshop) -> Prepared:
    ours, regional = _matched_seeds(shop), _regional_refined(shop)
    images, weight = len(shop.graph_index[0]), shop.setting.weight

    def rank(queries: Queries, top: int) -> Ranking:
        fused = weight * scaled(regional.rank(queries, images)) + (1 - weight) * scaled(ours.rank(queries, images))
        return by_score(fused.astype(np.float32), top)

    return Prepared(rank, ours.offline_seconds + regional.offline_seconds, ours.bytes + regional.bytes)


def scaled(ranking: Ranking) -> NDArray[np.float64]:
    """Scores by image id (m, n), scaled per query so that the best is 1."""
    scores = np.zeros(ranking.ids.shape)
    np.put_along_axis(scores, ranking.ids, ranking.scores.astype(np.float64), axis=1)
    return np.asarray(scores / np.maximum(scores.max(axis=1, keepdims=True), np.finfo(np.float64).tiny))


class Method(NamedTuple):
    """A name's meaning."""

    prepare: Callable[[Workshop], Prepared]
    what: str
    regional: bool = False


METHODS: dict[str, Method] = {
    "knn": Method(_knn, "cosine ranking"),
    "aqe": Method(_aqe, "average query expansion"),
    "alpha-qe": Method(_alpha_qe, "query expansion weighted by sim^3"),
    "dba": Method(_dba, "database-side augmentation"),
    "online": Method(_online, "diffusion per query on the whole graph (Iscen et al. 2017)"),
    "online-early": Method(_online_early, "the same on the L nearest, truncated before normalisation"),
    "online-late": Method(_online_late, "the same, sliced after normalisation"),
    "spectral": Method(_spectral, "fast spectral ranking (Iscen et al. 2018)"),
    "features": Method(_features, "the paper: offline columns on the L nearest"),
    "graph": Method(_graph, "ours: offline columns on the walk's support"),
    "refined": Method(_refined, "ours, with a second look at the first hits"),
    "r-match": Method(_r_match, "best similarity of each query region, summed", regional=True),
    "r-match-aqe": Method(_r_match_aqe, "the same with expanded query regions", regional=True),
    "matched": Method(
        _matched_seeds, "ours: seeds by r-match, columns of the global graph, with a second look", regional=True
    ),
    "online-regional": Method(
        _online_regional, "regional diffusion per query on the regions of the nearest images (Iscen)", regional=True
    ),
    "regional": Method(_regional, "offline diffusion over regions, pooled to images", regional=True),
    "regional-refined": Method(_regional_refined, "the same, with a second look at the first hits", regional=True),
    "fusion": Method(_fusion, "weighted mean of regional-refined and matched scores", regional=True),
}


def prepare(name: str, shop: Workshop) -> Prepared:
    """The method of that name, ready for the workshop's data set."""
    if name == "sql":  # not in METHODS: it needs a database as well as data
        return _sql(shop)
    if name not in METHODS:
        raise InvalidParams(f"method {name!r} is unknown; known are: {', '.join(METHODS)}")
    return METHODS[name].prepare(shop)


def available(dataset: Dataset) -> list[str]:
    """The names of the methods that this data set has the features for."""
    return [name for name, method in METHODS.items() if dataset.regions is not None or not method.regional]
