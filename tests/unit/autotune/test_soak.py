"""The last step before a configuration is recommended."""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.effort import Effort
from autotune.free_space import FreeSpace
from autotune.history import History
from autotune.runner import Request, Runner
from autotune.searcher import Stop, Task
from autotune.study import Study
from autotune.telemetry import Failed, FailureKind, MemoryFigures, Outcome, Telemetry

gigabyte = 1e9
paces = {1: 100.0, 2: 300.0, 3: 200.0}


class EachOnce:
    """Proposes every configuration once, then repeats the starting one: so that there is a noise."""

    def next(self, history: History) -> Task | Stop:
        done = {trial.values["size"] for trial in history.trials}
        for size in paces:
            if size not in done:
                return Task(values={"size": size}, why="each once")
        return Stop("all were tried")


@dataclass
class Machine(Runner):
    """Says how much memory each configuration takes when it is soaked; `breaks`: which runs out of it."""

    soaked_gb: dict[int, float]
    breaks: int | None = None
    soaks: bool = True
    soaked: list[int] = field(default_factory=list)

    def run(self, request: Request) -> Outcome:
        size = request.values["size"]
        if not request.soak:
            return Telemetry(tokens_per_s=paces[size])
        self.soaked.append(size)
        if size == self.breaks:
            return Failed(FailureKind.out_of_memory, "CUDA out of memory")
        peak = self.soaked_gb[size] * gigabyte
        memory = {"cuda:0": MemoryFigures(peak_bytes=peak, limit_bytes=80 * gigabyte)}
        return Telemetry(tokens_per_s=1.0, memory=memory)


def conclude(machine: Machine) -> Study:
    study = Study(FreeSpace({"size": list(paces)}, {"size": 1}), EachOnce(), machine, effort=Effort(trials=9))
    study.run()
    return study


def recommended(study: Study) -> int:
    found = study.recommendation
    assert found is not None
    return int(found.values["size"])


def test_the_fastest_is_soaked_once_and_recommended() -> None:
    machine = Machine({2: 70.0})
    study = conclude(machine)
    assert machine.soaked == [2]
    assert recommended(study) == 2


def test_who_takes_nearly_all_memory_gives_way_to_the_next() -> None:
    machine = Machine({2: 76.1, 3: 75.9})
    study = conclude(machine)
    assert machine.soaked == [2, 3]
    assert recommended(study) == 3
    (tight,) = [trial for trial in study.trials if trial.soak and trial.unhealthy]
    assert tight.unhealthy is not None
    assert "95.1% of that of cuda:0 (76.10 of 80.00 GB), over 95%" in tight.unhealthy


def test_who_runs_out_of_memory_gives_way_to_the_next() -> None:
    machine = Machine({2: 10.0, 3: 10.0}, breaks=2)
    assert recommended(conclude(machine)) == 3


def test_when_none_has_memory_to_spare_none_is_recommended() -> None:
    machine = Machine(dict.fromkeys(paces, 79.0))
    study = conclude(machine)
    assert sorted(machine.soaked) == [1, 2, 3]
    assert study.recommendation is None


def test_a_runner_that_cannot_soak_is_not_asked_to() -> None:
    machine = Machine({}, soaks=False)
    assert recommended(conclude(machine)) == 2
    assert machine.soaked == []


def test_what_is_not_known_is_no_obstacle() -> None:
    class Blind(Machine):
        def run(self, request: Request) -> Outcome:
            return Telemetry(tokens_per_s=paces[request.values["size"]])

    assert recommended(conclude(Blind({}))) == 2
