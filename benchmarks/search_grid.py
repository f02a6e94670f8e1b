"""Searches on logical devices, held against a grid: every configuration of a small space is measured first.

    python benchmarks/search_grid.py --out FILE.json [--searches 5] [--seconds 3] [--limit-s 1500]

Each search begins at another configuration, in real trials in place, 12 at most. What it recommends is scored
by what the grid says of it: it should lie within 3 % of the grid's best, or within the noise of repeats where
that is more. Stages take their time by sleeping, a part of it for every batch.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import psutil

from autotune.default_searcher import default_searcher
from autotune.default_space import make_space
from autotune.effort import Effort
from autotune.in_place import InPlaceRunner
from autotune.machine import read_machine
from autotune.runner import Request
from autotune.space import Point, SearchSpace
from autotune.study import Study
from autotune.telemetry import Outcome, Telemetry
from autotune.trial import Trial
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


@dataclass
class Page:
    """The grid, then searches."""

    choice: argparse.Namespace
    root: Path
    case: TuningCase
    began_s: float = field(default_factory=lambda: psutil.Process().create_time())
    rates: dict[Point, float] = field(default_factory=dict)
    again: list[float] = field(default_factory=list)  # log(second run / first)
    searches: list[dict[str, Any]] = field(default_factory=list)
    count: int = 0

    @property
    def elapsed_s(self) -> float:
        return time.time() - self.began_s

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
        shown = " ".join(map(str, request.values.values()))
        rate = f"{outcome.tokens_per_s:,.0f}" if isinstance(outcome, Telemetry) else outcome.reason[:90]
        print(f"{self.elapsed_s:7.1f} s  {shown}: {rate}", flush=True)
        return outcome

    def measure_grid(self, runner: InPlaceRunner) -> None:
        """Split after split; of each, the first configuration again at the end."""
        space = self.space()
        order = sorted(space.configurations, key=lambda values: str(values["pipeline.split"]))
        for split in dict.fromkeys(values["pipeline.split"] for values in order):
            mine = [values for values in order if values["pipeline.split"] == split]
            for values in [*mine, mine[0], mine[len(mine) // 2]]:
                config = space.config(values)
                place = self.root / "asked"
                request = self.case.request(place, self.count, config, self.choice.seconds)
                outcome = self.run(runner, dataclasses.replace(request, values=values))
                if isinstance(outcome, Telemetry):
                    point = space.point(values)
                    if point in self.rates:
                        self.again.append(math.log(outcome.tokens_per_s / self.rates[point]))
                    self.rates.setdefault(point, outcome.tokens_per_s)
                self.write()

    def search(self, runner: InPlaceRunner, start: int) -> None:
        """One search, in a process that knows of no other."""
        space = self.space(start)
        runner.close()
        effort = Effort(trials=most_trials, repeats=0, seconds=self.choice.seconds)
        study = Study(space, default_searcher(), lambda request: self.run(runner, request), effort=effort)
        within: int | None = None
        while study.step() is not None:
            if within is None and self.gap(space, study.recommendation) <= self.allowed:
                within = len(study.trials)
        gap = self.gap(space, study.recommendation)
        row = {"start": start, "trials": len(study.trials), "gap": gap, "first_within": within}
        self.searches.append({**row, "is_within": gap <= self.allowed})
        print(self.searches[-1], flush=True)
        self.write()

    def gap(self, space: SearchSpace, chosen: Trial | None) -> float:
        """How far below the best of the grid, by the grid's figures."""
        if chosen is None:
            return 1.0
        return 1 - self.rates.get(space.point(chosen.values), 0.0) / max(self.rates.values())

    @property
    def noise(self) -> float:
        """Standard deviation of a run by those that ran twice."""
        return math.sqrt(sum(d * d for d in self.again) / 2 / len(self.again)) if self.again else 0.0

    @property
    def allowed(self) -> float:
        return max(tolerance, self.noise)

    def write(self) -> None:
        """All so far."""
        facts = {name: getattr(self.choice, name) for name in ("seconds", "limit_s")}
        best = max(self.rates.values(), default=None)
        grid = {"configurations": len(self.rates), "best": best, "repeat_noise": self.noise}
        rows = [
            {**dict(zip(choices, point, strict=False)), "tokens_per_s": rate}
            for point, rate in self.rates.items()
        ]
        document = {
            **facts,
            "grid": grid,
            "elapsed_s": self.elapsed_s,
            "searches": self.searches,
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
