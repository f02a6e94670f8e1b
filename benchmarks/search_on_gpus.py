"""A search of many configurations in place: the Qwen3-8B shape on one or two GPUs, or paced logical devices.

    python benchmarks/search_on_gpus.py --out FILE.json [--gpus 1] [--splits 1-1,colocated-2] [--trials 64]
    python benchmarks/search_on_gpus.py --out FILE.json --tiny

Split after split is searched by the default searcher, in one process each, with short trials; where it ends
by itself, others are run at random up to `--trials` in all, to see what it left. After each split, one
configuration that cannot fit is run on purpose: it must fail as out of memory, and what comes next must not
care. To make that happen a neighbour, a process of its own, holds GPU memory and leaves `--leave-gb` free;
the ledger's refusal is off. The winner is measured again in a fresh process. With `--state FILE` a second
call goes on with the studies of the first.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import torch

from autotune.default_searcher import default_searcher
from autotune.default_space import make_space
from autotune.effort import Effort
from autotune.history import explored
from autotune.in_place import InPlaceRunner
from autotune.machine import read_machine
from autotune.runner import Request
from autotune.space import SearchSpace
from autotune.study import Study
from autotune.telemetry import Failed, FailureKind, Outcome, Telemetry
from autotune.trial import Trial
from autotune.trial_store import MemoryStore
from benchmarks.result_file import write_result
from benchmarks.tuning_case import TuningCase
from dflash.contract.arrowlog import read_log
from dflash.contract.config import TrainConfig
from dflash.contract.errors import DFlashError
from dflash.contract.rundir import write_json
from dflash.contract.split import Split

holder: Final = """
import sys, time, torch
held = []
for index in range(torch.cuda.device_count()):
    free, _ = torch.cuda.mem_get_info(index)
    size = free - int(float(sys.argv[1]) * 1e9)
    held.append(torch.empty(max(size, 0), dtype=torch.uint8, device=f"cuda:{index}"))
    torch.cuda.synchronize(index)
print("holding", flush=True)
time.sleep(3600)
"""
spare_s: Final = 8.0
Row = dict[str, Any]


@dataclass
class Page:
    """What was searched so far."""

    choice: argparse.Namespace
    root: Path
    case: TuningCase
    began_s: float = field(default_factory=time.monotonic)  # a process may be older than its program
    studies: list[Row] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    figures: Row = field(default_factory=dict)
    count: int = 0
    start_s: float = 30.0  # of a process, at most so far
    earlier_s: float = 0.0  # of calls before this one
    trials: dict[str, tuple[Trial, ...]] = field(default_factory=dict)  # by split

    def __post_init__(self) -> None:
        """Take over what an earlier call left."""
        if self.choice.state is None or not self.choice.state.exists():
            return
        left = json.loads(self.choice.state.read_text(encoding="utf-8"))
        self.rows, self.studies, self.figures = left["rows"], left["studies"], left["figures"]
        self.earlier_s = left["elapsed_s"]
        self.trials = {
            split: tuple(Trial.from_json(trial) for trial in trials)
            for split, trials in left["trials"].items()
        }
        self.count = len(self.rows)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.began_s

    def space(self, split: str) -> SearchSpace:
        """The knobs that one process can change."""
        tiny = self.choice.tiny
        together = split.startswith("colocated")
        choices: dict[str, tuple[Any, ...]] = {
            "pipeline.token_budget": (64, 128, 256) if tiny else (1024, 2048, 4096),
            "transport.preset": ("peer",) if together else ("host", "pinned", "peer"),
            "transport.depth": (1, 2, 4),
            "pipeline.prefetch_depth": (2, 8),
            "drafter.checkpointing": ("none", "layers"),
            "objective.chunk_blocks": (64,) if tiny else (32, 128, 0),
        }
        changes = [f"split={split}"]
        if Split.parse(split).drafters > 1:
            changes.append(f"window.tokens={512 if tiny else 8192}")
        changes += [] if tiny else ["objective.chunk_blocks=128"]
        return make_space(self.case.config(*changes), read_machine(), choices, max_logical=4)

    def search(self, runner: InPlaceRunner, split: str, trials: int, until_s: float) -> list[Trial]:
        """A study of one split; its trials."""
        space = self.space(split)
        began_s, renewed = self.elapsed_s, len(runner.renewals)

        def run(request: Request) -> Outcome:  # not in turn with another, which takes four runs
            return self.run(runner, dataclasses.replace(request, beside=None), split)

        effort = Effort(trials=trials, repeats=0, seconds=self.choice.seconds)
        store = MemoryStore(self.trials.get(split, ()))
        study = Study(space, default_searcher(), run, effort=effort, store=store)
        while self.elapsed_s < until_s and study.step() is not None:
            self.trials[split] = study.trials
            self.write()
        best = study.recommendation or max(study.trials, key=lambda trial: trial.score, default=None)
        further = self.sweep(runner, split, study, trials - len(explored(study.trials)), until_s)
        self.trials[split] = study.trials
        self.studies.append(
            {
                "split": split,
                "configurations": space.size,
                "trials": len(study.trials),
                "finished": sum(trial.measurement is not None for trial in study.trials),
                "own_end": study.conclusion.stop.reason,
                "further": len(further),
                "fastest_further": max(further, default=None),
                "seconds": self.elapsed_s - began_s,
                "renewals": runner.renewals[renewed:],
                "best_tokens_per_s": None if best is None else best.tokens_per_s,
                "best": None if best is None else {**best.values, "tokens_per_s": best.tokens_per_s},
                "stopped_early": sum(
                    trial.measurement is not None and trial.measurement.stopped_early is not None
                    for trial in study.trials
                ),
            }
        )
        return list(study.trials)

    def sweep(
        self, runner: InPlaceRunner, split: str, study: Study, count: int, until_s: float
    ) -> list[float]:
        """Where the search ended by itself: others at random, to see what it left. Their tokens/s."""
        space = self.space(split)
        done = [row for row in self.rows if row["kind"] == "further" and row["split"] == split]
        tried = {space.point(trial.values) for trial in study.trials}
        tried |= {space.point(row["values"]) for row in done}
        left = [values for values in space.configurations if space.point(values) not in tried]
        random.Random(0).shuffle(left)
        rates = []
        for values in left[: max(count - len(done), 0)]:
            if self.elapsed_s > until_s:
                break
            config, seconds = space.config(values), self.choice.seconds
            request = self.case.request(self.root / "asked", self.count, config, seconds)
            outcome = self.run(runner, dataclasses.replace(request, values=values), split, "further")
            rates += [outcome.tokens_per_s] if isinstance(outcome, Telemetry) else []
            self.write()
        return rates

    def run(self, runner: InPlaceRunner, request: Request, split: str, kind: str = "trial") -> Outcome:
        """One run in a directory of its own, and a row of it."""
        began_s = time.monotonic()
        place = self.root / f"{self.count:03d}"
        place.mkdir(parents=True)
        self.count += 1
        outcome = runner.run(dataclasses.replace(request, run_path=place / "run"))
        took_s = time.monotonic() - began_s
        row: Row = {"kind": kind, "split": split, "values": dict(request.values), "took_s": took_s}
        row |= parts_of(place / "run", began_s, began_s + took_s)
        if isinstance(outcome, Telemetry):
            row |= {
                "tokens_per_s": outcome.tokens_per_s,
                "low": outcome.low,
                "high": outcome.high,
                "windows": outcome.windows,
                "startup_s": outcome.startup_s,
                "stopped_early": outcome.stopped_early,
            }
            said = f"{outcome.tokens_per_s:9,.0f} tokens/s{' (hopeless)' if outcome.stopped_early else ''}"
            if (outcome.startup_s or 0.0) > 0.5 * took_s:
                self.start_s = max(self.start_s, outcome.startup_s or 0.0)
        else:
            row |= {"failed": outcome.kind.value, "reason": outcome.reason[:300]}
            said = f"{outcome.kind}: {outcome.reason.splitlines()[0][:100]}"
        self.rows.append(row)
        shown = " ".join(str(value) for value in request.values.values())
        print(f"{self.elapsed_s:6.1f} s  {kind} {split} {shown}: {said}, took {took_s:.1f} s", flush=True)
        return outcome

    def run_config(self, runner: InPlaceRunner, config: TrainConfig, kind: str, **how: Any) -> Outcome:
        """A run that no study asked for, twice as long as a trial."""
        seconds = 2 * self.choice.seconds
        request = self.case.request(self.root / "asked", self.count, config, seconds, **how)
        keys = ("pipeline.token_budget", "transport.preset", "objective.chunk_blocks")
        shown = {key: request.values[key] for key in keys}
        return self.run(runner, dataclasses.replace(request, values=shown), config.pipeline.split, kind)

    def overflow(self, runner: InPlaceRunner, split: str) -> None:
        """One run that cannot fit, unless an earlier call made it."""
        done = self.figures.setdefault("overflows", [])
        if split not in [row["split"] for row in done]:
            outcome = self.run_config(runner, self.too_large(split), "overflow")
            survived = isinstance(outcome, Failed) and outcome.kind is FailureKind.out_of_memory
            done.append({"split": split, "out_of_memory": survived})
            self.write()

    def too_large(self, split: str) -> TrainConfig:
        """A configuration that asks for more memory than there is."""
        if self.choice.tiny:
            return self.case.config(f"split={split}", "pipeline.token_budget=512", "window.tokens=1024")
        return self.case.config(
            f"split={split}",
            "window.tokens=131072",
            "pipeline.token_budget=65536",
            "objective.chunk_blocks=0",
            "objective.anchors_per_document=512",
            "transport.depth=4",
        )

    def search_all(self) -> None:
        """Split after split, then the winner in a process of its own."""
        splits = self.choice.splits.split(",")
        found: list[tuple[str, Trial]] = []
        with InPlaceRunner(self.case.trainer, notice=lambda text: print(f"  {text}", flush=True)) as runner:
            for number, split in enumerate(splits):
                left = len(splits) - number
                last_s = self.choice.limit_s - self.start_s - 2 * self.choice.seconds - 2 * spare_s
                until_s = self.elapsed_s + (last_s - self.elapsed_s) / left - spare_s
                trials = self.search(runner, split, -(-self.choice.trials // len(splits)), until_s)
                found += [(split, trial) for trial in trials if trial.is_candidate]
                self.overflow(runner, split)
            if found:
                self.confirm(runner, *max(found, key=lambda pair: pair[1].score))

    def confirm(self, runner: InPlaceRunner, split: str, best: Trial) -> None:
        """The fastest of all, fresh."""
        config = self.space(split).config(best.values)
        outcome = self.run_config(runner, config, "winner, fresh", fresh=True)
        fresh = outcome.tokens_per_s if isinstance(outcome, Telemetry) else None
        self.figures["winner"] = {
            "split": split,
            **best.values,
            "in_place": best.tokens_per_s,
            "fresh": fresh,
            "fresh_over_in_place": None if fresh is None else fresh / best.score,
        }
        self.write()

    def write(self) -> None:
        """All so far."""
        names = ("seconds", "limit_s", "tiny", "layers", "leave_gb")
        facts = {"gpus_used": self.choice.gpus, **{name: getattr(self.choice, name) for name in names}}
        trials = [row for row in self.rows if row["kind"] in ("trial", "further")]
        in_place = [
            row["took_s"] for row in trials if (row.get("startup_s") or math.inf) < 0.5 * row["took_s"]
        ]
        counts = {
            "elapsed_s": self.earlier_s + self.elapsed_s,
            "trials": len(trials),
            "configurations": len({(row["split"], *map(str, row["values"].values())) for row in trials}),
            "out_of_memory": sum(row.get("failed") == FailureKind.out_of_memory.value for row in self.rows),
            "seconds_of_a_trial_in_place": statistics.median(in_place) if in_place else None,
            "seconds_of_a_start": self.start_s,
        }
        document = {**facts, **counts, "studies": self.studies, **self.figures, "rows": self.rows}
        write_result(self.choice.out, "search_on_gpus", document)
        if self.choice.state is not None:
            told = {split: [trial.to_json() for trial in trials] for split, trials in self.trials.items()}
            state = {"rows": self.rows, "studies": self.studies, "figures": self.figures, "trials": told}
            write_json(self.choice.state, {**state, "elapsed_s": counts["elapsed_s"]})


def parts_of(run_path: Path, began_s: float, ended_s: float) -> Row:
    """Seconds of a run until its stages started, until they stopped, and after that; none where unknown."""
    try:
        logs = [read_log(path)[0].to_pylist() for path in (run_path / "events").glob("*.arrow")]
    except DFlashError:  # it was killed before it could tell
        return {}
    marks = {
        name: [
            row["t_ns"] / 1e9 for log in logs for row in log if (row["kind"], row["name"]) == ("mark", name)
        ]
        for name in ("start", "stop")
    }
    if not marks["start"] or not marks["stop"]:
        return {}
    start_s, stop_s = min(marks["start"]), max(marks["stop"])
    return {"before_s": start_s - began_s, "stages_s": stop_s - start_s, "after_s": ended_s - stop_s}


@contextmanager
def neighbour(leave_gb: float) -> Iterator[None]:
    """A process that holds all GPU memory but so much on every GPU."""
    if leave_gb <= 0:
        yield
        return
    process = subprocess.Popen([sys.executable, "-c", holder, str(leave_gb)], stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        if process.stdout.readline().strip() != b"holding":
            raise DFlashError("the neighbour that is to hold GPU memory did not start")
        yield
    finally:
        process.kill()
        process.wait()


def main() -> int:
    """Search, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=min(2, torch.cuda.device_count() or 2))
    parser.add_argument("--splits", help="by default 1-1 and colocated on all GPUs")
    parser.add_argument("--trials", type=int, default=64, help="configurations, over all splits")
    parser.add_argument("--layers", type=int, default=18, help="of the target")
    parser.add_argument("--seconds", type=float, default=2.5, help="of training in a trial")
    parser.add_argument("--limit-s", type=float, default=235.0, help="of the whole page")
    parser.add_argument("--leave-gb", type=float, default=55.0, help="of each GPU, by a neighbour; 0: none")
    parser.add_argument("--state", type=Path, help="of the studies; an earlier call's is gone on with")
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", dest="changes")
    parser.add_argument("--tiny", action="store_true")
    choice = parser.parse_args()
    choice.splits = choice.splits or f"1-1,colocated-{choice.gpus}"
    root = Path(tempfile.mkdtemp(prefix="search-"))
    case = TuningCase(
        choice.tiny,
        choice.layers,
        choice.gpus,
        most_tokens=256 if choice.tiny else 0,
        changes=tuple(choice.changes),
    )
    page = Page(choice, root, case)
    try:
        with neighbour(0.0 if choice.tiny else choice.leave_gb):
            page.search_all()
    finally:
        shutil.rmtree(root, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
