"""The paper's table and figures on any data set: measure, and write what was measured as raw JSON.

`suffuse.report` makes tables, figures and the page from these files alone, so they can be made again without measuring.
"""

import importlib.metadata
import os
import platform
import tempfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from suffuse import __version__
from suffuse.advice import advise
from suffuse.arrays import write_json
from suffuse.comparison import Result, compare, pick, queries_of
from suffuse.datasets import Dataset
from suffuse.errors import SuffuseError
from suffuse.evaluation import Judgement
from suffuse.methods import METHODS, Setting, Workshop, available, prepare
from suffuse.offline import Progress
from suffuse.report import APPROXIMATE, QUERIES, TABLE, TRUNCATION, render

Report = Callable[[str], None]

# L of figures 1, 4 and 6. All elements are one more, where so many columns of all elements still fit.
TRUNCATIONS, QUICK_TRUNCATIONS = (50, 100, 200, 500, 1000, 2000, 5000), (100, 300, 1000)
_MOST_WHOLE = 10_000
# What the paper truncates: per query (Iscen et al. early, and late), and offline.
_TRUNCATED = ("online-early", "online-late", "features", "graph")
# An eigen-decomposition and 20 regions per image are most of the time of a full run.
_NOT_QUICK = ("spectral",)
# Cells probed by IVFADC, and candidates held by HNSW, from rough to nearly exact.
PROBES, QUICK_PROBES = (1, 2, 4, 8, 16, 32), (1, 4, 16)
EFS, QUICK_EFS = (16, 32, 64, 128, 256), (32, 128)
SHOWN_QUERIES, SHOWN_HITS = 10, 10

# Table 1 of Yang et al. by data set and method. Empty: no text of that table could be checked against its source.
PUBLISHED: dict[str, dict[str, float]] = {}
# The best mAP of the paper on each gallery, over its features and methods, as paperswithcode.com listed it.
PUBLISHED_BEST = {"oxford5k": 96.2, "oxford105k": 95.2, "paris6k": 97.8, "paris106k": 96.2}


def reproduce(
    dataset: Dataset,
    setting: Setting,
    output: str | Path,
    quick: bool = False,
    report: Report | None = None,
    progress: Progress | None = None,
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
    say = report or _silent
    head = header(dataset, setting, quick, command)
    with tempfile.TemporaryDirectory(prefix="suffuse-", ignore_cleanup_errors=True) as work:
        shop = Workshop(dataset, setting, _made(Path(work) / "table"), progress)
        results = compare(shop, _names(dataset, quick), lambda name: say(f"table 1: {name}"))
        write_json(folder / TABLE, {**head, **measure_table(shop, results)})
        write_json(folder / QUERIES, {**head, **measure_queries(shop, results)})
        rows = measure_truncation(shop, results, truncations(len(dataset.features), quick), say)
        write_json(folder / TRUNCATION, {**head, "rows": rows})
        rows = measure_approximate(shop, QUICK_PROBES if quick else PROBES, QUICK_EFS if quick else EFS, say)
        write_json(folder / APPROXIMATE, {**head, "rows": rows})
    say("tables, figures and the page")
    return render(folder, dataset.thumbnails if pictures else None)


def header(dataset: Dataset, setting: Setting, quick: bool, command: str | None = None) -> dict[str, Any]:
    """What every file begins with: the data, the parameters, the command and the machine."""
    return {
        "dataset": {
            "name": dataset.name,
            "images": len(dataset.features),
            "queries": len(dataset.queries),
            "dimensions": dataset.features.shape[1],
            "regions": 0 if dataset.regions is None else len(dataset.regions),
            "kind": dataset.kind,
            "protocols": list(dataset.protocols),
            "main": main_protocol(dataset.protocols),
        },
        "setting": asdict(setting),
        "quick": quick,
        "command": command or f"suffuse reproduce {dataset.name}{' --quick' if quick else ''}",
        "machine": machine(),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def machine() -> dict[str, Any]:
    """The processor, its cores, and the versions of what computes."""
    names = ("numpy", "scipy", "numba", "faiss-cpu")
    versions = {name: importlib.metadata.version(name) for name in names}
    return {
        "cpu": _cpu(),
        "cores": os.cpu_count() or 1,
        "versions": {"suffuse": __version__, "python": platform.python_version(), **versions},
    }


def main_protocol(protocols: Iterable[str]) -> str:
    """The protocol that figures show: the revisited Medium, or the only one there is."""
    names = list(protocols)
    return "medium" if "medium" in names else names[0]


def truncations(images: int, quick: bool) -> list[int]:
    """The L to measure on so many images."""
    chosen = [size for size in (QUICK_TRUNCATIONS if quick else TRUNCATIONS) if size < images]
    return [*chosen, images] if not chosen or (images <= _MOST_WHOLE and not quick) else chosen


def measure_table(shop: Workshop, results: Sequence[Result]) -> dict[str, Any]:
    """Table 1: every method, the published numbers, and what speaks against diffusion here."""
    dataset, manifest = shop.dataset, shop.graph_index[0].manifest
    judgements = dataset.protocols[main_protocol(dataset.protocols)]
    positives = np.array([len(judgement.positives) for judgement in judgements])
    gallery, _, network = dataset.name.partition("_")
    is_papers = network in ("siamac", "resnet")
    return {
        "results": [{**result.to_dict(), "what": METHODS[result.method].what} for result in results],
        "published": PUBLISHED.get(dataset.name, {}),
        "published_best": PUBLISHED_BEST.get(gallery) if is_papers else None,
        "advice": advise(manifest.graph, len(dataset.features), shop.setting.params.k, positives),
    }


def measure_truncation(
    shop: Workshop, results: Sequence[Result], sizes: Sequence[int], report: Report
) -> list[dict[str, Any]]:
    """Figures 1, 4 and 6: quality and time of what is truncated, for each L; k-NN and the whole graph beside them."""
    rows = [_row(result, None) for result in results if result.method in ("knn", "online")]
    for size in sizes:
        params = replace(shop.setting.params, truncation=size, keep=min(shop.setting.params.keep, size))
        if params == shop.setting.params:
            found = [result for result in results if result.method in _TRUNCATED]
        else:
            with tempfile.TemporaryDirectory(dir=shop.folder, ignore_cleanup_errors=True) as folder:
                part = Workshop(shop.dataset, replace(shop.setting, params=params), Path(folder), shop.progress)
                found = compare(part, _TRUNCATED, lambda name, size=size: report(f"L = {size}: {name}"))  # type: ignore[misc]
        rows += [_row(result, size) for result in found]
    return rows


def measure_approximate(
    shop: Workshop, probes: Sequence[int], efs: Sequence[int], report: Report
) -> list[dict[str, Any]]:
    """Figure 5: offline seconds and quality where the graph, or the supports, come from an approximate search."""
    kinds: list[tuple[str, dict[str, int]]] = [("exact", {})]
    kinds += [("ivfadc", {"probes": count}) for count in probes] + [("hnsw", {"ef": count}) for count in efs]
    rows = []
    for stage, method in (("support", "features"), ("graph", "graph")):
        for search, effort in kinds:
            report(f"approximate search: {stage} by {search} {' '.join(map(str, effort.values()))}")
            changes: dict[str, Any] = {f"{stage}_search": search, **effort}
            try:
                rows.append({"stage": stage, "search": search, **effort, **_approximate(shop, method, changes)})
            except (SuffuseError, RuntimeError) as error:  # faiss refuses, such as too few elements to train on
                rows.append({"stage": stage, "search": search, **effort, "refused": str(error).splitlines()[0]})
    return rows


def measure_queries(shop: Workshop, results: Sequence[Result]) -> dict[str, Any]:
    """The queries that gain most and lose most against k-NN, and what both methods find first."""
    dataset, protocol = shop.dataset, main_protocol(shop.dataset.protocols)
    by_name = {result.method: result for result in results}
    method = next(name for name in ("refined", "graph") if name in by_name)
    ours, plain = (np.array(by_name[name].per_query[protocol], np.float64) for name in (method, "knn"))
    gain = ours - plain
    order = [int(q) for q in np.argsort(-gain, kind="stable") if np.isfinite(gain[q])]
    chosen = {
        "gain": [q for q in order if gain[q] > 0][:SHOWN_QUERIES],
        "lose": [q for q in reversed(order) if gain[q] < 0][:SHOWN_QUERIES],
    }
    queries, ready = queries_of(dataset), {name: prepare(name, shop) for name in ("knn", method)}
    top = min(SHOWN_HITS, len(dataset.features))

    def described(q: int) -> dict[str, Any]:
        judged = dataset.protocols[protocol][q]
        hits = {name: ready[name].rank(pick(queries, q, q + 1), top).ids[0].tolist() for name in ready}
        return {
            "query": dataset.query_names[q],
            "positives": len(judged.positives),
            "precision": {"knn": float(plain[q]), method: float(ours[q])},
            "hits": {
                name: [{"name": dataset.image_names[i], "mark": _mark(i, judged)} for i in ids]
                for name, ids in hits.items()
            },
        }

    return {"method": method, **{kind: [described(q) for q in ids] for kind, ids in chosen.items()}}


def _approximate(shop: Workshop, method: str, changes: dict[str, Any]) -> dict[str, Any]:
    params = replace(shop.setting.params, **changes)
    with tempfile.TemporaryDirectory(dir=shop.folder, ignore_cleanup_errors=True) as folder:
        part = Workshop(shop.dataset, replace(shop.setting, params=params), Path(folder), shop.progress)
        (result,) = compare(part, [method])
        _, summary = part.graph_index if method == "graph" else part.index("features", params)
        return {"quality": result.quality, "seconds": {stage: round(s, 3) for stage, s in summary.seconds.items()}}


def _row(result: Result, size: int | None) -> dict[str, Any]:
    kept = ("method", "quality", "milliseconds", "offline_seconds", "bytes_per_image")
    return {"truncation": size, **{name: getattr(result, name) for name in kept}}


def _names(dataset: Dataset, quick: bool) -> list[str]:
    names = available(dataset)
    return [n for n in names if not (METHODS[n].regional or n in _NOT_QUICK)] if quick else names


def _mark(image: int, judged: Judgement) -> str:
    return "right" if image in judged.positives else "junk" if image in judged.junk else "wrong"


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:  # not Linux
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, platform.processor() or platform.machine())


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _silent(_: str) -> None:
    pass
