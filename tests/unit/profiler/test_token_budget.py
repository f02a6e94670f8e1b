"""Small batches on GPUs that look busy are named, and nothing else that draws little power is."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pandas as pd
import pytest

from dflash.contract.config import TrainConfig
from profiler.capacity import Loads, StageLoad
from profiler.diagnosis import diagnose
from profiler.finding import Diagnosis, Finding
from profiler.gil_waits import GilWaits, not_sampled, thread_columns
from profiler.gpus import gpu_columns
from profiler.rules.token_budget_too_small import FixedCost, cost, fixed_cost, larger_batches
from profiler.run import Run
from profiler.timeline import Timeline
from tests.gpu_readings import cases, listed, watch
from tests.played_pipeline import play

c057 = cases / "c057_util100_low_power.json"
token_budget = "token-budget-too-small"


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
    return next(finding for finding in diagnosis.findings if finding.cause == token_budget)


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
    assert named == ["sync-d2h-on-critical-path", token_budget]


def batches_taking(
    fixed_s: float, s_per_token: float, *, spread: float = 0.15, sampled: bool = True
) -> Timeline:
    """Forty batches of about 1,000 tokens of a target that always has a CPU."""
    random = np.random.default_rng(3)
    tokens = np.round(1000 * (1 + spread * random.standard_normal(40)))
    seconds = (fixed_s + s_per_token * tokens) * (1 + 0.01 * random.standard_normal(40))
    batches = pd.DataFrame({"stage": "target", "index": 0, "tokens": tokens, "seconds": seconds})
    gil = GilWaits(
        threads=pd.DataFrame([(7, "target-0", 0.0, 0.1, 0.0)], columns=thread_columns),
        reason=None if sampled else not_sampled,
    )
    threads = pd.DataFrame({"stage": ["target"], "tid": [7]})
    service = pd.DataFrame({"stage": ["target"], "clock": ["host"]})
    parts = {"batches": batches, "gil": gil, "threads": threads, "service": service}
    return cast(Timeline, SimpleNamespace(**parts, gpus=pd.DataFrame(columns=gpu_columns)))


def at_work(busy: float = 0.97, gil_wait: float = 0.0, stage: str = "target") -> StageLoad:
    load = SimpleNamespace(
        stage=stage, busy=busy, gil_wait=gil_wait, tokens_per_s=10_000.0, range_s=4.0, batches=40.0
    )
    return cast(StageLoad, load)


@pytest.mark.parametrize(
    ("fixed_s", "s_per_token", "own", "tokens"),
    [(0.08, 0.00002, 0.8, 36_000), (0.02, 0.00008, 0.2, 2_250), (0.0, 0.0001, 0.0, 0)],
    ids=["mostly fixed", "a fifth", "all by tokens"],
)
def test_time_that_no_token_explains_is_told_where_batches_differ(
    fixed_s: float, s_per_token: float, own: float, tokens: float
) -> None:
    fixed = fixed_cost(batches_taking(fixed_s, s_per_token), at_work())
    assert fixed is not None
    assert fixed.share == pytest.approx(own, abs=0.03)
    assert fixed.least < fixed.share + 1e-9
    assert fixed.tokens == pytest.approx(tokens, rel=0.2, abs=300)


def test_batches_too_alike_tell_nothing() -> None:
    assert fixed_cost(batches_taking(0.08, 0.00002, spread=0.01), at_work()) is None


@pytest.mark.parametrize(("fixed_s", "own"), [(0.03, 0.3), (0.0, 0.0)])
def test_a_slow_target_is_held_against_itself(fixed_s: float, own: float) -> None:
    timeline = batches_taking(fixed_s, 0.0001 - fixed_s / 1000)
    slow = timeline.batches.iloc[::2].assign(index=1, seconds=lambda batches: 3 * batches["seconds"])
    timeline.batches.update(slow)
    fixed = fixed_cost(timeline, at_work())
    assert fixed is not None
    assert fixed.share == pytest.approx(own, abs=0.04)
    assert (fixed.least >= 0.08) == (own > 0)


def test_what_a_stage_waits_for_the_gil_is_no_cost_of_its_batches() -> None:
    timeline = batches_taking(0.03, 0.00007)
    free, waiting = (fixed_cost(timeline, at_work(0.97 - part, part)) for part in (0.0, 0.3))
    assert free is not None
    assert waiting is not None
    assert free.share - waiting.share == pytest.approx(0.3, abs=0.03)
    assert waiting.least < 0.08


@pytest.mark.parametrize(
    ("fixed_s", "sampled", "named"), [(0.02, True, True), (0.02, False, False), (0.08, False, True)]
)
def test_without_waits_for_the_gil_only_most_of_the_time_is_named(
    fixed_s: float, sampled: bool, named: bool
) -> None:
    timeline = batches_taking(fixed_s, 0.0001 - fixed_s / 1000, sampled=sampled)
    loads = Loads(None, at_work(), at_work(0.4, stage="drafter"))
    assert (cost(timeline, loads) is not None) == named


@pytest.mark.parametrize(
    ("window", "budget", "wanted"),
    [(100_000, 1000, 50_000), (8_000, 1000, 8_000), (1_500, 1000, 1_500), (1_000, 1000, None)],
    ids=["what leaves a tenth", "a window's tokens", "no whole multiple", "no room"],
)
def test_the_budget_that_is_proposed_leaves_a_tenth_if_a_window_has_room(
    window: int, budget: int, wanted: int | None
) -> None:
    config = TrainConfig().replacing(
        {
            "window.tokens": window,
            "pipeline.token_budget": budget,
            "pipeline.split": "1-1",
            "data.max_length": 64,
        }
    )
    timeline = cast(Timeline, SimpleNamespace(config=config))
    knobs = larger_batches(timeline, 1000.0, FixedCost(share=0.8, least=0.7, tokens=36_000.0))
    assert knobs == ({} if wanted is None else {"pipeline.token_budget": wanted})


def test_a_stage_that_waits_is_not_judged_by_its_batches() -> None:
    assert fixed_cost(batches_taking(0.08, 0.00002), at_work(0.5)) is None


def test_a_drafter_is_not_judged_by_tokens_which_its_work_does_not_follow() -> None:
    timeline = batches_taking(0.08, 0.00002)
    timeline.batches["stage"] = "drafter"
    assert fixed_cost(timeline, at_work(stage="drafter")) is None
