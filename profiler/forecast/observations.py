"""What a run tells about its pipeline: batches with their times, copies, steps, windows.

Gathered from a Timeline. Knows nothing of how numbers are made of it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from dflash.contract.activations import float_bytes
from dflash.contract.config import TrainConfig
from dflash.contract.errors import RunError
from dflash.contract.memory_plan import Facts
from profiler.batch_times import main_work
from profiler.forecast.memory import read_facts
from profiler.forecast.model import Line, Windows, hops
from profiler.forecast.setting import Setting, observed_setting
from profiler.rules.verdicts import lacking
from profiler.run import Run, missing_name
from profiler.throughput import resample_rates
from profiler.timeline import Timeline

Floats = NDArray[np.float64]
least_computed: Final = 0.02  # of its work that a stage is taken to compute
small_copy_bytes: Final = 4096  # numbers that are read back, no states
slower_copies: Final = 1.1  # times the usual: less is noise
worth_telling: Final = 0.02  # of a forward, that a slow copy takes longer
launch_bound: Final = 0.8  # of a GPU's working time that its thread enqueued: more, and the GPU waited for it
window_parts: Final = ("sum", "optimizer", "checkpoint", "evaluate")  # work of a window, not of a batch


@dataclass(frozen=True, eq=False, slots=True)
class Batches:
    """Batches of one stage, by time."""

    index: NDArray[np.int64]  # of the thread
    tokens: Floats
    seconds: Floats
    beside: Floats  # stages at work meanwhile


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Observations:
    """One run, as far as a forecast cares."""

    setting: Setting
    samples: Mapping[str, Batches]  # by stage
    windows: Windows
    tokens_per_s: float
    deviation: float  # of tokens_per_s, relative: what another run of that length would differ by
    target_extra: Line  # of tokens of a batch
    drafter_extra: Line
    step_s: float
    merge_s: float | None  # for each drafter but the first; None: there was one only
    links: Mapping[str, Line]
    copy_factors: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # by hop and target
    measured_hops: frozenset[str]  # of `links`; the others are declared, or measured apart
    token_bytes: float
    away_share: float | None = None  # of takes from a shared queue; None: there is none
    documents: tuple[float, ...] = ()  # lengths of some, in tokens; empty: not recorded
    gradient_bytes: float | None = None  # of one drafter, as they are summed; None: not recorded
    cores: float | None  # that logical devices computed on; None: devices of their own, or not recorded
    emulated: bool = False
    # By stage timed on its GPU: seconds that its thread enqueued work, to a second the work took there.
    enqueueing: Mapping[str, float] = field(default_factory=dict)


def observe(
    timeline: Timeline,
    *,
    cores: float | None = None,
    links: Mapping[str, Line] | None = None,
    plan: Facts | None = None,
) -> Observations:
    """What the timeline tells. Raises RunError when that is too little for a forecast.

    `cores`: that logical devices computed on, where known. `links`: speeds known from elsewhere.
    `plan`: what the run's memory plan was made of.
    """
    setting = observed_setting(timeline)
    lack = lacking(timeline) if setting is not None else "the run holds no spans of targets or of drafters"
    if setting is None or lack is not None:
        raise RunError("the run is no basis for a forecast", found=lack, remedy="record a longer run")
    used = timeline.windows.iloc[timeline.steady.warmup_windows :]
    rates = resample_rates(used)
    factors = _copy_factors(timeline, setting)
    measured = _measured_links(timeline, factors)
    declared = declared_links(timeline.config) if timeline.config is not None and timeline.emulated else {}
    batches = {stage: _batches(timeline, stage) for stage in main_work}
    step_s, merge_s = _window_work(timeline, setting, len(used))
    return Observations(
        setting=setting,
        samples=batches,
        windows=_windows(timeline, used),
        tokens_per_s=float(used["tokens"].sum() / used["seconds"].sum()),
        deviation=float(rates.std() / rates.mean()),
        target_extra=_extra(timeline, setting, "target"),
        drafter_extra=_extra(timeline, setting, "drafter"),
        step_s=step_s,
        merge_s=merge_s,
        links={**declared, **(links or {}), **measured},
        copy_factors=factors,
        away_share=_away_share(timeline) if setting.shared_queue and setting.drafters > 1 else None,
        measured_hops=frozenset(measured),
        token_bytes=_token_bytes(timeline),
        documents=_documents(used, plan),
        gradient_bytes=None if plan is None else float(plan.drafter.parameters * float_bytes),
        cores=cores if timeline.emulated else None,
        emulated=bool(timeline.emulated),
        enqueueing=_enqueueing(timeline),
    )


def observe_run(run: Run, timeline: Timeline) -> Observations:
    """The same, with what the run directory knows besides."""
    return observe(timeline, cores=_cores(run, timeline), links=_link_facts(run), plan=read_facts(run))


def _cores(run: Run, timeline: Timeline) -> float | None:
    """Cores that the stages may compute on, the more of them the less of its work a stage computes.

    Work that sleeps, or waits for a device, leaves its core to others; what was not sampled counts whole.
    """
    hardware = run.manifest.get("hardware")
    cores = hardware.get("usable_cores") or hardware.get("cores") if isinstance(hardware, Mapping) else None
    if not isinstance(cores, int):
        return None
    work = timeline.threads[timeline.threads["kind"] == "work"].groupby("tid")["share"].sum()
    sampled = timeline.gil.threads.set_index("tid")
    wanted = (sampled["cpu_share"] + sampled["cpu_wait_share"]).astype(float).reindex(work.index)
    part = float(wanted.sum(skipna=False) / work.sum()) if len(work) else np.nan
    return cores / min(max(part, least_computed), 1.0) if np.isfinite(part) else float(cores)


def _batches(timeline: Timeline, stage: str) -> Batches:
    mine = timeline.batches[timeline.batches["stage"] == stage]
    columns = (mine[name].to_numpy(dtype=float) for name in ("tokens", "seconds", "beside"))
    return Batches(mine["index"].to_numpy(dtype=np.int64), *columns)


def _windows(timeline: Timeline, used: pd.DataFrame) -> Windows:
    """Tokens of the batches of each steady window, as the targets forwarded them."""
    frame = timeline.batches[timeline.batches["stage"] == "drafter"]
    frame = frame.drop_duplicates("batch")
    found = []
    totals = dict(zip(used["window"], used["tokens"], strict=True))
    for window, tokens in frame.groupby("window", sort=True)["tokens"]:
        total = totals.get(window)
        if total is not None and abs(float(tokens.sum()) - total) <= 0.001 * total:  # whole
            found.append(tuple(map(float, tokens)))
    if found:
        return tuple(found)
    # A trainer that does not number its batches, or whose batches and windows differ: all alike.
    mean = float(frame["tokens"].mean()) if len(frame) else float(used["tokens"].mean())
    size = float(used["tokens"].mean())
    count = max(round(size / mean), 1) if mean > 0 else 1
    return ((size / count,) * count,)


def _documents(used: pd.DataFrame, plan: Facts | None) -> tuple[float, ...]:
    """Lengths like those of the largest batch, which the plan knows, and as long on average as all were."""
    if plan is None or not plan.batch.documents or not used["documents"].gt(0).all():
        return ()
    lengths = np.array([tokens for tokens, _ in plan.batch.documents], dtype=float)
    mean = float(used["tokens"].sum() / used["documents"].sum())
    return tuple((lengths * (mean / lengths.mean())).tolist())


def _extra(timeline: Timeline, setting: Setting, stage: str) -> Line:
    """What a stage's threads do besides main work, work of windows, copies and waits.

    Other work and waits for the own device take as long as there are tokens; what has no name, as batches.
    But where a GPU that is shared copies to and from pageable memory, calls to its driver wait for the copies
    of the others: that is played, and nothing that would stay with other copies.
    """
    mine = timeline.devices[timeline.devices["stage"] == stage]
    other = (mine["kind"] == "work") & ~mine["name"].isin([main_work[stage], *window_parts])
    named = float(mine.loc[other | (mine["kind"] == "gpu_wait"), "seconds"].sum())
    nameless = float(mine.loc[mine["kind"] == "unaccounted", "seconds"].sum())
    if setting.path == "pageable" and setting.shares_devices and not timeline.emulated:
        nameless = 0.0
    done = timeline.service.loc[timeline.service["stage"] == stage, ["batches", "tokens"]].sum()
    return Line(nameless / max(float(done["batches"]), 1.0), named / max(float(done["tokens"]), 1.0))


def _enqueueing(timeline: Timeline) -> dict[str, float]:
    """How much of the time that a stage's work took on its GPU its thread was busy enqueueing it.

    Near 1 the GPU waited for the thread: a launch at a time was all it was given.
    """
    found = {}
    for stage in ("target", "drafter"):
        threads = timeline.threads[timeline.threads["stage"] == stage]
        host_s = float(threads.loc[threads["name"] == main_work[stage], "seconds"].sum())
        timed = timeline.service[(timeline.service["stage"] == stage) & (timeline.service["clock"] == "gpu")]
        gpu_s = float(timed["work_s"].sum())
        if host_s > 0 and gpu_s > 0:
            found[stage] = host_s / gpu_s
    return found


def _window_work(timeline: Timeline, setting: Setting, windows: int) -> tuple[float, float | None]:
    """Seconds of a window's step, and of each further drafter's gradients."""
    mine = timeline.devices[(timeline.devices["stage"] == "drafter") & (timeline.devices["kind"] == "work")]
    whole = float(mine.loc[mine["name"].isin(window_parts), "seconds"].sum()) / windows
    if setting.drafters == 1:
        return whole, None
    merge = float(mine.loc[mine["name"] == "sum", "seconds"].sum()) / windows / (setting.drafters - 1)
    return whole - merge * (setting.drafters - 1), merge


def _token_bytes(timeline: Timeline) -> float:
    tokens = timeline.batches.loc[timeline.batches["stage"] == "target", "tokens"].mean()
    for frame, count in ((timeline.takes, "takes"), (timeline.copies, "copies")):
        known = frame[frame["bytes"].notna() & (frame["bytes"] > 0)]
        if len(known) and tokens > 0:
            return float(known["bytes"].sum() / known[count].sum() / tokens)
    return 0.0


def _copy_factors(timeline: Timeline, setting: Setting) -> dict[str, tuple[float, ...]]:
    """By hop out of a target: how much longer each target's copies take than the usual ones, where any do."""
    found = {}
    copies = _sized_copies(timeline)
    forward_s = timeline.service.loc[timeline.service["stage"] == "target", "s_per_batch"].mean()
    for hop, mine in copies[copies["target"] >= 0].groupby("hop"):
        sums = mine.groupby("target")[["seconds", "copies", "bytes"]].sum().reindex(range(setting.targets))
        paces = (sums["seconds"] / sums["bytes"]).to_numpy(dtype=float)
        usual = float(np.nanquantile(paces, 0.5, method="lower"))
        factors = np.where(np.isnan(paces), 1.0, paces / usual)
        more_s = (sums["seconds"] / sums["copies"]).to_numpy(dtype=float) * (1.0 - 1.0 / factors)
        slower = (factors > slower_copies) & (more_s > worth_telling * forward_s)
        if slower.any():
            found[str(hop)] = tuple(np.where(slower, factors, 1.0).tolist())
    return found


def _away_share(timeline: Timeline) -> float | None:
    takes = timeline.takes.groupby("where")["takes"].sum()
    known = float(takes.get("home", 0) + takes.get("away", 0))
    return float(takes.get("away", 0)) / known if known else None


def _sized_copies(timeline: Timeline) -> pd.DataFrame:
    """Copies of hidden states by hop and the target that they leave (-1: none)."""
    copies = timeline.copies[timeline.copies["bytes"] > small_copy_bytes * timeline.copies["copies"]]
    threads = timeline.threads.loc[timeline.threads["stage"] == "target", ["device", "index"]]
    owners = dict(threads.drop_duplicates("device").itertuples(index=False, name=None))
    hops_of = [_hop(copy) for _, copy in copies.iterrows()]
    leaving = [owners.get(src, -1) for src in copies["src"]]
    return copies.assign(hop=hops_of, target=leaving)


def _measured_links(timeline: Timeline, factors: Mapping[str, tuple[float, ...]]) -> dict[str, Line]:
    """Of each path that the run copied over: seconds by bytes, its declared fixed part taken off.

    Of targets whose copies take longer by such `factors`: as if they did not.
    """
    found = {}
    config = timeline.config
    latency = config.devices.link_latency_us / 1e6 if config is not None and timeline.emulated else 0.0
    copies = _sized_copies(timeline)
    by_target = [
        factors[hop][target] if hop in factors and target >= 0 else 1.0
        for hop, target in zip(copies["hop"], copies["target"], strict=True)
    ]
    copies = copies.assign(seconds=copies["seconds"] / by_target)
    for hop, mine in copies.groupby("hop"):
        count, size, seconds = (float(mine[name].sum()) for name in ("copies", "bytes", "seconds"))
        fixed = min(latency, seconds / count)
        found[str(hop)] = Line(fixed, (seconds - fixed * count) / size)
    return found


def mean_copies(timeline: Timeline) -> dict[str, tuple[float, float]]:
    """By hop: bytes and seconds of one copy of a batch's states, means over all ends."""
    sums = _sized_copies(timeline).groupby("hop")[["copies", "bytes", "seconds"]].sum()
    means = sums[["bytes", "seconds"]].div(sums["copies"], axis=0)
    return {str(hop): (float(size), float(s)) for hop, size, s in means.itertuples() if size > 0 and s > 0}


def _hop(copy: pd.Series) -> str:
    """What kind of copy: one through host memory goes down to it or up from it."""
    if copy["path"] == "peer":
        return "move" if copy["stage"] == "drafter" else "peer"  # of what another drafter was to have
    from_host = copy["src"] in ("host", "cpu") or (copy["src"] == missing_name and copy["stage"] == "drafter")
    return f"{'pinned' if copy['path'] == 'pinned' else 'pageable'} {'up' if from_host else 'down'}"


def declared_links(config: TrainConfig) -> dict[str, Line]:
    """The links of logical devices, by hop."""
    speeds, latency = config.devices.declared_speeds, config.devices.link_latency_us / 1e6
    return {hop: Line(latency, 1e-9 / speed) for path, speed in speeds.items() for hop in hops[path]}


def _way(edge: Mapping[str, Any]) -> str:
    return "up" if edge["src"] == "host" else "down"


def _link_facts(run: Run) -> dict[str, Line]:
    """Median speeds of links.json, where the run has one; it may come from a stranger."""
    path = run.path / "links.json"
    try:
        facts: Any = json.loads(path.read_text(encoding="utf-8"))
        edges = facts["edges"]
        speeds: dict[str, list[float]] = {}
        for edge in edges:
            speed = edge["gb_per_s"]
            if isinstance(speed, int | float) and math.isfinite(speed) and speed > 0:
                hop = "peer" if edge["path"] == "peer" else f"{edge['path']} {_way(edge)}"
                speeds.setdefault(hop, []).append(float(speed))
    except (OSError, ValueError, KeyError, TypeError):
        return {}
    return {name: Line(0.0, 1e-9 / float(np.median(found))) for name, found in speeds.items()}
