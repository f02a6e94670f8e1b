"""What every sampler keeps to: each reading has a value or a reason, and a metric that was announced."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from profiler.samplers.base import Reading, Sampler
from profiler.samplers.gil import GilSampler
from profiler.samplers.gil_wait import GilWaitSampler
from profiler.samplers.gpu import GpuSampler, open_sensors
from profiler.samplers.host import HostSampler
from profiler.samplers.numa import NumaSampler

Make = Callable[[], Sampler]
choices = (
    "host",
    "gil",
    "gil wait",
    "gil wait unpublished",
    "gpu",
    "gpu mig",
    "gpu samples",
    "gpu failing",
    "numa",
    "gpu without driver",
    "gil without program",
    "numa of one node",
)
any_range = {"futex_low": 2**40, "futex_high": 2**40 + 48}
without = ("gpu without driver", "gil without program", "numa of one node")


@pytest.fixture(scope="module")
def busy_pid() -> Iterator[int]:
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    with child:
        yield child.pid
        child.kill()


@pytest.fixture
def make(request: pytest.FixtureRequest, data_dir: Path, busy_pid: int, tmp_path: Path) -> Make:
    cases = data_dir / "cases" / "nvml"

    def gpu(case: str) -> Sampler:
        sensors = open_sensors(f"replay:{cases / case}.json")
        assert sensors is not None
        return GpuSampler(sensors)

    def numa(nodes: int) -> Sampler:
        for node in range(nodes):
            directory = tmp_path / f"sys/devices/system/node/node{node}"
            directory.mkdir(parents=True, exist_ok=True)
            (directory / "cpulist").write_text("0-7")
        (tmp_path / f"proc/{busy_pid}").mkdir(parents=True, exist_ok=True)
        (tmp_path / f"proc/{busy_pid}/numa_maps").write_text("7f0 anon=2 N0=2 kernelpagesize_kB=4")
        return NumaSampler(os.getpid(), root=tmp_path)

    makers: dict[str, Make] = {
        "numa": lambda: numa(2),
        "numa of one node": lambda: numa(1),
        "host": lambda: HostSampler(os.getpid()),
        "gil": lambda: GilSampler(lambda: busy_pid, length_s=1),
        "gil wait": lambda: GilWaitSampler(lambda: {**any_range, "pid": busy_pid}, os.getpid()),
        "gil wait unpublished": lambda: GilWaitSampler(lambda: None, os.getpid()),
        "gpu": lambda: gpu("c070_throttled_straggler"),
        "gpu mig": lambda: gpu("c060_mig"),
        "gpu samples": lambda: gpu("power_samples"),
        "gpu failing": lambda: gpu("c068_fails_after_60_samples"),
        "gpu without driver": lambda: gpu("c068_driver_mismatch"),
        "gil without program": lambda: GilSampler(lambda: busy_pid, Path("/no/py-spy")),
    }
    return makers[request.param]


def collect(sampler: Sampler) -> list[Reading]:
    """What a short life yields: enough for every sampler to have said something."""
    rows: list[Reading] = []
    until_s = time.monotonic() + 15
    for _ in range(200):
        rows += sampler.sample()
        if time.monotonic() > until_s or (sampler.name == "gil" and rows):
            break
        time.sleep(0.05 if sampler.name in ("host", "gil") else 0.0)
        if sampler.name == "host" and len(rows) > 60:
            break
    return [*rows, *sampler.close()]


@pytest.mark.parametrize("make", [c for c in choices if c not in without], indirect=True)
def test_readings_keep_the_contract(make: Make) -> None:
    sampler = make()
    assert sampler.open() is None
    before_ns = time.monotonic_ns()
    rows = collect(sampler)
    after_ns = time.monotonic_ns()
    assert rows
    for row in rows:
        assert (row.value is None) != (row.reason is None), row
        assert row.value is None or math.isfinite(row.value), row
        assert row.metric in sampler.metrics, row
        assert row.key, row
        assert before_ns <= row.t_ns <= after_ns, row
    for key in {(row.key, row.metric) for row in rows}:  # a driver's own series comes later than the rest
        times = [row.t_ns for row in rows if (row.key, row.metric) == key]
        assert times == sorted(times)


@pytest.mark.parametrize("make", without, indirect=True)
def test_what_is_not_there_is_a_reason_and_can_be_closed(make: Make) -> None:
    sampler = make()
    reason = sampler.open()
    assert reason
    assert list(sampler.close()) == []


@pytest.mark.parametrize("make", choices, indirect=True)
def test_closing_twice_or_without_opening_is_harmless(make: Make) -> None:
    sampler = make()
    assert list(sampler.close()) == []
    assert list(sampler.close()) == []


@pytest.mark.parametrize("make", choices, indirect=True)
def test_name_pace_and_metrics_are_declared(make: Make) -> None:
    sampler = make()
    assert sampler.name in ("host", "numa", "gpu", "gil", "gil_wait")
    assert sampler.interval_s > 0
    assert len(set(sampler.metrics)) == len(sampler.metrics) > 0
