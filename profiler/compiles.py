"""What torch.compile cost each stage thread in a range. Knows nothing of why it compiled."""

from __future__ import annotations

import numpy as np
import pandas as pd

from profiler.waits import stages

compile_columns = ["stage", "index", "compiles", "recompiles", "seconds"]


def count_compiles(events: pd.DataFrame, lo_ns: int, hi_ns: int) -> pd.DataFrame:
    """One row a stage thread that compiled in [lo_ns, hi_ns): how often, how often again, and its seconds."""
    mine = events[events["stage"].isin(stages)]
    spans = mine[(mine["kind"] == "span") & (mine["name"] == "compile")]
    start = spans["t_ns"].to_numpy(dtype=np.int64)
    inside = (start + spans["dur_ns"].to_numpy(dtype=np.int64)).clip(lo_ns, hi_ns) - start.clip(lo_ns, hi_ns)
    spans = spans.assign(seconds=inside / 1e9)[inside > 0]
    gauges = mine[(mine["kind"] == "gauge") & (mine["name"] == "recompiles")]
    rows = [
        {
            "stage": str(key[0]),
            "index": key[1],
            "compiles": len(group),
            "recompiles": _rise(
                gauges[(gauges["stage"] == key[0]) & (gauges["index"] == key[1])], lo_ns, hi_ns
            ),
            "seconds": float(group["seconds"].sum()),
        }
        for key, group in spans.groupby(["stage", "index"], observed=True)
    ]
    return pd.DataFrame(rows, columns=compile_columns)


def tuning_seconds(events: pd.DataFrame, lo_ns: int, hi_ns: int) -> float | None:
    """Seconds in [lo_ns, hi_ns) that torch timed kernels to choose from; None where nobody counted."""
    gauges = events[(events["kind"] == "gauge") & (events["name"] == "autotune_s")]
    return _rise(gauges, lo_ns, hi_ns) if len(gauges) else None


def _rise(gauges: pd.DataFrame, lo_ns: int, hi_ns: int) -> float:
    """By how much a total rose in [lo_ns, hi_ns); it was 0 before its first gauge."""
    before = gauges.loc[gauges["t_ns"] < lo_ns, "value"]
    until = gauges.loc[gauges["t_ns"] < hi_ns, "value"]
    return float(until.max() if len(until) else 0.0) - float(before.max() if len(before) else 0.0)
