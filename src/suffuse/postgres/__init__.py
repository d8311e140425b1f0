"""An index in PostgreSQL with pgvector: diffusion search by one SELECT, from any client.

connection  a connection, and its errors in our words
tables      the tables of one export, and the views that readers see
functions   search and explain, in SQL
rows        rows as COPY takes them
export      an index directory becomes tables
client      the SQL functions from Python

docs/postgres.md describes it for users.
"""

from suffuse.errors import MissingExtra

try:
    import psycopg  # noqa: F401
except ImportError as error:
    raise MissingExtra("psycopg", "postgres") from error

from suffuse.postgres.client import PostgresIndex
from suffuse.postgres.export import Exported, export_index

__all__ = ["Exported", "PostgresIndex", "export_index"]
