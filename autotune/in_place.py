"""Trials in one process that stays: it loads once, and every trial only sets how the work is done.

A trial in place begins as a fresh one does, with the first weights and a new optimizer, and leaves a run
directory of its own. The process is renewed where that can no longer be trusted, each time for a stated
reason. Knows nothing of which configuration comes next.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, TYPE_CHECKING, Self

from autotune import interleaving
from autotune.early_stop import HopelessRun
from autotune.gpus import GpuWatch
from autotune.interleaving import Segment
from autotune.measurement import measure_segment
from autotune.run_watch import record_watched
from autotune.runner import RecordedRunner, Request, Runner, conclude, how_to_record, write_config
from autotune.telemetry import Beside, Failed, FailureKind, Outcome, Telemetry, Values
from autotune.worker import Order, TrialInWorker, WindowEnds, Worker
from dflash.contract.config import TrainConfig
from dflash.contract.errors import DFlashError
from dflash.contract.held_knobs import held_values, name_changes
from dflash.contract.rundir import python_command, write_json

if TYPE_CHECKING:
    from profiler.recorder import Recording

canary_every = 12  # trials in one process
drift_limit = 0.02  # of a place's memory, and of the canary's pace
sure = 2.0  # standard errors by which a canary must have moved
refused_code = 2  # nothing was touched
least_segment_windows = 16
Notice = Callable[[str], None]
OnWindows = Callable[[WindowEnds], str | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Canary:
    """The first trial of a process that went well, and what it came to."""

    config: TrainConfig
    segment: Segment


@dataclass(slots=True)
class _Tenure:
    """One process and what is known of it."""

    worker: Worker
    held: Mapping[str, object]
    runs: int = 0
    since_canary: int = 0
    canary: _Canary | None = None
    first_memory: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    def why_renew(self, config: TrainConfig) -> str | None:
        """Why `config` must not run in this process; None: it may."""
        if self.worker.doubt is not None:
            return self.worker.doubt
        if not self.worker.is_alive:
            return "it ended between trials"
        changes = name_changes(self.held, held_values(config))
        if changes:
            return f"other things are to be loaded: {changes}"
        for place, first in self.first_memory.items():
            now = self.worker.memory.get(place, first)
            drift = (now["used_bytes"] - first["used_bytes"]) / now["limit_bytes"]
            if drift > drift_limit:
                return f"it holds {drift:.1%} more of the memory of {place} than after its first trial"
        return None


class InPlaceRunner(Runner):
    """See the module. Use it as a context manager, or call `close`: else the process lives as long as ours.

    `trainer` starts a command line that ends in `serve …` or `run …`; `gpus` watches over GPUs, and waits for
    their memory before a process is started; `notice` is told why a process is
    renewed. `canary_every`: trials in a process between looks at whether it is still as fast as it was.
    """

    soaks = reuses = True

    def __init__(
        self,
        trainer: Sequence[str] | None = None,
        *,
        gpus: GpuWatch | None = None,
        notice: Notice = lambda text: None,
        canary_every: int = canary_every,
    ) -> None:
        self._trainer = list(trainer or python_command())
        self._fresh = RecordedRunner(self._trainer, gpus)
        self.gpus, self._notice, self._canary_every = gpus, notice, canary_every
        self._tenure: _Tenure | None = None
        self._window_s: float | None = None  # of the last trial
        self.renewals: list[str] = []  # why processes were ended, in order

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """End the process, if there is one."""
        if self._tenure is not None:
            self._tenure.worker.close()
            self._tenure = None

    def run(self, request: Request) -> Outcome:
        """Make one run, in place unless a fresh process is asked for."""
        config = request.config
        if config is None:
            return Failed(FailureKind.refused, "there is no training configuration behind this space")
        if request.fresh:
            self._renew("a fresh process was asked for")
            self._fresh.prepare()
            return self._fresh.run(request)
        try:
            self._look_after(config, request)
            theirs = None if request.soak else _configure_beside(config, request.beside)
            if theirs is not None and request.beside is not None:
                return self._interleave(request, config, theirs, request.beside)
            return self._run_alone(request, config)
        except BaseException:  # also an interrupt: what is left half done must not run on
            self.close()
            raise

    def prepare(self) -> None:
        """Wait until the GPUs' memory is what it was before the first process, unless one holds it now."""
        if self.gpus is not None and self._tenure is None:
            self.gpus.settle()

    def _run_alone(self, request: Request, config: TrainConfig) -> Outcome:
        hopeless = HopelessRun(0.0 if request.soak else request.incumbent_low or 0.0)
        recording, stopped = self._record(config, request.run_path, hopeless.add, worst_case=request.soak)
        outcome = conclude(recording, soak=request.soak)
        if stopped is not None and hopeless.seen is not None and recording.exit_code == 0:
            return _cut_short(outcome, hopeless.seen, stopped)
        if isinstance(outcome, Telemetry):
            self._remember(outcome, config, soak=request.soak)
        return outcome

    def _interleave(
        self, request: Request, config: TrainConfig, theirs: TrainConfig, values: Values
    ) -> Outcome:
        """A B B A; ours is the first B, whose run directory is the trial's."""
        path = request.run_path
        paths = (path.with_name("beside-1"), path, path.with_name("again"), path.with_name("beside-2"))
        seconds = max(request.seconds / 2, least_segment_windows * (self._window_s or 0.0))
        hopeless = HopelessRun(request.incumbent_low or 0.0)
        ours: list[Segment] = []
        segments: list[Segment | None] = []
        outcome: Outcome | None = None
        for who, place in zip(interleaving.order, paths, strict=True):
            chosen = (config if who == "ours" else theirs).replacing({"run.max_seconds": seconds})
            first = who == "ours" and outcome is None
            recording, stopped = self._record(chosen, place, hopeless.add if first else _go_on)
            if first:
                outcome = conclude(recording)
                if stopped is not None and hopeless.seen is not None and recording.exit_code == 0:
                    return _cut_short(outcome, hopeless.seen, stopped)
                if isinstance(outcome, Failed):
                    return outcome
            elif recording.exit_code != 0:
                conclude(recording)  # passes an interrupt on
            segment = measure_segment(place) if recording.exit_code == 0 else None
            segments.append(segment)
            ours += [segment] if who == "ours" and segment is not None else []
        assert isinstance(outcome, Telemetry)
        return _with_segments(outcome, ours, segments, values)

    def _look_after(self, config: TrainConfig, request: Request) -> None:
        """Renew the process where that is called for, after a look at the canary if one is due."""
        tenure = self._tenure
        if tenure is None:
            return
        reason = tenure.why_renew(config)
        if reason is None and tenure.canary is not None and tenure.since_canary >= self._canary_every:
            reason = self._ask_canary(tenure, tenure.canary, request.run_path.with_name("canary"))
        if reason is not None:
            self._renew(reason)

    def _ask_canary(self, tenure: _Tenure, canary: _Canary, run_path: Path) -> str | None:
        """Run the canary again. Why the process has to go, if it is no longer what it was.

        Of one that moved a second look is taken, as a start costs many trials, and machines have bad moments.
        """
        tenure.since_canary = 0
        moves = []
        for path in (run_path, run_path.with_name(f"{run_path.name}-again")):
            recording, _ = self._record(canary.config, path, _go_on)
            if recording.exit_code != 0:
                conclude(recording)  # passes an interrupt on
                return f"its first configuration now fails: {recording.reason}"
            moved = _how_far(canary.segment, measure_segment(path))
            if moved == 0.0:
                return None
            moves.append(moved)
        nearest = min(moves, key=abs)
        if max(moves) > 0.0 > min(moves):
            return None
        way = "faster" if nearest > 0 else "slower"
        return f"its first configuration is now {abs(math.expm1(nearest)):.1%} {way}"

    def _renew(self, reason: str) -> None:
        if self._tenure is None:
            return
        self.close()
        self.renewals.append(reason)
        self._notice(f"the trainer's process is renewed: {reason}")
        self.prepare()

    def _record(
        self, config: TrainConfig, run_path: Path, on_windows: OnWindows, *, worst_case: bool = False
    ) -> tuple[Recording, str | None]:
        """One run in the process, which is started if there is none; and why it was stopped early."""
        options = how_to_record(config, run_path)
        config_path = write_config(config, run_path)
        order = Order(run_path=run_path, config_path=config_path, log=options.log, worst_case=worst_case)
        trials: list[TrialInWorker] = []

        def start(
            command: Sequence[str], *, env: Mapping[str, str], output: IO[bytes] | None
        ) -> TrialInWorker:
            if self._tenure is None:
                self._fresh.prepare()
                worker = Worker(command, env={**env, "PYTHONUNBUFFERED": "1"}, output=output)
                self._tenure = _Tenure(worker, held_values(config))
            trials.append(TrialInWorker(self._tenure.worker, order, on_windows))
            return trials[0]

        runs_before = 0 if self._tenure is None else self._tenure.runs
        recording = record_watched(self._trainer, run_path, options, start=start, gpus=self._fresh.gpus)
        self._take_note(recording, run_path, runs_before)
        return recording, trials[0].stopped_early

    def _take_note(self, recording: Recording, run_path: Path, runs_before: int) -> None:
        tenure = self._tenure
        assert tenure is not None
        tenure.runs, tenure.since_canary = tenure.runs + 1, tenure.since_canary + 1
        if recording.exit_code not in (0, refused_code):
            tenure.worker.doubt = f"a trial in it failed: {(recording.reason or 'no reason').splitlines()[0]}"
        if not tenure.first_memory:
            tenure.first_memory = tenure.worker.memory
        facts = {"pid": tenure.worker.pid, "runs_before": runs_before, "renewals": self.renewals}
        with contextlib.suppress(DFlashError):  # a note, of which nothing depends
            write_json(run_path.with_name(f"{run_path.name}-process.json"), facts)

    def _remember(self, outcome: Telemetry, config: TrainConfig, *, soak: bool) -> None:
        if outcome.window_tokens is not None and not soak:
            self._window_s = outcome.window_tokens / outcome.tokens_per_s
        tenure = self._tenure
        if tenure is None or tenure.canary is not None or soak:
            return
        if outcome.low is None or outcome.high is None:
            return
        segment = Segment(tokens_per_s=outcome.tokens_per_s, low=outcome.low, high=outcome.high)
        tenure.canary = _Canary(config=config, segment=segment)
        tenure.since_canary = 0


def _how_far(first: Segment, now: Segment | None) -> float:
    """By how much the logarithm of a pace moved; 0 where that may be noise or is not known."""
    if now is None:
        return 0.0
    moved = now.log_rate - first.log_rate
    noise = math.hypot(now.deviation, first.deviation)
    return moved if abs(moved) > max(drift_limit, sure * noise) else 0.0


def _go_on(_ends: WindowEnds) -> None:
    """Whatever windows come: no reason to stop."""


def _configure_beside(config: TrainConfig, beside: Values | None) -> TrainConfig | None:
    """The other configuration of an interleaved trial; None where one process cannot hold both."""
    if beside is None:
        return None
    try:
        theirs = config.replacing(dict(beside))
    except DFlashError:
        return None
    same = held_values(theirs) == held_values(config) and theirs != config
    return theirs if same else None


def _cut_short(outcome: Outcome, seen: Segment, reason: str) -> Telemetry:
    """The telemetry of a run that was stopped as hopeless, which may be too short for one of its own."""
    if isinstance(outcome, Failed):
        outcome = Telemetry(
            tokens_per_s=seen.tokens_per_s, low=seen.low, high=seen.high, windows=seen.windows
        )
    return dataclasses.replace(outcome, stopped_early=reason)


def _with_segments(
    outcome: Telemetry, ours: Sequence[Segment], segments: Sequence[Segment | None], values: Values
) -> Telemetry:
    """The telemetry of the first B with the pace of both, and the comparison where no turn is missing."""
    whole = interleaving.join(ours)
    outcome = dataclasses.replace(
        outcome, tokens_per_s=whole.tokens_per_s, low=whole.low, high=whole.high, windows=whole.windows
    )
    complete = [segment for segment in segments if segment is not None]
    if len(complete) < len(interleaving.order):
        return outcome
    log_ratio, deviation = interleaving.compare(complete)
    return dataclasses.replace(
        outcome, beside=Beside(values=dict(values), log_ratio=log_ratio, deviation=deviation)
    )
