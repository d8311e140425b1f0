"""The paper's table and figures on any data set: measure, and write what was measured as raw JSON.

`suffuse.research.report` makes tables, figures and the page from these files alone, so that they can be made again
without measuring.
"""

import contextlib
import functools
import importlib.metadata
import math
import os
import platform
import tempfile
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from suffuse import __version__
from suffuse.core import ann
from suffuse.core.blas import one_thread
from suffuse.core.neighbors import Features, Find, nearest_to_rows
from suffuse.core.params import Search
from suffuse.research.bench import name_cpu
from suffuse.research.comparison import Report, Result, advise, compare, count_positives, time_query
from suffuse.research.datasets import Dataset
from suffuse.research.methods import METHODS, REGIONAL, Queries, Setting, Workshop, list_available, prepare
from suffuse.research.report import APPROXIMATE, QUERIES, TABLE, TRUNCATION, render
from suffuse.store.files import write_bytes, write_json

# L of figures 1, 4 and 6. All elements are one more, where so many columns of all elements still fit.
TRUNCATIONS, QUICK_TRUNCATIONS = (50, 100, 200, 500, 1000, 2000, 5000), (100, 300, 1000)
_MOST_WHOLE = 10_000
# What the paper truncates: per query (Iscen et al. early, and late), and offline.
_TRUNCATED = ("online-early", "online-late", "paper", "graph")
# An eigen-decomposition and 20 regions per image are most of the time of a full run.
_SLOW = ("spectral", *REGIONAL)
# Cells probed by IVFADC; and candidates held by HNSW for each neighbour asked for, as fewer than one make no sense.
PROBES, QUICK_PROBES = (1, 2, 4, 8, 16, 32, 64), (1, 8)
WIDTHS, QUICK_WIDTHS = (1, 2, 4), (1,)
# Elements whose search is timed, and how often; the time of all is a multiple of the best one.
_TIMED_ROWS, _TIMED_SEARCHES = 512, 3
# Times per query are taken in so many more rounds.
_ROUNDS = 4
SHOWN_QUERIES, SHOWN_HITS = 10, 10

Row = dict[str, Any]  # of a file of measurements

# The best mAP of the paper on each gallery, over its features and methods, as paperswithcode.com listed it.
PUBLISHED_BEST = {"oxford5k": 96.2, "oxford105k": 95.2, "paris6k": 97.8, "paris106k": 96.2}


def reproduce(
    dataset: Dataset,
    setting: Setting,
    output: str | Path,
    quick: bool = False,
    report: Report | None = None,
    *,
    pictures: bool = True,
    command: str | None = None,
) -> Path:
    """Measure everything on one data set and write JSON, tables, figures and report.html to the folder `output`.

    quick     fewer methods, fewer L, fewer probes
    report    hears what is measured next
    pictures  show photographs in the page where the data set has thumbnails
    command   what a person typed to get here
    """
    folder = Path(output)
    folder.mkdir(parents=True, exist_ok=True)
    say = report or (lambda _: None)
    head = describe(dataset, setting, quick, command)
    names = [name for name in list_available(dataset) if not (quick and name in _SLOW)]
    with tempfile.TemporaryDirectory(prefix="suffuse-", ignore_cleanup_errors=True) as work:
        shop = Workshop(dataset, setting, Path(work))
        results = compare(shop, names, say, "table 1: ")
        say("table 1: times, in turn")
        results = time_in_turn([(shop, results)])
        write_json(folder / TABLE, {**head, **measure_table(shop, results)})
        write_json(folder / QUERIES, {**head, **measure_queries(shop, results)})
        rows = measure_truncation(shop, results, choose_truncations(len(dataset.features), quick), say)
        write_json(folder / TRUNCATION, {**head, "rows": rows})
        rows = measure_approximate(shop, quick, say)
        write_json(folder / APPROXIMATE, {**head, "rows": rows})
    say("tables, figures and the page")
    return render(folder, dataset.thumbnails if pictures else None)


def describe(dataset: Dataset, setting: Setting, quick: bool, command: str | None = None) -> dict[str, Any]:
    """What every file begins with: the data, the parameters, the command and the machine."""
    return {
        "dataset": {
            "name": dataset.name,
            "images": len(dataset.features),
            "queries": len(dataset.queries),
            "dimensions": dataset.features.shape[1],
            "regions": 0 if dataset.regional is None else len(dataset.regional.regions),
            "kind": dataset.kind,
            "protocols": list(dataset.protocols),
            "main": choose_protocol(dataset.protocols),
        },
        "setting": asdict(setting),
        "quick": quick,
        "command": command or f"suffuse reproduce {dataset.name}{' --quick' if quick else ''}",
        "machine": describe_machine(),
        "load": round(os.getloadavg()[0], 1) if hasattr(os, "getloadavg") else None,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def describe_machine() -> dict[str, Any]:
    """The processor, its cores, and the versions of what computes."""
    versions = {"suffuse": __version__, "python": platform.python_version()}
    for name in ("numpy", "scipy", "numba", "faiss-cpu"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            versions[name] = importlib.metadata.version(name)
    return {"cpu": name_cpu(), "cores": os.cpu_count() or 1, "versions": versions}


def choose_protocol(protocols: Collection[str]) -> str:
    """The protocol that figures show: the revisited Medium, or the only one there is."""
    return "medium" if "medium" in protocols else next(iter(protocols))


def choose_truncations(images: int, quick: bool) -> list[int]:
    """The L to measure on so many images."""
    chosen = [size for size in (QUICK_TRUNCATIONS if quick else TRUNCATIONS) if size < images]
    return [*chosen, images] if not chosen or (images <= _MOST_WHOLE and not quick) else chosen


def measure_table(shop: Workshop, results: Sequence[Result]) -> dict[str, Any]:
    """Table 1: every method, the published numbers, and what speaks against diffusion here."""
    dataset, manifest = shop.dataset, shop.graph_index.manifest
    gallery, _, network = dataset.name.partition("_")
    return {
        "results": [{**result._asdict(), "what": METHODS[result.method].what} for result in results],
        "published_best": PUBLISHED_BEST.get(gallery) if network in ("siamac", "resnet") else None,
        "advice": advise(manifest.graph, len(dataset.features), shop.setting.params, count_positives(dataset)),
    }


def measure_truncation(shop: Workshop, results: Sequence[Result], sizes: Sequence[int], report: Report) -> list[Row]:
    """Figures 1, 4 and 6: quality and time of what is truncated, for each L; k-NN and the whole graph beside them."""
    plain = [result for result in results if result.method in ("knn", "online")]
    rows = [_row(result, None, plain) for result in plain]
    for size in sizes:
        params = replace(shop.setting.params, truncation=size, keep=min(shop.setting.params.keep, size))
        if params == shop.setting.params:
            rows += [_row(result, size, plain) for result in results if result.method in _TRUNCATED]
            continue
        with tempfile.TemporaryDirectory(dir=shop.folder, ignore_cleanup_errors=True) as folder:
            part = Workshop(shop.dataset, replace(shop.setting, params=params), Path(folder))
            found = compare(part, _TRUNCATED, report, f"L = {size}: ")
            # k-NN anew in the same minute, its old time forgotten, so that a busy machine slows both.
            anew = [result._replace(milliseconds=math.inf) for result in plain if result.method == "knn"]
            again = time_in_turn([(part, found), (shop, anew)])
        rows += [_row(result, size, again[len(found) :]) for result in again[: len(found)]]
    return rows


def time_in_turn(parts: Sequence[tuple[Workshop, Sequence[Result]]]) -> list[Result]:
    """The results with their times taken in turn, round by round, and the best round of each.

    What else runs on a machine only ever adds to a time, and hits whoever is measured at that moment.
    """
    given = [(shop, result) for shop, results in parts for result in results]
    # To prepare `spectral` or regions once more takes long, and their queries are slow enough to be steady.
    ready = {
        row: (prepare(result.method, shop).rank, Queries.of(shop.dataset), len(shop.dataset.features))
        for row, (shop, result) in enumerate(given)
        if result.method not in _SLOW
    }
    best = [result.milliseconds for _, result in given]
    for _ in range(_ROUNDS):
        for row, timed in ready.items():
            best[row] = min(best[row], time_query(*timed))
    return [result._replace(milliseconds=round(ms, 4)) for (_, result), ms in zip(given, best, strict=True)]


def measure_approximate(shop: Workshop, quick: bool, report: Report) -> list[Row]:
    """Figure 5: seconds of the search, and quality, where the graph or the supports are found approximately."""
    probes, widths = (QUICK_PROBES, QUICK_WIDTHS) if quick else (PROBES, WIDTHS)
    index, params = shop.graph_index, replace(shop.setting.params, whiten=None)
    if quick:
        params = replace(params, truncation=min(params.truncation, QUICK_TRUNCATIONS[1]))
    # Whitened once, not in every build.
    data = shop.dataset._replace(features=index.features, queries=index.prepare(shop.dataset.queries))
    trained, started = shop.folder / "ivfadc.faiss", time.perf_counter()
    write_bytes(trained, [ann.train_ivfadc(index.features)])
    middle = time.perf_counter()
    links = ann.build_hnsw(index.features)
    training = {"exact": 0.0, "ivfadc": middle - started, "hnsw": time.perf_counter() - middle}
    rows = []
    for stage, method, size in (("support", "paper", params.truncation), ("graph", "graph", params.k)):
        kinds: list[tuple[Search, dict[str, int]]] = [("exact", {})]
        kinds += [("ivfadc", {"probes": count}) for count in probes]
        kinds += [("hnsw", {"ef": width * size}) for width in widths]
        for search, effort in kinds:
            report(f"{stage} by {search} search {' '.join(map(str, effort.values()))}")
            options: dict[str, Any] = {f"{stage}_search": search, **effort}
            chosen = replace(params, **options)
            with tempfile.TemporaryDirectory(dir=shop.folder, ignore_cleanup_errors=True) as folder:
                part = Workshop(data, replace(shop.setting, params=chosen), Path(folder))
                (result,) = compare(part, [method])
            find: Find = nearest_to_rows
            if search == "ivfadc":
                find = functools.partial(ann.nearest_by_ivfadc, ann.read_ivfadc(str(trained), chosen.probes))
            elif search == "hnsw":
                find = functools.partial(ann.nearest_along_links, links, chosen.ef)
            seconds, ids = _time_search(find, index.features, size)
            if search == "exact":  # which comes first
                true = ids
            rows.append({
                "stage": stage, "search": search, **effort, "size": size, "quality": result.quality,
                "offline_seconds": result.offline_seconds, "training_seconds": round(training[search], 4),
                "search_seconds": round(seconds, 4), "recall": round(float(np.isin(true, ids).mean()), 5),
            })  # fmt: skip
    return rows


def _time_search(find: Find, features: Features, size: int) -> tuple[float, NDArray[np.int64]]:
    """The seconds of a search for all elements on one thread, and what it found for a sample, told apart by row."""
    sample, seconds = min(len(features), _TIMED_ROWS), math.inf
    with one_thread():
        for _ in range(_TIMED_SEARCHES):
            started = time.perf_counter()
            found = find(features, 0, sample, size)
            seconds = min(seconds, (time.perf_counter() - started) * len(features) / sample)
    return seconds, found.ids.astype(np.int64) + len(features) * np.arange(sample)[:, None]


def measure_queries(shop: Workshop, results: Sequence[Result]) -> dict[str, Any]:
    """The queries that gain most and lose most against k-NN, and what both methods find first."""
    dataset, protocol = shop.dataset, choose_protocol(shop.dataset.protocols)
    by_name = {result.method: result for result in results}
    method = next(name for name in ("refined", "graph") if name in by_name)
    ours, plain = (np.array(by_name[name].per_query[protocol], np.float64) for name in (method, "knn"))
    gain = ours - plain
    order = [int(q) for q in np.argsort(-gain, kind="stable") if np.isfinite(gain[q])]
    chosen = {
        "gain": [q for q in order if gain[q] > 0][:SHOWN_QUERIES],
        "lose": [q for q in reversed(order) if gain[q] < 0][:SHOWN_QUERIES],
    }
    queries, ready = Queries.of(dataset), {name: prepare(name, shop) for name in ("knn", method)}
    top = min(SHOWN_HITS, len(dataset.features))

    def describe_query(q: int) -> dict[str, Any]:
        positives, junk = dataset.protocols[protocol][q]
        hits: dict[str, list[dict[str, str]]] = {}
        for name, prepared in ready.items():
            ids = prepared.rank(queries.take(q, q + 1), top).ids[0].tolist()
            marks = ["right" if i in positives else "junk" if i in junk else "wrong" for i in ids]
            hits[name] = [{"name": dataset.image_names[i], "mark": mark} for i, mark in zip(ids, marks, strict=True)]
        return {
            "query": dataset.query_names[q],
            "positives": len(positives),
            "precision": {"knn": float(plain[q]), method: float(ours[q])},
            "hits": hits,
        }

    return {"method": method, **{kind: [describe_query(q) for q in ids] for kind, ids in chosen.items()}}


def _row(result: Result, size: int | None, plain: Sequence[Result]) -> Row:
    kept = ("method", "quality", "milliseconds", "offline_seconds", "bytes_per_image")
    beside = next((other.milliseconds for other in plain if other.method == "knn"), None)
    return {"truncation": size, "knn_milliseconds": beside, **{name: getattr(result, name) for name in kept}}
