"""Our drafter step against a peer's, in one run: whether both compute the same, and how fast, in turns.

What is common to `against_specforge.py` and `against_speculators.py`. Knows no peer by name.
"""

from __future__ import annotations

import argparse
import contextlib
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch

from benchmarks.agreement import Outcome, compare
from benchmarks.contest import Contender, Contest, free_memory, kernel_table, speed_ratio, start_afresh
from benchmarks.drafter_case import Case, build_case, open_device, shapes, step_flops
from benchmarks.our_step import OurStep
from benchmarks.result_file import write_beside, write_result

plain_float32 = (
    ("drafter.dtype", "float32"),
    ("drafter.attention", "sdpa"),
    ("drafter.checkpointing", "layers"),
)


def parse_choice(description: str | None) -> argparse.Namespace:
    """The options that every duel has."""
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--site", type=Path, required=True, help="folder of the peer's unpacked wheels")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--cases", nargs="+", choices=sorted(shapes), default=["a", "b"])
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=3, help="steps of each in a round")
    parser.add_argument("--warm-up", type=int, default=4)
    parser.add_argument("--profile", action="store_true", help="kernels of one step of each, beside --out")
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", dest="changes")
    parser.add_argument("--tiny", action="store_true", help="small shapes, for trying this page on the CPU")
    return parser.parse_args()


def hold(
    name: str, choice: argparse.Namespace, build: Callable[[Case], Contender], facts: dict[str, Any]
) -> int:
    """All cases against the peer that `build` makes. The exit code: 1 when gradients or loss differ."""
    device = open_device()
    rows = []
    for case_name in choice.cases:
        case = build_case(case_name, device, tiny=choice.tiny, changes=choice.changes)
        rows.append(duel(case, build, choice))
        del case
        start_afresh()
        write_result(choice.out, name, {"tiny": choice.tiny, **facts, "rows": rows})
        print_row(rows[-1])
    return 0 if all(row["agreement"]["same"] for row in rows) else 1


def duel(case: Case, build: Callable[[Case], Contender], choice: argparse.Namespace) -> dict[str, Any]:
    """One case: agreement first, then the race."""
    contest = Contest(case.device)
    ours, theirs = contest.enter(lambda: OurStep(case)), contest.enter(lambda: build(case))
    agreement = agree(case, ours, theirs)
    free_memory()
    contest.warm_up(choice.warm_up)
    contest.run(choice.rounds, choice.steps)
    return {"case": case.name, "agreement": agreement, **figures(case, contest, choice)}


def agree(case: Case, own: Contender, other: Contender) -> dict[str, Any]:
    """Both gradients from the case's weights, and how far each is from float32."""
    reference, reason = None, None
    try:
        with exact_float32():
            reference = Outcome.of(OurStep(case, plain_float32))
    except torch.OutOfMemoryError as error:
        reason = f"n/a: the float32 run did not fit ({str(error).splitlines()[0]})"
    free_memory()
    ours, again = Outcome.of(own), Outcome.of(own)
    theirs = Outcome.of(other)
    return {"reference": reason or "our plain path in float32", **compare(reference, ours, again, theirs)}


@contextlib.contextmanager
def exact_float32() -> Iterator[None]:
    """Matrix products of float32 without TF32."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = False
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def figures(case: Case, contest: Contest, choice: argparse.Namespace) -> dict[str, Any]:
    """What was measured of both, ours first; with `--profile` the kernels of a step of each."""
    flops = step_flops(case)
    ours, theirs = contest.timings
    row: dict[str, Any] = {
        "context_tokens": case.batch.tokens,
        "blocks": case.batch.anchors.numel(),
        "model_tflop": round(flops / 1e12, 3),
        "times_as_fast": speed_ratio(ours, theirs),
    }
    for key, contender, timings in zip(("ours", "theirs"), contest.contenders, contest.timings, strict=True):
        row[key] = {
            "name": contender.name,
            **timings.describe(case.batch.tokens, flops),
        }
        if choice.profile:
            table, sums = kernel_table(partial(_whole_step, contender))
            row[key] |= sums
            write_beside(choice.out, f"{case.name}_{key}_kernels", table)
    return row


def _whole_step(contender: Contender) -> None:
    contender.train()
    contender.complete()


def print_row(row: dict[str, Any]) -> None:
    """One case in a few lines."""
    for side in (row["ours"], row["theirs"]):
        print(
            f"{row['case']} {side['name']:12} {side['step_ms']['median']:9.1f} ms "
            f"{side['context_tokens_per_s']:9.0f} context tokens/s, peak {side['peak_gb']} GB"
        )
    ratio, agreement = row["times_as_fast"], row["agreement"]
    print(
        f"{row['case']} {ratio['median']:.3f} times as fast "
        f"({ratio['smallest']:.3f} to {ratio['largest']:.3f}); same loss and gradients: "
        f"{agreement['same']} {agreement.get('loss', '')} "
        f"{agreement.get('largest_distance', '')}"
    )
    sys.stdout.flush()
