"""What removing a cause would gain: near what removing it in a played run gains."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from profiler.diagnosis import diagnose
from profiler.finding import Diagnosis
from profiler.run import Run
from profiler.timeline import Timeline
from tests.played_pipeline import play

Settings = dict[str, Any]
host: Settings = {"preset": "host", "depth": 2}
pinned: Settings = {"preset": "pinned", "up_s": {0: 0.05}}
quick = dict.fromkeys(range(3), 0.1)


def diagnosed(path: Path, settings: Settings) -> Diagnosis:
    return diagnose(Timeline.of(Run.open(play(path, **settings))))


@pytest.mark.parametrize(
    ("cause", "sick", "cured"),
    [
        ("sync-d2h-on-critical-path", host | {"target_copy_s": 0.5}, {"preset": "peer"}),
        (
            "h2d-on-drafter-critical-path",
            host | {"backward_s": 0.3, "drafter_copy_s": 0.4},
            {"preset": "peer", "backward_s": 0.3},
        ),
        ("prefetch-starvation", {"pack_s": 0.6}, {"pack_s": 0.001}),
        ("python-packing-loop", {"gather_s": 0.8}, {}),
        ("one-gpu-throttled", {"targets": 2, "slower_targets": {0: 3.0}}, {"targets": 2}),
        (
            "numa-remote-host-buffers",
            pinned | {"down_s": quick | {2: 3.0}},
            pinned | {"down_s": quick | {2: 0.1}},
        ),
        ("drafter-too-slow", {"backward_s": 0.6}, {"targets": 2, "drafters": 2, "backward_s": 0.6}),
    ],
)
def test_the_gain_is_that_of_the_cure(tmp_path: Path, cause: str, sick: Settings, cured: Settings) -> None:
    before, after = diagnosed(tmp_path / "sick", sick), diagnosed(tmp_path / "cured", cured)
    finding = before.primary
    assert finding is not None
    assert finding.cause == cause
    assert before.throughput.tokens_per_s is not None
    assert after.throughput.tokens_per_s is not None
    gained = after.throughput.tokens_per_s / before.throughput.tokens_per_s - 1.0
    assert finding.predicted_gain == pytest.approx(gained, abs=0.06)
    assert finding.predicted_gain_reason is None


def test_what_was_rejected_gains_nothing_and_says_why(tmp_path: Path) -> None:
    diagnosis = diagnosed(tmp_path / "run", {"preset": "host", "target_copy_s": 0.5})
    rejected = [finding for finding in diagnosis.findings if finding.verdict == "rejected"]
    assert rejected
    for finding in rejected:
        assert finding.predicted_gain is None
        assert finding.predicted_gain_reason


def test_too_short_a_run_has_no_gains(tmp_path: Path) -> None:
    for finding in diagnosed(tmp_path / "run", {"windows": 5}).findings:
        assert finding.predicted_gain is None
        assert finding.predicted_gain_reason
