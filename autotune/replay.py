"""A recorded trial run again now, and whether it does what it did.

The new run is compared with all recorded runs of its configuration, by the noise that the study's own repeats
show. A trial that failed is the same when it fails in the same way. Everything of the new run lies in the
directory of the trial. Knows nothing of rendering.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from autotune.comparison import Interval, Rate, compare, measure_noise
from autotune.export import find_trial
from autotune.identity import identify
from autotune.leftovers import end_leftovers
from autotune.machine import Machine
from autotune.recommendation import find_rates
from autotune.result import StudyResult, load_study
from autotune.runner import Request, Runner
from autotune.storage import trial_dir
from autotune.study import judge, trial_length
from autotune.study_lock import study_lock
from autotune.trial import Trial
from dflash.contract.errors import UsageError
from dflash.contract.rundir import write_json

json_schema_version = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What came of it."""

    recorded: Trial
    now: Trial
    ratio: Interval | None  # now ÷ recorded; None where one of the two has no throughput
    runs: int  # recorded, behind the ratio
    same: bool
    why: str
    conditions: tuple[str, ...]  # what is not as it was when the study was made
    directory: Path

    def to_json(self) -> dict[str, Any]:
        """Strict JSON."""
        return {
            "schema": json_schema_version,
            "trial": self.recorded.number,
            "verdict": "same" if self.same else "different",
            "why": self.why,
            "ratio": None if self.ratio is None else asdict(self.ratio),
            "recorded_runs": self.runs,
            "conditions": list(self.conditions),
            "recorded": self.recorded.to_json(),
            "now": self.now.to_json(),
            "directory": str(self.directory),
        }


def replay(
    study_dir: Path,
    number: int,
    runner: Runner,
    machine: Machine,
    notice: Callable[[str], None] = lambda text: None,
) -> Replay:
    """Run trial `number` again, in a fresh process, and compare. The study itself is not changed.

    Raises UsageError when there is no such trial, when it never ended, and while a search holds the study.
    """
    study_dir = study_dir.resolve()
    result = load_study(study_dir)
    trial = find_trial(result, number)
    if not trial.state.is_over:
        raise UsageError(
            f"trial {number} never came to an end, so there is nothing to compare with",
            where=str(study_dir),
            found=str(trial.state),
        )
    with study_lock(study_dir):  # two at once would measure each other
        for pid in end_leftovers(study_dir / "trials"):
            notice(f"ended process {pid}, left over by an earlier search")
        directory = _make_place(trial_dir(study_dir, number))
        now = _run(result, trial, runner, directory)
        told = _judge(result, trial, now, machine, directory)
        write_json(directory / "replay.json", told.to_json())
    return told


def _make_place(trial_path: Path) -> Path:
    """A directory of its own beside the trial's run."""
    taken = [int(path.name.rpartition("-")[2]) for path in trial_path.glob("replay-*")]
    place = trial_path / f"replay-{max(taken, default=0) + 1}"
    place.mkdir(parents=True)
    return place


def _run(result: StudyResult, trial: Trial, runner: Runner, directory: Path) -> Trial:
    run_path = directory / "run"
    request = Request(
        values=trial.values,
        config=result.identity.base().replacing({**trial.values, **trial_length(trial.seconds)}),
        seconds=trial.seconds,
        run_path=run_path,
        number=trial.number,
        fresh=True,
        soak=trial.soak,
    )
    outcome = runner.run(request)
    blank = trial.replacing(
        why=f"trial {trial.number} again",
        run_path=str(run_path.relative_to(result.study_dir)),
        measurement=None,
        unhealthy=None,
        failure=None,
        reason=None,
    )
    losses = trial.measurement.losses if trial.measurement is not None else ()
    return judge(blank, outcome, losses)


def _judge(result: StudyResult, recorded: Trial, now: Trial, machine: Machine, directory: Path) -> Replay:
    rates = find_rates(result.trials)
    first = recorded.number if recorded.repeat_of is None else recorded.repeat_of
    theirs = rates.get(first) or _rates_of(recorded)
    ours = _rates_of(now)
    ratio = compare(ours, theirs, measure_noise(rates)) if ours and theirs else None
    same, why = _verdict(recorded, now, ratio, result.effort.tolerance)
    current = identify(result.space, machine, result.identity.seconds)
    return Replay(
        recorded=recorded,
        now=now,
        ratio=ratio,
        runs=len(theirs),
        same=same,
        why=why,
        conditions=tuple(result.identity.differences(current)),
        directory=directory,
    )


def _rates_of(trial: Trial) -> list[Rate]:
    measured = trial.measurement
    if measured is None or trial.soak:  # a soak says nothing of speed
        return []
    return [Rate(measured.tokens_per_s, measured.low, measured.high)]


def _verdict(recorded: Trial, now: Trial, ratio: Interval | None, tolerance: float) -> tuple[bool, str]:
    if now.unhealthy is not None and recorded.unhealthy is None:
        return False, f"it is not healthy now: {now.unhealthy}"
    if ratio is None:
        if recorded.soak and now.measurement is not None and recorded.measurement is not None:
            return True, "it fits as it did"
        if recorded.failure is not None and recorded.failure is now.failure:
            return True, f"it fails as it did: {now.failure}"
        then = recorded.failure or "it ran to its end"
        return False, f"then: {then}; now: {now.failure or 'it ran to its end'} ({now.reason or 'no reason'})"
    if not ratio.excludes(1.0):
        return True, "within the noise"
    if abs(ratio.mid - 1.0) < tolerance:
        return True, f"within the tolerance of {tolerance:.0%}"
    return False, "beyond the noise"
