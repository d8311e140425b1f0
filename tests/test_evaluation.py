"""Average precision, by hand."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from suffuse.evaluation import average_precision, class_mean_average_precision, precision_at_hits


def ap(ranking, positives, junk=()):
    return average_precision(np.array(ranking), np.array(positives, int), np.array(junk, int))


def official(ranking, positives, junk):
    """The loop of the official program, step by step."""
    recall_before, precision_before, area, hits, rank = 0.0, 1.0, 0.0, 0, 0
    for element in ranking:
        if element in junk:
            continue
        hits += element in positives
        rank += 1
        recall, precision = hits / len(positives), hits / rank
        area += (recall - recall_before) * (precision_before + precision) / 2
        recall_before, precision_before = recall, precision
    return area


def test_a_perfect_ranking_scores_one():
    assert ap([3, 1, 0, 2], [1, 3]) == 1.0


def test_a_first_hit_at_rank_two_gets_the_trapezoid_and_no_more():
    # precision before the hit is 0/1, at the hit 1/2: the area is (0 + 1/2) / 2.
    assert ap([0, 1, 2], [1]) == 0.25


def test_a_hit_at_rank_three_by_hand():
    # hits at ranks 1 and 3 of 2 positives: ((1 + 1) / 2 + (1/2 + 2/3) / 2) / 2
    assert ap([5, 0, 6, 1], [5, 6]) == pytest.approx((1 + (1 / 2 + 2 / 3) / 2) / 2)


def test_junk_before_a_hit_is_as_if_it_were_not_there():
    assert ap([9, 8, 1, 0], [1], [9, 8]) == 1.0


def test_a_positive_outside_the_ranking_counts_as_never_found():
    assert ap([1, 0], [1, 7]) == 0.5


def test_no_positives_give_nan():
    assert np.isnan(ap([0, 1], []))
    assert np.isnan(precision_at_hits(np.array([False]), 0))


@given(st.permutations(range(12)), st.sets(st.integers(0, 11), min_size=1), st.sets(st.integers(0, 11)))
def test_it_equals_the_official_loop(ranking, positives, junk):
    junk -= positives
    assert ap(ranking, sorted(positives), sorted(junk)) == pytest.approx(official(ranking, positives, junk))


def test_precision_at_hits_by_hand():
    assert precision_at_hits(np.array([True, False, True, False]), 2) == pytest.approx((1 + 2 / 3) / 2)


def test_class_labels_leave_out_queries_that_nobody_matches():
    rankings = np.array([[0, 1, 2], [2, 1, 0], [0, 1, 2]])
    labels, query_labels = np.array([7, 7, 8]), np.array([7, 8, 99])
    assert class_mean_average_precision(rankings, labels, query_labels) == 1.0
