"""The bound of memory: an estimate that grows with everything, and threads that fit below it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import suffuse
from data import scattered
from suffuse import Params
from suffuse.errors import InvalidParams
from suffuse.memory import GIGABYTE, needed, threads_that_fit

SIZES = {"shard_rows": 12_288, "block_rows": 2048}


@given(n=st.integers(1, 10**7), dimensions=st.integers(1, 4096), jobs=st.integers(1, 64), more=st.integers(1, 1000))
def test_more_of_anything_needs_no_less(n, dimensions, jobs, more):
    params = Params()
    least = needed(n, dimensions, params, jobs, **SIZES)
    assert needed(n + more, dimensions, params, jobs, **SIZES) >= least
    assert needed(n, dimensions + more, params, jobs, **SIZES) >= least
    assert needed(n, dimensions, params, jobs + more, **SIZES) >= least


@given(n=st.integers(1, 10**6), jobs=st.integers(1, 16), share=st.floats(0.0, 2.0))
def test_as_many_threads_as_fit(n, jobs, share):
    one, all_ = (needed(n, 512, Params(), threads, **SIZES) / GIGABYTE for threads in (1, jobs))
    gigabytes = one + share * (all_ - one)
    threads = threads_that_fit(gigabytes * (1 + 1e-9), n, 512, Params(), jobs, **SIZES)
    assert 1 <= threads <= jobs
    assert needed(n, 512, Params(), threads, **SIZES) <= gigabytes * GIGABYTE * (1 + 1e-6)
    if threads < jobs:
        assert needed(n, 512, Params(), threads + 1, **SIZES) > gigabytes * GIGABYTE


def test_a_build_that_does_not_fit_is_refused_with_what_it_needs(tmp_path):
    features = scattered(np.random.default_rng(0), 50, 8)
    with pytest.raises(
        InvalidParams, match=r"memory must be at least 0\.\d GB for 50 elements of 8 dimensions, got 0.1"
    ):
        suffuse.build(features, tmp_path / "x.index", Params(k=5), memory=0.1)
    assert not list(tmp_path.iterdir())
    suffuse.build(features, tmp_path / "x.index", Params(k=5), memory=2)
