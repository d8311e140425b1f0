"""The verb export: an index into PostgreSQL."""

from typing import Annotated

from typer import Option

from suffuse.cli.options import IndexArgument
from suffuse.cli.terminal import pluralize, progress_bars, say


def export(
    index: IndexArgument,
    url: Annotated[str, Option("--to", metavar="URL", help="The database: postgresql://USER@HOST/DATABASE.")],
    schema: Annotated[str, Option(help="The schema; an export in it is replaced.")] = "suffuse",
) -> None:
    """Export an index to PostgreSQL with pgvector: SELECT * FROM suffuse.search(embedding).

    Searches go on meanwhile: they have the old answers until the new ones are whole. Others on this machine can see a
    password in URL; leave it to PGPASSWORD or ~/.pgpass.
    """
    from suffuse.postgres import export_index

    with progress_bars() as progress:
        done = export_index(index, url, schema, progress)
    say(
        f"{pluralize(done.images, 'image')} in the schema {done.schema!r}, generation {done.generation}:"
        f" {done.bytes / 1e6:,.1f} MB, {done.seconds:.1f} s"
    )
