"""Searches that scan together: each gets its own, no matter who comes when."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from data import scattered
from suffuse.neighbors import similarities
from suffuse.service.together import Together

FEATURES = scattered(np.random.default_rng(0), 300, 16)


def test_everyone_gets_what_they_would_have_got_alone():
    rng = np.random.default_rng(1)
    asked = [scattered(rng, int(count), 16) for count in rng.integers(1, 40, 200)]
    together = Together(lambda rows: similarities(rows, FEATURES))
    with ThreadPoolExecutor(16) as pool:
        answers = list(pool.map(together, asked))
    for rows, answer in zip(asked, answers, strict=True):
        np.testing.assert_array_equal(answer, similarities(rows, FEATURES))


class Held:
    """A scan that waits until it may go on, and tells how many rows each call had."""

    def __init__(self):
        self.sizes, self.may_go_on, self.began = [], threading.Event(), threading.Event()

    def __call__(self, rows):
        self.sizes.append(len(rows))
        self.began.set()
        self.may_go_on.wait()
        return similarities(rows, FEATURES)


def waiting(together, count):
    while len(together._waiting) < count:
        threading.Event().wait(0.001)


def test_who_comes_during_a_scan_is_served_by_the_next_one_together():
    held = Held()
    together = Together(held)
    with ThreadPoolExecutor(8) as pool:
        first = pool.submit(together, FEATURES[:1])
        held.began.wait()
        others = [pool.submit(together, FEATURES[i : i + 10]) for i in range(5)]
        waiting(together, 5)
        held.may_go_on.set()
        for i, other in enumerate(others):
            np.testing.assert_array_equal(other.result(), similarities(FEATURES[i : i + 10], FEATURES))
        assert first.result().shape == (1, 300)
    assert held.sizes == [1, 30, 20]  # as many as fit into one scan


def test_one_that_fails_fails_for_its_batch_and_not_for_the_next():
    held, broken = Held(), threading.Event()

    def scan(rows):
        answer = held(rows)
        if len(held.sizes) == 2:
            broken.set()
            raise MemoryError("no room")
        return answer

    together = Together(scan)
    with ThreadPoolExecutor(4) as pool:
        first = pool.submit(together, FEATURES[:1])
        held.began.wait()
        second = pool.submit(together, FEATURES[:2])
        waiting(together, 1)
        held.may_go_on.set()
        assert first.result().shape == (1, 300)
        with pytest.raises(MemoryError):
            second.result()
    assert broken.is_set()
    assert together(FEATURES[:3]).shape == (3, 300)
