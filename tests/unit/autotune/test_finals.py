"""The last comparison of a search, in fresh processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.effort import Effort
from autotune.free_space import FreeSpace
from autotune.history import History
from autotune.recommendation import recommend
from autotune.runner import Request, Runner
from autotune.searcher import Stop, Task
from autotune.study import Study
from autotune.telemetry import Failed, FailureKind, Outcome, Telemetry

space = FreeSpace({"size": [1, 2, 3, 4]}, {"size": 1})


class EachTwice:
    """Proposes every configuration twice, so that there is a noise."""

    def next(self, history: History) -> Task | Stop:
        asked = [trial.values["size"] for trial in history.trials]
        for size in (1, 2, 3, 4):
            if size not in asked:
                return Task(values={"size": size}, why="first")
        for size in (1, 2, 3, 4):
            if asked.count(size) < 2:
                return Task(values={"size": size}, why="again", repeat_of=size - 1)
        return Stop("all were tried")


@dataclass
class Machine(Runner):
    """Paces in a process that stays, and in a fresh one where that differs; a share up and down in turn."""

    paces: Mapping[int, float]
    fresh_paces: Mapping[int, float] = field(default_factory=dict)
    scatter: float = 0.004
    reuses: bool = True
    breaks: FailureKind | None = None  # of fresh runs of size 2
    fresh: list[int] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)

    def run(self, request: Request) -> Outcome:
        size = request.values["size"]
        self.seen.append(size)
        pace = self.paces[size]
        if request.fresh:
            self.fresh.append(size)
            if size == 2 and self.breaks is not None:
                return Failed(self.breaks, "it broke")
            pace = self.fresh_paces.get(size, pace)
        return Telemetry(tokens_per_s=pace * (1 + self.scatter * (-1) ** self.seen.count(size)))


def conclude(machine: Machine, repeats: int = 3) -> Study:
    study = Study(space, EachTwice(), machine, effort=Effort(trials=9, repeats=repeats))
    study.run()
    return study


def recommended(study: Study) -> int:
    found = study.recommendation
    assert found is not None
    return int(found.values["size"])


def test_a_clear_winner_and_the_start_run_fresh_once() -> None:
    machine = Machine({1: 100.0, 2: 300.0, 3: 200.0, 4: 150.0})
    study = conclude(machine)
    assert machine.fresh == [2, 1]
    assert recommended(study) == 2
    assert [trial.repeat_of for trial in study.trials if trial.fresh] == [1, 0]


def test_a_close_rival_runs_too_in_mirrored_order_until_called_equal() -> None:
    machine = Machine({1: 100.0, 2: 300.0, 3: 300.5, 4: 150.0}, scatter=0.002)
    study = conclude(machine, repeats=9)
    first = [recommended(study), 5 - recommended(study), 1]
    assert machine.fresh[:6] == [*first, *first[::-1]]
    assert len(machine.fresh) == 6  # two rounds say that the two are equal within the tolerance


def test_what_stays_open_ends_with_the_rounds_that_are_allowed() -> None:
    machine = Machine({1: 100.0, 2: 300.0, 3: 301.0, 4: 150.0}, scatter=0.05)
    conclude(machine, repeats=3)
    assert machine.fresh.count(1) == 3
    assert len(machine.fresh) <= 3 * 4


def test_who_is_surely_slower_in_fresh_processes_is_not_recommended() -> None:
    machine = Machine({1: 100.0, 2: 301.0, 3: 300.0, 4: 150.0}, fresh_paces={2: 240.0})
    study = conclude(machine)
    assert recommended(study) == 3


def test_who_breaks_in_a_fresh_process_is_not_recommended() -> None:
    machine = Machine({1: 100.0, 2: 300.0, 3: 200.0, 4: 150.0}, breaks=FailureKind.out_of_memory)
    study = conclude(machine)
    assert machine.fresh == [2, 3, 1]
    assert recommended(study) == 3


def test_a_fresh_process_that_was_too_short_is_held_against_nobody() -> None:
    machine = Machine({1: 100.0, 2: 300.0, 3: 200.0, 4: 150.0}, breaks=FailureKind.too_short)
    study = conclude(machine, repeats=2)
    assert recommended(study) == 2
    assert machine.fresh.count(2) == 2


def test_the_start_alone_is_compared_with_nobody() -> None:
    machine = Machine({1: 400.0, 2: 300.0, 3: 200.0, 4: 150.0})
    assert recommended(conclude(machine)) == 1
    assert machine.fresh == []


def test_runs_that_share_no_process_need_no_finals_nor_do_those_who_want_no_repeats() -> None:
    for machine, repeats in (
        (Machine({1: 1.0, 2: 3.0, 3: 2.0, 4: 1.5}, reuses=False), 2),
        (Machine({1: 1.0, 2: 3.0, 3: 2.0, 4: 1.5}), 0),
    ):
        conclude(machine, repeats)
        assert machine.fresh == []


def test_readings_of_the_finals_do_not_start_the_search_again() -> None:
    class Restless(EachTwice):
        def next(self, history: History) -> Task | Stop:
            if any(trial.fresh for trial in history.trials):
                return Task(values={"size": 3}, why="once more", repeat_of=2)
            return super().next(history)

    machine = Machine({1: 100.0, 2: 300.0, 3: 200.0, 4: 150.0})
    end = Study(space, Restless(), machine, effort=Effort(trials=9, repeats=3)).run()
    assert machine.fresh == [2, 1]
    assert [trial.values["size"] for trial in end.trials if trial.fresh] == [2, 1]
    assert machine.seen.count(3) == 2


def test_a_lead_that_keeps_changing_hands_comes_to_an_end() -> None:
    """Every process of its own is slower than the shared one, so whoever has had one seems to fall behind."""
    paces = {size: 300.0 + size for size in (1, 2, 3, 4)}
    machine = Machine(paces, fresh_paces={size: 0.9 * pace for size, pace in paces.items()})
    study = conclude(machine, repeats=2)
    assert len(set(machine.fresh)) <= 3  # the first recommended, its rival, the start
    assert recommended(study) in machine.fresh
    assert recommend(EachTwice(), study.history) is not None
