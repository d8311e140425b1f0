"""Indexes in a real PostgreSQL, and the service over them."""

import pytest
from tests.support import serving

from suffuse.postgres import export_index


@pytest.fixture(scope="module")
def paths(server, tmp_path_factory):
    """An index of each kind, exported."""
    made = {}
    for kind, params in serving.EXPORTED.items():
        made[kind] = serving.build(tmp_path_factory.mktemp(kind), params=params)
        export_index(made[kind], server.url, f"served {kind}")
    return made


@pytest.fixture(scope="module")
def plain(server, paths):
    """One kind, where the kind does not matter."""
    with serving.serve(server.url, schema="served plain") as client:
        yield client


@pytest.fixture(scope="module")
def opened(paths):
    """The same index, without a database."""
    with serving.serve(paths["plain"]) as client:
        yield client
