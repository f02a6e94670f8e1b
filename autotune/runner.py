"""How a trial is run: the trainer as a child of the recorder, then measured and diagnosed.

`Runner` is the seam between a search and the machine: tests put a function there. Knows nothing of
which configuration comes next.
"""

from __future__ import annotations

import signal
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, runtime_checkable

from autotune.measurement import classify_failure, measure_run
from autotune.telemetry import Failed, FailureKind, Outcome, Values
from dflash.contract.config import TrainConfig
from dflash.contract.rundir import python_command, write_text

start_limit_s = 600.0  # for loading and compiling, before the training time counts
stop_signals = (signal.SIGHUP, signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One run that is asked for."""

    values: Values  # of the searched knobs
    config: (
        TrainConfig | None
    )  # in full, with the length of a trial; None where there is none behind the space
    seconds: float  # of training
    run_path: Path  # absolute, not there yet: for the run directory, where one is made
    number: int  # of the trial
    fresh: bool = False  # in a new process, nothing reused
    soak: bool = False  # over the worst mix of lengths, to see the memory's peak
    beside: Values | None = (
        None  # interleaved with this configuration, where the runner can; others ignore it
    )
    incumbent_low: float | None = (
        None  # tokens/s that the fastest so far surely has: far below that is hopeless
    )


@runtime_checkable
class Runner(Protocol):
    """Runs configurations, one at a time."""

    def run(self, request: Request) -> Outcome:
        """Make one run.

        A failure of the trial is an outcome, not an exception. When the user stops it, the run is ended
        before KeyboardInterrupt is raised. When it returns, nothing of the trial is at work any more.
        """
        ...


@runtime_checkable
class Preparing(Protocol):
    """A runner that has something to wait for before a trial begins."""

    def prepare(self) -> None:
        """Return when the machine is ready. Raises DFlashError, and no trial is made, when it will not be."""
        ...


class RecordedRunner(Runner):
    """Every trial in a fresh process under the recorder, so that no failure reaches the next trial.

    `trainer` starts a command line that ends in `run CONFIG_TOML`.
    """

    def __init__(self, trainer: Sequence[str] | None = None) -> None:
        self._trainer = list(trainer or python_command())

    def run(self, request: Request) -> Outcome:
        """Record the trainer on the request's configuration."""
        from profiler.recorder import RecordOptions, record

        config, run_path = request.config, request.run_path
        if config is None:
            return Failed(FailureKind.refused, "there is no training configuration behind this space")
        config_path = run_path.with_name("config.toml")
        write_text(config_path, config.to_toml())
        options = RecordOptions(
            gil=False,  # it stops the trainer's threads to look at them, which a measurement should not
            log=run_path / "trainer.log",
            # A window may end long after the time is up; a trial that needs thrice the time hangs.
            time_limit_s=start_limit_s + 3 * config.run.max_seconds,
        )
        recording = record([*self._trainer, "run", str(config_path)], run_path, options)
        if recording.exit_code in {128 + number for number in stop_signals}:
            raise KeyboardInterrupt(recording.reason)
        if recording.exit_code != 0 or recording.status == "failed":
            reason = recording.reason or f"ended with exit code {recording.exit_code}"
            return Failed(classify_failure(recording.exit_code, reason), reason)
        return measure_run(run_path)
