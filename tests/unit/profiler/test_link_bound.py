"""Links that carry less than the stages make are named; one slow link among others is not this cause."""

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

cause = "link-bound"


def copied(path: Path, copies_s: list[float], work_s: float, *, settings: tuple[str, ...] = ()) -> Diagnosis:
    """Targets that send to one drafter each; round by round the longest copy or work sets the pace.

    `copies_s`: of each target's batch, over a link of its own; `work_s`: of a forward, and of a step. What
    its own copy does not take of a round, a stage waits for the others.
    """
    count = len(copies_s)
    split = [f"pipeline.split={count}-{count}", f"window.tokens={2048 * count}"]
    builder = RunBuilder(path, load_config(None, [*split, "transport=peer", *settings]))
    round_s = max(*copies_s, work_s)
    for batch in range(40):
        start, end = batch * round_s, (batch + 1) * round_s
        for index, copy_s in enumerate(copies_s):
            facts: dict[str, Any] = {"batch": count * batch + index, "tokens": 20_000}
            ends = {"src": f"logical:target{index}", "dst": f"logical:drafter{index}"}
            sent = {**facts, **ends, "path": "peer", "bytes": 10**9, "tid": 900 + index}
            builder.span("link", index, "copy", start, start + copy_s, **sent)
            builder.span("target", index, "forward", start, start + work_s, **facts)
            builder.span("drafter", index, "backward", start, start + work_s, **facts)
            arrived = start + max(copy_s, work_s)
            for stage, wait in (("target", "window_turn"), ("drafter", "window_wait")):
                if copy_s > work_s:
                    builder.span(stage, index, "copy_wait", start + work_s, arrived, batch=facts["batch"])
                if arrived < end:
                    builder.span(stage, index, wait, arrived, end)
        builder.window(batch, end, 20_000 * count)
    return diagnose(Timeline.of(Run.open(builder.finish())))


def finding_of(diagnosis: Diagnosis) -> Finding:
    return next(finding for finding in diagnosis.findings if finding.cause == cause)


@pytest.mark.parametrize(("work_s", "lost"), [(0.2, 0.8), (0.7, 0.3)])
def test_slow_links_are_named_with_their_cost(tmp_path: Path, work_s: float, lost: float) -> None:
    diagnosis = copied(tmp_path / "r", [1.0, 1.0], work_s)
    found = diagnosis.findings[0]
    assert (found.cause, found.verdict) == (cause, "supported")
    assert found.measured_cost_share == pytest.approx(lost, abs=0.01)
    assert "for the copy of the next batch" in diagnosis.why
    assert found.remedy is not None
    assert found.remedy.knobs == {"transport.preset": "auto"}


def test_where_the_way_was_chosen_for_each_pair_already_there_are_words_only(tmp_path: Path) -> None:
    found = copied(tmp_path / "r", [1.0, 1.0], 0.2, settings=("transport=auto",)).findings[0]
    assert found.cause == cause
    assert found.remedy is not None
    assert found.remedy.knobs == {}


def test_copies_that_end_within_the_work_are_none(tmp_path: Path) -> None:
    diagnosis = copied(tmp_path / "r", [0.9, 0.9], 1.0)
    assert diagnosis.findings[0].cause == "target-bound-healthy"
    assert finding_of(diagnosis).verdict == "rejected"


def test_one_slow_link_among_equals_is_a_cause_of_its_own(tmp_path: Path) -> None:
    diagnosis = copied(tmp_path / "r", [1.0, 0.3], 0.3)
    assert diagnosis.findings[0].cause == "straggling-link"
    assert finding_of(diagnosis).verdict == "rejected"
