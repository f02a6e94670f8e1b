"""What a batch costs in each stage, inferred for every configuration from the stage figures of the trials.

The logarithm of each cost is a function of weights with a prior: an affine law in the tokens of a batch, a
term for the number of threads, and one for each choice of a knob that the physics has no place for. Each
trial yields about nine figures to one regression. Where no figures are given the priors stand, and rates move
them. Knows nothing of queues.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autotune.guided.physics import Layout, costs_of
from autotune.telemetry import Telemetry
from profiler.forecast.model import hops

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
figure_deviation: Final = 0.06  # of one stage figure: the run's noise, and what the law does not catch
unseen_bytes: Final = 51_200.0  # of hidden states a token, where no trial says: 5 taps of 5,120 in 16 bits
reference_tokens: Final = 16_384.0
_copy_fixed_s: Final = 1e-4
# Priors of the logarithms of weights: (mean, deviation).
fixed_prior: Final = (
    math.log(0.1),
    0.8,
)  # of what a batch takes besides its tokens, in batches of the reference
power_prior: Final = (0.03, 0.05)  # the largest batches fall behind the affine law
effect_prior: Final = (0.0, 0.12)  # of a choice that the physics has no place for
known_effects: Final = {  # recomputing a layer is another forward to every forward and backward
    ("backward", "drafter.checkpointing=layers"): (0.22, 0.1),
    ("backward", "drafter.checkpointing=none"): (-0.22, 0.1),
}
_rounds: Final = 5
_way: Final = {
    "pageable down": 4e9,
    "pageable up": 8e9,
    "pinned down": 25e9,
    "pinned up": 25e9,
    "peer": 60e9,
    "move": 30e9,
}


@dataclass
class Weights:
    """The names of the weights with their priors."""

    names: list[str] = field(default_factory=list)
    means: list[float] = field(default_factory=list)
    deviations: list[float] = field(default_factory=list)

    def add(self, name: str, mean: float, deviation: float) -> None:
        self.names.append(name)
        self.means.append(mean)
        self.deviations.append(deviation)

    def at(self, name: str) -> int:
        return self.names.index(name)


@dataclass(frozen=True)
class Figures:
    """One run's stage figures as logarithms: (name of the cost or hop, log seconds, deviation)."""

    row: int
    rows: tuple[
        tuple[str, float, float, float], ...
    ]  # name, log seconds, deviation, amount (tokens or bytes)


class CostModel:
    """The law: log costs of rows, and how they go with the weights."""

    def __init__(
        self, layout: Layout, effects: Mapping[str, Floats], token_bytes: float, pace_s: float
    ) -> None:
        """`effects`: {name: [M] 0 or 1} of choices besides; `pace_s`: about what a token's forward takes."""
        self.layout, self.token_bytes = layout, token_bytes
        self.effects = dict(effects)
        self.threads = np.log((layout.targets + layout.drafters) / 4.0)
        self.weights = Weights()
        w = self.weights
        for stage, ratio, spread in (("forward", 1.0, 1.0), ("backward", 0.7, 0.9), ("pack", 0.03, 1.0)):
            w.add(f"{stage} token", math.log(pace_s * ratio), spread)
            w.add(f"{stage} fixed", *fixed_prior)
            w.add(f"{stage} power", *power_prior)
            w.add(f"{stage} threads", 0.03, 0.06)
            for effect in self.effects:
                w.add(f"{stage} {effect}", *known_effects.get((stage, effect), effect_prior))
        w.add("step", math.log(pace_s * 0.04 * float(np.mean(layout.batches * layout.tokens))), 1.2)
        w.add("merge", math.log(0.1), 1.0)
        for hop, speed in _way.items():
            w.add(hop, -math.log(speed), 0.9)
        w.add("copy threads", 0.2, 0.3)

    @property
    def size(self) -> int:
        return len(self.weights.names)

    def stage(self, name: str, rows: Ints, tokens: Floats, w: Floats) -> tuple[Floats, Floats]:
        """Log seconds of a batch, [m], and their slopes [m, P]."""
        at = self.weights.at
        slopes = np.zeros((len(rows), self.size))
        x = tokens / reference_tokens
        fixed = math.exp(w[at(f"{name} fixed")])
        logs = w[at(f"{name} token")] + np.log(reference_tokens * (x + fixed))
        slopes[:, at(f"{name} token")] = 1.0
        slopes[:, at(f"{name} fixed")] = fixed / (x + fixed)
        parts = {f"{name} power": np.log(x), f"{name} threads": self.threads[rows]}
        parts |= {f"{name} {effect}": column[rows] for effect, column in self.effects.items()}
        for part, column in parts.items():
            logs = logs + w[at(part)] * column
            slopes[:, at(part)] = column
        return logs, slopes

    def step(self, rows: Ints, w: Floats) -> tuple[Floats, Floats]:
        """Log seconds of sum and optimizer step."""
        at = self.weights.at
        slopes = np.zeros((len(rows), self.size))
        more = self.layout.drafters[rows] - 1.0
        merge = math.exp(w[at("merge")])
        slopes[:, at("step")] = 1.0
        slopes[:, at("merge")] = merge * more / (1.0 + merge * more)
        return w[at("step")] + np.log1p(merge * more), slopes

    def copy(self, hop: str, rows: Ints, amounts: Floats, w: Floats) -> tuple[Floats, Floats]:
        """Log seconds of one copy of so many bytes."""
        at = self.weights.at
        slopes = np.zeros((len(rows), self.size))
        rate = np.exp(w[at(hop)] + w[at("copy threads")] * self.threads[rows])
        moving = amounts * rate
        share = moving / (moving + _copy_fixed_s)
        slopes[:, at(hop)] = share
        slopes[:, at("copy threads")] = share * self.threads[rows]
        return np.log(moving + _copy_fixed_s), slopes

    def costs(self, w: Floats) -> tuple[Floats, list[Floats]]:
        """Seconds [7, M] in the order of `costs_of`, and the slopes of their logarithms, each [M, P]."""
        at = self.layout
        rows: Ints = np.arange(len(at.tokens), dtype=np.int64)
        logs, slopes = {}, {}
        for name in ("pack", "forward", "backward"):
            logs[name], slopes[name] = self.stage(name, rows, at.tokens, w)
        logs["step"], slopes["step"] = self.step(rows, w)
        amounts = at.tokens * self.token_bytes
        way = {hop: self.copy(hop, rows, amounts, w) for hop in _way}
        for end, which in (("down", 0), ("up", -1)):
            logs[end], slopes[end] = way[hops["peer"][which]]
            for path, mask in (("pageable", at.pageable), ("pinned", at.pinned)):
                other = way[hops[path][which]]
                logs[end] = np.where(mask, other[0], logs[end])
                slopes[end] = np.where(mask[:, None], other[1], slopes[end])
        logs["move"], slopes["move"] = way["move"]
        return np.exp(np.stack([logs[name] for name in costs_of])), [slopes[name] for name in costs_of]

    def read(self, name: str, rows: Ints, amounts: Floats, w: Floats) -> tuple[Floats, Floats]:
        """What the law says of a figure."""
        if name in _way:
            return self.copy(name, rows, amounts, w)
        if name == "step":
            return self.step(rows, w)
        return self.stage(name, rows, amounts, w)


@dataclass(frozen=True)
class CostBelief:
    """Of the weights: the mean and the covariance that figures leave."""

    mean: Floats
    covariance: Floats


def figures_of(row: int, told: Telemetry) -> Figures:
    """The stage figures of one run."""
    rows = []
    names = {"prefetch": "pack", "target": "forward", "drafter": "backward"}
    for stage, name in names.items():
        found = told.stages.get(stage)
        if found is not None and found.busy_s > 0 and found.tokens > 0:
            deviation = math.hypot(figure_deviation, 0.1 / math.sqrt(max(found.batches, 1)))
            rows.append((name, math.log(found.busy_s), deviation, found.tokens))
    if told.step_s:
        rows.append(("step", math.log(told.step_s), 2 * figure_deviation, 1.0))
    for hop, copy in told.copies.items():
        if hop in _way and copy.seconds > 0 and copy.bytes > 0:
            rows.append((hop, math.log(copy.seconds), 2 * figure_deviation, copy.bytes))
    return Figures(row, tuple(rows))


def fit_costs(model: CostModel, figures: Sequence[Figures]) -> CostBelief:
    """The weights after the figures: Gauss-Newton on the logarithms, with the priors."""
    mean0, spread = np.array(model.weights.means), np.array(model.weights.deviations)
    precision = np.diag(1.0 / spread**2)
    grouped: dict[str, list[tuple[int, float, float, float]]] = {}
    for each in figures:
        for name, seconds, deviation, amount in each.rows:
            grouped.setdefault(name, []).append((each.row, seconds, deviation, amount))
    w, information = mean0.copy(), precision
    for _ in range(_rounds if grouped else 0):
        information, pull = precision.copy(), precision @ (mean0 - w)
        for name, told in grouped.items():
            rows = np.array([each[0] for each in told], dtype=np.int64)
            values = np.array([each[1:] for each in told])
            seconds, deviations, amounts = values.T
            logs, slopes = model.read(name, rows, amounts, w)
            weights = deviations**-2.0
            information += (slopes * weights[:, None]).T @ slopes
            pull += slopes.T @ (weights * (seconds - logs))
        w = w + np.clip(np.linalg.solve(information, pull), -1.5, 1.5)
    covariance = np.linalg.inv(information)
    return CostBelief(w, 0.5 * (covariance + covariance.T))
