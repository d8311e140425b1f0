"""The command line: verbs over the library; data on stdout, everything else on stderr.

Heavy modules are imported inside the verbs, so that --help answers at once.
"""

import logging
import re
import sys
from collections.abc import Callable
from typing import Annotated

import typer

from suffuse import __version__
from suffuse.cli import changes, images, index, postgres, research, serve
from suffuse.errors import InvalidParams, SuffuseError

app = typer.Typer(
    name="suffuse",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
    help=(
        "Re-rank vector search by diffusion on the k-NN graph, at the speed of a nearest-neighbour search.\n\n"
        "Start with [bold]suffuse demo[/bold], or with your own features:\n\n"
        "  suffuse build features.npy -o photos.index\n\n"
        "  suffuse search photos.index queries.npy"
    ),
)

_PANELS: dict[str | None, tuple[Callable[..., None], ...]] = {
    None: (index.build, index.search, index.info, index.verify, index.demo),
    "Change an index": (changes.add, changes.replace, changes.remove, changes.compact, changes.upgrade),
    "Pictures and the page": (images.images, images.extract, serve.serve),
    "Past one machine": (postgres.export,),
    "For researchers": (research.evaluate, research.tune, research.reproduce, research.bench),
}
for panel, verbs in _PANELS.items():
    for verb in verbs:
        app.command(rich_help_panel=panel)(verb)
app.add_typer(research.datasets, name="datasets", rich_help_panel="For researchers")


def main() -> None:
    """The entry point: runs a verb, and turns what a user did wrong into one line and an exit code."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING, stream=sys.stderr)
    try:
        app()
    except SuffuseError as error:
        typer.echo(f"Error: {_name_options(str(error))}", err=True)
        sys.exit(2 if isinstance(error, InvalidParams) else 1)


def _name_options(message: str) -> str:
    """A message of the library, which speaks of arguments (force=True), in the words of the command line (--force)."""
    return re.sub(r"\b([a-z_]+)=True\b", lambda found: "--" + found[1].replace("_", "-"), message)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"suffuse {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass
