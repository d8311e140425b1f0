"""The verbs of an index that lives: add, replace, remove and compact."""

import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args

import typer

from suffuse.cli.additions import Like, from_file, from_pictures, ids_by_name, is_features, listed, only_one, part_of
from suffuse.cli.images import ThreadsOption
from suffuse.cli.state import IndexArgument, some
from suffuse.cli.terminal import console, progress_bars
from suffuse.errors import InvalidInput, InvalidParams

if TYPE_CHECKING:
    from suffuse.index.index import Index
    from suffuse.index.writer import Addition, ChangeSummary, Mode
    from suffuse.offline.runner import Progress

# The share of stale columns from which on a user is told to compact.
_MANY_STALE = 0.3

NamesOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="A name per image: .txt (a line each), .csv, .json or .jsonl (with metadata)."),
]
OwnersOption = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Rows are regions: a .npy file with the image of each, new ones counted from 0."),
]
ModeOption = Annotated[
    Literal["fast", "exact"],
    typer.Option(
        help="fast solves what is near now and leaves the rest to compact; exact does all now, as a new build."
    ),
]
TransposeOption = Annotated[bool, typer.Option("--transpose", help="FEATURES has one column per image.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Also what was done, as one JSON object.")]

What = Literal["added", "replaced", "removed"]


class _Done(NamedTuple):
    """A change that was made."""

    what: What
    ids: list[int]
    summary: "ChangeSummary"


def add(
    index: IndexArgument,
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="FEATURES|PICTURES",
            show_default=False,
            help="A file of features as for build; or, for an index that suffuse images made, pictures and folders of"
            " pictures.",
        ),
    ],
    names: NamesOption = None,
    owners: OwnersOption = None,
    replace: Annotated[
        bool,
        typer.Option("--replace", help="Images whose name is in the index take the place of those; ids stay."),
    ] = False,
    mode: ModeOption = "fast",
    transpose: TransposeOption = False,
    images: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The folder of the index's pictures, if it was moved.", show_default=False),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="The network of the index's pictures, if it was moved.", show_default=False),
    ] = None,
    threads: ThreadsOption = None,
    as_json: JsonOption = False,
) -> None:
    """Add images to an index, without building it anew; searches go on meanwhile.

    Pictures become features by the network and the settings that the index was made with. Those whose name is in the
    index are skipped; with --replace, those of them that have changed replace what is there.
    """
    with _unharmed(index) as opened:
        skipped: list[str] = []
        if is_features(sources):
            if images is not None or model is not None or threads is not None:
                raise InvalidParams("--images, --model and --threads are for pictures; leave them out with features")
            addition = from_file(sources[0], names, owners, transpose)
            known = {} if addition.names is None else ids_by_name(opened)
        else:
            if names is not None or owners is not None or transpose:
                raise InvalidParams("--names, --owners and --transpose are for a file of features, not for pictures")
            known = ids_by_name(opened)
            like = Like(images, model, threads)
            addition, skipped = from_pictures(opened, [Path(source) for source in sources], like, known, replace)
        done = list(_in_order(index, addition, known, replace, mode))
        if skipped:
            _echo(f"{some(len(skipped), 'picture')} in the index already: {listed(skipped)}")
        _finish(opened, done, as_json, skipped=skipped)


def replace(
    index: IndexArgument,
    features: Annotated[
        str, typer.Argument(metavar="FEATURES", show_default=False, help="The new features, as for build.")
    ],
    ids: Annotated[
        list[str],
        typer.Argument(metavar="IDS", show_default=False, help="Which image each is of: 7, or 120..129; in order."),
    ],
    names: NamesOption = None,
    owners: OwnersOption = None,
    mode: ModeOption = "fast",
    transpose: TransposeOption = False,
    as_json: JsonOption = False,
) -> None:
    """Give images other features; they keep their ids, and their names unless there are new ones.

    To replace images by name, and add those that are new: suffuse add --replace.
    """
    with _unharmed(index) as opened:
        chosen = _parse_ids(opened, ids)
        addition = from_file(features, names, owners, transpose)
        _finish(opened, [_change(index, "replaced", chosen, addition, mode)], as_json)


def remove(
    index: IndexArgument,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="IDS", show_default=False, help="Images, as a search names them: 7, or 120..129."),
    ] = None,
    name: Annotated[
        list[str] | None,
        typer.Option("--name", metavar="NAME", show_default=False, help="The image of this name; repeat it."),
    ] = None,
    names: Annotated[
        Path | None,
        typer.Option(
            "--names", metavar="FILE", show_default=False, help="The images of these names; files as for add."
        ),
    ] = None,
    mode: ModeOption = "fast",
    as_json: JsonOption = False,
) -> None:
    """Remove images from an index: they are hidden at once, and their data goes when it is compacted.

    Their ids are never given again.
    """
    if not ids and not name and names is None:
        raise InvalidParams("which images? Give their ids, --name NAME, or --names FILE")
    with _unharmed(index) as opened:
        from suffuse.store.items import load_items

        chosen = _parse_ids(opened, ids or [])
        wanted = [*(name or []), *map(_name_of, [] if names is None else load_items(names))]
        known = ids_by_name(opened) if wanted else {}
        chosen += [only_one(known, each) for each in wanted]
        _finish(opened, [_change(index, "removed", chosen, None, mode)] if chosen else [], as_json)


def compact(index: IndexArgument, as_json: JsonOption = False) -> None:
    """Make an index what a build from its images would make: all columns as new, nothing left of what was removed.

    Searches go on meanwhile. It takes as long as a build without its search for neighbours, and the space of a second
    index while it works.
    """
    with _unharmed(index) as opened:
        from suffuse.index.writer import compact as compact_index

        summary = _with_bars(lambda progress: compact_index(index, progress=progress))
        if summary.generation == opened.manifest.generation:
            _echo(f"{index}: nothing to compact, it has not changed since it was built or compacted")
        else:
            _echo(f"{index}: {some(summary.images, 'image')}, compacted as generation {summary.generation}")
            _echo(f"{some(summary.solved, 'column')} solved, none stale, {summary.seconds:.1f} s")
        if as_json:
            _print_json(index, summary, [])


# --- which images


def _parse_ids(opened: "Index", texts: Sequence[str]) -> list[int]:
    ids: list[int] = []
    for text in texts:
        found = re.fullmatch(r"(\d{1,18})(?:\.\.(\d{1,18}))?", text, re.ASCII)
        if found is None:
            raise InvalidParams(f"ids must be whole numbers such as 7, or ranges such as 120..129, got {text!r}")
        first, last = int(found[1]), int(found[2] or found[1])
        if last < first:
            raise InvalidParams(f"ranges of ids must go up, got {text}; write {last}..{first}")
        for end in (first, last):
            opened.ids.place(end)  # so that no range is longer than the index
        ids += range(first, last + 1)
    return ids


def _name_of(item: Any) -> str:
    name = item.get("name") if isinstance(item, dict) else item
    if not isinstance(name, str):
        raise InvalidInput(f"{item!r} is no name; give text, or objects with a name")
    return name


# --- making the change, and telling


def _echo(text: str) -> None:
    # Not wrapped: a path that is broken over two lines cannot be copied.
    console(stderr=True).print(text, soft_wrap=True, markup=False)


@contextlib.contextmanager
def _unharmed(path: Path) -> Iterator["Index"]:
    """The index, open; says what became of it when the user interrupts, also while modules are still loaded."""
    opened = None
    try:
        from suffuse.index.index import Index

        opened = Index.open(path)
        yield opened
    except KeyboardInterrupt:
        if opened is not None and opened.refresh():
            _echo(f"Interrupted: the index is at generation {opened.manifest.generation}")
        else:
            _echo("Interrupted: the index is as it was before")
        raise typer.Exit(130) from None


def _with_bars(work: "Callable[[Progress], ChangeSummary]") -> "ChangeSummary":
    """Run a change with a bar for each stage; a fast one has none, and bars of nothing would leave an empty line."""
    bars: list[Progress] = []
    with contextlib.ExitStack() as stack:

        def report(stage: str, done: int, total: int) -> None:
            if not bars:
                bars.append(stack.enter_context(progress_bars()))
            bars[0](stage, done, total)

        return work(report)


def _in_order(
    index: Path, addition: "Addition", known: dict[str, list[int]], replace: bool, mode: "Mode"
) -> Iterator[_Done]:
    """Replace what is known by its name, if so asked, then add the rest."""
    from suffuse.core.features import check_owners
    from suffuse.store.items import check_items

    items = addition.names
    if items is not None and (replace or known):
        rows = len(addition.features)
        owners = None if addition.owners is None else check_owners(addition.owners, rows, "owners")
        images = rows if owners is None else max(int(owners.max(initial=-1)) + 1, len(items))
        items = check_items(items, images)
        old = [number for number, item in enumerate(items) if item.get("name") in known]
        if replace and old:
            ids = [only_one(known, items[number]["name"]) for number in old]
            yield _change(index, "replaced", ids, part_of(addition._replace(names=items), old), mode)
            addition = part_of(addition._replace(names=items), sorted(set(range(images)) - set(old)))
        elif old:
            _echo(f"{some(len(old), 'name')} in the index already; --replace would give those images the new features")
    elif replace:
        raise InvalidParams("--replace goes by names; give --names FILE, or ids: suffuse replace INDEX FEATURES IDS...")
    if len(addition.features):
        yield _change(index, "added", [], addition, mode)


def _change(index: Path, what: What, ids: list[int], addition: "Addition | None", mode: "Mode") -> _Done:
    """Make one change, and tell what it did; images that are added have no ids yet."""
    from suffuse.index.writer import change
    from suffuse.store.manifest import read_manifest

    if addition is not None and mode == "fast" and not read_manifest(index).params.with_lists:
        _echo("This index has no lists of neighbours, as older ones have none; it is built anew, this time only")
    summary = _with_bars(
        lambda progress: change(
            index, added=addition, removed=ids, replace=what == "replaced", mode=mode, progress=progress
        )
    )
    done = _Done(what, ids or summary.ids.tolist(), summary)
    _echo(
        f"{index}: {some(len(done.ids), 'image')} {what}, {listed(done.ids)};"
        f" {some(summary.images, 'image')} in all, generation {summary.generation}"
    )
    work = f"{some(summary.lists, 'list')} of neighbours changed, {some(summary.solved, 'column')} solved, "
    _echo(f"{work if summary.solved else ''}{summary.stale:.1%} of all columns stale, {summary.seconds:.1f} s")
    return done


def _finish(opened: "Index", done: Sequence[_Done], as_json: bool, **more: list[str]) -> None:
    """What is to be said at the end."""
    if not done:
        _echo(f"{opened.path}: nothing to do, still {some(len(opened), 'image')}")
    elif (stale := done[-1].summary.stale) > _MANY_STALE:
        _echo(
            f"{stale:.0%} of all columns are stale: solved before images near them came or went, so they rank a little"
            f" worse. To solve them again: suffuse compact {opened.path}",
        )
    if as_json:
        last = done[-1].summary if done else _unchanged(opened)
        _print_json(opened.path, last, done, **more)


def _unchanged(opened: "Index") -> "ChangeSummary":
    from suffuse.index.writer import ChangeSummary

    return ChangeSummary(
        ids=opened.ids.shown()[:0], removed=0, lists=0, solved=0, stale=opened.stale, images=len(opened),
        generation=opened.manifest.generation, seconds=0.0,
    )  # fmt: skip


def _print_json(index: Path, last: "ChangeSummary", done: Sequence[_Done], **more: list[str]) -> None:
    changes = [each.summary for each in done] or [last]
    content = {
        "path": str(index),
        **{what: [id for each in done if each.what == what for id in each.ids] for what in get_args(What)},
        **more,
        "images": last.images,
        "generation": last.generation,
        "lists": sum(change.lists for change in changes),
        "solved": sum(change.solved for change in changes),
        "stale": last.stale,
        "seconds": sum(change.seconds for change in changes),
    }
    typer.echo(json.dumps(content, ensure_ascii=False))
