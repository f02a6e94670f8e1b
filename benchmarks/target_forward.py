"""The target forward against plain transformers with SDPA: tokens/s, memory, and the same tapped states.

    python benchmarks/target_forward.py --out FILE.json [--layers 36] [--hybrid-layers 16] [--rounds 5]
Qwen3-8B shape, random bfloat16 weights made on the device, 5 taps, no head: 16 × 2048 tokens, 1 × 8192, and
mixed lengths of 100 to 4000. Contenders take turns, round by round: plain (the whole decoder, padded rows,
hooks that keep the tapped states), ours (flat row, variable-length attention, compiled, ends after the last
tap), ours without compilation. Then the Qwen3.5-27B hybrid shape with and without flash-linear-attention,
each in a process of its own. Fewer layers are extrapolated in proportion. States are held to a float32
decoder: ours may be at most 1.25 times as far from it as plain bfloat16 is, else exit 1. `--tiny` takes small
shapes, for the CPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.contest import free_memory
from benchmarks.drafter_case import open_device
from benchmarks.result_file import package_versions, summary, write_result
from benchmarks.target_case import (
    Documents,
    build_body,
    build_target,
    hybrid_config,
    mixed_lengths,
    plain_config,
)
from dflash.contract.taps import choose_taps
from dflash.devices import Device
from dflash.target import Target
from dflash.target_attention import varlen

whole_layers = {"plain": 36, "hybrid": 64}
fair = 1.25  # times the distance of plain bfloat16 from float32
children = ("hybrid", "hybrid-reference")  # parts that run in a process of their own
kernel_packages = ("flash-linear-attention", "causal-conv1d")


class PlainDecoder:
    """What people write: the whole decoder over padded rows, with hooks that keep the tapped states."""

    def __init__(self, body: nn.Module, taps: tuple[int, ...]) -> None:
        self._body, self._kept = body, list[Tensor]()
        for tap in taps:
            cast(nn.ModuleList, body.layers)[tap].register_forward_hook(self._keep)

    def _keep(self, _layer: nn.Module, _inputs: object, output: Tensor | tuple[Tensor]) -> None:
        self._kept.append(output if isinstance(output, Tensor) else output[0])

    def run(self, rows: Tensor) -> list[Tensor]:
        """Tapped states [rows, width, H], in the order of layers."""
        self._kept = []
        with torch.inference_mode():
            self._body(input_ids=rows, use_cache=False)
        kept, self._kept = self._kept, []
        return kept


def states(decoder: PlainDecoder, documents: Documents, device: torch.device) -> Tensor:
    """The real tokens' states side by side: [T, F*H]."""
    slots = documents.padded.slots.to(device)
    return torch.cat([tap.flatten(0, 1)[slots] for tap in decoder.run(documents.rows(device))], dim=1)


def distance(found: Tensor, exact: Tensor) -> float:
    """Relative, by the norm."""
    return float((found.float() - exact).norm() / exact.norm())


def take_turns(
    device: Device, calls: dict[str, Callable[[], object]], tokens: int, rounds: int
) -> dict[str, Any]:
    """Milliseconds, tokens/s and peak memory of each call, which are made in turns."""
    cuda = torch.cuda.is_available()
    times_ms: dict[str, list[float]] = {name: [] for name in calls}
    peaks: dict[str, float] = {}
    for number in range(rounds + 2):
        for name, call in calls.items():
            if cuda:
                torch.cuda.reset_peak_memory_stats()
                before = torch.cuda.memory_allocated()
            start_s = time.monotonic()
            call()
            device.record().wait()
            if number >= 2:  # else it compiles, or allocates
                times_ms[name].append((time.monotonic() - start_s) * 1e3)
                if cuda:
                    peaks[name] = (torch.cuda.max_memory_allocated() - before) / 1e9
    return {
        name: {
            "forward_ms": summary(times_ms[name]),
            "tokens_per_s": round(tokens / (summary(times_ms[name])["median"] / 1e3), 1),
            "peak_gb_beside_weights": round(peaks[name], 3) if cuda else None,
        }
        for name in calls
    }


Rows = list[dict[str, Any]]
Keep = Callable[[Rows, dict[str, Any]], None]  # takes in rows, and facts about all of them


def measure_plain(device: Device, choice: argparse.Namespace, keep: Keep) -> bool:
    """The Qwen3-8B shape, case by case; whether all have the same states."""
    place = device.torch_device
    dtype = torch.float32 if place.type == "cpu" else torch.bfloat16
    config = plain_config(choice.layers, tiny=choice.tiny)
    layers = config.num_hidden_layers
    taps = choose_taps(layers, min(5, layers - 3))
    body = build_body(config, place, dtype)
    targets = {
        "ours": build_target(body, taps, attention=varlen, compile_layers=True),
        "ours, not compiled": build_target(body, taps, attention=varlen, compile_layers=False),
    }
    decoder = PlainDecoder(body, taps)
    agreement = compare(decoder, exact_copy(body, taps), targets, choice)
    free_memory()
    cases = {
        "16 × 2048": [2048] * 16,
        "1 × 8192": [8192],
        "mixed 100-4000": mixed_lengths(32768, 100, 4000),
    }
    if choice.tiny:
        cases = {"4 × 32": [32] * 4, "mixed 5-60": mixed_lengths(128, 5, 60)}
    facts = {"taps": list(taps), "attention": targets["ours"].kernel, "agreement": agreement}
    for name, lengths in cases.items():
        documents = Documents(lengths, config.vocab_size)
        ids = documents.rows(place)
        calls: dict[str, Callable[[], object]] = {"plain": partial(decoder.run, ids)}
        calls |= {own: partial(documents.run, target, "flat") for own, target in targets.items()}
        figures = take_turns(device, calls, documents.tokens, choice.rounds)
        base = figures["plain"]["forward_ms"]["median"]
        rows = [
            {
                "shape": "Qwen3-8B",
                "case": name,
                "name": who,
                "layers": layers,
                "layers_run": layers if who == "plain" else taps[-1] + 1,
                "tokens": documents.tokens,
                "processed_tokens": ids.numel() if who == "plain" else documents.tokens,
                **row,
                "times_as_fast": round(base / row["forward_ms"]["median"], 3),
                "whole_tokens_per_s": round(row["tokens_per_s"] * layers / whole_layers["plain"], 1),
            }
            for who, row in figures.items()
        ]
        failures = [f.failure for f in targets["ours"].compiled if f.failure]
        keep(rows, {**facts, "not_compiled_because": failures})
    return bool(agreement["same"])


def exact_copy(body: nn.Module, taps: tuple[int, ...]) -> PlainDecoder:
    """The same weights in float32."""
    place = next(body.parameters()).device
    exact = build_body(cast(Any, body.config), place, torch.float32)
    with torch.no_grad():
        for own, given in zip(exact.parameters(), body.parameters(), strict=True):
            own.copy_(given)
    return PlainDecoder(exact, taps)


def compare(
    plain: PlainDecoder, exact: PlainDecoder, targets: dict[str, Target], choice: argparse.Namespace
) -> dict[str, Any]:
    """How far everybody's tapped states are from those of float32, on a few documents."""
    first = next(iter(targets.values()))
    lengths = [40, 17, 5] if choice.tiny else [1100, 300, 77]  # long ones have a kernel of their own
    documents = Documents(lengths, first.spec.vocab)
    found = {"plain": states(plain, documents, first.device)}
    found |= {name: documents.run(target, "flat") for name, target in targets.items()}
    wanted = states(exact, documents, first.device).float()
    far = {name: distance(taps, wanted) for name, taps in found.items()}
    apart = {name: distance(found[name], found["plain"].float()) for name in targets}
    limit = max(fair * far["plain"], 1e-4)
    return {
        "distance_from_float32": {name: float(f"{value:.3g}") for name, value in far.items()},
        "distance_from_plain": {name: float(f"{value:.3g}") for name, value in apart.items()},
        "same": all(value <= limit for value in far.values()),
    }


def measure_hybrid(device: Device, choice: argparse.Namespace) -> dict[str, Any]:
    """The Qwen3.5-27B shape, whose rows are padded, with what kernels there are."""
    place = device.torch_device
    dtype = torch.float32 if place.type == "cpu" else torch.bfloat16
    config = hybrid_config(choice.hybrid_layers, tiny=choice.tiny)
    layers = config.num_hidden_layers
    taps = choose_taps(layers, min(5, layers - 3))
    body = build_body(config, place, dtype)
    target = build_target(body, taps, attention="sdpa", compile_layers=True)
    decoder = PlainDecoder(body, taps)
    documents = Documents([32] * 2 if choice.tiny else [2048] * 8, config.vocab_size)
    ids = documents.rows(place)
    calls: dict[str, Callable[[], object]] = {
        "plain": partial(decoder.run, ids),
        "ours": partial(documents.run, target, "padded"),
    }
    figures = take_turns(device, calls, documents.tokens, min(3, choice.rounds))
    base = figures["plain"]["forward_ms"]["median"]
    return {
        "rows": [
            {
                "name": who,
                "layers": layers,
                "layers_run": layers if who == "plain" else taps[-1] + 1,
                "tokens": documents.tokens,
                "processed_tokens": documents.tokens,
                **row,
                "times_as_fast": round(base / row["forward_ms"]["median"], 3),
                "whole_tokens_per_s": round(row["tokens_per_s"] * layers / whole_layers["hybrid"], 1),
            }
            for who, row in figures.items()
        ]
    }


def hybrid_in_child(choice: argparse.Namespace, *, with_kernels: bool) -> dict[str, Any]:
    """`measure_hybrid` in a process of its own, since transformers takes its kernels when it is imported."""
    part = "hybrid" if with_kernels else "hybrid-reference"
    command = [sys.executable, __file__, "--part", part, "--rounds", str(choice.rounds)]
    command += ["--hybrid-layers", str(choice.hybrid_layers), *(["--tiny"] if choice.tiny else [])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode != 0:
        return {"skipped": (done.stderr.strip().splitlines() or ["no word"])[-1][:300]}
    return cast(dict[str, Any], json.loads(done.stdout.strip().splitlines()[-1]))


def measure_hybrids(choice: argparse.Namespace, keep: Keep) -> None:
    """With and without the kernels; those that cannot be measured are kept with the reason."""
    skipped: dict[str, str] = {}
    versions = package_versions(*kernel_packages)
    for case in ("with fla", "without fla"):
        if case == "with fla" and kernel_packages[0] not in versions:
            skipped[case] = f"not installed: {kernel_packages[0]}"
            keep([], {"skipped": skipped})
            continue
        result = hybrid_in_child(choice, with_kernels=case == "with fla")
        if "skipped" in result:
            skipped[case] = result["skipped"]
        rows = [{"shape": "Qwen3.5-27B hybrid", "case": case, **row} for row in result.get("rows", [])]
        keep(rows, {"skipped": skipped, "kernels": versions})


def main() -> int:
    """Measure, print a line a row, write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--layers", type=int, default=36)
    parser.add_argument("--hybrid-layers", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--part", choices=["all", "plain", "hybrids", *children], default="all")
    parser.add_argument("--tiny", action="store_true")
    choice = parser.parse_args()
    if choice.part in children:
        if choice.part == "hybrid-reference":
            sys.modules["fla"] = sys.modules["causal_conv1d"] = cast(Any, None)  # an import of them fails
        print(json.dumps(measure_hybrid(open_device(), choice)))
        return 0
    document: dict[str, Any] = {"tiny": choice.tiny, "rows": []}

    def keep(rows: Rows, facts: dict[str, Any]) -> None:
        document["rows"] += rows
        document.update(facts)
        for row in rows:
            print(
                f"{row['shape']}, {row['case']}: {row['name']:18} {row['forward_ms']['median']:9.1f} ms "
                f"{row['tokens_per_s']:9.0f} tokens/s, {row['times_as_fast']:.2f} times as fast as plain",
                flush=True,
            )
        write_result(choice.out, "target_forward", document)

    same = choice.part == "hybrids" or measure_plain(open_device(), choice, keep)
    free_memory()
    if choice.part != "plain":
        measure_hybrids(choice, keep)
    for case, reason in document.get("skipped", {}).items():
        print(f"Qwen3.5-27B hybrid, {case}: n/a: {reason}")
    print(json.dumps(document.get("agreement")))
    return 0 if same else 1


if __name__ == "__main__":
    sys.exit(main())
