"""Intervals come from drawing texts again: they hold the figure, narrow with more texts, and repeat."""

import numpy as np
import pytest

from dflash.evaluation.acceptance import AnswerAcceptance
from dflash.evaluation.intervals import fewest_texts, find_intervals


def text(*lengths_of_answers):
    empty = np.empty(0, np.int64)
    return [AnswerAcceptance(accepted=empty, lengths=tuple(own), offered=empty) for own in lengths_of_answers]


def many(count, seed=0):
    rng = np.random.default_rng(seed)
    return [text(rng.integers(1, 8, rng.integers(3, 20)).tolist()) for _ in range(count)]


def pooled(texts):
    lengths = [k for answers in texts for one in answers for k in one.lengths]
    return sum(lengths) / len(lengths)


def test_equal_texts_leave_no_doubt():
    intervals = find_intervals([text([2, 4], [3])] * 20)
    assert intervals.pooled == pytest.approx((3.0, 3.0))
    assert intervals.mean_of_means == pytest.approx((3.0, 3.0))
    assert intervals.reason is None


def test_more_texts_narrow_it():
    few, lots = find_intervals(many(12)), find_intervals(many(300))
    assert few.pooled[0] < pooled(many(12)) < few.pooled[1]
    assert lots.pooled[1] - lots.pooled[0] < (few.pooled[1] - few.pooled[0]) / 2
    assert find_intervals(many(12)) == few


def test_nineteen_of_twenty_intervals_hold_the_truth():
    truth = pooled(many(20_000, seed=99))
    held = [low < truth < high for low, high in (find_intervals(many(40, s)).pooled for s in range(60))]
    assert 50 <= sum(held) <= 59


def test_a_text_whose_blocks_are_alike_counts_as_one():
    """Ten texts of a thousand equal blocks each are ten draws, not ten thousand."""
    texts = [text([1 + number % 2] * 1000) for number in range(10)]
    low, high = find_intervals(texts).pooled
    assert high - low > 0.4


@pytest.mark.parametrize("texts", [[], many(fewest_texts - 1), [*many(fewest_texts - 1), text([])]])
def test_too_few_texts_have_none_and_say_so(texts):
    intervals = find_intervals(texts)
    assert (intervals.pooled, intervals.mean_of_means) == (None, None)
    assert "too few" in intervals.reason
