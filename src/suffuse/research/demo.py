"""The main job on real data that comes with scikit-learn: 1,797 scanned digits, a ninth of them as queries."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core.params import Params
from suffuse.errors import MissingExtra
from suffuse.index.index import Index
from suffuse.offline.build import BuildSummary, build
from suffuse.offline.runner import Progress
from suffuse.research.baselines import average_query_expansion
from suffuse.research.evaluation import class_judgements, mean_average_precision, precision_at_hits
from suffuse.store.files import write_json

# A digit has 160 examples here; the paper's k = 50 is a third of that, and less is better (docs/how-it-works.md).
GRAPH_K = 20
SHOWN = 10  # pictures in a row

Search = Callable[[NDArray[Any], int], NDArray[np.integer]]


class Digits(NamedTuple):
    """The data of the demo: 8 x 8 pictures as rows of 64 values."""

    gallery: NDArray[np.float64]
    labels: NDArray[np.int64]
    queries: NDArray[np.float64]
    query_labels: NDArray[np.int64]


class Result(NamedTuple):
    """One row of the demo's table."""

    method: str
    mean_average_precision: float  # in per cent
    milliseconds: float  # per query, top 10, in one batch
    offline_seconds: float
    rankings: NDArray[np.integer]  # (m, n)


def load_digits() -> Digits:
    """Every ninth picture is a query, the others are the gallery."""
    try:
        from sklearn.datasets import load_digits as load_from_sklearn
    except ImportError as error:
        raise MissingExtra("scikit-learn", "demo") from error
    pictures, labels = load_from_sklearn(return_X_y=True)
    is_query = np.arange(len(pictures)) % 9 == 0
    return Digits(pictures[~is_query], labels[~is_query], pictures[is_query], labels[is_query])


def run(directory: Path, progress: Progress | None = None) -> list[Result]:
    """Build both indexes in `directory`, search with every method, and write the picture and the figures there."""
    digits = load_digits()
    directory.mkdir(parents=True, exist_ok=True)
    pictures = directory / "pictures"
    names = write_pictures(digits, pictures)

    def make(name: str, params: Params) -> tuple[Index, BuildSummary]:
        path = directory / name
        summary = build(
            digits.gallery, path, params, names=names, pictures={"root": str(pictures.resolve())}, force=True,
            progress=progress,
        )  # fmt: skip
        return Index.open(path), summary

    ours, our_build = make("digits.index", Params(k=GRAPH_K, with_graph=True))
    paper, paper_build = make("digits-paper.index", Params(k=GRAPH_K, support="features", keep=1000))

    def expanded(queries: NDArray[Any], top: int) -> NDArray[np.integer]:
        return average_query_expansion(ours.prepare(queries), ours.features, top).ids

    results = [
        _measure("k-NN", digits, lambda queries, top: ours.search(queries, top, method="knn").ids),
        _measure("AQE", digits, expanded),
        _measure(
            "diffusion, the paper's support", digits, lambda q, top: paper.search(q, top, refine=0).ids, paper_build
        ),
        _measure("diffusion, the graph's support", digits, lambda q, top: ours.search(q, top, refine=0).ids, our_build),
        _measure("the same with a second look", digits, lambda q, top: ours.search(q, top).ids, our_build),
    ]
    write_json(
        directory / "digits.json",
        [{k: v for k, v in result._asdict().items() if k != "rankings"} for result in results],
    )
    draw(digits, results[0], results[-1], directory / "digits.png")
    return results


def write_pictures(digits: Digits, directory: Path) -> list[dict[str, Any]]:
    """Every digit of the gallery as a little PNG file, dark on white, for the page; the items of an index of them."""
    try:
        from PIL import Image
    except ImportError as error:
        raise MissingExtra("Pillow", "demo") from error
    directory.mkdir(exist_ok=True)
    items = []
    for number, (pixels, label) in enumerate(zip(digits.gallery, digits.labels.tolist(), strict=True)):
        name = f"{label}-{number:04d}.png"
        grey = np.round(255 * (1 - pixels.reshape(8, 8) / 16)).astype(np.uint8)
        Image.fromarray(grey).resize((128, 128), Image.Resampling.BICUBIC).save(directory / name)
        items.append({"name": name, "label": label})
    return items


def _measure(method: str, digits: Digits, search: Search, offline: BuildSummary | None = None) -> Result:
    search(digits.queries, 10)  # the first search loads the kernels
    started = time.perf_counter()
    search(digits.queries, 10)
    milliseconds = (time.perf_counter() - started) * 1000 / len(digits.queries)
    rankings = search(digits.queries, len(digits.gallery))
    judgements = class_judgements(digits.labels, digits.query_labels)
    quality = 100 * mean_average_precision(rankings, judgements, "classes").mean
    seconds = 0.0 if offline is None else sum(offline.seconds.values())
    return Result(method, round(quality, 2), round(milliseconds, 3), round(seconds, 2), rankings)


def draw(digits: Digits, plain: Result, diffused: Result, path: Path) -> None:
    """Queries with their k-NN row and their diffusion row: four that gain most, and the one that loses most."""
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("matplotlib", "demo") from error
    gain = _precisions(digits, diffused.rankings) - _precisions(digits, plain.rankings)
    order = np.argsort(gain, kind="stable")
    chosen = [*order[::-1][:4], order[0]]
    figure = Figure(figsize=(10, 11), facecolor="white")
    FigureCanvasAgg(figure)
    figure.suptitle(
        "Nearest neighbours and diffusion: the first ten of 1,597 scanned digits\n"
        "four queries that gain most, and the one that loses most",
        fontsize=13,
    )
    grid = figure.add_gridspec(
        2 * len(chosen), SHOWN + 2, top=0.91, bottom=0.05, left=0.02, right=0.98, hspace=0.25, wspace=0.12
    )
    for place, query in enumerate(chosen):
        axes = figure.add_subplot(grid[2 * place : 2 * place + 2, 0])
        _picture(axes, digits.queries[query], "#222222")
        axes.set_title(f"query: {digits.query_labels[query]}", fontsize=10)
        for line, result in enumerate((plain, diffused)):
            row = 2 * place + line
            word = figure.add_subplot(grid[row, 1])
            word.axis("off")
            word.text(1.0, 0.5, "k-NN" if line == 0 else "diffusion", ha="right", va="center", fontsize=9)
            for rank, element in enumerate(result.rankings[query][:SHOWN]):
                right = digits.labels[element] == digits.query_labels[query]
                cell = figure.add_subplot(grid[row, rank + 2])
                _picture(cell, digits.gallery[element], "#1a9850" if right else "#d73027")
                if not right:  # red and green alone are not for everyone
                    cell.plot([0.15, 7 - 0.15], [0.15, 7 - 0.15], color="#d73027", linewidth=1.2)
    figure.text(0.5, 0.015, "green frame: same digit · red frame and stroke: another digit", ha="center", fontsize=10)
    figure.savefig(path, dpi=110)


def _precisions(digits: Digits, rankings: NDArray[np.integer]) -> NDArray[np.float64]:
    """How good the first hits of each query are."""
    return np.array(
        [
            precision_at_hits(digits.labels[ranking[:SHOWN]] == label, SHOWN)
            for ranking, label in zip(rankings, digits.query_labels, strict=True)
        ]
    )


def _picture(axes: Any, pixels: NDArray[np.float64], frame: str) -> None:
    axes.imshow(pixels.reshape(8, 8), cmap="gray_r")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_color(frame)
        spine.set_linewidth(2.5)
