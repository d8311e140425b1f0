"""The house is in order: the public surface, the packages, the cache of compiled kernels."""

import ast
import importlib
import inspect
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import suffuse

ROOT = Path(__file__).parent.parent


def test_everything_public_is_importable_from_one_place():
    for name in suffuse.__all__:
        assert getattr(suffuse, name).__doc__, name
    assert set(suffuse.__all__) <= set(dir(suffuse))
    with pytest.raises(AttributeError, match="nonsense"):
        _ = suffuse.nonsense


def test_the_error_tree_in_the_docstring_is_complete():
    errors = importlib.import_module("suffuse.errors")
    classes = {node.name for node in ast.parse(inspect.getsource(errors)).body if isinstance(node, ast.ClassDef)}
    drawn = set(re.findall(r"^\s*[│├└─ ]*(\w+) {2,}", errors.__doc__, re.MULTILINE))
    assert drawn == classes
    assert all(issubclass(getattr(errors, name), errors.SuffuseError) for name in classes)


def test_every_module_says_its_one_job_and_fits_in_the_head():
    for path in (ROOT / "src").rglob("*.py"):
        lines = path.read_text().splitlines()
        assert lines[0].startswith('"""'), path
        assert lines[0].rstrip('"').endswith((".", ":")), path
        assert len(lines) <= 600, f"{path} is two modules"


def test_damage_becomes_an_error_for_users_in_one_place():
    raising = [path.name for path in (ROOT / "src").rglob("*.py") if "raise IndexBroken" in path.read_text()]
    assert raising == ["files.py"]


def test_a_package_has_at_most_twelve_names():
    for package in (path.parent for path in (ROOT / "src").rglob("__init__.py")):
        names = [
            path.stem
            for path in package.iterdir()
            if (path.suffix == ".py" and path.stem != "__init__") or (path / "__init__.py").exists()
        ]
        assert len(names) <= 12, f"{package.name}: {sorted(names)}"


def test_no_file_names_a_host_of_a_registry():
    for path in ("requirements.txt", "pyproject.toml", "Makefile"):
        assert "://" not in (ROOT / path).read_text(), path


@pytest.fixture(scope="module")
def read_only_installation(tmp_path_factory):
    """A copy of the package in which nothing can be written, not even by root: __pycache__ is a file."""
    site = tmp_path_factory.mktemp("site")
    shutil.copytree(Path(suffuse.__file__).parent, site / "suffuse", ignore=shutil.ignore_patterns("__pycache__"))
    for directory in (site / "suffuse", site / "suffuse" / "core" / "kernels"):
        (directory / "__pycache__").write_text("")
    return site


def _import_kernels(site, **environment):
    program = (
        "import suffuse.core.kernels.graph as kernel, numba\n"
        "stats = kernel.fill_affinity.stats\n"
        "print(sum(stats.cache_hits.values()), sum(stats.cache_misses.values()), repr(numba.config.CACHE_DIR))"
    )
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("NUMBA", "XDG", "PYTHON"))}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", program],
        env={**kept, "PYTHONPATH": str(site), "PYTHONDONTWRITEBYTECODE": "1", **environment},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return done.stdout.split()


def test_a_read_only_installation_caches_kernels_for_the_user(read_only_installation, tmp_path):
    cache = tmp_path / "cache"
    assert _import_kernels(read_only_installation, XDG_CACHE_HOME=str(cache)) == ["0", "1", "''"]
    assert list(cache.glob("suffuse/jit-*/*/*.nbc"))
    assert _import_kernels(read_only_installation, XDG_CACHE_HOME=str(cache)) == ["1", "0", "''"]


def test_without_any_place_for_a_cache_kernels_still_work(read_only_installation, tmp_path):
    (tmp_path / "file").write_text("")
    nowhere = {"XDG_CACHE_HOME": str(tmp_path / "file"), "HOME": str(tmp_path / "file")}
    assert _import_kernels(read_only_installation, **nowhere) == ["0", "1", "''"]
