"""A study as a search on four GPUs would leave it, with everything a report has to show. Nothing is run.

Speeds follow a small pipeline formula with 1 % noise. What is tried is written down here: some trials run out
of memory, hang, train something else or are stopped early; all but the first are predicted; those with
asynchronous copies leave played run directories.
"""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

from autotune.effort import Effort
from autotune.history import History
from autotune.machine import Gpu, Machine
from autotune.result import StudyResult
from autotune.runner import Request
from autotune.search import SearchPlan, search
from autotune.searcher import Stop, Task
from autotune.space import Dimension, SearchSpace
from autotune.telemetry import Cause, Failed, FailureKind, MemoryFigures, Outcome, Telemetry, Values
from autotune.trial import Prediction
from dflash.contract.config import load_config
from dflash.contract.rundir import RunDir
from tests.played_pipeline import play

hostile = "[/red]</script><script>alert(1)</script><img src=x onerror=alert(2)> a|b @you"
copies_s = {"host": 0.5, "shared": 0.2, "pinned": 0.05, "peer": 0.01}
data_tokens = 1_875_000_000
learned = tuple(8 - 0.1 * step for step in range(20))


def speed(values: Values) -> float:
    """Tokens per second, without noise."""
    targets, drafters = map(int, values["pipeline.split"].split("-"))
    budget = values["pipeline.token_budget"] / 1024
    forward = ((1 + 0.15 / budget) + copies_s[values["transport.preset"]]) / targets
    backward = 0.28 * (1 + 0.1 / budget) / drafters
    shallow = {1: 1.08, 2: 1.02, 4: 1.015}[values["transport.depth"]]
    return 5200 / ((forward**6 + backward**6) ** (1 / 6) * shallow)


class PlayedTrials:
    """A runner that makes up what each configuration would show."""

    def __init__(self) -> None:
        self._random = random.Random(1)

    def run(self, request: Request) -> Outcome:
        values = request.values
        memory = {"cuda:0": MemoryFigures(peak_bytes=_peak_bytes(values), limit_bytes=96e9)}
        if _peak_bytes(values) > 90e9:
            reason = f"CUDA out of memory. Tried to allocate 2.5 GiB {hostile}"
            return Failed(FailureKind.out_of_memory, reason, memory)
        if values["pipeline.split"] == "1-2":
            return Failed(FailureKind.hang, "no window ended for 60 s")
        rate = speed(values) * math.exp(self._random.gauss(0, 0.01))
        if values["transport.preset"] in ("pinned", "peer"):
            targets, drafters = map(int, values["pipeline.split"].split("-"))
            run = play(request.run_path, targets=targets, drafters=drafters, windows=15)
            RunDir(run).update(memory_plan={"facts": {"data_tokens": data_tokens}})
        copies = Cause(name="sync-d2h-on-critical-path", summary="targets copy", remedy={})
        return Telemetry(
            tokens_per_s=rate,
            low=rate * 0.985,
            high=rate * 1.015,
            windows=40,
            steps=45,
            supervised_tokens=10_000,
            losses=learned if values["transport.preset"] != "shared" else (9.0,) * 20,
            memory=memory,
            energy_j_per_token=0.15 * (15_000 / rate) ** 0.4,
            causes=(copies,) if values["transport.preset"] == "host" else (),
            stopped_early="12 % below trial 0 at best" if rate < 6000 and request.number else None,
        )


def _peak_bytes(values: Values) -> float:
    return 20e9 + 28e9 * values["pipeline.token_budget"] / 1024 + 4e9 * values["transport.depth"]


script: tuple[dict[str, Any], ...] = (
    {},
    {"transport.preset": "peer"},
    {"transport.preset": "peer", "pipeline.split": "3-1"},
    {"transport.preset": "peer", "pipeline.split": "3-1", "pipeline.token_budget": 2048},
    {"transport.preset": "peer", "pipeline.token_budget": 2048, "transport.depth": 4},
    {"transport.preset": "shared"},
    {"pipeline.split": "1-2"},
    {"transport.preset": "pinned", "pipeline.split": "3-1", "pipeline.token_budget": 2048},
    {"transport.preset": "pinned", "pipeline.token_budget": 2048, "transport.depth": 4},
    {"pipeline.split": "2-1", "pipeline.token_budget": 512},
    {"transport.preset": "host", "pipeline.split": "3-1", "pipeline.token_budget": 2048},
    {
        "transport.preset": "peer",
        "pipeline.split": "3-1",
        "pipeline.token_budget": 2048,
        "transport.depth": 1,
    },
)
again = (0, 3, 7, 7, 3, 0)  # trials that are run again at the end


class Scripted:
    """Proposes the script. Expectations are 4 % off, now up, now down; a chance is told at the end."""

    def next(self, history: History) -> Task | Stop:
        number = len(history.trials)
        if number >= len(script) + len(again):
            return Stop("the script is at its end", gap_probability=0.07)
        repeat_of = again[number - len(script)] if number >= len(script) else None
        values = {**history.space.baseline, **script[number if repeat_of is None else repeat_of]}
        rate = speed(values) * (1.04 if number % 2 else 0.96)
        told = Prediction(tokens_per_s=rate, low=0.92 * rate, high=1.09 * rate, fits=0.9)
        why = "the starting configuration" if number == 0 else "as written"
        return Task(values=values, why=why, repeat_of=repeat_of, predicted=told if number else None)


class InOrder:
    """Proposes every configuration of the space in its order, then those that went well once again."""

    def next(self, history: History) -> Task | Stop:
        number, every = len(history.trials), history.space.configurations
        if number < len(every):
            is_start = every[number] == history.space.baseline
            return Task(
                values=every[number], why="the starting configuration" if is_start else "the next one"
            )
        well = [trial for trial in history.trials[: len(every)] if trial.is_candidate]
        if number - len(every) < len(well):
            first = well[number - len(every)]
            return Task(values=first.values, why="once more", repeat_of=first.number)
        return Stop("all were tried twice")


def search_played(path: Path) -> StudyResult:
    """The study at `path` after a search over it."""
    base = load_config(
        None,
        [
            "data.max_length=256",
            "window.tokens=8192",
            "pipeline.split=2-2",
            "pipeline.token_budget=1024",
            "transport.preset=host",
            "transport.depth=2",
            "run.epochs=6",
            "devices.memory_plan=warn",
        ],
    )
    dimensions = (
        Dimension("pipeline.split", ("1-2", "2-1", "2-2", "3-1")),
        Dimension("pipeline.token_budget", (512, 1024, 2048)),
        Dimension("transport.preset", ("host", "shared", "pinned", "peer")),
        Dimension("transport.depth", (1, 2, 4)),
    )
    machine = Machine(
        cpu="a CPU <b>",
        cpus=64,
        gpus=tuple(Gpu("NVIDIA RTX PRO 6000", f"GPU-{i}", 96 << 30) for i in range(4)),
    )
    plan = SearchPlan(
        study_dir=path,
        space=SearchSpace(dimensions, base, 4),
        machine=machine,
        effort=Effort(trials=len(script), repeats=2),
        searcher=Scripted(),
    )
    return search(plan, PlayedTrials(), lambda event: None)
