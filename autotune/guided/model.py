"""All that is believed of every configuration after a history: its rate, and whether it fits into memory.

Joins evidence, costs, physics, the process on what is left, and memory. Knows nothing of what to try next.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autotune.guided.belief import Belief, Prior
from autotune.guided.costs import CostModel, figures_of, fit_costs, unseen_bytes
from autotune.guided.evidence import Evidence
from autotune.guided.gaussian import square_root
from autotune.guided.memory import MemoryBelief, Seen
from autotune.guided.physics import Layout, log_rates, slopes, structure
from autotune.guided.places import Roles, Savings, guess_limit, peaks_of, pipeline_features, plain_features
from autotune.guided.table import Table
from autotune.space import Space
from autotune.telemetry import MemoryFigures
from autotune.trial import Trial
from profiler.forecast.setting import Setting

Floats = NDArray[np.float64]
unknown_rate: Final = 1e4  # tokens/s, before anything ran
plain_scale: Final = 4.0  # of effects where no physics explains any of them
physics_odds: Final = 4.0  # log odds of the physics against none, before any reading
forward_share: Final = 0.7  # of a target's time, before any stage figure
physical: Final = frozenset(
    {
        *(f"pipeline.{name}" for name in ("split", "token_budget", "prefetch_depth", "schedule")),
        *(f"transport.{name}" for name in ("preset", "queue", "path", "dispatch", "depth")),
        "devices.gpus",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Which parts of the model are at work; all, but where their worth is to be seen."""

    physics: bool = True
    memory: bool = True
    pairing: bool = True  # of measurements in one run
    certificate: bool = True  # neighbours looked at before the search ends


@dataclass(frozen=True)
class Frame:
    """What of a space does not change with trials."""

    table: Table
    settings: tuple[Setting, ...] | None  # of every row; None: its physics is not known
    effects: Mapping[str, Floats]  # a column for each choice that the physics has no place for
    _layouts: dict[tuple[float, float], Layout] = field(default_factory=dict)  # the last one made

    @classmethod
    def of(cls, space: Space) -> Frame:
        """The frame of a space."""
        table = Table.of(space)
        found = [space.setting(values) for values in table.configurations]
        known = tuple(setting for setting in found if setting is not None)
        return cls(table, known if known and len(known) == len(found) else None, _effects(table))

    @cached_property
    def roles(self) -> Roles:
        """What has its place where. Only where settings are known."""
        return Roles.of(self.settings or ())

    @cached_property
    def savings(self) -> Savings:
        """What choices that save memory leave of it, at first guess."""
        return Savings.of(self.table)

    def layout(self, window_tokens: float, fill: float) -> Layout | None:
        """What the physics needs of every row; None where it is not known."""
        if self.settings is None:
            return None
        key = (window_tokens, fill)
        if key not in self._layouts:
            self._layouts.clear()
            self._layouts[key] = Layout.of(self.settings, window_tokens, fill)
        return self._layouts[key]


class Model:
    """The posterior of one history."""

    def __init__(self, frame: Frame, trials: Sequence[Trial], parts: Parts) -> None:
        self.frame, self.table, self._parts = frame, frame.table, parts
        self.evidence = Evidence.of(self.table, trials)
        told = self.evidence.readings(self.table)
        self.readings = [r for r in told if parts.pairing or r.against is None]

    @cached_property
    def rates(self) -> Belief:
        """By the physics, or without where that explains the readings far better."""
        plain = Belief(self.table, self._plain_prior(), self.readings)
        if self._layout is None or not self._parts.physics:
            return plain
        physics = Belief(self.table, self._physics_prior(self._layout), self.readings)
        return physics if physics.evidence + physics_odds >= plain.evidence else plain

    @cached_property
    def memory(self) -> MemoryBelief | None:
        """None where that part is left out."""
        if not self._parts.memory:
            return None
        limit, settings = guess_limit(self.evidence.memories), self.frame.settings
        if settings is None or self._layout is None:
            features = plain_features(self.table)
        else:
            share = self._token_bytes / limit
            frame = self.frame
            features = pipeline_features(frame.roles, self._layout, frame.effects, share, frame.savings)

        def seen(row: int, memory: Mapping[str, MemoryFigures], fitted: bool) -> Seen:
            setting = settings[row] if settings else None
            plans = peaks_of(setting, memory, limit, planned=True)
            return Seen(row, fitted, peaks_of(setting, memory, limit), plans)

        fitting = [seen(run.row, run.told.memory, True) for run in self.evidence.runs]
        starved = [seen(row, memory, False) for row, memory in self.evidence.starved.items()]
        return MemoryBelief(features, [*fitting, *starved])

    @cached_property
    def fits(self) -> Floats:
        """The chance that each row fits into memory, 1 or 0 where that was seen."""
        chances = np.ones(len(self.table)) if self.memory is None else self.memory.fits()
        chances[list(self.evidence.counts)] = 1.0
        chances[list(self.evidence.starved)] = 0.0
        return chances

    @cached_property
    def _layout(self) -> Layout | None:
        settings = self.frame.settings
        if settings is None:
            return None
        runs = self.evidence.runs
        windows = [run.told.window_tokens for run in runs if run.told.window_tokens]
        windows += [float(s.window_tokens) for s in settings[:1] if s.window_tokens]
        most = max((s.token_budget or 1) * s.drafters for s in settings)
        window = windows[0] if windows else 2.0 * most
        fills = []
        for run in runs:
            figures, budget = run.told.stages.get("target"), settings[run.row].token_budget
            if figures is not None and budget and 2 * budget <= window:
                fills.append(min(figures.tokens / budget, 1.0))
        return self.frame.layout(window, round(float(np.median(fills)), 2) if fills else 1.0)

    @property
    def _token_bytes(self) -> float:
        said = [run.told.token_bytes for run in self.evidence.runs if run.told.token_bytes]
        return said[0] if said else unseen_bytes

    def _plain_prior(self) -> Prior:
        logs = [reading.value for reading in self.readings if reading.against is None]
        level = float(np.mean(logs)) if logs else math.log(unknown_rate)
        return Prior(np.full(len(self.table), level), np.zeros((len(self.table), 1)), plain_scale)

    def _physics_prior(self, layout: Layout) -> Prior:
        runs = self.evidence.runs
        pace_s = 1.0 / unknown_rate
        if runs:
            pace_s = forward_share * float(layout.targets[runs[0].row]) / runs[0].told.tokens_per_s
        costs = CostModel(layout, self.frame.effects, self._token_bytes, pace_s)
        fitted = fit_costs(costs, [figures_of(run.row, run.told) for run in runs])
        seconds, steep = costs.costs(fitted.mean)
        form = [mean for _, _, mean, _ in structure]
        along, bent = slopes(layout, seconds, form)
        with_weights = sum(part[:, None] * each for part, each in zip(along, steep, strict=True))
        spread = np.array([deviation for _, _, _, deviation in structure])
        doubts = np.hstack([with_weights @ square_root(fitted.covariance), bent.T * spread])
        return Prior(log_rates(layout, seconds, form), doubts)


def _effects(table: Table) -> dict[str, Floats]:
    return {
        f"{axis.path}={choice}": (table.codes[:, knob] == level).astype(float)
        for knob, axis in enumerate(table.axes)
        if axis.path not in physical
        for level, choice in enumerate(axis.choices)
        if level > 0
    }
