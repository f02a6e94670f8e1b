"""The memory plan against what torch's allocator saw at its peak, and a run refused before loading.

    python benchmarks/memory_plan.py --out memory_plan.json [--only 8b-chunks,8b-whole] [--jobs 1]
Each configuration trains a few windows in a process of its own, with both roles on one GPU; its row is
printed and written when it ends, with the time it took. Most of that is compiling, the first of a width from
nothing; `--jobs` processes run at once, as far as the GPU holds them all: each counts its own allocations.
Exit 1 when a plan is further than 5 % from the peak, or the run that cannot fit was not refused.
`--tiny` runs small ones on logical devices, where there is no allocator to compare with: it tries this page,
not the plan.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch

import dflash.seeded_weights
from benchmarks.result_file import write_result
from dflash.contract.config import TrainConfig, load_config
from dflash.contract.errors import DeviceError
from dflash.contract.model_shapes import random_shapes
from dflash.memory_check import MemoryPlan
from dflash.trainer import prepare

tolerance = 0.05
child_limit_s = 400
documents = 24  # the windows of the run that cannot fit; the others go through them again
words_each = 4000  # more than any configuration keeps
common = [
    "run.max_steps=3",
    "run.epochs=100",
    "run.checkpoint_every=-1",
    "transport.depth=1",
    "drafter.block_size=16",
    "drafter.layers=5",
]
# Layers behind the last tap would be drawn, and dropped before anything runs.
random_shapes["qwen3-8b-16-layers"] = {**random_shapes["qwen3-8b"], "num_hidden_layers": 16}
eight = ["target.model=random:qwen3-8b-16-layers", "drafter.taps=1,4,7,10,13", "split=colocated-1"]
small = [
    "target.model=random:qwen3-1.7b",
    "drafter.tap_count=5",
    "split=1-1",
    "transport=peer",
    "devices.gpus=1",
]


def _lengths(budget: int, length: int, anchors: int) -> list[str]:
    return [
        f"pipeline.token_budget={budget}",
        f"window.tokens={3 * budget}",
        f"data.max_length={length}",
        f"objective.anchors_per_document={anchors}",
    ]


# Those of one width come after each other: compiled code is taken from torch's cache on disk.
configurations = {
    "8b-chunks": [*eight, *_lengths(8192, 2048, 512), "objective.chunk_blocks=128", "target.compile=off"],
    "8b-whole": [*eight, *_lengths(8192, 8192, 512), "objective.chunk_blocks=0"],
    "1.7b": [*small, *_lengths(4096, 1024, 128), "objective.chunk_blocks=128"],
    "1.7b-checkpointing": [
        *small,
        *_lengths(8192, 2048, 384),
        "objective.chunk_blocks=64",
        "drafter.checkpointing=layers",
    ],
}
# Logits of a batch alone are more than any GPU has.
cannot_fit = [*eight, *_lengths(65536, 8192, 4096), "objective.chunk_blocks=0"]
tiny = {"tiny": ["run.max_steps=2", "devices.kind=logical"]}
tiny_cannot_fit = [
    "target.model=random:qwen3-8b",
    "split=1-96",
    "window.tokens=200000",
    "devices.kind=logical",
]


def main() -> int:
    """Run all; print and write what each came to as it ends; returns the exit code."""
    arguments = _parse()
    if arguments.child is not None:
        print(json.dumps(train(load_config(None, json.loads(arguments.child)))))
        return 0
    chosen = tiny if arguments.tiny else configurations
    if arguments.only:
        chosen = {name: chosen[name] for name in arguments.only.split(",")}
    rows: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        data = [] if arguments.tiny else [f"data.path={_write_data(Path(folder))}", *common]
        refused = _run_child(tiny_cannot_fit if arguments.tiny else [*cannot_fit, *data])
        # What jobs beside a run hold for now is no reason to refuse it.
        data.append("devices.memory_plan=warn")
        print(f"cannot fit: {_describe_refusal(refused)}", flush=True)
        with ThreadPoolExecutor(arguments.jobs) as pool:
            names = {pool.submit(_run_child, [*sets, *data]): name for name, sets in chosen.items()}
            for done in as_completed(names):
                name, row = names[done], _to_be_run(done.result())
                rows[name] = row
                print(f"{name}: {row.get('error') or _describe(row)}", flush=True)
                figures = {"tolerance": tolerance, "configurations": rows, "cannot_fit": refused}
                write_result(arguments.out, "memory_plan", {**figures, "wrong": _wrong(rows)})
    return 1 if _wrong(rows) or "refused" not in refused else 0


def _to_be_run(row: dict[str, Any]) -> dict[str, Any]:
    """The row of a configuration that must not be refused."""
    return {**row, "error": row["refused"]} if "refused" in row else row


def _wrong(rows: dict[str, dict[str, Any]]) -> list[str]:
    return [
        name for name, row in rows.items() if "error" in row or any(abs(o) > tolerance for o in _off(row))
    ]


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="", help="names, with commas between")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    return parser.parse_args()


def _write_data(folder: Path) -> Path:
    """Conversations so long that every document is cut to the same length."""
    path = folder / "long.jsonl"
    with path.open("w") as file:
        for number in range(documents):
            answer = " ".join(f"{(number * 7919 + i * 104729) % 9973}" for i in range(words_each))
            turns = [{"role": "user", "content": "Count."}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": turns}) + "\n")
    return path


def _run_child(assignments: list[str]) -> dict[str, Any]:
    started_s = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, __file__, "--child", json.dumps(assignments)],
            capture_output=True,
            text=True,
            timeout=child_limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"error": f"not done after {child_limit_s} s"}
    if done.returncode != 0:
        return {"error": done.stderr[-3000:]}
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return {**row, "wall_s": round(time.monotonic() - started_s, 1)}


def train(config: TrainConfig) -> dict[str, Any]:
    """Train to the end; the plan and the peaks. A refusal is an outcome, too."""
    used_before = _used_bytes()
    started_s = time.monotonic()
    try:
        with patch.object(dflash.seeded_weights, "_fill", _fill_quickly):
            trainer = prepare(config)
    except DeviceError as error:
        return {
            "refused": error.render(),
            "refused_after_s": round(time.monotonic() - started_s, 2),
            "peak_rss_bytes": _peak_rss_bytes(),
            "peak_bytes": _peak_bytes(),
        }
    prepared_s = time.monotonic()
    for index in _gpus():
        torch.cuda.reset_peak_memory_stats(index)
    result = trainer.run()
    ended_s = time.monotonic()
    reserved = {f"cuda:{i}": torch.cuda.max_memory_reserved(i) for i in _gpus()}
    outside = {name: used - reserved[name] for name, used in _used_bytes().items()}
    return {
        "plan": trainer.memory.to_json(),
        "planned_bytes": _planned(trainer.memory),
        "peak_bytes": _peak_bytes(),
        "reserved_bytes": reserved,
        "used_before_bytes": used_before,  # by the context, and by others
        "outside_allocator_bytes": outside,
        "peak_rss_bytes": _peak_rss_bytes(),
        "prepare_s": round(prepared_s - started_s, 1),
        "prepared": trainer.prepared.describe(),
        "train_s": round(ended_s - prepared_s, 1),
        "losses": list(result.losses),
    }


def _fill_quickly(_name: str, tensor: torch.Tensor, _seed: int, std: float) -> None:
    """Weights of about the right size: drawing billions of them takes a CPU minutes."""
    few = torch.randn(min(tensor.numel(), 1 << 20)) * std if tensor.ndim > 1 else torch.ones(1)
    flat, few = tensor.view(-1), few.to(tensor.dtype)
    for start in range(0, len(flat), len(few)):
        flat[start : start + len(few)] = few[: len(flat) - start]


def _gpus() -> range:
    return range(torch.cuda.device_count() if torch.cuda.is_available() else 0)


def _planned(plan: MemoryPlan) -> dict[str, int]:
    return {place: plan.ledger.allocated_bytes(place) for place in plan.ledger.places}


def _peak_bytes() -> dict[str, int]:
    return {f"cuda:{index}": torch.cuda.max_memory_allocated(index) for index in _gpus()}


def _used_bytes() -> dict[str, int]:
    free = {f"cuda:{index}": torch.cuda.mem_get_info(index) for index in _gpus()}
    return {name: total - left for name, (left, total) in free.items()}


def _peak_rss_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _off(row: dict[str, Any]) -> list[float]:
    """Plan over peak, less one, of each GPU that did something."""
    return [
        row["planned_bytes"][name] / peak - 1
        for name, peak in row.get("peak_bytes", {}).items()
        if peak and name in row.get("planned_bytes", {})
    ]


def _describe(row: dict[str, Any]) -> str:
    parts = [
        f"{name} planned {row['planned_bytes'][name] / 1e9:.2f} GB, peak {peak / 1e9:.2f} GB, {off:+.1%}"
        for (name, peak), off in zip(row["peak_bytes"].items(), _off(row), strict=True)
    ]
    parts.append(f"host planned {row['planned_bytes']['host'] / 1e9:.2f} GB, RSS {_gb(row)} with libraries")
    parts.append(f"{row['wall_s']} s, of which {row['train_s']} to train; prepared in {row['prepared']}")
    lines = [
        f"    {line['bytes'] / 1e9:8.3f} GB  {line['name']}"
        for place in row["plan"]["places"]
        if place["place"] != "host"
        for line in place["lines"]
    ]
    return "; ".join(parts) + "".join(f"\n{line}" for line in lines)


def _gb(row: dict[str, Any]) -> str:
    return f"{row['peak_rss_bytes'] / 1e9:.2f} GB"


def _describe_refusal(row: dict[str, Any]) -> str:
    if "refused" not in row:
        return f"NOT refused: {row.get('error', 'it ran')}"
    held = ", ".join(f"{name} {size / 1e6:.0f} MB" for name, size in row["peak_bytes"].items()) or "no GPU"
    return f"refused after {row['refused_after_s']} s, RSS {_gb(row)}, allocated on {held}\n{row['refused']}"


if __name__ == "__main__":
    sys.exit(main())
