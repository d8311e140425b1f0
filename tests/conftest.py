"""Fixtures that several test files share."""

import os
import shutil
import signal
import sys

import numpy as np
import pytest
from tests.support import builds, indexes, worlds
from tests.support import reference_baselines as twin
from tests.support.data import clusters, curves, scattered
from tests.support.postgres import server  # noqa: F401
from tests.support.schedule import (  # noqa: F401
    pytest_collection_modifyitems,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
)

from suffuse import Params, build
from suffuse.cli.app import main


def pytest_configure():
    """Let tests send Ctrl-C, also where the shell has it ignored, as in a script's `make test &`."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def suffuse(monkeypatch, capsys):
    """Run the command line in this process, on a wide terminal; gives exit code, stdout and stderr."""
    monkeypatch.setenv("COLUMNS", "160")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["suffuse", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        captured = capsys.readouterr()
        return ended.value.code or 0, captured.out, captured.err

    return run


@pytest.fixture(scope="session", autouse=True)
def _no_waiting_for_the_disk():
    # Nobody pulls the plug here, and on a busy disk most of the time would be this.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        yield


# --- whole builds: test_offline_*.py


@pytest.fixture(scope="session")
def features():
    """Vectors in six clusters, enough for five blocks."""
    return clusters(np.random.default_rng(1), builds.N, builds.D, count=6)


@pytest.fixture(scope="session")
def expected(features, tmp_path_factory):
    """The bytes of an undisturbed build of `features`, for each support."""
    made = {}
    for support in builds.SUPPORTS:
        path = tmp_path_factory.mktemp("expected") / "x.index"
        build(features, path, builds.with_support(support), jobs=1)
        made[support] = builds.directory_bytes(path)
    assert made["graph"] != made["features"]
    return made


# --- indexes to search: test_online_*.py


@pytest.fixture(scope="session")
def gallery():
    """Vectors along curves, which diffusion follows."""
    return curves(np.random.default_rng(6), indexes.N, indexes.D)


@pytest.fixture(scope="session")
def short_index(gallery, tmp_path_factory):
    """An index with columns so short that diffusion never reaches everything."""
    return indexes.build_and_open(gallery, tmp_path_factory.mktemp("short"), indexes.SHORT)


@pytest.fixture(scope="session")
def regional_index(gallery, tmp_path_factory):
    """Regions of 25 images in mixed order, and three more images without any."""
    names = [f"{image}.jpg" for image in range(28)]
    directory = tmp_path_factory.mktemp("regional")
    return indexes.build_and_open(gallery, directory, indexes.REGIONS, owners=indexes.OWNERS, names=names)


# --- an index to damage: test_broken_*.py


@pytest.fixture(scope="session")
def sound_index(tmp_path_factory):
    """A sound regional index with whitening and names; its columns are plain, test_broken_codes.py has coded ones."""
    rng = np.random.default_rng(30)
    path = tmp_path_factory.mktemp("sound") / "sound.index"
    params = Params(k=8, truncation=30, keep=12, whiten=6, pool="none", values="float16")
    owners = np.arange(60) % 20
    build(clusters(rng, 60, 8), path, params, owners=owners, names=[f"image {id}" for id in range(20)])
    return path


@pytest.fixture
def index_copy(sound_index, tmp_path):
    """A copy of the sound index, to be damaged."""
    return shutil.copytree(sound_index, tmp_path / "copy.index")


# --- a gallery to rank: test_baselines*.py


@pytest.fixture(scope="session")
def world():
    """Half a gallery of curves, half of scattered points: several components, nodes without neighbours among them."""
    rng = np.random.default_rng(1)
    halves = curves(rng, 60, worlds.D), scattered(rng, worlds.N - 60, worlds.D)
    made = worlds.world_of(np.concatenate(halves))
    assert len({tuple(row) for row in twin.reachable(made.dense_s)}) > 3
    return made
