"""What each GPU of a run did over a range: how hard it worked, what held its clocks down, whose memory.

Utilisation says that a kernel was resident, so it is always paired with power. Knows nothing of causes.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from profiler.gpu_identity import GpuUse, gpu_uses
from profiler.run import Run
from profiler.throttling import bits_of, idle_bit, throttle_names

gpu_columns: Final = [
    "key", "device", "role", "index", "label", "model", "unified_memory", "mig",
    "util_pct", "busy_share", "power_w", "power_limit_w", "power_share", "busy_power_share", "work",
    "sm_active_pct", "sm_clock_mhz", "max_sm_clock_mhz", "temp_c", "throttled",
    "mem_used_bytes", "own_bytes", "foreign_bytes", "own_source", "missing",
]  # fmt: skip
_numbers: Final = [
    name for name in gpu_columns if name.endswith(("_pct", "_share", "_w", "_mhz", "_c", "_bytes"))
]
full_work: Final = "full"
little_work: Final = "launch-bound/small work"
busy_util_pct: Final = 90.0  # from here on a GPU looks busy
busy_share: Final = 0.5  # of the time that it must look so, to be judged
little_power_share: Final = 0.35  # of the limit: busy below it is little work
little_sm_share: Final = 50.0  # per cent of SMs active: more of them is no small work
_held_share: Final = 0.2  # of the time that a throttle reason must hold to be named
_slowdowns: Final = 8 | 32 | 64 | 128  # reasons that lower power themselves
_pair_ns: Final = 500_000_000  # readings further apart say nothing of each other
_context_bytes: Final = 2e9  # what CUDA itself and others may hold before it is called foreign
_metrics_told: Final = {"util_pct": "utilisation", "power_w": "power", "mem_used_bytes": "memory"}

Readings = Mapping[tuple[str, str], pd.DataFrame]  # (uuid, metric) -> t_ns, value


def measure_gpus(run: Run, lo_ns: int, hi_ns: int) -> pd.DataFrame:
    """One row a GPU (or slice) of the run; all sampled ones where the run does not say which it used.

    power_share   of the limit; busy_power_share: the same while utilisation is at least 90 %
    work          `full`; `launch-bound/small work` where it looks busy and draws little; None: cannot be told
    throttled     what held clocks down for a fifth of the time or more, in words; "" nothing
    own_bytes     memory of this run's processes, by `own_source` (`driver`, `allocator`); the rest: foreign
    missing       {metric: why it is unknown}
    Numbers are means over the range, NaN where unknown.
    """
    is_gpu = run.samples["source"] == "gpu"
    samples = run.samples.loc[is_gpu, ["key", "metric", "t_ns", "value"]]
    readings: Readings = {
        (str(key), str(metric)): mine
        for (key, metric), mine in samples.groupby(["key", "metric"], observed=True)
    }
    uses = gpu_uses(run.manifest)
    sampled = list(dict.fromkeys(key for key, _ in readings if key != "*"))
    keys = sampled if uses is None else [key for key in uses if key in sampled]
    facts = _facts(run.manifest)
    reasons = run.samples.loc[is_gpu & run.samples["reason"].notna(), ["key", "metric", "reason"]]
    rows = [
        {
            **_describe(
                key, (uses or {}).get(key, GpuUse(key)), facts.get(key, {}), readings, run, lo_ns, hi_ns
            ),
            "missing": _missing(readings, key, reasons),
        }
        for key in keys
    ]
    frame = pd.DataFrame(rows, columns=gpu_columns, dtype=object)  # so that None stays None
    return frame.astype(dict.fromkeys(_numbers, float))


def gpu_warnings(gpus: pd.DataFrame) -> list[str]:
    """What has to be said of the GPUs before anything is concluded from them."""
    told = []
    for gpu in gpus.to_dict("records"):
        missing: Mapping[str, str] = gpu["missing"]
        lacks = {words: missing[metric] for metric, words in _metrics_told.items() if metric in missing}
        if lacks and not gpu["unified_memory"]:
            reasons = "; ".join(dict.fromkeys(lacks.values()))
            told.append(
                f"{gpu['label']}: {', '.join(lacks)} n/a ({reasons}): what is said of this GPU rests on what "
                "remains, with lower confidence"
            )
        if gpu["work"] == little_work:
            told.append(
                f"{gpu['label']}: {gpu['util_pct']:.0f} % utilised at {100 * gpu['busy_power_share']:.0f} % "
                f"of its power limit: {little_work}, so its utilisation is no sign of health"
            )
        if gpu["foreign_bytes"] > _context_bytes:
            told.append(
                f"{gpu['label']}: about {gpu['foreign_bytes'] / 1e9:.3g} GB of its memory are not this run's "
                f"(in use less the run's own, by the {gpu['own_source']})"
            )
    return told


def power_of_little_work(gpus: pd.DataFrame, role: str) -> float | None:
    """Power of the limit while busy, where all GPUs of a role look busy and do little; None otherwise."""
    mine = gpus[gpus["role"] == role]
    return (
        float(mine["busy_power_share"].mean()) if len(mine) and (mine["work"] == little_work).all() else None
    )


def _facts(manifest: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    hardware = manifest.get("hardware")
    listed = hardware.get("gpus") if isinstance(hardware, Mapping) else None
    return {
        str(gpu["uuid"]): gpu
        for gpu in (listed if isinstance(listed, list) else [])
        if isinstance(gpu, Mapping) and gpu.get("uuid")
    }


def _describe(
    key: str,
    use: GpuUse,
    facts: Mapping[str, Any],
    readings: Readings,
    run: Run,
    lo_ns: int,
    hi_ns: int,
) -> dict[str, Any]:
    def mean(metric: str) -> float:
        return mean_held(readings.get((key, metric)), lo_ns, hi_ns)

    limit_w = mean("power_limit_w")
    if not np.isfinite(limit_w):
        limit_w = _number(facts.get("power_limit_w"))
    power_w, mask = mean("power_w"), _held_reasons(readings.get((key, "throttle_reasons")), lo_ns, hi_ns)
    busy, busy_power_w = _power_while_busy(readings, key, lo_ns, hi_ns)
    sm_active = mean("sm_active_pct")
    role, index = use.roles[0] if use.roles else ("n/a", -1)
    row = {
        "key": key,
        "device": use.device,
        "role": role if len({r for r, _ in use.roles}) < 2 else "shared",
        "index": index,
        "label": use.label,
        "model": str(facts.get("name") or "GPU"),
        "unified_memory": facts.get("unified_memory") is True,
        "mig": facts.get("mig") is True,
        "util_pct": mean("util_pct"),
        "busy_share": busy,
        "power_w": power_w,
        "power_limit_w": limit_w,
        "power_share": power_w / limit_w,
        "busy_power_share": busy_power_w / limit_w,
        "sm_active_pct": sm_active,
        "sm_clock_mhz": mean("sm_clock_mhz"),
        "max_sm_clock_mhz": _number(facts.get("max_sm_clock_mhz")),
        "temp_c": mean("temp_c"),
        "throttled": None if mask is None else ", ".join(throttle_names(mask)),
    }
    row["work"] = _judge_work(busy, busy_power_w / limit_w, sm_active, mask)
    return row | _memory(readings, key, use, run, lo_ns, hi_ns)


def mean_held(rows: pd.DataFrame | None, lo_ns: int, hi_ns: int) -> float:
    """The mean over a range of a series whose values hold until the next row; NaN where nothing is known."""
    if rows is None:
        return np.nan
    t_ns, values = rows["t_ns"].to_numpy(dtype=float), rows["value"].to_numpy(dtype=float)
    weights = _weights(t_ns, lo_ns, hi_ns)
    known = np.isfinite(values) & (weights > 0)
    total = float(weights[known].sum())
    return float((values[known] * weights[known]).sum()) / total if total > 0 else np.nan


def _weights(t_ns: NDArray[np.float64], lo_ns: int, hi_ns: int) -> NDArray[np.float64]:
    """How long each row holds within the range."""
    ends = np.r_[t_ns[1:], hi_ns]
    weights: NDArray[np.float64] = np.maximum(np.minimum(ends, hi_ns) - np.maximum(t_ns, lo_ns), 0.0)
    return weights


def _held_reasons(rows: pd.DataFrame | None, lo_ns: int, hi_ns: int) -> int | None:
    """The throttle bits that held long enough to be named; None where unknown."""
    if rows is None:
        return None
    weights = _weights(rows["t_ns"].to_numpy(dtype=float), lo_ns, hi_ns)
    values = rows["value"].to_numpy(dtype=float)
    known = np.isfinite(values) & (weights > 0)
    total = float(weights[known].sum())
    if total <= 0:
        return None
    masks, of_rows = np.unique(values[known].astype(np.int64), return_inverse=True)
    held: dict[int, float] = {}
    for mask, weight in zip(masks, np.bincount(of_rows, weights=weights[known]), strict=True):
        for bit in bits_of(int(mask)):
            held[bit] = held.get(bit, 0.0) + float(weight)
    return sum(bit for bit, time in held.items() if time >= _held_share * total and bit != idle_bit)


def _power_while_busy(readings: Readings, key: str, lo_ns: int, hi_ns: int) -> tuple[float, float]:
    """Share of utilisation readings that look busy, and mean power beside them; NaN where unknown."""
    util, power = (_inside(readings.get((key, metric)), lo_ns, hi_ns) for metric in ("util_pct", "power_w"))
    if util is None:
        return np.nan, np.nan
    looks_busy = util["value"] >= busy_util_pct
    share = float(looks_busy.mean())
    if power is None or not share:
        return share, np.nan
    pairs = pd.merge_asof(
        util.loc[looks_busy, ["t_ns"]],
        power[["t_ns", "value"]],
        on="t_ns",
        direction="nearest",
        tolerance=_pair_ns,
    )
    return share, float(pairs["value"].mean())


def _inside(rows: pd.DataFrame | None, lo_ns: int, hi_ns: int) -> pd.DataFrame | None:
    if rows is None:
        return None
    inside = rows[rows["t_ns"].between(lo_ns, hi_ns) & rows["value"].notna()]
    return inside if len(inside) else None


def _judge_work(busy: float, power_share: float, sm_active_pct: float, mask: int | None) -> str | None:
    if not busy >= busy_share or not np.isfinite(power_share):
        return None
    if power_share >= little_power_share:
        return full_work
    if sm_active_pct >= little_sm_share or (mask or 0) & _slowdowns:
        return None  # little power has another reason than little work
    return little_work


def _memory(
    readings: Readings, key: str, use: GpuUse, run: Run, lo_ns: int, hi_ns: int
) -> dict[str, float | str | None]:
    used, own, foreign = (
        mean_held(readings.get((key, metric)), lo_ns, hi_ns)
        for metric in ("mem_used_bytes", "own_mem_bytes", "foreign_mem_bytes")
    )
    source: str | None = "driver"
    if not np.isfinite(own):
        events = run.events
        mine = (events["name"] == "reserved_bytes") & (events["device"] == use.device)
        mine &= events["t_ns"].between(lo_ns, hi_ns)
        own, source = float(events.loc[mine, "value"].max()), "allocator"
        foreign = max(used - own, 0.0) if np.isfinite(used - own) else np.nan
    known = bool(np.isfinite(own))
    return {
        "mem_used_bytes": used,
        "own_bytes": own,
        "foreign_bytes": foreign,
        "own_source": source if known else None,
    }


def _missing(readings: Readings, key: str, reasons: pd.DataFrame) -> dict[str, str]:
    """Metrics of which no value at all was read, each with the first of its `reasons`."""
    first = reasons[reasons["key"] == key].drop_duplicates("metric")
    return {
        str(metric): str(reason)
        for metric, reason in zip(first["metric"], first["reason"], strict=True)
        if not readings[key, str(metric)]["value"].notna().any()
    }


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and np.isfinite(value) else np.nan
