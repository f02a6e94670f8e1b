"""What would be recommended if the search stopped now, from the runs alone.

A configuration is scored on all its runs, not on the run that made it stand out: the fastest of several noisy
runs is in part the luckiest. Pure functions; knows nothing of searchers or of rendering.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.comparison import Interval, Noise, Rate, measure_noise, pool
from autotune.history import History, dependable_runs, find_contenders
from autotune.searcher import Recommending, Searcher
from autotune.trial import Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """A configuration over all its runs."""

    trial: Trial  # its first
    runs: int
    tokens_per_s: Interval


def recommend(searcher: Searcher, history: History) -> Trial | None:
    """The first trial of the recommended configuration, by the searcher's opinion where it has one.

    Whatever the opinion, what failed, is unhealthy or did not get through its soak is not recommended.
    """
    if isinstance(searcher, Recommending):
        chosen = searcher.recommend(history)
        if chosen is None or chosen.number in dependable_runs(history.trials):
            return chosen
    rates = find_rates(history.trials)
    return find_fastest(history, rank(history.trials, rates, measure_noise(rates)))


def find_rates(trials: Sequence[Trial]) -> dict[int, list[Rate]]:
    """{number of the first trial: rates of all its runs} of the configurations that may be compared."""
    return {
        number: [
            Rate(run.measurement.tokens_per_s, run.measurement.low, run.measurement.high)
            for run in runs
            if run.measurement is not None and run.is_candidate
        ]
        for number, runs in dependable_runs(trials).items()
    }


def rank(trials: Sequence[Trial], rates: Mapping[int, list[Rate]], noise: Noise) -> tuple[Standing, ...]:
    """Comparable configurations, fastest first."""
    standings = [
        Standing(trial=trial, runs=len(rates[trial.number]), tokens_per_s=pool(rates[trial.number], noise))
        for trial in trials
        if trial.number in rates
    ]
    return tuple(sorted(standings, key=lambda standing: -standing.tokens_per_s.mid))


def find_fastest(history: History, standings: Sequence[Standing]) -> Trial | None:
    """The fastest contender: a configuration that ran once does not beat one that was confirmed."""
    contenders = {trial.number for trial in find_contenders(history.space, history.trials)}
    return next((s.trial for s in standings if s.trial.number in contenders), None)
