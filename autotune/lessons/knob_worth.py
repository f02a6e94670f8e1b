"""What each knob was worth: how much slower the winner would be with that one knob set back.

All trials together tell it, by what the search's own model makes of them, not only pairs that happen to
differ in one knob. Where they cannot tell, the worth is "not known". Knows nothing of how trials were chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from autotune.comparison import Interval, normal_quantile
from autotune.history import group_runs
from autotune.space import Space
from autotune.telemetry import Values
from autotune.trial import Trial, TrialState

if TYPE_CHECKING:
    from autotune.lessons.opinion import Opinion

Array = NDArray[np.float64]
fewest_configurations: Final = 3  # measured; with fewer there is nothing to infer from
untold: Final = "no trial differs from the winner in this knob alone, and the others do not tell it apart"
always_together: Final = "in the trials it changed together with other knobs"
checked_at_most: Final = 24  # configurations left out in turn: each takes a fit


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobWorth:
    """The winner against itself with one knob at another choice.

    `verdict`: "faster" or "slower" (the interval of the ratio leaves out 1), "no difference" (it lies within
    the tolerance), "needed" (the other choice was tried and failed), "not possible" (the space leaves it
    out), or "not known".
    """

    path: str
    choice: Any  # the winner's
    other: Any  # what it is held against
    ratio: Interval | None  # winner ÷ the other, 90 %; None: the other was never measured, nor can be
    verdict: str
    runs: int  # of the winner with only this knob changed; 0: inferred from other configurations
    reason: str | None = None  # why it is not known, needed or not possible
    is_change: bool = True  # the other choice is the starting configuration's; else the nearest rival


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobWorths:
    """Of all knobs, those that the winner changed first, the most worth in front."""

    knobs: tuple[KnobWorth, ...]
    order: tuple[tuple[str, str], ...]  # (more, less): pairs of changed knobs whose order is sure
    error: float | None  # median error of the model about a configuration that was left out; a share
    inside: tuple[int, int] | None  # of those configurations within their 90 % interval, of how many
    reason: str | None = None  # why there are none


def value_knobs(
    space: Space, trials: Sequence[Trial], winner: Trial | None, tolerance: float = 0.02
) -> KnobWorths:
    """What every knob was worth to `winner`, and what setting back those that it changed would cost."""
    measured = {space.point(trial.values) for trial in trials if trial.is_candidate}
    if winner is None or len(measured) < fewest_configurations:
        reason = "no configuration was found to ask about" if winner is None else "too few were measured"
        return KnobWorths(knobs=(), order=(), error=None, inside=None, reason=reason)
    from autotune.lessons.opinion import Opinion

    opinion = Opinion(space, trials)
    rivals = [rival for rival in _rivals(space, winner.values) if opinion.knows(rival.values)]
    means, covariance = opinion.at([winner.values, *(rival.values for rival in rivals)])
    gains, doubts = _less_than_first(means, covariance)
    told = [
        _judge(rival, float(gains[i]), math.sqrt(max(doubts[i, i], 0.0)), _seen(rival, trials), tolerance)
        for i, rival in enumerate(rivals)
    ]
    if not opinion.has_physics:
        told = [
            _doubt(worth, _separates(space, trials, rival)) for worth, rival in zip(told, rivals, strict=True)
        ]
    barred = [
        _bar(space, rival) for rival in _rivals(space, winner.values) if not opinion.knows(rival.values)
    ]
    error, inside = _check(opinion, trials)
    return KnobWorths(
        knobs=_arrange([*told, *(worth for worth in barred if worth.is_change)]),
        order=tuple(_sure_order(told, gains, doubts)),
        error=error,
        inside=inside,
    )


@dataclass(frozen=True, slots=True)
class _Rival:
    """The winner with one knob at another choice."""

    path: str
    choice: Any
    other: Any
    values: Values
    is_change: bool


@dataclass(frozen=True, slots=True)
class _Seen:
    """What was seen of a rival itself."""

    runs: int
    failure: str | None


def _rivals(space: Space, winner: Values) -> list[_Rival]:
    """Of a changed knob the starting choice, of another every other choice."""
    start = space.baseline
    return [
        _Rival(axis.path, winner[axis.path], other, {**winner, axis.path: other}, changed)
        for axis in space.dimensions
        for changed in (winner[axis.path] != start[axis.path],)
        for other in axis.choices
        if other != winner[axis.path] and (not changed or other == start[axis.path])
    ]


def _seen(rival: _Rival, trials: Sequence[Trial]) -> _Seen:
    mine = [trial for trial in trials if trial.values == rival.values]
    failed = next((trial for trial in mine if trial.state is TrialState.failed), None)
    return _Seen(
        runs=sum(trial.is_candidate for trial in mine),
        failure=None if failed is None else f"trial {failed.number}: {failed.failure}",
    )


def _judge(rival: _Rival, gain: float, deviation: float, seen: _Seen, tolerance: float) -> KnobWorth:
    reach = normal_quantile * deviation
    ratio = Interval(math.exp(gain), math.exp(gain - reach), math.exp(gain + reach))
    if seen.failure is not None and not seen.runs:
        return _worth(rival, None, "needed", reason=seen.failure)
    verdict = _verdict(ratio, tolerance)
    reason = None
    if verdict == "not known":
        reason = "measured, and not told apart by the noise" if seen.runs else untold
    return _worth(rival, ratio, verdict, runs=seen.runs, reason=reason)


def _doubt(worth: KnobWorth, separated: bool) -> KnobWorth:
    """Not known where only the size that effects usually have tells the knob from others."""
    if separated or worth.verdict in ("needed", "not possible"):
        return worth
    return replace(worth, verdict="not known", reason=always_together)


def _separates(space: Space, trials: Sequence[Trial], rival: _Rival) -> bool:
    """Whether the configurations measured tell the two choices apart, if every knob had its own effect."""
    places = {
        (axis.path, choice): i
        for i, (axis, choice) in enumerate((axis, c) for axis in space.dimensions for c in axis.choices)
    }

    def one_hot(values: Values) -> Array:
        row = np.zeros(len(places))
        row[[places[path, values[path]] for path in space.paths]] = 1.0
        return row

    seen = np.array([one_hot(trial.values) for trial in trials if trial.is_candidate])
    wanted = one_hot({**rival.values, rival.path: rival.choice}) - one_hot(rival.values)
    weights = np.linalg.lstsq(seen.T, wanted, rcond=None)[0]
    return bool(np.allclose(seen.T @ weights, wanted, atol=1e-6))


def _bar(space: Space, rival: _Rival) -> KnobWorth:
    """Of a rival that the space leaves out."""
    return _worth(rival, None, "not possible", reason=space.why_not(rival.values))


def _worth(
    rival: _Rival, ratio: Interval | None, verdict: str, *, runs: int = 0, reason: str | None
) -> KnobWorth:
    return KnobWorth(
        path=rival.path,
        choice=rival.choice,
        other=rival.other,
        ratio=ratio,
        verdict=verdict,
        runs=runs,
        reason=reason,
        is_change=rival.is_change,
    )


def _verdict(ratio: Interval, tolerance: float) -> str:
    if ratio.excludes(1.0):
        return "faster" if ratio.mid > 1 else "slower"
    if 1 - tolerance <= ratio.low and ratio.high <= 1 + tolerance:
        return "no difference"
    return "not known"


def _less_than_first(means: Array, covariance: Array) -> tuple[Array, Array]:
    """The first value less each of the others: means and covariance."""
    count = len(means) - 1
    contrast = np.hstack([np.ones((count, 1)), -np.eye(count)])
    return contrast @ means, contrast @ covariance @ contrast.T


def _arrange(told: Sequence[KnobWorth]) -> tuple[KnobWorth, ...]:
    """Changed knobs, the most worth first; of each other knob the choice that comes nearest to the winner.

    A choice that was measured goes before those that were not.
    """
    changed = sorted((worth for worth in told if worth.is_change), key=_size)
    kept = sorted(
        (worth for worth in told if not worth.is_change), key=lambda worth: (not worth.runs, -_size(worth))
    )
    nearest: dict[str, KnobWorth] = {}
    for worth in kept:
        nearest.setdefault(worth.path, worth)
    return (*changed, *nearest.values())


def _size(worth: KnobWorth) -> float:
    return -worth.ratio.mid if worth.ratio else -math.inf


def _sure_order(told: Sequence[KnobWorth], gains: Array, covariance: Array) -> list[tuple[str, str]]:
    changed = [i for i, w in enumerate(told) if w.is_change and w.ratio and w.reason != always_together]
    pairs = []
    for i in changed:
        for j in changed:
            variance = covariance[i, i] + covariance[j, j] - 2 * covariance[i, j]
            if gains[i] - gains[j] > normal_quantile * math.sqrt(max(variance, 0.0)) and i != j:
                pairs.append((told[i].path, told[j].path))
    return pairs


def _check(opinion: Opinion, trials: Sequence[Trial]) -> tuple[float | None, tuple[int, int] | None]:
    """Measured configurations against what the model would think without their runs."""
    groups = [[run for run in runs if run.is_candidate] for runs in group_runs(trials).values()]
    errors, inside = [], 0
    for runs in [runs for runs in groups if runs][-checked_at_most:]:
        told = opinion.leave_out(runs[0].values)
        if told is None:
            continue
        seen = float(np.mean([math.log(run.score) for run in runs]))
        deviation = math.sqrt(told[1] ** 2 + opinion.noise**2 / len(runs))
        errors.append(math.expm1(abs(told[0] - seen)))
        inside += abs(told[0] - seen) <= normal_quantile * deviation
    return (float(np.median(errors)), (inside, len(errors))) if errors else (None, None)
