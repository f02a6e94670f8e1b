"""One tuner on one simulated problem, from its first trial to its last, as a row.

Every run counts as a trial, repeats and runs that fail too. Knows nothing of scores over many problems.
"""

from __future__ import annotations

import time
import zlib
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

from autotune.effort import Effort
from autotune.searcher import Stop
from autotune.study import Study
from autotune.telemetry import Failed
from autotune.trial import Trial
from benchmarks.tuner_ours import Entry, check_model, entries, version_of
from benchmarks.tuner_peer_process import PeerProcess
from benchmarks.tuner_peers import Peer, package_of, peers
from benchmarks.tuner_suite import Problem, sets

trials_each: Final = 60
Row = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Match:
    """One tuner on one problem of a set. `python`: that peers of other packages run in; None: this one."""

    tuner: str
    set: str
    seed: int
    trials: int = trials_each
    python: Path | None = None

    @property
    def key(self) -> tuple[str, str, int, int]:
        return self.tuner, self.set, self.seed, self.trials


def play(match: Match) -> Row:
    """The row of a match: what the recommended configuration was worth after each trial, and more."""
    problem = Problem(sets[match.set][0], match.seed)
    began_s = time.perf_counter()
    row = (
        play_ours(problem, entries[match.tuner], match.trials)
        if match.tuner in entries
        else _play_peer(match, problem)
    )
    return {
        "tuner": match.tuner,
        "set": match.set,
        "seed": match.seed,
        "trials": match.trials,
        "suite": fingerprint(problem),
        "version": version_of(match.tuner),
        "seconds": round(time.perf_counter() - began_s, 2),
        **row,
    }


def fingerprint(problem: Problem) -> int:
    """Changes when the problem does, so that rows of another suite are not taken for its own."""
    rounded = [f"{rate:.5g}" for rate in problem.rates[::7]] + [
        f"{share:.5g}" for share in problem.fullness[::7]
    ]
    return zlib.crc32(repr((problem.baseline, problem.noise, rounded)).encode())


def play_ours(problem: Problem, entry: Entry, trials: int) -> Row:
    """A whole study, until it stops by itself or has had its trials; then what it would recommend stays."""
    searcher = entry.make()
    space = problem.space()
    study = Study(space, searcher, problem.runner(paired=entry.paired), effort=Effort(trials=trials))
    worth: list[float] = []
    failed = 0
    while len(worth) < trials and (trial := study.step()) is not None:
        failed += trial.failure is not None
        worth.append(_worth_of(problem, study.recommendation))
    runs = study.trials
    stop = None if len(worth) >= trials else study.conclusion.stop
    stopped: Row = {} if stop is None else _describe_stop(stop, len(worth))
    model = {} if entry.parts is None else check_model(problem, space, runs, entry.parts)
    return {
        "worth": [round(each, 5) for each in worth + worth[-1:] * (trials - len(worth))],
        "made": len(worth),
        "failed": failed,
        "repeated": sum(trial.repeat_of is not None for trial in runs),
        "paired": sum(trial.beside is not None for trial in runs),
        "by": "its own opinion",
        **stopped,
        **model,
    }


def _describe_stop(stop: Stop, made: int) -> Row:
    return {"stopped": made, "stop": stop.reason, "gap_probability": stop.gap_probability}


def _worth_of(problem: Problem, trial: Trial | None) -> float:
    return 0.0 if trial is None else float(problem.worth[problem.row(dict(trial.values))])


def _play_peer(match: Match, problem: Problem) -> Row:
    with TemporaryDirectory(prefix="tuner-") as folder, ExitStack() as closing:
        if package_of(match.tuner) is None or match.python is None:
            make = peers[match.tuner]
            peer: Peer = make(problem.choices, problem.baseline, match.seed, match.trials, folder)
        else:
            peer = far = PeerProcess(
                match.python,
                match.tuner,
                log=Path(folder) / "log",
                choices=problem.choices,
                baseline=problem.baseline,
                seed=match.seed,
                trials=match.trials,
                folder=folder,
            )
            closing.callback(far.close)
        return play_peer(problem, peer, match.trials)


def play_peer(problem: Problem, peer: Peer, trials: int) -> Row:
    """Ask and tell; what it recommends is the fastest run that it has seen."""
    runner = problem.runner()
    start, best, recommended = 0.0, 0.0, 0.0
    worth, failed, seen = [], 0, set()
    for _ in range(trials):
        values = problem.nearest(peer.ask())
        seen.add(problem.row(values))
        outcome = runner.measure(values)
        if isinstance(outcome, Failed):
            failed += 1
            peer.tell(None)
        else:
            start = start or outcome.tokens_per_s
            peer.tell(outcome.tokens_per_s / start)
            if outcome.tokens_per_s > best:
                best, recommended = outcome.tokens_per_s, float(problem.worth[problem.row(values)])
        worth.append(round(recommended, 5))
    return {
        "worth": worth,
        "made": trials,
        "failed": failed,
        "repeated": trials - len(seen),
        "paired": 0,
        "by": "the fastest run seen",
    }
