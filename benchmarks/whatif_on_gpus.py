"""How right what-if forecasts are on GPUs: fitted on one recorded run, held against runs of other settings.

    python benchmarks/whatif_on_gpus.py --out DIR [--gpus 2] [--limit-s 165] [--seconds 4] [--tiny]

Qwen3-8B shapes with random weights and tokens; 18 of the target's 36 layers, and documents of 300 to 700
tokens with 16 anchors each, so that neither role waits for the other all the time. Targets and drafters are
built once and lent to one trainer after another; all forecasts are made, and written, before the first of the
other settings runs. `DIR/whatif_on_gpus.json` is written after every run, beside it the run directories in
one archive; a setting that would not end within the limit is left out. The base runs again in between, which
tells how far runs of one setting lie apart. `--tiny` runs on logical devices, for trying this page.
"""

from __future__ import annotations

import argparse
import math
import os
import shutil
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
import numpy as np
import torch

from benchmarks.drafter_case import block_size, make_documents
from benchmarks.hop_speeds import measure_hops
from benchmarks.lent_roles import LentRoles
from benchmarks.recorded_run import pack, rates, record_here
from benchmarks.result_file import write_result
from benchmarks.whatif_score import judge, score
from dflash.contract.config import TrainConfig, load_config
from dflash.contract.model_shapes import random_shapes
from dflash.contract.rundir import RunDir, write_json
from dflash.data.documents import Documents
from dflash.faults.rig import Rig
from dflash.trainer import Trainer
from profiler.forecast.observations import observe_run
from profiler.forecast.predictor import Prediction, Predictor
from profiler.forecast.what_if import predict_config
from profiler.run import Run
from profiler.throughput import measure_throughput
from profiler.timeline import Timeline

again: Final = "the base again"
settings: Final = (
    "token_budget=16384",
    "schedule=lockstep",
    "token_budget=4096",
    "transport=pinned",
    "devices.gpus=1",
    "split=colocated-2",
    "split=2-2",
    "split=2-1",
    "split=1-2",
    "transport=host",
    again,
    "window.tokens=64000 token_budget=16384",
    "transport.depth=1",
    "split=colocated-2 token_budget=4096",
    "transport=shared split=1-2",
    "transport=host token_budget=4096",
    "split=2-2 transport=host",
    "schedule=lockstep split=2-1",
)
least_windows: Final = 13  # of a run; ten of them have to be steady
most_windows: Final = 60
base_windows: Final = 26
base_seconds: Final = 8  # at most, for each second of a run: with too few windows there is no forecast
spare_s: Final = 4.0  # of the limit, for getting ready and writing


@dataclass
class Page:
    """The base, the roles, what was measured."""

    choice: argparse.Namespace
    runs: Path
    started_s: float = field(default_factory=time.monotonic)  # a process may be older than its program
    rows: list[dict[str, Any]] = field(default_factory=list)
    base: dict[str, Any] = field(default_factory=dict)
    forecasts: dict[str, Prediction] = field(default_factory=dict)

    def __post_init__(self) -> None:
        tiny = self.choice.tiny
        self.roles = LentRoles(torch.device("cpu" if tiny else "cuda:0"))
        self.shape, self.target, self.scale = shape_of(tiny, self.choice.layers)
        self.documents = make_documents_of(self.shape, self.scale)
        self.configs = {
            changes: self.configure(changes) for changes in settings
        }  # all can be, or none is run
        base = self.configs[again]
        # Sharing one GPU is no change where there is one.
        others = [name for name in settings if name == again or self.configs[name] != base]
        self.settings = tuple(others[self.choice.skip :][: self.choice.first])

    def configure(self, changes: str) -> TrainConfig:
        """The base with `changes`, whose tokens are divided by the scale."""
        layers = 2 if self.choice.tiny else 5
        own = [] if changes == again else [self._scaled(change) for change in changes.split()]
        return load_config(
            None,
            [
                f"target.model=random:{self.target}",
                f"drafter.layers={layers}",
                f"drafter.tap_count={layers}",
                f"drafter.block_size={block_size if not self.choice.tiny else 4}",
                f"objective.anchors_per_document={self.choice.anchors // (8 if self.choice.tiny else 1)}",
                f"data.max_length={700 // self.scale}",
                self._scaled("pipeline.token_budget=8192"),
                self._scaled("window.tokens=32200"),
                "transport=peer",
                f"devices.gpus={self.choice.gpus}",
                "devices.memory_plan=warn",
                "data.held_out=0",  # else every run ends with an evaluation
                "run.epochs=40",
                "run.checkpoint_every=-1",
                "run.console_every_s=30",
                *self.choice.changes,
                *own,
            ],
        )

    def _scaled(self, change: str) -> str:
        name, _, value = change.partition("=")
        return f"{name}={int(value) // self.scale}" if name.endswith(("token_budget", "tokens")) else change

    def record(self, name: str, config: TrainConfig) -> tuple[Path, dict[str, float]]:
        """Train in a run directory called `name`; how long getting ready and running took."""
        path = self.runs / name
        took = record_here(
            path,
            config,
            partial(self.roles.prepare, documents=self.documents),
            cores=len(os.sched_getaffinity(0)),
            ready=self._make_ready,
        )
        return path, asdict(took)

    def _make_ready(self, run: RunDir, trainer: Trainer) -> None:
        if not self.base:
            facts = measure_hops(trainer.devices, trainer.config.devices, trainer.item_bytes)
            write_json(run.links_path, facts.to_json())
        if self.choice.tiny:
            pace(trainer)

    def measure_base(self) -> None:
        """Record the base and make every forecast."""
        config = self.configs[again].replacing(
            {"run.max_steps": base_windows, "run.max_seconds": base_seconds * self.choice.seconds}
        )
        path, took = self.record("base", config)
        run = Run.open(path)
        timeline = Timeline.of(run)
        began_s = time.monotonic()
        predictor = Predictor([observe_run(run, timeline)])
        for changes in self.settings:
            self.forecasts[changes] = predict_config(predictor, config, self.configs[changes])
        self.base = {**rates(measure_throughput(timeline)), **took}
        self.base["forecasts_s"] = time.monotonic() - began_s
        self.base["forecasts"] = {
            changes: {"tokens_per_s": p.tokens_per_s, "low": p.low, "high": p.high, "limit": p.limit}
            for changes, p in self.forecasts.items()
        }
        self.write()

    def measure(self, number: int, changes: str) -> None:
        """One row, whatever becomes of it."""
        forecast = self.forecasts[changes]
        config = self.configs[changes]
        wanted = self.choice.seconds * forecast.tokens_per_s / config.window.tokens
        steps = math.ceil(min(max(wanted, least_windows), most_windows))
        row: dict[str, Any] = {
            "setting": changes,
            "predicted": forecast.tokens_per_s,
            "low": forecast.low,
            "high": forecast.high,
            "closed_form": forecast.closed_form_tokens_per_s,
            "limit": forecast.limit,
            "doubts": [doubt.text for doubt in forecast.doubts],
            "measured": None,
        }
        expected_s = steps * config.window.tokens / forecast.tokens_per_s + spare_s
        if self.elapsed_s + expected_s > self.choice.limit_s:
            row["reason"] = f"left out: {expected_s:.0f} s more would be past the limit"
        else:
            try:
                path, took = self.record(f"{number:02}", config.replacing({"run.max_steps": steps}))
                row |= {**rates(measure_throughput(Timeline.of(Run.open(path)))), **took}
            except Exception as error:  # noqa: BLE001 - one setting's failure must not cost the others
                row["reason"] = f"{type(error).__name__}: {error}"[:500]
        self.rows.append({**row, **judge(row)})
        print(_line(self.rows[-1], self.elapsed_s), flush=True)
        self.write()

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.started_s

    def write(self) -> None:
        """All so far: the figures, and the runs in one archive."""
        rows = [row for row in self.rows if row["setting"] != again]
        repeats = [self.base, *(row for row in self.rows if row["setting"] == again)]
        rates = [row["measured"] for row in repeats if row["measured"]]
        facts = {name: getattr(self.choice, name) for name in ("layers", "anchors", "seconds", "tiny")}
        facts["gpus_used"] = self.choice.gpus
        figures = {**score(rows, rates), "elapsed_s": self.elapsed_s, "base": self.base, "rows": self.rows}
        write_result(self.choice.out / "whatif_on_gpus.json", "whatif_on_gpus", {**facts, **figures})
        pack(self.runs, self.choice.out / "runs.tar.xz")


def shape_of(tiny: bool, layers: int) -> tuple[str, str, int]:
    """The shape, the name of its target with so many layers, and how many times fewer tokens there are."""
    if tiny:
        return "tiny", "tiny", 16
    shape, target = "qwen3-8b", f"qwen3-8b-{layers}-layers"
    random_shapes[target] = {**random_shapes[shape], "num_hidden_layers": layers}
    return shape, target, 1


def make_documents_of(shape: str, scale: int) -> Documents:
    """Lengths that pack into budgets in more ways than one."""
    draw = np.random.default_rng(7)
    lengths = [int(n) for n in draw.integers(300 // scale, 700 // scale + 1, 1200)]
    return make_documents(lengths, vocab=random_shapes[shape]["vocab_size"] - 1)


def pace(trainer: Trainer) -> None:
    """Stretch a trainer's work by sleeping, so that other load on the CPU matters less."""
    for lent, names in ((trainer.targets, ("forward",)), (trainer.group.replicas, ("train", "plan"))):
        for role in lent:
            for name in names:  # of the trainer before
                vars(role).pop(name, None)
    Rig(trainer)


def _line(row: dict[str, Any], elapsed_s: float) -> str:
    if row["measured"] is None:
        return f"{elapsed_s:6.1f} s  {row['setting']}: {row['reason']}"
    return (
        f"{elapsed_s:6.1f} s  {row['setting']:40} forecast {row['predicted']:9,.0f} "
        f"({row['low']:,.0f} to {row['high']:,.0f}), measured {row['measured']:9,.0f}: {row['error']:+.1%}"
    )


def main() -> int:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--gpus", type=int, default=min(2, torch.cuda.device_count() or 2))
    parser.add_argument("--layers", type=int, default=18, help="of the target")
    parser.add_argument("--anchors", type=int, default=16, help="of a document")
    parser.add_argument("--seconds", type=float, default=4.0, help="of a run, about")
    parser.add_argument("--limit-s", type=float, default=165.0, help="of the whole page")
    parser.add_argument("--first", type=int, default=len(settings), help="how many settings")
    parser.add_argument("--skip", type=int, default=0, help="so many of the settings, which were run before")
    parser.add_argument("--set", action="append", default=[], metavar="KNOB=VALUE", dest="changes")
    parser.add_argument("--tiny", action="store_true")
    choice = parser.parse_args()
    choice.out.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="whatif-"))
    try:
        page = Page(choice, place / "runs")
        page.measure_base()
        for number, changes in enumerate(page.settings):
            page.measure(number, changes)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
