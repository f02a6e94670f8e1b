"""From events to what trackers plot: named numbers at optimizer steps.

Reads rows of `event_schema` as they are emitted. Names have a group and a figure (`train/loss`,
`held_out/acceptance_length`), as trackers make a chart or a section of each. Knows nothing of trackers.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dflash.contract.events import event_schema

_kind, _name, _t, _device, _channel, _window, _tokens, _value, _note = (
    event_schema.names.index(name)
    for name in ("kind", "name", "t_ns", "device", "channel", "window", "tokens", "value", "note")
)
_train = ("loss", "accuracy", "grad_norm", "lr", "supervised_tokens", "states_absent")
_held_out = ("loss", "accuracy", "acceptance_length", "acceptance_mean_of_means")
_memory = ("allocated_bytes", "reserved_bytes")


class Point(NamedTuple):
    """Figures after so many optimizer steps of the whole run, resumed ones included."""

    step: int
    t_ns: int  # CLOCK_MONOTONIC
    values: dict[str, float]  # finite


@dataclass(slots=True)
class FigureReader:
    """Fed with rows in the order they are emitted; quick with those that do not matter."""

    _last_end_ns: int | None = None
    _latest: dict[str, float] = field(default_factory=dict)  # gauges since the window before

    def read(self, row: tuple[Any, ...]) -> Iterator[Point]:
        """The points that this row completes: one at a window's end, one at an evaluation."""
        kind, name = row[_kind], row[_name]
        if kind == "gauge":
            if name == "depth":
                self._latest[f"queues/{row[_channel]}"] = row[_value]
            elif name in _memory:
                self._latest[f"memory/{row[_device]} {name}"] = row[_value]
        elif kind == "mark" and name == "window":
            yield self._window(row)
        elif kind == "mark" and name == "evaluation":
            note = json.loads(row[_note])
            yield Point(note["step"], row[_t], _figures("held_out", note, _held_out))

    def _window(self, row: tuple[Any, ...]) -> Point:
        values = _figures("train", json.loads(row[_note]), _train)
        end_ns, before_ns = row[_t], self._last_end_ns
        if before_ns is not None and end_ns > before_ns:
            values["speed/tokens_per_s"] = row[_tokens] / (end_ns - before_ns) * 1e9
        self._last_end_ns = end_ns
        values |= {name: value for name, value in self._latest.items() if math.isfinite(value)}
        self._latest.clear()
        return Point(row[_window] + 1, end_ns, values)


def _figures(group: str, note: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, float]:
    """Those of `names` that are known, and the accuracy of each slot. What is not known is left out."""
    told = {f"{group}/{name}": note.get(name) for name in names}
    told |= {
        f"{group}_slots/accuracy_{slot:02}": share
        for slot, share in enumerate(note.get("slot_accuracy") or (), start=1)
    }
    return {
        name: float(value)
        for name, value in told.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }
