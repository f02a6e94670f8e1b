"""The transport presets on real GPUs: same losses, and the tokens/s of each.

Trains the same windows through every preset in one process, one after the other, twice through `peer`:
    python benchmarks/transport_presets.py --out DIR [--target random:qwen3-1.7b] [--split 1-1] [--steps 24]
Runs with deterministic kernels. At 1-1 losses and weights must be equal to the bit over all runs; at other
splits they must agree within the spread of the two `peer` runs, or 2e-3 relative where that is larger.
Exit 1 when they do not. Writes DIR/transport_presets.json and one run directory a preset.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # deterministic matrix products

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.contest import free_memory
from benchmarks.result_file import write_result
from dflash.contract.config import TrainConfig, load_config
from dflash.contract.events import open_events
from dflash.contract.rundir import create_run, utc_now
from dflash.session import Session
from dflash.trainer import prepare

runs = ("peer", "peer", "auto", "pinned", "shared", "host")


def configure(arguments: argparse.Namespace, preset: str) -> TrainConfig:
    """The embedded text with its mixed lengths; budget and window scaled to it."""
    changes = [
        f"target.model={arguments.target}",
        f"split={arguments.split}",
        f"devices.gpus={torch.cuda.device_count()}",  # roles share where there are fewer GPUs
        f"transport={preset}",
        f"run.max_steps={arguments.steps}",
        "run.epochs=100",
        "run.checkpoint_every=-1",
        "run.deterministic=true",
        f"pipeline.token_budget={arguments.budget}",
        f"window.tokens={arguments.window}",
        "data.max_length=1024",
        "drafter.layers=5",
        "drafter.tap_count=5",
        "drafter.block_size=16",
        "objective.anchors_per_document=16",
        "objective.chunk_blocks=128",
    ]
    return load_config(None, changes)


def train(arguments: argparse.Namespace, preset: str, number: int) -> dict[str, Any]:
    """One run; figures as JSON-able numbers."""
    config = configure(arguments, preset)
    run = create_run(arguments.out / f"{number}-{preset}", command=sys.argv)
    log, probe = open_events(run.events / "trainer.arrow")
    session = Session(run, config)
    session.write_start()
    trainer = prepare(config, run_path=None, probe=probe)
    session.announce(trainer)
    ends: list[tuple[float, int]] = []
    trainer.window_done = lambda window, figures: ends.append((time.monotonic(), window.tokens))
    for index in range(torch.cuda.device_count()):
        torch.cuda.reset_peak_memory_stats(index)
    result = trainer.run()
    log.close()
    run.update(status="finished", exit_code=0, ended_utc=utc_now(), books=result.books())
    skip = len(ends) // 3
    seconds = ends[-1][0] - ends[skip][0]
    digest = hashlib.sha256()
    weights = result.weights()
    for name in sorted(weights):
        digest.update(weights[name].contiguous().view(torch.uint8).numpy().tobytes())
    return {
        "preset": preset,
        "tokens_per_s": sum(tokens for _, tokens in ends[skip + 1 :]) / seconds,
        "windows_measured": len(ends) - skip - 1,
        "losses": list(result.losses),
        "weights_sha256": digest.hexdigest(),
        "peak_gb": [torch.cuda.max_memory_allocated(i) / 1e9 for i in range(torch.cuda.device_count())],
        "books": result.books(),
    }


def compare(rows: list[dict[str, Any]], split: str) -> dict[str, Any]:
    """Whether all presets trained the same thing, and by how much they differ."""
    first, second, *_ = rows

    def apart(a: dict[str, Any], b: dict[str, Any]) -> float:
        return max(abs(x - y) / abs(x) for x, y in zip(a["losses"], b["losses"], strict=True))

    spread = apart(first, second)
    worst = max(apart(first, row) for row in rows)
    identical = len({row["weights_sha256"] for row in rows}) == 1
    repeatable = first["weights_sha256"] == second["weights_sha256"]
    same = identical if repeatable and split == "1-1" else worst <= max(spread, 2e-3)
    return {
        "same": same,
        "bit_identical": identical,
        "peer_repeats_bit_identical": repeatable,
        "largest_relative_loss_difference": worst,
        "peer_repeat_spread": spread,
    }


def main() -> int:
    """Run all presets, print a table, write the result file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", default="random:qwen3-1.7b")
    parser.add_argument("--split", default="1-1")
    parser.add_argument("--steps", type=int, default=24)
    parser.add_argument("--budget", type=int, default=8192)
    parser.add_argument("--window", type=int, default=32768)
    arguments = parser.parse_args()
    rows = []
    for number, preset in enumerate(runs):
        rows.append(train(arguments, preset, number))
        print(
            f"{preset:8} {rows[-1]['tokens_per_s']:10.0f} tokens/s  last loss {rows[-1]['losses'][-1]:.6f}",
            flush=True,
        )
        free_memory()
    verdict = compare(rows, arguments.split)
    figures = {"rows": rows, "comparison": verdict}
    write_result(arguments.out / "transport_presets.json", "transport_presets", figures)
    print(json.dumps(verdict))
    return 0 if verdict["same"] else 1


if __name__ == "__main__":
    sys.exit(main())
