"""Searches whose own process and whose trials are killed at random moments, then started again.

    python -m benchmarks.killed_searches --searches 30 [--seed 0] [--out FILE]

Every search is a real one (identity, lock, journal, recorder, diagnosis) over trainers that only write what a
trainer would write. SIGKILL strikes the search or one of its trial processes; the same line goes on. Counted:
finished trials that were lost, changed or run again, processes left over, studies that did not end whole, and
on a machine with GPUs the memory held afterwards. All must be 0. Exit 1 otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from autotune.effort import Effort
from autotune.gpus import watch_gpus
from autotune.machine import Machine
from autotune.result import load_study
from autotune.runner import RecordedRunner
from autotune.search import SearchPlan, search
from autotune.space import Dimension, SearchSpace
from autotune.storage import read_trials
from autotune.trial import Trial, TrialState
from benchmarks.in_order import InOrder
from dflash.contract.config import load_config
from dflash.contract.errors import DFlashError
from dflash.contract.rundir import environment_variable

root = Path(__file__).parents[1]
trainer = root / "tests/data/programs/fake_trainer.py"
effort = Effort(trials=4, repeats=1, seconds=1.0)
trial_s = 0.4  # that the trainer takes before it writes
kills_at_most = 4  # of one search: then it may end
end_limit_s = 180.0
orphan_limit_s = 15.0
search_share = 0.6  # of the kills strike the search, the others a trial


@dataclass(slots=True, kw_only=True)
class Tally:
    """What was done, and what went wrong."""

    searches: int = 0
    searches_killed: int = 0
    trials_killed: int = 0
    finished_trials: int = 0
    lost_or_changed: int = 0
    run_again: int = 0
    left_over_processes: int = 0
    not_whole: int = 0
    gpu_memory_held: str | None = None

    @property
    def is_clean(self) -> bool:
        """Whether nothing went wrong."""
        wrong = (self.lost_or_changed, self.run_again, self.left_over_processes, self.not_whole)
        return not any(wrong) and self.gpu_memory_held is None


def main() -> int:
    """Play the searches, or (with --study) be one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--searches", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--study", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.study is not None:
        return be_a_search(arguments.study)
    with tempfile.TemporaryDirectory(prefix="killed-searches-") as directory:
        tally = play(Path(directory), arguments.searches, arguments.seed)
    print(json.dumps(asdict(tally), indent=1))
    if arguments.out is not None:
        sys.path.insert(0, str(root))
        from benchmarks.result_file import write_result

        write_result(arguments.out, "killed_searches", asdict(tally))
    return 0 if tally.is_clean else 1


def be_a_search(study_dir: Path) -> int:
    """One search to its end; says a word at every start and end of a trial."""
    choices = ("host", "shared", "pinned", "peer")
    dimensions = (Dimension("transport.preset", choices), Dimension("transport.depth", (1, 2)))
    base = load_config(None, ["pipeline.split=1-1", "transport.preset=host", "transport.depth=2"])
    plan = SearchPlan(
        study_dir=study_dir,
        space=SearchSpace(dimensions, base, 2),
        machine=Machine(cpu="a cpu", cpus=2),
        effort=effort,
        searcher=InOrder(),  # whose runs are known beforehand, so that one too many or too few is seen
    )
    try:
        runner = RecordedRunner([sys.executable, str(trainer)])
        search(plan, runner, lambda event: print(event.kind, event.message, flush=True))
    except DFlashError as error:
        print(error.render(), file=sys.stderr)
        return error.exit_code
    return 0


def play(directory: Path, searches: int, seed: int) -> Tally:
    """`searches` searches under `directory`, each killed a few times."""
    tally, chance = Tally(), random.Random(seed)
    gpus = watch_gpus()
    if gpus is not None:
        gpus.settle()
    for number in range(searches):
        _play_one(directory / f"study-{number}", tally, chance)
        print(f"{number + 1} of {searches}: {json.dumps(asdict(tally))}", file=sys.stderr, flush=True)
    if gpus is not None:
        try:
            gpus.settle()
        except DFlashError as error:
            tally.gpu_memory_held = error.found
    return tally


def _play_one(study_dir: Path, tally: Tally, chance: random.Random) -> None:
    tally.searches += 1
    kept: dict[int, Trial] = {}
    for _ in range(chance.randint(1, kills_at_most)):
        process = _start(study_dir)
        if chance.random() < search_share:
            _kill_search(process, chance)
            tally.searches_killed += process.returncode == -signal.SIGKILL
            tally.left_over_processes += _count_orphans(study_dir)
        else:
            tally.trials_killed += _kill_a_trial(study_dir, process, chance)
            _finish(process)
        kept = _compare(kept, study_dir, tally)
    process = _start(study_dir)
    _finish(process)
    kept = _compare(kept, study_dir, tally)
    _check_whole(study_dir, process, kept, tally)


def _start(study_dir: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.killed_searches", "--study", str(study_dir)],
        env=os.environ | {"FAKE_TRAINER_SECONDS": str(trial_s), "PYTHONPATH": str(root)},
        cwd=root,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def _kill_search(process: subprocess.Popen[str], chance: random.Random) -> None:
    """At any moment from before the study is opened to the middle of some trial."""
    lines = chance.randrange(6)
    if lines == 0:
        time.sleep(chance.uniform(0.0, 2.0))
    assert process.stdout is not None
    while lines and process.stdout.readline():
        lines -= 1
    time.sleep(chance.uniform(0.0, 0.8))
    process.kill()
    process.communicate(timeout=end_limit_s)


def _count_orphans(study_dir: Path) -> int:
    """Processes of trials that are still there when the launcher has had its time to end them."""
    deadline_s = time.monotonic() + orphan_limit_s
    while (orphans := list(trial_processes(study_dir))) and time.monotonic() < deadline_s:
        time.sleep(0.05)
    return len(orphans)


def _kill_a_trial(study_dir: Path, process: subprocess.Popen[str], chance: random.Random) -> int:
    """One process of a trial, whichever; 0 where the search ended before there was any."""
    time.sleep(chance.uniform(0.0, 1.0))
    while process.poll() is None:
        found = list(trial_processes(study_dir))
        if found:
            try:
                chance.choice(found).kill()
            except psutil.NoSuchProcess:
                continue
            return 1
        time.sleep(0.02)
    return 0


def _finish(process: subprocess.Popen[str]) -> None:
    _, said = process.communicate(timeout=end_limit_s)
    if process.returncode not in (0, -signal.SIGKILL):
        print(said, file=sys.stderr)


def _compare(kept: Mapping[int, Trial], study_dir: Path, tally: Tally) -> dict[int, Trial]:
    """What has finished by now; every trial that had finished before must be there as it was."""
    now = {t.number: t for t in read_trials(study_dir) if t.state is TrialState.finished}
    tally.lost_or_changed += sum(now.get(number) != trial for number, trial in kept.items())
    return now


def _check_whole(
    study_dir: Path, process: subprocess.Popen[str], kept: Mapping[int, Trial], tally: Tally
) -> None:
    """Every configuration and every repeat asked for is there, none twice, and nothing runs any more."""
    result = load_study(study_dir, InOrder())
    tally.finished_trials += len(kept)
    firsts = Counter(tuple(t.values.values()) for t in kept.values() if t.repeat_of is None)
    repeats = Counter((t.repeat_of, t.soak) for t in kept.values() if t.repeat_of is not None)
    tally.run_again += sum(count - 1 for count in firsts.values())
    tally.run_again += sum(
        max(0, count - (1 if soak else effort.repeats)) for (_, soak), count in repeats.items()
    )
    done = "not done" not in result.stop and f"{effort.trials} of" in result.stop
    tally.not_whole += process.returncode != 0 or not done or result.best is None
    left_over = list(trial_processes(study_dir))
    tally.left_over_processes += len(left_over)
    for one in left_over:
        one.kill()


def trial_processes(study_dir: Path) -> Iterator[psutil.Process]:
    """Living processes that belong to a trial of the study."""
    for process in psutil.process_iter():
        try:
            marked = process.environ().get(environment_variable, "")
            if marked.startswith(f"{study_dir}/") and process.status() != psutil.STATUS_ZOMBIE:
                yield process
        except (psutil.Error, OSError):
            continue


if __name__ == "__main__":
    sys.exit(main())
