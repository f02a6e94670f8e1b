"""Breaks every ordering rule, one at a time, and demands that a test turns red.

    python benchmarks/ordering_mutations.py [--gpu] [--out FILE.json] [--only WORD] [--jobs 4]
Each rule of `ordering_rules.py` is removed in a copy of the package, by replacing an exact piece of its text;
the tests named with it run on the copy in a process of their own. First they all run on an unbroken copy,
and must be green. Without `--gpu` the rules that logical devices keep are tried, with it those of GPUs; one
GPU is enough. A test that hangs where it was green counts as red. A copy that does not even work (a name is
missing, say) proves nothing and is called broken. Exit 1 unless every rule turned red, 2 when a rule's text
was not found.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.ordering_rules import Rule, TextNotFoundError, cpu_rules, gpu_rules
from benchmarks.result_file import write_result

repository = Path(__file__).resolve().parents[1]
package = "dflash"
# Runs pytest on the copy, once it is certain that the copy is what is imported.
program = f"""
import sys, {package}
assert {package}.__file__.startswith(sys.argv[1]), {package}.__file__
import pytest
sys.exit(pytest.main(sys.argv[2:]))
"""
failed, passed = 1, 0  # pytest's exit codes
# What a copy says that is not wrong in its order but does not work at all.
broken_words = re.compile(
    r"^E +(NameError|SyntaxError|IndentationError|ImportError|UnboundLocalError)\b", re.M
)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the tests of a rule ended on its copy."""

    verdict: str  # red, green, broken
    seconds: float
    words: str  # of the first failure


def copy_tree(place: Path) -> None:
    """The package as a copy; everything else of the repository as links."""
    for entry in repository.iterdir():
        if entry.name == package:
            shutil.copytree(entry, place / package, ignore=shutil.ignore_patterns("__pycache__"))
        elif not entry.name.startswith("."):
            (place / entry.name).symlink_to(entry)


def run_tests(place: Path, tests: Sequence[str], limit_s: float) -> Outcome:
    """Red: a test failed or hangs. Green: all passed. Broken: anything else."""
    options = ["-x", "-q", "-p", "no:cacheprovider", f"--rootdir={place}", "-o", f"timeout={limit_s:g}"]
    options += ["-o", "filterwarnings="]  # those of the suite name packages that a GPU machine may lack
    command = [sys.executable, "-P", "-c", program, str(place), *options, *tests]
    paths = [str(place), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONDONTWRITEBYTECODE": "1"}
    started = time.monotonic()
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
    seconds, text = time.monotonic() - started, done.stdout + done.stderr
    if "+ Timeout +" in text:  # pytest-timeout ends the process
        return Outcome("red", seconds, f"hangs: a test was not done after {limit_s:g} s")
    lines = [line for line in text.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    words = lines[0] if lines else text.strip().splitlines()[-1][:200]
    if done.returncode == passed and " passed" in text:
        return Outcome("green", seconds, words)
    ran = any(line.startswith("FAILED ") for line in lines)
    broken = done.returncode != failed or not ran or broken_words.search(text) is not None
    return Outcome("broken" if broken else "red", seconds, words)


def try_rule(rule: Rule | None, tests: Sequence[str], limit_s: float) -> Outcome:
    """The tests on a copy without `rule`; None breaks nothing."""
    with tempfile.TemporaryDirectory(prefix="ordering-") as name:
        place = Path(name).resolve()
        copy_tree(place)
        if rule is not None:
            rule.remove_from(place)
        return run_tests(place, tests, limit_s)


def parse_arguments() -> argparse.Namespace:
    """See the module's text."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=form)
    parser.add_argument("--gpu", action="store_true", help="the rules of GPUs")
    parser.add_argument("--only", default="", help="rules with this in their name")
    parser.add_argument("--jobs", type=int, default=4, help="copies tried at once")
    parser.add_argument("--limit", type=float, default=25, help="seconds after which a test hangs")
    parser.add_argument("--out", type=Path, help="where the result is written as JSON")
    return parser.parse_args()


def write(
    out: Path | None, unbroken: Outcome, tests: Sequence[str], rows: Sequence[Mapping[str, Any]], *, of: int
) -> bool:
    """Write what is known after some `of` so many rules; whether every one is held."""
    kept = unbroken.verdict == "green" and len(rows) == of and all(row["verdict"] == "red" for row in rows)
    unbroken_row = {"verdict": unbroken.verdict, "seconds": round(unbroken.seconds, 2), "tests": tests}
    figures = {"every_rule_is_held": kept, "rules_in_all": of, "unbroken": unbroken_row, "rules": rows}
    write_result(out, "ordering_mutations", figures)
    return kept


def main() -> int:
    """Try all rules, print a table, write the result file."""
    arguments = parse_arguments()
    gpus = torch.cuda.device_count()
    rules = [r for r in (gpu_rules if arguments.gpu else cpu_rules) if arguments.only in r.name]
    for rule in [r for r in rules if r.gpus > gpus]:
        print(f"left out: {rule.name}: needs {rule.gpus} GPUs, {gpus} are here")
        rules.remove(rule)
    if not rules:  # pytest without a name would run the whole suite
        print("no rule to try", file=sys.stderr)
        return 2
    try:
        for rule in rules:
            rule.check_in(repository)
    except TextNotFoundError as error:
        print(error, file=sys.stderr)
        return 2
    started = time.monotonic()
    every_test = sorted({test for rule in rules for test in rule.tests})
    with ThreadPoolExecutor(arguments.jobs) as pool:
        baseline = pool.submit(try_rule, None, every_test, arguments.limit)
        trials = [pool.submit(try_rule, rule, rule.tests, arguments.limit) for rule in rules]
        unbroken = baseline.result()
        print(f"{unbroken.verdict:7}{unbroken.seconds:6.1f} s  nothing broken, {len(every_test)} tests")
        rows: list[dict[str, Any]] = []
        kept = write(arguments.out, unbroken, every_test, rows, of=len(rules))
        for rule, trial in zip(rules, trials, strict=True):
            outcome = trial.result()
            print(
                f"{outcome.verdict:7}{outcome.seconds:6.1f} s  {rule.name}\n{'':17}{outcome.words[:150]}",
                flush=True,
            )
            rows.append(
                {
                    "rule": rule.name, "file": rule.file, "tests": rule.tests, "verdict": outcome.verdict,
                    "seconds": round(outcome.seconds, 2), "words": outcome.words,
                }
            )  # fmt: skip
            kept = write(arguments.out, unbroken, every_test, rows, of=len(rules))
    red = sum(row["verdict"] == "red" for row in rows)
    if unbroken.verdict == "green":
        print(f"{red} of {len(rows)} rules turned a test red, in {time.monotonic() - started:.0f} s")
    else:
        print(f"nothing is proven: the tests are {unbroken.verdict} with nothing broken: {unbroken.words}")
    return 0 if kept else 1


if __name__ == "__main__":
    sys.exit(main())
