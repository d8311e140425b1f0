"""The command line: verbs over the library; data on stdout, everything else on stderr.

Heavy modules are imported inside the commands, so that --help answers at once.
"""

import contextlib
import functools
import json
import logging
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from suffuse import __version__
from suffuse.cli import bench, changes, images, postgres, research, state
from suffuse.cli.serve import serve as start_server
from suffuse.cli.state import IndexArgument
from suffuse.cli.terminal import console, progress_bars
from suffuse.core.params import GraphSearch, Params, Search, SeedSearch, Support, ValueType
from suffuse.errors import InvalidParams, SuffuseError

if TYPE_CHECKING:
    from suffuse.index.index import Index
    from suffuse.index.online import Hits
    from suffuse.offline.build import BuildSummary

app = typer.Typer(
    name="suffuse",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help=(
        "Find images the way diffusion does, at the speed of a nearest-neighbour search.\n\n"
        "Start with [bold]suffuse demo[/bold], or with your own features:\n\n"
        "  suffuse build features.npy -o photos.index\n\n"
        "  suffuse search photos.index queries.npy"
    ),
)

for verb in (changes.add, changes.replace, changes.remove, changes.compact):
    app.command(rich_help_panel="Change an index")(verb)
app.command(rich_help_panel="Pictures and the page")(images.images)
app.command(rich_help_panel="Pictures and the page")(images.extract)
app.command(rich_help_panel="Pictures and the page")(start_server)
app.command(rich_help_panel="Past one machine")(postgres.export)
app.command(rich_help_panel="For researchers")(research.evaluate)
app.command(rich_help_panel="For researchers")(research.tune)
app.command(rich_help_panel="For researchers")(research.reproduce)
app.command(rich_help_panel="For researchers")(bench.bench)
app.add_typer(research.datasets, name="datasets", rich_help_panel="For researchers")

_DEFAULTS = Params()
Ranking = Literal["diffusion", "knn"]
# Queries that are searched at a time, so that the first answers of a long file come soon.
_BATCH = 256


def main() -> None:
    """The entry point: runs a verb, and turns what a user did wrong into one line and an exit code."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING, stream=sys.stderr)
    try:
        app()
    except InvalidParams as error:
        _fail(str(error), 2)
    except SuffuseError as error:
        _fail(str(error), 1)


def _fail(message: str, code: int) -> None:
    print(f"Error: {message}", file=sys.stderr)  # noqa: T201
    sys.exit(code)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"suffuse {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


@app.command()
def build(
    features: Annotated[
        str,
        typer.Argument(
            metavar="FEATURES",
            show_default=False,
            help="One row per image: .npy, .npz (array 'features'), .fvecs, .h5 or .mat (v7.3);"
            " FILE.h5::NAME chooses a dataset.",
        ),
    ],
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="INDEX", show_default=False, help="The index directory to make.")
    ],
    owners: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Rows are regions: a .npy file with the image number of each."),
    ] = None,
    names: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="A name per image: .txt (a line each), .csv, .json or .jsonl (with metadata)."
        ),
    ] = None,
    k: Annotated[int, typer.Option("--k", help="Neighbours in the graph. Not more than a typical class has.")] = (
        _DEFAULTS.k
    ),
    alpha: Annotated[float, typer.Option(help="How far the walk goes: above 0, below 1.")] = _DEFAULTS.alpha,
    gamma: Annotated[float, typer.Option(help="Exponent of the similarities.")] = _DEFAULTS.gamma,
    support: Annotated[
        Support,
        typer.Option(help="Where columns are solved: the walk's own reach (graph), or the paper's L-NN (features)."),
    ] = "graph",
    truncation: Annotated[int, typer.Option(help="L, elements in the support of a column.")] = _DEFAULTS.truncation,
    keep: Annotated[int, typer.Option(help="Entries of each column that are stored.")] = _DEFAULTS.keep,
    whiten: Annotated[
        int | None, typer.Option(metavar="D", help="PCA-whiten to D dimensions, learned on these features.")
    ] = None,
    whiten_power: Annotated[
        float, typer.Option(metavar="P", help="Whitening power: 0 only rotates and cuts, 1 whitens fully.")
    ] = _DEFAULTS.whiten_power,
    values: Annotated[
        ValueType, typer.Option(help="How columns are stored: in a compact code (uint8), or plain.")
    ] = "uint8",
    iterations: Annotated[int, typer.Option(help="Most steps of conjugate gradient.")] = _DEFAULTS.iterations,
    tolerance: Annotated[float, typer.Option(help="Residual at which a column is solved.")] = _DEFAULTS.tolerance,
    graph_search: Annotated[
        GraphSearch, typer.Option(help="How the neighbours in the graph are found; all but exact miss some.")
    ] = "exact",
    support_search: Annotated[
        Search, typer.Option(help="How the L nearest of --support features are found.")
    ] = "exact",
    seed_search: Annotated[
        SeedSearch, typer.Option(help="How a search finds its seeds: exactly, or fast by hnsw.")
    ] = "exact",
    probes: Annotated[int, typer.Option(help="Cells that cells and ivfadc visit; more find more.")] = _DEFAULTS.probes,
    ef: Annotated[int, typer.Option("--ef", help="Candidates that hnsw keeps; more find more.")] = _DEFAULTS.ef,
    with_graph: Annotated[
        bool, typer.Option("--with-graph", help="Keep the graph, to show chains through it.")
    ] = False,
    jobs: Annotated[int | None, typer.Option(metavar="N", help="Threads to use.", show_default="all cores")] = None,
    memory: Annotated[
        float | None, typer.Option(metavar="GB", help="Memory to stay below, with fewer threads if need be.")
    ] = None,
    dask: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Build on a Dask cluster: its scheduler's address; local or local:N."),
    ] = None,
    transpose: Annotated[bool, typer.Option("--transpose", help="FEATURES has one column per image.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Replace an index that is already there.")] = False,
) -> None:
    """Build an index from features (offline, once).

    A build that was interrupted goes on where it stopped when the same command is given again.
    """
    params = Params(
        k=k, alpha=alpha, gamma=gamma, support=support, truncation=truncation, keep=keep,
        iterations=iterations, tolerance=tolerance, whiten=whiten, whiten_power=whiten_power, values=values,
        graph_search=graph_search, support_search=support_search, seed_search=seed_search,
        probes=probes, ef=ef, with_graph=with_graph,
    )  # fmt: skip
    if dask is not None and (jobs is not None or memory is not None):
        raise InvalidParams("--dask has workers of its own; give it without --jobs and --memory")
    from suffuse.offline.cluster import client_of
    from suffuse.store.feature_files import load, load_owners
    from suffuse.store.items import load_items, with_labels

    loaded = load(features, transpose=transpose)
    items = None if names is None else load_items(names)
    if loaded.labels is not None and owners is None:
        items = with_labels(items, loaded.labels)
    with contextlib.nullcontext() if dask is None else client_of(dask) as client, progress_bars() as progress:
        if client is not None:
            typer.echo(f"Dashboard: {client.dashboard_link}", err=True)
        from suffuse.offline.build import build as build_index  # while workers import as much

        summary = build_index(
            loaded.features,
            output,
            params,
            owners=None if owners is None else load_owners(owners),
            names=items,
            executor=client,
            jobs=jobs,
            memory=memory,
            force=force,
            progress=progress,
        )
    _print_summary(summary)


@app.command()
def search(
    index: IndexArgument,
    queries: Annotated[
        str, typer.Argument(metavar="QUERIES", show_default=False, help="One row per query, as for build.")
    ],
    owners: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Rows are regions of queries: a .npy file with the query number of each."),
    ] = None,
    top: Annotated[int, typer.Option(help="Images to return for each query.")] = 10,
    seeds: Annotated[int, typer.Option(help="Nearest elements of a query to start from.")] = 10,
    refine: Annotated[
        int | None,
        typer.Option(metavar="N", help="Hits that get a second look; 0 for none.", show_default="500 where possible"),
    ] = None,
    method: Annotated[Ranking, typer.Option(help="Ranking: diffusion, or plain cosine.")] = "diffusion",
    exact: Annotated[bool, typer.Option("--exact", help="Find seeds exactly in any index.")] = False,
    ef: Annotated[
        int | None,
        typer.Option("--ef", help="Candidates of a search for seeds by hnsw; more find more.", show_default="by size"),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per query and line.")] = False,
    transpose: Annotated[bool, typer.Option("--transpose", help="QUERIES has one column per query.")] = False,
) -> None:
    """Search an index (online): the best images for each query."""
    from suffuse.core.features import unit_blocks
    from suffuse.index.index import Index
    from suffuse.store.feature_files import load, load_owners

    opened = Index.open(index)
    rows = load(queries, transpose=transpose, least_rows=1).features
    query_owners = None if owners is None else load_owners(owners)
    for _ in unit_blocks(rows, Path(queries).name, None):
        pass  # a bad row is named before the first answer is printed
    batch = len(rows) if query_owners is not None else _BATCH  # the regions of a query belong together
    first = 0
    for start in range(0, len(rows), batch):
        hits = opened.search(
            rows[start : start + batch],
            top,
            seeds,
            method=method,
            refine=refine,
            owners=query_owners,
            exact=exact,
            ef=ef,
        )
        show = _print_json if as_json else _print_table
        show(opened, hits, first)
        first += len(hits.ids)


app.command()(state.info)
app.command()(state.verify)


@app.command()
def demo(
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="Where the results go.")] = Path(
        "suffuse-demo"
    ),
    serve: Annotated[bool, typer.Option("--serve", help="Then serve the digits: the page in your browser.")] = False,
    port: Annotated[int, typer.Option(help="The port of --serve; 0 for any that is free.")] = 8000,
) -> None:
    """See it work: 1,797 scanned digits, indexed and searched, k-NN beside diffusion."""
    from rich.table import Table

    from suffuse.research.demo import run

    with progress_bars() as progress:
        results = run(output, progress)
    table = Table(
        title="200 held-out digits searched among 1,597", caption="times: all 200 queries in one batch, on all cores"
    )
    table.add_column("method")
    for heading in ("mAP", "ms per query", "offline seconds"):
        table.add_column(heading, justify="right")
    for result in results:
        offline = f"{result.offline_seconds:.1f}" if result.offline_seconds else "-"
        table.add_row(result.method, f"{result.mean_average_precision:.1f}", f"{result.milliseconds:.2f}", offline)
    console(stderr=False).print(table)
    typer.echo(f"The picture: {output / 'digits.png'}", err=True)
    typer.echo(f"The page:    {_program()} serve {output / 'digits.index'}", err=True)
    if serve:
        start_server(str(output / "digits.index"), port=port, open_page=True)


def _program() -> str:
    """How this program is called: by its name where the shell finds it, else by its path (`make demo`)."""
    return "suffuse" if shutil.which("suffuse") else sys.argv[0]


def _print_summary(summary: "BuildSummary") -> None:
    # Not wrapped: a path that is broken over two lines cannot be copied.
    echo = functools.partial(console(stderr=True).print, soft_wrap=True)
    seconds = sum(summary.seconds.values())
    kind = "images" if summary.images == summary.elements else f"regions of {summary.images:,} images"
    echo(f"[bold]{summary.path}[/bold]: {summary.elements:,} {kind}, {summary.dimensions} dimensions")
    echo(
        f"{summary.bytes / 1e6:,.1f} MB, {summary.entries / summary.elements:.0f} entries per column, {seconds:.1f} s ("
        + ", ".join(f"{stage} {time:.1f}" for stage, time in summary.seconds.items())
        + ")"
    )
    if summary.resumed:
        echo(f"{summary.resumed} tasks were done already, by an interrupted build")
    if summary.unconverged:
        echo(
            f"[yellow]{summary.unconverged:,} of {summary.elements:,} columns did not reach the residual;"
            " raise --iterations or --tolerance[/yellow]"
        )
    echo(f"Search it: {_program()} search {summary.path} QUERIES")


def _print_json(index: "Index", hits: "Hits", first: int) -> None:
    for number, (ids, scores) in enumerate(zip(hits.ids.tolist(), hits.scores.tolist(), strict=True)):
        line = {"query": first + number, "ids": ids, "names": [index.items.name(id) for id in ids], "scores": scores}
        typer.echo(json.dumps(line, ensure_ascii=False))


def _print_table(index: "Index", hits: "Hits", first: int) -> None:
    from rich.markup import escape
    from rich.table import Table

    out = console(stderr=False)
    for number, (ids, scores) in enumerate(zip(hits.ids.tolist(), hits.scores.tolist(), strict=True)):
        table = Table(title=f"query {first + number}", title_justify="left", box=None, pad_edge=False)
        table.add_column("rank", justify="right")
        table.add_column("id", justify="right")
        table.add_column("score", justify="right")
        table.add_column("name")
        for rank, (id, score) in enumerate(zip(ids, scores, strict=True), 1):
            table.add_row(str(rank), str(id), f"{score:.4f}", escape(index.items.name(id)))
        out.print(table)
