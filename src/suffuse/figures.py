"""Figures 1, 4, 5 and 6 of the paper, drawn from what `suffuse.experiments` measured."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from suffuse.errors import MissingExtra

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
        _line(axes, times, quality, style)
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
            _line(axes, seconds, [row["quality"][main] for row in rows], style)
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
            _line(axes, [row["truncation"] for row in rows], [value(row) for row in rows], style)
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


def _line(axes: Any, x: Sequence[float], y: Sequence[float], style: Style) -> None:
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
