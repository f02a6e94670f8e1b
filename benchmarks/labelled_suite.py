"""Tries the diagnosis on runs whose sickness is known: faults × strengths × seeds, healthy and remedy runs.

    python benchmarks/labelled_suite.py --rows suite/rows.jsonl --keep suite/runs --out suite.json

Each run is recorded for some seconds on logical devices and diagnosed; the truth comes from the injector, by
a file beside the run. One row a run goes to `--rows` at once, and a second call makes only what is missing
there. Runs kept with `--keep` are not recorded again: with new rows they are diagnosed anew. Every faulty run
is paired with a healthy one of its seed and split; where the right finding proposes knobs, the same fault is
run with them.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.result_file import write_result
from benchmarks.small_runs import small_config, write_conversations
from benchmarks.suite_score import score
from dflash.contract.rundir import python_command
from dflash.faults.catalogue import catalogue, healthy
from dflash.faults.injection import truth_variable
from profiler.diagnosis import diagnose
from profiler.recorder import RecordOptions, record
from profiler.run import Run
from profiler.timeline import Timeline

time_limit_s = 300.0
finished = "finished"  # a file that a kept run has
splits = ("2-1", "2-2")
healthy_knobs = tuple(
    {"pipeline.split": split, "transport.preset": preset} for preset in ("peer", "pinned") for split in splits
)


@dataclass(frozen=True, slots=True)
class Case:
    """One run to make."""

    kind: str  # healthy | fault | remedy
    fault: str
    strength: float
    seed: int
    knobs: dict[str, Any] = field(default_factory=dict, hash=False)

    @property
    def key(self) -> str:
        """Which run this is; a remedy's knobs are what its fault's run proposed."""
        knobs = "" if self.kind == "remedy" else json.dumps(self.knobs, sort_keys=True)
        return f"{self.kind} {self.fault}:{self.strength:g} seed {self.seed} {knobs}".rstrip()

    @property
    def name(self) -> str:
        """A directory's."""
        return "-".join(re.findall(r"[\w.]+", self.key))


def carry_out(case: Case, max_steps: int, keep: Path | None) -> dict[str, Any]:
    """Record (unless it was kept) and diagnose one run; its row."""
    with tempfile.TemporaryDirectory(prefix="labelled-") as place:
        folder = Path(place) if keep is None else keep / case.name
        if not (folder / finished).exists():
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            record_run(case, folder, max_steps)
        diagnosis = diagnose(Timeline.of(Run.open(folder / "run")))
        truth = json.loads((folder / "truth.json").read_text())
    named = [finding for finding in diagnosis.findings if finding.supported]
    right = next((finding for finding in diagnosis.findings if finding.cause == truth["cause"]), None)
    return {
        **asdict(case),
        "key": case.key,
        "truth": truth,
        "tokens_per_s": diagnosis.throughput.tokens_per_s,
        "named": [finding.cause for finding in named],
        "headline": diagnosis.headline,
        "said_of_truth": right and right.summary,
        "remedy": dict(named[0].remedy.knobs) if named and named[0].remedy else {},
    }


def record_run(case: Case, folder: Path, max_steps: int) -> None:
    """Record one run in `folder`, with the truth beside it. Raises RuntimeError when it does not finish."""
    data = write_conversations(folder / "conversations.jsonl")
    config = small_config(data, seed=case.seed, max_steps=max_steps).replacing(case.knobs)
    (folder / "run.toml").write_text(config.to_toml())
    os.environ[truth_variable] = str(folder / "truth.json")
    request = f"{case.fault}:{case.strength}"
    command = [*python_command(), "run", str(folder / "run.toml"), "--inject", request]
    options = RecordOptions(gpu="none", log=folder / "log", time_limit_s=time_limit_s)
    recording = record(command, folder / "run", options)
    if recording.status != "finished":
        raise RuntimeError(f"{case.key}: {recording.status}\n{(folder / 'log').read_text()[-2000:]}")
    (folder / finished).touch()


def first_cases(options: argparse.Namespace) -> Iterator[Case]:
    """Healthy runs, then faults, the strongest first."""
    for number in range(options.healthy):
        knobs = healthy_knobs[number % len(healthy_knobs)]
        yield Case("healthy", healthy.name, 0.0, number // len(healthy_knobs), knobs)
    for rank in range(options.strengths):
        for seed in range(options.seeds):
            for name in options.faults:
                fault = catalogue[name]
                yield Case("fault", name, fault.strengths[-1 - rank], seed, dict(fault.knobs))


def remedies(rows: list[dict[str, Any]]) -> Iterator[Case]:
    """The same faults with the knobs that the right finding proposed."""
    for row in rows:
        if row["kind"] == "fault" and row["named"][:1] == [row["truth"]["cause"]] and row["remedy"]:
            knobs = {**row["knobs"], **row["remedy"]}
            yield Case("remedy", row["fault"], row["strength"], row["seed"], knobs)


def make_missing(cases: list[Case], rows: list[dict[str, Any]], options: argparse.Namespace) -> None:
    """Carry out the cases that have no row yet, and write each row when it is there."""
    known = {row["key"] for row in rows}
    missing = [case for case in cases if case.key not in known]
    with ProcessPoolExecutor(options.workers, mp_context=get_context("spawn")) as pool:
        jobs = [pool.submit(carry_out, case, options.steps, options.keep) for case in missing]
        for done in as_completed(jobs):
            row = done.result()
            rows.append(row)
            with options.rows.open("a") as file:
                file.write(json.dumps(row) + "\n")
            rate = row["tokens_per_s"] or 0.0
            print(f"{row['key']}: {', '.join(row['named']) or 'nothing'}; {rate:,.0f} tokens/s", flush=True)


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--rows", type=Path, required=True, help="JSON lines, one a run; made or gone on with"
    )
    parser.add_argument("--keep", type=Path, help="where runs stay; without it they are thrown away")
    parser.add_argument("--out", type=Path, help="the JSON document of the whole")
    parser.add_argument("--faults", nargs="+", choices=sorted(catalogue), default=list(catalogue))
    parser.add_argument(
        "--strengths", type=int, default=3, choices=(1, 2, 3), help="how many, strongest first"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--healthy", type=int, default=20)
    parser.add_argument("--steps", type=int, default=30, help="optimizer steps of a run")
    parser.add_argument("--workers", type=int, default=1, help="runs at once")
    return parser.parse_args()


def main() -> None:
    """Make what is missing, then add up."""
    options = read_options()
    options.rows.parent.mkdir(parents=True, exist_ok=True)
    written = options.rows.read_text().splitlines() if options.rows.exists() else []
    rows = [json.loads(line) for line in written]
    make_missing(list(first_cases(options)), rows, options)
    make_missing(list(remedies(rows)), rows, options)
    document = write_result(options.out, "labelled_suite", score(rows))
    print(json.dumps({key: document[key] for key in ("accuracy", "healthy", "remedies")}, indent=1))


if __name__ == "__main__":
    main()
