"""Searches on logical devices, held against a grid: every configuration of a small space is measured first.

    python benchmarks/search_grid.py --out FILE.json [--searches 5] [--seconds 3] [--limit-s 1500]

Each search begins at another configuration, in real trials in place, 12 at most, runs of a configuration
again among them. What it recommends is scored by the mean of all its runs on this page, and should lie within
3 % of the best mean, or within the noise of a run where that is more. The fastest of the grid run twice more
before that: the luckiest of many single runs is no best. Stages take their time by sleeping, a part of it for
every batch.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from autotune.default_searcher import default_searcher
from autotune.default_space import make_space
from autotune.effort import Effort
from autotune.in_place import InPlaceRunner
from autotune.machine import read_machine
from autotune.runner import Request
from autotune.space import Point, SearchSpace
from autotune.study import Study
from autotune.telemetry import Outcome, Telemetry, Values
from benchmarks.result_file import write_result
from benchmarks.tuning_case import TuningCase

choices: Final[dict[str, tuple[Any, ...]]] = {
    "pipeline.split": ("1-1", "2-1", "1-2"),
    "pipeline.token_budget": (64, 128, 256),
    "transport.preset": ("host", "pinned", "peer"),
    "transport.depth": (1, 2),
}
tolerance: Final = 0.03
most_trials: Final = 12
leaders: Final = 8  # configurations that run twice more


@dataclass
class Page:
    """The grid, then searches."""

    choice: argparse.Namespace
    root: Path
    case: TuningCase
    began_s: float = field(default_factory=time.monotonic)  # a process may be older than its program
    runs: dict[Point, list[float]] = field(default_factory=dict)  # log tokens/s
    # Of each search: its start, and what it would have recommended after each trial.
    recommended: list[tuple[int, list[Point | None]]] = field(default_factory=list)
    count: int = 0

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began_s

    def space(self, start: int = 0) -> SearchSpace:
        """The grid, started from one of its configurations."""
        base = self.case.config("window.tokens=512")
        space = make_space(base, read_machine(), choices, max_logical=4)
        chosen = space.config(space.configurations[start % space.size])
        return make_space(chosen, read_machine(), choices, max_logical=4)

    def run(self, runner: InPlaceRunner, request: Request) -> Outcome:
        """One run in a directory of its own."""
        place = self.root / f"{self.count:03d}"
        place.mkdir()
        self.count += 1
        outcome = runner.run(dataclasses.replace(request, run_path=place / "run"))
        if isinstance(outcome, Telemetry):
            point = tuple(request.values[name] for name in choices)
            self.runs.setdefault(point, []).append(math.log(outcome.tokens_per_s))
        shown = " ".join(map(str, request.values.values()))
        rate = f"{outcome.tokens_per_s:,.0f}" if isinstance(outcome, Telemetry) else outcome.reason[:90]
        print(f"{self.elapsed_s:7.1f} s  {shown}: {rate}", flush=True)
        return outcome

    def measure_grid(self, runner: InPlaceRunner) -> None:
        """Split after split, then the fastest again, forth and back."""
        space = self.space()
        order = sorted(space.configurations, key=lambda values: str(values["pipeline.split"]))
        self._measure(runner, space, order)
        fastest = sorted(self.rates, key=lambda point: -self.rates[point])[:leaders]
        order = [values for values in order if space.point(values) in fastest]
        self._measure(runner, space, [*order, *order[::-1]])

    def _measure(self, runner: InPlaceRunner, space: SearchSpace, order: Sequence[Values]) -> None:
        for values in order:
            config = space.config(values)
            request = self.case.request(self.root / "asked", self.count, config, self.choice.seconds)
            self.run(runner, dataclasses.replace(request, values=values))
            self.write()

    def search(self, runner: InPlaceRunner, start: int) -> None:
        """One search, in a process that knows of no other."""
        space = self.space(start)
        runner.close()
        effort = Effort(trials=most_trials, seconds=self.choice.seconds)
        study = Study(space, default_searcher(), lambda request: self.run(runner, request), effort=effort)
        told: list[Point | None] = []
        while len(study.trials) < most_trials and study.step() is not None:
            chosen = study.recommendation
            told.append(None if chosen is None else space.point(chosen.values))
        self.recommended.append((start, told))
        self.write()
        print(self.scores()[-1], flush=True)

    def scores(self) -> list[dict[str, Any]]:
        """A row for each search, by all runs so far."""
        rows = []
        for start, told in self.recommended:
            gaps = [self.gap(point) for point in told]
            within = next((count for count, gap in enumerate(gaps, 1) if gap <= self.allowed), None)
            row = {"start": start, "trials": len(told), "gap": gaps[-1], "first_within": within}
            rows.append({**row, "is_within": gaps[-1] <= self.allowed})
        return rows

    def gap(self, point: Point | None) -> float:
        """How far below the best of the grid."""
        return 1.0 if point is None else 1 - self.rates.get(point, 0.0) / max(self.rates.values())

    @property
    def rates(self) -> dict[Point, float]:
        """Tokens/s of every configuration that could be measured."""
        return {point: math.exp(fmean(logs)) for point, logs in self.runs.items()}

    @property
    def noise(self) -> float:
        """Standard deviation of a run, by configurations that ran more than once."""
        squares = sum((log - fmean(logs)) ** 2 for logs in self.runs.values() for log in logs)
        freedom = sum(len(logs) - 1 for logs in self.runs.values())
        return math.sqrt(squares / freedom) if freedom else 0.0

    @property
    def allowed(self) -> float:
        return max(tolerance, self.noise)

    def write(self) -> None:
        """All so far."""
        facts = {name: getattr(self.choice, name) for name in ("seconds", "limit_s")}
        best = max(self.rates.values(), default=None)
        grid = {"configurations": len(self.rates), "best": best, "repeat_noise": self.noise}
        rows = [
            {**dict(zip(choices, point, strict=True)), "tokens_per_s": rate, "runs": len(self.runs[point])}
            for point, rate in self.rates.items()
        ]
        document = {
            **facts,
            "grid": grid,
            "elapsed_s": self.elapsed_s,
            "searches": self.scores(),
            "rows": rows,
        }
        write_result(self.choice.out, "search_grid", document)


def main() -> int:
    """Measure, search, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seconds", type=float, default=3.0, help="of training in a trial")
    parser.add_argument("--searches", type=int, default=5)
    parser.add_argument("--limit-s", type=float, default=1500.0, help="no further search is begun after it")
    choice = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="search-grid-"))
    page = Page(choice, root, TuningCase(tiny=True))
    try:
        with InPlaceRunner(page.case.trainer) as runner:
            page.measure_grid(runner)
            for number in range(choice.searches):
                if page.elapsed_s < choice.limit_s:
                    page.search(runner, 7 + 11 * number)
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
