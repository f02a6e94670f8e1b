"""How often a forecast's 90 % interval holds the truth: drawn pipelines that are not quite what it assumes.

A truth is drawn: costs, fluctuation, targets of slightly unequal speed, work not quite affine in tokens,
links not as declared, a price for summing gradients. It is played for as many windows as a short run has, and
fitted. Then something is changed, the forecast is asked, and the truth is played on: covered, or not.

    python benchmarks/forecast_coverage.py --out DIR [--cases 2000]
"""

from __future__ import annotations

import argparse
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from benchmarks.result_file import write_result
from profiler.forecast.model import Line, PipelineModel, Windows, hops, lay_windows
from profiler.forecast.observations import Batches, Observations
from profiler.forecast.predictor import Prediction, Predictor
from profiler.forecast.setting import Setting
from profiler.forecast.simulation import Played, simulate
from profiler.throughput import resample_rates

Random = np.random.Generator
base_tokens = 1000.0  # of a batch, about which work is affine


@dataclass(frozen=True)
class Case:
    """A truth, what is seen of it, and what is asked."""

    truth: PipelineModel
    bend: float  # work goes with tokens to the power of 1 + bend
    now: Setting
    then: Setting
    windows: int  # played of each
    declared: dict[str, Line]
    seed: int


@dataclass(frozen=True)
class Answer:
    """What was forecast, and what was true."""

    prediction: Prediction
    truth_tokens_per_s: float

    @property
    def covered(self) -> bool:
        return self.prediction.low <= self.truth_tokens_per_s <= self.prediction.high

    @property
    def error(self) -> float:
        return self.prediction.tokens_per_s / self.truth_tokens_per_s - 1.0


def draw_case(seed: int) -> Case:
    """A pipeline and a change to it."""
    random = np.random.default_rng(seed)
    forward, backward = random.uniform(0.3, 1.0), random.uniform(0.1, 0.6)
    links = {hop: Line(1e-4, random.uniform(0.02, 0.4) / base_tokens) for way in hops.values() for hop in way}
    count = int(random.integers(3, 8))
    truth = PipelineModel(
        pack=Line(0.0, random.uniform(5e-6, 4e-5)),
        forward=_split(random, forward),
        backward=_split(random, backward),
        target_extra=Line(random.uniform(0, 0.02)),
        drafter_extra=Line(random.uniform(0, 0.02)),
        step_s=random.uniform(0.02, 0.3),
        merge_s=random.uniform(0, 0.03) * backward * count,
        noise={"target": random.uniform(0.02, 0.1), "drafter": random.uniform(0.02, 0.1), "step": 0.05},
        target_factors=tuple(random.normal(1.0, 0.01, 8)),
        links=links,
        token_bytes=1.0,
        windows=_draw_windows(random, count),
    )
    now = _draw_setting(random)
    declared = {hop: line.times(float(np.exp(random.normal(0, 0.03)))) for hop, line in links.items()}
    return Case(
        truth=truth,
        bend=random.normal(0.0, 0.04),
        now=now,
        then=_change(random, now),
        windows=int(random.integers(20, 40)),
        declared=declared,
        seed=seed,
    )


def _split(random: Random, seconds: float) -> Line:
    """So many seconds for a usual batch, a part of them whatever its tokens."""
    fixed = random.uniform(0.02, 0.4)
    return Line(fixed * seconds, (1 - fixed) * seconds / base_tokens)


def _draw_windows(random: Random, count: int) -> Windows:
    spread = random.uniform(0.0, 0.08)
    return tuple(tuple(base_tokens * random.uniform(1 - spread, 1, count)) for _ in range(12))


def _draw_setting(random: Random) -> Setting:
    targets, drafters = int(random.integers(1, 5)), int(random.integers(1, 3))
    return Setting(
        target_places=tuple(range(targets)),
        drafter_places=tuple(range(targets, targets + drafters)),
        shared_queue=bool(random.random() < 0.3),
        path=str(random.choice(["pageable", "pinned", "peer"])),
        dispatch=str(random.choice(["round_robin", "least_depth"])),
        depth=int(random.integers(1, 5)),
        token_budget=int(base_tokens),
        window_tokens=1,
    )


def _change(random: Random, now: Setting) -> Setting:
    """One or two things another way."""
    then = now
    for kind in random.choice(["split", "way", "depth", "budget", "queue"], int(random.integers(1, 3))):
        if kind == "split":
            targets, drafters = int(random.integers(1, 6)), int(random.integers(1, 4))
            places = tuple(range(targets)), tuple(range(targets, targets + drafters))
            then = replace(then, target_places=places[0], drafter_places=places[1])
        elif kind == "way":
            then = replace(then, path=str(random.choice(["pageable", "pinned", "peer"])))
        elif kind == "depth":
            then = replace(then, depth=int(random.integers(1, 9)))
        elif kind == "budget":
            then = replace(then, token_budget=int(base_tokens * random.choice([0.5, 0.7, 1.5, 2.0])))
        else:
            then = replace(then, shared_queue=not then.shared_queue)
    return then


def play_truth(case: Case, setting: Setting, seed: int) -> Played:
    """The truth in a setting: its work bent at the sizes that the setting's batches have."""
    windows = lay_windows(case.truth, setting, case.now)
    size = float(np.mean([tokens for window in windows for tokens in window]))
    bent = (size / base_tokens) ** case.bend
    truth = replace(
        case.truth, forward=case.truth.forward.times(bent), backward=case.truth.backward.times(bent)
    )
    return simulate(truth, setting, windows, count=case.windows, seed=seed)


def observe_played(case: Case, played: Played) -> Observations:
    """What a run of the truth would have told."""
    frame = pd.DataFrame(played.samples, columns=["stage", "index", "window", "tokens", "seconds"])
    samples = {}
    for stage in ("prefetch", "target", "drafter"):
        mine = frame[frame["stage"] == stage]
        tokens, seconds = mine["tokens"].to_numpy(dtype=float), mine["seconds"].to_numpy(dtype=float)
        samples[stage] = Batches(mine["index"].to_numpy(), tokens, seconds, np.zeros(len(mine)))
    rates = resample_rates(pd.DataFrame({"tokens": played.tokens, "seconds": played.seconds}))
    merge_s = case.truth.merge_s if case.now.drafters > 1 else None
    used = hops[case.truth.way(case.now)]
    return Observations(
        setting=case.now,
        samples=samples,
        windows=case.truth.windows,
        tokens_per_s=played.tokens_per_s,
        deviation=float(rates.std() / rates.mean()),
        target_extra=case.truth.target_extra,
        drafter_extra=case.truth.drafter_extra,
        step_s=float(np.mean(played.steps_s)) - (merge_s or 0.0) * (case.now.drafters - 1),
        merge_s=merge_s,
        links={**case.declared, **{hop: case.truth.links[hop] for hop in used}},
        measured_hops=frozenset(used),
        token_bytes=1.0,
        cores=None,
    )


def answer(case: Case) -> Answer:
    """Fit on the one, forecast the other, and look."""
    seen = observe_played(case, play_truth(case, case.now, 2 * case.seed))
    prediction = Predictor([seen]).predict(case.then)
    return Answer(prediction, play_truth(case, case.then, 2 * case.seed + 1).tokens_per_s)


def main() -> None:
    """Write forecast_coverage.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--cases", type=int, default=2000)
    options = parser.parse_args()
    begin = time.monotonic()
    answers = [answer(draw_case(seed)) for seed in range(options.cases)]
    errors = np.abs([one.error for one in answers])
    widths = [np.log(one.prediction.high / one.prediction.low) / 2 for one in answers]
    result = {
        "cases": len(answers),
        "covered_share": float(np.mean([one.covered for one in answers])),
        "median_error": float(np.median(errors)),
        "p90_error": float(np.quantile(errors, 0.9)),
        "median_half_width": float(np.median(widths)),
        "seconds": time.monotonic() - begin,
    }
    write_result(options.out / "forecast_coverage.json", "forecast_coverage", result)


if __name__ == "__main__":
    main()
