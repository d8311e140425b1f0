"""Average precision, precision and recall, by hand and against plain loops."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from suffuse.errors import InvalidInput
from suffuse.research.evaluation import (
    Judgement,
    any_found_at,
    average_precision,
    judge,
    judge_classes,
    judge_leaving_one_out,
    judge_revisited,
    mean_average_precision,
    mean_average_precision_at,
    paired_bootstrap,
    precision_at,
    precision_at_hits,
    share_found_at,
)


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


@settings(deadline=None)
@given(st.permutations(range(12)), st.sets(st.integers(0, 11), min_size=1), st.sets(st.integers(0, 11)))
def test_it_equals_the_official_loop(ranking, positives, junk):
    junk -= positives
    assert ap(ranking, sorted(positives), sorted(junk)) == pytest.approx(official(ranking, positives, junk))


def test_precision_at_hits_by_hand():
    assert precision_at_hits(np.array([True, False, True, False]), 2) == pytest.approx((1 + 2 / 3) / 2)


def judged(positives, junk=()):
    return Judgement(np.array(positives, int), np.array(junk, int))


def official_precision(ranking, positives, junk, k):
    """The official loop of mP@k: ranks count from 1 and skip junk; k is cut to the last positive."""
    ranks, rank = [], 0
    for element in ranking:
        if element not in junk:
            rank += 1
            if element in positives:
                ranks.append(rank)
    cut = min(max(ranks), k)
    return sum(r <= cut for r in ranks) / cut


def test_queries_without_positives_are_left_out_and_counted():
    rankings = np.array([[0, 1, 2], [0, 1, 2], [2, 1, 0]])
    scores = mean_average_precision(rankings, [judged([0]), judged([], [1]), judged([1])])
    np.testing.assert_array_equal(scores.per_query, [1.0, np.nan, 0.25])
    assert scores.mean == 0.625
    assert scores.left_out == 1


def test_without_any_judged_query_the_mean_is_nan():
    scores = mean_average_precision(np.array([[0, 1]]), [judged([])])
    assert np.isnan(scores.mean)
    assert scores.left_out == 1


def test_the_two_kinds_of_average_precision_differ_where_a_hit_follows_a_miss():
    rankings, truth = np.array([[0, 1, 2]]), [judged([1])]
    assert mean_average_precision(rankings, truth, "official").mean == 0.25
    assert mean_average_precision(rankings, truth, "classes").mean == 0.5


def test_rankings_may_differ_in_length():
    scores = mean_average_precision([np.array([3]), np.array([1, 0])], [judged([3, 4]), judged([0, 1])])
    np.testing.assert_array_equal(scores.per_query, [0.5, 1.0])


def test_an_unknown_kind_is_refused():
    with pytest.raises(InvalidInput, match=r"'official' or 'classes'"):
        mean_average_precision(np.array([[0]]), [judged([0])], "nonsense")


def test_rankings_and_judgements_must_agree_in_number():
    with pytest.raises(InvalidInput, match="2 rankings for 1 judged"):
        mean_average_precision(np.array([[0], [0]]), [judged([0])])


def test_a_ranking_that_lists_a_positive_twice_is_refused():
    with pytest.raises(InvalidInput, match="element 4 2 times"):
        mean_average_precision(np.array([[4, 4, 1]]), [judged([4, 1])])


@settings(deadline=None)
@given(st.permutations(range(12)), st.sets(st.integers(0, 11), min_size=1), st.sets(st.integers(0, 11)))
def test_precision_at_k_equals_the_official_loop(ranking, positives, junk):
    junk -= positives
    for k in (1, 5, 10):
        score = precision_at(np.array([ranking]), [judged(sorted(positives), sorted(junk))], k).mean
        assert score == pytest.approx(official_precision(ranking, positives, junk, k))


def test_precision_at_k_is_cut_to_the_rank_of_the_last_positive():
    # 2 positives at ranks 1 and 3: P@10 is 2 of 3, not 2 of 10.
    assert precision_at(np.array([[5, 0, 6, 1, 2]]), [judged([5, 6])], 10).mean == pytest.approx(2 / 3)


def test_precision_at_k_is_not_cut_where_the_ranking_misses_a_positive():
    assert precision_at(np.array([[5, 0, 6]]), [judged([5, 6, 7])], 10).mean == pytest.approx(2 / 10)
    assert precision_at(np.array([[0, 1]]), [judged([5])], 5).mean == 0.0


def test_precision_at_k_does_not_count_junk():
    assert precision_at(np.array([[9, 5, 9 + 1, 0, 6]]), [judged([5, 6], [9, 10])], 1).mean == 1.0


def test_recall_at_k_by_hand_in_both_senses():
    rankings, truth = np.array([[0, 1, 2, 3], [3, 2, 1, 0]]), [judged([2, 3]), judged([3, 0], [2])]
    np.testing.assert_array_equal(any_found_at(rankings, truth, 2).per_query, [0.0, 1.0])
    np.testing.assert_array_equal(any_found_at(rankings, truth, 3).per_query, [1.0, 1.0])
    np.testing.assert_array_equal(share_found_at(rankings, truth, 3).per_query, [0.5, 1.0])


def test_map_at_k_can_reach_one_and_divides_by_the_smaller_of_k_and_positives():
    rankings = np.array([[0, 1, 2, 3]])
    assert mean_average_precision_at(rankings, [judged([0, 1, 2])], 2).mean == 1.0
    assert mean_average_precision_at(rankings, [judged([1])], 2).mean == 0.5
    assert mean_average_precision_at(rankings, [judged([0, 2, 3])], 3).mean == pytest.approx((1 + 2 / 3) / 3)


@pytest.mark.parametrize("measure", [precision_at, any_found_at, share_found_at, mean_average_precision_at])
def test_k_below_one_is_refused(measure):
    with pytest.raises(InvalidInput, match="k is 0"):
        measure(np.array([[0]]), [judged([0])], 0)


@settings(deadline=None)
@given(st.permutations(range(10)), st.sets(st.integers(0, 9), min_size=1), st.integers(1, 12))
def test_every_measure_lies_between_zero_and_one(ranking, positives, k):
    rankings, truth = np.array([ranking]), [judged(sorted(positives))]
    for measure in (precision_at, any_found_at, share_found_at, mean_average_precision_at):
        assert 0.0 <= measure(rankings, truth, k).mean <= 1.0
    for kind in ("official", "classes"):
        assert 0.0 < mean_average_precision(rankings, truth, kind).mean <= 1.0


def test_the_revisited_protocols_by_hand():
    protocols = judge_revisited([{"easy": np.array([4, 1]), "hard": np.array([2]), "junk": np.array([7])}])
    assert list(protocols) == ["easy", "medium", "hard"]
    expected = {"easy": ([1, 4], [2, 7]), "medium": ([1, 2, 4], [7]), "hard": ([2], [1, 4, 7])}
    for name, (positives, junk) in expected.items():
        (found,) = protocols[name]
        assert (found.positives.tolist(), found.junk.tolist()) == (positives, junk)


def test_what_is_both_positive_and_junk_is_positive():
    found = judge(np.array([3, 1, 3]), np.array([3, 5]))
    assert (found.positives.tolist(), found.junk.tolist()) == ([1, 3], [5])
    assert judge(np.array([3])).junk.tolist() == []


def test_class_labels_leave_out_queries_that_nobody_matches():
    rankings = np.array([[0, 1, 2], [2, 1, 0], [0, 1, 2]])
    truth = judge_classes(np.array([7, 7, 8]), np.array([7, 8, 99]))
    scores = mean_average_precision(rankings, truth, "classes")
    assert scores.mean == 1.0
    assert scores.left_out == 1


def test_class_labels_may_be_words():
    (found,) = judge_classes(np.array(["cat", "dog", "cat"]), np.array(["cat"]))
    assert (found.positives.tolist(), found.junk.tolist()) == ([0, 2], [])


def test_leave_one_out_makes_the_query_junk_for_itself():
    first, alone = judge_leaving_one_out(np.array([7, 7, 8, 7]), np.array([1, 2]))
    assert (first.positives.tolist(), first.junk.tolist()) == ([0, 3], [1])
    assert (alone.positives.tolist(), alone.junk.tolist()) == ([], [2])


def test_a_bootstrap_interval_of_equal_differences_is_a_point():
    assert paired_bootstrap(np.full(9, 0.25), np.random.default_rng(0), rounds=50) == (0.25, 0.25)


def test_a_bootstrap_interval_agrees_with_the_normal_one_and_repeats():
    differences = np.random.default_rng(3).normal(0.5, 2.0, size=400)
    low, high = paired_bootstrap(differences, np.random.default_rng(0))
    error = 1.96 * differences.std() / np.sqrt(400)
    assert low == pytest.approx(differences.mean() - error, abs=0.02)
    assert high == pytest.approx(differences.mean() + error, abs=0.02)
    assert (low, high) == paired_bootstrap(differences, np.random.default_rng(0))


def test_blocks_do_not_change_the_bootstrap(monkeypatch):
    differences = np.random.default_rng(3).normal(size=30)
    whole = paired_bootstrap(differences, np.random.default_rng(0), rounds=100)
    monkeypatch.setattr("suffuse.research.evaluation._DRAWS", 70)
    assert paired_bootstrap(differences, np.random.default_rng(0), rounds=100) == pytest.approx(whole)


def test_a_bootstrap_leaves_out_pairs_without_a_score():
    assert paired_bootstrap(np.array([1.0, np.nan, 1.0]), np.random.default_rng(0), rounds=20) == (1.0, 1.0)
    assert np.isnan(paired_bootstrap(np.array([np.nan]), np.random.default_rng(0))).all()


@pytest.mark.parametrize("odd", [{"rounds": 0}, {"level": 0.0}, {"level": 1.0}])
def test_a_bootstrap_without_rounds_or_level_is_refused(odd):
    with pytest.raises(InvalidInput, match="give no interval"):
        paired_bootstrap(np.ones(3), np.random.default_rng(0), **odd)
