"""The threads of faiss and the BLAS inside it: one thread where that is asked for, and a kernel that fits the CPU."""

import contextlib
import json
import logging
import os
import subprocess
import sys

import pytest

from suffuse.core import blas
from suffuse.core.blas import load_faiss, one_thread

VARIABLE = "OPENBLAS_CORETYPE"


# --- threads


def test_one_thread_holds_inside_and_is_taken_back_even_after_an_error():
    faiss = load_faiss()
    before = faiss.omp_get_max_threads()
    faiss.omp_set_num_threads(3)
    try:
        with contextlib.suppress(KeyError), one_thread():
            inside = faiss.omp_get_max_threads()
            raise KeyError
        assert inside == 1
        assert faiss.omp_get_max_threads() == 3
    finally:
        faiss.omp_set_num_threads(before)


# --- the BLAS inside faiss

REPORT = """
import json, logging, os, sys
records = []
handler = logging.Handler()
handler.emit = lambda record: records.append(record.getMessage())
logging.getLogger("suffuse").addHandler(handler)
from suffuse.core import blas
blas.load_faiss()
json.dump({
    "architecture": blas.blas_architecture(),
    "possible": blas._blas_core_type(),
    "variable": os.environ.get("OPENBLAS_CORETYPE"),
    "warnings": records,
}, sys.stdout)
"""


def report_of_a_new_process(setting=None):
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    if setting is not None:
        environment[VARIABLE] = setting
    answer = subprocess.run([sys.executable, "-c", REPORT], env=environment, check=True, capture_output=True)
    return json.loads(answer.stdout)


def test_faiss_uses_a_fast_blas_kernel_and_the_environment_is_left_as_it_was():
    report = report_of_a_new_process()
    if report["possible"] is None:
        pytest.skip("this CPU has no AVX2")
    assert report["architecture"] not in blas._SLOW_ARCHITECTURES
    assert report["variable"] is None
    assert report["warnings"] == []


def test_a_users_own_choice_of_blas_kernel_is_respected_and_warned_of():
    report = report_of_a_new_process("Nehalem")
    assert report["variable"] == "Nehalem"
    if report["architecture"] is None or report["possible"] is None:
        pytest.skip("faiss brings no OpenBLAS here, or this CPU has no AVX2")
    assert report["architecture"] == "Nehalem"
    [warning] = report["warnings"]
    assert "slow BLAS kernel Nehalem" in warning
    assert f"{VARIABLE}={report['possible']}" in warning


@pytest.fixture
def other_faiss(monkeypatch, tmp_path):
    """A module named faiss that notes what the environment was when it was imported; returns its import."""
    load_faiss()
    (tmp_path / "faiss.py").write_text(f"import os\nseen = os.environ.get({VARIABLE!r})\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "faiss")
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(blas, "_blas_core_type", lambda: "Haswell")
    monkeypatch.setattr(blas, "blas_architecture", lambda: "Haswell")
    return load_faiss.__wrapped__


def test_the_blas_kernel_is_chosen_for_the_moment_of_the_import_only(other_faiss):
    assert other_faiss().seen == "Haswell"
    assert VARIABLE not in os.environ


def test_the_users_choice_is_seen_by_faiss_and_stays(other_faiss, monkeypatch):
    monkeypatch.setenv(VARIABLE, "Zen")
    assert other_faiss().seen == "Zen"
    assert os.environ[VARIABLE] == "Zen"


def test_nothing_is_chosen_for_a_cpu_without_avx2(other_faiss, monkeypatch):
    monkeypatch.setattr(blas, "_blas_core_type", lambda: None)
    assert other_faiss().seen is None


def test_the_environment_is_restored_when_faiss_cannot_be_imported(other_faiss, tmp_path):
    (tmp_path / "faiss.py").write_text("raise ImportError('no such luck')")
    with pytest.raises(ImportError, match="no such luck"):
        other_faiss()
    assert VARIABLE not in os.environ


def test_two_threads_may_load_faiss_at_the_same_moment(other_faiss, tmp_path):
    # What the other thread does while this one imports: it ends its own import, and cleans up.
    (tmp_path / "faiss.py").write_text(f"import os\nseen = os.environ.pop({VARIABLE!r})\n")
    assert other_faiss().seen == "Haswell"


@pytest.mark.parametrize(
    ("architecture", "possible", "warned"),
    [
        ("Prescott", "Haswell", True),
        ("Nehalem", "SkylakeX", True),
        ("Haswell", "Haswell", False),
        ("Prescott", None, False),
        (None, "Haswell", False),
    ],
)
def test_a_slow_blas_kernel_on_a_faster_cpu_is_warned_of(monkeypatch, caplog, architecture, possible, warned):
    load_faiss()
    monkeypatch.setattr(blas, "_blas_core_type", lambda: possible)
    monkeypatch.setattr(blas, "blas_architecture", lambda: architecture)
    before = os.environ.get(VARIABLE)
    with caplog.at_level(logging.WARNING, logger="suffuse"):
        load_faiss.__wrapped__()
    assert os.environ.get(VARIABLE) == before
    expected = f"slow BLAS kernel {architecture} on a CPU that can do {possible}"
    assert [expected in record.getMessage() for record in caplog.records] == [True] * warned


@pytest.mark.parametrize(
    ("features", "chosen"),
    [
        ({"avx2": True, "avx512f": True}, "SkylakeX"),
        ({"avx2": True, "avx512f": False}, "Haswell"),
        ({"avx2": True}, "Haswell"),
        ({"neon": True}, None),
        ({}, None),
    ],
)
def test_the_blas_kernel_follows_from_what_the_cpu_can_do(monkeypatch, features, chosen):
    from llvmlite import binding

    monkeypatch.setattr(binding, "get_host_cpu_features", lambda: features)
    assert blas._blas_core_type() == chosen
