"""The field stories on real cards: the splits and transports of four or eight GPUs, forecast and then run.

    python benchmarks/story_table.py --cards 4 --out DIR [--seconds 40] [--limit-s 520]
    python benchmarks/story_table.py --cards 8 --out DIR [--seconds 30] [--limit-s 520]
    python benchmarks/story_table.py --cards 4 --out DIR --tiny

Qwen3-8B shapes with random weights, documents of 100 to 4000 tokens, 128 anchors each. First a run on two
cards, of which every forecast is made, and written, before the others run; then the runs of
`story_runs.py`, each recorded with all samplers, those of one split in one process; then a search that
knows of them. `DIR/story_table.json` is written after every run; `DIR/reports.tar.xz` holds the report of
each. What would not end within the limit is left out and says so. `--tiny` takes paced logical devices.
"""

from __future__ import annotations

import argparse
import dataclasses
import math
import shutil
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from unittest.mock import patch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import autotune.in_place
from autotune.default_searcher import default_searcher
from autotune.default_space import make_space
from autotune.effort import Effort
from autotune.in_place import InPlaceRunner
from autotune.machine import read_machine
from autotune.runner import Request
from autotune.study import Study, trial_length
from autotune.telemetry import Failed, Outcome, Telemetry
from autotune.trial import Trial, TrialState
from autotune.trial_store import MemoryStore
from benchmarks.result_file import write_result
from benchmarks.story_figures import read_figures
from benchmarks.story_runs import StoryCase, StoryRun, base, peer, stories
from benchmarks.whatif_score import judge, score
from dflash.contract.config import TrainConfig
from dflash.contract.rundir import utc_now
from profiler.examination import examine
from profiler.forecast.observations import observe_run
from profiler.forecast.predictor import Prediction, Predictor
from profiler.forecast.what_if import predict_config
from profiler.recorder import RecordOptions
from reports.run_report import write_run_report

Row = dict[str, Any]
start_s: Final = 45.0  # of a process, until one has been seen
spare_s: Final = 10.0  # for reading a run and drawing its report
trial_s: Final = {False: 5.0, True: 3.0}  # of training in a trial of the search, by `tiny`
least_trial_windows: Final = 12


@dataclass
class Page:
    """What was forecast and run so far."""

    choice: argparse.Namespace
    root: Path
    began_s: float = field(default_factory=time.monotonic)  # a process may be older than its program
    rows: list[Row] = field(default_factory=list)
    facts: Row = field(default_factory=dict)
    trials: list[Trial] = field(default_factory=list)
    forecasts: dict[str, Prediction] = field(default_factory=dict)
    start_s: float = start_s
    split: str | None = None  # of the process that is there

    def __post_init__(self) -> None:
        self.case = StoryCase(
            self.choice.cards, self.choice.tiny, self.choice.layers, tuple(self.choice.changes)
        )
        self.configs = {run: self.case.config(run) for run in (base, *stories[self.choice.cards])}

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began_s

    def run_all(self) -> None:
        """The base, the story, the search."""
        with (
            InPlaceRunner(self.case.trainer, notice=lambda text: print(f"  {text}", flush=True)) as runner,
            patch.object(autotune.in_place, "how_to_record", self.how_to_record),
        ):
            self.bare = False
            self.run(runner, base, self.choice.seconds / 2)
            for run in stories[self.choice.cards]:
                self.bare = run.bare
                self.run(runner, run, self.choice.seconds)
            self.bare = False
            self.search(runner)

    def how_to_record(self, config: TrainConfig, run_path: Path) -> RecordOptions:
        """With all samplers, or with as good as none."""
        limit_s = 300 + 3 * config.run.max_seconds
        options = RecordOptions(log=run_path / "trainer.log", time_limit_s=limit_s)
        if self.bare:
            options = dataclasses.replace(options, gpu="none", gil=False, host_interval_s=10.0)
        return options

    def run(self, runner: InPlaceRunner, run: StoryRun, seconds: float) -> None:
        """One row, whatever becomes of it."""
        config = self.configs[run]
        row: Row = {"name": run.name, "split": run.split, "changes": list(run.changes), "measured": None}
        if run.name in self.forecasts:
            forecast = self.forecasts[run.name]
            row |= {"predicted": forecast.tokens_per_s, "low": forecast.low, "high": forecast.high}
            row["doubts"] = [doubt.text for doubt in forecast.doubts]
        needed_s = seconds + spare_s + (0.0 if run.split == self.split else self.start_s)
        if self.elapsed_s + needed_s > self.choice.limit_s:
            row["reason"] = f"left out: {needed_s:.0f} s more would be past the limit"
        else:
            outcome, path = self.measure(runner, config, seconds, run.name)
            row |= self.describe(outcome, path, run)
            if run is base and isinstance(outcome, Telemetry):
                self.forecast(path)
        self.rows.append({**row, **(judge(row) if "predicted" in row else {})})
        self.write()
        print(f"{self.elapsed_s:6.1f} s  {_line(self.rows[-1])}", flush=True)

    def measure(
        self, runner: InPlaceRunner, config: TrainConfig, seconds: float, name: str
    ) -> tuple[Outcome, Path]:
        """What a run came to, and where it is."""
        place = self.root / f"{len(self.rows):02d}"
        place.mkdir(parents=True)
        request = Request(
            values=config.values(),
            config=config.replacing(trial_length(seconds)),
            seconds=seconds,
            run_path=place / "run",
            number=len(self.rows),
        )
        outcome = runner.run(request)
        fresh, self.split = self.split != config.pipeline.split, config.pipeline.split
        if isinstance(outcome, Telemetry):
            if fresh and outcome.startup_s is not None:
                self.start_s = outcome.startup_s
            self.remember(config, name, seconds, outcome)
        return outcome, request.run_path

    def describe(self, outcome: Outcome, path: Path, run: StoryRun) -> Row:
        """What is told of a run; its report is drawn."""
        if isinstance(outcome, Failed):
            return {"failed": outcome.kind.value, "reason": outcome.reason[:500]}
        told: Row = {
            "measured": outcome.tokens_per_s,
            "measured_low": outcome.low,
            "measured_high": outcome.high,
            "windows": outcome.windows,
            "efficiency": outcome.efficiency,
            "startup_s": outcome.startup_s,
        }
        examined = examine(path)
        told |= read_figures(examined, outcome)
        if not run.bare:
            write_run_report(examined, self.root / "reports" / f"{run.name.replace(' ', '_')}.html")
        return told

    def forecast(self, path: Path) -> None:
        """All of them, from the base."""
        examined = examine(path)
        predictor = Predictor([observe_run(examined.run, examined.timeline)])
        for run in stories[self.choice.cards]:
            self.forecasts[run.name] = predict_config(predictor, self.configs[base], self.configs[run])
        self.facts["forecasts"] = {
            name: {"tokens_per_s": p.tokens_per_s, "low": p.low, "high": p.high}
            for name, p in self.forecasts.items()
        }

    def remember(self, config: TrainConfig, name: str, seconds: float, outcome: Telemetry) -> None:
        """What the search may know, where the run's configuration is one of its space."""
        values, chosen = config.values(), self.case.choices
        others = {**self.configs[base].values(), **{knob: values[knob] for knob in chosen}}
        bounded = {"run.max_seconds": values["run.max_seconds"]}
        if config.split.devices != self.choice.cards or {**others, **bounded} != values:
            return
        self.trials.append(
            Trial(
                number=len(self.trials),
                values={knob: values[knob] for knob in chosen},
                why=f"the story's run: {name}",
                state=TrialState.finished,
                run_path=f"{len(self.rows):02d}/run",
                seconds=seconds,
                started_utc=utc_now(),
                measurement=outcome,
                spent_s=seconds,
            )
        )

    def search(self, runner: InPlaceRunner) -> None:
        """A few trials more, knowing the story's."""
        start = next(self.configs[run] for run in stories[self.choice.cards] if run.changes == peer)
        choices = self.case.choices
        space = make_space(start, read_machine(), choices, max_logical=self.choice.cards)
        known = [
            trial for trial in self.trials if dict(trial.values) in [dict(v) for v in space.configurations]
        ]
        pace = max((trial.score for trial in known), default=0.0)
        window_s = start.window.tokens / pace if pace else 0.0
        seconds = max(trial_s[self.choice.tiny], least_trial_windows * window_s)
        effort = Effort(trials=len(known) + self.choice.trials, repeats=0, seconds=seconds)
        study = Study(space, default_searcher(), runner, effort=effort, store=MemoryStore(known))
        began_s = self.elapsed_s
        while self.elapsed_s + seconds + self.start_s < self.choice.limit_s and study.step() is not None:
            self.tell(study, len(known), began_s)
        self.tell(study, len(known), began_s)

    def tell(self, study: Study, known: int, began_s: float) -> None:
        """What the search has found so far."""
        best = study.recommendation
        self.facts["search"] = {
            "configurations": study.history.space.size,
            "known_before": known,
            "seconds": self.elapsed_s - began_s,
            "end": study.conclusion.stop.reason,
            "best": None if best is None else {**best.values, "tokens_per_s": best.tokens_per_s},
            "trials": [
                {**trial.values, "tokens_per_s": trial.tokens_per_s, "reason": trial.reason}
                for trial in study.trials[known:]
            ],
        }
        self.write()

    def write(self) -> None:
        """All so far."""
        facts = {n: getattr(self.choice, n) for n in ("cards", "seconds", "limit_s", "tiny", "layers")}
        forecast = [row for row in self.rows if "predicted" in row]
        figures = {**score(forecast), "elapsed_s": self.elapsed_s, **self.facts, "rows": self.rows}
        write_result(self.choice.out / "story_table.json", "story_table", {**facts, **figures})
        reports = self.root / "reports"
        if reports.is_dir():
            part = self.choice.out / "reports.part"
            with tarfile.open(part, "w:xz", preset=1) as file:
                file.add(reports, "reports")
            part.replace(self.choice.out / "reports.tar.xz")


def _line(row: Row) -> str:
    if row["measured"] is None:
        return f"{row['name']}: {row['reason']}"
    error = row.get("error")
    foretold = "" if error is None else f", forecast {row['predicted']:,.0f} ({error:+.1%})"
    efficiency = row["efficiency"] if row["efficiency"] is not None else math.nan
    return f"{row['name']:24} {row['measured']:9,.0f} tokens/s, efficiency {efficiency:.3f}{foretold}"


def main() -> int:
    """Run, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cards", type=int, choices=tuple(stories), required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--layers", type=int, default=36, help="of the target")
    parser.add_argument("--seconds", type=float, default=40.0, help="of a run")
    parser.add_argument("--trials", type=int, default=10, help="of the search")
    parser.add_argument("--limit-s", type=float, default=520.0, help="of the whole page")
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", dest="changes")
    parser.add_argument("--tiny", action="store_true")
    choice = parser.parse_args()
    choice.out.mkdir(parents=True, exist_ok=True)
    root = Path(tempfile.mkdtemp(prefix="story-"))
    (root / "reports").mkdir()
    try:
        Page(choice, root).run_all()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
