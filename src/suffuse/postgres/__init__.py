"""An index in PostgreSQL with pgvector: diffusion search by one SELECT, from any client.

`connection` connects, `schema` has the SQL, `export` writes an index to tables, `client` calls the SQL functions.
"""

from suffuse.errors import name_extra

with name_extra("psycopg", "postgres"):
    import psycopg  # noqa: F401

from suffuse.postgres.client import PostgresIndex
from suffuse.postgres.export import Exported, export_index

__all__ = ["Exported", "PostgresIndex", "export_index"]
