"""From what a run left to the numbers of its pipeline, with draws of what they might as well have been.

Each stage's work is an affine function of tokens, fitted robustly; a weak prior keeps the split between fixed
and per-token time sane where batches were all of one size. On logical devices the slowdown by others at work
on the same cores is taken out. Knows nothing of what is asked of the model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
from numpy.typing import NDArray

from profiler.forecast.closed_form import stage_slowdowns
from profiler.forecast.model import Line, PipelineModel, pageable_deviation, usual_pageable
from profiler.forecast.observations import Observations, launch_bound

Floats = NDArray[np.float64]
draws: Final = 60  # of the bootstrap
gpu_sharing_gain: Final = 1.1  # one and two H200, Qwen3-8B shapes: 1.06 to 1.14 times in turns
# Two stages that computed all the time on two cores took 12 % longer each; more comes of other load, which
# makes batches long and so lets more of them run beside each other.
most_crowding: Final = 0.2
_huber: Final = 1.5  # deviations from where on a batch counts for less
_seed: Final = 0


@dataclass(frozen=True, slots=True)
class Prior:
    """What is known of the share of a batch's time that does not depend on its tokens, before any is seen."""

    fixed_share: float
    deviation: float


usual: Final = Prior(0.2, 0.25)
# A GPU that is given work faster than it does it: kernels that begin and end, weights that are read.
gpu_keeps_busy: Final = Prior(0.04, 0.04)


@dataclass(frozen=True, slots=True)
class Fit:
    """The best model and others that the same run would allow."""

    model: PipelineModel
    others: tuple[PipelineModel, ...]


@dataclass(frozen=True, slots=True)
class LineFit:
    """A line with draws of it, and how far batches lie from it."""

    line: Line
    others: tuple[Line, ...]
    noise: float  # relative standard deviation of a batch


def fit_line(
    amounts: Floats, seconds: Floats, *, prior: Prior = usual, seed: int = _seed, count: int = draws
) -> LineFit:
    """Seconds over amounts. Outliers count for less; neither part is negative."""
    generator = np.random.default_rng(seed)
    if not len(amounts):
        return LineFit(Line(), (Line(),) * count, 0.0)
    x, y = amounts / amounts.mean(), seconds
    weights = np.ones_like(y)
    for _ in range(6):
        a, b = _solve(
            x, y, weights[None], np.array([prior.fixed_share]), prior.deviation, _variance(x, y, weights)
        )
        residuals = y - (a[0] + b[0] * x)
        scale = max(1.4826 * float(np.median(np.abs(residuals))), 1e-9 * float(y.mean()))
        weights = np.minimum(1.0, _huber * scale / np.maximum(np.abs(residuals), 1e-300))
    # Weights hold outliers down, and with them the mean where times are skewed; throughput is of means.
    a, b = a * (level := _level(x, y, float(a[0]), float(b[0]))), b * level
    deviations = np.clip(y / np.maximum(a[0] + b[0] * x, 1e-12) - 1.0, -1.0, 2.0)
    counted = weights[None] * _resampled(len(y), count, generator)
    priors = np.clip(generator.normal(prior.fixed_share, prior.deviation, count), 0.0, 1.0)
    others = _solve(x, y, counted, priors, prior.deviation, _variance(x, y, weights))
    unit = float(amounts.mean())
    return LineFit(
        Line(float(a[0]), float(b[0]) / unit),
        tuple(
            Line(float(fixed) * level, float(slope) * level / unit)
            for fixed, slope in zip(*others, strict=True)
        ),
        float(deviations.std()),
    )


def _level(x: Floats, y: Floats, fixed: float, slope: float) -> float:
    """The factor that brings the line's mean to that of the times, the wildest hundredth set aside."""
    ratios = y / np.maximum(fixed + slope * x, 1e-12)
    return float(np.minimum(ratios, np.percentile(ratios, 99)).mean())


def _variance(x: Floats, y: Floats, weights: Floats) -> float:
    """Of a time around the mean; never nothing, so that exact times still leave the prior a trace."""
    slope = float(np.cov(x, y)[0, 1] / max(np.var(x, ddof=1), 1e-12)) if len(x) > 2 and np.ptp(x) > 0 else 0.0
    residuals = y - y.mean() - slope * (x - x.mean())
    return max(float((weights * residuals**2).sum() / weights.sum()), (1e-6 * float(y.mean())) ** 2)


def _solve(
    x: Floats, y: Floats, weights: Floats, prior: Floats, deviation: float, variance: float
) -> tuple[Floats, Floats]:
    """Weighted least squares with a prior on the fixed part, one solution a row of `weights`."""
    mean = float(y.mean())
    strength = variance / (deviation * mean) ** 2 if mean > 0 else 0.0
    s0, s1, s2 = weights.sum(1) + strength, _sums(weights, x), _sums(weights, x * x)
    t0, t1 = _sums(weights, y) + strength * prior * mean, _sums(weights, x * y)
    determinant = np.maximum(s0 * s2 - s1**2, 1e-300)
    fixed = (t0 * s2 - t1 * s1) / determinant
    only_fixed, only_slope = t0 / s0, t1 / np.maximum(s2, 1e-300)
    slope = (s0 * t1 - s1 * t0) / determinant
    fixed, slope = np.where(fixed < 0, 0.0, fixed), np.where(fixed < 0, only_slope, slope)
    return np.where(slope < 0, only_fixed, fixed), np.where(slope < 0, 0.0, slope)


def _sums(weights: Floats, values: Floats) -> Floats:
    """`weights @ values`, without the threads of BLAS: they cost more CPU than they save on sums so small."""
    found: Floats = np.einsum("ij,j->i", weights, values)
    return found


def _resampled(size: int, count: int, generator: np.random.Generator) -> Floats:
    """How often each of `size` batches is drawn, in blocks of neighbours: [count, size]."""
    block = max(round(size ** (1 / 3)), 1)
    starts = generator.integers(0, max(size - block, 0) + 1, (count, -(-size // block)))
    rows = (starts[:, :, None] + np.arange(block)).reshape(count, -1)[:, :size]
    return np.stack([np.bincount(row, minlength=size) for row in rows]).astype(float)


def fit_model(runs: Sequence[Observations]) -> Fit:
    """One model of all runs, which must have trained the same."""
    first = runs[0]
    crowding = _fit_crowding(runs) if first.cores else 0.0
    slow = [(1.0, 1.0, 1.0)] * len(runs)
    fit = _fit_with(runs, slow, crowding)
    if first.cores:  # each run's work was slowed by its own stages
        for _ in range(3):
            slow = [stage_slowdowns(fit.model, run.setting, run.windows) for run in runs]
            fit = _fit_with(runs, slow, crowding)
    return fit


def _fit_with(
    runs: Sequence[Observations], slow: Sequence[tuple[float, float, float]], crowding: float
) -> Fit:
    first = runs[0]
    lines: dict[str, LineFit] = {}
    factors = _target_factors(first)
    for number, stage in enumerate(("prefetch", "target", "drafter")):
        parts = [(run.samples[stage], factor[number]) for run, factor in zip(runs, slow, strict=True)]
        seconds = [part.seconds / factor for part, factor in parts]
        if stage != "prefetch":
            seconds = [
                s * _alone(part.beside, run) for s, (part, _), run in zip(seconds, parts, runs, strict=True)
            ]
        if stage == "target":
            seconds[0] = seconds[0] / np.array([factors[i] for i in parts[0][0].index])
        tokens = np.concatenate([part.tokens for part, _ in parts])
        lines[stage] = fit_line(tokens, np.concatenate(seconds), prior=_prior(stage, runs), seed=number)
    steps = [run.step_s / factor[2] for run, factor in zip(runs, slow, strict=True)]
    merges = [run.merge_s / f[2] for run, f in zip(runs, slow, strict=True) if run.merge_s is not None]
    known = _join_links(runs)
    taken = {} if first.emulated else {hop: v for hop, v in usual_pageable.items() if hop not in known}
    links = {**known, **{hop: Line(0.0, 1.0 / speed) for hop, speed in taken.items()}}
    model = PipelineModel(
        pack=lines["prefetch"].line,
        forward=lines["target"].line,
        backward=lines["drafter"].line,
        target_extra=_mean_line([r.target_extra.times(1 / f[1]) for r, f in zip(runs, slow, strict=True)]),
        drafter_extra=_mean_line([r.drafter_extra.times(1 / f[2]) for r, f in zip(runs, slow, strict=True)]),
        step_s=float(np.mean(steps)),
        merge_s=float(np.mean(merges)) if merges else _unseen_merge_s(first, links),
        noise={stage: fit.noise for stage, fit in lines.items()},
        target_factors=tuple(factors),
        links=links,
        taken_hops=frozenset(taken),
        copy_factors=first.copy_factors,
        away_share=first.away_share,
        token_bytes=first.token_bytes,
        cores=first.cores,
        sharing_gain=None if first.emulated else gpu_sharing_gain,
        crowding=crowding,
        windows=first.windows,
        documents=first.documents,
    )
    others = zip(*(lines[stage].others for stage in ("prefetch", "target", "drafter")), strict=True)
    drawn = zip(others, _draw_links(model), strict=True)
    return Fit(
        model,
        tuple(replace(model, pack=p, forward=f, backward=b, links=ways) for (p, f, b), ways in drawn),
    )


def _draw_links(model: PipelineModel) -> list[Mapping[str, Line]]:
    """The links with what they might as well be where nobody measured them."""
    if not model.taken_hops:
        return [model.links] * draws
    factors = np.exp(np.random.default_rng(_seed).normal(0.0, pageable_deviation, draws))
    return [
        {
            hop: line.times(float(factor)) if hop in model.taken_hops else line
            for hop, line in model.links.items()
        }
        for factor in factors
    ]


def _prior(stage: str, runs: Sequence[Observations]) -> Prior:
    shares = [run.enqueueing.get(stage) for run in runs]
    busy = all(share is not None and share <= launch_bound for share in shares)
    return gpu_keeps_busy if busy else usual


def _alone(beside: Floats, run: Observations) -> Floats:
    """What part of its time a batch would take with a GPU for itself, where all roles share one.

    Spans on a GPU go on while it works for the other role: each then gets its part of what both get done.
    """
    setting = run.setting
    if run.emulated or len({*setting.target_places, *setting.drafter_places}) > 1:
        return np.ones_like(beside)
    others = np.clip(beside, 0.0, None)
    apart = np.minimum(others, 1.0)
    return np.where(
        others <= 1.0, 1.0 - apart + apart * gpu_sharing_gain / 2, gpu_sharing_gain / (1.0 + others)
    )


def _mean_line(lines: Sequence[Line]) -> Line:
    """The average of lines that were measured alike."""
    return Line(
        float(np.mean([line.fixed_s for line in lines])), float(np.mean([line.slope_s for line in lines]))
    )


def _unseen_merge_s(run: Observations, links: Mapping[str, Line]) -> float:
    """Of bringing a drafter's gradients to the first one; nothing on logical devices or where unknown."""
    if run.emulated or run.gradient_bytes is None or "peer" not in links:
        return 0.0
    return links["peer"].at(run.gradient_bytes)


def _join_links(runs: Sequence[Observations]) -> dict[str, Line]:
    """Of each hop the line of the first run that measured it, else the first that knows it."""
    known = {hop: line for run in reversed(runs) for hop, line in run.links.items()}
    measured = {hop: run.links[hop] for run in reversed(runs) for hop in run.measured_hops}
    return {**known, **measured}


def _target_factors(run: Observations) -> list[float]:
    """Each target's time against that of the usual one, per token; 1 within what noise explains.

    Of two that differ, the faster one is usual: a device may be slowed, not sped up.
    """
    mine = run.samples["target"]
    if not len(mine.tokens):
        return [1.0] * run.setting.targets
    pace = mine.seconds / np.maximum(mine.tokens, 1e-12)
    paces = np.array(
        [
            np.median(pace[mine.index == i]) if (mine.index == i).any() else np.nan
            for i in range(run.setting.targets)
        ]
    )
    usual = float(np.nanquantile(paces, 0.5, method="lower"))
    factors = np.where(np.isnan(paces), 1.0, paces / usual)
    return [float(f) if abs(f - 1.0) > 0.03 else 1.0 for f in factors]


def _fit_crowding(runs: Sequence[Observations]) -> float:
    """How much longer work took for each stage beside it, where cores sufficed: 0 to `most_crowding`."""
    above = below = 0.0
    for run in runs:
        for part in run.samples.values():
            if len(part.tokens) < 8:
                continue
            ratio = part.seconds / np.maximum(part.tokens, 1e-12)
            ratio = np.minimum(ratio / np.median(ratio), 2.0)
            beside = np.minimum(part.beside, max((run.cores or 1.0) - 1.0, 0.0))
            certainty = 1.0 / max(float(ratio.var()), 1e-6)  # a stage whose times scatter says little
            above += certainty * float(((beside - beside.mean()) * (ratio - ratio.mean())).sum())
            below += certainty * float(((beside - beside.mean()) ** 2).sum())
    return float(np.clip(above / below, 0.0, most_crowding)) if below > 1e-9 else 0.0
