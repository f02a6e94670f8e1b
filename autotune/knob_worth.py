"""What each knob was worth: how much slower the winner would be with that one knob set back.

All trials together tell it, by the surface inferred from them (see surface.py), not only pairs that happen to
differ in one knob. Where they cannot tell, the worth is "not known". Knows nothing of how trials were chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from autotune.comparison import Interval, normal_quantile
from autotune.surface import Reading, Surface, Values

fewest_readings: Final = 3  # with fewer there is nothing to infer from


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobWorth:
    """The winner against itself with one knob at another choice.

    `verdict`: "faster" or "slower" (the interval of the ratio leaves out 1), "no difference" (it lies within
    the tolerance), "needed" (the other choice was tried and failed), or "not known".
    """

    path: str
    choice: Any  # the winner's
    other: Any  # what it is held against
    ratio: Interval | None  # winner ÷ the other, 90 %; None: nothing was measured of it
    verdict: str
    runs: int  # of the winner with only this knob changed; 0: inferred from other configurations
    reason: str | None = None  # why it is not known, or why it is needed
    is_change: bool = True  # the other choice is the starting configuration's; else the nearest rival


@dataclass(frozen=True, slots=True, kw_only=True)
class KnobWorths:
    """Of all knobs, those that the winner changed first, the most worth in front."""

    knobs: tuple[KnobWorth, ...]
    order: tuple[tuple[str, str], ...]  # (more, less): pairs of changed knobs whose order is sure
    error: float | None  # median error of the surface about a configuration that was left out; a share
    inside: tuple[int, int] | None  # of those configurations within their 90 % interval, of how many
    reason: str | None = None  # why there are none


def judge_knobs(
    choices: Mapping[str, Sequence[Any]],
    readings: Sequence[Reading],
    winner: Values,
    start: Values,
    *,
    failed: Sequence[tuple[Values, str]] = (),
    tolerance: float = 0.02,
) -> KnobWorths:
    """What every knob was worth to `winner`, and what setting back those that differ from `start` would cost.

    `readings`: of trials that may be compared; `failed`: configurations that failed, each with the reason.
    """
    if len(readings) < fewest_readings:
        return KnobWorths(knobs=(), order=(), error=None, inside=None, reason="too few trials were measured")
    surface = Surface(choices, readings)
    rivals = [
        (path, other)
        for path in choices
        for other in choices[path]
        if other != winner[path] and (winner[path] == start[path] or other == start[path])
    ]
    points = [dict(winner), *({**winner, path: other} for path, other in rivals)]
    mean, covariance = surface.at(points)
    costs = _less_than_first(mean, covariance)
    runs = [_count(readings, point) for point in points]
    reasons = {_key(values, choices): reason for values, reason in failed}
    told = [
        _judge(
            path,
            winner[path],
            other,
            costs[0][i],
            math.sqrt(max(costs[1][i, i], 0.0)),
            runs=runs[i + 1],
            reason=reasons.get(_key(points[i + 1], choices)),
            is_change=winner[path] != start[path],
            tolerance=tolerance,
        )
        for i, (path, other) in enumerate(rivals)
    ]
    changed = [i for i, worth in enumerate(told) if worth.is_change]
    error, inside = _check(surface, readings, choices)
    return KnobWorths(
        knobs=_arrange(told),
        order=tuple(_sure_order(told, changed, *costs)),
        error=error,
        inside=inside,
    )


def _judge(
    path: str,
    choice: Any,
    other: Any,
    gain: float,
    deviation: float,
    *,
    runs: int,
    reason: str | None,
    is_change: bool,
    tolerance: float,
) -> KnobWorth:
    reach = normal_quantile * deviation
    ratio = Interval(math.exp(gain), math.exp(gain - reach), math.exp(gain + reach))
    if reason is not None and not runs:
        verdict, shown = "needed", None
    else:
        verdict, shown, reason = _verdict(ratio, tolerance), ratio, None
    if verdict == "not known":
        reason = (
            "measured, and not told apart by the noise"
            if runs
            else "no trial differs from the winner in this knob alone, and the others do not tell it apart"
        )
    return KnobWorth(
        path=path,
        choice=choice,
        other=other,
        ratio=shown,
        verdict=verdict,
        runs=runs,
        reason=reason,
        is_change=is_change,
    )


def _verdict(ratio: Interval, tolerance: float) -> str:
    if ratio.excludes(1.0):
        return "faster" if ratio.mid > 1 else "slower"
    if 1 - tolerance <= ratio.low and ratio.high <= 1 + tolerance:
        return "no difference"
    return "not known"


def _less_than_first(mean: Any, covariance: Any) -> tuple[Any, Any]:
    """The first value less each of the others: means and covariance."""
    count = len(mean) - 1
    contrast = np.hstack([np.ones((count, 1)), -np.eye(count)])
    return contrast @ mean, contrast @ covariance @ contrast.T


def _arrange(told: Sequence[KnobWorth]) -> tuple[KnobWorth, ...]:
    """Changed knobs, the most worth first; of each other knob the choice that comes nearest to the winner."""
    changed = sorted((worth for worth in told if worth.is_change), key=_size)
    nearest: dict[str, KnobWorth] = {}
    for worth in sorted((worth for worth in told if not worth.is_change), key=_size, reverse=True):
        nearest.setdefault(worth.path, worth)
    return (*changed, *nearest.values())


def _size(worth: KnobWorth) -> float:
    return -worth.ratio.mid if worth.ratio else -math.inf


def _sure_order(
    told: Sequence[KnobWorth], changed: Sequence[int], gains: Any, covariance: Any
) -> list[tuple[str, str]]:
    pairs = []
    for i in changed:
        for j in changed:
            variance = covariance[i, i] + covariance[j, j] - 2 * covariance[i, j]
            reach = normal_quantile * math.sqrt(max(variance, 0.0))
            if told[i].ratio and told[j].ratio and gains[i] - gains[j] > reach:
                pairs.append((told[i].path, told[j].path))
    return pairs


def _check(
    surface: Surface, readings: Sequence[Reading], choices: Mapping[str, Sequence[Any]]
) -> tuple[float | None, tuple[int, int] | None]:
    """Each measured configuration against what the others say of it."""
    groups: dict[tuple[Any, ...], list[Reading]] = {}
    for reading in readings:
        if reading.against is None:
            groups.setdefault(_key(reading.values, choices), []).append(reading)
    errors, inside = [], 0
    for group in groups.values():
        told = surface.leave_out(group[0].values)
        if told is None:
            continue
        seen = sum(reading.log_rate for reading in group) / len(group)
        within = sum(reading.deviation**2 for reading in group) / len(group)
        deviation = math.sqrt(told[1] ** 2 + (surface.noise**2 + within) / len(group))
        errors.append(math.expm1(abs(told[0] - seen)))
        inside += abs(told[0] - seen) <= normal_quantile * deviation
    return (float(np.median(errors)), (inside, len(errors))) if errors else (None, None)


def _count(readings: Sequence[Reading], point: Values) -> int:
    return sum(reading.values == point for reading in readings)


def _key(values: Values, choices: Mapping[str, Sequence[Any]]) -> tuple[Any, ...]:
    return tuple(values[path] for path in choices)
