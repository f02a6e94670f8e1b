"""What being recorded costs a trainer that is all dispatch: paired runs, profiler fully on against off.

    python benchmarks/profiler_overhead.py --out DIR [--pairs 6] [--seconds 12] [--logical]

Trains the same tiny batches again and again, once plainly (`python -m dflash run`) and once recorded with
GPU, host, NUMA and both GIL samplers on, in the order off on on off. Needs two GPUs; --logical takes CPU
threads, which tests this page and says nothing of GPUs. The trainer's own events are on in both: they are the
trainer's, and there is no knob to run it without. Compares the time for the same windows, warm-up left out.
Writes DIR/profiler_overhead.json and prints a table.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from dflash.contract.config import load_config
from dflash.contract.rundir import python_command, utc_now
from profiler.recorder import RecordOptions, record
from profiler.run import Run
from profiler.steady import read_windows

warmup_part = 0.25  # of the windows that all runs have in common
t_one_sided_95 = {1: 6.31, 2: 2.92, 3: 2.35, 4: 2.13, 5: 2.02, 6: 1.94, 7: 1.89, 8: 1.86, 9: 1.83, 10: 1.81}
aims = {"loss_upper_95": 0.005, "recorder_cores": 0.02, "sample_bytes_per_hour": 15e6}


def write_config(arguments: argparse.Namespace) -> Path:
    """Small batches, many of them: the host's work per token is as large as it gets."""
    changes = [
        "target.model=random:tiny",
        "split=1-1",
        "transport=peer",
        "pipeline.token_budget=256",
        "window.tokens=1024",
        "data.max_length=128",
        "drafter.block_size=8",
        "objective.anchors_per_document=4",
        "run.epochs=300",
        f"run.max_seconds={arguments.seconds}",
        "run.checkpoint_every=-1",
        f"devices.kind={'logical' if arguments.logical else 'cuda'}",
    ]
    path: Path = arguments.out / "config.toml"
    path.write_text(load_config(None, changes).to_toml())
    return path


def train(config: Path, run_path: Path, recorded: bool) -> dict[str, Any]:
    """One run; what the recorder used, when it was there."""
    command = [*python_command(), "run", str(config)]
    log = run_path.with_suffix(".log")
    wall_s, cpu_s = time.monotonic(), time.process_time()
    if recorded:
        options = RecordOptions(log=log)
        code = record(command, run_path, options).exit_code
    else:
        with log.open("wb") as file:
            done = subprocess.run(
                [*command, "--run-dir", str(run_path)], stdout=file, stderr=file, check=False
            )
        code = done.returncode
    wall_s, cpu_s = time.monotonic() - wall_s, time.process_time() - cpu_s
    if code != 0:
        raise SystemExit(
            f"{run_path} ended with exit code {code}:\n{log.read_text(errors='replace')[-3000:]}"
        )
    facts: dict[str, Any] = {"path": str(run_path), "recorded": recorded, "wall_s": wall_s}
    if recorded:
        facts |= cost_of_recording(run_path, wall_s, cpu_s)
    return facts


def cost_of_recording(run_path: Path, wall_s: float, cpu_s: float) -> dict[str, Any]:
    """CPU of this process, which was the recorder, and of py-spy; bytes on disk; how the samplers did."""
    run = Run.open(run_path)
    samplers = run.manifest["samplers"]
    py_spy_s = samplers["gil"]["cpu_s"]  # with the little that its thread used here
    threads = run.samples[(run.samples["metric"] == "threads") & (run.samples["key"] == "tree")]["value"]
    events_s = float(run.events["t_ns"].max() - run.events["t_ns"].min()) / 1e9
    size = {d: sum(p.stat().st_size for p in (run_path / d).glob("*")) for d in ("samples", "events")}
    return {
        "recorder_cores": cpu_s / wall_s,
        "py_spy_cores": py_spy_s / wall_s,
        "sampler_cores": {name: entry["cpu_s"] / wall_s for name, entry in samplers.items()},
        "samplers": {name: entry["reason"] or entry["status"] for name, entry in samplers.items()},
        "threads": float(threads.max()) if len(threads) else None,
        "sample_bytes_per_hour": size["samples"] / wall_s * 3600,
        "event_bytes_per_hour": size["events"] / events_s * 3600,
    }


def measure_rates(facts: list[dict[str, Any]]) -> None:
    """Tokens a second of each run over the windows that all have, so over the same work."""
    tables = [read_windows(Run.open(Path(run["path"])).events)[0].set_index("window") for run in facts]
    last = min(int(table.index.max()) for table in tables)
    first = math.ceil(last * warmup_part)
    for run, table in zip(facts, tables, strict=True):
        part = table.loc[first:last]
        run["windows"] = len(part)
        run["tokens_per_s"] = float(part["tokens"].sum() / part["seconds"].sum())


def compare(facts: list[dict[str, Any]]) -> dict[str, Any]:
    """Throughput lost when recorded, from the pairs; the bound is one-sided (Student's t)."""
    lost = []
    for pair in zip(facts[::2], facts[1::2], strict=True):
        rates = {run["recorded"]: run["tokens_per_s"] for run in pair}
        lost.append(1.0 - rates[True] / rates[False])
    mean = statistics.fmean(lost)
    error = statistics.stdev(lost) / math.sqrt(len(lost)) if len(lost) > 1 else math.nan
    bound = mean + t_one_sided_95.get(len(lost) - 1, 1.8) * error
    recorded = [run for run in facts if run["recorded"]]
    return {
        "pairs": len(lost),
        "lost_by_pair": lost,
        "loss_mean": mean,
        "loss_upper_95": bound if math.isfinite(bound) else None,
        **{
            name: statistics.fmean(run[name] for run in recorded)
            for name in ("recorder_cores", "py_spy_cores", "sample_bytes_per_hour", "event_bytes_per_hour")
        },
        "threads": max((run["threads"] for run in recorded if run["threads"]), default=None),
        "gpus": len(Run.open(Path(recorded[0]["path"])).manifest["hardware"]["gpus"]),
        "samplers": recorded[0]["samplers"],
        "tokens_per_s_off": statistics.fmean(r["tokens_per_s"] for r in facts if not r["recorded"]),
    }


def describe(result: dict[str, Any]) -> str:
    """The table's one row, and the samplers that could not do their work."""
    bound = result["loss_upper_95"]
    cells = {
        "pairs": str(result["pairs"]),
        "throughput lost": f"{100 * result['loss_mean']:.2f} %",
        "95 % bound (aim 0.5 %)": "n/a" if bound is None else f"{100 * bound:.2f} %",
        "recorder (aim 2 % of a core)": f"{100 * result['recorder_cores']:.1f} %",
        "py-spy": f"{100 * result['py_spy_cores']:.1f} %",
        "samples an hour (aim 15 MB)": f"{result['sample_bytes_per_hour'] / 1e6:.1f} MB",
        "events an hour": f"{result['event_bytes_per_hour'] / 1e6:.1f} MB",
        "threads, GPUs": f"{result['threads'] or math.nan:.0f}, {result['gpus']}",
    }
    lines = [
        "| " + " | ".join(cells) + " |",
        "|" + "---|" * len(cells),
        "| " + " | ".join(cells.values()) + " |",
    ]
    lines += [f"{name}: {state}" for name, state in result["samplers"].items() if state != "ok"]
    return "\n".join(lines)


def main() -> int:
    """Run the pairs, write and print the result."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="a new or empty directory")
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--seconds", type=float, default=12.0, help="of training in each run")
    parser.add_argument("--logical", action="store_true", help="CPU threads instead of GPUs")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = sys.path[0]  # the trainer need not be installed
    config = write_config(arguments)
    order = [recorded for pair in range(arguments.pairs) for recorded in ((pair % 2) == 1, (pair % 2) == 0)]
    facts = []
    for number, recorded in enumerate(order):
        name = f"{number:02d}-{'on' if recorded else 'off'}"
        facts.append(train(config, arguments.out / name, recorded))
        print(f"{name}: {facts[-1]['wall_s']:.1f} s", file=sys.stderr, flush=True)
    measure_rates(facts)
    result = {"when": utc_now(), "logical": arguments.logical, **compare(facts), "aims": aims, "runs": facts}
    (arguments.out / "profiler_overhead.json").write_text(json.dumps(result, indent=1, allow_nan=False))
    print(describe(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
