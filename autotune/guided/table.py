"""A space as arrays: every configuration a row of level numbers, and which rows lie next to each other.

Knows nothing of trials, rates or memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from autotune.space import Axis, Space
from autotune.telemetry import Values
from dflash.contract.errors import ConfigError
from dflash.contract.split import Split

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
reach: Final = 1.5  # steps of an ordered knob, or doublings of a split's sides, over which choices stay alike
_spread: Final = 4.0  # from this ratio of largest to smallest on, numbers are compared by their logarithms


@dataclass(frozen=True)
class Table:
    """The configurations of a space, [M] rows over [D] knobs."""

    axes: tuple[Axis, ...]
    configurations: tuple[Values, ...]
    codes: Ints  # [M, D]: which choice each row has of each knob

    @classmethod
    def of(cls, space: Space) -> Table:
        """The table of a space."""
        axes = tuple(space.dimensions)
        places = [{choice: i for i, choice in enumerate(axis.choices)} for axis in axes]
        rows = [
            [place[values[axis.path]] for axis, place in zip(axes, places, strict=True)]
            for values in space.configurations
        ]
        return cls(axes, tuple(space.configurations), np.array(rows, dtype=np.int64).reshape(-1, len(axes)))

    def __len__(self) -> int:
        return len(self.configurations)

    @cached_property
    def _rows(self) -> dict[tuple[int, ...], int]:
        return {tuple(code): row for row, code in enumerate(self.codes.tolist())}

    @cached_property
    def _levels(self) -> tuple[dict[Any, int], ...]:
        return tuple({choice: i for i, choice in enumerate(axis.choices)} for axis in self.axes)

    def row(self, values: Values) -> int | None:
        """The number of a configuration; None where it is not in the space."""
        code = tuple(
            level.get(values.get(axis.path), -1) for axis, level in zip(self.axes, self._levels, strict=True)
        )
        return self._rows.get(code)

    @cached_property
    def places(self) -> tuple[Floats | None, ...]:
        """Of each knob where its choices lie, [L, coordinates], in steps; None: no order."""
        return tuple(_places(axis) for axis in self.axes)

    @cached_property
    def likeness(self) -> tuple[Floats, ...]:
        """Of each knob how alike its choices are, [L, L], 1 on the diagonal."""
        return tuple(_likeness(axis, places) for axis, places in zip(self.axes, self.places, strict=True))

    def neighbours(self, row: int) -> tuple[int, ...]:
        """The rows one step of one knob away."""
        found: list[int | None] = []
        for knob, axis in enumerate(self.axes):
            steps = self._steps(axis, knob, int(self.codes[row, knob]))
            found += [self._nearest(row, knob, level) for level in steps]
        return tuple(dict.fromkeys(other for other in found if other is not None and other != row))

    def _steps(self, axis: Axis, knob: int, level: int) -> list[int]:
        places = self.places[knob]
        if places is None:
            return [other for other in range(len(axis.choices)) if other != level]
        if places.shape[1] > 1:  # splits: one device more, less or moved over
            return _split_steps(axis, level)
        ranks = np.argsort(places[:, 0], kind="stable")
        at = int(np.flatnonzero(ranks == level)[0])
        return [int(ranks[i]) for i in (at + 1, at - 1) if 0 <= i < len(ranks)]

    def _nearest(self, row: int, knob: int, level: int) -> int | None:
        """The row with that level which differs least elsewhere: a step may force another knob along."""
        code = self.codes[row].copy()
        code[knob] = level
        exact = self._rows.get(tuple(code.tolist()))
        if exact is not None:
            return exact
        rows = np.flatnonzero(self.codes[:, knob] == level)
        if not len(rows):
            return None
        apart = (self.codes[rows] != code).sum(1)
        return int(rows[int(np.argmin(apart))]) if apart.min() <= 1 else None


def _places(axis: Axis) -> Floats | None:
    if axis.is_ordered:
        numbers = np.array(axis.choices, dtype=float)
        if numbers.min() > 0 and numbers.max() >= _spread * numbers.min():
            numbers = np.log2(numbers)
        gap = np.ptp(numbers) / max(len(numbers) - 1, 1)
        return (numbers / (gap or 1.0))[:, None]
    splits = as_splits(axis.choices)
    if splits is None:
        return None
    return np.array([[math.log2(s.targets), math.log2(s.drafters), 1.5 * s.colocated] for s in splits])


def as_splits(choices: Sequence[Any]) -> list[Split] | None:
    """The choices as splits; None where any of them is none."""
    try:
        return (
            [Split.parse(choice) for choice in choices if isinstance(choice, str)]
            if all(isinstance(choice, str) for choice in choices)
            else None
        )
    except ConfigError:
        return None


def _likeness(axis: Axis, places: Floats | None) -> Floats:
    if places is None:
        return np.eye(len(axis.choices))
    squares = ((places[:, None] - places[None]) ** 2).sum(2)
    width = reach if places.shape[1] == 1 else 0.6 * reach
    alike: Floats = np.exp(-0.5 * squares / width**2)
    return alike


def _split_steps(axis: Axis, level: int) -> list[int]:
    splits = as_splits(axis.choices) or []
    mine = splits[level]
    found = []
    for other, split in enumerate(splits):
        moved = (abs(split.targets - mine.targets), abs(split.drafters - mine.drafters))
        if split.colocated == mine.colocated:
            near = max(moved) == 1
        else:
            near = split.devices == mine.devices and max(moved) <= max(mine.devices, 2) / 2
        if near and other != level:
            found.append(other)
    return found
