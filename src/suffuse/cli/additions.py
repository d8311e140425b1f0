"""What is to be added to an index: a file of features, or pictures that are new or have changed."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from suffuse.cli.images import extract_pictures
from suffuse.errors import InvalidInput, InvalidParams

if TYPE_CHECKING:
    from suffuse.images.folder import Extraction, Skipped
    from suffuse.index.index import Index
    from suffuse.index.writer import Addition
    from suffuse.store.manifest import Manifest

# What the kinds of feature files end in, see `features.load`.
_FEATURE_FILES = (".npy", ".npz", ".fvecs", ".h5", ".hdf5", ".mat")
# Names and ids that are listed on the terminal.
_SHOWN = 5
# How far features of the same picture may be apart: networks round as their threads divide the work.
_SAME = 1e-4


class Like(NamedTuple):
    """How more pictures are treated like those of an index, where that is not what its manifest says."""

    root: Path | None = None  # the folder of its pictures
    model: str | None = None  # the same network, in another place
    threads: int | None = None


def is_features(sources: Sequence[str]) -> bool:
    """Whether this is a file of features, and not pictures."""
    files = [Path(source.partition("::")[0]) for source in sources]
    given = [file.suffix.lower() in _FEATURE_FILES and not file.is_dir() for file in files]
    if any(given) and len(sources) > 1:
        raise InvalidParams(f"one file of features at a time, got {len(sources)} files; add them one after the other")
    return any(given)


def from_file(path: str, names: Path | None, owners: Path | None, transpose: bool) -> "Addition":
    """What a file of features holds, as `suffuse build` reads it."""
    from suffuse.index.writer import Addition
    from suffuse.store.feature_files import load, load_owners
    from suffuse.store.items import load_items, with_labels

    loaded = load(path, transpose=transpose, least_rows=1)
    items = None if names is None else load_items(names)
    if loaded.labels is not None and owners is None:
        items = with_labels(items, loaded.labels)
    return Addition(loaded.features, None if owners is None else load_owners(owners), items)


def from_pictures(
    opened: "Index", paths: list[Path], like: Like, known: dict[str, list[int]], replace: bool
) -> "tuple[Addition, list[str]]":
    """Pictures that are new, or, with `replace`, changed; and the names of the others."""
    from suffuse.index.writer import Addition

    found, skipped = _more_pictures(
        opened.path, opened.manifest, paths, like, lambda name: replace or name not in known
    )
    if found is None:
        return Addition(opened.features[:0], None, []), skipped
    addition = Addition(found.features, found.owners, found.items)
    if not replace:
        return addition, skipped
    changed = _Changed(opened, addition)
    chosen = []
    for number, item in enumerate(found.items):
        if item["name"] not in known or changed(number, only_one(known, item["name"])):
            chosen.append(number)
        else:
            skipped.append(item["name"])
    return part_of(addition, chosen), skipped


class _Changed:
    """Whether pictures differ from the images that an index holds: in their facts, or in their features."""

    def __init__(self, opened: "Index", addition: "Addition") -> None:
        self._opened, self._addition = opened, addition
        self._rows = opened.prepare(addition.features) if len(addition.features) else addition.features
        self._of_index, self._of_addition = _Rows(opened.owners), _Rows(addition.owners)

    def __call__(self, number: int, id: int) -> bool:
        import numpy as np

        assert self._addition.names is not None
        facts = [{**item, "date": None} for item in (self._addition.names[number], self._opened.items[id])]
        before = self._opened.features[self._of_index[self._opened.ids.place(id)]]
        now = self._rows[self._of_addition[number]]
        return facts[0] != facts[1] or now.shape != before.shape or not np.allclose(now, before, rtol=0, atol=_SAME)


class _Rows:
    """Which rows belong to an image."""

    def __init__(self, owners: Any) -> None:
        import numpy as np

        self._order = None if owners is None else np.argsort(owners, kind="stable")
        self._owners = None if owners is None else owners[self._order]

    def __getitem__(self, image: int) -> Any:
        if self._order is None or self._owners is None:
            return slice(image, image + 1)
        return self._order[self._owners.searchsorted(image) : self._owners.searchsorted(image, "right")]


def part_of(addition: "Addition", images: list[int]) -> "Addition":
    """Some images of an addition."""
    import numpy as np

    names = addition.names and [addition.names[image] for image in images]
    if addition.owners is None:
        return addition._replace(features=addition.features[images], names=names)
    of = _Rows(addition.owners)
    rows = [of[image] for image in images]
    owners = np.repeat(np.arange(len(images)), [len(each) for each in rows])
    return addition._replace(
        features=addition.features[np.concatenate([*rows, np.empty(0, np.int64)])], owners=owners, names=names
    )


def ids_by_name(opened: "Index") -> dict[str, list[int]]:
    """The images of an index that have a name; a name may be that of several."""
    found: dict[str, list[int]] = {}
    for id, item in zip(opened.ids.shown().tolist(), opened.items, strict=True):
        if isinstance(name := item.get("name"), str):
            found.setdefault(name, []).append(id)
    return found


def only_one(known: dict[str, list[int]], name: str) -> int:
    """The image of this name."""
    match known.get(name, []):
        case [id]:
            return id
        case []:
            raise InvalidInput(f"no image is called {name!r}; names are those that a search shows")
        case ids:
            raise InvalidInput(f"{len(ids)} images are called {name!r}: {listed(ids)}; say which by its id")


def listed(some: Sequence[int] | Sequence[str]) -> str:
    """The first of some ids or names; ids that follow each other as a range."""
    if len(some) > 1 and isinstance(some[0], int) and list(some) == list(range(some[0], some[0] + len(some))):
        return f"ids {some[0]}..{some[-1]}"
    text = ", ".join(map(str, some[:_SHOWN])) + (f" and {len(some) - _SHOWN:,} more" if len(some) > _SHOWN else "")
    return text if not some or isinstance(some[0], str) else f"{'id' if len(some) == 1 else 'ids'} {text}"


def _more_pictures(
    index: Path, manifest: "Manifest", paths: Sequence[Path], like: Like, is_wanted: Callable[[str], bool]
) -> "tuple[Extraction | None, list[str]]":
    """The features of pictures, made as those of an index were, and the names of those that are not wanted.

    Nothing is extracted where no picture is wanted.
    """
    from suffuse.images import extractor_from

    facts = manifest.pictures or {}
    if not isinstance(facts.get("extractor"), dict) or not isinstance(facts.get("root"), str):
        raise InvalidInput(f"{index} does not say how its pictures became features; give a file of features")
    root = Path(facts["root"]) if like.root is None else like.root
    names, skipped = _names_below(root, paths)
    wanted = [name for name in names if is_wanted(name)]
    if not wanted and not skipped:
        return None, names
    described = facts["extractor"] if like.model is None else {**facts["extractor"], "model": like.model}
    extractor = extractor_from(described, threads=like.threads)
    regional = "owners.npy" in manifest.files
    found = extract_pictures(root, index.absolute(), extractor, regional, skipped, wanted)
    return found, sorted(set(names) - set(wanted))


def _names_below(root: Path, paths: Sequence[Path]) -> "tuple[list[str], list[Skipped]]":
    """The names that a build from `root` gives to these pictures, and to those in these folders."""
    from suffuse.images.folder import Skipped, find_pictures

    names: set[str] = set()
    skipped: list[Skipped] = []
    for path in paths:
        inside = _inside(root, path)
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


def _inside(root: Path, path: Path) -> Path:
    """The path below the folder of an index's pictures."""
    # First as they are written: a name may lead over a link that the index knows by its own name.
    written = tuple(Path(os.path.normpath(each.absolute())) for each in (root, path))
    for at, below in (written, (root.resolve(), path.resolve())):
        if below.is_relative_to(at):
            return below.relative_to(at)
    raise InvalidInput(
        f"{path} is not in {root}, the folder of the index's pictures; put it there, or, if that folder has moved, say"
        " where it is by --images"
    )
