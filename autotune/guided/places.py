"""What takes memory where: features of every configuration's places, and the peaks that trials saw there.

A pipeline's places are of few kinds: with targets, with drafters, the first drafter's (it sums gradients),
with both. Where no pipeline is known there is one kind with plain features of the knobs. Knows nothing of
chances.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autotune.guided.memory import Features
from autotune.guided.physics import Layout
from autotune.guided.table import Table
from autotune.telemetry import MemoryFigures
from profiler.forecast.setting import Setting

Floats = NDArray[np.float64]
kinds: Final = ("target", "drafter", "leader", "both")
usual_limits: Final = (16e9, 24e9, 32e9, 40e9, 48e9, 80e9, 96e9, 141e9, 192e9)  # of GPUs, where no trial says
effect_fixed: Final = 0.05  # of a choice that the pipeline has no place for: prior deviation, of the limit
effect_tokens: Final = 0.2
_spared: Final = 1.05
_saving: Final = {"drafter.checkpointing": 0.35, "objective.chunk_blocks": 0.25, "transport.trim": 0.3}
_paths: Final = ("peer", "pinned", "pageable")
# (name, prior mean, prior deviation) of each feature's weight, in shares of the limit
_features: Final = (
    ("target", 0.35, 0.2),
    ("target tokens", 0.2, 0.2),
    ("target tokens squared", 0.02, 0.06),
    ("target sends", 1.5, 1.0),
    ("drafter", 0.3, 0.2),
    ("drafter tokens", 0.6, 0.4),
    ("drafter tokens squared", 0.02, 0.06),
    ("drafter receives", 1.0, 0.7),
    ("target pins", 0.3, 0.6),
    ("drafter pins", 0.0, 0.6),
    ("drafter pages", 0.0, 0.4),
    ("peer queue", 1.0, 0.4),
    ("pinned queue", 0.2, 0.4),
    ("pageable queue", 0.0, 0.15),
    ("leads", 0.02, 0.03),
    ("both", -0.02, 0.05),
)


@dataclass(frozen=True)
class Roles:
    """How many of each role have their place on the fullest place of each kind, [M, K]."""

    targets: Floats
    drafters: Floats
    leads: Floats
    paths: Mapping[str, Floats]  # [M]: whether a setting's states wait in memory of that kind
    waiting: Floats  # [M]: batches that wait for one drafter
    budgets: Floats  # [M]: tokens of the largest batch; infinite where there is no budget

    @classmethod
    def of(cls, settings: Sequence[Setting]) -> Roles:
        """Of settings."""
        targets, drafters, leads = (np.zeros((len(settings), len(kinds))) for _ in range(3))
        for row, setting in enumerate(settings):
            for place, kind in _kinds_at(setting.target_places, setting.drafter_places).items():
                at = kinds.index(kind)
                here = (setting.target_places.count(place), setting.drafter_places.count(place))
                if sum(here) > targets[row, at] + drafters[row, at]:
                    targets[row, at], drafters[row, at] = here
                    leads[row, at] = place == setting.drafter_places[0]
        ways = [setting.path if setting.path in ("pageable", "pinned") else "peer" for setting in settings]
        paths = {path: np.array([way == path for way in ways], dtype=float) for path in _paths}
        waiting = np.array([math.ceil(s.depth * s.queues / s.drafters) for s in settings], dtype=float)
        budgets = np.array([s.token_budget or math.inf for s in settings], dtype=float)
        return cls(targets, drafters, leads, paths, waiting, budgets)


@dataclass(frozen=True)
class Savings:
    """What is left, [M], where choices that are known to save memory are made: first guesses."""

    activations: Floats  # of a drafter's share that grows with tokens
    states: Floats  # of hidden states on their way

    @classmethod
    def of(cls, table: Table) -> Savings:
        """Of a table's rows."""
        left = {True: np.ones(len(table)), False: np.ones(len(table))}
        for knob, axis in enumerate(table.axes):
            if axis.path in _saving:
                share = _saving[axis.path]
                saves = np.array([choice not in (0, False, "none", None) for choice in axis.choices])
                left[axis.path == "transport.trim"] *= np.where(saves[table.codes[:, knob]], 1.0 - share, 1.0)
        return cls(activations=left[False], states=left[True])


def pipeline_features(
    roles: Roles, layout: Layout, effects: Mapping[str, Floats], token_share: float, savings: Savings
) -> Features:
    """Of settings with these roles; `token_share`: hidden states of one token against the limit."""
    t, d = roles.targets, roles.drafters
    tokens = np.minimum(roles.budgets, layout.batches * layout.tokens)  # the fullest batch makes the peak
    held = (tokens * token_share * savings.states)[:, None]
    x = (tokens / tokens.max())[:, None]
    y = x * savings.activations[:, None]
    peer, pinned, pageable = (roles.paths[path][:, None] for path in _paths)
    waiting = d * roles.waiting[:, None] * held
    columns = [t, t * x, t * x**2, t * held, d, d * y, d * y * x, d * held]
    columns += [t * held * pinned, d * held * pinned, d * held * pageable]
    columns += [waiting * path for path in (peer, pinned, pageable)]
    columns += [roles.leads, ((t > 0) & (d > 0)).astype(float)]
    means, deviations = ([feature[i] for feature in _features] for i in (1, 2))
    for column in effects.values():
        for role in (t, d):
            columns += [role * column[:, None], role * column[:, None] * x]
            means += [0.0, 0.0]
            deviations += [effect_fixed, effect_tokens]
    rows = np.stack(columns, axis=2)
    return Features(rows, t + d > 0, kinds, np.array(means), np.array(deviations))


def plain_features(table: Table) -> Features:
    """Of knobs of which nothing is known."""
    columns, means, deviations = [np.ones(len(table))], [0.5], [0.3]
    ordered = []
    for knob, axis in enumerate(table.axes):
        if axis.is_ordered and len(axis.choices) > 1:
            numbers = np.array(axis.choices, dtype=float)
            rank = np.argsort(np.argsort(numbers)) / (len(numbers) - 1)
            size = numbers / np.abs(numbers).max()
            ordered.append(size[table.codes[:, knob]])
            columns += [rank[table.codes[:, knob]], ordered[-1]]
            means += [0.0, 0.08]
            deviations += [0.12, 0.25]
        elif len(axis.choices) > 1:
            for level in range(len(axis.choices)):
                columns.append((table.codes[:, knob] == level).astype(float))
                means.append(0.0)
                deviations.append(0.12)
    for i, one in enumerate(ordered):
        for other in ordered[:i]:
            columns.append(one * other)
            means.append(0.05)
            deviations.append(0.2)
    rows = np.stack(columns, axis=1)[:, None, :]
    return Features(
        rows, np.ones((len(table), 1), dtype=bool), ("place",), np.array(means), np.array(deviations)
    )


def peaks_of(
    setting: Setting | None, memory: Mapping[str, MemoryFigures], limit: float, *, planned: bool = False
) -> dict[str, float]:
    """The largest peak at each kind of place, as a share of its limit; or what was planned, where it was."""
    told = {
        place: (each.planned_bytes if planned else each.peak_bytes, each.limit_bytes or limit)
        for place, each in memory.items()
        if place != "host"
    }
    shares = {place: size / most for place, (size, most) in told.items() if size is not None}
    if setting is None:
        return {"place": max(shares.values())} if shares else {}
    numbered = _kinds_at(setting.target_places, setting.drafter_places)
    found: dict[str, float] = {}
    for place, share in shares.items():
        _, _, number = place.rpartition(":")
        kind = numbered.get(int(number)) if number.isdecimal() else None
        if kind is not None:
            found[kind] = max(found.get(kind, 0.0), share)
    return found


def guess_limit(memories: Sequence[Mapping[str, MemoryFigures]]) -> float:
    """The memory of a place: as said, else the smallest usual size above what was seen."""
    figures = [each for memory in memories for place, each in memory.items() if place != "host"]
    said = [each.limit_bytes for each in figures if each.limit_bytes]
    if said:
        return max(said)
    most = max((each.peak_bytes for each in figures), default=0.0) * _spared
    return next((size for size in usual_limits if size >= most), most)


@lru_cache(maxsize=4096)
def _kinds_at(targets: tuple[int, ...], drafters: tuple[int, ...]) -> dict[int, str]:
    found = {}
    for place in dict.fromkeys([*drafters, *targets]):
        if place in targets:
            found[place] = "both" if place in drafters else "target"
        else:
            found[place] = "leader" if place == drafters[0] else "drafter"
    return found
