"""The limit of the hardware: tokens a second if all stages ran at their GPUs' ceilings and nothing waited.

Arithmetic on the operations that a run says its models need; docs/forecast.md has the formulas. It is a bound
that nothing reaches, no forecast. Knows nothing of how ceilings were come by, nor of how a limit is shown.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from dflash.contract.ceilings import DeviceCeilings
from dflash.contract.config import TrainConfig
from dflash.contract.errors import DFlashError
from dflash.contract.operations import Operations
from profiler.capacity import Loads, StageLoad
from profiler.ceilings import find_ceilings, used_gpus, visible_alike
from profiler.forecast.memory import fits_devices
from profiler.forecast.setting import Setting
from profiler.hardware_limit import Limit, Stage, StageMark, StageTimes
from profiler.records import RecordError, decode
from profiler.run import Run
from profiler.timeline import Timeline

stages: Final[tuple[Stage, ...]] = ("target", "drafter")
product_bytes: Final = 2  # of a bfloat16 number: what ceilings of products are measured with
_transport: Final = {"transport.queue": "preset", "transport.path": "preset", "transport.dispatch": "preset"}


def measure_limit(
    run: Run,
    timeline: Timeline,
    loads: Loads | None,
    machine: Path | None = None,
    config: TrainConfig | None = None,
) -> Limit:
    """The limit of a run's hardware; `machine`: the file of this machine's ceilings.

    `config`: with the split of another configuration, instead of the run's own.
    """
    found = find_ceilings(run, machine)
    if found.each is None:
        return Limit(reason=found.reason)
    operations = read_operations(run)
    if operations is None or not all(operations.per_token(stage) > 0 for stage in stages):
        return Limit(reason="the run does not say how many operations a token needs", ceilings=found.each)
    other = {size for size in operations.dtype_bytes.values() if size != product_bytes}
    if other:
        reason = f"ceilings are of bfloat16; the run's numbers have {max(other)} bytes"
        return Limit(reason=reason, ceilings=found.each)
    if loads is None or loads.target.tokens_per_s is None or loads.drafter.tokens_per_s is None:
        return Limit(reason="the pace of a stage is unknown", ceilings=found.each)
    return _limit(run, timeline, loads, operations, found.each, config or run.config)


def read_operations(run: Run) -> Operations | None:
    """The entry `operations` of a run; None where it is missing or not sound."""
    entry = run.manifest.get("operations")
    try:
        return decode(Operations, entry) if isinstance(entry, Mapping) else None
    except RecordError:
        return None


def _limit(
    run: Run,
    timeline: Timeline,
    loads: Loads,
    operations: Operations,
    each: DeviceCeilings,
    config: TrainConfig | None,
) -> Limit:
    marks = tuple(_mark(load, operations, run.manifest, each) for load in (loads.target, loads.drafter))
    peak = each.matmul_tflops
    window = _window_tokens(timeline)
    if peak is None or window is None:
        lacks = each.reason or "the ceiling of matrix products is unknown"
        reason = "the tokens of a window are unknown" if peak is not None else lacks
        return Limit(reason=reason, ceilings=each, marks=marks)
    carry_s, carry_note = _carry_s(run, operations, each)
    times = StageTimes(
        target_s=_stage_s(loads.target, operations, each, peak),
        drafter_s=_stage_s(loads.drafter, operations, each, peak),
        carry_s=carry_s,
        step_s=0.0 if each.memory_gb_per_s is None else operations.step_bytes / each.memory_gb_per_s / 1e9,
    )
    gpus = max(len(used_gpus(run.manifest)), visible_alike(run, each.model))
    own = _as_split(config, loads, times, window)
    best = max(_splits(run, gpus, times, window), key=lambda split: split[0], default=(own, None))
    split = best[1] if best[0] > own else None
    notes = [
        carry_note,
        None if each.memory_gb_per_s else "the memory ceiling is unknown: steps are taken as free",
    ]
    return Limit(
        as_split=own,
        tokens_per_s=max(own, best[0]),
        split=split,
        gpus=gpus if split else None,
        ceilings=each,
        times=times,
        marks=marks,
        notes=tuple(note for note in notes if note),
    )


def _mark(
    load: StageLoad, operations: Operations, manifest: Mapping[str, Any], each: DeviceCeilings
) -> StageMark:
    stage: Stage = "target" if load.stage == "target" else "drafter"
    devices = {
        d.get("name")
        for d in manifest.get("devices") or []
        if isinstance(d, Mapping) and d.get("role") == stage
    }
    gpus, per_token = max(len(devices), 1), operations.per_token(stage)
    peak = None if each.matmul_tflops is None else each.matmul_tflops * gpus

    def tflops(rate: float | None) -> float | None:
        return None if rate is None else rate * per_token / 1e12

    def share(rate: float | None) -> float | None:
        done = tflops(rate)
        return None if done is None or not peak else done / peak

    reason = None if peak else "the ceiling of matrix products is unknown"
    if load.alone_tokens_per_s is None:
        reason = "no work of the stage was timed"
    return StageMark(
        stage=stage,
        gpus=gpus,
        per_token=per_token,
        tflops=tflops(load.alone_tokens_per_s),
        working_share=share(load.alone_tokens_per_s),
        whole_share=share(load.tokens_per_s),
        reason=reason,
    )


def _stage_s(load: StageLoad, operations: Operations, each: DeviceCeilings, peak: float) -> float:
    """A token's operations, or its part of reading the weights once a batch, whichever takes longer."""
    stage: Stage = "target" if load.stage == "target" else "drafter"
    products_s = operations.per_token(stage) / peak / 1e12
    batch = (load.tokens_per_s or 0.0) * load.range_s / load.batches if load.batches else 0.0
    if not each.memory_gb_per_s or not batch:
        return products_s
    return max(products_s, operations.weight_bytes.get(stage, 0) / each.memory_gb_per_s / 1e9 / batch)


def _window_tokens(timeline: Timeline) -> float | None:
    used = timeline.windows.iloc[timeline.steady.warmup_windows :]
    mean = float(used["tokens"].mean()) if len(used) else 0.0
    return mean if mean > 0 else None


def _carry_s(run: Run, operations: Operations, each: DeviceCeilings) -> tuple[float, str | None]:
    """Seconds of a token's states over the fastest way that is known, at its slower end."""
    peers = [each.peer_gb_per_s, *_seen_peers(run)]
    ways = [max((speed for speed in peers if speed), default=None)]
    if each.down_gb_per_s and each.up_gb_per_s:
        ways.append(min(each.down_gb_per_s, each.up_gb_per_s))
    known = [speed for speed in ways if speed]
    if not known:
        return 0.0, "the copy ceiling is unknown: carrying is taken as free"
    return operations.state_bytes / max(known) / 1e9, None


def _seen_peers(run: Run) -> Iterator[float]:
    """Speeds between GPUs that the run itself measured before it began."""
    edges = run.manifest.get("transport_edges")
    for edge in edges if isinstance(edges, list) else []:
        speed = edge.get("peer_gb_per_s") if isinstance(edge, Mapping) else None
        if isinstance(speed, int | float) and speed > 0:
            yield float(speed)


def _as_split(config: TrainConfig | None, loads: Loads, times: StageTimes, window: float) -> float:
    """The split of a configuration at the ceilings; without one, the stages as they were seen."""
    if config is None:
        return times.apart(loads.target.threads, loads.drafter.threads, window)
    setting = Setting.of(config)
    if setting.shares_devices:
        return times.together(len({*setting.target_places, *setting.drafter_places}), window)
    return times.apart(setting.targets, setting.drafters, window)


def _splits(run: Run, gpus: int, times: StageTimes, window: float) -> Iterator[tuple[float, str]]:
    """Tokens a second of every split over that many GPUs that fits them."""
    for targets in range(1, gpus):
        if _fits(run, split := f"{targets}-{gpus - targets}"):
            yield times.apart(targets, gpus - targets, window), split
    if _fits(run, split := f"colocated-{gpus}"):
        yield times.together(gpus, window), split


def _fits(run: Run, split: str) -> bool:
    if run.config is None:
        return True
    try:
        config = run.config.replacing({**_transport, "pipeline.split": split, "devices.gpus": 0})
    except DFlashError:
        return False
    return fits_devices(run, config)
