"""Dispatch: who gets the next batch, and that the books balance under concurrency."""

from __future__ import annotations

import random
import threading
import time

import pytest

from dflash.transport.dispatch import LeastDepth, Local, RoundRobin


def test_round_robin_takes_turns_whatever_the_lengths() -> None:
    dispatch = RoundRobin(3)
    assert [dispatch.reserve(tokens) for tokens in (900, 1, 1, 1, 1)] == [0, 1, 2, 0, 1]


def test_least_depth_prefers_the_fewest_tokens_not_the_fewest_batches() -> None:
    dispatch = LeastDepth(2)
    assert dispatch.reserve(1000) == 0
    assert [dispatch.reserve(300) for _ in range(3)] == [1, 1, 1]
    assert dispatch.reserve(300) == 1  # 900 against 1000
    assert dispatch.reserve(300) == 0  # 1200 against 1000


def test_least_depth_among_equals_takes_turns() -> None:
    dispatch = LeastDepth(3)
    homes = []
    for _ in range(6):
        home = dispatch.reserve(10)
        dispatch.release(home, 10)
        homes.append(home)
    assert homes == [0, 1, 2, 0, 1, 2]


def test_local_keeps_a_batch_with_the_drafter_of_its_targets_number() -> None:
    dispatch = Local(2)
    assert [dispatch.reserve(100, target) for target in (1, 1, 0, 2)] == [1, 1, 0, 0]
    assert dispatch.reserved_tokens() == (200, 200)


def test_finished_work_makes_a_drafter_attractive_again() -> None:
    dispatch = LeastDepth(2)
    assert [dispatch.reserve(100), dispatch.reserve(60)] == [0, 1]
    dispatch.release(0, 100)
    assert dispatch.reserve(10) == 0
    assert dispatch.reserved_tokens() == (10, 60)


class SlowList(list):
    """Gives other threads a turn between reading and writing an entry, so that a missing lock shows."""

    def __getitem__(self, index):
        value = super().__getitem__(index)
        time.sleep(0)
        return value


@pytest.mark.parametrize("kind", [RoundRobin, LeastDepth])
def test_books_balance_when_everybody_reserves_and_releases_at_once(kind: type) -> None:
    dispatch = kind(4)
    dispatch._reserved_tokens = SlowList(dispatch._reserved_tokens)

    def work(seed: int) -> None:
        rng = random.Random(seed)
        held: list[tuple[int, int]] = []
        for _ in range(500):
            tokens = rng.randint(1, 1000)
            held.append((dispatch.reserve(tokens), tokens))
            if len(held) > 3:
                dispatch.release(*held.pop(rng.randrange(len(held))))
        for home, tokens in held:
            dispatch.release(home, tokens)

    threads = [threading.Thread(target=work, args=(seed,), daemon=True) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert dispatch.reserved_tokens() == (0, 0, 0, 0)
