"""Figures 1, 4, 5 and 6 of the paper, drawn from what `suffuse.research.experiments` measured."""

import io
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from suffuse.errors import name_extra

# Two colours that nothing else has, so that a page can replace them by its own in light and in dark.
INK, PAPER = "#1b1c1d", "#fdfefe"
# Each format without the metadata that would change the bytes from run to run.
_FORMATS = {"png": {"Software": None}, "svg": dict.fromkeys(("Date", "Creator", "Format", "Type"))}
# Methods that have no L.
_WITHOUT_L = ("knn", "online")
_TIME, _OVER_TRUNCATION = "time per query (ms, one thread, log scale)", "L, elements in a support (log scale)"

Raw = Mapping[str, Any]


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
    "paper": Style("offline, L nearest (the paper)", "#0072b2", "o"),
    "graph": Style("offline, walk's support (ours)", "#009e73", "D"),
}
SEARCHES = {
    "exact": Style("exact", "#7f7f7f", "*", ":"),
    "ivfadc": Style("IVFADC, by cells probed", "#0072b2", "o"),
    "hnsw": Style("HNSW, by candidates held (ef)", "#d55e00", "v", "--"),
}
STAGES = {"support": "truncation (supports)", "graph": "graph construction"}


def draw_quality_over_time(figure: Any, raw: Raw) -> None:
    """Fig. 1: mAP against time per query; along each line L grows."""
    axes, main = figure.add_subplot(), raw["dataset"]["main"]
    for method, style in STYLES.items():
        rows = _rows_by_size(raw, method)
        times, quality = [row["milliseconds"] for row in rows], [row["quality"][main] for row in rows]
        _draw_line(axes, times, quality, style)
        for end in sorted({0, len(rows) - 1}) if rows and method not in _WITHOUT_L else ():
            _note(axes, f"L={rows[end]['truncation']:,}", times[end], quality[end], style)
    _set_log_scale(axes, "x")
    _finish(axes, _TIME, _quality_label(raw))


def draw_time_over_truncation(figure: Any, raw: Raw) -> None:
    """Fig. 4: time per query by method and L."""
    axes = _draw_over_truncation(figure, raw, lambda row: float(row["milliseconds"]))
    _set_log_scale(axes, "y")
    _finish(axes, _OVER_TRUNCATION, _TIME)


def draw_quality_over_truncation(figure: Any, raw: Raw) -> None:
    """Fig. 6: mAP against L."""
    axes = _draw_over_truncation(figure, raw, lambda row: float(row["quality"][raw["dataset"]["main"]]))
    _finish(axes, _OVER_TRUNCATION, _quality_label(raw))


def draw_approximate_search(figure: Any, raw: Raw) -> None:
    """Fig. 5: mAP against the offline seconds of the search, for the supports and for the graph."""
    main, panels = raw["dataset"]["main"], figure.subplots(1, len(STAGES), sharey=False)
    for axes, (stage, title) in zip(panels, STAGES.items(), strict=True):
        for search, style in SEARCHES.items():
            rows = [row for row in raw["rows"] if (row["stage"], row["search"]) == (stage, search)]
            seconds, quality = [row["search_seconds"] for row in rows], [row["quality"][main] for row in rows]
            _draw_line(axes, seconds, quality, style)
            for row, x, y in zip(rows, seconds, quality, strict=True):
                if (effort := row.get("probes", row.get("ef"))) is not None:
                    _note(axes, f"{effort:,}", x, y, style)
                else:
                    axes.axhline(y, color=style.color, linewidth=1, linestyle=":")
        _set_log_scale(axes, "x")
        axes.set_title(title, fontsize=11, color=INK)
        label = _quality_label(raw) if axes is panels[0] else ""
        _finish(axes, "search for all elements (s, one thread, log scale)", label, legend=False)
    handles, labels = panels[0].get_legend_handles_labels()
    if handles:
        figure.legend(handles, labels, loc="outside upper center", ncols=3, frameon=False, labelcolor=INK)


def _draw_over_truncation(figure: Any, raw: Raw, value: Callable[[Raw], float]) -> Any:
    """Axes with lines over L; k-NN and the whole graph have no L and are level lines."""
    axes = figure.add_subplot(xscale="log")
    for method, style in STYLES.items():
        rows = _rows_by_size(raw, method)
        if method in _WITHOUT_L:
            for row in rows:
                axes.axhline(value(row), color=style.color, linestyle=style.line, linewidth=1.8, label=style.label)
        else:
            _draw_line(axes, [row["truncation"] for row in rows], [value(row) for row in rows], style)
    ticks: list[int] = []
    for size in sorted({row["truncation"] for row in raw["rows"] if row["truncation"] is not None}):
        if not ticks or size > 1.4 * ticks[-1]:  # nearer to each other, the numbers would touch
            ticks.append(size)
    axes.set_xticks(ticks, [f"{size:,}" for size in ticks])
    axes.minorticks_off()
    return axes


def _rows_by_size(raw: Raw, method: str) -> list[Raw]:
    return sorted((row for row in raw["rows"] if row["method"] == method), key=lambda row: row["truncation"] or 0)


def _quality_label(raw: Raw) -> str:
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
    offset = (6, -12) if style.marker in "vD" else (6, 5)
    axes.annotate(text, (x, y), textcoords="offset points", xytext=offset, fontsize=8, color=style.color)


def _set_log_scale(axes: Any, name: str) -> None:
    """Ticks at 1, 2, 5, 10 instead of powers of ten; more between them where there is less than a decade to see."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set(**{f"{name}scale": "log"})
    axis = getattr(axes, f"{name}axis")
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
    axes.spines[:].set_color(INK)
    axes.spines[["top", "right"]].set_visible(False)
    if legend and axes.get_legend_handles_labels()[0]:
        axes.figure.legend(loc="outside upper center", ncols=2, frameon=False, labelcolor=INK, fontsize=9)


FIGURES = {
    "fig1": draw_quality_over_time,
    "fig4": draw_time_over_truncation,
    "fig5": draw_approximate_search,
    "fig6": draw_quality_over_truncation,
}


def draw_all(truncation: Raw, approximate: Raw) -> dict[str, bytes]:
    """All figures by file name, as PNG and SVG."""
    with name_extra("matplotlib", "research"):
        import matplotlib as mpl
        from matplotlib.figure import Figure
    files = {}
    for name, draw in FIGURES.items():
        raw, size = (approximate, (8.4, 4.4)) if name == "fig5" else (truncation, (6.8, 4.8))
        data, machine = raw["dataset"], raw["machine"]
        foot = f"{data['name']}, {data['images']:,} images · {machine['cpu']}, {machine['cores']} cores"
        # The salt names the parts of an SVG; without one they are random.
        with mpl.rc_context({"svg.hashsalt": name, "font.size": 10.5}):
            figure = Figure(figsize=size, facecolor=PAPER, layout="constrained")
            draw(figure, raw)
            figure.supxlabel(f"{foot}\n{raw['command']}", fontsize=7, color="#808080")
            for kind, metadata in _FORMATS.items():
                buffer = io.BytesIO()
                figure.savefig(buffer, format=kind, dpi=150, metadata=metadata)
                files[f"{name}.{kind}"] = buffer.getvalue()
    return files


def inline_svg(svg: str, name: str) -> str:
    """An SVG as part of a page: in the page's own colours, its ids told apart from those of other figures."""
    opening, _, rest = svg[svg.index("<svg") :].partition(">")
    opening = re.sub(r'\s(?:xmlns(?::\w+)?|width|height|version)="[^"]*"', "", opening)
    svg = re.sub(r'(\bid="|url\(#|href="#)', rf"\g<1>{name}-", f"{opening}>{rest}")
    return svg.replace(INK, "currentColor").replace(PAPER, "var(--paper)")
