"""The verbs of an index: build, search, info, verify; and demo, which shows them at work."""

import contextlib
import itertools
import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer import Argument, Option

from suffuse.cli.options import FeatureOptions, ForceOption, IndexArgument, IndexOption, expand_groups
from suffuse.cli.serve import serve as start_server
from suffuse.cli.terminal import console, make_table, pluralize, progress_bars, say
from suffuse.core.params import Params
from suffuse.errors import InvalidParams

if TYPE_CHECKING:
    from suffuse.offline.build import BuildSummary

_DEMO = Path("suffuse-demo")
# Queries that are searched at a time, so that the first answers of a long file come soon.
_BATCH = 256


@expand_groups
def build(
    features: Annotated[
        str,
        Argument(
            metavar="FEATURES",
            help="One row per image: .npy, .npz (array 'features'), .fvecs, .h5 or .mat (v7.3);"
            " FILE.h5::NAME chooses a dataset.",
        ),
    ],
    output: IndexOption,
    described: FeatureOptions,
    params: Params,
    jobs: Annotated[int | None, Option(metavar="N", help="Threads to use.", show_default="all cores")] = None,
    memory: Annotated[float | None, Option(metavar="GB", help="Memory limit; fewer threads if need be.")] = None,
    dask: Annotated[str | None, Option(metavar="ADDRESS", help="Build on Dask: a scheduler, local or local:N.")] = None,
    force: ForceOption = False,
) -> None:
    """Build an index from features (offline, once).

    A build that was interrupted continues when the same command is given again.
    """
    if dask is not None and (jobs is not None or memory is not None):
        raise InvalidParams("--dask has workers of its own; give it without --jobs and --memory")
    from suffuse.offline.cluster import client_of

    inputs = described.read(features, least_rows=2)
    with contextlib.nullcontext() if dask is None else client_of(dask) as client, progress_bars() as progress:
        if client is not None:
            say(f"Dashboard: {client.dashboard_link}")
        from suffuse.offline.build import build as build_index  # while workers import as much

        summary = build_index(
            inputs.features, output, params, owners=inputs.owners, names=inputs.items, executor=client, jobs=jobs,
            memory=memory, force=force, progress=progress,
        )  # fmt: skip
    _print_summary(summary)


def search(
    index: IndexArgument,
    queries: Annotated[str, Argument(metavar="QUERIES", help="One row per query, as for build.")],
    owners: Annotated[
        Path | None, Option(metavar="FILE", help="Rows are regions of queries: a .npy file with the query of each.")
    ] = None,
    top: Annotated[int, Option(help="Images to return for each query.")] = 10,
    seeds: Annotated[int, Option(help="Nearest elements of a query to start from.")] = 10,
    refine: Annotated[
        int | None,
        Option(metavar="N", help="Hits that get a second look; 0 for none.", show_default="500 where possible"),
    ] = None,
    method: Annotated[Literal["diffusion", "knn"], Option(help="Ranking: diffusion, or plain cosine.")] = "diffusion",
    exact: Annotated[bool, Option("--exact", help="Find seeds exactly in any index.")] = False,
    ef: Annotated[
        int | None,
        Option("--ef", help="Candidates that hnsw keeps. Higher: better recall, slower.", show_default="by size"),
    ] = None,
    as_json: Annotated[bool, Option("--json", help="One JSON object per query and line.")] = False,
    transpose: Annotated[bool, Option("--transpose", help="QUERIES has one column per query.")] = False,
) -> None:
    """Search an index (online): the best images for each query."""
    from suffuse.core.features import unit_blocks
    from suffuse.index.index import Index

    opened = Index.open(index)
    rows, query_owners, _ = FeatureOptions(owners=owners, transpose=transpose).read(queries)
    for _ in unit_blocks(rows, Path(queries).name, None):
        pass  # a bad row is named before the first answer is printed
    batch = len(rows) if query_owners is not None else _BATCH  # the regions of a query belong together
    show = _print_json if as_json else _print_table
    number = itertools.count()
    for start in range(0, len(rows), batch):
        hits = opened.search(
            rows[start : start + batch], top, seeds, method=method, refine=refine, owners=query_owners, exact=exact,
            ef=ef,
        )  # fmt: skip
        for ids, scores in zip(hits.ids.tolist(), hits.scores.tolist(), strict=True):
            show(next(number), ids, scores, [opened.items.name(id) for id in ids])


def info(index: IndexArgument, as_json: Annotated[bool, Option("--json", help="As one JSON object.")] = False) -> None:
    """Show what an index holds: counts, changes, parameters, sizes, and what its graph looks like."""
    from suffuse.index.snapshot import Snapshot
    from suffuse.store.manifest import size_on_disk

    opened = Snapshot.open(index)
    manifest, hidden = opened.manifest, opened.hidden_elements
    elements = opened.shape[0] - (0 if hidden is None else int(hidden.sum()))
    content = {
        "path": str(index),
        "version": manifest.version,
        "created_by": manifest.created_by,
        # Entries and unconverged columns are those of the base: nobody counts them at a change.
        "counts": {**manifest.counts, "elements": elements, "images": len(opened)},
        "generation": manifest.generation,
        "next_id": manifest.next_id,
        "removed": opened.image_rows - len(opened),
        "stale": opened.stale,
        "segments": [segment["name"] for segment in manifest.segments],
        "params": manifest.params.to_dict(),
        "graph": manifest.graph,
        "bytes": {name: description["bytes"] for name, description in manifest.files.items()}
        | {segment["name"]: segment["bytes"] for segment in manifest.segments},
        "bytes_total": size_on_disk(manifest),
    }
    if as_json:
        typer.echo(json.dumps(content, indent=2))
    else:
        _print_info(content, manifest.counts)


def verify(index: IndexArgument) -> None:
    """Check every byte of an index against the hashes in its manifest."""
    from suffuse.index.snapshot import verify as verify_index
    from suffuse.store.manifest import read_manifest

    checked, manifest = verify_index(index), read_manifest(index)
    typer.echo(
        f"{index} is sound: {checked:,} bytes checked, generation {manifest.generation}"
        f" with {pluralize(len(manifest.segments), 'segment')}"
    )


def demo(
    output: Annotated[Path, Option("-o", "--output", metavar="DIR", help="Where the results go.")] = _DEMO,
    serve: Annotated[bool, Option("--serve", help="Then serve the digits: the page in your browser.")] = False,
    port: Annotated[int, Option(help="The port of --serve; 0 for any that is free.")] = 8000,
) -> None:
    """See it work: 1,797 scanned digits, indexed and searched, k-NN beside diffusion."""
    from suffuse.research.demo import run

    with progress_bars() as progress:
        results = run(output, progress)
    table = make_table(
        "200 held-out digits searched among 1,597",
        *("method", "mAP", "ms per query", "offline seconds"),
        caption="times: all 200 queries in one batch, on all cores",
    )
    for result in results:
        offline = f"{result.offline_seconds:.1f}" if result.offline_seconds else "-"
        table.add_row(result.method, f"{result.mean_average_precision:.1f}", f"{result.milliseconds:.2f}", offline)
    console(stderr=False).print(table)
    say(f"The picture: {output / 'digits.png'}")
    say(f"The page:    {_program()} serve {output / 'digits.index'}")
    if serve:
        start_server(str(output / "digits.index"), port=port, open_page=True)


def _program() -> str:
    """How this program is called: by its name where the shell finds it, else by its path (`make demo`)."""
    return "suffuse" if shutil.which("suffuse") else sys.argv[0]


def _print_summary(summary: "BuildSummary") -> None:
    seconds = sum(summary.seconds.values())
    elements = pluralize(summary.elements, "image")
    if summary.images != summary.elements:
        elements = f"{pluralize(summary.elements, 'region')} of {pluralize(summary.images, 'image')}"
    say(f"{summary.path}: {elements}, {pluralize(summary.dimensions, 'dimension')}")
    stages = ", ".join(f"{stage} {time:.1f}" for stage, time in summary.seconds.items())
    entries = summary.entries / summary.elements
    say(f"{summary.bytes / 1e6:,.1f} MB, {entries:.0f} entries per column, {seconds:.1f} s ({stages})")
    if summary.resumed:
        say(f"{pluralize(summary.resumed, 'task')} done already, by an interrupted build")
    if summary.unconverged:
        words = f"{summary.unconverged:,} of {summary.elements:,} columns did not reach the residual"
        typer.secho(f"{words}; raise --iterations or --tolerance", fg="yellow", err=True)
    say(f"Search it: {_program()} search {summary.path} QUERIES")


def _print_json(query: int, ids: list[int], scores: list[float], names: list[str]) -> None:
    line = {"query": query, "ids": ids, "names": names, "scores": scores}
    typer.echo(json.dumps(line, ensure_ascii=False))


def _print_table(query: int, ids: list[int], scores: list[float], names: list[str]) -> None:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"query {query}", title_justify="left", box=None, pad_edge=False)
    for heading in ("rank", "id", "score", "name"):
        table.add_column(heading, justify="left" if heading == "name" else "right")
    for rank, (id, score, name) in enumerate(zip(ids, scores, names, strict=True), 1):
        table.add_row(str(rank), str(id), f"{score:.4f}", escape(name))
    console(stderr=False).print(table)


def _print_info(content: dict[str, Any], base: dict[str, int]) -> None:
    counts, graph = content["counts"], content["graph"]
    columns = sum(content["bytes"].get(f"{name}.npy", 0) for name in ("indptr", "codes", "scales", "rows", "values"))
    segments = sum(content["bytes"][name] for name in content["segments"])
    # What is counted at a build only.
    then = ", before the changes" if content["segments"] else ""
    rows = {
        "index": f"{content['path']} (format {content['version']}, by {content['created_by']})",
        "images": f"{counts['images']:,}; the next one gets the id {content['next_id']}",
        "elements": f"{counts['elements']:,} of {counts['dimensions']} dimensions",
        "changes": f"generation {content['generation']}, {pluralize(len(content['segments']), 'segment')} of"
        f" {segments / 1e6:,.1f} MB; {pluralize(content['removed'], 'image')} removed or replaced, but not compacted",
        "stale": f"{content['stale']:.1%} of all columns: solved before images near them came or went",
        "entries": f"{base['entries']:,}, {base['entries'] / base['elements']:.1f} per column{then}",
        "unconverged": f"{counts['unconverged']:,} columns{then}",
        "graph": f"{graph['edges']:,} edges; degree {graph['degree_mean']:.1f} on average,"
        f" median {graph['degree_median']:g}, largest {graph['degree_largest']}{then}",
        "": f"{graph['isolated']:,} isolated nodes; {graph['components']:,} components,"
        f" the largest with {graph['largest_component']:,}",
        "on disk": f"{content['bytes_total'] / 1e6:,.1f} MB: features {content['bytes']['features.npy'] / 1e6:,.1f},"
        f" columns {columns / 1e6:,.1f}, segments {segments / 1e6:,.1f}",
        "parameters": ", ".join(f"{name} {value}" for name, value in content["params"].items() if value is not None),
    }
    for name, text in rows.items():
        typer.echo(f"{name:<13}{text}")
