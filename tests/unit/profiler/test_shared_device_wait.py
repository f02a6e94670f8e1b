"""A device with both roles beside one with time to spare is named; devices that share alike are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from dflash.contract.config import load_config
from profiler.diagnosis import diagnose
from profiler.finding import Diagnosis, Finding
from profiler.forecast.run_forecast import RunForecast
from profiler.run import Run
from profiler.timeline import Timeline
from tests.run_builder import RunBuilder

cause = "shared-device-wait"
settings = [
    "pipeline.split=2-1",
    "devices.gpus=2",
    "transport=peer",
    "window.tokens=40000",
    "pipeline.token_budget=20000",
]


def shared(path: Path, *, spare_s: float = 0.8, everywhere: bool = False) -> tuple[Diagnosis, Run]:
    """Rounds of 1.2 s: on device 0 a forward of 0.4 s and two steps of 0.4 s in turn, on device 1 a forward.

    `spare_s`: how long target 1 waits for room; `everywhere`: all is on device 0.
    """
    builder = RunBuilder(path, load_config(None, settings))
    first, second = "logical:0", "logical:0" if everywhere else "logical:1"
    for number in range(40):
        t = 1.2 * number
        one, two = 2 * number, 2 * number + 1
        builder.span("target", 0, "forward", t, t + 0.4, tokens=20_000, batch=one, device=first)
        builder.span("target", 0, "device_wait", t + 0.4, t + 1.2, device=first)
        work_end = t + 1.2 - spare_s
        builder.span("target", 1, "forward", t, work_end, tokens=20_000, batch=two, device=second)
        builder.span("target", 1, "put", work_end, t + 1.2, channel="q_hs.0", device=second)
        builder.span("drafter", 0, "device_wait", t, t + 0.4, device=first)
        for step, batch in enumerate((one, two)):
            begin = t + 0.4 + 0.4 * step
            builder.span(
                "drafter", 0, "backward", begin, begin + 0.4, tokens=20_000, batch=batch, device=first
            )
        builder.window(number, t + 1.2, 40_000)
    run = Run.open(builder.finish())
    timeline = Timeline.of(run)
    return diagnose(timeline, RunForecast(timeline, run)), run


def finding_of(diagnosis: Diagnosis) -> Finding:
    return next(finding for finding in diagnosis.findings if finding.cause == cause)


def test_a_device_that_works_for_both_while_another_idles_is_named(tmp_path: Path) -> None:
    diagnosis, _ = shared(tmp_path / "r")
    found = diagnosis.findings[0]
    assert (found.cause, found.verdict) == (cause, "supported")
    assert found.measured_cost_share == pytest.approx(1 / 3, abs=0.01)
    assert {item.name: item.value for item in found.evidence}["logical:1 at work"] == pytest.approx(
        1 / 3, 0.01
    )
    assert found.remedy is not None
    assert found.remedy.knobs == {"pipeline.split": "1-1"}
    # Two forwards on one device and two steps on the other take 0.8 s, where a round takes 1.2 s now.
    assert found.predicted_gain == pytest.approx(0.5, abs=0.1)


def test_what_both_devices_allow_together_is_no_less_than_what_they_do(tmp_path: Path) -> None:
    """Two devices, 0.8 s of each for 40,000 tokens."""
    capacities = shared(tmp_path / "r")[0].capacities
    assert capacities.allowed_tokens_per_s == pytest.approx(40_000 / 0.8, rel=0.02)
    assert capacities.pipeline_efficiency == pytest.approx(0.8 / 1.2, rel=0.02)


def test_without_a_device_to_spare_it_is_rejected(tmp_path: Path) -> None:
    assert finding_of(shared(tmp_path / "r", spare_s=0.05)[0]).verdict == "rejected"


def test_where_all_devices_have_both_roles_it_is_rejected(tmp_path: Path) -> None:
    assert finding_of(shared(tmp_path / "r", everywhere=True)[0]).verdict == "rejected"


def test_one_device_for_all_that_never_idles_is_healthy(tmp_path: Path) -> None:
    """Two targets and a drafter, one after the other; a target that has sent all waits for room."""
    config = load_config(None, [*settings, "devices.gpus=1"])
    builder, here = RunBuilder(tmp_path / "r", config), {"device": "logical:0"}
    for number in range(40):
        t = 1.6 * number
        for index in (0, 1):
            begin = t + 0.4 * index
            if index:
                builder.span("target", 1, "device_wait", t, begin, **here)
            builder.span("target", index, "forward", begin, begin + 0.4, tokens=20_000, **here)
            builder.span("target", index, "put", begin + 0.4, t + 1.6, channel="q_hs.0", **here)
        builder.span("drafter", 0, "device_wait", t, t + 0.8, **here)
        builder.span("drafter", 0, "backward", t + 0.8, t + 1.6, tokens=40_000, **here)
        builder.window(number, t + 1.6, 40_000)
    diagnosis = diagnose(Timeline.of(Run.open(builder.finish())))
    assert diagnosis.findings[0].cause == "target-bound-healthy"
    assert diagnosis.capacities.pipeline_efficiency == pytest.approx(1.0, abs=0.02)
