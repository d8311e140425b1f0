"""The verbs of pictures: extract (a folder to features) and images (a folder to an index)."""

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from typer import Argument, Option

from suffuse.cli.options import ForceOption, IndexOption, ThreadsOption, expand_groups
from suffuse.cli.terminal import pluralize, progress_bars, say, write_output
from suffuse.core.params import Params
from suffuse.errors import InvalidInput, InvalidParams

if TYPE_CHECKING:
    from suffuse.images.folder import Extraction, Skipped
    from suffuse.images.network import Extractor

# A whitening to 512 dimensions needs several pictures for each of them; learned on fewer, it amplifies chance.
_WHITENED, _LEAST_TO_WHITEN = 512, 4 * 512
_SHOWN = 20  # skipped pictures that are listed on the terminal

FolderArgument = Annotated[Path, Argument(metavar="FOLDER", help="Pictures, and folders of pictures.")]
RegionsOption = Annotated[bool, Option("--regions", help="Some 20 vectors per picture, to find parts: better, larger.")]


class NetworkOptions(NamedTuple):
    """The network, and what is done with a picture before and after it."""

    model: Annotated[str, Option(metavar="NAME|FILE", help="A known network, or an .onnx file.")] = "efficientnet-lite0"
    size: Annotated[int, Option(help="Longest side of pictures for the network, in pixels.")] = 512
    pooling: Annotated[Literal["rmac", "gem"], Option(help="How a feature map becomes one vector.")] = "rmac"
    mean: Annotated[str | None, Option(metavar="R,G,B", help="Mean colour, for FILE.onnx.", show_default="0.5")] = None
    std: Annotated[str | None, Option(metavar="R,G,B", help="Its deviation, for FILE.onnx.", show_default="0.5")] = None
    layout: Annotated[Literal["nchw", "nhwc"], Option(help="Order of axes that FILE.onnx takes.")] = "nchw"
    layer: Annotated[str | None, Option(metavar="NAME", help="Output of FILE.onnx.", show_default="feature map")] = None
    threads: ThreadsOption = None

    def load(self) -> "Extractor":
        """The network, ready for pictures."""
        from suffuse.images import load_extractor

        colours = {name: _parse_colours(name, text) for name, text in (("mean", self.mean), ("std", self.std)) if text}
        return load_extractor(
            self.model, self.size, threads=self.threads, pooling=self.pooling, layout=self.layout, output=self.layer,
            **colours,
        )  # fmt: skip


@expand_groups
def extract(
    folder: FolderArgument,
    output: Annotated[Path, Option("-o", "--output", metavar="FILE.npz", help="The features to write.")],
    network: NetworkOptions,
    regions: RegionsOption = False,
) -> None:
    """Extract features of all pictures in a folder: arrays features and names, and owners with --regions.

    What is extracted is kept beside the output: a run that was stopped continues, and the next one extracts only what
    is new or changed.
    """
    if output.suffix.lower() != ".npz":
        raise InvalidParams(f"the output must end in .npz, got {output}")
    if output.is_dir() or not output.absolute().parent.is_dir():
        # Better now than after the extraction.
        raise InvalidInput(f"{output} cannot be written there; give the name of a file in a folder that exists")
    import numpy as np

    extractor = network.load()
    found = extract_pictures(folder, output, extractor, regions)
    if not len(found.features):
        raise InvalidInput(f"no picture in {folder} could be used; give a folder of JPEG, PNG, WebP, GIF, TIFF or BMP")
    arrays: dict[str, Any] = {"features": found.features, "names": [item["name"] for item in found.items]}
    if found.owners is not None:
        arrays["owners"] = found.owners
    content = io.BytesIO()
    np.savez(content, **arrays)
    write_output(output, [content.getvalue()])
    vectors, pictures = pluralize(len(found.features), "vector"), pluralize(len(found.items), "picture")
    say(f"{output}: {vectors} of {pictures}, {pluralize(extractor.dimensions, 'dimension')}")


@expand_groups
def images(
    folder: FolderArgument,
    output: IndexOption,
    network: NetworkOptions,
    params: Annotated[Params, ("truncation", "keep")],
    regions: RegionsOption = False,
    whiten: Annotated[
        int | None,
        Option(metavar="D", help="PCA-whiten to D dimensions; 0 for none.", show_default="512 from 2,048 pictures"),
    ] = None,
    k: Annotated[
        int | None, Option("--k", help="Length of the neighbour lists.", show_default="50; of regions by picture count")
    ] = None,
    force: ForceOption = False,
) -> None:
    """Make an index of a folder of pictures: find them, extract features, build.

    A run that was stopped continues when the same command is given again. For pictures that were added or changed later
    there is suffuse add; the same command with --force extracts only those and builds anew.
    """
    replace(params, k=params.k if k is None else k, whiten=whiten or None)  # checked first
    from suffuse.offline.build import build, refuse_overwriting

    refuse_overwriting(output, force)  # better now than after the extraction
    extractor = network.load()
    found = extract_pictures(folder, output, extractor, regions)
    count = len(found.items)
    if count < 2:
        raise InvalidInput(f"{pluralize(count, 'usable picture')} in {folder}; an index needs at least 2")
    params = replace(
        params,
        k=suggest_k(count, regions) if k is None else k,
        whiten=suggest_whitening(count, extractor.dimensions) if whiten is None else whiten or None,
        with_graph=True,  # small beside the pictures, and the page can show chains
    )
    facts = {"root": str(folder.absolute()), "extractor": extractor.describe()}
    with progress_bars() as progress:
        summary = build(
            found.features, output, params, owners=found.owners, names=found.items, force=force, progress=progress,
            pictures=facts,
        )  # fmt: skip
    say(
        f"{summary.path}: {pluralize(summary.images, 'picture')}, {pluralize(summary.elements, 'vector')} of"
        f" {pluralize(summary.dimensions, 'dimension')}, {summary.bytes / 1e6:,.1f} MB, k {params.k},"
        f" {f'whitened to {params.whiten}' if params.whiten else 'not whitened'}"
    )
    say(f"Look at it: suffuse serve {summary.path} --open")


def suggest_k(pictures: int, regions: bool) -> int:
    """The length of lists for so many pictures: of regions, four times a tenth of the pictures, 20 to 200.

    One vector for each picture needs no rule: the graph looks at what is near, however long its lists are.
    """
    return 4 * min(50, max(5, pictures // 10)) if regions else Params().k


def suggest_whitening(pictures: int, dimensions: int) -> int | None:
    """Dimensions to whiten to, or none where there are too few pictures to learn from."""
    return min(_WHITENED, dimensions) if pictures >= _LEAST_TO_WHITEN else None


def _parse_colours(name: str, text: str) -> tuple[float, ...]:
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
    """Extract with a progress bar, then say what it took and which pictures were skipped, `skipped` among them.

    Where `names` are given, only those pictures of the folder.
    """
    from suffuse.images.cache import locate_cache
    from suffuse.images.folder import extract_folder
    from suffuse.store.files import write_bytes

    cache = locate_cache(output)
    with progress_bars() as progress:
        found = extract_folder(folder, cache, extractor, names=names, regions=regions, progress=progress)
    found = found._replace(skipped=sorted([*skipped, *found.skipped]))
    if found.extracted:
        say(
            f"{pluralize(found.extracted, 'picture')} extracted in {found.seconds:.1f} s: {found.rate:.1f} images/s,"
            f" the network busy {found.busy:.0%} of the time"
        )
    if known := max(0, len(found.items) - found.extracted):
        say(f"{pluralize(known, 'picture')} known already")
    if found.skipped:
        say(f"{pluralize(len(found.skipped), 'file')} skipped:")
        for name, reason in found.skipped[:_SHOWN]:
            say(f"  {name}: {reason}")
    if len(found.skipped) > _SHOWN:
        write_bytes(cache / "skipped.txt", [f"{name}\t{reason}\n".encode() for name, reason in found.skipped])
        say(f"  and {len(found.skipped) - _SHOWN:,} more, listed in {cache / 'skipped.txt'}")
    return found
