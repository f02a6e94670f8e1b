"""A search in words: progress lines, the recommendation with its interval, and reasons when there is none."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from autotune.effort import Effort
from autotune.lessons.taught import learn
from autotune.machine import Machine
from autotune.result import StudyResult
from autotune.runner import Request
from autotune.search import SearchPlan, search
from autotune.space import Dimension, SearchSpace
from autotune.telemetry import Cause, Failed, FailureKind, Outcome, Telemetry
from cli.study_text import SearchTalk, summarise_study
from dflash.contract.config import TrainConfig, load_config
from tests.searched_study import InOrder

Judge = Callable[[TrainConfig], Outcome]


class JudgedRunner:
    """Runs nothing: a function says what each configuration would have shown."""

    def __init__(self, judge: Judge) -> None:
        self._judge = judge

    def run(self, request: Request) -> Outcome:
        request.run_path.mkdir(parents=True)
        return self._judge(request.config)


def measured(tokens_per_s: float, cause: str) -> Telemetry:
    return Telemetry(
        tokens_per_s=tokens_per_s,
        low=0.99 * tokens_per_s,
        high=1.01 * tokens_per_s,
        windows=20,
        steps=25,
        supervised_tokens=1000,
        losses=(5.0, 4.0, 3.0, 2.5, 2.2, 2.0),
        causes=(Cause(name=cause, summary="as seen", remedy={"transport.preset": "peer"}),),
    )


def peer_is_best(config: TrainConfig) -> Outcome:
    if config.pipeline.split != "1-1":
        return Failed(FailureKind.crash, "list[str] died [/red]")
    return (
        measured(2400.0, "target-bound") if config.transport.preset == "peer" else measured(1000.0, "copies")
    )


@pytest.fixture
def run_search(tmp_path: Path) -> Callable[[Judge], tuple[StudyResult, list[str]]]:
    def run(judge: Judge) -> tuple[StudyResult, list[str]]:
        machine = Machine(cpu="test", cpus=2, gpu_reason="none here")
        base = load_config(None, ["pipeline.split=1-1", "transport.preset=host"])
        dimensions = (
            Dimension("transport.preset", ("host", "peer")),
            Dimension("pipeline.split", ("1-1", "2-1")),
        )
        plan = SearchPlan(
            study_dir=tmp_path / "[2026] study",
            space=SearchSpace(dimensions, base, 3),
            machine=machine,
            effort=Effort(trials=6, repeats=1, seconds=1.0),
            searcher=InOrder(),
        )
        ticks = itertools.count(0.0, 10.0)
        lines: list[str] = []
        talk = SearchTalk(plan, lines.append, clock=lambda: next(ticks))
        return search(plan, JudgedRunner(judge), talk.tell), lines

    return run


def test_summary_names_the_best_with_interval_gain_and_reason(
    run_search: Callable[[Judge], tuple[StudyResult, list[str]]],
) -> None:
    result, _ = run_search(peer_is_best)
    text = summarise_study(result, learn(result), Path("where/report.html"))
    assert "transport.preset host → peer" in text
    assert "throughput  2.40 Ktok/s, 90 % interval 2." in text
    assert "2.40 times as fast as the starting configuration (90 % interval 2." in text
    assert "why         Changed: " in text
    assert f"dflash-train run '{result.best_toml}'" in text, "the path has a space"
    assert "where/report.html" in text
    assert "logical devices" in text
    assert "list[str] died [/red]" in text


def test_summary_says_equal_when_nothing_is_faster(
    run_search: Callable[[Judge], tuple[StudyResult, list[str]]],
) -> None:
    result, _ = run_search(lambda _: measured(1000.0, "target-bound"))
    assert result.verdict == "equal"
    text = summarise_study(result, learn(result), None)
    assert "the starting configuration\n" in text
    assert "equal within noise" in text
    assert "report" not in text


def test_summary_of_nothing_but_failures_lists_the_reasons(
    run_search: Callable[[Judge], tuple[StudyResult, list[str]]],
) -> None:
    result, lines = run_search(lambda _: Failed(FailureKind.crash, "killed by SIGSEGV"))
    text = summarise_study(result, learn(result), None)
    assert not text.startswith("best ")
    assert re.search(r"^gain +n/a: ", text, re.MULTILINE)
    assert re.search(r"^3 +.*killed by SIGSEGV", text, re.MULTILINE)
    assert sum("killed by SIGSEGV" in line for line in lines) == 3


def test_progress_tells_what_is_tried_and_what_came_of_it(
    run_search: Callable[[Judge], tuple[StudyResult, list[str]]],
) -> None:
    result, lines = run_search(peer_is_best)
    assert len(lines) == 2 * len(result.trials)
    assert lines[0] == "trial 0: the starting configuration"
    assert lines[1].startswith("trial 0: 1.00 Ktok/s (0.990 to 1.01 Ktok/s), limited by copies; took ")
    repeats = [line for line in lines if "(again " in line]
    assert len(repeats) == 2 * sum(trial.repeat_of is not None for trial in result.trials) > 0


def test_time_left_shrinks_to_nothing(
    run_search: Callable[[Judge], tuple[StudyResult, list[str]]],
) -> None:
    _, lines = run_search(peer_is_best)
    ended = [line for line in lines if " left" in line]
    assert "at most 0 s left" not in ended[0]
    assert ended[-1].endswith("left")
