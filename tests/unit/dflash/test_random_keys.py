from itertools import product

import numpy as np

from dflash.random_keys import purposes, random_keys


def test_the_numbers_are_the_same_everywhere_and_for_ever():
    anchors = random_keys(4, seed=0, purpose="anchors", epoch=0, document=0)
    assert anchors.tolist() == [
        0xD037F8C3F9A1D176,
        0xC057419B4C210765,
        0xABF13115117B0065,
        0x7BAE035DEA6EA5C0,
    ]
    assert random_keys(2, seed=7, purpose="order", epoch=3).tolist() == [
        0x452B945C8593BF09,
        0xE0418C92125DC1DA,
    ]


def test_every_fact_changes_the_stream():
    facts = product(range(3), purposes, range(3), range(3))
    streams = [random_keys(50, seed=s, purpose=p, epoch=e, document=d) for s, p, e, d in facts]
    numbers = np.concatenate(streams)
    assert len(np.unique(numbers)) == len(numbers)


def test_a_longer_draw_begins_like_a_shorter_one():
    short = random_keys(5, seed=1, purpose="anchors", epoch=2, document=3)
    assert random_keys(50, seed=1, purpose="anchors", epoch=2, document=3)[:5].tolist() == short.tolist()


def test_a_seed_of_any_size_is_taken():
    assert len(random_keys(3, seed=2**80 + 1, purpose="order", epoch=0)) == 3
