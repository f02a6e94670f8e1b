"""Every sensor call, failing in every way, on every kind of machine: no crash, no mix-up, no unknown zero."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from profiler.gpu_identity import gpu_uses
from profiler.samplers import nvml as nvml_module
from profiler.samplers.base import Reading
from profiler.samplers.gpu import GpuSampler
from profiler.samplers.metrics import gpu_metrics, power_samples
from profiler.samplers.nvml import NvmlSensors
from tests.fake_nvml import FUNCTION_NOT_FOUND, IS_LOST, NOT_SUPPORTED, UNKNOWN, Card, FakeNvml, Garbage

failures: dict[str, Any] = {
    "NotSupported": NOT_SUPPORTED,
    "FunctionNotFound": FUNCTION_NOT_FOUND,
    "GpuIsLost": IS_LOST,
    "Unknown": UNKNOWN,
    "None": Garbage(None),
    "text": Garbage("garbage"),
    "negative": Garbage(-1),
    "all bits": Garbage(0xFFFFFFFFFFFFFFFF),
    "not a number": Garbage(float("nan")),
    "hollow": Garbage(SimpleNamespace(gpu=None, used=-1, reserved="x", total=float("inf"), busId=7)),
    "list": Garbage([object(), None]),
}
machines: dict[str, Callable[[], list[Card]]] = {
    "plain": lambda: [Card("GPU-0", 1), Card("GPU-1", 2)],
    "MIG": lambda: [Card("GPU-0", 1), Card("GPU-1", 2, "MIG")],
    "GB10": lambda: [Card("GPU-0", 1, "GB10")],
    "permuted": lambda: [Card("GPU-1", 2), Card("GPU-0", 1)],
}
calls = sorted(name for name in FakeNvml().answers if name.startswith("nvml"))


@pytest.fixture
def sampled(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[Reading]]:
    """A few seconds of sampling; `fail` holds from the second `failing_from` on."""

    def run(cards: list[Card], fail: dict[str, Any], failing_from: int = 0) -> list[Reading]:
        namespace = tmp_path / "pid"
        namespace.touch()
        monkeypatch.setattr(nvml_module, "_first_namespace", namespace.stat().st_ino)
        nvml = FakeNvml(*cards)
        monkeypatch.setitem(sys.modules, "pynvml", nvml)  # type: ignore[arg-type]
        now_s = 0.0
        sampler = GpuSampler(NvmlSensors(namespace), 1.0, clock=lambda: now_s)
        if failing_from == 0:
            nvml.fail = fail
        reason = sampler.open()
        rows: list[Reading] = []
        for tick in range(4 if reason is None else 0):
            now_s = float(tick)
            nvml.fail = fail if tick >= failing_from else {}
            for card in cards:
                nvml.add_samples(card.uuid, 100_000 + 1000 * card.mark)
            rows += sampler.sample()
        assert reason is None or rows == []
        rows += sampler.close()
        sampler.close()
        return rows

    return run


def series(rows: list[Reading]) -> dict[tuple[str, str], set[float | None]]:
    """What each series held. Times apart, a machine that does not fail always says the same."""
    found: dict[tuple[str, str], set[float | None]] = {}
    for row in rows:
        found.setdefault((row.key, row.metric), set()).add(row.value)
    return found


@pytest.mark.parametrize("machine", machines)
@pytest.mark.parametrize("failure", failures)
@pytest.mark.parametrize("when", [0, 2], ids=["from the start", "later"])
def test_whatever_fails_only_its_own_readings_are_missing(
    sampled: Callable[..., list[Reading]], machine: str, failure: str, when: int
) -> None:
    truth = series(sampled(machines[machine](), {}))
    for call in calls:
        rows = sampled(machines[machine](), {call: failures[failure]}, when)
        for row in rows:
            where = f"{call} -> {failure}: {row}"
            assert (row.value is None) != (row.reason is None), where
            if row.value is None:
                continue
            believable = truth.get((row.key, row.metric), set())
            older_form = call == "nvmlDeviceGetFieldValues" and row.metric == "power_w"  # asked another way
            slice_apart = call == "nvmlDeviceGetMigMode"  # then nothing says that it is cut
            unified = row.metric.startswith("unified_")  # the host's, which moves
            if not (older_form or slice_apart or unified):
                assert row.value in believable, where
            if row.value == 0:
                assert 0 in believable, where


@pytest.mark.parametrize("machine", machines)
@pytest.mark.parametrize("failure", ["NotSupported", "FunctionNotFound"])
def test_what_is_not_supported_is_one_row_and_one_question(
    sampled: Callable[..., list[Reading]], machine: str, failure: str
) -> None:
    for call in calls:
        rows = sampled(machines[machine](), {call: failures[failure]})
        nulls = [(row.key, row.metric) for row in rows if row.value is None]
        assert len(nulls) == len(set(nulls)), call


@pytest.mark.parametrize("machine", machines)
def test_every_metric_of_every_device_has_a_value_or_a_reason(
    sampled: Callable[..., list[Reading]], machine: str
) -> None:
    found = series(sampled(machines[machine](), {}))
    keys = {key for key, _ in found}
    assert {(k, m) for k, m in itertools.product(keys, (*gpu_metrics, power_samples))} <= set(found)


def test_permuted_cards_keep_their_readings_and_roles(sampled: Callable[..., list[Reading]]) -> None:
    straight, turned = (series(sampled(machines[name](), {})) for name in ("plain", "permuted"))
    for key in ("GPU-0", "GPU-1"):
        assert straight[key, "temp_c"] == turned[key, "temp_c"] == {41 + int(key[-1])}
    uses = gpu_uses(
        {
            "hardware": {"gpus": [{"uuid": "GPU-1"}, {"uuid": "GPU-0"}]},
            "devices": [{"name": "cuda:0", "role": "target", "index": 0, "uuid": "GPU-0"}],
        }
    )
    assert uses is not None
    assert list(uses) == ["GPU-0"]


def test_samples_of_a_whole_second_come_with_one_question(sampled: Callable[..., list[Reading]]) -> None:
    time.sleep(0.001)
    rows = [row for row in sampled(machines["plain"](), {}) if row.metric == power_samples]
    assert {row.value for row in rows if row.key == "GPU-0"} == {101}
    assert {row.value for row in rows if row.key == "GPU-1"} == {102}
