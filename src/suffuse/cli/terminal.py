"""What verbs print and write with: text on stderr, tables, progress bars, files."""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from suffuse.errors import InvalidInput

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from suffuse.core import params


def say(text: str) -> None:
    """Tell the user something, on stderr and in one line: a path that is broken over two cannot be copied."""
    typer.echo(text, err=True)


def pluralize(count: int, noun: str) -> str:
    """1 image, 2 images."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def console(*, stderr: bool) -> "Console":
    """Data goes to stdout, everything else to stderr."""
    from rich.console import Console

    return Console(stderr=stderr, highlight=False)


def make_table(title: str, *heads: str, caption: str | None = None) -> "Table":
    """A table without rows yet: words in its first column, numbers in the others."""
    from rich.table import Table

    table = Table(title=title, caption=caption, title_justify="left")
    for number, head in enumerate(heads):
        table.add_column(head, justify="right" if number else "left")
    return table


def write_output(path: Path, content: Iterable[bytes]) -> None:
    """Write the file that a user asked for."""
    from suffuse.store.files import write_bytes

    try:
        write_bytes(path, content)
    except OSError as error:
        raise InvalidInput(f"{path} cannot be written: {error.strerror}; choose another path") from error


@contextlib.contextmanager
def progress_bars() -> "Iterator[params.Progress]":
    """A bar for each stage on stderr, with the time that is left; none as long as there is nothing to report."""
    from rich import progress

    columns = (
        progress.TextColumn("{task.description:<9}"), progress.BarColumn(), progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(), progress.TextColumn("left"), progress.TimeRemainingColumn(),
    )  # fmt: skip
    bars = progress.Progress(*columns, console=console(stderr=True))
    tasks: dict[str, Any] = {}
    with contextlib.ExitStack() as stack:

        def report(stage: str, done: int, total: int) -> None:
            if not tasks:
                stack.enter_context(bars)
            # A stage that begins again belongs to the next build.
            if stage not in tasks or (done == 0 and bars.tasks[tasks[stage]].finished):
                tasks[stage] = bars.add_task(stage, total=total)
            bars.update(tasks[stage], completed=done)

        yield report
