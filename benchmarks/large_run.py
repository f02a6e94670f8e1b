"""Writes the run that a long recording on eight GPUs would leave, to see how its report copes.

    python benchmarks/large_run.py DIR [--hours 1] [--hz 10]

Seven targets, one drafter, copies through host memory on the stages' own threads, a GPU that stalls for two
seconds in the middle. Everything is drawn from one seed, nothing is measured: the figures say nothing of any
machine. The run is emulated by its own account. `benchmarks/report_speed.py` measures the report made of it.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyarrow import ipc

from dflash.contract.config import from_values
from dflash.contract.events import event_schema, sample_schema
from dflash.contract.rundir import RunDir, create_run

Floats = npt.NDArray[np.float64]
start_ns: Final = 5_000_000_000_000
targets: Final = 7
forward_s: Final = 0.40
copy_s: Final = 0.08  # on the target's own thread
upload_s: Final = 0.025  # on the drafter's own thread
backward_s: Final = 0.025
pack_s: Final = 0.02
ahead_s: Final = 0.5  # that a batch is packed before it is needed
batch_tokens: Final = 8192
batches_a_window: Final = 56
stall_s: Final = 2.0  # of target 3, in the middle
item_bytes: Final = 335_544_320
batch_rows: Final = 1 << 16
stalling: Final = ("util_pct", "power_w", "power_sample_w")
gpu_metrics: Final = {  # metric: mean and spread
    "util_pct": (88.0, 6.0),
    "power_w": (520.0, 60.0),
    "power_sample_w": (520.0, 40.0),
    "mem_used_bytes": (9.1e10, 4e9),
    "sm_clock_mhz": (1905.0, 25.0),
    "temp_c": (61.0, 2.0),
    "sm_active_pct": (71.0, 8.0),
}


@dataclass(frozen=True, slots=True)
class Columns:
    """Rows of one kind: scalars stand for every row."""

    rows: int
    values: Mapping[str, Any]


def write_large_run(path: Path, *, seconds: float = 3600.0, hz: float = 10.0, seed: int = 0) -> Path:
    """A run of `seconds` with every sensor read `hz` times a second; its path."""
    run = create_run(path, command=["dflash-train", "run", "recipe.toml"])
    random = np.random.default_rng(seed)
    batches = play_batches(random, seconds)
    _write(run.events / "trainer.arrow", event_schema, _events(batches))
    _write(run.samples / "gpu.arrow", sample_schema, _gpu_samples(random, seconds, hz))
    _write(run.samples / "host.arrow", sample_schema, _host_samples(random, seconds, hz))
    _write(run.samples / "gil_wait.arrow", sample_schema, _gil_samples(random, seconds))
    config = from_values(
        {
            "pipeline.split": f"{targets}-1",
            "pipeline.token_budget": batch_tokens,
            "window.tokens": batches_a_window * batch_tokens,
            "transport.preset": "host",
        }
    )
    RunDir(run.path).update(
        status="finished",
        emulated=True,
        config=config.values(),
        clock={"utc_ns": 0, "monotonic_ns": start_ns, "boot_id": None},
        devices=[
            {"name": f"cuda:{n}", "role": _role(n)[0], "index": _role(n)[1], "uuid": _uuid(n)}
            for n in range(targets + 1)
        ],
        memory_plan=_memory_plan(),
    )
    return path


def _memory_plan() -> dict[str, Any]:
    """A ledger in the form of dflash/contract/memory_plan.py; its figures are as made up as all others."""
    weights, moving = 54_000_000_000, 31_000_000_000
    lines = [
        {"name": "weights", "bytes": weights, "why": "2 bytes a weight"},
        {"name": "activations", "bytes": moving, "why": "1 × 8192 tokens"},
    ]
    places = [
        {
            "place": f"cuda:{n}",
            "needed_bytes": weights + moving,
            "allocated_bytes": weights + moving,
            "free_bytes": 149_000_000_000,
            "lines": lines,
        }
        for n in range(targets + 1)
    ]
    return {"places": places, "moments": {}}


def _role(gpu: int) -> tuple[str, int]:
    return ("target", gpu) if gpu < targets else ("drafter", 0)


def _uuid(gpu: int) -> str:
    return f"GPU-0000000{gpu}-0000-0000-0000-000000000000"


@dataclass(frozen=True, slots=True)
class Batches:
    """Times of every batch in seconds, in the order in which the drafter took them."""

    target: npt.NDArray[np.int64]
    begin: Floats  # of the forward
    computed: Floats
    copied: Floats
    taken: Floats
    uploaded: Floats
    trained: Floats


def play_batches(random: np.random.Generator, seconds: float) -> Batches:
    """Targets work without waiting; the drafter, much faster, takes what is there in order."""
    count = int(seconds / (forward_s + copy_s))
    parts = []
    for target in range(targets):
        forward = forward_s * np.clip(random.normal(1.0, 0.06, count), 0.5, 2.0)
        copy = copy_s * np.clip(random.normal(1.0, 0.1, count), 0.5, 2.0)
        pause = np.zeros(count)
        if target == 3:
            pause[count // 2] = stall_s
        ends = np.cumsum(forward + copy + pause)
        begins = np.concatenate([[0.0], ends[:-1]]) + pause
        parts.append(np.column_stack([np.full(count, target), begins, begins + forward, ends]))
    whole = np.concatenate(parts)
    whole = whole[np.argsort(whole[:, 3], kind="stable")]
    work = backward_s * np.clip(random.normal(1.0, 0.08, len(whole)), 0.5, 2.0)
    taken, trained = _one_by_one(whole[:, 3], work + upload_s)
    return Batches(
        whole[:, 0].astype(np.int64), whole[:, 1], whole[:, 2], whole[:, 3], taken, taken + upload_s, trained
    )


def _one_by_one(ready: Floats, work: Floats) -> tuple[Floats, Floats]:
    """Begin and end of each piece of work on one thread: when it is ready and the one before is done."""
    done = np.cumsum(work)
    ends = done + np.maximum.accumulate(ready - (done - work))
    return np.maximum(ready, np.concatenate([[0.0], ends[:-1]])), ends


def _events(b: Batches) -> list[Columns]:
    number = np.arange(len(b.begin))
    mine = {"batch": number, "window": number // batches_a_window, "clock": "host"}
    target = {"stage": "target", "index": b.target, "tid": 300 + b.target, **mine}
    target["device"] = np.char.add("cuda:", b.target.astype(str))
    drafter = {"stage": "drafter", "index": 0, "tid": 400, "device": f"cuda:{targets}", **mine}
    copied = {"path": "pageable", "bytes": item_bytes, "src": target["device"], "dst": "cpu"}
    before = np.concatenate([[0.0], b.trained[:-1]])
    depth, at = _depths(b)
    last = np.arange(batches_a_window - 1, len(b.begin), batches_a_window)
    note = json.dumps({"loss": 2.1, "documents": 300, "processed_tokens": batches_a_window * batch_tokens})
    waited = b.taken > before
    order = np.argsort(b.begin, kind="stable")
    packed, put = _one_by_one(np.maximum(b.begin[order] - ahead_s, 0.0), np.full(len(order), pack_s))
    prefetch = {"stage": "prefetch", "index": 0, "tid": 200, "device": "cpu", **mine}
    prefetch |= {"batch": number[order], "window": number[order] // batches_a_window}
    following = np.concatenate([packed[1:], put[-1:]])
    lifted = {"path": "pageable", "bytes": item_bytes, "src": "cpu", "dst": f"cuda:{targets}"}
    return [
        _spans("pack", packed, put, {**prefetch, "tokens": batch_tokens}),
        _spans("put", put, following, {**prefetch, "channel": "q_pre"}, following > put),
        _spans("forward", b.begin, b.computed, {**target, "tokens": batch_tokens}),
        _spans("copy", b.computed, b.copied, {**target, **copied}),
        _spans("get", before, b.taken, {**drafter, "channel": "q_hs"}, waited),
        _spans("copy", b.taken, b.uploaded, {**drafter, **lifted}),
        _spans("backward", b.uploaded, b.trained, {**drafter, "tokens": batch_tokens}),
        Columns(
            len(number), {"t_ns": _ns(b.taken), "kind": "mark", "name": "take", "note": "home", **drafter}
        ),
        Columns(
            len(at),
            {"t_ns": _ns(at), "kind": "gauge", "name": "depth", "stage": "target", "index": 0, "tid": 300,
             "device": "cuda:0", "clock": "host", "channel": "q_hs", "value": depth},
        ),
        Columns(
            len(last),
            {"t_ns": _ns(b.trained[last]), "kind": "mark", "name": "window", "stage": "trainer", "index": 0,
             "device": "cpu", "clock": "host", "tid": 100, "window": np.arange(len(last)),
             "tokens": batches_a_window * batch_tokens, "note": note},
        ),
    ]  # fmt: skip


def _depths(b: Batches) -> tuple[Floats, Floats]:
    at = np.concatenate([b.copied, b.taken])
    step = np.concatenate([np.ones(len(b.copied)), -np.ones(len(b.taken))])
    order = np.lexsort((-step, _ns(at)))  # what is taken in the moment of its arrival arrived first
    return np.cumsum(step[order]), at[order]


def _spans(
    name: str, begin: Floats, end: Floats, fields: Mapping[str, Any], chosen: npt.NDArray[Any] | None = None
) -> Columns:
    keep = np.ones(len(begin), bool) if chosen is None else chosen
    picked = {k: v[keep] if isinstance(v, np.ndarray) else v for k, v in fields.items()}
    times = {"t_ns": _ns(begin[keep]), "dur_ns": _ns(end[keep]) - _ns(begin[keep])}
    return Columns(int(keep.sum()), {"kind": "span", "name": name, **times, **picked})


def _gpu_samples(random: np.random.Generator, seconds: float, hz: float) -> list[Columns]:
    t = np.arange(0, seconds, 1 / hz)
    parts = []
    for gpu in range(targets + 1):
        for metric, (mean, spread) in gpu_metrics.items():
            values = random.normal(mean, spread, len(t))
            if gpu == 3 and metric in stalling:
                values[np.abs(t - seconds / 2) < stall_s / 2] = 0.1 * mean
            parts.append(_readings("gpu", _uuid(gpu), metric, t, values))
        parts.append(_readings("gpu", _uuid(gpu), "power_limit_w", t[:1], np.array([700.0])))
    return parts


def _host_samples(random: np.random.Generator, seconds: float, hz: float) -> list[Columns]:
    t = np.arange(0, seconds, 1 / hz)
    parts = [
        _readings("host", "tree", "rss_anon_bytes", t, 6e10 + random.normal(0, 1e9, len(t))),
        _readings("host", "tree", "rss_file_bytes", t, 1e10 + random.normal(0, 1e8, len(t))),
        _readings("host", "tree", "rss_shmem_bytes", t, np.full(len(t), 2e9)),
        _readings("host", "tree", "cpu_s", t, 3.2 * t),
        _readings("host", "machine", "mem_limit_bytes", t[:1], np.array([2e12])),
    ]
    return parts + [
        _readings("host", f"{tid}:{name}", "thread_cpu_s", t, 0.35 * t) for tid, name in _threads()
    ]


def _gil_samples(random: np.random.Generator, seconds: float) -> list[Columns]:
    t = np.arange(1.0, seconds)
    waits = [
        _readings("gil_wait", f"{tid}:{name}", "gil_wait_samples", t, np.cumsum(random.poisson(1.5, len(t))))
        for tid, name in _threads()
    ]
    return [_readings("gil_wait", "*", "gil_sweeps", t, 50 * t), *waits]


def _threads() -> list[tuple[int, str]]:
    return [*((300 + n, f"target-{n}") for n in range(targets)), (400, "drafter-0")]


def _readings(source: str, key: str, metric: str, t: Floats, values: npt.NDArray[Any]) -> Columns:
    return Columns(
        len(t),
        {"t_ns": _ns(t), "source": source, "key": key, "metric": metric, "value": values.astype(float)},
    )


def _ns(seconds: Floats) -> npt.NDArray[np.int64]:
    return start_ns + np.round(seconds * 1e9).astype(np.int64)


def _write(path: Path, schema: pa.Schema, parts: list[Columns]) -> None:
    """All parts in time order, in the stream format that runs are written in."""
    table = pa.concat_tables([_table(schema, part) for part in parts]).sort_by("t_ns")
    with pa.OSFile(str(path), "wb") as file:
        options = ipc.IpcWriteOptions(compression="zstd")
        with ipc.new_stream(file, schema, options=options) as writer:
            writer.write_table(table, max_chunksize=batch_rows)


def _table(schema: pa.Schema, part: Columns) -> pa.Table:
    columns = []
    for field in schema:
        value = part.values.get(field.name)
        if isinstance(value, np.ndarray):
            columns.append(pa.array(value).cast(field.type))
        else:
            columns.append(pa.repeat(pa.scalar(value, field.type), part.rows))
    return pa.table(columns, schema=schema)


def main() -> None:
    """Write one run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("dir", type=Path)
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--hz", type=float, default=10.0)
    options = parser.parse_args()
    print(write_large_run(options.dir, seconds=3600 * options.hours, hz=options.hz))


if __name__ == "__main__":
    main()
