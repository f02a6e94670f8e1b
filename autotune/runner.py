"""How a trial is run: the trainer as a child of the recorder, then measured and diagnosed.

`Runner` is the seam between a search and the machine: tests put a function there. Knows nothing of
which configuration comes next.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from autotune.gpus import GpuWatch
from autotune.measurement import classify_failure, failed_memory, measure_run, measure_soak
from autotune.run_watch import record_watched, start_limit_s, stop_signals
from autotune.telemetry import Failed, FailureKind, Outcome, Values
from dflash.contract.config import TrainConfig
from dflash.contract.rundir import python_command, write_text

if TYPE_CHECKING:
    from profiler.recorder import Recording, RecordOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One run that is asked for."""

    values: Values  # of the searched knobs
    config: TrainConfig | None  # in full, with a trial's length; None: there is none behind the space
    seconds: float  # of training
    run_path: Path  # absolute, not there yet: for the run directory, where one is made
    number: int  # of the trial
    fresh: bool = False  # in a new process, nothing reused
    soak: bool = False  # over the worst mix of lengths, to see the memory's peak
    # Interleaved with this configuration, where the runner can; others ignore it.
    beside: Values | None = None
    incumbent_low: float | None = None  # tokens/s that the fastest surely has: far below that is hopeless


@runtime_checkable
class Runner(Protocol):
    """Runs configurations, one at a time."""

    def run(self, request: Request) -> Outcome:
        """Make one run.

        A runner that honours `soak` says so by an attribute `soaks = True`; one whose runs share processes,
        but for those that are to be `fresh`, by `reuses = True`.
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

    `trainer` starts a command line that ends in `run CONFIG_TOML`; `gpus` watches over GPUs, where there are
    any.
    """

    soaks = True

    def __init__(self, trainer: Sequence[str] | None = None, gpus: GpuWatch | None = None) -> None:
        self._trainer = list(trainer or python_command())
        self.gpus = gpus

    def run(self, request: Request) -> Outcome:
        """Record the trainer on the request's configuration."""
        config, run_path = request.config, request.run_path
        if config is None:
            return Failed(FailureKind.refused, "there is no training configuration behind this space")
        command = [*self._trainer, "run", str(write_config(config, run_path))]
        command += ["--worst-case"] if request.soak else []
        options = how_to_record(config, run_path)
        return conclude(record_watched(command, run_path, options, gpus=self.gpus), soak=request.soak)

    def prepare(self) -> None:
        """Wait until the GPUs' memory is what it was before the first trial."""
        if self.gpus is not None:
            self.gpus.settle()


def write_config(config: TrainConfig, run_path: Path) -> Path:
    """Keep the configuration of a run beside its run directory; neither that nor its parent need be there."""
    path = run_path.with_name("config.toml" if run_path.name == "run" else f"{run_path.name}.toml")
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, config.to_toml())
    return path


def how_to_record(config: TrainConfig, run_path: Path) -> RecordOptions:
    """How a trial is watched."""
    from profiler.recorder import RecordOptions

    return RecordOptions(
        gil=False,  # it stops the trainer's threads to look at them, which a measurement should not
        log=run_path / "trainer.log",
        # A window may end long after the time is up; a trial that needs thrice the time hangs.
        time_limit_s=start_limit_s + 3 * config.run.max_seconds,
    )


def conclude(recording: Recording, *, soak: bool = False) -> Outcome:
    """What a recorded trial came to. Raises KeyboardInterrupt when the user stopped it."""
    if recording.exit_code in {128 + number for number in stop_signals}:
        raise KeyboardInterrupt(recording.reason)
    run_path = recording.run.path
    if recording.exit_code != 0 or recording.status == "failed":
        reason = recording.reason or f"ended with exit code {recording.exit_code}"
        kind = classify_failure(recording.exit_code, reason)
        return Failed(kind, reason, failed_memory(run_path))
    return measure_soak(run_path) if soak else measure_run(run_path)
