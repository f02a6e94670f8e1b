"""Small batches on GPUs that look busy are named, and nothing else that draws little power is."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from profiler.capacity import StageLoad
from profiler.diagnosis import diagnose
from profiler.finding import Diagnosis, Finding
from profiler.rules.token_budget_too_small import fixed_share
from profiler.run import Run
from profiler.timeline import Timeline
from tests.gpu_readings import cases, listed, watch
from tests.played_pipeline import play

c057 = cases / "c057_util100_low_power.json"
cause = "token-budget-too-small"


def told(tmp_path: Path, changes: dict[str, Any] | None = None, **settings: Any) -> Diagnosis:
    """A target that works all the time, on the GPU that looks busy and draws 118 of 600 W."""
    data = json.loads(c057.read_text())
    data["gpus"][0] |= changes or {}
    file = tmp_path / "case.json"
    file.write_text(json.dumps(data))
    quick = {"targets": 1, "forward_s": 0.2, "backward_s": 0.04, "optimizer_s": 0.01, "windows": 20}
    path = play(tmp_path / "run", emulated=False, **{**quick, **settings})
    watch(path, file, devices=listed(file, [1, 0]))
    return diagnose(Timeline.of(Run.open(path)))


def finding_of(diagnosis: Diagnosis) -> Finding:
    return next(finding for finding in diagnosis.findings if finding.cause == cause)


def test_small_batches_on_a_gpu_that_does_little_are_named_without_a_price(tmp_path: Path) -> None:
    diagnosis = told(tmp_path)
    finding = finding_of(diagnosis)
    assert diagnosis.primary is finding
    assert finding.summary.startswith(
        "Batches of 1,000 tokens are too small: GPUs of targets look busy and draw 20 %"
    )
    assert finding.measured_cost_share is None
    assert finding.measured_cost_reason
    assert finding.remedy is not None
    assert set(finding.remedy.knobs) == {"pipeline.token_budget"}


@pytest.mark.parametrize(
    ("changes", "settings", "verdict", "words"),
    [
        ({}, {"tokens": 20_000}, "rejected", "20,000 tokens are no small batch"),
        ({"power_mw": 400_000}, {}, "rejected", "draw power"),
        ({"util_gpu": 40}, {}, "not_enough_evidence", "do not tell"),
        ({"sm_active_pct": 80}, {}, "not_enough_evidence", "do not tell"),
        ({}, {"pack_s": 0.4}, "rejected", "targets work only"),
        ({}, {"windows": 6}, "not_enough_evidence", "at least 10"),
    ],
)
def test_anything_else_is_not(
    tmp_path: Path, changes: dict[str, Any], settings: dict[str, Any], verdict: str, words: str
) -> None:
    finding = finding_of(told(tmp_path, changes, **settings))
    assert finding.verdict == verdict
    assert words in finding.summary
    assert finding.remedy is None


def test_logical_devices_say_nothing_of_power(tmp_path: Path) -> None:
    finding = finding_of(diagnose(Timeline.of(Run.open(play(tmp_path / "run")))))
    assert finding.summary == "Not judged: logical devices draw no power."


def test_a_cause_with_a_price_comes_first(tmp_path: Path) -> None:
    diagnosis = told(tmp_path, preset="host", depth=2, target_copy_s=0.03)
    named = [finding.cause for finding in diagnosis.findings if finding.supported]
    assert named == ["sync-d2h-on-critical-path", cause]


def batches_taking(fixed_s: float, s_per_token: float, *, spread: float) -> Timeline:
    random = np.random.default_rng(3)
    tokens = np.round(1000 * (1 + spread * random.standard_normal(40)))
    seconds = (fixed_s + s_per_token * tokens) * (1 + 0.01 * random.standard_normal(40))
    batches = pd.DataFrame({"stage": "target", "tokens": tokens, "seconds": seconds})
    return cast(Timeline, SimpleNamespace(batches=batches))


always_at_work = cast(StageLoad, SimpleNamespace(stage="target", busy=0.97, gil_wait=0.0))


@pytest.mark.parametrize(
    ("fixed_s", "s_per_token", "spread", "found"),
    [
        (0.08, 0.00002, 0.15, True),
        (0.02, 0.00008, 0.15, False),
        (0.0, 0.0001, 0.15, False),
        (0.08, 0.00002, 0.01, False),
    ],
    ids=["mostly fixed", "a fifth", "all by tokens", "batches too alike to tell"],
)
def test_time_that_no_token_explains_is_told_where_batches_differ(
    fixed_s: float, s_per_token: float, spread: float, found: bool
) -> None:
    share = fixed_share(batches_taking(fixed_s, s_per_token, spread=spread), always_at_work)
    assert (share is not None) == found
    if share is not None:
        assert 0.4 <= share <= 0.8


def test_a_stage_that_waits_is_not_judged_by_its_batches() -> None:
    waiting = cast(StageLoad, SimpleNamespace(stage="target", busy=0.5, gil_wait=0.0))
    assert fixed_share(batches_taking(0.08, 0.00002, spread=0.15), waiting) is None


def test_a_drafter_is_not_judged_by_tokens_which_its_work_does_not_follow() -> None:
    drafter = cast(StageLoad, SimpleNamespace(stage="drafter", busy=0.97, gil_wait=0.0))
    timeline = batches_taking(0.08, 0.00002, spread=0.15)
    timeline.batches["stage"] = "drafter"
    assert fixed_share(timeline, drafter) is None
