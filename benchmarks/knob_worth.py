"""Whether what a study says of its knobs agrees with ablations: the winner with one knob set back, run.

    python benchmarks/knob_worth.py --out FILE.json [--sets normal,hard] [--seeds 20] [--trials 20]
    python benchmarks/knob_worth.py --out FILE.json --paced [--seconds 5] [--repeats 3]

The first searches simulated problems (benchmarks/tuner_suite.py), where the truth about every configuration
is known: signs, order and intervals are held against it. The second searches logical devices that take their
time by sleeping, then runs the winner and each ablation `--repeats` times in turn, in mirrored order. A sign
is that of a knob that is said to pay or to cost; an order that of two knobs between which one is said to be
worth more. An ablation decides only where its own interval leaves out no difference at all.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from autotune.comparison import t_quantile
from autotune.default_searcher import default_searcher
from autotune.default_space import make_space
from autotune.effort import Effort
from autotune.in_place import InPlaceRunner
from autotune.lessons.knob_worth import KnobWorth, KnobWorths, value_knobs
from autotune.machine import read_machine
from autotune.search import SearchPlan, search
from autotune.study import Study
from autotune.telemetry import Outcome, Telemetry, Values
from benchmarks.result_file import write_result
from benchmarks.tuner_suite import Problem, sets
from benchmarks.tuning_case import TuningCase

small: Final = 0.03  # of a logarithm: "no difference" is right below it
choices: Final[dict[str, tuple[Any, ...]]] = {
    "pipeline.split": ("1-1", "2-1", "1-2"),
    "pipeline.token_budget": (64, 128, 256),
    "transport.preset": ("host", "pinned", "peer"),
    "transport.depth": (1, 2),
    "pipeline.prefetch_depth": (1, 2),
}
start: Final = (
    "transport=host",
    "pipeline.token_budget=64",
    "transport.depth=1",
    "pipeline.prefetch_depth=1",
)
Row = dict[str, Any]
Truth = Mapping[str, tuple[float, float]]  # by knob: log(winner ÷ ablation), and how far off it may be


def compare(worths: KnobWorths, truth: Truth) -> Row:
    """How many of the signs, orders and intervals told are right, of those that the truth decides."""
    told = [worth for worth in worths.knobs if worth.is_change and worth.path in truth]
    judged = [_judge(worth, *truth[worth.path]) for worth in told if worth.ratio is not None]
    pairs = [(a, b) for a, b in worths.order if a in truth and b in truth]
    gaps = [(truth[a][0] - truth[b][0], math.hypot(truth[a][1], truth[b][1])) for a, b in pairs]
    order = [gap > 0 for gap, doubt in gaps if abs(gap) > doubt]
    return {
        "knobs": judged,
        "order_right": sum(order),
        "order_told": len(order),
        "order_undecided": len(gaps) - len(order),
        "left_out_error": worths.error,
        "left_out_inside": worths.inside,
    }


def _judge(worth: KnobWorth, truth: float, doubt: float) -> Row:
    assert worth.ratio is not None
    sign = {"faster": 1, "slower": -1}.get(worth.verdict)
    right: bool | None = None
    if sign is not None and abs(truth) > doubt:
        right = sign * truth > 0
    elif worth.verdict == "no difference" and doubt < small:
        right = abs(truth) < small + doubt
    low, high = math.log(worth.ratio.low), math.log(worth.ratio.high)
    return {
        "knob": worth.path,
        "verdict": worth.verdict,
        "told_log_ratio": round(math.log(worth.ratio.mid), 4),
        "low": round(low, 4),
        "high": round(high, 4),
        "true_log_ratio": round(truth, 4),
        "true_doubt": round(doubt, 4),
        "right": right,
        "inside": low - doubt <= truth <= high + doubt,
        "ran": worth.runs,
    }


def search_problem(kind: str, seed: int, trials: int) -> Row | None:
    """One simulated search; None where it has no winner."""
    problem = Problem(kind, seed)
    study = Study(problem.space(), default_searcher(), problem.runner(), effort=Effort(trials=trials))
    study.run()
    winner = study.recommendation
    if winner is None:
        return None
    worths = value_knobs(problem.space(), study.trials, winner)

    def rate(values: Values) -> float:
        return math.log(problem.rates[problem.row(dict(values))])

    truth = {
        worth.path: (rate(winner.values) - rate({**winner.values, worth.path: worth.other}), 0.0)
        for worth in worths.knobs
        if worth.is_change and problem.why_not({**winner.values, worth.path: worth.other}) is None
    }
    return {"problem": problem.name, "runs": len(study.trials), **compare(worths, truth)}


def search_paced(choice: argparse.Namespace, root: Path) -> Row:
    """One search on sleeping devices, and its ablations."""
    case, machine = TuningCase(tiny=True, changes=start), read_machine()
    space = make_space(case.config(), machine, choices)
    effort = Effort(trials=choice.trials, repeats=2, seconds=choice.seconds)
    plan = SearchPlan(study_dir=root / "study", space=space, machine=machine, effort=effort)
    with InPlaceRunner(case.trainer, notice=print, canary_every=10**6) as runner:
        result = search(plan, runner, lambda event: print(event.kind, event.message, flush=True))
        if result.fastest is None:
            raise SystemExit("no configuration ran")
        winner = result.fastest.values
        worths = value_knobs(space, result.trials, result.fastest)
        back = {w.path: {**winner, w.path: w.other} for w in worths.knobs if w.is_change and w.ratio}

        def measure(number: int, values: Values) -> Outcome:
            return runner.run(case.request(root / "ablations", number, space.config(values), choice.seconds))

        rates = _ablate({"": winner, **back}, measure, choice.repeats)
    return {
        "winner": {path: str(value) for path, value in winner.items()},
        "runs": len(result.trials),
        "ablation_runs": sum(map(len, rates.values())),
        **compare(worths, _truths(rates)),
    }


def _ablate(
    points: Mapping[str, Values], measure: Callable[[int, Values], Outcome], repeats: int
) -> dict[str, list[float]]:
    """Log rates of the winner ("") and of each ablation; in mirrored order, so that drift weighs on all."""
    rates: dict[str, list[float]] = {name: [] for name in points}
    order = [name for turn in range(repeats) for name in list(points)[:: -1 if turn % 2 else 1]]
    for number, name in enumerate(order):
        told = measure(number, points[name])
        if isinstance(told, Telemetry):
            rates[name].append(math.log(told.tokens_per_s))
            print(f"{name or 'winner'}: {told.tokens_per_s:.0f} tokens/s", flush=True)
    return rates


def _truths(rates: Mapping[str, Sequence[float]]) -> Truth:
    """What ablations say of each knob, with the reach of a 90 % interval; noise is pooled over them all."""
    groups = [each for each in rates.values() if len(each) > 1]
    freedom = sum(len(each) - 1 for each in groups)
    if not freedom:
        return {}
    variance = sum(statistics.variance(each) * (len(each) - 1) for each in groups) / freedom
    top = rates[""]
    return {
        name: (
            statistics.fmean(top) - statistics.fmean(each),
            t_quantile(freedom) * math.sqrt(variance * (1 / len(top) + 1 / len(each))),
        )
        for name, each in rates.items()
        if name and each and top
    }


def sum_up(rows: Iterable[Row]) -> Row:
    """Shares over all rows."""
    rows = list(rows)
    knobs = [knob for row in rows for knob in row["knobs"]]
    judged = [knob["right"] for knob in knobs if knob["right"] is not None]
    told, right = sum(row["order_told"] for row in rows), sum(row["order_right"] for row in rows)
    known = sum(knob["verdict"] != "not known" for knob in knobs)
    large = [knob for knob in knobs if abs(knob["true_log_ratio"]) > max(0.05, knob["true_doubt"])]
    checked = [row["left_out_inside"] for row in rows if row["left_out_inside"]]
    return {
        "studies": len(rows),
        "knobs": len(knobs),
        "known_share": _share(known, len(knobs)),
        "known_share_of_effects_above_5_percent": _share(
            sum(knob["verdict"] != "not known" for knob in large), len(large)
        ),
        "verdicts_judged": len(judged),
        "verdicts_right_share": _share(sum(judged), len(judged)),
        "orders_judged": told,
        "orders_right_share": _share(right, told),
        "inside_90_share": _share(sum(knob["inside"] for knob in knobs), len(knobs)),
        "left_out_inside_90_share": _share(
            sum(inside for inside, _ in checked), sum(count for _, count in checked)
        ),
    }


def _share(count: int, total: int) -> float | None:
    return round(count / total, 4) if total else None


def main() -> None:
    """Search, compare, write one JSON file."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--sets", default="normal,hard")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--trials", type=int, default=20)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--paced", action="store_true", help="logical devices that sleep, and real ablations")
    parser.add_argument("--seconds", type=float, default=5.0, help="of training in a trial")
    parser.add_argument("--repeats", type=int, default=3, help="of the winner and of each ablation")
    choice = parser.parse_args()
    if choice.paced:
        with tempfile.TemporaryDirectory(prefix="knob-worth-") as root:
            rows = [search_paced(choice, Path(root))]
        write_result(choice.out, "knob_worth", {"on": "paced logical devices", **sum_up(rows), "rows": rows})
        return
    named = [name for name in choice.sets.split(",") if name in sets]
    asked = [(sets[name][0], seed) for name in named for seed in list(sets[name][1])[: choice.seeds]]
    with ProcessPoolExecutor(choice.jobs) as pool:
        found = pool.map(search_problem, *zip(*asked, strict=True), [choice.trials] * len(asked))
        rows = [{"kind": kind, **row} for (kind, _), row in zip(asked, found, strict=True) if row]
    kinds = sorted({row["kind"] for row in rows})
    by_kind = {kind: sum_up(row for row in rows if row["kind"] == kind) for kind in kinds}
    write_result(
        choice.out, "knob_worth", {"on": "simulated problems", **sum_up(rows), "kinds": by_kind, "rows": rows}
    )


if __name__ == "__main__":
    main()
