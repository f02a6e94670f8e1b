"""A run over its steady range, as small tidy frames: what rules, reports and the search look at.

The range ends early when a target or drafter thread ended before the last window did: the tail in which
queues drain is not how the run works. Knows nothing of what is healthy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

import numpy as np
import pandas as pd

from dflash.contract.config import TrainConfig
from profiler.allocator import Allocator, measure_allocator, unread
from profiler.batch_times import batch_columns, name_main_work, read_batch_times
from profiler.compiles import (
    CompileStretch,
    compile_columns,
    count_compiles,
    find_stretch,
    measure_scatter,
    tuning_seconds,
)
from profiler.copy_times import read_copies
from profiler.depths import weigh_depths
from profiler.gil_waits import GilWaits, measure_gil
from profiler.gpu_identity import nodes_of_devices
from profiler.gpus import gpu_columns, gpu_warnings, measure_gpus
from profiler.held_by_copies import measure_held
from profiler.host_memory import HostMemory, measure_host_memory, unsampled
from profiler.idle_gaps import find_idle_gaps, gap_columns
from profiler.run import Run
from profiler.segments import find_cuts, is_long, stretches
from profiler.steady import SteadyRange, find_steady_range, read_windows
from profiler.turns import work_together
from profiler.waits import clip, close_devices, close_threads, thread_spans

service_columns = [
    "stage", "index", "device", "clock", "batches", "tokens", "work_s", "s_per_batch", "s_per_token",
]  # fmt: skip
warmup_part = 0.1  # of the steady range: a longer start is looked at for causes of its own
_most_warnings = 20  # of the trainer's own; more say nothing new
take_columns = ["index", "where", "takes", "bytes"]


@dataclass(frozen=True, eq=False, kw_only=True)
class Timeline:
    """One run between `range_ns`, on the monotonic clock.

    windows   window, start_ns, end_ns, seconds, tokens, documents, supervised_tokens, processed_tokens (all,
              not only the steady ones)
    threads   closing sum of each stage thread (host clock): stage, index, device, tid, kind, name, channel,
              path, ns, seconds, share. Kinds: work, copy, wait, gpu_wait, gil_wait, unaccounted. Adds up
              exactly.
    devices   the same from the device's side: GPU-timed work first, then what its idle time was spent on
    service   one row a stage thread: batches, tokens, seconds of work, per batch, per token, and whose clock
    depths    one row a channel, weighted by time (profiler/depths.py)
    copies    stage (`link`: beside the stages' own work), path, src, dst, copies, bytes, seconds, GB/s, and
              how long stages waited for them (profiler/copy_times.py)
    takes     drafter index, where (home, away, n/a), takes, bytes
    batches   one row a stage and batch: how long its work took (profiler/batch_times.py)
    together  of the time in which the stage works that works less: in what part the other does, too; or None
    compiles  one row a stage thread that compiled (profiler/compiles.py); `tuning_s`: seconds in which torch
              timed kernels to choose from, or None; `compile_stretch`: when they compiled again and again;
              `compile_scatter`: how unevenly, as the relative standard error of the time it took
    gil       which threads waited for the GIL or for a CPU, and who held it (profiler/gil_waits.py)
    gpus      one row a GPU of the run (profiler/gpus.py)
    idle_gaps when a GPU stood still for 100 ms or more (profiler/idle_gaps.py); `idle_unknown`: {uuid: why
              that cannot be told}
    samples   t_s (since the run's start), source, key, metric, value, reason
    """

    start_ns: int
    range_ns: tuple[int, int]
    steady: SteadyRange
    windows: pd.DataFrame
    threads: pd.DataFrame
    devices: pd.DataFrame
    service: pd.DataFrame
    depths: pd.DataFrame
    copies: pd.DataFrame
    takes: pd.DataFrame
    samples: pd.DataFrame
    batches: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=batch_columns))
    compiles: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=compile_columns))
    together: float | None = None
    held: Mapping[str, float] = field(default_factory=dict)  # by stage (profiler/held_by_copies.py)
    compile_stretch: CompileStretch | None = None
    compile_scatter: float | None = None
    tuning_s: float | None = None
    gil: GilWaits = field(default_factory=GilWaits)
    gpus: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=gpu_columns))
    idle_gaps: pd.DataFrame = field(default_factory=lambda: pd.DataFrame(columns=gap_columns))
    idle_unknown: Mapping[str, str] = field(default_factory=dict)
    host_memory: HostMemory = unsampled  # over the whole run
    allocator: Allocator = unread  # over the whole run
    memory_nodes: int | None = None  # of the host; None: unknown
    gpu_nodes: Mapping[str, int] = field(default_factory=dict)  # memory node of devices, where it is known
    kernels: Mapping[str, str] | None = None  # in use, by part; None: the run does not say
    config: TrainConfig | None = None
    config_values: Mapping[str, Any] = field(default_factory=dict)
    emulated: bool | None = None
    failure: str | None = None  # why the run failed; None: it did not, or that is unknown
    warnings: tuple[str, ...] = ()  # what the figures leave out
    segments: tuple[Timeline, ...] = ()  # of a run that changed for good: each stretch by itself

    @classmethod
    def of(cls, run: Run) -> Self:
        """The steady part of `run`; all of it when there are too few windows to tell (`steady.reason`).

        Of a run that changed for good, `segments` has each stretch.
        """
        windows, set_aside = read_windows(run.events)
        spans = thread_spans(run.events)
        whole = cls._over(run, windows, set_aside, spans)
        lo_ns, hi_ns = whole.range_ns
        if whole.steady.warmup_s > warmup_part * (hi_ns - lo_ns) / 1e9:  # too long for a mere warm-up
            lo_ns = int(windows["start_ns"].iloc[0])
        cuts = find_cuts(windows, spans, _levels(run.samples, lo_ns, hi_ns), lo_ns, hi_ns)
        steady_ns = whole.range_ns[0]
        if not cuts and lo_ns < steady_ns and is_long(windows, lo_ns, steady_ns):
            cuts = [steady_ns]  # a start unlike the rest, of which the pace alone tells
        if not cuts:
            return whole
        segments = []
        for begin_ns, end_ns in stretches(lo_ns, hi_ns, cuts):
            mine = windows[(windows["start_ns"] >= begin_ns) & (windows["end_ns"] <= end_ns)]
            segments.append(cls._over(run, mine.reset_index(drop=True), 0, spans, end_ns))
        return replace(whole, segments=tuple(segments))

    @classmethod
    def _over(
        cls, run: Run, windows: pd.DataFrame, set_aside: int, spans: pd.DataFrame, end_ns: int | None = None
    ) -> Self:
        """The steady part of the run's `windows`, at most until `end_ns`."""
        events, start_ns = run.events, run.start_ns
        steady = find_steady_range(windows, set_aside)
        lo_ns, hi_ns = _range(events, spans, steady, run.samples)
        hi_ns = hi_ns if end_ns is None else min(hi_ns, end_ns)
        gil = measure_gil(run.samples, lo_ns, hi_ns)
        stretch = find_stretch(events, windows, lo_ns, hi_ns, start_ns)
        threads, overlap_s = close_threads(spans, lo_ns, hi_ns, gil.by_tid)
        depths = weigh_depths(events, run.config_values, lo_ns, hi_ns)
        gpus = measure_gpus(run, lo_ns, hi_ns)
        idle_gaps, idle_unknown = find_idle_gaps(run, gpus, lo_ns, hi_ns)
        return cls(
            start_ns=start_ns,
            range_ns=(lo_ns, hi_ns),
            steady=steady,
            windows=windows,
            threads=threads,
            devices=close_devices(spans, lo_ns, hi_ns, gil.by_tid),
            service=_service(spans, lo_ns, hi_ns),
            depths=depths,
            copies=read_copies(events, lo_ns, hi_ns),
            takes=_takes(events, lo_ns, hi_ns),
            samples=_samples(run.samples, start_ns, lo_ns, hi_ns),
            batches=read_batch_times(events, lo_ns, hi_ns),
            together=work_together(spans, lo_ns, hi_ns),
            held=measure_held(spans, lo_ns, hi_ns),
            compiles=count_compiles(events, lo_ns, hi_ns),
            compile_stretch=stretch,
            compile_scatter=measure_scatter(events, stretch, lo_ns, hi_ns, start_ns),
            tuning_s=tuning_seconds(events, lo_ns, hi_ns),
            gil=gil,
            gpus=gpus,
            idle_gaps=idle_gaps,
            idle_unknown=idle_unknown,
            host_memory=measure_host_memory(run.samples, windows, start_ns),
            allocator=measure_allocator(events, windows, start_ns),
            memory_nodes=_memory_nodes(run.manifest),
            gpu_nodes=nodes_of_devices(run.manifest),
            kernels=_kernels(run.manifest),
            config=run.config,
            config_values=run.config_values,
            emulated=run.emulated,
            failure=_failure(run),
            warnings=(*_warnings(run, overlap_s, set_aside, depths), *gpu_warnings(gpus)),
        )

    @property
    def range_s(self) -> tuple[float, float]:
        """The range in seconds since the run's start."""
        lo_ns, hi_ns = self.range_ns
        return (lo_ns - self.start_ns) / 1e9, (hi_ns - self.start_ns) / 1e9

    @property
    def unified_memory(self) -> bool:
        """Whether all GPUs of the run live in the host's memory: figures of both are the same bytes."""
        return bool(len(self.gpus) and self.gpus["unified_memory"].all())

    def series(self, metric: str) -> pd.DataFrame:
        """The samples of one metric, in time order."""
        return self.samples[self.samples["metric"] == metric]


def _levels(samples: pd.DataFrame, lo_ns: int, hi_ns: int) -> pd.DataFrame:
    """What samples add to spans in telling that a run changed: waits for the GIL, clocks of GPUs."""
    found = [pd.DataFrame(columns=["t_ns", "name", "value"])]
    counts = samples[(samples["metric"] == "gil_wait_samples") & samples["value"].notna()]
    sweeps = samples[(samples["metric"] == "gil_sweeps") & samples["value"].notna()]
    edges = np.linspace(lo_ns, hi_ns, 61)
    if len(sweeps) >= 2 and hi_ns > lo_ns:
        looks = np.diff(np.interp(edges, sweeps["t_ns"], sweeps["value"]))
        for key, mine in counts.groupby("key", observed=True):
            waits = np.diff(np.interp(edges, mine["t_ns"], mine["value"]))
            value = np.divide(waits, looks, out=np.zeros_like(waits), where=looks > 0)
            middles = (edges[:-1] + edges[1:]) / 2
            found.append(pd.DataFrame({"t_ns": middles, "name": f"gil {key}", "value": value}))
    clocks = samples[(samples["metric"] == "sm_clock_mhz") & (samples["value"] > 0)]
    for key, mine in clocks.groupby("key", observed=True):
        value = mine["value"] / mine["value"].max()
        found.append(pd.DataFrame({"t_ns": mine["t_ns"], "name": f"clock {key}", "value": value}))
    return pd.concat([frame for frame in found if len(frame)] or found, ignore_index=True)


def _memory_nodes(manifest: Mapping[str, Any]) -> int | None:
    hardware = manifest.get("hardware")
    nodes = hardware.get("numa_nodes") if isinstance(hardware, Mapping) else None
    return len(nodes) if isinstance(nodes, Mapping) and nodes else None


def _kernels(manifest: Mapping[str, Any]) -> dict[str, str] | None:
    kernels = manifest.get("kernels")
    return {str(k): str(v) for k, v in kernels.items()} if isinstance(kernels, Mapping) else None


def _range(
    events: pd.DataFrame, spans: pd.DataFrame, steady: SteadyRange, samples: pd.DataFrame
) -> tuple[int, int]:
    if steady.windows_seen:
        lo_ns, hi_ns = steady.start_ns, steady.end_ns
    elif len(spans[spans["name"] != "ended"]):
        lo_ns, hi_ns = int(spans["start_ns"].min()), int(spans.loc[spans["name"] != "ended", "end_ns"].max())
    elif len(samples):  # a command that told nothing: all that was seen from outside
        lo_ns, hi_ns = int(samples["t_ns"].min()), int(samples["t_ns"].max())
    else:
        return 0, 0
    stops = events[(events["kind"] == "mark") & (events["name"] == "stop")]
    stops = stops[stops["stage"].isin(["target", "drafter"])]
    first_stop = int(stops["t_ns"].min()) if len(stops) else hi_ns
    # A stage may run out of batches before the first window ends, in a short run: then all there is is shown.
    return lo_ns, min(hi_ns, first_stop) if first_stop > lo_ns else hi_ns


def _service(spans: pd.DataFrame, lo_ns: int, hi_ns: int) -> pd.DataFrame:
    """Seconds of work a batch and a token. A name timed on the GPU is taken from there, not from the host."""
    start, end = clip(spans, lo_ns, hi_ns)
    inside = spans.assign(ns=end - start)
    inside = inside[(inside["ns"] > 0) & (inside["kind"] == "work")]
    rows = []
    for key, mine in inside.groupby(["stage", "index"], observed=True):
        stage, index = str(key[0]), key[1]
        on_gpu = set(mine.loc[mine["clock"] == "gpu", "name"])
        timed = mine[(mine["clock"] == "gpu") | ~mine["name"].isin(on_gpu)]
        main = timed[(timed["name"] == name_main_work(stage, timed, "ns")) & timed["tokens"].notna()]
        parts = main["ns"] / main["dur_ns"]  # a batch cut by the range's edge counts for its part
        batches, tokens = float(parts.sum()), float((parts * main["tokens"]).sum())
        work_s = float(timed["ns"].sum()) / 1e9
        rows.append(
            {
                "stage": stage,
                "index": index,
                "device": mine["device"].iloc[0],
                "clock": "gpu" if on_gpu else "host",
                "batches": batches,
                "tokens": tokens,
                "work_s": work_s,
                "s_per_batch": work_s / batches if batches else np.nan,
                "s_per_token": work_s / tokens if tokens else np.nan,
            }
        )
    return pd.DataFrame(rows, columns=service_columns)


def _takes(events: pd.DataFrame, lo_ns: int, hi_ns: int) -> pd.DataFrame:
    marks = events[(events["kind"] == "mark") & (events["name"] == "take")]
    marks = marks[marks["t_ns"].between(lo_ns, hi_ns, inclusive="left")]
    where = [note if note in ("home", "away") else "n/a" for note in marks["note"]]
    groups = marks.assign(where=where).groupby(["index", "where"], observed=True)
    table = groups.agg(takes=("t_ns", "size")).reset_index()
    table["bytes"] = groups["bytes"].agg(lambda b: b.sum(skipna=False)).to_numpy(dtype=float)
    return table[take_columns]


def _samples(samples: pd.DataFrame, start_ns: int, lo_ns: int, hi_ns: int) -> pd.DataFrame:
    times = samples["t_ns"].to_numpy()  # in order, so nothing has to be copied
    inside = samples.iloc[np.searchsorted(times, lo_ns) : np.searchsorted(times, hi_ns, side="right")]
    inside = inside.assign(t_s=(inside["t_ns"] - start_ns) / 1e9)
    return inside[["t_s", "source", "key", "metric", "value", "reason"]].reset_index(drop=True)


def _warnings(run: Run, overlap_s: float, windows_set_aside: int, depths: pd.DataFrame) -> tuple[str, ...]:
    told = [f"{name}: its end is missing (the writer was killed)" for name in run.torn]
    told += [f"{count} {reason}: left out" for reason, count in run.set_aside.items()]
    if windows_set_aside:
        told.append(
            f"{windows_set_aside} window marks without a count or with a clock that ran backwards: left out"
        )
    if overlap_s > 0:
        told.append(f"spans of one thread overlapped for {overlap_s:.3g} s: the earlier one keeps the time")
    marks = run.events[(run.events["kind"] == "mark") & (run.events["name"] == "warning")]
    told += [f"the trainer warned: {note}" for note in marks["note"].dropna()[:_most_warnings]]
    if run.config is None and depths["capacity"].isna().any():
        told.append("the configuration is missing or of another version: capacities of queues are unknown")
    imported = run.manifest.get("imported")
    notes = imported.get("notes") if isinstance(imported, Mapping) else None
    told += [str(note) for note in notes] if isinstance(notes, list) else []
    if (failure := _failure(run)) is not None:
        told.append(f"the run failed: {failure}")
    elif run.status.status == "unknown":
        told.append(f"how the run ended is unknown: {run.status.reason}")
    return tuple(told)


def _failure(run: Run) -> str | None:
    return (run.status.reason or "no reason was recorded") if run.status.status == "failed" else None
