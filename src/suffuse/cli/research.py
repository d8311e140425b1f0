"""The verbs for researchers: evaluate, tune, reproduce and datasets."""

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from suffuse.cli.terminal import console, progress_bars
from suffuse.core.params import Params
from suffuse.errors import InvalidInput, InvalidParams

if TYPE_CHECKING:
    from suffuse.research.comparison import Result
    from suffuse.research.datasets import Dataset, Regional
    from suffuse.research.methods import Setting
    from suffuse.research.tuning import Point

Pooling = Literal["sum", "max", "gmp"]

_DEFAULTS = Params()
# Queries that are held out of a class set if no number is given: this many, or a tenth.
_HELD_OUT = 500

DataArgument = Annotated[
    str,
    typer.Argument(
        metavar="DATA",
        show_default=False,
        help="Gallery features (with --queries and --truth), an .npz with labels, a published .mat file,"
        " or a folder with gallery_rmac.npy and ground_truth.json.",
    ),
]
QueriesOption = Annotated[
    str | None,
    typer.Option("--queries", metavar="Q", help="A file of query features; for a class set, how many to hold out."),
]
TruthOption = Annotated[Path | None, typer.Option("--truth", metavar="FILE", help="Ground truth, .json or .pkl.")]
RevisitedOption = Annotated[bool, typer.Option("--revisited", help="Of a folder: the revisited queries and truth.")]
LeaveOneOutOption = Annotated[
    bool,
    typer.Option("--leave-one-out", help="Of a class set: queries stay in the gallery (transductive)."),
]
RegionsOption = Annotated[Path | None, typer.Option("--regions", metavar="FILE", help="Regional features.")]
RegionOwnersOption = Annotated[
    Path | None, typer.Option("--region-owners", metavar="FILE", help="The image of each region, .npy.")
]
QueryRegionsOption = Annotated[
    Path | None, typer.Option("--query-regions", metavar="FILE", help="Regional features of the queries.")
]
QueryRegionOwnersOption = Annotated[
    Path | None, typer.Option("--query-region-owners", metavar="FILE", help="The query of each of them, .npy.")
]
WhitenOption = Annotated[int | None, typer.Option("--whiten", metavar="D", help="PCA-whiten to D dimensions.")]
PowerOption = Annotated[float, typer.Option("--whiten-power", metavar="P", help="Whitening power, 0 to 1.")]
KOption = Annotated[int, typer.Option("--k", help="Neighbours in the graph.")]
AlphaOption = Annotated[float, typer.Option("--alpha", help="How far the walk goes.")]
TruncationOption = Annotated[int, typer.Option("--truncation", help="L, elements in the support of a column.")]
KeepOption = Annotated[int, typer.Option("--keep", help="Entries of each column that are stored.")]
SeedsOption = Annotated[int, typer.Option("--seeds", help="Nearest elements of a query to start from.")]
JsonOption = Annotated[Path | None, typer.Option("--json", metavar="OUT", help="Write everything, per query, as JSON.")]


def evaluate(
    data: DataArgument,
    queries: QueriesOption = None,
    truth: TruthOption = None,
    revisited: RevisitedOption = False,
    leave_one_out: LeaveOneOutOption = False,
    regions: RegionsOption = None,
    region_owners: RegionOwnersOption = None,
    query_regions: QueryRegionsOption = None,
    query_region_owners: QueryRegionOwnersOption = None,
    whiten: WhitenOption = None,
    whiten_power: PowerOption = _DEFAULTS.whiten_power,
    methods: Annotated[
        str, typer.Option(metavar="A,B,...", help="Methods to compare; 'all' for every one the data allows.")
    ] = "knn,aqe,online-early,features,graph,refined",
    k: KOption = _DEFAULTS.k,
    alpha: AlphaOption = _DEFAULTS.alpha,
    truncation: TruncationOption = _DEFAULTS.truncation,
    keep: KeepOption = _DEFAULTS.keep,
    seeds: SeedsOption = 10,
    regional_k: Annotated[int, typer.Option(help="Neighbours in the graph of regions.")] = 50,
    regional_seeds: Annotated[int, typer.Option(help="Nearest regions of each region of a query to start from.")] = 3,
    pooling: Annotated[
        Pooling, typer.Option(help="How the regional method makes one score of an image's regions.")
    ] = "sum",
    weight: Annotated[float, typer.Option(help="Share of the regional scores in fusion.")] = 0.2,
    postgres: Annotated[
        str | None, typer.Option(metavar="URL", help="Also rank by SQL alone, in this database.", show_default=False)
    ] = None,
    json_out: JsonOption = None,
) -> None:
    """Compare methods on a data set with known truth: quality, time and size side by side.

    Methods: knn, aqe, alpha-qe, dba, online, online-early, online-late, spectral, features (the paper), graph and
    refined (ours); with regions also r-match, r-match-aqe, matched, online-regional, regional,
    regional-refined, fusion; with --postgres also sql: graph, exported to its schema suffuse_evaluate.
    """
    from suffuse.research.comparison import compare
    from suffuse.research.methods import METHODS, Workshop, available

    regional = _regional(regions, region_owners, query_regions, query_region_owners)
    dataset = _dataset(data, queries, truth, revisited, leave_one_out, regional)
    names = available(dataset) if methods == "all" else [name.strip() for name in methods.split(",")]
    for name in names:
        if name not in METHODS:
            raise InvalidParams(f"method {name!r} is unknown; known are: {', '.join(METHODS)}")
    params = Params(k=k, alpha=alpha, truncation=truncation, keep=keep, whiten=whiten, whiten_power=whiten_power)
    setting = _setting(params, Params(k=regional_k), seeds, regional_seeds, weight)
    setting = replace(setting, pooling=pooling, postgres=postgres)
    names += [] if postgres is None else ["sql"]
    status = console(stderr=True)
    with tempfile.TemporaryDirectory() as folder:
        shop = Workshop(dataset, setting, Path(folder))
        results = compare(shop, names, lambda name: status.print(f"running {name} ..."))
        graph = shop.graph_index[0].manifest.graph
    _print_results(dataset, results)
    for warning in _warnings(dataset, graph, params.k):
        status.print(f"[yellow]Does diffusion help here?[/yellow] {warning}", soft_wrap=True)
    if json_out is not None:
        content = {
            "dataset": dataset.name,
            "images": len(dataset.features),
            "queries": len(dataset.queries),
            "query_names": dataset.query_names,
            "params": params.to_dict(),
            "seeds": seeds,
            "graph": graph,
            "results": [result.to_dict() for result in results],
        }
        _write(json_out, content)


def tune(
    data: DataArgument,
    queries: QueriesOption = None,
    truth: TruthOption = None,
    revisited: RevisitedOption = False,
    whiten: WhitenOption = None,
    whiten_power: PowerOption = _DEFAULTS.whiten_power,
    json_out: JsonOption = None,
) -> None:
    """Find good parameters: a small grid over k, alpha, truncation, keep and seeds, quality against cost.

    Half of the queries choose, the other half judges the choice.
    """
    from suffuse.research.tuning import GRID, pareto
    from suffuse.research.tuning import tune as tune_dataset

    dataset = _dataset(data, queries, truth, revisited, False, None)
    params = Params(whiten=whiten, whiten_power=whiten_power)
    status = console(stderr=True)
    outcome = tune_dataset(
        dataset, _setting(params, Params(), 10, 3, 0.2), GRID, lambda point: status.print(f"tried {_in_words(point)}")
    )
    _print_tuning(outcome.points, list(pareto(outcome.points)), outcome.chosen)
    typer.echo(
        f"On the queries that were held back: {outcome.held_out_before:.1f} with the defaults,"
        f" {outcome.held_out_after:.1f} with {_in_words(outcome.chosen)}"
    )
    if json_out is not None:
        _write(json_out, {**outcome._asdict(), "points": [p._asdict() for p in outcome.points]})


def reproduce(
    data: DataArgument,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="DIR", show_default=False, help="Where tables and figures go.")
    ],
    queries: QueriesOption = None,
    truth: TruthOption = None,
    revisited: RevisitedOption = False,
    leave_one_out: LeaveOneOutOption = False,
    whiten: WhitenOption = None,
    whiten_power: PowerOption = _DEFAULTS.whiten_power,
    k: KOption = _DEFAULTS.k,
    regional_k: Annotated[int, typer.Option(help="Neighbours in the graph of regions.")] = 50,
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer methods and points: minutes instead of an hour.")
    ] = False,
    pictures: Annotated[bool, typer.Option(help="Show photographs in the page, where there are thumbnails.")] = True,
) -> None:
    """Reproduce the paper's table and figures on a data set: raw JSON, Markdown, pictures and one report page."""
    from suffuse.research.experiments import reproduce as reproduce_paper

    dataset = _dataset(data, queries, truth, revisited, leave_one_out, None)
    setting = _setting(Params(k=k, whiten=whiten, whiten_power=whiten_power), Params(k=regional_k), 10, 3, 0.2)
    status = console(stderr=True)
    # The name only: the path of somebody's machine has no place in a report.
    words = [f"suffuse reproduce {Path(data).name}", "--revisited" if revisited else "", "--quick" if quick else ""]
    words += [f"--whiten {whiten} --whiten-power {whiten_power:g}" if whiten else "", f"--k {k}"]
    words += [] if pictures else ["--no-pictures"]
    page = reproduce_paper(
        dataset,
        setting,
        output,
        quick,
        lambda what: status.print(f"{what} ..."),
        pictures=pictures,
        command=" ".join(word for word in words if word),
    )
    typer.echo(str(page))


datasets = typer.Typer(help="Public data sets: list those that are known, and fetch them.", no_args_is_help=True)


@datasets.command("list")
def list_datasets() -> None:
    """List the data sets that are known, with their files."""
    from suffuse.research.fetching import KNOWN

    for name, known in KNOWN.items():
        typer.echo(f"{name}: {known.title}")
        for file in known.files:
            typer.echo(f"    {file.name}  {file.url}")


@datasets.command("fetch")
def fetch_dataset(
    name: Annotated[str, typer.Argument(metavar="NAME", show_default=False, help="As `suffuse datasets list` has it.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FOLDER", help="Where the files go.")] = Path(
        "data"
    ),
    mirror: Annotated[str | None, typer.Option(metavar="URL", help="Another place that has the same files.")] = None,
) -> None:
    """Fetch a data set; what was interrupted goes on where it stopped."""
    from suffuse.research.fetching import fetch

    with progress_bars() as report:
        paths = fetch(
            name, output, base=mirror, progress=lambda file, done, total: report(file, done, total or done + 1)
        )
    for path in paths:
        typer.echo(str(path))


def _regional(*files: Path | None) -> "Regional | None":
    if all(file is None for file in files):
        return None
    regions, owners, query_regions, query_owners = files
    if regions is None or owners is None or query_regions is None or query_owners is None:
        raise InvalidParams(
            "regional features need all of --regions, --region-owners, --query-regions and --query-region-owners"
        )
    from suffuse.research.datasets import Regional
    from suffuse.store.feature_files import load, load_owners

    return Regional(
        load(regions).features,
        load_owners(owners),
        load(query_regions, least_rows=1).features,
        load_owners(query_owners),
    )


def _dataset(
    data: str,
    queries: str | None,
    truth: Path | None,
    revisited: bool,
    leave_one_out: bool,
    regional: "Regional | None",
) -> "Dataset":
    """The data set that the arguments describe."""
    import numpy as np

    from suffuse.research.datasets import assemble, class_set, mat_set, oxford_folder, read_truth
    from suffuse.store.feature_files import load

    path = Path(data)
    if path.is_dir():
        return oxford_folder(path, revisited)
    if truth is None and path.suffix.lower() == ".mat":
        return mat_set(path)
    if truth is None and path.suffix.lower() == ".npz":
        if queries is not None and not queries.isdigit():
            raise InvalidParams(f"--queries of a class set is how many to hold out, got {queries!r}")
        count = int(queries) if queries else min(_HELD_OUT, max(1, len(load(path).features) // 10))
        return class_set(path, count, np.random.default_rng(0), leave_one_out=leave_one_out)
    if truth is None or queries is None:
        raise InvalidInput(f"{path.name} alone cannot be judged; give --queries and --truth, or an .npz with labels")
    return assemble(
        path.stem, load(path).features, load(queries, least_rows=1).features, read_truth(truth), regional=regional
    )


def _setting(params: Params, regional_params: Params, seeds: int, regional_seeds: int, weight: float) -> "Setting":
    from suffuse.research.methods import Setting

    if not 0 <= weight <= 1:
        raise InvalidParams(f"weight must be a number at least 0 and at most 1, got {weight!r}")
    for name, count in (("seeds", seeds), ("regional seeds", regional_seeds)):
        if count < 1:
            raise InvalidParams(f"{name} must be a whole number of at least 1, got {count!r}")
    return Setting(
        params=params, regional_params=regional_params, seeds=seeds, regional_seeds=regional_seeds, weight=weight
    )


def _warnings(dataset: "Dataset", graph: dict[str, float], k: int) -> list[str]:
    import numpy as np

    from suffuse.research.comparison import advise

    # The widest protocol: what counts is how many images show the same thing, however hard they are to find.
    positives = [[len(judgement.positives) for judgement in judged] for judged in dataset.protocols.values()]
    return advise(graph, len(dataset.features), k, np.max(positives, axis=0))


def _print_results(dataset: "Dataset", results: "list[Result]") -> None:
    from rich.table import Table

    table = Table(title=f"{dataset.name}: {len(dataset.queries)} queries, {len(dataset.features):,} images")
    table.add_column("method")
    for protocol in dataset.protocols:
        table.add_column("mAP" if len(dataset.protocols) == 1 else f"mAP {protocol}", justify="right")
    for heading in ("gain over k-NN [95%]", "ms per query", "offline s", "bytes per image"):
        table.add_column(heading, justify="right")
    for result in results:
        gains = [f"{d:+.1f} [{low:+.1f}, {high:+.1f}]" for d, low, high in result.gain.values()]
        table.add_row(
            result.method,
            *(f"{quality:.2f}" for quality in result.quality.values()),
            "" if result.method == "knn" else "\n".join(gains),
            f"{result.milliseconds:.2f}",
            f"{result.offline_seconds:.1f}" if result.offline_seconds else "-",
            f"{result.bytes_per_image:,.0f}",
        )
    console(stderr=False).print(table)
    for protocol, count in results[0].left_out.items() if results else ():
        if count:
            typer.echo(f"{count} queries have no positive in {protocol} and are left out", err=True)


def _print_tuning(points: "list[Point]", best: "list[Point]", chosen: "Point") -> None:
    from rich.table import Table

    table = Table(title="what was tried; * no other is better, smaller and quicker at once", title_justify="left")
    for heading in ("k", "alpha", "truncation", "keep", "seeds", "mAP", "ms per query", "offline s", "bytes per image"):
        table.add_column(heading, justify="right")
    table.add_column("")
    for point in points:
        table.add_row(
            *(str(value) for value in point.values.values()),
            f"{point.quality:.2f}",
            f"{point.milliseconds:.2f}",
            f"{point.offline_seconds:.1f}",
            f"{point.bytes_per_image:,.0f}",
            ("*" if point in best else "") + (" chosen" if point is chosen else ""),
        )
    console(stderr=False).print(table)


def _in_words(point: "Point") -> str:
    return ", ".join(f"{name} {value}" for name, value in point.values.items())


def _write(path: Path, content: dict[str, Any]) -> None:
    try:
        path.write_text(json.dumps(content, indent=1) + "\n")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}; choose another place") from error
