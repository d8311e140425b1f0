"""The main job on real data that comes with scikit-learn: 1,797 scanned digits, a ninth of them as queries."""

import functools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from suffuse.core.params import Progress
from suffuse.errors import name_extra
from suffuse.index.index import Index, build
from suffuse.research.baselines import QueryExpansion
from suffuse.research.evaluation import judge_classes, mean_average_precision, precision_at_hits
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


class Row(NamedTuple):
    """One row of the demo's table."""

    method: str
    mean_average_precision: float  # in per cent
    milliseconds: float  # per query, top 10, in one batch
    offline_seconds: float
    rankings: NDArray[np.integer]  # (m, n)


def load_digits() -> Digits:
    """Every ninth picture is a query, the others are the gallery."""
    with name_extra("scikit-learn", "demo"):
        from sklearn.datasets import load_digits as load_from_sklearn
    pictures, labels = load_from_sklearn(return_X_y=True)
    is_query = np.arange(len(pictures)) % 9 == 0
    return Digits(pictures[~is_query], labels[~is_query], pictures[is_query], labels[is_query])


def run(directory: Path, progress: Progress | None = None) -> list[Row]:
    """Build both indexes in `directory`, search with every method, and write the picture and the figures there."""
    digits = load_digits()
    directory.mkdir(parents=True, exist_ok=True)
    pictures = directory / "pictures"
    names = write_pictures(digits, pictures)

    make = functools.partial(
        build, digits.gallery, k=GRAPH_K, names=names, pictures={"root": str(pictures.resolve())}, force=True,
        progress=progress,
    )  # fmt: skip
    ours = make(directory / "digits.index", with_graph=True)
    paper = make(directory / "digits-paper.index", graph="paper", support="features", keep=1000)
    expansion = QueryExpansion(ours.features)
    rows = [
        _measure("k-NN", digits, lambda q, top: ours.search(q, top, method="knn").ids),
        _measure("AQE", digits, lambda q, top: expansion.rank(ours.prepare(q), top).ids),
        _measure("diffusion, the paper's", digits, lambda q, top: paper.search(q, top, refine=0).ids, paper),
        _measure("diffusion, ours", digits, lambda q, top: ours.search(q, top, refine=0).ids, ours),
        _measure("the same with a second look", digits, lambda q, top: ours.search(q, top).ids, ours),
    ]
    content = [{name: value for name, value in row._asdict().items() if name != "rankings"} for row in rows]
    write_json(directory / "digits.json", content)
    draw(digits, rows[0], rows[-1], directory / "digits.png")
    return rows


def write_pictures(digits: Digits, directory: Path) -> list[dict[str, Any]]:
    """Write every digit of the gallery as a little PNG file, dark on white; return the items of an index of them."""
    with name_extra("Pillow", "demo"):
        from PIL import Image
    directory.mkdir(exist_ok=True)
    items = []
    for number, (pixels, label) in enumerate(zip(digits.gallery, digits.labels.tolist(), strict=True)):
        name = f"{label}-{number:04d}.png"
        grey = np.round(255 * (1 - pixels.reshape(8, 8) / 16)).astype(np.uint8)
        Image.fromarray(grey).resize((128, 128), Image.Resampling.BICUBIC).save(directory / name)
        items.append({"name": name, "label": label})
    return items


def _measure(method: str, digits: Digits, search: Search, index: Index | None = None) -> Row:
    search(digits.queries, 10)  # the first search loads the kernels
    started = time.perf_counter()
    search(digits.queries, 10)
    milliseconds = (time.perf_counter() - started) * 1000 / len(digits.queries)
    rankings = search(digits.queries, len(digits.gallery))
    judgements = judge_classes(digits.labels, digits.query_labels)
    quality = 100 * mean_average_precision(rankings, judgements, "classes").mean
    seconds = sum(index.summary.seconds.values()) if index is not None and index.summary else 0.0
    return Row(method, round(quality, 2), round(milliseconds, 3), round(seconds, 2), rankings)


def draw(digits: Digits, plain: Row, diffused: Row, path: Path) -> None:
    """Queries with their k-NN row and their diffusion row: four that gain most, and the one that loses most."""
    with name_extra("matplotlib", "demo"):
        from matplotlib.figure import Figure
    gain = _judge_first_hits(digits, diffused.rankings) - _judge_first_hits(digits, plain.rankings)
    order = np.argsort(gain, kind="stable")
    chosen = [*order[::-1][:4], order[0]]
    figure = Figure(figsize=(10, 11), facecolor="white")
    figure.suptitle(
        "Nearest neighbours and diffusion: the first ten of 1,597 scanned digits\n"
        "four queries that gain most, and the one that loses most",
        fontsize=13,
    )
    grid = figure.add_gridspec(
        2 * len(chosen), SHOWN + 2, top=0.91, bottom=0.05, left=0.02, right=0.98, hspace=0.25, wspace=0.12
    )
    for first, query in zip(range(0, 2 * len(chosen), 2), chosen, strict=True):
        axes = figure.add_subplot(grid[first : first + 2, 0])
        _draw_digit(axes, digits.queries[query], "#222222")
        axes.set_title(f"query: {digits.query_labels[query]}", fontsize=10)
        for line, word, row in ((first, "k-NN", plain), (first + 1, "diffusion", diffused)):
            label = figure.add_subplot(grid[line, 1])
            label.axis("off")
            label.text(1.0, 0.5, word, ha="right", va="center", fontsize=9)
            for rank, element in enumerate(row.rankings[query][:SHOWN]):
                right = digits.labels[element] == digits.query_labels[query]
                cell = figure.add_subplot(grid[line, rank + 2])
                _draw_digit(cell, digits.gallery[element], "#1a9850" if right else "#d73027")
                if not right:  # red and green alone are not for everyone
                    cell.plot([0.15, 7 - 0.15], [0.15, 7 - 0.15], color="#d73027", linewidth=1.2)
    figure.text(0.5, 0.015, "green frame: same digit · red frame and stroke: another digit", ha="center", fontsize=10)
    figure.savefig(path, dpi=110)


def _judge_first_hits(digits: Digits, rankings: NDArray[np.integer]) -> NDArray[np.float64]:
    """How good the first hits of each query are."""
    relevant = digits.labels[rankings[:, :SHOWN]] == digits.query_labels[:, None]
    return np.array([precision_at_hits(row, SHOWN) for row in relevant])


def _draw_digit(axes: Any, pixels: NDArray[np.float64], frame: str) -> None:
    axes.imshow(pixels.reshape(8, 8), cmap="gray_r")
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(color=frame, linewidth=2.5)
