"""The verbs for researchers: evaluate, tune, reproduce, bench and datasets."""

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer
from typer import Argument, Option

from suffuse.cli.options import expand_groups
from suffuse.cli.terminal import console, make_table, pluralize, progress_bars, write_output
from suffuse.core.params import Params
from suffuse.errors import InvalidInput, InvalidParams

if TYPE_CHECKING:
    from suffuse.research.bench import Figures
    from suffuse.research.comparison import Result
    from suffuse.research.datasets import Dataset, Regional
    from suffuse.research.tuning import Point, Tuned

# Queries that are held out of a class set if no number is given: this many, or a tenth.
_HELD_OUT = 500
_DATA = Path("data")
_COSTS = ("ms per query", "offline s", "bytes per image")

DataArgument = Annotated[
    str,
    Argument(
        metavar="DATA",
        help="Gallery features (with --queries and --truth), an .npz with labels, a published .mat file,"
        " or a folder with gallery_rmac.npy and ground_truth.json.",
    ),
]
SeedsOption = Annotated[int, Option(help="Nearest elements of a query to start from.")]
RegionalKOption = Annotated[int, Option(help="Neighbours in the graph of regions.")]
JsonOption = Annotated[Path | None, Option("--json", metavar="OUT", help="Write everything, per query, as JSON.")]


class DataOptions(NamedTuple):
    """The queries of a data set, and how they are judged."""

    queries: Annotated[str | None, Option(metavar="Q", help="Query features; of classes, how many to hold out.")] = None
    truth: Annotated[Path | None, Option(metavar="FILE", help="Ground truth, .json or .pkl.")] = None
    revisited: Annotated[bool, Option("--revisited", help="Of a folder: the revisited queries and truth.")] = False
    leave_one_out: Annotated[bool, Option("--leave-one-out", help="Class set: queries stay in the gallery.")] = False

    def load(self, data: str, regional: "Regional | None" = None) -> "Dataset":
        """The data set that the options describe."""
        import numpy as np

        from suffuse.research.datasets import assemble, read_class_set, read_folder, read_mat, read_truth
        from suffuse.store.feature_files import load

        path, queries = Path(data), self.queries
        if path.is_dir():
            return read_folder(path, self.revisited)
        if self.truth is None and path.suffix.lower() == ".mat":
            return read_mat(path)
        if self.truth is None and path.suffix.lower() == ".npz":
            if queries is not None and not queries.isdigit():
                raise InvalidParams(f"--queries of a class set is how many to hold out, got {queries!r}")
            count = int(queries) if queries else min(_HELD_OUT, max(1, len(load(path).features) // 10))
            return read_class_set(path, count, np.random.default_rng(0), leave_one_out=self.leave_one_out)
        if self.truth is None or queries is None:
            raise InvalidInput(f"{path.name} alone cannot be judged; give --queries and --truth, or .npz with labels")
        features, asked = load(path).features, load(queries, least_rows=1).features
        return assemble(path.stem, features, asked, read_truth(self.truth), regional=regional)


class RegionOptions(NamedTuple):
    """The files of regional features: all of them, or none."""

    regions: Annotated[Path | None, Option(metavar="FILE", help="Regional features.")] = None
    region_owners: Annotated[Path | None, Option(metavar="FILE", help="The image of each region, .npy.")] = None
    query_regions: Annotated[Path | None, Option(metavar="FILE", help="Regional features of the queries.")] = None
    query_region_owners: Annotated[Path | None, Option(metavar="FILE", help="The query of each of them, .npy.")] = None

    def read(self) -> "Regional | None":
        """What the files hold."""
        from suffuse.research.datasets import read_regional

        files = [file for file in self if file is not None]
        if files and len(files) < len(self):
            options = ", ".join(f"--{name.replace('_', '-')}" for name in self._fields)
            raise InvalidParams(f"regional features need all of {options}")
        return read_regional(*files) if files else None


@expand_groups
def evaluate(
    data: DataArgument,
    judged: DataOptions,
    regional: RegionOptions,
    params: Annotated[Params, ("k", "graph", "alpha", "truncation", "keep", "whiten", "whiten_power")],
    methods: Annotated[
        str, Option(metavar="A,B,...", help="Methods to compare; 'all' for every one the data allows.")
    ] = "knn,aqe,online-early,paper,graph,refined",
    seeds: SeedsOption = 10,
    regional_k: RegionalKOption = 200,
    regional_seeds: Annotated[int, Option(help="Nearest regions of each region of a query to start from.")] = 3,
    pooling: Annotated[
        Literal["sum", "max", "gmp"], Option(help="How the regional method makes one score of an image's regions.")
    ] = "sum",
    weight: Annotated[float, Option(help="Share of the regional scores in fusion.")] = 0.2,
    postgres: Annotated[str | None, Option(metavar="URL", help="Also rank by SQL alone, in this database.")] = None,
    json_out: JsonOption = None,
) -> None:
    """Compare methods on a data set with known truth: quality, time and size side by side.

    Methods: knn, aqe, alpha-qe, dba, online, online-early, online-late, spectral, paper, graph and refined (ours); with
    regions also r-match, r-match-aqe, matched, online-regional, regional, regional-refined, fusion; with --postgres
    also sql: graph, exported to its schema suffuse_evaluate.
    """
    from suffuse.research.comparison import advise, compare, count_positives
    from suffuse.research.methods import Setting, Workshop, check_names, list_available

    dataset = judged.load(data, regional.read())
    names = list_available(dataset) if methods == "all" else [name.strip() for name in methods.split(",")]
    check_names(names)
    names += [] if postgres is None else ["sql"]
    setting = Setting(
        params=params, regional_params=Params(k=regional_k), seeds=seeds, regional_seeds=regional_seeds,
        pooling=pooling, weight=weight, postgres=postgres,
    )  # fmt: skip
    status = console(stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        shop = Workshop(dataset, setting, Path(folder))
        results = compare(shop, names, lambda name: status.print(f"running {name} ..."))
        graph = shop.graph_index.manifest.graph
    _print_results(dataset, results)
    for warning in advise(graph, len(dataset.features), params, count_positives(dataset), results):
        status.print(f"[yellow]Does diffusion help here?[/yellow] {warning}", soft_wrap=True)
    content = {
        "dataset": dataset.name,
        "images": len(dataset.features),
        "queries": len(dataset.queries),
        "query_names": dataset.query_names,
        "params": params.to_dict(),
        "seeds": seeds,
        "graph": graph,
        "results": [result._asdict() for result in results],
    }
    _write_json(json_out, content)


@expand_groups
def tune(
    data: DataArgument,
    judged: DataOptions,
    params: Annotated[Params, ("whiten", "whiten_power")],
    json_out: JsonOption = None,
) -> None:
    """Find good parameters: a small grid over k, alpha, truncation, keep and seeds, quality against cost.

    Half of the queries choose, the other half judges the choice.
    """
    from suffuse.research import tuning
    from suffuse.research.methods import Setting

    status = console(stderr=True)
    outcome = tuning.tune(
        judged.load(data), Setting(params=params), report=lambda point: status.print(f"tried {_describe(point)}")
    )
    _print_tuning(outcome)
    typer.echo(
        f"On the queries that were held back: {outcome.held_out_before:.1f} with the defaults,"
        f" {outcome.held_out_after:.1f} with {_describe(outcome.chosen)}"
    )
    _write_json(json_out, {**outcome._asdict(), "points": [p._asdict() for p in outcome.points]})


@expand_groups
def reproduce(
    data: DataArgument,
    output: Annotated[Path, Option("-o", "--output", metavar="DIR", help="Where tables and figures go.")],
    judged: DataOptions,
    params: Annotated[Params, ("k", "whiten", "whiten_power")],
    regional_k: RegionalKOption = 200,
    quick: Annotated[bool, Option("--quick", help="Fewer methods and points: minutes instead of an hour.")] = False,
    pictures: Annotated[bool, Option(help="Show photographs in the page, where there are thumbnails.")] = True,
) -> None:
    """Reproduce the paper's table and figures on a data set: raw JSON, Markdown, pictures and one report page."""
    from suffuse.research import experiments
    from suffuse.research.methods import Setting

    dataset, status = judged.load(data), console(stderr=True)
    setting = Setting(params=params, regional_params=Params(k=regional_k))
    # The name only: the path of somebody's machine does not belong in a report.
    words = [f"suffuse reproduce {Path(data).name}", "--revisited" if judged.revisited else ""]
    words += ["--quick" if quick else ""]
    words += [f"--whiten {params.whiten} --whiten-power {params.whiten_power:g}" if params.whiten else ""]
    command = " ".join(filter(None, [*words, f"--k {params.k}", "" if pictures else "--no-pictures"]))
    page = experiments.reproduce(
        dataset, setting, output, quick, lambda what: status.print(f"{what} ..."), pictures=pictures, command=command
    )
    typer.echo(str(page))


@expand_groups
def bench(
    params: Annotated[Params, ("k", "truncation", "keep", "whiten")],
    features: Annotated[
        str | None, Argument(metavar="[FEATURES]", help="Your features, as for build; a synthetic set without them.")
    ] = None,
    n: Annotated[int | None, Option("--n", help="Elements: of the synthetic set, or at random of FEATURES.")] = None,
    dimensions: Annotated[int, Option(help="Dimensions of the synthetic set.")] = 512,
    seeds: SeedsOption = 10,
    queries: Annotated[int, Option(help="Elements that are kept out of the index, to ask with.")] = 200,
    jobs: Annotated[int | None, Option(metavar="N", help="Threads of the build.", show_default="all cores")] = None,
    online: Annotated[bool, Option(help="Compare with diffusion at query time; it takes longer.")] = True,
    json_out: Annotated[Path | None, Option("--json", metavar="OUT", help="Write all figures as JSON.")] = None,
) -> None:
    """Measure on this machine: the build by stage, bytes per image, and queries beside plain k-NN.

    The index is built in a temporary directory and removed. Queries run one at a time, on one thread, warm.
    """
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
        name, rows = "synthetic set", manifold(n or 20_000, dimensions, rng=rng).features
    else:
        name, rows = Path(features).name, load(features).features
        if n is not None and n < len(rows):
            rows = rows[np.sort(rng.choice(len(rows), n, replace=False))]
    with tempfile.TemporaryDirectory() as folder, progress_bars() as progress:
        figures = run(
            rows, Path(folder), params, queries=queries, seeds=seeds, jobs=jobs, online=online, rng=rng,
            progress=progress,
        )  # fmt: skip
    _print_figures(name, figures)
    latency = {way: found._asdict() for way, found in figures.latency.items()}
    _write_json(json_out, {**figures._asdict(), "latency": latency, "features": name})


datasets = typer.Typer(help="Public data sets: list those that are known, and fetch them.", no_args_is_help=True)


@datasets.command("list")
def list_datasets() -> None:
    """List the data sets that are known, with their files."""
    from suffuse.research.datasets import list_public

    for name, public in list_public().items():
        typer.echo(f"{name}: {public['title']}")
        for file in public["files"]:
            typer.echo(f"    {file['url'].rpartition('/')[2]}  {file['url']}")


@datasets.command("fetch")
def fetch_dataset(
    name: Annotated[str, Argument(metavar="NAME", help="As `suffuse datasets list` has it.")],
    output: Annotated[Path, Option("-o", "--output", metavar="FOLDER", help="Where the files go.")] = _DATA,
    mirror: Annotated[str | None, Option(metavar="URL", help="Another address of the same files.")] = None,
) -> None:
    """Fetch a data set and check it; what was interrupted goes on where it stopped."""
    from suffuse.research.datasets import fetch

    with progress_bars() as progress:
        paths = fetch(name, output, mirror, progress)
    typer.echo("\n".join(map(str, paths)))


def _format_costs(row: "Result | Point") -> tuple[str, str, str]:
    offline = f"{row.offline_seconds:.1f}" if row.offline_seconds else "-"
    return f"{row.milliseconds:.2f}", offline, f"{row.bytes_per_image:,.0f}"


def _print_results(dataset: "Dataset", results: "list[Result]") -> None:
    single = len(dataset.protocols) == 1
    table = make_table(
        f"{dataset.name}: {len(dataset.queries)} queries, {len(dataset.features):,} images",
        *("method", *("mAP" if single else f"mAP {protocol}" for protocol in dataset.protocols)),
        *("gain over k-NN [95%]", *_COSTS),
    )
    for result in results:
        gains = [f"{d:+.1f} [{low:+.1f}, {high:+.1f}]" for d, low, high in result.gain.values()]
        quality = [f"{value:.2f}" for value in result.quality.values()]
        gain = "" if result.method == "knn" else "\n".join(gains)
        table.add_row(result.method, *quality, gain, *_format_costs(result))
    console(stderr=False).print(table)
    for protocol, count in results[0].left_out.items() if results else ():
        if count:
            typer.echo(f"{count} queries have no positive in {protocol} and are left out", err=True)


def _print_tuning(outcome: "Tuned") -> None:
    from suffuse.research.tuning import find_pareto

    best = find_pareto(outcome.points)
    title = "what was tried; * no other is better, smaller and quicker at once"
    table = make_table(title, *outcome.chosen.values, "mAP", *_COSTS, "")
    for point in outcome.points:
        mark = ("*" if point in best else "") + (" chosen" if point is outcome.chosen else "")
        table.add_row(*map(str, point.values.values()), f"{point.quality:.2f}", *_format_costs(point), mark)
    console(stderr=False).print(table)


def _describe(point: "Point") -> str:
    return ", ".join(f"{name} {value}" for name, value in point.values.items())


def _print_figures(name: str, figures: "Figures") -> None:
    from rich.markup import escape

    out, graph = console(stderr=False), figures.graph
    out.print(f"[bold]{escape(name)}[/bold]: {figures.elements:,} elements of {figures.dimensions} dimensions")
    total = sum(figures.seconds.values())
    built = make_table(f"build, on {pluralize(figures.threads, 'thread')}", "stage", "seconds", "share")
    for stage, seconds in figures.seconds.items():
        built.add_row(stage, f"{seconds:.2f}", f"{seconds / total:.0%}")
    built.add_row("all", f"{total:.2f}", f"{1e6 * total / figures.elements:,.0f} µs per element", style="bold")
    size = make_table("on disk", "part", "bytes per image", "MB")
    features = figures.bytes["features.npy"]
    everything = sum(figures.bytes.values())
    for part, count in (("features", features), ("columns and the rest", everything - features), ("all", everything)):
        style = "bold" if part == "all" else ""
        size.add_row(part, f"{count / figures.elements:,.0f}", f"{count / 1e6:,.1f}", style=style)
    plain = figures.latency["k-NN alone"].p50
    title = f"{figures.queries:,} queries, one at a time, on one thread"
    asked = make_table(title, "", "p50 ms", "p99 ms", "of k-NN alone")
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


def _write_json(path: Path | None, content: dict[str, Any]) -> None:
    if path is not None:
        write_output(path, [json.dumps(content, indent=1).encode(), b"\n"])
