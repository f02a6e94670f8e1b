"""What a search does next: the order of reruns, new configurations and repeats.

Everything follows from the trials alone, so a search that was stopped anywhere goes on as if it had not
been. Pure functions; knows nothing of running or storing.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.searcher import find_incumbent, propose
from autotune.space import SearchSpace, Values
from autotune.trial import FailureKind, Trial, TrialState
from dflash.contract.errors import UsageError

stretch_factor = 2.5  # of the trial length, when the starting configuration shows too few windows
stretches = 3  # at most
hopeless_failures = 3  # the first trials, all failed for one reason, before the search gives up


@dataclass(frozen=True, slots=True, kw_only=True)
class Effort:
    """How much is spent. `trials` counts configurations over all invocations; repeats come on top."""

    trials: int = 8
    repeats: int = 2  # further runs of each contender, in mirrored order
    seconds: float = 12.0  # of training in a trial
    tolerance: float = 0.02  # a gain below this share is not worth a change

    def __post_init__(self) -> None:
        bounds = {
            "trials": (self.trials >= 1, "1 or more"),
            "repeats": (self.repeats >= 0, "0 or more"),
            "seconds": (math.isfinite(self.seconds) and self.seconds > 0, "above 0"),
            "tolerance": (0 <= self.tolerance < 1, "0 or more, below 1"),
        }
        for name, (is_right, expected) in bounds.items():
            if not is_right:
                found = getattr(self, name)
                raise UsageError(f"{name} = {found} is no effort", where=name, found=found, expected=expected)


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run to make."""

    values: Values
    why: str
    seconds: float
    repeat_of: int | None = None
    retry_of: int | None = None


def plan_next(space: SearchSpace, trials: Sequence[Trial], effort: Effort) -> Task | None:
    """The next run, or None when the search is done."""
    seconds = effort.seconds * stretch_factor ** min(stretches, len(_too_short_starts(space, trials)))
    return (
        _rerun(trials)
        or _longer_start(space, trials, seconds)
        or _new_configuration(space, trials, effort, seconds)
        or _repeat(space, trials, effort, seconds)
    )


def explored(trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """The trials that count as configurations tried: over, not repeats, not run again in a better way."""
    replaced = {trial.retry_of for trial in trials}
    return tuple(t for t in trials if t.state.is_over and t.repeat_of is None and t.number not in replaced)


def runs_of(trial: Trial, trials: Iterable[Trial]) -> tuple[Trial, ...]:
    """The trial and its repeats, as far as they are over."""
    return (trial, *(t for t in trials if t.repeat_of == trial.number and t.state.is_over))


def is_dependable(trial: Trial, trials: Iterable[Trial]) -> bool:
    """True where the trial and all its repeats are finished and healthy.

    An abandoned repeat is not held against a configuration that has run before: the search was killed.
    """
    first, *repeats = runs_of(trial, trials)
    return first.is_candidate and all(
        run.is_candidate or run.failure is FailureKind.abandoned for run in repeats
    )


def find_start(space: SearchSpace, trials: Sequence[Trial]) -> Trial | None:
    """The trial of the starting configuration, once it is over."""
    start = space.point(space.baseline)
    return next((t for t in explored(trials) if space.point(t.values) == start), None)


def find_contenders(space: SearchSpace, trials: Sequence[Trial]) -> tuple[Trial, ...]:
    """The two fastest and the starting configuration: those between which the result is decided.

    The starting configuration is among them because the gain over it is what the result claims.
    """
    sound = [trial for trial in explored(trials) if is_dependable(trial, trials)]
    chosen: list[Trial] = []
    for _ in range(2):
        best = find_incumbent(trial for trial in sound if trial not in chosen)
        chosen += [best] if best else []
    start = find_start(space, trials)
    if start is not None and start in sound and start not in chosen:
        chosen.append(start)
    return tuple(chosen)


def describe_stop(space: SearchSpace, trials: Sequence[Trial], effort: Effort) -> str:
    """How far the search is, and why it stops there if it does."""
    tried = explored(trials)
    task = plan_next(space, trials, effort)
    repeats = sum(trial.repeat_of is not None and trial.state.is_over for trial in trials)
    parts = [f"{len(tried)} of {min(effort.trials, space.size)} configurations tried"]
    parts += [f"{repeats} repeats"] if repeats else []
    if task is not None:
        return ", ".join([*parts, "not done yet"])
    if _is_hopeless(tried):
        parts.append(f"given up: the first {hopeless_failures} failed for the same reason")
    elif len(tried) >= space.size:
        parts.append("the space is exhausted")
    elif len(tried) < effort.trials:
        left = space.size - len(tried)
        parts.append(f"the space is exhausted: {left} more would run out of memory, as smaller ones did")
    return ", ".join(parts)


def _rerun(trials: Sequence[Trial]) -> Task | None:
    replaced = {trial.retry_of for trial in trials}
    for trial in trials:
        if trial.state in (TrialState.killed, TrialState.interrupted) and trial.number not in replaced:
            return Task(
                values=trial.values,
                why=f"trial {trial.number} was {trial.state}",
                seconds=trial.seconds,
                repeat_of=trial.repeat_of,
                retry_of=trial.number,
            )
    return None


def _longer_start(space: SearchSpace, trials: Sequence[Trial], seconds: float) -> Task | None:
    start = find_start(space, trials)
    if start is None or start.failure is not FailureKind.too_short:
        return None
    if len(_too_short_starts(space, trials)) > stretches:
        return None
    return Task(
        values=start.values,
        why=f"{start.seconds:g} s of training were too short",
        seconds=seconds,
        retry_of=start.number,
    )


def _too_short_starts(space: SearchSpace, trials: Sequence[Trial]) -> list[Trial]:
    start = space.point(space.baseline)
    return [
        trial
        for trial in trials
        if trial.failure is FailureKind.too_short
        and trial.repeat_of is None
        and space.point(trial.values) == start
    ]


def _new_configuration(
    space: SearchSpace, trials: Sequence[Trial], effort: Effort, seconds: float
) -> Task | None:
    tried = explored(trials)
    if len(tried) >= effort.trials or _is_hopeless(tried):
        return None
    proposal = propose(space, tried)
    return Task(values=proposal.values, why=proposal.why, seconds=seconds) if proposal else None


def _is_hopeless(tried: Sequence[Trial]) -> bool:
    complaints = {trial.complaint for trial in tried[:hopeless_failures]}
    failed = [trial for trial in tried if trial.state is TrialState.failed]
    return len(failed) == len(tried) >= hopeless_failures and len(complaints) == 1


def _repeat(space: SearchSpace, trials: Sequence[Trial], effort: Effort, seconds: float) -> Task | None:
    """Repeats in mirrored order (A B C, C B A, …), so that a drift of the machine weighs on all alike."""
    contenders = find_contenders(space, trials)
    if len(contenders) < 2:
        return None
    done = Counter(trial.repeat_of for trial in trials if trial.state.is_over)
    for turn in range(effort.repeats):
        for trial in contenders[:: -1 if turn % 2 else 1]:
            if done[trial.number] <= turn:
                return Task(
                    values=trial.values,
                    why=f"repeat {turn + 1} of trial {trial.number}",
                    seconds=seconds,
                    repeat_of=trial.number,
                )
    return None
