"""Stages that take turns are named, with what overlapping them would give back, and no others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from dflash.contract.config import load_config
from profiler.diagnosis import diagnose
from profiler.finding import Diagnosis, Finding
from profiler.run import Run
from profiler.timeline import Timeline
from tests.run_builder import RunBuilder

cause = "lockstep-schedule"
knobs = ["pipeline.split=1-1", "transport=peer", "devices.gpus=2"]


def in_turns(
    path: Path,
    forward_s: float,
    backward_s: float,
    *,
    schedule: str = "lockstep",
    pack_s: float = 0.0,
    together_s: float = 0.0,
    device: str | None = None,
) -> Diagnosis:
    """A target and a drafter, one after the other, 40 times; who has no turn waits at the barrier.

    `together_s`: of a round's time, in which both are at work; `pack_s`: prefetch of a batch; the target
    waits where that takes longer than a round. `device`: the one that both are on.
    """
    config = load_config(None, [*knobs, f"pipeline.schedule={schedule}"])
    builder = RunBuilder(path, config)
    here: dict[str, Any] = {} if device is None else {"device": device}
    round_s = max(forward_s + backward_s - together_s, pack_s)
    for batch in range(40):
        start, end = batch * round_s, (batch + 1) * round_s
        begin = start + forward_s - together_s
        work: dict[str, Any] = {"tokens": 20_000, "batch": batch, **here}
        if pack_s:
            builder.span("prefetch", 0, "pack", start, start + pack_s, tokens=20_000, batch=batch)
            builder.span("prefetch", 0, "put", start + pack_s, end, channel="q_pre")
        builder.span("target", 0, "forward", start, start + forward_s, **work)
        builder.span("target", 0, "barrier", start + forward_s, begin + backward_s, **here)
        builder.span("target", 0, "get", begin + backward_s, end, channel="q_pre", **here)
        builder.span("drafter", 0, "barrier", start, begin, **here)
        builder.span("drafter", 0, "backward", begin, begin + backward_s, **work)
        builder.span("drafter", 0, "barrier", begin + backward_s, end, **here)
        builder.window(batch, end, 20_000)
    return diagnose(Timeline.of(Run.open(builder.finish())))


def finding_of(diagnosis: Diagnosis) -> Finding:
    return next(finding for finding in diagnosis.findings if finding.cause == cause)


@pytest.mark.parametrize(
    ("forward_s", "backward_s", "lost"), [(0.5, 0.5, 0.5), (0.8, 0.2, 0.2), (0.3, 0.9, 0.25)]
)
def test_turns_cost_the_shorter_side(
    tmp_path: Path, forward_s: float, backward_s: float, lost: float
) -> None:
    diagnosis = in_turns(tmp_path / "r", forward_s, backward_s)
    found = diagnosis.findings[0]
    assert (found.cause, found.verdict) == (cause, "supported")
    assert found.measured_cost_share == pytest.approx(lost, abs=0.01)
    assert found.remedy is not None
    assert found.remedy.knobs == {"pipeline.schedule": "overlapped"}
    assert found.predicted_gain == pytest.approx(1 / (1 - lost) - 1, rel=0.1)
    assert "--set pipeline.schedule=overlapped" in diagnosis.next_step
    assert "hardly ever both at once" in diagnosis.why


def test_what_packing_would_not_allow_is_no_cost_of_turns(tmp_path: Path) -> None:
    """Overlapped, batches would still come once in 0.9 s."""
    found = finding_of(in_turns(tmp_path / "r", 0.5, 0.5, pack_s=0.9))
    assert found.measured_cost_share == pytest.approx(0.1, abs=0.01)


@pytest.mark.parametrize(
    "run",
    [
        {"forward_s": 0.95, "backward_s": 0.05},  # cheap
        {"forward_s": 0.8, "backward_s": 0.8, "together_s": 0.6, "schedule": "overlapped"},
        {"forward_s": 0.5, "backward_s": 0.5, "device": "logical:0"},
    ],
)
def test_others_are_not_called_so(tmp_path: Path, run: dict[str, Any]) -> None:
    assert finding_of(in_turns(tmp_path / "r", **run)).verdict == "rejected"


def test_turns_on_a_device_that_is_never_idle_are_healthy(tmp_path: Path) -> None:
    diagnosis = in_turns(tmp_path / "r", 0.6, 0.4, device="logical:0")
    assert diagnosis.findings[0].cause == "target-bound-healthy"
    assert "are at work 100 % of the time, for one or the other" in diagnosis.why


def test_turns_on_shared_devices_cost_what_these_idle(tmp_path: Path) -> None:
    """Two devices with both roles; in every other round there is work for one of them only."""
    builder = RunBuilder(
        tmp_path / "r", load_config(None, ["pipeline.split=colocated-2", "window.tokens=60000"])
    )
    for number in range(40):
        t = 2.0 * number
        for index in (0, 1):
            here: dict[str, Any] = {"device": f"logical:{index}"}
            for start in (t, t + 1.0)[: 2 - index]:
                builder.span("target", index, "forward", start, start + 0.5, tokens=20_000, **here)
                builder.span("target", index, "barrier", start + 0.5, start + 1.0, **here)
                builder.span("drafter", index, "barrier", start, start + 0.5, **here)
                builder.span("drafter", index, "backward", start + 0.5, start + 1.0, tokens=20_000, **here)
            if index:
                builder.span("target", index, "barrier", t + 1.0, t + 2.0, **here)
                builder.span("drafter", index, "barrier", t + 1.0, t + 2.0, **here)
        builder.window(number, t + 2.0, 60_000)
    found = diagnose(Timeline.of(Run.open(builder.finish()))).findings[0]
    assert found.cause == cause
    assert found.measured_cost_share == pytest.approx(0.25, abs=0.01)


@pytest.mark.parametrize("waits", [("barrier", "barrier"), ("put", "get")])
def test_turns_in_another_trainer_get_words_and_no_knobs(tmp_path: Path, waits: tuple[str, str]) -> None:
    """Its configuration is not ours to set; turns may come of a queue that holds nothing."""
    builder = RunBuilder(tmp_path / "r")
    put, get = ({} if name == "barrier" else {"channel": "q_hs"} for name in waits)
    for batch in range(40):
        builder.span("target", 0, "forward", batch, batch + 0.5, tokens=20_000)
        builder.span("target", 0, waits[0], batch + 0.5, batch + 1, **put)
        builder.span("drafter", 0, waits[1], batch, batch + 0.5, **get)
        builder.span("drafter", 0, "backward", batch + 0.5, batch + 1, tokens=20_000)
        builder.window(batch, batch + 1, 20_000)
    found = diagnose(Timeline.of(Run.open(builder.finish()))).findings[0]
    assert found.cause == cause
    assert found.remedy is not None
    assert found.remedy.knobs == {}
