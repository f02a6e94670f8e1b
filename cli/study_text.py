"""A search in words: a line when a trial starts and ends, and the summary at the end.

Knows nothing of streams: it is given a function that speaks, and returns text.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cli.layout import facts, plain
from reports import text

if TYPE_CHECKING:
    from autotune.lessons.taught import Lessons
    from autotune.result import StudyResult
    from autotune.search import SearchPlan
    from autotune.study import ProgressEvent
    from autotune.trial import Trial

contenders_at_most = 3  # the two fastest and the start: those are repeated


class SearchTalk:
    """Turns progress events into lines. `clock` gives seconds."""

    def __init__(
        self, plan: SearchPlan, say: Callable[[str], None], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._plan, self._say, self._clock = plan, say, clock
        self._began_s = self._trial_began_s = clock()
        self._ended = 0
        self._repeats_ended = 0

    def tell(self, event: ProgressEvent) -> None:
        """Say what happened."""
        if event.trial is None:
            self._say(event.message)
        elif event.kind == "started":
            self._trial_began_s = self._clock()
            changes = describe_changes(self._plan.space.baseline, event.trial)
            why = f"{changes} ({event.message})" if changes else event.message
            self._say(f"{_name(event.trial)}: {why}")
        else:
            self._ended += 1
            self._repeats_ended += event.trial.repeat_of is not None
            self._say(plain(f"{_name(event.trial)}: {_outcome(event.trial)}; {self._times(event.left or 0)}"))

    def _times(self, left: int) -> str:
        now = self._clock()
        repeats = contenders_at_most * self._plan.effort.repeats - self._repeats_ended
        left_s = (now - self._began_s) / self._ended * (left + max(0, repeats))
        took = text.duration(round(now - self._trial_began_s, 1))
        return f"took {took}, at most {text.duration(round(left_s))} left"


def describe_changes(start: dict[str, object], trial: Trial) -> str:
    """`transport.depth 2 → 4, …`: where the trial differs from the starting configuration."""
    changes = [
        f"{path} {start[path]} → {value}" for path, value in trial.values.items() if value != start[path]
    ]
    return ", ".join(changes)


def summarise_study(result: StudyResult, lessons: Lessons, report: Path | None) -> str:
    """What was found, with its interval, the reason, what to do with it, and what the trials teach."""
    from cli import lessons_text
    from reports.study_rows import describe_stop

    standing = result.standing_of(result.best)
    rows: list[tuple[str, str]] = []
    if result.best is not None:
        changed = describe_changes(result.space.baseline, result.best) or "the starting configuration"
        rows.append(("best", f"trial {result.best.number}: {changed}"))
    if standing is not None:
        rate = standing.tokens_per_s
        runs = text.count_of(standing.runs, "run")
        interval = f"90 % interval {text.rate_range(rate.low, rate.high)}"
        rows.append(("throughput", f"{text.rate(rate.mid)}, {interval}, {runs}"))
        rows += lessons_text.tell_length(lessons, rate.mid)
    rows += [("gain", _gain(result)), ("why", "\n".join(result.why))]
    rows += [("search", "\n".join(describe_stop(result))), *lessons_text.tell_next_steps(lessons)]
    if result.identity.emulated:
        rows.append(("emulated", "on logical devices: this says nothing of the speed of GPUs"))
    if result.best_toml is not None:
        rows.append(("use it", f"dflash-train run {shlex.quote(str(result.best_toml))}"))
    if report is not None:
        rows.append(("report", str(report)))
    tables = [
        *lessons_text.tell_contest(result, lessons),
        *lessons_text.tell_knobs(lessons),
        *lessons_text.tell_predictions(lessons),
        *lessons_text.tell_trade_offs(lessons),
        *lessons_text.tell_set_aside(lessons),
    ]
    return plain("\n".join([facts(rows), *tables]))


def _gain(result: StudyResult) -> str:
    if result.gain is None:
        return text.missing("the starting configuration or the best has no comparable figure")
    gain = result.gain
    interval = f"90 % interval {gain.low:.2f} to {gain.high:.2f}"
    if result.verdict != "better":
        return f"equal within noise: the fastest is {gain.mid:.2f} times as fast as the start ({interval})"
    return f"{gain.mid:.2f} times as fast as the starting configuration ({interval})"


def _name(trial: Trial) -> str:
    return f"trial {trial.number}" + ("" if trial.repeat_of is None else f" (again {trial.repeat_of})")


def _outcome(trial: Trial) -> str:
    if trial.measurement is None:
        return f"{trial.state}: {trial.reason or 'no reason given'}"
    measured = trial.measurement
    parts = [f"{text.rate(measured.tokens_per_s)} ({text.rate_range(measured.low, measured.high)})"]
    parts += [f"limited by {trial.cause.name}"] if trial.cause else []
    parts += [f"must not win: {trial.unhealthy}"] if trial.unhealthy else []
    return ", ".join(parts)
