"""Figures 1, 4, 5 and 6 of the paper, drawn from what `suffuse.research.experiments` measured."""

import base64
import html
import io
import json
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from suffuse.errors import InvalidInput, MissingExtra
from suffuse.research.comparison import TIMED_TOP
from suffuse.store.files import write_bytes

# Two colours that nothing else has, so that a page can replace them by its own in light and in dark.
INK, PAPER = "#1b1c1d", "#fdfefe"
_FORMATS = ("png", "svg")
# Without these, the same numbers give the same bytes.
_NO_METADATA = {
    "svg": {"Date": None, "Creator": None, "Format": None, "Type": None},
    "png": {"Software": None},
}

Rows = Sequence[Mapping[str, Any]]


class Style(NamedTuple):
    """How one method is drawn: never told apart by colour alone."""

    label: str
    color: str  # of Okabe and Ito, for every kind of sight
    marker: str
    line: str = "-"


STYLES = {
    "knn": Style("k-NN", "#7f7f7f", "s", ":"),
    "online": Style("online, whole graph", "#cc79a7", "X", ":"),
    "online-early": Style("online, early truncation", "#d55e00", "v", "--"),
    "online-late": Style("online, late truncation", "#e69f00", "^", "--"),
    "features": Style("offline, L nearest (the paper)", "#0072b2", "o"),
    "graph": Style("offline, walk's support (ours)", "#009e73", "D"),
}
SEARCHES = {
    "exact": Style("exact", "#7f7f7f", "*", ":"),
    "ivfadc": Style("IVFADC, by cells probed", "#0072b2", "o"),
    "hnsw": Style("HNSW, by candidates held (ef)", "#d55e00", "v", "--"),
}
_SEARCH_AXIS = "search for all elements (s, one thread, log scale)"
STAGES = {"support": "truncation (supports)", "graph": "graph construction"}


def draw_all(truncation: Mapping[str, Any], approximate: Mapping[str, Any]) -> dict[str, bytes]:
    """All figures by file name, as PNG and SVG."""
    drawn: dict[str, bytes] = {}
    for name, draw, raw in (
        ("fig1", quality_over_time, truncation),
        ("fig4", time_over_truncation, truncation),
        ("fig5", approximate_search, approximate),
        ("fig6", quality_over_truncation, truncation),
    ):
        drawn |= {f"{name}.{kind}": data for kind, data in _draw(draw, raw, name).items()}
    return drawn


def quality_over_time(figure: Any, raw: Mapping[str, Any]) -> None:
    """Fig. 1: mAP against time per query; along each line L grows."""
    axes = figure.add_subplot()
    main = raw["dataset"]["main"]
    for method, style in STYLES.items():
        rows = _rows(raw, method)
        times, quality = [row["milliseconds"] for row in rows], [row["quality"][main] for row in rows]
        _draw_line(axes, times, quality, style)
        if method in ("knn", "online"):
            continue
        for place in sorted({0, len(rows) - 1} if rows else ()):
            _note(axes, f"L={rows[place]['truncation']:,}", times[place], quality[place], style)
    axes.set_xscale("log")
    _plain_ticks(axes.xaxis)
    _finish(axes, "time per query (ms, one thread, log scale)", _quality(raw))


def time_over_truncation(figure: Any, raw: Mapping[str, Any]) -> None:
    """Fig. 4: time per query by method and L."""
    axes = figure.add_subplot()
    _over_truncation(axes, raw, lambda row: float(row["milliseconds"]))
    axes.set_yscale("log")
    _plain_ticks(axes.yaxis)
    _finish(axes, "L, elements in a support (log scale)", "time per query (ms, one thread, log scale)")


def quality_over_truncation(figure: Any, raw: Mapping[str, Any]) -> None:
    """Fig. 6: mAP against L."""
    axes = figure.add_subplot()
    main = raw["dataset"]["main"]
    _over_truncation(axes, raw, lambda row: float(row["quality"][main]))
    _finish(axes, "L, elements in a support (log scale)", _quality(raw))


def approximate_search(figure: Any, raw: Mapping[str, Any]) -> None:
    """Fig. 5: mAP against the offline seconds of the search, for the supports and for the graph."""
    main, panels = raw["dataset"]["main"], figure.subplots(1, len(STAGES), sharey=False)
    for axes, (stage, title) in zip(panels, STAGES.items(), strict=True):
        for search, style in SEARCHES.items():
            rows = [row for row in raw["rows"] if (row["stage"], row["search"]) == (stage, search)]
            seconds = [row["search_seconds"] for row in rows]
            _draw_line(axes, seconds, [row["quality"][main] for row in rows], style)
            for row, time in zip(rows, seconds, strict=True):
                effort = row.get("probes", row.get("ef"))
                if effort is not None:
                    _note(axes, f"{effort:,}", time, row["quality"][main], style)
                else:
                    axes.axhline(row["quality"][main], color=style.color, linewidth=1, linestyle=":")
        axes.set_xscale("log")
        _plain_ticks(axes.xaxis)
        axes.set_title(title, fontsize=11, color=INK)
        _finish(axes, _SEARCH_AXIS, _quality(raw) if axes is panels[0] else "", legend=False)
    handles, labels = panels[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, labelcolor=INK)


def _over_truncation(axes: Any, raw: Mapping[str, Any], value: Callable[[Mapping[str, Any]], float]) -> None:
    """Lines over L; k-NN and the whole graph know no L and are level lines."""
    axes.set_xscale("log")
    for method, style in STYLES.items():
        rows = _rows(raw, method)
        if method in ("knn", "online"):
            for row in rows:
                axes.axhline(value(row), color=style.color, linestyle=style.line, linewidth=1.8, label=style.label)
        else:
            _draw_line(axes, [row["truncation"] for row in rows], [value(row) for row in rows], style)
    sizes = sorted({row["truncation"] for row in raw["rows"] if row["truncation"] is not None})
    axes.set_xticks(_apart(sizes), [f"{size:,}" for size in _apart(sizes)])
    axes.minorticks_off()


def _apart(sizes: Sequence[int]) -> list[int]:
    """Those L whose numbers do not touch each other on a log axis."""
    kept: list[int] = []
    for size in sizes:
        if not kept or size > 1.4 * kept[-1]:
            kept.append(size)
    return kept


def _rows(raw: Mapping[str, Any], method: str) -> Rows:
    return sorted((row for row in raw["rows"] if row["method"] == method), key=lambda row: row["truncation"] or 0)


def _quality(raw: Mapping[str, Any]) -> str:
    data = raw["dataset"]
    return "mAP (%)" if len(data["protocols"]) == 1 else f"mAP (%), {data['main']}"


def _draw_line(axes: Any, x: Sequence[float], y: Sequence[float], style: Style) -> None:
    if x:
        size = 12 if style.marker == "*" else 6.5
        axes.plot(
            x, y, color=style.color, marker=style.marker, linestyle=style.line, label=style.label,
            linewidth=1.8, markersize=size, markeredgecolor=PAPER, markeredgewidth=0.7,
        )  # fmt: skip


def _note(axes: Any, text: str, x: float, y: float, style: Style) -> None:
    """A few words beside a point, in the colour of its line: above it, or below for the neighbour of such a line."""
    place = (6, -12) if style.marker in "vD" else (6, 5)
    axes.annotate(text, (x, y), textcoords="offset points", xytext=place, fontsize=8, color=style.color)


def _plain_ticks(axis: Any) -> None:
    """1, 2, 5, 10 instead of powers of ten; more between them where there is less than a decade to see."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    low, high = axis.get_data_interval()
    few = low > 0 and high < 8 * low
    axis.set_major_locator(LogLocator(subs=(1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0) if few else (1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
    axis.set_minor_formatter(NullFormatter())


def _finish(axes: Any, x: str, y: str, legend: bool = True) -> None:
    axes.set_xlabel(x, color=INK)
    axes.set_ylabel(y, color=INK)
    axes.set_facecolor("none")
    axes.margins(0.09)  # room for what is written beside the points
    axes.grid(color="#888888", alpha=0.3, linewidth=0.6)
    axes.tick_params(colors=INK, which="both")
    for side, spine in axes.spines.items():
        spine.set_visible(side in ("left", "bottom"))
        spine.set_color(INK)
    if legend and axes.get_legend_handles_labels()[0]:
        axes.figure.legend(loc="outside upper center", ncols=2, frameon=False, labelcolor=INK, fontsize=9)


def _draw(draw: Callable[[Any, Mapping[str, Any]], None], raw: Mapping[str, Any], name: str) -> dict[str, bytes]:
    try:
        import matplotlib as mpl
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingExtra("matplotlib", "demo") from error
    drawn = {}
    # The salt names the parts of an SVG; without one they are random.
    with mpl.rc_context({"svg.hashsalt": name, "font.size": 10.5}):
        wide = draw is approximate_search
        figure = Figure(figsize=(8.4, 4.4) if wide else (6.8, 4.8), facecolor=PAPER, layout="constrained")
        FigureCanvasAgg(figure)
        draw(figure, raw)
        data, machine = raw["dataset"], raw["machine"]
        foot = f"{data['name']}, {data['images']:,} images · {machine['cpu']}, {machine['cores']} cores"
        figure.supxlabel(f"{foot}\n{raw['command']}", fontsize=7, color="#808080")
        for kind in _FORMATS:
            buffer = io.BytesIO()
            figure.savefig(buffer, format=kind, dpi=150, metadata=_NO_METADATA[kind])
            drawn[kind] = buffer.getvalue()
    return drawn


def inlined(svg: str, name: str) -> str:
    """An SVG as part of a page: in the page's own ink, its names told apart from those of other figures."""
    svg = svg[svg.index("<svg") :]
    svg = (
        re.sub(r'\s(?:xmlns(?::\w+)?|width|height|version)="[^"]*"', "", svg.partition(">")[0]) + svg[svg.index(">") :]
    )
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", svg)
    return svg.replace(INK, "currentColor").replace(PAPER, "var(--paper)")


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
