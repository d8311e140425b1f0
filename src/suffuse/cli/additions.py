"""What is added to an index: pictures that are new or have changed, and how images are found by name."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from typer import Option

from suffuse.cli.images import extract_pictures
from suffuse.cli.options import ThreadsOption
from suffuse.errors import InvalidInput, InvalidParams

if TYPE_CHECKING:
    from suffuse.images.folder import Skipped
    from suffuse.index.index import Index
    from suffuse.index.writer import Addition

# Names and ids that are listed on the terminal.
_SHOWN = 5
# How far features of the same picture may be apart: the rounding of a network depends on its threads.
_SAME = 1e-4

Known = dict[str, list[int]]  # the images of each name


class PictureOptions(NamedTuple):
    """How more pictures are treated like those of an index, where the index is not right any more."""

    images: Annotated[Path | None, Option(metavar="FOLDER", help="Where the index's pictures are, if moved.")] = None
    model: Annotated[str | None, Option(metavar="FILE", help="Where the index's network is, if moved.")] = None
    threads: ThreadsOption = None


def is_feature_file(sources: Sequence[str]) -> bool:
    """Whether this is a file of features, and not pictures."""
    from suffuse.store.feature_files import SUFFIXES

    files = [Path(source.partition("::")[0]) for source in sources]
    given = [file.suffix.lower() in SUFFIXES and not file.is_dir() for file in files]
    if any(given) and len(sources) > 1:
        raise InvalidParams(f"one file of features at a time, got {len(sources)} files; add them one after the other")
    return any(given)


def read_pictures(
    opened: "Index", paths: Sequence[Path], options: PictureOptions, known: Known, replace: bool
) -> "tuple[Addition, list[str]]":
    """Pictures that are new, or, with `replace`, changed; and the names of the others.

    Nothing is extracted where nothing can be new.
    """
    from suffuse.images import extractor_from
    from suffuse.index.writer import Addition

    facts = opened.manifest.pictures or {}
    if not isinstance(facts.get("extractor"), dict) or not isinstance(facts.get("root"), str):
        raise InvalidInput(f"{opened.path} does not say how its pictures became features; give a file of features")
    root = Path(facts["root"]) if options.images is None else options.images
    names, unusable = _find_names(root, paths)
    wanted = [name for name in names if replace or name not in known]
    skipped = sorted(set(names) - set(wanted))
    if not wanted and not unusable:
        return Addition(opened.features[:0], None, []), skipped
    described = facts["extractor"] if options.model is None else {**facts["extractor"], "model": options.model}
    extractor = extractor_from(described, threads=options.threads)
    regional = "owners.npy" in opened.manifest.files
    found = extract_pictures(root, opened.path.absolute(), extractor, regional, unusable, wanted)
    addition = Addition(found.features, found.owners, found.items)
    if not replace:
        return addition, skipped
    same = _find_same(opened, addition, known)
    chosen = [number for number in range(len(found.items)) if number not in same]
    return select_images(addition, chosen), skipped + list(same.values())


def _find_same(opened: "Index", addition: "Addition", known: Known) -> dict[int, str]:
    """The names of pictures that are in the index as they are: with the same facts and the same features."""
    import numpy as np

    rows = opened.prepare(addition.features) if len(addition.features) else addition.features
    rows_before, rows_now = _rows_of_images(opened.owners), _rows_of_images(addition.owners)
    same = {}
    for number, item in enumerate(addition.names or ()):
        if (name := item["name"]) in known:
            id = find_id(known, name)
            before, now = opened.features[rows_before(opened.ids.find_row(id))], rows[rows_now(number)]
            alike = now.shape == before.shape and np.allclose(now, before, rtol=0, atol=_SAME)
            if alike and {**item, "date": None} == {**opened.items[id], "date": None}:
                same[number] = name
    return same


def _rows_of_images(owners: Any) -> Callable[[int], Any]:
    """A function that gives the rows of an image."""
    import numpy as np

    if owners is None:
        return lambda image: slice(image, image + 1)
    order = np.argsort(owners, kind="stable")
    sorted_owners = owners[order]
    return lambda image: order[sorted_owners.searchsorted(image) : sorted_owners.searchsorted(image, "right")]


def select_images(addition: "Addition", images: list[int]) -> "Addition":
    """Some images of an addition."""
    import numpy as np

    names = addition.names and [addition.names[image] for image in images]
    if addition.owners is None:
        return addition._replace(features=addition.features[images], names=names)
    rows = list(map(_rows_of_images(addition.owners), images))
    owners = np.repeat(np.arange(len(images)), list(map(len, rows)))
    features = addition.features[np.concatenate([*rows, np.empty(0, np.int64)])]
    return addition._replace(features=features, owners=owners, names=names)


def map_names(opened: "Index") -> Known:
    """The images of an index that have a name; several may have the same one."""
    found: Known = {}
    for id, item in zip(opened.ids.list_visible().tolist(), opened.items, strict=True):
        if isinstance(name := item.get("name"), str):
            found.setdefault(name, []).append(id)
    return found


def find_id(known: Known, name: str) -> int:
    """The only image of this name."""
    match known.get(name, []):
        case [id]:
            return id
        case []:
            raise InvalidInput(f"no image is called {name!r}; names are those that a search shows")
        case ids:
            raise InvalidInput(f"{len(ids)} images are called {name!r}: {summarize(ids)}; say which by its id")


def summarize(values: Sequence[int] | Sequence[str]) -> str:
    """The first of some ids or names; ids that follow each other as a range."""
    first, *_ = values or [""]
    if len(values) > 1 and isinstance(first, int) and list(values) == list(range(first, first + len(values))):
        return f"ids {first}..{values[-1]}"
    more = f" and {len(values) - _SHOWN:,} more" if len(values) > _SHOWN else ""
    text = ", ".join(map(str, values[:_SHOWN])) + more
    return text if isinstance(first, str) else f"{'id' if len(values) == 1 else 'ids'} {text}"


def _find_names(root: Path, paths: Sequence[Path]) -> "tuple[list[str], list[Skipped]]":
    """The names that a build from `root` gives to these pictures, and to those in these folders."""
    from suffuse.images.folder import Skipped, find_pictures

    names: set[str] = set()
    skipped: list[Skipped] = []
    for path in paths:
        inside = _relate(root, path)
        if path.is_dir():
            found, unusable = find_pictures(path)
            names |= {(inside / name).as_posix() for name in found}
            skipped += [Skipped((inside / name).as_posix(), reason) for name, reason in unusable]
        elif path.exists():
            names.add(inside.as_posix())
        else:
            raise InvalidInput(f"there is no file or folder {path}; give a file of features, pictures, or a folder")
    hidden = {name for name in names if any(part.startswith(".") for part in Path(name).parts)}
    skipped += [Skipped(name, "hidden files are left out") for name in hidden]
    return sorted(names - hidden), skipped


def _relate(root: Path, path: Path) -> Path:
    """The path relative to the folder of an index's pictures."""
    # First as they are written: the index knows a link by its own name.
    written = tuple(Path(os.path.normpath(each.absolute())) for each in (root, path))
    for at, below in (written, (root.resolve(), path.resolve())):
        if below.is_relative_to(at):
            return below.relative_to(at)
    raise InvalidInput(
        f"{path} is not in {root}, the folder of the index's pictures; put it there, or, if that folder has moved, say"
        " where it is by --images"
    )
