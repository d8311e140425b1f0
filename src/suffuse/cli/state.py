"""The verbs that tell how an index is: info and verify."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from suffuse.cli.terminal import console

IndexArgument = Annotated[Path, typer.Argument(metavar="INDEX", help="The index directory.", show_default=False)]


def info(
    index: IndexArgument,
    as_json: Annotated[bool, typer.Option("--json", help="The same as one JSON object.")] = False,
) -> None:
    """Show what an index holds: counts, changes, parameters, sizes, and what its graph looks like."""
    from suffuse.index.online import Generation
    from suffuse.store.manifest import size_on_disk

    opened = Generation.open(index)
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
        "removed": opened.places - len(opened),
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
    from suffuse.store.manifest import read_manifest
    from suffuse.store.opening import verify as verify_index

    checked, manifest = verify_index(index), read_manifest(index)
    typer.echo(
        f"{index} is sound: {checked:,} bytes checked, generation {manifest.generation}"
        f" with {some(len(manifest.segments), 'segment')}"
    )


def some(count: int, thing: str) -> str:
    """1 image, 2 images."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


def _print_info(content: dict[str, Any], base: dict[str, int]) -> None:
    from rich.table import Table

    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column()
    counts, graph = content["counts"], content["graph"]
    columns = sum(content["bytes"].get(f"{name}.npy", 0) for name in ("indptr", "codes", "scales", "rows", "values"))
    segments = sum(content["bytes"][name] for name in content["segments"])
    # What is counted at a build only.
    then = ", before the changes" if content["segments"] else ""
    rows = {
        "index": f"{content['path']} (format {content['version']}, by {content['created_by']})",
        "images": f"{counts['images']:,}; the next one gets the id {content['next_id']}",
        "elements": f"{counts['elements']:,} of {counts['dimensions']} dimensions",
        "changes": f"generation {content['generation']}, {some(len(content['segments']), 'segment')} of"
        f" {segments / 1e6:,.1f} MB; {some(content['removed'], 'image')} removed or replaced, but not compacted",
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
        table.add_row(name, text)
    console(stderr=False).print(table)
