"""Choices of one knob: numbers by ratio, splits by their roles, words the same or not."""

import pytest

from autotune.likeness import Likeness


def test_equal_choices_are_wholly_alike():
    for choices in ([1, 2, 4], ["1-1", "3-1"], ["host", "peer"], [True, False]):
        assert Likeness(choices).between(choices, choices).diagonal() == pytest.approx([1.0] * len(choices))


def test_numbers_count_by_their_ratio():
    likeness = Likeness([1024, 4096, 65536])
    near, far = likeness.between([1024], [2048, 65536])[0]
    assert near > far > 0
    assert likeness.between([1024], [2048])[0][0] == pytest.approx(likeness.between([32768], [65536])[0][0])


def test_zero_and_negative_numbers_are_placed_as_they_are():
    assert 0 < Likeness([-1, 0, 1]).between([-1], [0])[0][0] < 1


def test_words_have_no_order():
    assert Likeness(["host", "peer", "pinned"]).between(["host"], ["peer", "pinned"]).tolist() == [[0, 0]]


def test_splits_are_alike_by_their_targets_and_drafters():
    one_more, swapped, together = Likeness(["3-1", "4-1"]).between(["3-1"], ["4-1", "1-3", "colocated-3"])[0]
    assert one_more > together > swapped


def test_a_single_choice_is_like_itself():
    assert Likeness([8]).between([8], [8])[0][0] == 1.0


def test_words_among_splits_make_words_of_all():
    assert Likeness(["1-1", "whatever"]).between(["1-1"], ["whatever"])[0][0] == 0.0
