"""Tries the diagnosis on runs whose sickness is known: faults × strengths × seeds, healthy and remedy runs.

    python benchmarks/labelled_suite.py --rows suite/rows.jsonl --keep suite/runs --out suite.json
    python benchmarks/labelled_suite.py --rows rows.jsonl --archive runs --workers 13 --limit-s 540
    python benchmarks/labelled_suite.py --rows again.jsonl --rediagnose suite/runs-*.tar.gz

Each run is recorded for some seconds on logical devices and diagnosed; the truth comes from the injector, by
a file beside the run. One row a run goes to `--rows` at once, and a second call makes only what is missing
there. Every faulty run is paired with a healthy one of its seed and split; where the right finding proposes
knobs, the same fault is run with them. With several workers each has two cores of its own, as long as there
are so many. Runs kept by `--keep` or `--archive` can be diagnosed again, by other rules, on any machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from pathlib import Path
from traceback import format_exception

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.pinned_pool import open_pool
from benchmarks.result_file import write_result
from benchmarks.run_archive import kept, pack, unpack
from benchmarks.suite_cases import OutOfTimeError, Row, first_cases, remedy_of
from benchmarks.suite_score import score
from dflash.faults.catalogue import catalogue

closing_s = 15.0  # for the archive and the sums, when time is limited
Job = Callable[[], Row]


def make_missing(rows: list[Row], options: argparse.Namespace, keep: Path, until_s: float | None) -> None:
    """Carry out the cases that have no row yet; a remedy's turn is as soon as its fault's row is there."""
    from benchmarks.suite_runs import carry_out  # late: each forked trainer imports this page, not all that

    known = {row["key"] for row in rows}
    cases = [case for row in rows if (case := remedy_of(row)) is not None]
    cases += first_cases(
        options.faults, strengths=options.strengths, seeds=options.seeds, healthy_runs=options.healthy
    )
    carry = partial(carry_out, max_steps=options.steps, keep=keep, until_s=until_s)

    def next_remedy(row: Row) -> list[Job]:
        remedy = remedy_of(row)
        return [] if remedy is None or remedy.key in known else [partial(carry, remedy)]

    work_off([partial(carry, case) for case in cases if case.key not in known], rows, options, next_remedy)


def work_off(
    jobs: list[Job], rows: list[Row], options: argparse.Namespace, then: Callable[[Row], list[Job]]
) -> None:
    """All jobs and those that follow from their rows; each row is written when it is there."""
    waiting, running = deque(jobs), set[Future[Row]]()
    with open_pool(options.workers) as pool:
        while waiting or running:
            while waiting and len(running) < options.workers:
                running.add(pool.submit(waiting.popleft()))
            done, running = wait(running, return_when=FIRST_COMPLETED)
            for job in done:
                if isinstance(job.exception(), OutOfTimeError):
                    waiting.clear()
                if (row := _row_of(job)) is not None:
                    waiting.extendleft(then(row))
                    rows.append(row)
                    with options.rows.open("a") as file:
                        file.write(json.dumps(row) + "\n")


def _row_of(job: Future[Row]) -> Row | None:
    """None when there is none; one run that fails takes no other with it."""
    problem = job.exception()
    if problem is not None:
        late = isinstance(problem, OutOfTimeError)
        print(f"out of time: {problem}" if late else "".join(format_exception(problem)), flush=True)
        return None
    row = job.result()
    rate = row["tokens_per_s"] or 0.0
    print(f"{row['key']}: {', '.join(row['named']) or 'nothing'}; {rate:,.0f} tokens/s", flush=True)
    return row


def rediagnose(rows: list[Row], options: argparse.Namespace, keep: Path) -> None:
    """Rows of kept runs, by the rules as they are now."""
    from benchmarks.suite_runs import diagnosed

    for archive in options.rediagnose:
        unpack(archive, keep)
    folders = sorted(path.parent for path in keep.glob(f"*/{kept[-1]}"))
    work_off([partial(diagnosed, folder) for folder in folders], rows, options, lambda _row: [])


def read_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument(
        "--rows", type=Path, required=True, help="JSON lines, one a run; made or gone on with"
    )
    parser.add_argument("--keep", type=Path, help="where runs stay; without it they are thrown away")
    parser.add_argument("--archive", type=Path, help="all runs of this call, in PREFIX-1.tar.gz and so on")
    parser.add_argument(
        "--rediagnose", type=Path, nargs="+", help="archives to diagnose again; makes no runs"
    )
    parser.add_argument("--out", type=Path, help="the JSON document of the whole")
    parser.add_argument("--faults", nargs="+", choices=sorted(catalogue), default=list(catalogue))
    parser.add_argument(
        "--strengths", type=int, default=3, choices=(1, 2, 3), help="how many, strongest first"
    )
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--healthy", type=int, default=20)
    parser.add_argument("--steps", type=int, default=30, help="optimizer steps of a run")
    parser.add_argument("--workers", type=int, default=1, help="runs at once")
    parser.add_argument("--limit-s", type=float, help="stop after this time, with what there is")
    return parser.parse_args()


def main() -> None:
    """Make what is missing, then add up."""
    options = read_options()
    until_s = None if options.limit_s is None else time.monotonic() + options.limit_s - closing_s
    options.rows.parent.mkdir(parents=True, exist_ok=True)
    written = options.rows.read_text().splitlines() if options.rows.exists() else []
    rows = [json.loads(line) for line in written]
    with tempfile.TemporaryDirectory(prefix="labelled-") as place:
        keep = (options.keep or Path(place)).resolve()
        try:
            if options.rediagnose:
                rediagnose(rows, options, keep)
            else:
                make_missing(rows, options, keep, until_s)
        finally:
            if options.archive:
                pack(sorted(path.parent for path in keep.glob(f"*/{kept[-1]}")), options.archive)
    document = write_result(options.out, "labelled_suite", score(rows))
    print(json.dumps({key: document[key] for key in ("accuracy", "healthy", "remedies")}, indent=1))


if __name__ == "__main__":
    main()
