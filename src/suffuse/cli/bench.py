"""The verb bench: what an index of your features costs on your machine."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from suffuse.cli.terminal import console, progress_bars
from suffuse.core.params import Params
from suffuse.errors import InvalidInput, InvalidParams

if TYPE_CHECKING:
    from rich.table import Table

    from suffuse.research.bench import Figures

_DEFAULTS = Params()
# Elements and dimensions of the synthetic set, where there are no features.
_SYNTHETIC, _DIMENSIONS = 20_000, 512


def bench(
    features: Annotated[
        str | None,
        typer.Argument(
            metavar="[FEATURES]", show_default=False, help="Your features, as for build; a synthetic set without them."
        ),
    ] = None,
    n: Annotated[
        int | None, typer.Option("--n", help="So many elements: of the synthetic set, or at random of FEATURES.")
    ] = None,
    dimensions: Annotated[int, typer.Option(help="Dimensions of the synthetic set.")] = _DIMENSIONS,
    k: Annotated[int, typer.Option("--k", "-k", help="Neighbours in the graph.")] = _DEFAULTS.k,
    truncation: Annotated[int, typer.Option(help="L, elements in the support of a column.")] = _DEFAULTS.truncation,
    keep: Annotated[int, typer.Option(help="Entries of each column that are stored.")] = _DEFAULTS.keep,
    whiten: Annotated[int | None, typer.Option(metavar="D", help="PCA-whiten to D dimensions.")] = None,
    seeds: Annotated[int, typer.Option(help="Nearest elements of a query to start from.")] = 10,
    queries: Annotated[int, typer.Option(help="Elements that are kept out of the index, to ask with.")] = 200,
    jobs: Annotated[
        int | None, typer.Option(metavar="N", help="Threads of the build.", show_default="all cores")
    ] = None,
    online: Annotated[
        bool, typer.Option(help="Compare with diffusion at query time; it needs the neighbours once more.")
    ] = True,
    json_out: Annotated[Path | None, typer.Option("--json", metavar="OUT", help="Write all figures as JSON.")] = None,
) -> None:
    """Measure on this machine: the build by stage, bytes per image, and queries beside plain k-NN.

    The index is built in a temporary directory and removed. Queries run one at a time, on one thread, warm.
    """
    params = Params(k=k, truncation=truncation, keep=keep, whiten=whiten)
    for name, count in (("n", n), ("dimensions", dimensions), ("seeds", seeds), ("queries", queries)):
        if count is not None and count < 1:
            raise InvalidParams(f"{name} must be a whole number of at least 1, got {count!r}")
    if json_out is not None and not json_out.absolute().parent.is_dir():
        # Better now than after the measurement.
        raise InvalidInput(f"{json_out} cannot be written: there is no directory {json_out.parent}; make it first")
    import numpy as np

    from suffuse.research.bench import run
    from suffuse.research.synthetic import manifold
    from suffuse.store.feature_files import load

    rng = np.random.default_rng(0)
    if features is None:
        name, rows = "synthetic set", manifold(n or _SYNTHETIC, dimensions, rng=rng).features
    else:
        name, rows = Path(features).name, load(features).features
        if n is not None and n < len(rows):
            rows = rows[np.sort(rng.choice(len(rows), n, replace=False))]
    with tempfile.TemporaryDirectory() as folder, progress_bars() as progress:
        figures = run(
            rows, Path(folder), params, queries=queries, seeds=seeds, jobs=jobs, online=online, rng=rng,
            progress=progress,
        )  # fmt: skip
    _print(name, figures)
    if json_out is not None:
        _write(json_out, name, figures)


def _print(name: str, figures: "Figures") -> None:
    from rich.markup import escape

    out, graph = console(stderr=False), figures.graph
    out.print(f"[bold]{escape(name)}[/bold]: {figures.elements:,} elements of {figures.dimensions} dimensions")
    total = sum(figures.seconds.values())
    built = _table(f"build, on {_threads(figures.threads)}", "stage", "seconds", "share")
    for stage, seconds in figures.seconds.items():
        built.add_row(stage, f"{seconds:.2f}", f"{seconds / total:.0%}")
    built.add_row("all", f"{total:.2f}", f"{1e6 * total / figures.elements:,.0f} µs per element", style="bold")
    size = _table("on disk", "part", "bytes per image", "MB")
    features = figures.bytes["features.npy"]
    everything = sum(figures.bytes.values())
    for part, count in (("features", features), ("columns and the rest", everything - features), ("all", everything)):
        size.add_row(
            part, f"{count / figures.elements:,.0f}", f"{count / 1e6:,.1f}", style="bold" if part == "all" else ""
        )
    plain = figures.latency["k-NN alone"].p50
    asked = _table(
        f"{figures.queries:,} queries, one at a time, on one thread", "", "p50 ms", "p99 ms", "of k-NN alone"
    )
    for way, latency in figures.latency.items():
        asked.add_row(way, f"{latency.p50:.3f}", f"{latency.p99:.3f}", f"{latency.p50 / plain:.2f} x")
    for table in (built, size, asked):
        out.print(table)
    out.print(
        f"graph: {graph['edges']:,} edges, degree {graph['degree_mean']:.1f} on average,"
        f" {graph['isolated'] / figures.elements:.1%} isolated, {graph['components']:,} components,"
        f" the largest with {graph['largest_component'] / figures.elements:.1%};"
        f" {figures.unconverged:,} columns unconverged",
        soft_wrap=True,
    )
    out.print(f"machine: {escape(figures.cpu)}", soft_wrap=True)


def _table(title: str, *heads: str) -> "Table":
    from rich.table import Table

    table = Table(title=title, title_justify="left")
    table.add_column(heads[0])
    for head in heads[1:]:
        table.add_column(head, justify="right")
    return table


def _threads(count: int) -> str:
    return "1 thread" if count == 1 else f"{count} threads"


def _write(path: Path, name: str, figures: "Figures") -> None:
    from suffuse.store.files import write_json

    latency = {way: found._asdict() for way, found in figures.latency.items()}
    try:
        write_json(path, {**figures._asdict(), "latency": latency, "features": name})
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}; choose another place") from error
