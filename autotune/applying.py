"""Which trials of an earlier space still say something in a space that was changed.

A trial ran with a whole configuration: the starting one with its own values. In another space of the same
starting configuration it applies where that whole configuration lies in it. Pure functions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from autotune.space import Space
from autotune.telemetry import Values
from autotune.trial import Trial


@dataclass(frozen=True, slots=True)
class Stray:
    """A trial of an earlier space that says nothing in this one."""

    trial: Trial
    reason: str


def base_values(space: Space) -> Mapping[str, Any]:
    """What holds wherever nothing is searched: every knob of the starting configuration."""
    config = space.config(space.baseline)
    return space.baseline if config is None else config.values()


def translate(values: Values, space: Space, base: Mapping[str, Any]) -> tuple[dict[str, Any] | None, str]:
    """`values` of an earlier space as values of `space`; None, and why, where they do not lie in it.

    `base`: the knobs that hold where nothing is searched, as `base_values` gives them.
    """
    for path, value in values.items():
        if path not in space.paths and base.get(path) != value:
            return None, f"{path} = {value} is not searched any more"
    translated = {}
    for axis in space.dimensions:
        value = values.get(axis.path, base.get(axis.path))
        if value not in axis.choices:
            return None, f"{axis.path} = {value} is none of the choices any more"
        translated[axis.path] = value
    reason = space.why_not(translated)
    return (translated, "") if reason is None else (None, reason)


def sort_out(trials: Iterable[Trial], space: Space) -> tuple[tuple[Trial, ...], tuple[Stray, ...]]:
    """The trials that apply to `space`, with their values in it, and those that do not."""
    base = base_values(space)
    applying, strays = [], []
    for trial in trials:
        values, reason = translate(trial.values, space, base)
        if values is None:
            strays.append(Stray(trial, reason))
        else:
            applying.append(trial.replacing(values=values))
    return tuple(applying), tuple(strays)
