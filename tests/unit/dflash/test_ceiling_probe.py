"""Ceilings are what the fastest round gives; the work that is timed is the work that is counted."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

from dflash.ceiling_probe import each_s, fastest, measure_ceilings, memory_rate, multiply_rate
from dflash.contract.errors import DeviceError


class Device:
    """Its calls take given times, and its clock goes on by them."""

    def __init__(self, seconds: Iterator[float]) -> None:
        self.now_s, self.rounds, self._seconds = 0.0, list[int](), seconds

    def time(self, work: Callable[[], object], calls: int) -> float:
        work()
        self.rounds.append(calls)
        took_s = calls * next(self._seconds)
        self.now_s += took_s
        return took_s


def steady(seconds: float) -> Iterator[float]:
    while True:
        yield seconds


def test_the_fastest_round_counts_and_the_first_calls_do_not() -> None:
    def seconds() -> Iterator[float]:
        yield from (0.0001, 0.002, 0.002, 0.0015)
        yield from steady(0.003)

    device = Device(seconds())
    assert fastest(lambda: None, device.time, lambda: device.now_s) == pytest.approx(0.0015)
    assert device.rounds[:3] == [1, 1, 5], "rounds of ten milliseconds"
    assert device.now_s == pytest.approx(each_s, rel=0.1)


def test_work_longer_than_a_round_is_done_once_a_round() -> None:
    device = Device(steady(0.5))
    assert fastest(lambda: None, device.time, lambda: device.now_s) == pytest.approx(0.5)
    assert set(device.rounds) == {1}


@pytest.mark.parametrize(
    ("rate", "expected"),
    [
        (lambda stopwatch: multiply_rate(torch.device("cpu"), stopwatch, width=16), 2 * 16**3 / 0.2),
        (lambda stopwatch: memory_rate(torch.device("cpu"), stopwatch, copy_bytes=1000), 2 * 1000 / 0.2),
    ],
)
def test_operations_and_bytes_are_those_of_the_work(rate: Callable[[object], float], expected: float) -> None:
    assert rate(Device(steady(0.2)).time) == pytest.approx(expected)


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a GPU")
def test_without_a_gpu_there_is_nothing_to_measure() -> None:
    with pytest.raises(DeviceError, match="no GPU to measure"):
        measure_ceilings()
