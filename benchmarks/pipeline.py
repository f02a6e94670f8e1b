"""Whole pipelines end to end: a naive one with SpecForge's drafter against ours, every transport and split.

    python benchmarks/pipeline.py --out FILE.json --site DIR [--gpus 1|2] [--settings big small mixed]
        [--runs peer host ...] [--hard-runs peer 2-2 ...] [--batches 24] [--layers 36] [--set KNOB=VALUE]
Qwen3-8B shapes with random weights and tokens; DIR holds SpecForge's unpacked wheels (see
against_specforge.py); without --site the naive pipeline is left out. With one GPU both roles share it, so
that a copy is only made where a path asks for one. Settings: big (a document of 8192 tokens a batch), small
(2048), mixed (100 to 4000 tokens, budget 8192). The naive pipeline runs in `big`, first and last, which shows
drift. `efficiency` is against what the stages reach alone, measured before and after; `exposed_copy_share`
is the share of time in which stages stood still for copies, all stages together. `--tiny` runs on the CPU,
for trying this page.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch

from benchmarks.contest import free_memory, start_afresh
from benchmarks.drafter_case import build_case
from benchmarks.naive_pipeline import NaivePipeline
from benchmarks.peer_specforge import open_site
from benchmarks.pipeline_run import run_ours
from benchmarks.pipeline_settings import Setting, settings
from benchmarks.result_file import package_versions, write_result
from dflash.cuda import CudaDevice
from dflash.devices import Device, LogicalDevice

# For each run its split and the knobs that make it.
runs: dict[str, tuple[str, list[str]]] = {
    "peer": ("1-1", ["transport=peer"]),
    "pinned": ("1-1", ["transport=pinned"]),
    "shared": ("1-1", ["transport=shared"]),
    "host": ("1-1", ["transport=host"]),
    "lockstep": ("1-1", ["transport=peer", "pipeline.schedule=lockstep"]),
    "colocated": ("colocated-{gpus}", []),
    "2-2": ("2-2", ["transport=peer"]),
}


def measure(choice: argparse.Namespace) -> list[dict[str, Any]]:
    """All rows, written as they come: a run that fails takes nothing with it."""
    rows: list[dict[str, Any]] = []

    def keep(row: dict[str, Any]) -> None:
        rows.append(row)
        print_row(row)
        facts = {"gpus_used": choice.gpus, "layers": choice.layers, "tiny": choice.tiny}
        peer = package_versions("specforge", "liger-kernel")
        write_result(choice.out, "pipeline", {**facts, "peer": peer, "rows": rows})
        free_memory()

    for name in choice.settings:
        start_afresh()  # each setting has shapes of its own
        setting = settings(choice.layers, tiny=choice.tiny)[name]
        naive = choice.site is not None and name == "big"
        ways = ("peer", "host") if choice.gpus > 1 else ("within", "host")
        if naive:
            for row in run_naive(setting, choice, ways):
                keep(row)
        for run in choice.runs if name == "big" else choice.hard_runs or choice.runs:
            split, changes = runs[run]
            changes = [*changes, *([] if run == "colocated" else [f"devices.gpus={choice.gpus}"])]
            split = split.format(gpus=choice.gpus)
            keep(
                run_ours(
                    run, setting, setting.batches_for(choice.batches), split, [*changes, *choice.changes]
                )
            )
        if naive:
            for row in run_naive(setting, choice, ways[:1]):
                keep(row)
    return rows


def run_naive(setting: Setting, choice: argparse.Namespace, ways: Sequence[str]) -> list[dict[str, Any]]:
    """The naive pipeline, in each of these ways."""
    cuda = torch.cuda.is_available()
    places = [torch.device("cuda", i) if cuda else torch.device("cpu") for i in range(choice.gpus)]
    device: Device = CudaDevice(choice.gpus - 1) if cuda else LogicalDevice(0)
    with device.active():
        case = build_case(
            setting.name,
            device,
            tiny=choice.tiny,
            shape=setting.batch_shape,
            changes=[f"target.model={setting.target_name}"],
        )
        pipeline = NaivePipeline(case, places[0], liger=cuda)
        return [
            {"setting": setting.name, **pipeline.run(way, setting.batches_for(choice.batches))}
            for way in ways
        ]


def print_row(row: dict[str, Any]) -> None:
    """A line."""
    low, high = row["interval_90"]
    print(
        f"{row['setting']:6} {row['name']:14} {row['tokens_per_s']:10.0f} tokens/s "
        f"({low:.0f} to {high:.0f})  efficiency {row.get('efficiency', 'n/a')}  "
        f"exposed copies {row.get('exposed_copy_share', 'n/a')}  "
        f"peak {row['peak_gb']} GB  RSS +{row['rss_growth_gb']} GB",
        flush=True,
    )


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--site", type=Path)
    parser.add_argument("--gpus", type=int, default=max(1, min(2, torch.cuda.device_count())))
    parser.add_argument("--settings", nargs="+", choices=("big", "small", "mixed"), default=["big"])
    default_runs = ["peer", "pinned", "shared", "host", "colocated", "lockstep"]
    parser.add_argument("--runs", nargs="+", choices=tuple(runs), default=default_runs)
    parser.add_argument("--hard-runs", nargs="+", choices=tuple(runs), help="of `small` and `mixed`")
    parser.add_argument("--batches", type=int, default=24, help="of a run in `big`; others take as long")
    parser.add_argument("--layers", type=int, default=36, help="of the target")
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", dest="changes")
    parser.add_argument("--tiny", action="store_true")
    choice = parser.parse_args()
    if choice.site is not None:
        open_site(choice.site)
    measure(choice)
    return 0


if __name__ == "__main__":
    sys.exit(main())
