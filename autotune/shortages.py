"""Why combinations do not fit into memory, asked of few of them: depths and checkpointing only add or take.

Of combinations that are alike but for such knobs, the hungriest and the leanest answer for most others. Knows
nothing of how memory is counted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from autotune.telemetry import Values

hungry_depths = ("transport.depth", "pipeline.prefetch_depth")  # the deeper, the more memory
checkpointing = "drafter.checkpointing"


class Shortages:
    """`ask` says why values do not fit, or None; values are those of searched knobs, `choices` theirs."""

    def __init__(self, choices: Mapping[str, tuple[Any, ...]], ask: Callable[[Values], str | None]) -> None:
        self._ask = ask
        depths = [path for path in hungry_depths if path in choices]
        self._most: dict[str, Any] = {path: max(choices[path]) for path in depths}
        self._least: dict[str, Any] = {path: min(choices[path]) for path in depths}
        if len(choices.get(checkpointing, ())) > 1:
            self._most[checkpointing], self._least[checkpointing] = "none", "layers"
        self._known: dict[tuple[Any, ...], str | None] = {}

    def find(self, values: Values) -> str | None:
        """Why these values do not fit; None where they do, or where nobody knows."""
        if self._at({**values, **self._most}) is None:
            return None
        return self._at({**values, **self._least}) or self._at(values)

    def _at(self, values: Values) -> str | None:
        point = tuple(values.values())
        if point not in self._known:
            self._known[point] = self._ask(values)
        return self._known[point]
