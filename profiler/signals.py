"""What a run lets be seen: which signals it holds, which are missing and how to get them.

For runs that tell too little of themselves, such as those of a command that knows nothing of us. Knows
nothing of causes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import pandas as pd

from profiler.timeline import Timeline
from profiler.waits import name_of_part, stages

resident_metrics: Final = ("rss_anon_bytes", "rss_shmem_bytes", "rss_file_bytes")
instrument: Final = "tell them from inside, in ten lines: docs/probe-api.md"
_gpu_metric, _wait_metric = "util_pct", "gil_wait_samples"


@dataclass(frozen=True, slots=True)
class MissingSignal:
    """Something that was not recorded, and why or how to get it."""

    name: str
    reason: str


def missing_signals(timeline: Timeline) -> tuple[MissingSignal, ...]:
    """All that a diagnosis needs and this run lacks."""
    found = []
    if not len(timeline.threads):
        found.append(MissingSignal("work and waits of stages", instrument))
    elif not named_stages(timeline):
        recorded = ", ".join(sorted(set(map(str, timeline.threads["stage"]))))
        reason = f"the stages are called {recorded}; causes are known for target and drafter"
        found.append(MissingSignal("stages called target and drafter", reason))
    if not len(timeline.depths):
        found.append(MissingSignal("depths of queues", instrument))
    if not timeline.steady.windows_seen:
        found.append(MissingSignal("ends of optimizer steps with their tokens", instrument))
    no_gpu = _why_unsampled(timeline, "gpu", (_gpu_metric,))
    if no_gpu is not None:
        found.append(MissingSignal("GPU utilisation and power", no_gpu))
    no_waits, no_holders = _why_unsampled(timeline, "gil_wait", (_wait_metric,)), timeline.gil.no_holders
    if no_waits is not None and no_holders is not None:
        reason = f"waits: {no_waits}; holders: {no_holders}"
        found.append(MissingSignal("who holds the GIL and who waits for it", reason))
    return tuple(found)


def named_stages(timeline: Timeline) -> bool:
    """Whether any stage has a name that causes are known for."""
    return bool(set(timeline.threads["stage"]) & set(stages))


def cores_used(timeline: Timeline) -> float | None:
    """CPU cores that the run's processes kept busy, on average over the range."""
    total = _values(timeline, "host", "cpu_s", "tree")
    if len(total) < 2:
        return None
    spent_s = float(total["t_s"].iloc[-1] - total["t_s"].iloc[0])
    return float(total["value"].iloc[-1] - total["value"].iloc[0]) / spent_s if spent_s > 0 else None


def peak_resident_bytes(timeline: Timeline) -> float | None:
    """The largest resident memory of all processes together."""
    mine = timeline.samples[timeline.samples["metric"].isin(resident_metrics)]
    mine = mine[(mine["key"] == "tree") & mine["value"].notna()]
    sums = mine.groupby("t_s")["value"].sum()
    return float(sums.max()) if len(sums) else None


def mean_utilisation(timeline: Timeline) -> float | None:
    """Of the busiest GPU, 0 to 1; None when no GPU was read. A kernel that is resident need not do much."""
    values = _values(timeline, "gpu", _gpu_metric)
    means = values.groupby("key", observed=True)["value"].mean()
    return float(means.max()) / 100 if len(means) else None


def gil_held_share(timeline: Timeline) -> float | None:
    """Share of time in which any thread held the GIL."""
    values = _values(timeline, "gil", "gil_held_share")
    return float(values["value"].mean()) if len(values) else None


def stage_sums(timeline: Timeline) -> list[tuple[str, str, float]]:
    """Stage, what, and its share of the stage's time: work as a whole, and each wait."""
    rows = []
    for stage, mine in timeline.threads.groupby("stage", sort=False):
        total = float(mine["ns"].sum())
        is_work = mine["kind"].isin(["work", "gpu_wait"])
        rows.append((str(stage), "working", float(mine.loc[is_work, "ns"].sum()) / total if total else 0.0))
        waits = mine[mine["kind"] == "wait"]
        for (name, channel), part in waits.groupby(["name", "channel"], sort=False):
            what = name_of_part("wait", str(name), str(channel), "")
            rows.append((str(stage), f"waiting: {what}", float(part["ns"].sum()) / total if total else 0.0))
    return rows


def _values(timeline: Timeline, source: str, metric: str, key: str | None = None) -> pd.DataFrame:
    samples = timeline.samples
    mine = samples[(samples["source"] == source) & (samples["metric"] == metric) & samples["value"].notna()]
    return mine if key is None else mine[mine["key"] == key]


def _why_unsampled(timeline: Timeline, source: str, metrics: tuple[str, ...]) -> str | None:
    """Why a source gave none of these metrics; None when it gave one."""
    samples = timeline.samples
    mine = samples[(samples["source"] == source) & samples["metric"].isin(metrics)]
    if mine["value"].notna().any():
        return None
    reasons = mine["reason"].dropna()
    return str(reasons.iloc[0]) if len(reasons) else f"the {source} sampler left no readings"
