"""The pipeline as it is now: what each stage thread spends its time on, and how full each queue is.

Knows nothing of why it is so.
"""

from __future__ import annotations

from typing import Any

import pandas as pd

from profiler.depths import weigh_depths
from profiler.gil_waits import GilWaits
from profiler.live.follower import Recent
from profiler.live.view import Number, QueueRow, StageRow, Wait
from profiler.run import missing_name
from profiler.waits import awaited, beside_stages, close_devices, name_of_part, thread_spans

_least_share = 0.005  # a wait below it is no news


def see_stages(recent: Recent, lo_ns: int, hi_ns: int, gil: GilWaits) -> tuple[StageRow, ...]:
    """One row a stage thread over [lo_ns, hi_ns), in the order of the data."""
    spans = thread_spans(recent.run.events)
    host = spans[(spans["clock"] == "host") & (spans["name"] != "ended")]
    keys = ["stage", "index", "device", "tid"]
    last_ns = host.groupby(keys, observed=True)["end_ns"].max()
    closed = close_devices(spans, lo_ns, hi_ns, gil.by_tid)
    groups = closed.groupby(keys, observed=True, sort=False)
    return tuple(_stage_row(key, parts, int(last_ns.get(key, lo_ns)), lo_ns, hi_ns) for key, parts in groups)


def _stage_row(key: Any, parts: pd.DataFrame, last_ns: int, lo_ns: int, hi_ns: int) -> StageRow:
    stage, index, device, _ = key
    ended = bool((parts["name"] == "ended").any())
    by_kind = parts.groupby("kind")["share"].sum()
    unaccounted = float(by_kind.get("unaccounted", 0.0))
    open_share = 0.0 if ended else (hi_ns - min(max(last_ns, lo_ns), hi_ns)) / (hi_ns - lo_ns)
    open_share = min(open_share, unaccounted)
    copy_wait = float(parts.loc[parts["name"] == "copy_wait", "share"].sum())
    return StageRow(
        stage=str(stage),
        index=int(index),
        device=str(device),
        work=float(by_kind.get("work", 0.0) + by_kind.get("gpu_wait", 0.0)),
        copy=float(by_kind.get("copy", 0.0)) + copy_wait,
        waits=_waits(str(stage), parts),
        open=open_share,
        rest=unaccounted - open_share,
        ended=ended,
        quiet_s=max(0.0, (hi_ns - last_ns) / 1e9),
    )


def _waits(stage: str, parts: pd.DataFrame) -> tuple[Wait, ...]:
    """Waits for other stages and for the GIL; those for a copy count as copying."""
    rows = parts[parts["kind"].isin(["wait", "gil_wait"]) & ~parts["name"].isin(["ended", *beside_stages])]
    waits = [
        Wait(
            awaited(stage, str(row["name"])),
            name_of_part(row["kind"], row["name"], row["channel"], missing_name),
            float(row["share"]),
        )
        for row in rows.to_dict("records")
        if row["share"] >= _least_share
    ]
    return tuple(sorted(waits, key=lambda wait: -wait.share))


def see_queues(recent: Recent, lo_ns: int, hi_ns: int) -> tuple[QueueRow, ...]:
    """One row a channel: `q_pre` first, then the hidden-state queues by number."""
    run = recent.run
    table = weigh_depths(run.events, run.config_values, lo_ns, hi_ns)
    gauges = run.events[(run.events["kind"] == "gauge") & (run.events["name"] == "depth")]
    now = gauges.groupby("channel", observed=True)["value"].last()
    rows = []
    for row in table.to_dict("records"):
        name = str(row["channel"])
        capacity = int(row["capacity"]) if row["capacity"] > 0 else None
        reason = None if capacity is not None else "neither the configuration nor the trainer says"
        rows.append(
            QueueRow(
                name=name,
                depth=int(now[name]),
                capacity=Number(capacity, reason),
                mean=float(row["mean"]),
                full_share=None if capacity is None else float(row["full_share"]),
                empty_share=float(row["empty_share"]),
            )
        )
    return tuple(sorted(rows, key=lambda row: _place(row.name)))


def _place(channel: str) -> tuple[bool, str, int, str]:
    family, _, number = channel.partition(".")
    return family != "q_pre", family, int(number) if number.isdecimal() else -1, channel
