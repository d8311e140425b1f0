"""The verbs that change an index: add, replace, remove and compact."""

import contextlib
import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, get_args

import typer
from typer import Argument, Option

from suffuse.cli import additions
from suffuse.cli.options import FeatureOptions, IndexArgument, expand_groups
from suffuse.cli.terminal import pluralize, progress_bars, say
from suffuse.errors import InvalidInput, InvalidParams

if TYPE_CHECKING:
    from suffuse.index.index import Index
    from suffuse.index.writer import Addition, ChangeSummary, Mode

# The share of stale columns from which on `compact` is recommended.
_MANY_STALE = 0.3

ModeOption = Annotated[
    Literal["fast", "exact"],
    Option(help="fast solves the columns near the change now, the rest at compact; exact solves all now."),
]
JsonOption = Annotated[bool, Option("--json", help="Also print what was done, as one JSON object.")]

What = Literal["added", "replaced", "removed", "compacted", "upgraded"]


class _Done(NamedTuple):
    """A change that was made."""

    what: What
    ids: list[int]
    summary: "ChangeSummary"


@expand_groups
def add(
    index: IndexArgument,
    sources: Annotated[
        list[str],
        Argument(metavar="FEATURES|PICTURES", help="A file of features as for build, or pictures and folders of them."),
    ],
    described: FeatureOptions,
    pictures: additions.PictureOptions,
    replace: Annotated[bool, Option("--replace", help="Replace images of the same name; they keep their ids.")] = False,
    mode: ModeOption = "fast",
    as_json: JsonOption = False,
) -> None:
    """Add images to an index, without building it anew; searches go on meanwhile.

    To an index that suffuse images made, pictures are added by the same network and settings. Pictures whose name is in
    the index are skipped; with --replace, those that have changed replace what is there.
    """
    with _open_to_change(index) as opened:
        from suffuse.index.writer import Addition

        skipped: list[str] = []
        if additions.is_feature_file(sources):
            if any(value is not None for value in pictures):
                raise InvalidParams("--images, --model and --threads are for pictures; leave them out with features")
            addition = Addition(*described.read(sources[0]))
            known = {} if addition.names is None else additions.map_names(opened)
        else:
            if any(described):
                raise InvalidParams("--names, --owners and --transpose are for a file of features, not for pictures")
            known = additions.map_names(opened)
            paths = [Path(source) for source in sources]
            addition, skipped = additions.read_pictures(opened, paths, pictures, known, replace)
        done = list(_apply(index, addition, known, replace, mode))
        if skipped:
            say(f"{pluralize(len(skipped), 'picture')} in the index already: {additions.summarize(skipped)}")
        _finish(opened, done, as_json, skipped=skipped)


@expand_groups
def replace(
    index: IndexArgument,
    features: Annotated[str, Argument(metavar="FEATURES", help="The new features, as for build.")],
    ids: Annotated[list[str], Argument(metavar="IDS", help="The image of each, in order: 7, or 120..129.")],
    described: FeatureOptions,
    mode: ModeOption = "fast",
    as_json: JsonOption = False,
) -> None:
    """Give images other features; they keep their ids, and their names unless there are new ones.

    To replace images by name, and add those that are new: suffuse add --replace.
    """
    with _open_to_change(index) as opened:
        from suffuse.index.writer import Addition

        chosen, addition = _parse_ids(opened, ids), Addition(*described.read(features))
        _finish(opened, [_change(index, "replaced", chosen, addition, mode)], as_json)


def remove(
    index: IndexArgument,
    ids: Annotated[list[str] | None, Argument(metavar="IDS", help="As a search shows them: 7, or 120..129.")] = None,
    name: Annotated[list[str] | None, Option(metavar="NAME", help="The image of this name; repeat it.")] = None,
    names: Annotated[Path | None, Option(metavar="FILE", help="The images of these names; files as for add.")] = None,
    mode: ModeOption = "fast",
    as_json: JsonOption = False,
) -> None:
    """Remove images from an index: they are hidden at once, and their data goes when it is compacted.

    Their ids are never reused.
    """
    if not ids and not name and names is None:
        raise InvalidParams("which images? Give their ids, --name NAME, or --names FILE")
    with _open_to_change(index) as opened:
        from suffuse.store.items import load_items

        chosen = _parse_ids(opened, ids or [])
        wanted = [*(name or []), *map(_read_name, [] if names is None else load_items(names))]
        known = additions.map_names(opened) if wanted else {}
        chosen += [additions.find_id(known, each) for each in wanted]
        _finish(opened, [_change(index, "removed", chosen, None, mode)] if chosen else [], as_json)


def compact(index: IndexArgument, as_json: JsonOption = False) -> None:
    """Make an index what a build from its images would make: no stale columns, no data of removed images.

    Searches go on meanwhile. It takes as long as a build without its search for neighbours, and the space of a second
    index while it works.
    """
    _make_base(index, "compacted", "nothing to compact, it has not changed since it was built or compacted", as_json)


def upgrade(index: IndexArgument, as_json: JsonOption = False) -> None:
    """Give an index of version 0.1 the graph, seeds and districts of today, from the neighbour lists that it holds.

    Its ranking changes: that is the point. It takes as long as `compact`, and searches go on meanwhile.
    """
    _make_base(index, "upgraded", "nothing to upgrade, it has the graph of today", as_json)


def _make_base(index: Path, what: Literal["compacted", "upgraded"], nothing: str, as_json: bool) -> None:
    """Make a new base of an index, and say what it did, or that there was nothing to do."""
    with _open_to_change(index) as opened:
        from suffuse.index import writer

        with progress_bars() as progress:
            summary = {"compacted": writer.compact, "upgraded": writer.upgrade}[what](index, progress=progress)
        if summary.generation == opened.manifest.generation:
            say(f"{index}: {nothing}")
        else:
            say(f"{index}: {pluralize(summary.images, 'image')}, {what} as generation {summary.generation}")
            say(f"{pluralize(summary.solved, 'column')} solved, none stale, {summary.seconds:.1f} s")
        _finish(opened, [_Done(what, [], summary)], as_json)


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
            opened.ids.find_row(end)  # so that no range is longer than the index
        ids += range(first, last + 1)
    return ids


def _read_name(item: Any) -> str:
    name = item.get("name") if isinstance(item, dict) else item
    if not isinstance(name, str):
        raise InvalidInput(f"{item!r} is no name; give text, or objects with a name")
    return name


@contextlib.contextmanager
def _open_to_change(path: Path) -> Iterator["Index"]:
    """Open an index; say what became of it when the user interrupts, also while modules are being imported."""
    opened = None
    try:
        from suffuse.index.index import Index

        opened = Index.open(path)
        yield opened
    except KeyboardInterrupt:
        if opened is not None and opened.refresh():
            say(f"Interrupted: the index is at generation {opened.manifest.generation}")
        else:
            say("Interrupted: the index is as it was before")
        raise typer.Exit(130) from None


def _apply(index: Path, addition: "Addition", known: additions.Known, replace: bool, mode: "Mode") -> Iterator[_Done]:
    """Replace images that the index knows by name, if so asked, then add the rest."""
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
            ids = [additions.find_id(known, items[number]["name"]) for number in old]
            yield _change(index, "replaced", ids, additions.select_images(addition._replace(names=items), old), mode)
            addition = additions.select_images(addition._replace(names=items), sorted(set(range(images)) - set(old)))
        elif old:
            say(f"{pluralize(len(old), 'name')} in the index already; --replace would replace those images")
    elif replace:
        raise InvalidParams("--replace goes by names; give --names FILE, or ids: suffuse replace INDEX FEATURES IDS...")
    if len(addition.features):
        yield _change(index, "added", [], addition, mode)


def _change(index: Path, what: What, ids: list[int], addition: "Addition | None", mode: "Mode") -> _Done:
    """Make one change, and say what it did; images that are added have no ids yet."""
    from suffuse.index.writer import change
    from suffuse.store.manifest import read_manifest

    if addition is not None and mode == "fast" and not read_manifest(index).params.with_lists:
        say("This index is old and has no lists of neighbours; it is built anew, this time only")
    with progress_bars() as progress:
        summary = change(index, added=addition, removed=ids, replace=what == "replaced", mode=mode, progress=progress)
    done = _Done(what, ids or summary.ids.tolist(), summary)
    say(
        f"{index}: {pluralize(len(done.ids), 'image')} {what}, {additions.summarize(done.ids)};"
        f" {pluralize(summary.images, 'image')} in all, generation {summary.generation}"
    )
    work = f"{pluralize(summary.lists, 'list')} of neighbours changed, {pluralize(summary.solved, 'column')} solved, "
    say(f"{work if summary.solved else ''}{summary.stale:.1%} of all columns stale, {summary.seconds:.1f} s")
    return done


def _finish(opened: "Index", done: Sequence[_Done], as_json: bool, **more: list[str]) -> None:
    """Say what is left to do, and print the JSON."""
    if not done:
        say(f"{opened.path}: nothing to do, still {pluralize(len(opened), 'image')}")
    elif (stale := done[-1].summary.stale) > _MANY_STALE:
        say(
            f"{stale:.0%} of all columns are stale: solved before images near them came or went, so they rank a little"
            f" worse. To solve them again: suffuse compact {opened.path}"
        )
    if as_json:
        last = done[-1].summary if done else None
        content = {
            "path": str(opened.path),
            **{what: [id for each in done if each.what == what for id in each.ids] for what in get_args(What)[:3]},
            **more,
            "images": last.images if last else len(opened),
            "generation": last.generation if last else opened.manifest.generation,
            "lists": sum(each.summary.lists for each in done),
            "solved": sum(each.summary.solved for each in done),
            "stale": last.stale if last else opened.stale,
            "seconds": sum(each.summary.seconds for each in done),
        }
        typer.echo(json.dumps(content, ensure_ascii=False))
