"""What a run costs, and how that weighs on the choice among proposals that are nearly as good."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from autotune.effort import Effort
from autotune.free_space import FreeSpace
from autotune.guided.economy import Economy
from autotune.guided.searcher import GuidedSearcher
from autotune.guided.table import Table
from autotune.runner import Request
from autotune.study import Study
from autotune.telemetry import Beside, FailureKind, Telemetry
from autotune.trial import Trial, TrialState

space = FreeSpace({"pipeline.split": ("1-1", "2-1"), "pipeline.token_budget": (1024, 2048)})
table = Table.of(space)
here = {"pipeline.split": "1-1", "pipeline.token_budget": 1024}
there = {**here, "pipeline.split": "2-1"}


def trial(values: Any, spent_s: float, **changes: Any) -> Trial:
    facts = {"number": 0, "why": "", "run_path": "", "started_utc": "", "seconds": 12.0, **changes}
    told = facts.pop("measurement", Telemetry(tokens_per_s=100.0))
    state = TrialState.finished if told else TrialState.failed
    return Trial(values=values, spent_s=spent_s, measurement=told, state=state, **facts)


def test_what_a_start_adds_is_told_from_what_every_run_takes() -> None:
    trials = [
        trial(here, 72.0),
        trial(here, 15.0),
        trial(there, 62.0),
        trial(there, 14.0),
        trial(there, 16.0),
    ]
    found = Economy.of(table, trials)
    assert found.run_s == pytest.approx(12.0 + 3.0)
    assert found.start_s == pytest.approx(55.0 - 3.0)
    assert [table.configurations[row]["pipeline.split"] for row in np.flatnonzero(found.loaded)] == [
        "2-1"
    ] * 2


def test_pairs_pay_until_they_are_seen_to_take_too_long() -> None:
    pair = Telemetry(tokens_per_s=100.0, beside=Beside(values=there, log_ratio=0.0, deviation=0.01))
    runs = [trial(here, 70.0), trial(here, 14.0)]
    assert Economy.of(table, runs).pairs_pay
    assert Economy.of(table, [*runs, trial(here, 40.0, measurement=pair)]).pairs_pay
    assert not Economy.of(table, [*runs, trial(here, 44.0, measurement=pair)]).pairs_pay
    assert Economy.of(table, [*runs, trial(there, 99.0, measurement=pair)]).pairs_pay  # with a start


@pytest.mark.parametrize(
    ("last", "stays"),
    [
        ({}, True),
        ({"fresh": True}, False),
        ({"measurement": None, "failure": FailureKind.out_of_memory}, False),
        ({"measurement": None, "failure": FailureKind.refused}, True),
    ],
)
def test_after_a_failure_or_a_fresh_process_nothing_is_loaded(last: Any, stays: bool) -> None:
    found = Economy.of(table, [trial(here, 70.0), trial(here, 15.0, **last)])
    assert found.loaded.any() == stays


def test_the_price_decides_only_among_those_that_are_nearly_as_good() -> None:
    near, far = table.row(here), table.row(there)
    assert near is not None
    assert far is not None
    found = Economy.of(table, [trial(here, 72.0), trial(here, 15.0)])
    worth = np.zeros(len(table))
    worth[near], worth[far] = 0.6, 1.0
    assert found.choose(worth) == near
    worth[near] = 0.4
    assert found.choose(worth) == far


def test_where_no_start_takes_time_the_best_is_chosen() -> None:
    worth = np.array([0.9, 0.2, 1.0, 0.1])
    assert Economy.of(table, []).choose(worth) == 2
    assert Economy.of(table, [trial(here, 0.0), trial(there, 0.0)]).choose(worth) == 2


def test_a_search_changes_splits_less_often_where_starts_are_dear(
    box: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    def starts(seed: int, start_s: float) -> int:
        machine, now, loaded, count = box(seed), [0.0], [""], [0]

        def run(request: Request) -> Any:
            split = request.values["pipeline.split"]
            cold = split != loaded[0]
            now[0] += request.seconds + 2.0 + start_s * cold
            count[0] += cold
            outcome = machine.run(request)
            loaded[0] = split if isinstance(outcome, Telemetry) else ""
            return outcome

        monkeypatch.setattr("autotune.study.monotonic", lambda: now[0])
        search = Study(machine.space, GuidedSearcher(), run, effort=Effort(trials=14))
        for _ in range(14):
            search.step()
        return count[0]

    assert sum(starts(seed, 60.0) for seed in range(3)) < sum(starts(seed, 0.0) for seed in range(3))
