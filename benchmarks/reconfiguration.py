"""Whether a trial in place equals a fresh one, what it costs, and how far runs of one kind lie apart.

    python benchmarks/reconfiguration.py --out FILE.json [--gpus 1 | --tiny] [--seconds 3] [--limit-s 115]

One process takes two configurations in turn, also as A B B A; then each runs in fresh processes, again and
again while the limit lasts. Of each trial: tokens/s with its interval, losses of the first windows, and how
long it took beside its training. On one GPU both roles share it. `--tiny` runs on logical devices that take
their time by sleeping.
"""

from __future__ import annotations

import argparse
import math
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch

from autotune.in_place import InPlaceRunner
from autotune.telemetry import Outcome, Telemetry
from benchmarks.result_file import write_result
from benchmarks.tuning_case import TuningCase

z_90: Final = 1.6449
ours: Final = {False: "transport=pinned token_budget=4096", True: "transport=pinned token_budget=256"}
losses_compared: Final = 10
Row = dict[str, Any]


@dataclass
class Page:
    """Rows so far."""

    choice: argparse.Namespace
    root: Path
    case: TuningCase
    began_s: float = field(default_factory=time.monotonic)  # a process may be older than its program
    rows: list[Row] = field(default_factory=list)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began_s

    def run(self, runner: InPlaceRunner, name: str, way: str, **how: Any) -> None:
        """One trial of configuration `name`: a (the base) or b."""
        changes = {"a": "", "b": ours[self.choice.tiny]}
        config, other = (self.case.config(*changes[n].split()) for n in (name, "a" if name == "b" else "b"))
        if how.pop("in_turn", False):
            how["beside"] = other.values()
        began_s = time.monotonic()
        request = self.case.request(self.root, len(self.rows), config, self.choice.seconds, **how)
        outcome = runner.run(request)
        self.rows.append(
            {"configuration": name, "way": way, "took_s": time.monotonic() - began_s, **_tell(outcome)}
        )
        print(f"{self.elapsed_s:6.1f} s  {_line(self.rows[-1])}", flush=True)
        self.write()

    def measure(self) -> None:
        """In place first, since one start serves many trials; then fresh ones as long as there is time."""
        with InPlaceRunner(self.case.trainer, notice=print, canary_every=10**6) as runner:
            self.run(runner, "a", "first")
            plan = ["a b", "abba", "b a", "abba"] + ["a b", "abba"] * self.choice.more
            for step in plan:
                if step == "abba":
                    self.run(runner, "b", "abba", in_turn=True)
                else:
                    for name in step.split():
                        self.run(runner, name, "in place")
                if self.elapsed_s > 0.55 * self.choice.limit_s:
                    break
            fresh = [*"ab", *"ab" * self.choice.more]
            for name in fresh:
                # The very first start compiles what all later ones find on disk.
                took = {
                    way: [r["took_s"] for r in self.rows if r["way"] == way] for way in ("first", "fresh")
                }
                longest_s = max(took["fresh"] or took["first"], default=0.0)
                if self.elapsed_s + longest_s > self.choice.limit_s:
                    break
                self.run(runner, name, "fresh", fresh=True)

    def write(self) -> None:
        """All so far."""
        facts = {name: getattr(self.choice, name) for name in ("seconds", "limit_s", "tiny", "layers")}
        figures = {"elapsed_s": self.elapsed_s, **summarise(self.rows), "rows": self.rows}
        write_result(self.choice.out, "reconfiguration", {**facts, **figures})


def summarise(rows: list[Row]) -> dict[str, Any]:
    """What the rows say: fresh over in place, deviations between runs, losses, seconds beside training."""
    known = [row for row in rows if row.get("tokens_per_s")]

    def rates(name: str, *ways: str) -> list[float]:
        return [math.log(r["tokens_per_s"]) for r in known if r["configuration"] == name and r["way"] in ways]

    ratios = {}
    for name in ("a", "b"):
        fresh, placed = rates(name, "fresh"), rates(name, "in place", "first")
        if fresh and placed:
            noise = math.hypot(_error(known, name, ("fresh",)), _error(known, name, ("in place", "first")))
            mid = statistics.fmean(fresh) - statistics.fmean(placed)
            ratios[name] = {
                "fresh_over_in_place": math.exp(mid),
                "low": math.exp(mid - z_90 * noise),
                "high": math.exp(mid + z_90 * noise),
            }
    pairs = [row["log_ratio"] for row in known if row.get("log_ratio") is not None]
    return {
        "ratios": ratios,
        "deviation": {
            "fresh": _pooled([rates(name, "fresh") for name in ("a", "b")]),
            "in_place": _pooled([rates(name, "in place") for name in ("a", "b")]),
            "abba": _pooled([pairs]),
            "abba_within": [row["deviation"] for row in known if row.get("log_ratio") is not None],
        },
        "largest_difference_of_losses": _compare_losses(known),
        "seconds_beside_training": {
            way: statistics.median(r["took_s"] - r["trained_s"] for r in known if r["way"] == way)
            for way in dict.fromkeys(row["way"] for row in known)
        },
        "startup_s": {
            way: statistics.median(r["startup_s"] for r in known if r["way"] == way)
            for way in dict.fromkeys(row["way"] for row in known)
        },
    }


def _error(rows: list[Row], name: str, ways: tuple[str, ...]) -> float:
    """Standard error of the mean log rate: between runs where there are several, never below within them."""
    mine = [row for row in rows if row["configuration"] == name and row["way"] in ways]
    within = math.sqrt(sum((math.log(r["high"] / r["low"]) / (2 * z_90)) ** 2 for r in mine)) / len(mine)
    spread = [math.log(row["tokens_per_s"]) for row in mine]
    return max(within, statistics.stdev(spread) / math.sqrt(len(spread)) if len(spread) > 1 else 0.0)


def _pooled(groups: list[list[float]]) -> float | None:
    """Standard deviation between runs of one configuration, pooled; None where nothing ran twice."""
    squares = [(statistics.variance(group), len(group) - 1) for group in groups if len(group) > 1]
    freedom = sum(count for _, count in squares)
    return math.sqrt(sum(s * n for s, n in squares) / freedom) if freedom else None


def _compare_losses(rows: list[Row]) -> dict[str, float]:
    """By configuration: how far losses of its trials lie apart at most, relative."""
    found = {}
    for name in ("a", "b"):
        all_losses = [row["losses"] for row in rows if row["configuration"] == name and row["losses"]]
        columns = list(zip(*all_losses, strict=False))
        found[name] = max((max(c) / min(c) - 1 for c in columns if min(c) > 0), default=0.0)
    return found


def _tell(outcome: Outcome) -> Row:
    if not isinstance(outcome, Telemetry):
        return {"failed": outcome.kind.value, "reason": outcome.reason[:500], "losses": []}
    beside = outcome.beside
    trained_s = (outcome.steps or 0) * (outcome.window_tokens or 0) / outcome.tokens_per_s
    return {
        "tokens_per_s": outcome.tokens_per_s,
        "low": outcome.low,
        "high": outcome.high,
        "windows": outcome.windows,
        "trained_s": trained_s * (4 if beside else 1),
        "startup_s": outcome.startup_s,
        "losses": list(outcome.losses[:losses_compared]),
        "log_ratio": beside and beside.log_ratio,
        "deviation": beside and beside.deviation,
        "memory": {place: m.peak_bytes for place, m in outcome.memory.items()},
    }


def _line(row: Row) -> str:
    if "reason" in row:
        return f"{row['configuration']} {row['way']}: {row['failed']}: {row['reason'][:200]}"
    pair = (
        "" if row["log_ratio"] is None else f", b/a {math.exp(row['log_ratio']):.4f} ± {row['deviation']:.2%}"
    )
    return (
        f"{row['configuration']} {row['way']} {row['tokens_per_s']:,.0f} tokens/s in {row['windows']} windows"
        f", took {row['took_s']:.1f} s, start-up {row['startup_s']:.1f} s{pair}"
    )


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=min(2, torch.cuda.device_count() or 2))
    parser.add_argument("--layers", type=int, default=18, help="of the target")
    parser.add_argument("--seconds", type=float, default=3.0, help="of training in a trial")
    parser.add_argument("--more", type=int, default=1, help="further rounds, while the limit lasts")
    parser.add_argument("--limit-s", type=float, default=115.0, help="of the whole page")
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", dest="changes")
    parser.add_argument("--tiny", action="store_true")
    choice = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="reconfiguration-"))
    case = TuningCase(choice.tiny, choice.layers, choice.gpus, changes=tuple(choice.changes))
    try:
        Page(choice, root, case).measure()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
