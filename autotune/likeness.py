"""How alike two choices of a knob are: numbers by their ratio, splits by their targets and drafters.

Other choices are the same or not. Knows nothing of throughput.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from dflash.contract.errors import ConfigError
from dflash.contract.split import Split

number_reach: Final = 0.75  # of the range of a numeric knob; that far apart, choices are alike by 1/e
split_reach: Final = 1.5  # doublings of targets or drafters

Distance = Callable[[Any, Any], float]


class Likeness:
    """Of the choices of one knob, 0..1."""

    def __init__(self, choices: Sequence[Any]) -> None:
        self._distance = _distance_of(list(dict.fromkeys(choices)))

    def between(self, left: Sequence[Any], right: Sequence[Any]) -> NDArray[np.float64]:
        """An array (left, right)."""
        return np.array([[math.exp(-self._distance(a, b)) for b in right] for a in left])


def _distance_of(choices: Sequence[Any]) -> Distance:
    """The distance between two choices of this kind; at 1 they are alike by 1/e."""
    if all(isinstance(choice, int | float) and not isinstance(choice, bool) for choice in choices):
        return _numeric([float(choice) for choice in choices])
    if all(_is_split(choice) for choice in choices):
        return _split_distance
    return lambda a, b: 0.0 if a == b else math.inf


def _numeric(numbers: Sequence[float]) -> Distance:
    place: Callable[[float], float] = math.log if min(numbers, default=0.0) > 0 else float
    reach = number_reach * (place(max(numbers, default=1.0)) - place(min(numbers, default=1.0))) or 1.0
    return lambda a, b: abs(place(a) - place(b)) / reach


def _is_split(choice: object) -> bool:
    try:
        return isinstance(choice, str) and bool(Split.parse(choice))
    except ConfigError:
        return False


def _split_distance(left: str, right: str) -> float:
    a, b = Split.parse(left), Split.parse(right)
    doublings = abs(math.log2(a.targets / b.targets)) + abs(math.log2(a.drafters / b.drafters))
    return (doublings + (a.colocated != b.colocated)) / split_reach
