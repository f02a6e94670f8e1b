"""Variants of the public scenarios, and scenarios of further causes, as metrics files of a trainer.

A scenario is a list of rows, one an interval. Variants keep what makes a sickness and change the rest: pace,
length, noise, numbers and names of GPUs, when the file begins, how strong it is. Causes without a public file
are made of the healthy one by their mechanism.
"""

from __future__ import annotations

import copy
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

scenarios = Path(__file__).parent / "data" / "cases" / "scenarios"
labels: dict[str, dict[str, Any]] = json.loads((scenarios / "labels.json").read_text())
Row = dict[str, Any]
Rows = list[Row]
step_s = 2.0

_times = (  # seconds a batch, which a slower machine stretches
    ("target", ("fwd_s", "pack_s", "d2h_s")),
    ("drafter", ("fwdbwd_s", "xdev_copy_s", "scalar_sync_s", "h2d_s", "optim_s")),
)
_noisy = (("target", ("fwd_s", "pack_s", "d2h_s")), ("drafter", ("fwdbwd_s", "h2d_s", "optim_s")))


def load(name: str) -> Rows:
    """The rows of a public scenario."""
    path = next(scenarios.glob(f"{name}.jsonl*"))
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in data.splitlines()]


def write(rows: Rows, path: Path) -> Path:
    """A metrics file of the rows."""
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def slower(rows: Rows, factor: float) -> Rows:
    """A machine that takes `factor` times as long for everything: times, throughput and intervals."""
    rows = copy.deepcopy(rows)
    for row in rows:
        row["t"] *= factor
        row["tok_s"] /= factor
        row["launches_s"] /= factor
        row["copies"]["d2h_gbps"] /= factor
        row["host"]["swap_mib_s"] /= factor
        row["compile"]["secs"] *= factor
        per_gpu = row["copies"]["per_gpu_d2h_gbps"]
        row["copies"]["per_gpu_d2h_gbps"] = per_gpu and {k: v / factor for k, v in per_gpu.items()}
        for table, names in _times:
            for name in names:
                row[table][name] *= factor
    return rows


def larger(rows: Rows, factor: int) -> Rows:
    """`factor` times as many targets and drafters, on GPUs with other names; each as before."""
    rows = copy.deepcopy(rows)
    for row in rows:
        row["split"] = [count * factor for count in row["split"]]
        row["tok_s"] *= factor
        row["launches_s"] *= factor
        row["compile"]["secs"] *= factor
        for name in ("produced", "consumed"):
            row["q"]["hs"][name] *= factor
        many = {f"{key}{chr(97 + i)}": value for key, value in row["gpu"].items() for i in range(factor)}
        row["gpu"] = {f"gpu-{key}": dict(value) for key, value in many.items()}
        per_gpu = row["copies"]["per_gpu_d2h_gbps"]
        row["copies"]["per_gpu_d2h_gbps"] = per_gpu and {
            f"gpu-{key}{chr(97 + i)}": value for key, value in per_gpu.items() for i in range(factor)
        }
    return rows


def noisy(rows: Rows, spread: float, seed: int) -> Rows:
    """More noise on throughput, times and power."""
    rows, rng = copy.deepcopy(rows), np.random.default_rng(seed)
    for row in rows:
        row["tok_s"] *= float(max(rng.normal(1, spread), 0.1))
        for table, names in _noisy:
            for name in names:
                row[table][name] *= float(max(rng.normal(1, spread), 0.1))
        for gpu in row["gpu"].values():
            gpu["power_w"] = float(min(gpu["power_w"] * max(rng.normal(1, spread / 2), 0.1), gpu["limit_w"]))
    return rows


def shifted(rows: Rows, begin_s: float, part: float = 1.0) -> Rows:
    """A file whose clock begins elsewhere, and which ends after `part` of its rows."""
    rows = copy.deepcopy(rows[: round(part * len(rows))])
    for row in rows:
        row["t"] += begin_s
    return rows


def blended(rows: Rows, strength: float) -> Rows:
    """Between the healthy scenario (0) and `rows` (1), or beyond; rows of the same split only."""

    def blend(a: Any, b: Any) -> Any:
        if isinstance(b, dict):
            return {key: blend(a.get(key, b[key]) if isinstance(a, dict) else b[key], b[key]) for key in b}
        if isinstance(b, bool) or not isinstance(b, int | float) or not isinstance(a, int | float):
            return b
        return a + strength * (b - a)

    result = []
    for healthy, row in zip(load("s14"), rows, strict=False):
        kept = {name: row[name] for name in ("t", "budget", "split", "compile", "alloc", "loss")}
        result.append({**blend(healthy, row), **copy.deepcopy(kept)})
    for row in result:
        for gpu in row["gpu"].values():
            gpu["util"] = min(max(gpu["util"], 0), 100)
    for row, sick in zip(result, rows, strict=True):
        row["target"]["d2h_overlap"] = sick["target"]["d2h_overlap"]  # how it is done, not how much
        waits = [(row["q"]["pre"], "get_wait_frac"), (row["q"]["hs"], "put_wait_frac")]
        waits += [(row["q"]["hs"], "get_wait_frac"), (row["gil"], "wait_frac")]
        for table, name in waits:
            table[name] = min(max(table[name], 0.0), 0.99)
    return result


def in_turn(first: Rows, second: Rows, part: float = 0.5) -> Rows:
    """The first scenario for `part` of the time, then the second; counters go on."""
    cut = round(part * len(first))
    rows = copy.deepcopy(first[:cut]) + copy.deepcopy(second[cut:])
    for name in ("produced", "consumed"):
        offset = rows[cut - 1]["q"]["hs"][name] - second[cut - 1]["q"]["hs"][name]
        for row in rows[cut:]:
            row["q"]["hs"][name] += offset
    retries = rows[cut - 1]["alloc"]["retries"]
    for row in rows[cut:]:
        row["alloc"]["retries"] += retries
    return rows


def paced(rows: Rows, tok_s: Callable[[float], float], seed: int = 0) -> Rows:
    """Throughput by time, with batch counters that agree."""
    rng, done = np.random.default_rng(seed), 0.0
    for row in rows:
        row["tok_s"] = float(tok_s(row["t"]) * rng.normal(1, 0.01))
        done += row["tok_s"] * step_s / row["budget"]
        row["q"]["hs"]["produced"] = row["q"]["hs"]["consumed"] = done
    return rows


def throttled(clock: float = 0.55, onset_s: float = 0.0, *, sees_it: bool = True) -> Rows:
    """GPU 1 at `clock` of its clock from `onset_s` on; by even dispatch the others go on."""
    rows = load("s14")
    for row in rows:
        if row["t"] >= onset_s:
            row["gpu"]["1"] |= {"sm_mhz": round(1980 * clock), "temp_c": 92, "power_w": 310}
            row["gpu"]["1"]["throttle"] = 0x40 if sees_it else 0
            row["target"]["fwd_s"] *= 3 / (2 + clock)
    return paced(rows, lambda t: 14800 * ((2 + clock) / 3 if t >= onset_s else 1))


def fragmented(onset_s: float = 200.0, every_s: float = 10.0, loss: float = 0.3) -> Rows:
    """Reserved memory climbs away from what tensors use; from `onset_s` on the allocator retries."""
    rows, retries = load("s14"), 0
    for row in rows:
        t = row["t"]
        if t >= onset_s and (t - onset_s) % every_s < step_s:
            retries += 1
        row["alloc"] = {"reserved_gib": min(62 + t / 15, 93.0), "allocated_gib": 58.0, "retries": retries}
        for gpu in row["gpu"].values():
            gpu["mem_gib"] = min(88 + t / 100, 94.0)
    return paced(rows, lambda t: 14800 * (1 - loss if t >= onset_s else 1))


def scalar_sync(sync_s: float = 3.0) -> Rows:
    """The drafter waits for a number in every step; its queue fills and the targets wait for room."""
    rows = load("s14")
    step = 3.2 + sync_s + 0.11
    put = max(1 - 13.5 / 3 / step, 0.0)
    for row in rows:
        row["drafter"]["scalar_sync_s"] = sync_s
        row["q"]["hs"] |= {"depth": 20, "put_wait_frac": put, "get_wait_frac": 0.0}
        row["gpu"]["3"] |= {"util": round(100 * 3.3 / step), "power_w": 300}
        for key in "012":
            row["gpu"][key] |= {"util": round(100 * (1 - put)), "power_w": round(580 * (1 - 0.8 * put))}
    return paced(rows, lambda _: 65536 / step)


def far_buffers(rates: tuple[float, float, float] = (50.0, 17.0, 16.0), pack_s: float = 0.9) -> Rows:
    """Staging buffers of some GPUs on the other memory node."""
    rows = load("s10")
    rng = np.random.default_rng(1)
    for row in rows:
        row["target"]["pack_s"] = pack_s
        row["copies"]["per_gpu_d2h_gbps"] = {
            key: rate * float(rng.normal(1, 0.02)) for key, rate in zip("012", rates, strict=True)
        }
    return paced(rows, lambda _: 65536 * 3 / (13.3 + pack_s + 0.6))
