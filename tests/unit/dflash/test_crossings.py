"""Patterns are found right or wrong to the word; logical crossings take what their link takes."""

from __future__ import annotations

import pytest
import torch

from dflash import crossings
from dflash.crossings import LogicalCrossing, count_wrong, fill
from dflash.links import Link


def test_every_wrong_word_is_counted_also_across_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crossings, "_chunk_words", 7)
    source, destination = torch.empty(50, dtype=torch.int64), torch.ones(50, dtype=torch.int64)
    fill(source, destination, seed=3)
    assert count_wrong(source, 3) == 0
    assert count_wrong(destination, 3) == 50, "nothing has arrived yet"
    destination.copy_(source)
    destination[[0, 6, 7, 49]] += 1
    assert count_wrong(destination, 3) == 4


def test_chunks_that_arrive_in_each_others_place_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crossings, "_chunk_words", 8)
    source, destination = torch.empty(16, dtype=torch.int64), torch.empty(16, dtype=torch.int64)
    fill(source, destination, seed=1)
    assert count_wrong(source.roll(8), 1) == 16


def test_the_pattern_of_another_crossing_is_not_taken_for_ones_own() -> None:
    source, destination = torch.empty(64, dtype=torch.int64), torch.empty(64, dtype=torch.int64)
    fill(source, destination, seed=1)
    assert count_wrong(source, 2) == 64
    shifted = source.roll(1)
    assert count_wrong(shifted, 1) == 64, "words in the wrong place are wrong"


def test_a_logical_crossing_takes_what_its_link_takes_and_moves_the_bytes() -> None:
    now_ns = [0]

    def sleep(seconds: float) -> None:
        now_ns[0] += round(seconds * 1e9)

    link = Link("a>b", gigabytes_per_s=0.5, latency_us=100.0, clock_ns=lambda: now_ns[0], sleep=sleep)
    source, destination = torch.empty(1000, dtype=torch.int64), torch.empty(1000, dtype=torch.int64)
    crossing = LogicalCrossing(source, destination, 1, link)
    assert crossing.wrong_words() == 1000
    crossing.begin(3)
    assert crossing.end() == pytest.approx(3 * (100e-6 + 8000 / 0.5e9))
    assert crossing.wrong_words() == 0
    link.close()
