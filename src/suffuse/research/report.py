"""Tables, figures and one page, made from the JSON files that `suffuse.research.experiments` wrote."""

import base64
import functools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from suffuse.errors import InvalidInput, name_extra
from suffuse.research.comparison import TIMED_TOP
from suffuse.research.figures import FIGURES, SEARCHES, STAGES, STYLES, Raw, draw_all, inline_svg
from suffuse.store.files import write_bytes

TABLE, TRUNCATION, APPROXIMATE, QUERIES = "table1.json", "truncation.json", "approximate.json", "queries.json"
PAGE = "report.html"


class Table(NamedTuple):
    """Cells of text; the first column is words, the others are numbers."""

    title: str
    head: list[str]
    rows: list[list[str]]


def render(folder: str | Path, thumbnails: Path | None = None) -> Path:
    """Make all tables, figures and the page from the JSON files in the folder; return the path of the page.

    thumbnails  a folder of NAME.jpg; without one the page shows names
    """
    root = Path(folder)
    table, truncation, approximate, queries = (_read(root / name) for name in (TABLE, TRUNCATION, APPROXIMATE, QUERIES))
    notes, tables, files = describe_table(table), [], draw_all(truncation, approximate)
    for name, raw, tabulate, more in (
        (TABLE, table, tabulate_methods, notes),
        (TRUNCATION, truncation, tabulate_truncation, []),
        (APPROXIMATE, approximate, tabulate_searches, []),
    ):
        tables.append(tabulate(raw))
        files[f"{Path(name).stem}.md"] = format_markdown(tables[-1], [*more, describe_run(raw)]).encode()
    page = _load_template().render(
        table=table,
        tables=tables,
        notes=notes,
        run=describe_run(table),
        figures={name: inline_svg(files[f"{name}.svg"].decode(), name) for name in FIGURES},
        queries=queries,
        thumbnail=functools.partial(read_thumbnail, thumbnails),
        timed_top=TIMED_TOP,
    )
    files[PAGE] = page.encode()
    for name, data in files.items():
        write_bytes(root / name, [data])
    return root / PAGE


def _load_template() -> Any:
    with name_extra("Jinja2", "research"):
        from jinja2 import Environment, PackageLoader, StrictUndefined
    loader = PackageLoader("suffuse.research")
    return Environment(loader=loader, autoescape=True, undefined=StrictUndefined).get_template("report.html.j2")


def read_thumbnail(folder: Path | None, name: str) -> str:
    """NAME.jpg of the folder in base64, or nothing where there is none."""
    # A name with a path in it would reach outside the folder.
    if folder is None or Path(name).name != name or not (file := folder / f"{name}.jpg").is_file():
        return ""
    return base64.b64encode(file.read_bytes()).decode()


def tabulate_methods(raw: Raw) -> Table:
    """Every method: quality by protocol with the interval of its gain, time, offline seconds, size."""
    protocols, head = raw["dataset"]["protocols"], ["method"]
    for protocol in protocols:
        word = "" if len(protocols) == 1 else f" {protocol}"
        head += [f"mAP{word} (%)", f"gain{word} over k-NN (95%)"]
    head += ["ms per query", "offline s", "bytes per image"]
    rows = []
    for result in raw["results"]:
        cells = [result["method"]]
        for protocol in protocols:
            cells += [f"{result['quality'][protocol]:.2f}", _format_gain(result, protocol)]
        cells += [f"{result['milliseconds']:.2f}", f"{result['offline_seconds']:.1f}"]
        rows.append([*cells, f"{result['bytes_per_image']:,.0f}"])
    return Table(f"Table 1: methods on {raw['dataset']['name']}", head, rows)


def tabulate_truncation(raw: Raw) -> Table:
    """Figures 1, 4 and 6 in numbers."""
    main, rows = raw["dataset"]["main"], []
    for row in raw["rows"]:
        size = "-" if row["truncation"] is None else f"{row['truncation']:,}"
        beside = row["knn_milliseconds"]
        ratio = "-" if beside is None else f"{row['milliseconds'] / beside:.2f}"
        rows.append(
            [STYLES[row["method"]].label, size, f"{row['quality'][main]:.2f}", f"{row['milliseconds']:.2f}",
             ratio, f"{row['offline_seconds']:.1f}", f"{row['bytes_per_image']:,.0f}"]
        )  # fmt: skip
    head = ["method", "L", f"mAP, {main} (%)", "ms per query", "times k-NN", "offline s", "bytes per image"]
    return Table("Figures 1, 4 and 6: quality and time over L", head, rows)


def tabulate_searches(raw: Raw) -> Table:
    """Figure 5 in numbers."""
    main, rows = raw["dataset"]["main"], []
    for row in raw["rows"]:
        effort = row.get("probes", row.get("ef"))
        cells = [f"{STAGES[row['stage']]}: {SEARCHES[row['search']].label}", "-" if effort is None else str(effort)]
        cells += [f"{row['size']:,}", f"{100 * row['recall']:.1f}", f"{row['quality'][main]:.2f}"]
        cells += [f"{row['search_seconds']:.2f}", f"{row['training_seconds']:.2f}", f"{row['offline_seconds']:.1f}"]
        rows.append(cells)
    head = ["search", "probes or ef", "neighbours", "found of the true ones (%)", f"mAP, {main} (%)"]
    head += ["search s", "training s", "offline s in all"]
    return Table("Figure 5: approximate search", head, rows)


def format_markdown(table: Table, notes: Sequence[str]) -> str:
    """A table with its notes, as Markdown."""
    rule = ["---", *["---:"] * (len(table.head) - 1)]
    lines = [_format_line(cells) for cells in (table.head, rule, *table.rows)]
    return "\n".join([f"# {_escape(table.title)}", "", *lines, "", *(f"{_escape(note)}\n" for note in notes)])


def describe_run(raw: Raw) -> str:
    """The command and the machine in one line."""
    machine, data = raw["machine"], raw["dataset"]
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    line = (
        f"{data['name']}: {data['images']:,} images, {data['queries']:,} queries. Made by `{raw['command']}`"
        f" on {machine['cpu']}, {machine['cores']} cores; {versions}."
    )
    if (load := raw["load"]) is not None and load > machine["cores"]:
        line += f" The machine had other work to do (load {load} at the start): trust the times less."
    return line


def describe_table(raw: Raw) -> list[str]:
    """The notes of table 1: parameters, published numbers, what was left out, and warnings."""
    params = raw["setting"]["params"]
    notes = [
        f"k {params['k']}, alpha {params['alpha']}, gamma {params['gamma']}, L {params['truncation']:,},"
        f" {params['keep']:,} entries kept of a column (paper: all, as float16), whitening"
        f" {'none' if params['whiten'] is None else params['whiten']} (power {params['whiten_power']}),"
        f" {raw['setting']['seeds']} seeds. Time is the median of single queries on one thread, in the best of several"
        " rounds. Gain is the difference in mAP to k-NN with the 95% interval of a paired bootstrap over queries."
    ]
    if raw["published_best"] is not None:
        notes.append(
            f"The paper's best mAP on this gallery, over all its features and methods, is {raw['published_best']}"
            " (as listed by paperswithcode.com). Its authors say that it was evaluated by other code than the"
            " official one (github.com/fyang93/diffusion, issue 6), so that it may not be matched here."
        )
    left_out = [f"{count} ({protocol})" for protocol, count in raw["results"][0]["left_out"].items() if count]
    if left_out:
        notes.append(f"Queries without any positive, left out: {', '.join(left_out)}.")
    return notes + [f"Warning: {warning}." for warning in raw["advice"]]


def _format_gain(result: Raw, protocol: str) -> str:
    if result["method"] == "knn" or protocol not in result["gain"]:
        return "-"
    return "{:+.1f} ({:+.1f} to {:+.1f})".format(*result["gain"][protocol])


def _format_line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_escape(cell).replace('|', '&#124;') for cell in cells)} |"


def _escape(text: str) -> str:
    """Text in one line that Markdown does not read as HTML."""
    return text.replace("<", "&lt;").replace("\n", " ")


def _read(file: Path) -> dict[str, Any]:
    try:
        raw = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise InvalidInput(f"there is no {file.name} in {file.parent}; run suffuse reproduce first") from error
    except ValueError as error:
        raise InvalidInput(f"{file.name} is not JSON: {error}; run suffuse reproduce again") from error
    if not isinstance(raw, dict):
        raise InvalidInput(f"{file.name} is not a measurement; run suffuse reproduce again")
    return raw
