"""The memory ledger of a run: what was planned for each place, the peak that was seen, and what is between.

The plan (`memory_plan` in run.json) may be a stranger's, so anything of another form is left out. Knows
nothing of how a plan is made or a table drawn.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from profiler.gpu_identity import gpu_uses
from profiler.run import Run
from profiler.timeline import Timeline
from reports import text

host: Final = "host"
process: Final = "the process before it loaded anything: Python, libraries, the text"
no_plan: Final = "the run left no memory plan"
_readings: Final = (  # metric of a GPU, and whose memory it is
    ("own_mem_bytes", "this run's processes, by the driver"),
    ("mem_used_bytes", "all processes, by the driver"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRow:
    """One comparison, in words."""

    place: str
    what: str  # whose memory, and who says so
    expected: str
    seen: str
    difference: str
    lines: tuple[tuple[str, str, str], ...] = ()  # name, size, why


def compare_memory(run: Run, timeline: Timeline) -> tuple[MemoryRow, ...]:
    """A row for each place of the plan, with its entries, and one for torch's allocator where it told."""
    return tuple(row for place in _places(run) for row in _rows(run, timeline, place))


def _places(run: Run) -> Iterator[Mapping[str, Any]]:
    plan = run.manifest.get("memory_plan")
    places = plan.get("places") if isinstance(plan, Mapping) else None
    for place in places if isinstance(places, list) else []:
        if isinstance(place, Mapping) and isinstance(place.get("place"), str):
            yield place


def _rows(run: Run, timeline: Timeline, place: Mapping[str, Any]) -> Iterator[MemoryRow]:
    name = str(place["place"])
    what, seen, reason = _host_peak(timeline) if name == host else _gpu_peak(run, name)
    expected, lines = _size(place.get("needed_bytes")), tuple(_lines(place))
    before = _size(run.manifest["memory_plan"].get("process_bytes")) if name == host else None
    if before is not None and expected is not None:
        expected += before
        lines += ((process, text.data_size(before), "measured when the plan was made"),)
    yield _row(name, what, expected, seen, reason, lines)
    peak = _gauge_peak(run, name, "allocated_bytes")
    if peak is not None:
        yield _row(name, "torch's allocator", _size(place.get("allocated_bytes")), peak, "", ())


def _row(
    place: str,
    what: str,
    expected: float | None,
    seen: float | None,
    reason: str,
    lines: tuple[tuple[str, str, str], ...],
) -> MemoryRow:
    return MemoryRow(
        place=place,
        what=what,
        expected=text.data_size(expected, "the plan does not say"),
        seen=text.data_size(seen, reason),
        difference=_difference(expected, seen),
        lines=lines,
    )


def _difference(expected: float | None, seen: float | None) -> str:
    if expected is None or seen is None:
        return text.missing()
    gap = seen - expected
    of = f" ({text.share(abs(gap) / expected)})" if expected else ""
    if gap > 0:
        return f"{text.data_size(gap)}{of} not accounted for"
    return f"{text.data_size(-gap)}{of} less than planned"


def _lines(place: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    lines = place.get("lines")
    for line in lines if isinstance(lines, list) else []:
        if isinstance(line, Mapping):
            size = _size(line.get("bytes"))
            yield str(line.get("name")), text.data_size(size), str(line.get("why") or "")


def _host_peak(timeline: Timeline) -> tuple[str, float | None, str]:
    memory = timeline.host_memory
    what = "anonymous and shared memory of the run's processes"
    return what, memory.peak_bytes, memory.reason or "host memory was not sampled"


def _gpu_peak(run: Run, device: str) -> tuple[str, float | None, str]:
    uuids = [uuid for uuid, use in (gpu_uses(run.manifest) or {}).items() if use.device == device]
    samples = run.samples
    for metric, what in _readings:
        mine = samples[(samples["metric"] == metric) & samples["key"].isin(uuids)]
        peak = _peak(mine["value"].to_numpy(dtype=float))
        if peak is not None:
            return what, peak, ""
    reserved = _gauge_peak(run, device, "reserved_bytes")
    if reserved is not None:
        return "reserved by torch's allocator; without what CUDA takes for itself", reserved, ""
    return "this run's processes", None, "neither the driver nor torch told its memory"


def _gauge_peak(run: Run, device: str, name: str) -> float | None:
    events = run.events
    mine = events[(events["kind"] == "gauge") & (events["name"] == name) & (events["device"] == device)]
    return _peak(mine["value"].to_numpy(dtype=float))


def _peak(values: np.ndarray[Any, np.dtype[np.float64]]) -> float | None:
    finite = values[np.isfinite(values)]
    return float(finite.max()) if len(finite) else None


def _size(value: object) -> float | None:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return None
    return float(value) if np.isfinite(value) and value >= 0 else None
