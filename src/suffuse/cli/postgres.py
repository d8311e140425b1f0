"""The verb export: an index into PostgreSQL."""

from pathlib import Path
from typing import Annotated

import typer

from suffuse.cli.terminal import console, progress_bars


def export(
    index: Annotated[Path, typer.Argument(metavar="INDEX", help="The index directory.", show_default=False)],
    url: Annotated[
        str,
        typer.Option("--to", metavar="URL", show_default=False, help="The database: postgresql://USER@HOST/DATABASE."),
    ],
    schema: Annotated[str, typer.Option(help="The schema; an export that it holds is replaced.")] = "suffuse",
) -> None:
    """Export an index to PostgreSQL with pgvector: SELECT * FROM suffuse.search(embedding).

    Searches go on meanwhile: they have the old answers until the new ones are whole. Others on this machine can see a
    password in URL; leave it to PGPASSWORD or ~/.pgpass.
    """
    from suffuse.postgres import export_index

    with progress_bars() as progress:
        done = export_index(index, url, schema, progress)
    console(stderr=True).print(
        f"{done.images:,} images in the schema {done.schema!r}, generation {done.generation}:"
        f" {done.bytes / 1e6:,.1f} MB, {done.seconds:.1f} s",
        soft_wrap=True,
        markup=False,
    )
