"""Tables as Markdown and one page as HTML, from the JSON files of `suffuse.experiments` and nothing else."""

import base64
import html
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from suffuse.arrays import write_bytes
from suffuse.comparison import TIMED_TOP
from suffuse.errors import InvalidInput
from suffuse.figures import SEARCHES, STAGES, STYLES, draw_all, inlined

TABLE, TRUNCATION, APPROXIMATE, QUERIES = "table1.json", "truncation.json", "approximate.json", "queries.json"
PAGE = "report.html"

_MARKS = {"right": "✓", "wrong": "✗", "junk": "○"}
_FIGURES = {
    "fig1": ("Quality against time", "Each line goes from the smallest to the largest L, the elements in a support."),
    "fig4": (
        "Time per query",
        f"The median of single queries on one thread, from the raw query to its first {TIMED_TOP} hits.",
    ),
    "fig5": (
        "Approximate search",
        "What a faster search costs in quality; training comes on top, see the table.",
    ),
    "fig6": ("Quality against L", "Truncated before normalisation (early), after it (late), and along the graph."),
}


class Table(NamedTuple):
    """Cells of text; the first column is words, the others are numbers."""

    title: str
    head: list[str]
    rows: list[list[str]]


def render(folder: str | Path, thumbnails: Path | None = None) -> Path:
    """Make all tables, figures and the page from the JSON files in the folder; the page's path.

    thumbnails  a folder of NAME.jpg; without one the page shows names
    """
    root = Path(folder)
    table, truncation, approximate, queries = (_read(root / name) for name in (TABLE, TRUNCATION, APPROXIMATE, QUERIES))
    tables = {"table1": table1(table), "truncation": over_truncation(truncation), "approximate": searches(approximate)}
    for (name, made), raw in zip(tables.items(), (table, truncation, approximate), strict=True):
        notes = _table_notes(raw) if name == "table1" else []
        _write(root / f"{name}.md", markdown(made, [*notes, provenance(raw)]))
    drawn = draw_all(truncation, approximate)
    for name, data in drawn.items():
        write_bytes(root / name, [data])
    figures = {name: inlined(drawn[f"{name}.svg"].decode(), name) for name in _FIGURES}
    _write(root / PAGE, page(table, list(tables.values()), figures, queries, thumbnails))
    return root / PAGE


def table1(raw: Mapping[str, Any]) -> Table:
    """Every method: quality by protocol with the interval of its gain, time, offline seconds, size."""
    protocols, published = raw["dataset"]["protocols"], raw["published"]
    single = len(protocols) == 1
    head = ["method"]
    for protocol in protocols:
        word = "" if single else f" {protocol}"
        head += [f"mAP{word} (%)", f"gain{word} over k-NN (95%)"]
    head += [*(["published mAP (%)"] if published else []), "ms per query", "offline s", "bytes per image"]
    rows = []
    for result in raw["results"]:
        cells = [result["method"]]
        for protocol in protocols:
            cells += [f"{result['quality'][protocol]:.2f}", _gain(result, protocol)]
        if published:
            cells.append(f"{published[result['method']]:.1f}" if result["method"] in published else "")
        cells += [f"{result['milliseconds']:.2f}", f"{result['offline_seconds']:.1f}"]
        rows.append([*cells, f"{result['bytes_per_image']:,.0f}"])
    return Table(f"Table 1: methods on {raw['dataset']['name']}", head, rows)


def over_truncation(raw: Mapping[str, Any]) -> Table:
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


def searches(raw: Mapping[str, Any]) -> Table:
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


def markdown(table: Table, notes: Sequence[str]) -> str:
    """A table with its notes, as Markdown."""
    lines = [f"# {_plain(table.title)}", "", _line(table.head), _line(["---", *["---:"] * (len(table.head) - 1)])]
    lines += [_line(row) for row in table.rows]
    return "\n".join([*lines, "", *(f"{_plain(note)}\n" for note in notes)])


def provenance(raw: Mapping[str, Any]) -> str:
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


def _with_code(text: str) -> str:
    """Escaped for HTML; what stands between backticks becomes code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", html.escape(text))


def page(
    table: Mapping[str, Any],
    tables: Sequence[Table],
    figures: Mapping[str, str],
    queries: Mapping[str, Any],
    thumbnails: Path | None,
) -> str:
    """One page that needs nothing but itself."""
    picture = _pictures(thumbnails)
    parts = [f"<p>{html.escape(note)}</p>" for note in _table_notes(table)]
    parts.append(_html_table(tables[0]))
    what = {result["method"]: result["what"] for result in table["results"]}
    parts.append("<dl>" + "".join(f"<dt>{html.escape(k)}</dt><dd>{html.escape(v)}</dd>" for k, v in what.items()))
    parts.append("</dl>")
    for name, svg in figures.items():
        title, caption = _FIGURES[name]
        label = f"Fig. {name[3:]}: {title}"
        parts.append(
            f'<section><h2>{label}</h2><figure><div class="wide" role="img" aria-label="{label}">{svg}</div>'
            f"<figcaption>{caption}</figcaption></figure></section>"
        )
    for more in tables[1:]:
        parts.append(f"<details><summary>{html.escape(more.title)}</summary>{_html_table(more)}</details>")
    method = queries["method"]
    for kind, word in (("gain", "gain"), ("lose", "lose")):
        parts.append(f"<section><h2>Queries that {word} most by {html.escape(method)} against k-NN</h2>")
        parts.append("<p>✓ should be found, ✗ should not, ○ neither helps nor harms (junk).</p>")
        parts += [_query(query, method, picture) for query in queries[kind]] or ["<p>None.</p>"]
        parts.append("</section>")
    name = html.escape(table["dataset"]["name"])
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>Diffusion on {name}</title><style>{_STYLE}</style></head><body><main>"
        f"<h1>Diffusion on {name}</h1><p>{_with_code(provenance(table))}</p>"
        + "\n".join(parts)
        + "</main></body></html>\n"
    )


def _query(query: Mapping[str, Any], method: str, picture: Callable[[str], str]) -> str:
    """One query with the first hits of both methods."""
    before, after = (100 * query["precision"][name] for name in ("knn", method))
    rows = []
    for name, hits in query["hits"].items():
        cells = "".join(
            f'<li class="{hit["mark"]}">{picture(hit["name"])}'
            f'<span>{_MARKS[hit["mark"]]} <span class="name">{html.escape(hit["name"])}</span></span></li>'
            for hit in hits
        )
        label = "k-NN" if name == "knn" else html.escape(name)
        rows.append(f'<h4>{label}</h4><div class="wide"><ol>{cells}</ol></div>')
    return (
        f"<article><header>{picture(query['query'])}<div><h3>{html.escape(query['query'])}</h3>"
        f"<p>average precision {before:.1f} → {after:.1f} ({after - before:+.1f}); {query['positives']} to be found</p>"
        f"</div></header>{''.join(rows)}</article>"
    )


def _pictures(thumbnails: Path | None) -> Callable[[str], str]:
    """From a name to its picture as part of the page, or to nothing where there is none."""

    def picture(name: str) -> str:
        # A name with a path in it would reach outside the folder.
        if thumbnails is None or Path(name).name != name or not (file := thumbnails / f"{name}.jpg").is_file():
            return ""
        data = base64.b64encode(file.read_bytes()).decode()
        return f'<img alt="{html.escape(name)}" loading="lazy" src="data:image/jpeg;base64,{data}">'

    return picture


def _table_notes(raw: Mapping[str, Any]) -> list[str]:
    params = raw["setting"]["params"]
    notes = [
        f"k {params['k']}, alpha {params['alpha']}, gamma {params['gamma']}, L {params['truncation']:,},"
        f" {params['keep']:,} entries kept of a column (features: all, as float16), whitening"
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
    left_out = {p: count for p, count in raw["results"][0]["left_out"].items() if count}
    if left_out:
        words = ", ".join(f"{count} ({protocol})" for protocol, count in left_out.items())
        notes.append(f"Queries without any positive, left out: {words}.")
    return notes + [f"Warning: {warning}." for warning in raw["advice"]]


def _gain(result: Mapping[str, Any], protocol: str) -> str:
    if result["method"] == "knn" or protocol not in result["gain"]:
        return "-"
    return "{:+.1f} ({:+.1f} to {:+.1f})".format(*result["gain"][protocol])


def _html_table(table: Table) -> str:
    head = "".join(f'<th scope="col">{html.escape(cell)}</th>' for cell in table.head)
    body = ""
    for first, *others in table.rows:
        cells = "".join(f"<td>{html.escape(cell)}</td>" for cell in others)
        body += f'<tr><th scope="row">{html.escape(first)}</th>{cells}</tr>'
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(_plain(cell).replace('|', '&#124;') for cell in cells)} |"


def _plain(text: str) -> str:
    """Text that Markdown cannot take for HTML."""
    return text.replace("<", "&lt;").replace("\n", " ")


def _read(file: Path) -> dict[str, Any]:
    try:
        held = json.loads(file.read_bytes())
    except FileNotFoundError as error:
        raise InvalidInput(f"there is no {file.name} in {file.parent}; run suffuse reproduce first") from error
    except ValueError as error:
        raise InvalidInput(f"{file.name} is not JSON: {error}; run suffuse reproduce again") from error
    if not isinstance(held, dict):
        raise InvalidInput(f"{file.name} is not a measurement; run suffuse reproduce again")
    return held


def _write(file: Path, text: str) -> None:
    write_bytes(file, [text.encode()])


_STYLE = """
:root { color-scheme: light dark; --paper: #fff; --ink: #1b1c1d; --faint: #666; --rule: #ddd;
  --right: #00734f; --wrong: #b34700; --junk: #666; }
@media (prefers-color-scheme: dark) { :root { --paper: #16181a; --ink: #e6e6e6; --faint: #a5a5a5; --rule: #3a3d40;
  --right: #3fc79a; --wrong: #f0914d; --junk: #a5a5a5; } }
body { margin: 0; background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif; }
main { max-width: 62rem; margin: 0 auto; padding: 1rem; }
h1, h2, h3, h4 { line-height: 1.25; } h3, h4 { margin: 0; } h4 { font-size: .9rem; }
.wide { overflow-x: auto; }
.wide > svg { display: block; width: 100%; min-width: 28rem; max-width: 50rem; height: auto; }
figure { margin: 0; } figcaption, dd, p { color: var(--faint); } dl { font-size: .9rem; }
dt { font-weight: 600; float: left; clear: left; margin-right: .6em; } dd { margin: 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .9rem; }
th, td { padding: .3em .7em; border-bottom: 1px solid var(--rule); text-align: right; white-space: nowrap; }
thead th { vertical-align: bottom; white-space: normal; } th:first-child { text-align: left; }
summary { cursor: pointer; padding: .5em 0; }
article { border-top: 1px solid var(--rule); padding: 1rem 0; }
article header { display: flex; gap: 1rem; align-items: center; } article p { margin: 0; }
article img { display: block; height: 5.5rem; width: auto; }
ol { display: flex; gap: .5rem; list-style: none; padding: 0; margin: .3rem 0 .6rem; }
li { border: 3px solid; padding: 3px; font-size: .75rem; } li .name { color: var(--faint); }
li img + span .name { display: none; } li > span { font-weight: 700; } li .name { font-weight: 400; }
.right { border-color: var(--right); border-style: solid; color: var(--right); }
.wrong { border-color: var(--wrong); border-style: dashed; color: var(--wrong); }
.junk { border-color: var(--junk); border-style: dotted; color: var(--junk); }
"""
