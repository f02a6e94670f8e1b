"""How right what-if forecasts are: fitted on one real run on logical devices, held against runs of others.

    python benchmarks/whatif_accuracy.py --out DIR [--workers 8] [--limit-s 200] [--parts targets ...]

Three families of about 25 settings: `targets` and `drafters`, which limit at a pace kept by sleeping, and
`computed` at the CPU's own. A family's base runs first and every other setting is forecast from it, on disk,
before it runs. Afterwards each run of a family is the base once, for all the others. `fixes`: sick runs
(a planted fault), the fixes that the diagnosis and plain knobs offer, ranked by forecast, and each measured;
a fix that no knob makes is measured by the healthy run.

Workers have two cores each; other load on the machine is what no forecast can know. Bases run three times,
which tells the noise. Runs stay in DIR/runs (and in DIR/runs.tar.xz); a second call makes only what is
missing there, and forecasts anew.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.pinned_pool import open_pool
from benchmarks.recorded_run import pack
from benchmarks.result_file import write_result
from benchmarks.whatif_cases import Case, Family, families, other_fixes, sick_cases, still_sick
from benchmarks.whatif_runs import diagnose_sick, forecast, measure, neutral_knobs
from benchmarks.whatif_score import judge, judge_ranking, score, score_rankings
from profiler.forecast.what_if import asked

parts: Final = (*families, "fixes")
base_runs: Final = 3  # for what noise there is
spare_s: Final = 12.0  # of the limit: a run that has begun, and the sums
Row = dict[str, Any]


class Page:
    """What was measured and forecast so far. Rows go to rows.jsonl as they come."""

    def __init__(self, options: argparse.Namespace, pool: ProcessPoolExecutor) -> None:
        self.options, self.pool = options, pool
        self.runs: Path = options.out / "runs"
        self.runs.mkdir(parents=True, exist_ok=True)
        self.rows = options.out / "rows.jsonl"
        self.until_s = time.monotonic() + options.limit_s - spare_s
        self.measured: dict[str, Row] = {}  # by the case's name
        self.expected: dict[str, float] = {}
        self.late = 0

    def keep(self, kind: str, row: Row) -> None:
        """A line in rows.jsonl."""
        with self.rows.open("a") as file:
            file.write(json.dumps({"kind": kind, **row}) + "\n")

    def gather(self, call: Callable[..., Row], jobs: Iterable[tuple[Any, ...]]) -> Iterable[Row]:
        """Rows of all jobs as they come; what fails, or would begin too late, is said and left out."""
        futures = {self.pool.submit(_in_time, self.until_s, call, job): job for job in jobs}
        for future in as_completed(futures):
            problem = future.exception()
            if problem is not None:
                print(f"{futures[future][0]}: {type(problem).__name__}: {problem}", flush=True)
            elif (row := future.result()) is None:
                self.late += 1
            else:
                yield row

    def measure(self, cases: Iterable[Case]) -> None:
        """Run what was not run yet."""
        missing = {case.name: case for case in cases if case.name not in self.measured}
        jobs = [
            (case, self.runs, self.options.seconds, self.expected.get(name)) for name, case in missing.items()
        ]
        for row in self.gather(measure, jobs):
            self.measured[row["name"]] = row
            self.keep("run", row)
            rate = row["measured"]
            print(f"{row['name']}: {row['reason'] if rate is None else f'{rate:,.0f} tokens/s'}", flush=True)

    def forecast(self, wanted: Mapping[str, Iterable[Case]]) -> dict[str, Row]:
        """By the name of the base: forecasts of cases by their names."""
        jobs = [
            (self.runs / base, {case.name: neutral_knobs(case, asked) for case in cases})
            for base, cases in wanted.items()
            if self.rate(base) is not None
        ]
        found = {}
        for row in self.gather(forecast, jobs):
            self.keep("forecasts", row)
            found[row["base"]] = row["forecasts"]
            for name, prediction in row["forecasts"].items():
                self.expected.setdefault(name, prediction["predicted"])
        return found

    def rate(self, name: str) -> float | None:
        """Measured tokens/s of a case."""
        row = self.measured.get(name)
        return None if row is None else row["measured"]

    def held(self, base: str, forecasts: Mapping[str, Row]) -> list[Row]:
        """Forecasts beside what was measured."""
        rows = [
            {"base": base, "setting": name, **prediction, "measured": self.rate(name)}
            for name, prediction in forecasts.items()
        ]
        return [{**row, **judge(row)} for row in rows]


def _in_time(until_s: float, call: Callable[..., Row], arguments: tuple[Any, ...]) -> Row | None:
    return None if time.monotonic() > until_s else call(*arguments)


def measure_families(page: Page, chosen: Mapping[str, Family]) -> dict[str, Row]:
    """Bases, forecasts of all others, and then these. Returns the forecasts, by base."""
    page.measure(again for family in chosen.values() for again in _repeats(family.base))
    ahead = page.forecast({family.base.name: family.cases for family in chosen.values()})
    page.measure(case for family in chosen.values() for case in family.cases)
    return ahead


def _repeats(base: Case) -> list[Case]:
    return [replace(base, repeat=number) for number in range(base_runs)]


def hold_families(page: Page, chosen: Mapping[str, Family], ahead: Mapping[str, Row]) -> dict[str, Any]:
    """Every run as a base for all others of its family, and the sums."""
    wanted = {
        one.name: [case for case in (family.base, *family.cases) if case != one]
        for family in chosen.values()
        for one in family.cases
    }
    afterwards = page.forecast(wanted) if page.options.all_bases else {}
    result = {}
    for name, family in chosen.items():
        base = family.base.name
        found = [page.rate(case.name) for case in _repeats(family.base)]
        rates = [rate for rate in found if rate is not None]
        rows = page.held(base, ahead.get(base, {}))
        others = {case.name: page.held(case.name, afterwards.get(case.name, {})) for case in family.cases}
        rankings = [judge_ranking(key, mine) for key, mine in [(base, rows), *others.items()]]
        result[name] = {
            "from_the_base": score(rows, rates),
            "from_every_run": score([row for mine in others.values() for row in mine], rates),
            "first_ranked": score_rankings([r for r in rankings if r is not None]),
            "base_rates": rates,
            "rows": rows,
        }
    return result


def hold_fixes(page: Page, strengths: int) -> dict[str, Any]:
    """Sick runs, fixes ranked, each fix measured."""
    sick = {case.name: (fault, case) for fault, case in sick_cases(strengths)}
    page.measure(case for _, case in sick.values())
    known = {name: pair for name, pair in sick.items() if page.rate(name) is not None}
    plain = {
        name: [fixed for fix in other_fixes if (fixed := still_sick(case, fix)) is not None]
        for name, (_, case) in known.items()
    }
    forecasts = page.forecast(plain)
    causes = {
        row["base"]: row["causes"] for row in page.gather(diagnose_sick, [(page.runs / n,) for n in known])
    }
    fixes = {
        name: list(_fixes(page, known[name][1], forecasts.get(name, {}), causes.get(name, [])))
        for name in known
    }
    for mine in fixes.values():
        page.expected.update({fix["setting"]: fix["predicted"] for fix in mine})
    page.measure(fix["case"] for mine in fixes.values() for fix in mine)
    rows, rankings = [], []
    for name, mine in fixes.items():
        held = [
            {"fault": known[name][0], "base": name, **{k: v for k, v in fix.items() if k != "case"}}
            | {"measured": page.rate(fix["setting"])}
            for fix in mine
        ]
        rows += held
        ranking = judge_ranking(name, held, now=page.rate(name))
        if ranking is not None:
            rankings.append({"fault": known[name][0], **ranking})
    return {"first_ranked": score_rankings(rankings), "rankings": rankings, "rows": rows}


def _fixes(page: Page, case: Case, forecasts: Mapping[str, Row], causes: list[Row]) -> Iterable[Row]:
    """What may be done about a sick run: the remedies of its causes, then plain knobs."""
    now = page.rate(case.name)
    assert now is not None
    offered: dict[str, Row] = {}
    for cause in causes:
        if cause["gain"] is None:
            continue
        knobs = " ".join(f"{knob}={value}" for knob, value in cause["knobs"].items())
        fixed = still_sick(case, knobs) if knobs else Case("none:0", case.changes)
        if fixed is None:
            continue
        row = {"fix": cause["cause"], "knobs": knobs, "predicted": now * (1 + cause["gain"])}
        offered.setdefault(fixed.name, {"case": fixed, "setting": fixed.name, **row})
    for change in other_fixes:
        changed = still_sick(case, change)
        if changed is not None and changed.name in forecasts:
            row = {"fix": change, "knobs": change, "predicted": forecasts[changed.name]["predicted"]}
            offered.setdefault(changed.name, {"case": changed, "setting": changed.name, **row})
    yield from offered.values()


def main() -> None:
    """Write whatif_accuracy.json."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="of the whole page")
    parser.add_argument("--seconds", type=float, default=5.0, help="of a run, about")
    parser.add_argument("--parts", nargs="+", choices=parts, default=list(parts))
    parser.add_argument("--strengths", type=int, default=1, choices=(1, 2, 3), help="of each fault")
    parser.add_argument("--all-bases", action=argparse.BooleanOptionalAction, default=True)
    options = parser.parse_args()
    began_s = time.monotonic()
    figures: dict[str, Any] = {}
    chosen = {name: family for name, family in families.items() if name in options.parts}
    with open_pool(options.workers) as pool:
        page = Page(options, pool)
        ahead = measure_families(page, chosen)
        if "fixes" in options.parts:
            figures["fixes"] = hold_fixes(page, options.strengths)
        figures |= hold_families(page, chosen, ahead)
    pack(page.runs, options.out / "runs.tar.xz")
    facts = {"workers": options.workers, "seconds": options.seconds, "left_out_for_time": page.late}
    facts["took_s"] = round(time.monotonic() - began_s, 1)
    write_result(options.out / "whatif_accuracy.json", "whatif_accuracy", {**facts, **figures})
    for name, part in figures.items():
        told = {key: value for key, value in part.items() if key not in ("rows", "rankings")}
        print(name, json.dumps(told, indent=1), flush=True)


if __name__ == "__main__":
    main()
