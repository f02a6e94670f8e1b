"""Link: the declared speed, one copy at a time, failures and aborts, on a clock that the test owns."""

from __future__ import annotations

import threading
import time

import pytest

from dflash.links import CopyMoment, Link


class FakeClock:
    """Time passes only in `sleep`, and in `spend`, which stands for the copying itself."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.slept: list[float] = []

    def __call__(self) -> int:
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now_ns += round(seconds * 1e9)

    def spend(self, ns: int) -> None:
        self.now_ns += ns


def paced(clock: FakeClock, **speed: float) -> Link:
    return Link(
        "a>b", **{"gigabytes_per_s": 2.0, "latency_us": 10.0, **speed}, clock_ns=clock, sleep=clock.sleep
    )


def unpaced() -> Link:
    return Link("a>b", gigabytes_per_s=1e9, latency_us=0.0)


def ignore(start_ns: int, end_ns: int) -> None:
    pass


def test_a_copy_takes_latency_plus_bytes_over_bandwidth() -> None:
    clock = FakeClock()
    start_ns, end_ns = paced(clock).copy(lambda: None, 4_000_000)
    assert (start_ns, end_ns) == (0, 10_000 + 2_000_000)


def test_the_time_of_the_real_copy_counts() -> None:
    clock = FakeClock()
    start_ns, end_ns = paced(clock).copy(lambda: clock.spend(1_500_000), 4_000_000)
    assert end_ns - start_ns == 2_010_000
    assert clock.slept == [pytest.approx(0.00051)]


def test_a_real_copy_slower_than_declared_is_not_stretched() -> None:
    clock = FakeClock()
    start_ns, end_ns = paced(clock).copy(lambda: clock.spend(9_000_000), 4_000_000)
    assert end_ns - start_ns == 9_000_000
    assert clock.slept == []


def test_a_sleep_that_ends_early_is_taken_up_again() -> None:
    clock = FakeClock()
    link = Link(
        "a>b", gigabytes_per_s=2.0, latency_us=0.0, clock_ns=clock, sleep=lambda s: clock.sleep(s / 2 + 1e-9)
    )
    start_ns, end_ns = link.copy(lambda: None, 2_000)
    assert end_ns - start_ns >= 1_000


def test_copies_of_one_link_follow_each_other() -> None:
    clock = FakeClock()
    link = paced(clock)
    ends: list[tuple[int, int]] = []
    moments = [
        link.submit(lambda: None, 2_000_000, ended=lambda start, end: ends.append((start, end)))
        for _ in range(3)
    ]
    for moment in moments:
        moment.wait()
    link.close()
    assert ends == [(0, 1_010_000), (1_010_000, 2_020_000), (2_020_000, 3_030_000)]


def test_the_callers_and_the_workers_copies_do_not_overlap() -> None:
    link = unpaced()
    inside = threading.Lock()

    def action() -> None:
        assert inside.acquire(blocking=False), "two copies at once"
        time.sleep(0.0002)
        inside.release()

    moments = []
    for _ in range(50):
        moments.append(link.submit(action, 1, ended=ignore))
        link.copy(action, 1)
    link.close()
    for moment in moments:
        moment.wait()


def test_a_moment_is_reached_after_the_copy_and_its_span() -> None:
    link = unpaced()
    go, told = threading.Event(), []
    moment = link.submit(lambda: go.wait(30), 1, ended=lambda start, end: told.append(end - start))
    assert not moment.done()
    go.set()
    moment.wait()
    assert moment.done()
    assert len(told) == 1
    link.close()


def test_a_copy_waits_for_what_it_comes_after() -> None:
    link, before, seen = unpaced(), CopyMoment(), []
    moment = link.submit(lambda: seen.append(before.done()), 1, ended=ignore, after=before)
    assert not moment.done()
    before.finish()
    moment.order_stream()
    assert seen == [True]
    link.close()


def test_a_failed_copy_fails_its_moment_and_those_behind_it_but_not_the_link() -> None:
    link = unpaced()

    def fail() -> None:
        raise MemoryError("no room")

    failed = link.submit(fail, 1, ended=ignore)
    behind = link.submit(lambda: None, 1, ended=ignore, after=failed)
    free = link.submit(lambda: None, 1, ended=ignore)
    for moment in (failed, behind):
        with pytest.raises(MemoryError, match="no room"):
            moment.wait()
    free.wait()
    link.close()


def test_close_finishes_what_was_submitted_and_joins_the_worker() -> None:
    link = unpaced()
    done: list[int] = []
    for number in range(20):
        link.submit(lambda number=number: done.append(number), 1, ended=ignore)
    (worker,) = [t for t in threading.enumerate() if t.name == "link:a>b"]
    link.close()
    link.close()
    assert done == list(range(20))
    assert not worker.is_alive()
    with pytest.raises(RuntimeError, match="closed"):
        link.submit(lambda: None, 1, ended=ignore)


def test_an_abort_ends_endless_copies_with_the_first_error() -> None:
    link = Link("a>b", gigabytes_per_s=1e-6, latency_us=0.0)  # 1 GB would take 11 days
    started = threading.Event()
    moments = [link.submit(started.set, 10**9, ended=ignore) for _ in range(3)]
    caught: list[BaseException] = []

    def copy() -> None:
        try:
            link.copy(lambda: None, 10**9)
        except ValueError as error:
            caught.append(error)

    caller = threading.Thread(target=copy, daemon=True)
    assert started.wait(30)  # the worker has the link; the caller waits for it
    caller.start()
    first = ValueError("first")
    link.abort(first)
    link.abort(ValueError("second"))
    for moment in moments:
        with pytest.raises(ValueError, match="first"):
            moment.wait()
    caller.join(30)
    assert caught == [first]
    with pytest.raises(ValueError, match="first"):
        link.submit(lambda: None, 1, ended=ignore)
    link.close()
    assert not [t for t in threading.enumerate() if t.name == "link:a>b"]
