"""How long every batch's work took at every stage: one row a batch and stage, over the steady range.

Work that was timed on the GPU is taken from there. Knows nothing of why a batch took long.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

main_work: Final = {
    "prefetch": "pack",
    "target": "forward",
    "drafter": "backward",
}  # the span that carries a batch's tokens
batch_columns: Final = ["stage", "index", "device", "batch", "window", "tokens", "seconds", "beside"]


def read_batch_times(events: pd.DataFrame, lo_ns: int, hi_ns: int) -> pd.DataFrame:
    """Batches whose work lay wholly in the range, by time. `beside`: stages at work meanwhile, on average."""
    spans = events[(events["kind"] == "span") & events["stage"].isin(list(main_work))]
    spans = spans[spans["tokens"].notna() & (spans["dur_ns"] > 0)]
    spans = spans[(spans["t_ns"] >= lo_ns) & (spans["t_ns"] + spans["dur_ns"] <= hi_ns)]
    for stage in main_work:
        mine = spans["stage"] == stage
        keep = spans["name"] == name_main_work(stage, spans[mine], "dur_ns")
        if bool((spans.loc[mine & keep, "clock"] == "gpu").any()):
            keep &= spans["clock"] == "gpu"
        spans = spans[~mine | keep]
    spans = spans.assign(seconds=spans["dur_ns"] / 1e9, beside=_beside(spans))
    names = dict.fromkeys(("stage", "device"), object)  # not the categories of all events
    return spans[batch_columns].astype(names).reset_index(drop=True)


def name_main_work(stage: str, spans: pd.DataFrame, weight: str) -> str:
    """The span that carries a batch's tokens: the stage's own, else the longest of those with tokens."""
    counted = spans[spans["tokens"].notna()].groupby("name", observed=True)[weight].sum()
    known = main_work.get(stage, "")
    return known if known in counted.index or not len(counted) else str(counted.idxmax())


def _beside(spans: pd.DataFrame) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """For each span: other spans under way during it, averaged over its time."""
    start = spans["t_ns"].to_numpy(dtype=np.int64)
    end = start + spans["dur_ns"].to_numpy(dtype=np.int64)
    if not len(start):
        return np.zeros(0)
    times = np.concatenate([start, end])
    order = np.argsort(times, kind="stable")
    times = times[order] - start.min()
    running = np.cumsum(np.concatenate([np.ones(len(start)), -np.ones(len(end))])[order])
    work = np.concatenate([[0.0], np.cumsum(running[:-1] * np.diff(times))])
    done = np.interp(end - start.min(), times, work) - np.interp(start - start.min(), times, work)
    beside: np.ndarray[tuple[int], np.dtype[np.float64]] = done / (end - start) - 1.0
    return beside
