"""A small space, hand-made trials, and a runner whose throughput is a function of the configuration."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from autotune.effort import Effort
from autotune.machine import Gpu, Machine
from autotune.runner import Request
from autotune.search import SearchPlan, search
from autotune.space import Dimension, SearchSpace
from autotune.study import ProgressEvent
from autotune.telemetry import Failed, FailureKind, Outcome, Telemetry
from autotune.trial import Trial, TrialState
from benchmarks.in_order import InOrder
from dflash.contract.config import TrainConfig, load_config

base_knobs = (
    "data.max_length=256",
    "window.tokens=4096",
    "pipeline.split=1-1",
    "pipeline.token_budget=1024",
    "transport.preset=host",
    "transport.depth=2",
)
falling = tuple(8.0 - 0.1 * step for step in range(20))


def make_base(*assignments: str) -> TrainConfig:
    """A configuration that does not move with the embedded default."""
    return load_config(None, [*base_knobs, *assignments])


def make_space(**choices: tuple[Any, ...]) -> SearchSpace:
    """The base configuration over split × budget × preset, 3 × 3 × 4, of which some cannot run."""
    paths = {
        "pipeline.split": ("1-1", "2-1", "1-2"),
        "pipeline.token_budget": (1024, 2048, 4096),
        "transport.preset": ("host", "shared", "pinned", "peer"),
    }
    paths |= {name.replace("__", "."): value for name, value in choices.items()}
    dimensions = tuple(Dimension(path, values) for path, values in paths.items() if values)
    return SearchSpace(dimensions, make_base(), 3)


def make_measurement(tokens_per_s: float, **changes: Any) -> Telemetry:
    fields: dict[str, Any] = {
        "tokens_per_s": tokens_per_s,
        "low": tokens_per_s * 0.98,
        "high": tokens_per_s * 1.02,
        "windows": 20,
        "steps": 20,
        "supervised_tokens": 1000,
        "losses": falling,
    }
    return Telemetry(**{**fields, **changes})


def make_trial(
    number: int, values: Mapping[str, Any], tokens_per_s: float | None = None, **changes: Any
) -> Trial:
    """A finished trial with `tokens_per_s`, or (without) one that failed by running out of memory."""
    fields: dict[str, Any] = {
        "number": number,
        "values": values,
        "why": "a test",
        "run_path": f"trials/{number:03d}/run",
        "seconds": 12.0,
        "started_utc": "2026-01-01T00:00:00Z",
        "state": TrialState.failed if tokens_per_s is None else TrialState.finished,
        "failure": FailureKind.out_of_memory if tokens_per_s is None else None,
        "reason": "CUDA out of memory" if tokens_per_s is None else None,
        "measurement": None if tokens_per_s is None else make_measurement(tokens_per_s),
    }
    return Trial(**{**fields, **changes})


class FakeRunner:
    """Runs nothing. Throughput and failures are functions of the configuration, noise is seeded."""

    def __init__(
        self, speed: Callable[[TrainConfig], float | Outcome | BaseException], noise: float = 0.0
    ) -> None:
        self.speed, self.noise = speed, noise
        self.ran: list[TrainConfig] = []
        self._random = random.Random(0)

    def run(self, request: Request) -> Outcome:
        config = request.config
        assert request.run_path.is_absolute()
        assert not request.run_path.exists()
        self.ran.append(config)
        outcome = self.speed(config)
        if isinstance(outcome, BaseException):
            raise outcome
        if isinstance(outcome, Telemetry | Failed):
            return outcome
        return make_measurement(outcome * (1 + self.noise * self._random.gauss(0, 1)))


@pytest.fixture
def base_of() -> Callable[..., TrainConfig]:
    return make_base


@pytest.fixture
def space_of() -> Callable[..., SearchSpace]:
    return make_space


@pytest.fixture
def space() -> SearchSpace:
    return make_space()


@pytest.fixture
def trial_of() -> Callable[..., Trial]:
    return make_trial


@pytest.fixture
def measurement_of() -> Callable[..., Telemetry]:
    return make_measurement


@pytest.fixture
def runner_of() -> Callable[..., FakeRunner]:
    return FakeRunner


@pytest.fixture
def machine() -> Machine:
    return Machine(cpu="a cpu", cpus=2, gpu_reason="none here")


@pytest.fixture
def gpu_machine() -> Callable[[int], Machine]:
    return lambda count: Machine(
        cpu="a cpu", cpus=64, gpus=tuple(Gpu("NVIDIA H200", f"GPU-{i}aaa", 140 << 30) for i in range(count))
    )


@pytest.fixture
def searched(tmp_path: Path, space: SearchSpace, machine: Machine) -> Callable[..., Any]:
    """Search in `tmp_path/study`; returns (result, events). Effort and space may be given."""

    def run(
        runner: FakeRunner, *, space: SearchSpace = space, machine: Machine = machine, **effort: Any
    ) -> Any:
        events: list[ProgressEvent] = []
        plan = SearchPlan(
            study_dir=tmp_path / "study",
            space=space,
            machine=machine,
            effort=Effort(**effort),
            searcher=InOrder(),  # whose runs are known beforehand: these tests are about what is around
        )
        return search(plan, runner, events.append), events

    return run
