"""Our drafter step at the Qwen3-8B drafter shape: milliseconds by phase, context tokens/s, memory, kernels.

    python benchmarks/drafter_step.py --out FILE.json [--cases a b] [--profile] [--set KNOB=VALUE]
Cases: a 1 document of 8192 tokens with 512 anchors, b 4 of 2048 with 512 each, c 1 of 32768 with 2048. Random
tapped states, embedding and head; no target runs. `--profile` writes the kernels of a step beside FILE.json.
`--tiny` takes small shapes, for trying this page on the CPU.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.contest import Contest, kernel_table, start_afresh
from benchmarks.drafter_case import Case, build_case, open_device, shapes, step_flops
from benchmarks.our_step import OurStep
from benchmarks.result_file import write_beside, write_result


def measure(case: Case, choice: argparse.Namespace) -> dict[str, Any]:
    """The figures of one case."""
    contest = Contest(case.device)
    contender = contest.enter(lambda: OurStep(case))
    contest.warm_up(choice.warm_up)
    contest.run(1, choice.steps)
    flops = step_flops(case)
    row = {
        "case": case.name,
        "context_tokens": case.batch.tokens,
        "blocks": case.batch.anchors.numel(),
        "model_tflop": round(flops / 1e12, 3),
        **contest.timings[0].describe(case.batch.tokens, flops),
    }
    if choice.profile:

        def step() -> None:
            contender.train()
            contender.complete()

        table, sums = kernel_table(step)
        row |= sums
        write_beside(choice.out, f"{case.name}_kernels", table)
        print(table)
    return row


def main() -> int:
    """Measure every case, print a line each, write the result."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cases", nargs="+", choices=sorted(shapes), default=["a", "b"])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=4)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", dest="changes")
    parser.add_argument("--tiny", action="store_true")
    choice = parser.parse_args()
    device = open_device()
    rows = []
    for name in choice.cases:
        rows.append(measure(build_case(name, device, tiny=choice.tiny, changes=choice.changes), choice))
        start_afresh()
        row = rows[-1]
        print(
            f"{name}: {row['step_ms']['median']:.1f} ms ({row['train_ms']['median']:.1f} train, "
            f"{row['complete_ms']['median']:.1f} complete), "
            f"{row['context_tokens_per_s']:.0f} context tokens/s, "
            f"{row['model_tflop_per_s']:.0f} TFLOP/s, peak {row['peak_gb']} GB",
            flush=True,
        )
    write_result(choice.out, "drafter_step", {"tiny": choice.tiny, "rows": rows})
    return 0


if __name__ == "__main__":
    sys.exit(main())
