"""A contest of tuners on simulated problems: ours, and those of others by their own ask and tell.

    python benchmarks/tuner.py --rows tuner.jsonl --out docs/benchmarks/tuner_2cpu.json
    python benchmarks/tuner.py --rows tuner.jsonl --only ax smac --peers-python peers/bin/python --seeds 5
    python benchmarks/tuner.py --rows tuner.jsonl --sets heldout-normal heldout-hard --only ours --variants

All tuners meet the same machines, jobs, memory and noise, and every run counts as a trial. Scored is what a
tuner would recommend: ours says so itself, for the others it is the fastest run they have seen. One row a
match goes to `--rows` at once; a second call plays only what is missing there. SMAC3 and Ax are no
dependencies: `--peers-python` names a Python that has them (python -m venv peers; peers/bin/pip install
torch numpy scikit-learn optuna smac==2.4.1 ax-platform==1.3.1; SMAC3 is built with swig).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from importlib.util import find_spec
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.result_file import package_versions, write_result
from benchmarks.tuner_match import Match, Row, fingerprint, play, trials_each
from benchmarks.tuner_ours import entries, version_of
from benchmarks.tuner_peers import package_of, peers
from benchmarks.tuner_score import score, shorten
from benchmarks.tuner_suite import Problem, sets

tuners = [*entries, *peers]
variants = [name for name in entries if name.startswith("ours-no-")]
modules = {"optuna": "optuna", "smac": "smac", "ax": "ax"}
thread_limits = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")  # read when numpy is imported
distributions = ("optuna", "smac", "ax-platform", "scikit-learn", "numpy")


def choose_matches(options: argparse.Namespace) -> list[Match]:
    """All that are asked for: the first problem of every set for all tuners, then the second, and so on."""
    return [
        Match(
            tuner=tuner,
            set=name,
            seed=sets[name][1][number],
            trials=options.trials,
            python=options.peers_python,
        )
        for number in range(options.seeds)
        for name in options.sets
        for tuner in options.only
    ]


def find_missing(names: Sequence[str], python: Path | None) -> dict[str, str]:
    """{tuner: why it cannot take part}."""
    where = "this Python" if python is None else str(python)
    packages = {package for name in names if (package := package_of(name)) is not None}
    absent = {package for package in packages if not _has(modules[package], python)}
    return {name: f"{where} has no {package_of(name)}" for name in names if package_of(name) in absent}


def _has(module: str, python: Path | None) -> bool:
    if python is None:
        return find_spec(module) is not None
    code = f"import importlib.util as u, sys; sys.exit(u.find_spec({module!r}) is None)"
    return subprocess.run([str(python), "-c", code], check=False).returncode == 0


def read_rows(path: Path) -> list[Row]:
    """Rows of an earlier call that still hold: those of problems and searches that are as they were."""
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    known = {(row["set"], row["seed"]) for row in rows}
    now = {(name, seed): fingerprint(Problem(sets[name][0], seed)) for name, seed in sorted(known)}
    same = [row for row in rows if row["suite"] == now[row["set"], row["seed"]]]
    return [row for row in same if row.get("version", 0) == version_of(row["tuner"])]


def play_missing(matches: Sequence[Match], rows: list[Row], path: Path, jobs: int) -> None:
    """Play what has no row; a match that fails is told and takes no other with it."""
    done = {(row["tuner"], row["set"], row["seed"], row["trials"]) for row in rows}
    left = [match for match in matches if match.key not in done]
    path.parent.mkdir(parents=True, exist_ok=True)
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(play, match): match for match in left}
        for number, job in enumerate(as_completed(running), 1):
            match, problem = running[job], job.exception()
            told = f"{number} of {len(left)}: {match.tuner} on {match.set} {match.seed}"
            if problem is not None:
                print(f"{told}: {type(problem).__name__}: {problem}", flush=True)
                continue
            row = job.result()
            rows.append(row)
            with path.open("a") as file:
                file.write(json.dumps(row) + "\n")
            print(f"{told}: {row['worth'][-1]:.3f} in {row['made']}, {row['seconds']} s", flush=True)


def describe(rows: Sequence[Row], options: argparse.Namespace, missing: dict[str, str]) -> dict[str, Any]:
    """The document, without the machine."""
    chosen = [
        row
        for row in rows
        if row["tuner"] in options.only and row["set"] in options.sets and row["trials"] == options.trials
    ]
    order = {name: number for number, name in enumerate(tuners)}
    chosen.sort(key=lambda row: (options.sets.index(row["set"]), order[row["tuner"]], row["seed"]))
    return {
        "trials": options.trials,
        "tuners": {name: entry.told for name, entry in entries.items() if name in options.only},
        "missing": missing,
        "unplayed": count_unplayed(options, chosen),
        "peers": _versions(options.peers_python),
        "scores": score(chosen),
        "rows": [shorten(row) for row in chosen],
    }


def count_unplayed(options: argparse.Namespace, rows: Sequence[Row]) -> dict[str, int]:
    """{tuner: matches that were asked for and have no row}, of those that have any such."""
    played = {(row["tuner"], row["set"], row["seed"], row["trials"]) for row in rows}
    return dict(Counter(match.tuner for match in choose_matches(options) if match.key not in played))


def _versions(python: Path | None) -> dict[str, str]:
    if python is None:
        return package_versions(*distributions)
    code = (
        "import json, importlib.metadata as m\n"
        "def v(n):\n try: return m.version(n)\n except m.PackageNotFoundError: return None\n"
        f"print(json.dumps({{n: v(n) for n in {distributions!r} if v(n)}}))"
    )
    told = subprocess.run([str(python), "-c", code], check=True, capture_output=True, text=True).stdout
    return dict(json.loads(told))


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rows", type=Path, required=True, help="JSON lines, one a match; gone on with")
    parser.add_argument("--out", type=Path, help="the JSON document of the whole")
    parser.add_argument("--only", nargs="+", choices=tuners, help="default: all but the variants")
    parser.add_argument("--variants", action="store_true", help="ours without each of its parts, too")
    parser.add_argument("--sets", nargs="+", choices=list(sets), default=["normal", "hard"])
    parser.add_argument(
        "--seeds",
        type=int,
        default=20,
        choices=range(1, 21),
        metavar="N",
        help="problems of each set, 1 to 20",
    )
    parser.add_argument("--trials", type=int, default=trials_each)
    parser.add_argument("--add-up", action="store_true", help="play nothing: add up the rows there are")
    parser.add_argument("--jobs", type=int, default=1, help="matches at once")
    parser.add_argument("--peers-python", type=Path, help="a Python with the peers' packages")
    options = parser.parse_args()
    options.only = options.only or [name for name in tuners if name not in variants]
    options.only += [name for name in variants if options.variants and name not in options.only]
    return options


def main() -> None:
    """Play what is missing, then add up."""
    options = read_options()
    missing = find_missing(options.only, options.peers_python)
    for name, reason in missing.items():
        print(f"{name} takes no part: {reason}", flush=True)
    for name in thread_limits:  # a match has one core
        os.environ.setdefault(name, "1")
    rows = read_rows(options.rows)
    matches = [match for match in choose_matches(options) if match.tuner not in missing]
    if not options.add_up:
        play_missing(matches, rows, options.rows, options.jobs)
    document = write_result(options.out, "tuner_contest", describe(rows, options, missing))
    for tuner, count in document["unplayed"].items():
        print(f"{tuner}: {count} matches have no row", flush=True)
    for entry in document["scores"]:
        print(json.dumps({key: entry[key] for key in entry if key != "recommended_by"}))


if __name__ == "__main__":
    main()
