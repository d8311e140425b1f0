"""The bound of memory: an estimate that grows with everything, and threads that fit below it."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.data import clusters, scattered

import suffuse
from suffuse import Params
from suffuse.core.neighbors import shard_starts
from suffuse.errors import InvalidParams
from suffuse.offline.memory import GIGABYTE, needed, threads_that_fit
from suffuse.offline.tasks import block_rows

SIZES = {"shard_rows": 12_288, "block_rows": 2048}


def sizes_of(n):
    return {"shard_rows": shard_starts(n, block_rows(n)).step, "block_rows": block_rows(n)}


@given(n=st.integers(1, 10**7), dimensions=st.integers(1, 4096), jobs=st.integers(1, 64), more=st.integers(1, 1000))
def test_more_of_anything_needs_no_less(n, dimensions, jobs, more):
    params = Params()
    least = needed(n, dimensions, params, jobs, **SIZES)
    assert needed(n + more, dimensions, params, jobs, **SIZES) >= least
    assert needed(n, dimensions + more, params, jobs, **SIZES) >= least
    assert needed(n, dimensions, params, jobs + more, **SIZES) >= least


@given(n=st.integers(1, 10**6), jobs=st.integers(1, 16), share=st.floats(0.0, 2.0))
def test_as_many_threads_as_fit(n, jobs, share):
    sizes = sizes_of(n)
    one, all_ = (needed(n, 512, Params(), threads, **sizes) / GIGABYTE for threads in (1, jobs))
    gigabytes = one + share * (all_ - one)
    threads = threads_that_fit(gigabytes * (1 + 1e-9), n, 512, Params(), jobs)
    assert 1 <= threads <= jobs
    assert needed(n, 512, Params(), threads, **sizes) <= gigabytes * GIGABYTE * (1 + 1e-6)
    if threads < jobs:
        assert needed(n, 512, Params(), threads + 1, **sizes) > gigabytes * GIGABYTE


def test_a_build_that_does_not_fit_is_refused_with_what_it_needs(tmp_path):
    features = scattered(np.random.default_rng(0), 50, 8)
    with pytest.raises(
        InvalidParams, match=r"memory must be at least 0\.\d GB for 50 elements of 8 dimensions, got 0.1"
    ):
        suffuse.build(features, tmp_path / "x.index", Params(k=5), memory=0.1)
    assert not list(tmp_path.iterdir())
    suffuse.build(features, tmp_path / "x.index", Params(k=5), memory=2)


PEAK = """
import re, sys
from pathlib import Path
import numpy as np
import suffuse
from suffuse import Params
features, index, truncation, memory = sys.argv[1:]
suffuse.build(np.load(features, mmap_mode="r"), index, Params(truncation=int(truncation)), memory=float(memory))
print(re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text()).group(1))
"""


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("truncation", [1000, 5000])
def test_a_build_stays_below_the_memory_it_was_given(tmp_path, truncation):
    features = clusters(np.random.default_rng(0), 12_000, 512, count=200)
    np.save(tmp_path / "features.npy", features)
    sizes = sizes_of(12_000)
    bound = needed(12_000, 512, Params(truncation=truncation), 1, **sizes, given=features.nbytes) / GIGABYTE
    arguments = [tmp_path / "features.npy", tmp_path / "x.index", str(truncation), f"{bound + 1e-6:.6f}"]
    answer = subprocess.run([sys.executable, "-c", PEAK, *arguments], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert int(answer.stdout) * 1024 <= bound * GIGABYTE * (1 + 1e-5)
