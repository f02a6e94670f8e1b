"""What a row of `story_table.py` tells of a recorded run beside its throughput.

Each figure is None where the run does not tell it. Knows nothing of which runs there are.
"""

from __future__ import annotations

from typing import Any

from autotune.run_figures import host
from autotune.telemetry import Telemetry
from benchmarks.exposed_copies import exposed_copy_ns
from dflash.contract.arrowlog import Row
from dflash.contract.events import event_schema
from profiler.examination import Examination
from profiler.gil_waits import measure_gil


def read_figures(examined: Examination, outcome: Telemetry) -> dict[str, Any]:
    """Memory, exposed copies, GIL waits by thread, power, energy, what the samplers cost, the verdict."""
    run, timeline = examined.run, examined.timeline
    first_ns, last_ns = timeline.range_ns
    copies_ns = exposed_copy_ns(_rows(examined), first_ns, last_ns)
    gil = measure_gil(run.samples, first_ns, last_ns)
    waits = {
        f"{each.stage} {each.index}": round(gil.by_tid[each.tid], 4)
        for each in examined.diagnosis.closing_sums
        if each.tid in gil.by_tid
    }
    power_w = timeline.gpus["power_w"].dropna()
    energy = outcome.energy_j_per_token
    return {
        "exposed_copy_share": copies_ns / max(last_ns - first_ns, 1),
        "gil_waits": waits or None,
        "gil_waits_reason": gil.reason,
        "power_w": float(power_w.sum()) if len(power_w) else None,
        "tokens_per_joule": 1 / energy if energy else None,
        "host_peak_gb": _gb(outcome, host),
        "device_peak_gb": {place: _gb(outcome, place) for place in outcome.memory if place != host},
        "samplers_cpu_s": {
            name: report.get("cpu_s") for name, report in (run.manifest.get("samplers") or {}).items()
        },
        "verdict": outcome.verdict,
    }


def _rows(examined: Examination) -> list[Row]:
    """The run's events as they were emitted."""
    events = examined.run.events.reindex(columns=event_schema.names)
    return list(events.itertuples(index=False, name=None))


def _gb(outcome: Telemetry, place: str) -> float | None:
    figures = outcome.memory.get(place)
    return None if figures is None else round(figures.peak_bytes / 1e9, 2)
