"""The verbs of pictures: extract (a folder to features) and images (a folder to an index)."""

import contextlib
import functools
import io
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from suffuse.cli.terminal import console, progress_bars
from suffuse.core.params import Params
from suffuse.errors import InvalidInput, InvalidParams

if TYPE_CHECKING:
    from suffuse.images.folder import Extraction, Skipped
    from suffuse.images.network import Extractor

_DEFAULTS = Params()
_MODEL, _SIZE = "efficientnet-lite0", 512
# A whitening to 512 dimensions needs several pictures for each of them; learned on fewer, it amplifies chance.
_WHITENED, _LEAST_TO_WHITEN = 512, 4 * 512
_SHOWN = 20  # skipped pictures that are listed on the terminal

FolderArgument = Annotated[
    Path, typer.Argument(metavar="FOLDER", show_default=False, help="Pictures, and folders of pictures.")
]
ModelOption = Annotated[str, typer.Option(metavar="NAME|FILE", help="The network: a name, or an .onnx file.")]
SizeOption = Annotated[int, typer.Option(help="Longest side of pictures for the network, in pixels.")]
RegionsOption = Annotated[
    bool, typer.Option("--regions", help="Some 20 vectors per picture, to find parts: better and larger.")
]
PoolingOption = Annotated[Literal["rmac", "gem"], typer.Option(help="How a feature map becomes one vector.")]
MeanOption = Annotated[
    str | None, typer.Option(metavar="R,G,B", help="Mean of the colours, of FILE.onnx.", show_default="0.5")
]
StdOption = Annotated[
    str | None, typer.Option(metavar="R,G,B", help="Deviation of the colours, of FILE.onnx.", show_default="0.5")
]
LayoutOption = Annotated[Literal["nchw", "nhwc"], typer.Option(help="Order of axes that FILE.onnx takes.")]
OutputOption = Annotated[
    str | None, typer.Option("--layer", metavar="NAME", help="Output of FILE.onnx.", show_default="a feature map")
]
ThreadsOption = Annotated[
    int | None, typer.Option(metavar="N", help="Threads of the network.", show_default="all cores")
]


def extract(
    folder: FolderArgument,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FILE.npz", show_default=False, help="The features to write.")
    ],
    model: ModelOption = _MODEL,
    size: SizeOption = _SIZE,
    regions: RegionsOption = False,
    pooling: PoolingOption = "rmac",
    mean: MeanOption = None,
    std: StdOption = None,
    layout: LayoutOption = "nchw",
    layer: OutputOption = None,
    threads: ThreadsOption = None,
) -> None:
    """Extract features of all pictures in a folder: arrays features and names, and owners with --regions.

    What is extracted is kept beside the output: a run that was stopped goes on, and the next one extracts only what
    is new or changed.
    """
    if output.suffix.lower() != ".npz":
        raise InvalidParams(f"the output must end in .npz, got {output}")
    if output.is_dir() or not output.absolute().parent.is_dir():
        # Better now than after the extraction.
        raise InvalidInput(f"{output} cannot be written there; give the name of a file in a folder that exists")
    extractor = _load(model, size, threads, pooling=pooling, mean=mean, std=std, layout=layout, output=layer)
    found = extract_pictures(folder, output, extractor, regions)
    if not len(found.features):
        raise InvalidInput(f"no picture in {folder} could be used; give a folder of JPEG, PNG, WebP, GIF, TIFF or BMP")
    _write_npz(output, found)
    console(stderr=True).print(
        f"[bold]{output}[/bold]: {len(found.features):,} vectors of {len(found.items):,} pictures,"
        f" {extractor.dimensions} dimensions",
        soft_wrap=True,
    )


def images(
    folder: FolderArgument,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="INDEX", show_default=False, help="The index directory to make.")
    ],
    model: ModelOption = _MODEL,
    size: SizeOption = _SIZE,
    regions: RegionsOption = False,
    whiten: Annotated[
        int | None,
        typer.Option(
            metavar="D", help="PCA-whiten to D dimensions; 0 for none.", show_default="512 from 2,048 pictures"
        ),
    ] = None,
    k: Annotated[
        int | None, typer.Option("--k", help="Neighbours in the graph.", show_default="by the number of pictures")
    ] = None,
    truncation: Annotated[int, typer.Option(help="L, elements in the support of a column.")] = _DEFAULTS.truncation,
    keep: Annotated[int, typer.Option(help="Entries of each column that are stored.")] = _DEFAULTS.keep,
    pooling: PoolingOption = "rmac",
    mean: MeanOption = None,
    std: StdOption = None,
    layout: LayoutOption = "nchw",
    layer: OutputOption = None,
    threads: ThreadsOption = None,
    force: Annotated[bool, typer.Option("--force", help="Replace an index that is already there.")] = False,
) -> None:
    """Make an index of a folder of pictures: find them, extract features, build.

    A run that was stopped goes on when the same command is given again. For pictures that were added or changed later
    there is suffuse add; the same command with --force extracts only those and builds anew.
    """
    Params(k=_DEFAULTS.k if k is None else k, truncation=truncation, keep=keep, whiten=whiten or None)  # checked first
    from suffuse.offline.build import build
    from suffuse.offline.workplace import refuse_overwriting

    refuse_overwriting(output, force)  # better now than after the extraction
    extractor = _load(model, size, threads, pooling=pooling, mean=mean, std=std, layout=layout, output=layer)
    found = extract_pictures(folder, output, extractor, regions)
    pictures = len(found.items)
    if pictures < 2:
        raise InvalidInput(f"{pictures} usable pictures in {folder}; an index needs at least 2")
    params = Params(
        k=suitable_k(pictures, regions) if k is None else k,
        truncation=truncation,
        keep=keep,
        whiten=suitable_whitening(pictures, extractor.dimensions) if whiten is None else whiten or None,
        with_graph=True,  # small beside the pictures, and the page can show chains
    )
    with progress_bars() as progress:
        summary = build(
            found.features,
            output,
            params,
            owners=found.owners,
            names=found.items,
            force=force,
            progress=progress,
            pictures=picture_facts(folder, extractor),
        )
    console(stderr=True).print(
        f"[bold]{summary.path}[/bold]: {summary.images:,} pictures, {summary.elements:,} vectors of"
        f" {summary.dimensions} dimensions, {summary.bytes / 1e6:,.1f} MB, k {params.k},"
        f" {f'whitened to {params.whiten}' if params.whiten else 'not whitened'}\n"
        f"Look at it: suffuse serve {summary.path} --open",
        soft_wrap=True,
    )


def picture_facts(root: Path, extractor: "Extractor") -> dict[str, Any]:
    """What an index remembers of its pictures: where they are, and what made vectors of them."""
    return {"root": str(root.absolute()), "extractor": extractor.describe()}


def suitable_k(pictures: int, regions: bool) -> int:
    """Neighbours in the graph for so many pictures.

    The paper's 50 (200 for regions) suits sets in which things have dozens of views. Where k is larger than the number
    of views, edges lead to other things and diffusion loses to k-NN; a small folder rarely has more views of one
    thing than a tenth of its pictures.
    """
    k = min(50, max(5, pictures // 10))
    return 4 * k if regions else k


def suitable_whitening(pictures: int, dimensions: int) -> int | None:
    """Dimensions to whiten to, or none where there are too few pictures to learn from."""
    return min(_WHITENED, dimensions) if pictures >= _LEAST_TO_WHITEN else None


def _load(model: str, size: int, threads: int | None, **options: Any) -> "Extractor":
    from suffuse.images import load_extractor

    for name in ("mean", "std"):
        text = options.pop(name)
        if text is not None:
            options[name] = _colours(name, text)
    return load_extractor(model, size, threads=threads, **options)


def _colours(name: str, text: str) -> tuple[float, ...]:
    """One number for all colours, or three."""
    try:
        values = tuple(float(part) for part in text.split(","))
    except ValueError:
        values = ()
    if len(values) not in (1, 3):
        raise InvalidParams(f"{name} must be a number, or three such as 0.485,0.456,0.406, got {text!r}")
    return values * 3 if len(values) == 1 else values


def extract_pictures(
    folder: Path,
    output: Path,
    extractor: "Extractor",
    regions: bool,
    skipped: Sequence["Skipped"] = (),
    names: Sequence[str] | None = None,
) -> "Extraction":
    """Extract with a progress bar, then say what it took and what was skipped, `skipped` among it.

    Where `names` are given, only those pictures of the folder.
    """
    from suffuse.images.cache import cache_path
    from suffuse.images.folder import extract_folder

    with _picture_bar() as progress:
        found = extract_folder(folder, cache_path(output), extractor, names=names, regions=regions, progress=progress)
    found = found._replace(skipped=sorted([*skipped, *found.skipped]))
    echo = functools.partial(console(stderr=True).print, soft_wrap=True, markup=False)
    known = len(found.items) - found.extracted
    if found.extracted:
        echo(
            f"{found.extracted:,} pictures extracted in {found.seconds:.1f} s: {found.rate:.1f} images/s,"
            f" the network busy {found.busy:.0%} of the time"
        )
    if known > 0:
        echo(f"{known:,} pictures were known already")
    if found.skipped:
        echo(f"{len(found.skipped):,} files were skipped:")
        for name, reason in found.skipped[:_SHOWN]:
            echo(f"  {name}: {reason}")
        if len(found.skipped) > _SHOWN:
            echo(f"  and {len(found.skipped) - _SHOWN:,} more, listed in {_write_skipped(output, found)}")
    return found


def _write_skipped(output: Path, found: "Extraction") -> Path:
    from suffuse.images.cache import cache_path
    from suffuse.store.files import write_bytes

    path = cache_path(output) / "skipped.txt"
    write_bytes(path, [f"{name}\t{reason}\n".encode() for name, reason in found.skipped])
    return path


def _write_npz(output: Path, found: "Extraction") -> None:
    import numpy as np

    from suffuse.store.files import write_bytes

    arrays: dict[str, Any] = {"features": found.features, "names": np.array([item["name"] for item in found.items])}
    if found.owners is not None:
        arrays["owners"] = found.owners
    content = io.BytesIO()
    np.savez(content, **arrays)
    try:
        write_bytes(output, [content.getvalue()])
    except OSError as error:
        raise InvalidInput(f"{output} cannot be written: {error.strerror}; choose another place") from error


@contextlib.contextmanager
def _picture_bar() -> Iterator[Callable[[int, int, float], None]]:
    """A bar on stderr with pictures per second and the time that is left."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    with Progress(
        TextColumn("pictures "),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]:.1f} images/s, left"),
        TimeRemainingColumn(),
        console=console(stderr=True),
    ) as bar:
        task = bar.add_task("pictures", total=None, rate=0.0)

        def report(done: int, total: int, rate: float) -> None:
            bar.update(task, completed=done, total=total, rate=rate)

        yield report
