"""A search at work: plan the next run, make it, keep what came of it, until there is nothing more to gain.

One loop for every use: the command, tests, simulations. In memory without a store, on disk with one. Knows
nothing of how a configuration is run (runner.py), of what is proposed (searcher.py) or of rendering.
"""

from __future__ import annotations

import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from time import monotonic

from autotune.applying import base_values, translate
from autotune.comparison import measure_noise
from autotune.effort import Effort
from autotune.health import find_illness
from autotune.history import History, find_start
from autotune.planning import configurations_left, plan_next
from autotune.recommendation import find_rates, rank, recommend
from autotune.runner import Preparing, Request, Runner
from autotune.searcher import Searcher, Stop, Task
from autotune.soak import find_tightness
from autotune.space import Space, trains_the_same
from autotune.telemetry import Failed, FailureKind, Outcome, Telemetry, Values
from autotune.trial import Trial, TrialState
from autotune.trial_store import MemoryStore, TrialStore
from dflash.contract.errors import DFlashError, ran_out_of_memory
from dflash.contract.rundir import utc_now

Run = Callable[[Request], Outcome | float]  # a number is a throughput and nothing else


@dataclass(frozen=True, slots=True)
class ProgressEvent:
    """Something a user would want to see while a search runs."""

    kind: str  # notice | resumed | started | ended
    message: str
    trial: Trial | None = None
    left: int | None = None  # configurations still to try, at most


Progress = Callable[[ProgressEvent], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """How a study ended. `recommended` is the first trial of the configuration to use; None: none can be."""

    recommended: Trial | None
    stop: Stop
    trials: tuple[Trial, ...]
    failures: tuple[tuple[str, int], ...]  # reasons why trials failed or may not win, most common first


class Study:
    """A search over `space`: `searcher` proposes, `runner` measures.

    `runner` is a Runner or a function from a Request to an Outcome, or to a bare throughput. Where it raises,
    the trial has failed and the search goes on; KeyboardInterrupt passes. `gpus`: those a GPU-hour is counted
    over. A study on a store goes on where the store is, as if it had never stopped.
    """

    def __init__(
        self,
        space: Space,
        searcher: Searcher,
        runner: Runner | Run,
        *,
        effort: Effort | None = None,
        store: TrialStore | None = None,
        progress: Progress | None = None,
        gpus: int = 0,
    ) -> None:
        self._space, self._searcher = space, searcher
        whatever: object = runner
        self._prepare = whatever.prepare if isinstance(whatever, Preparing) else _prepare_nothing
        self._able = {name: getattr(whatever, name, False) is True for name in ("reuses", "soaks")}
        self._run_once: Run = runner.run if isinstance(runner, Runner) else runner
        self._effort = effort or Effort()
        self._store = store or MemoryStore()
        self._progress = progress or (lambda event: None)
        self._gpus = gpus
        self._base = base_values(space)
        self._translated: dict[int, tuple[Trial, Trial | None]] = {}
        self._ended: Stop | None = None
        self._effort.check_countable(gpus)

    @property
    def history(self) -> History:
        """The trials that apply to the space, as a searcher sees them."""
        applying, stray_s = [], 0.0
        for trial in self._store.trials:
            translated = self._translate(trial)
            if translated is None:
                stray_s += trial.spent_s or 0.0
            else:
                applying.append(translated)
        return History(self._space, tuple(applying), self._effort, stray_s)

    @property
    def trials(self) -> tuple[Trial, ...]:
        """The trials that apply to the space, by number."""
        return self.history.trials

    @property
    def recommendation(self) -> Trial | None:
        """The first trial of the configuration that would be recommended if the search stopped now."""
        return recommend(self._searcher, self.history)

    def step(self) -> Trial | None:
        """Make the next run; the trial it became, or None when the search is done."""
        planned = self._ended or plan_next(self._searcher, self.history, self._gpus, **self._able)
        if isinstance(planned, Stop):
            self._ended = planned
            return None
        return self._carry_out(planned)

    def run(self) -> Conclusion:
        """Make runs until the search is done."""
        going = True
        while going:
            going = self.step() is not None
        return self.conclusion

    @property
    def conclusion(self) -> Conclusion:
        """What is known now."""
        history = self.history
        return Conclusion(
            recommended=recommend(self._searcher, history),
            stop=self._ended or Stop("not done yet"),
            trials=history.trials,
            failures=count_complaints(history.trials),
        )

    def _translate(self, trial: Trial) -> Trial | None:
        known = self._translated.get(trial.number)
        if known is None or known[0] is not trial:
            values, _ = translate(trial.values, self._space, self._base)
            known = (trial, None if values is None else trial.replacing(values=values))
            self._translated[trial.number] = known
        return known[1]

    def _carry_out(self, task: Task) -> Trial:
        self._prepare()
        trial = self._begin(task)
        request = self._request(task, trial)
        began_s = monotonic()
        try:
            self._store.save(trial)
            self._tell("started", task.why, trial)
            outcome = self._run(request)
        except BaseException as error:  # KeyboardInterrupt above all: on record first, then on its way
            reason = "stopped by the user" if isinstance(error, KeyboardInterrupt) else repr(error)
            spent_s = monotonic() - began_s
            self._store.save(_over(trial, spent_s, state=TrialState.interrupted, reason=reason))
            raise
        trial = self._judge(_over(trial, monotonic() - began_s), outcome)
        self._store.save(trial)
        self._tell("ended", trial.reason or trial.unhealthy or "", trial)
        if trial.failure is FailureKind.lost_gpu:
            self._ended = Stop(f"a GPU is lost ({trial.reason}): nothing runs before it is reset")
        return trial

    def _begin(self, task: Task) -> Trial:
        number = self._store.next_number
        return Trial(
            number=number,
            values=dict(task.values),
            why=task.why,
            run_path=f"trials/{number:03d}/run",
            seconds=task.seconds or self._effort.seconds,
            started_utc=utc_now(),
            repeat_of=task.repeat_of,
            retry_of=task.retry_of,
            predicted=task.predicted,
            fresh=task.fresh,
            soak=task.soak,
            beside=task.beside,
        )

    def _request(self, task: Task, trial: Trial) -> Request:
        config = self._space.config(task.values)
        return Request(
            values=trial.values,
            config=None if config is None else config.replacing(trial_length(trial.seconds)),
            seconds=trial.seconds,
            run_path=self._store.root / trial.run_path,
            number=trial.number,
            fresh=trial.fresh,
            soak=trial.soak,
            beside=trial.beside,
            # Who runs again is to be measured, however far behind.
            incumbent_low=self._incumbent_low() if trial.repeat_of is None else None,
        )

    def _incumbent_low(self) -> float | None:
        trials = self.history.trials
        rates = find_rates(trials)
        standings = rank(trials, rates, measure_noise(rates))
        return standings[0].tokens_per_s.low if standings else None

    def _run(self, request: Request) -> Outcome:
        try:
            return _understand(self._run_once(request))
        except Exception as error:  # noqa: BLE001 - the runner's boundary: its failure is an outcome
            return _failed_by(error)

    def _judge(self, trial: Trial, outcome: Outcome) -> Trial:
        return judge(trial, outcome, reference_losses(self._space, self.history.trials, trial.values))

    def _tell(self, kind: str, message: str, trial: Trial) -> None:
        self._progress(ProgressEvent(kind, message, trial, configurations_left(self.history)))


def judge(trial: Trial, outcome: Outcome, reference: Sequence[float | None]) -> Trial:
    """The trial with its outcome: finished (healthy or not) or failed, always for a stated reason.

    `reference`: the losses of the starting configuration on the same windows.
    """
    over = trial.judged(outcome)
    if over.measurement is None:
        return over
    if over.soak:  # on other documents, of which losses say nothing
        return over.replacing(unhealthy=find_tightness(over.measurement))
    return over.replacing(unhealthy=find_illness(over.measurement, reference))


def reference_losses(space: Space, trials: Sequence[Trial], values: Values) -> tuple[float | None, ...]:
    """The losses that a healthy trial of `values` must show; empty where none are known.

    None are, too, where the values change what is trained.
    """
    start = find_start(space, trials)
    if start is None or not start.is_candidate or start.measurement is None:
        return ()
    return start.measurement.losses if trains_the_same(space, start.values, values) else ()


def count_complaints(trials: Sequence[Trial]) -> tuple[tuple[str, int], ...]:
    """Why trials failed or may not win, with how many, most common first."""
    complaints = [trial.complaint for trial in trials if trial.complaint is not None]
    return tuple(Counter(complaints).most_common())


def trial_length(seconds: float) -> dict[str, float | int | str]:
    """What a trial's configuration says of its length: for its time, from the first step, nothing kept."""
    return {
        "run.max_seconds": seconds,
        "run.max_steps": 0,
        "run.resume": "",
        "run.checkpoint_every": -1,
        "run.evaluate_every": 0,
        "run.trackers": "",
    }


def _prepare_nothing() -> None:
    """A runner that has nothing to wait for."""


def _over(trial: Trial, spent_s: float, **changes: object) -> Trial:
    return trial.replacing(ended_utc=utc_now(), spent_s=round(spent_s, 3), **changes)


def _failed_by(error: Exception) -> Failed:
    """The failure that an exception of a runner amounts to, with the place where it was raised."""
    if isinstance(error, DFlashError):
        text = error.render()
    else:
        *_, last = traceback.extract_tb(error.__traceback__)
        text = f"{type(error).__name__}: {error} ({Path(last.filename).name}, line {last.lineno})"
    memory = ran_out_of_memory(text)
    return Failed(FailureKind.out_of_memory if memory else FailureKind.error, text)


def _understand(answer: object) -> Outcome:
    """What a runner returned; a bare number is a throughput."""
    if isinstance(answer, Telemetry | Failed):
        return answer
    if isinstance(answer, Real):
        return Telemetry(tokens_per_s=float(answer))
    what = "nothing" if answer is None else repr(answer)
    return Failed(FailureKind.no_measurement, f"the runner returned {what}, neither Telemetry nor Failed")
