"""What would be recommended if the search stopped now, from the runs alone.

A configuration is scored on all its runs, not on the run that made it stand out: the fastest of several noisy
runs is in part the luckiest. Pure functions; knows nothing of searchers or of rendering.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from autotune.comparison import Interval, Noise, Rate, compare, measure_fresh_noise, measure_noise, pool
from autotune.history import History, dependable_runs, find_contenders, find_start
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

    Whatever the opinion, what failed, is unhealthy or did not get through its soak is not recommended, nor
    what is surely slower than another in fresh processes.
    """
    return _by_finals(history, _by_opinion(searcher, history))


def _by_opinion(searcher: Searcher, history: History) -> Trial | None:
    if isinstance(searcher, Recommending):
        chosen = searcher.recommend(history)
        if chosen is None or chosen.number in dependable_runs(history.trials):
            return chosen
    rates = find_rates(history.trials)
    return find_fastest(history, rank(history.trials, rates, measure_noise(rates)))


def _by_finals(history: History, chosen: Trial | None) -> Trial | None:
    """Among those that had their finals: the others' rates are of processes of another kind."""
    if chosen is None:
        return None
    late = finals_since_last_new(history.trials)
    rates = {n: each for n, each in find_rates(history.trials, fresh=True).items() if n in late}
    start = find_start(history.space, history.trials)
    if not set(rates) - {None if start is None else start.number}:
        return chosen
    noise = measure_fresh_noise(rates)
    fastest = rank(history.trials, rates, noise)[0].trial
    if chosen.number not in rates:
        return fastest
    sure = compare(rates[fastest.number], rates[chosen.number], noise).low > 1.0
    return fastest if sure else chosen


def finals_since_last_new(trials: Sequence[Trial]) -> set[int | None]:
    """First trials of the configurations that ran in fresh processes since something new was tried."""
    newest = max((trial.number for trial in trials if trial.repeat_of is None), default=0)
    return {trial.repeat_of for trial in trials if trial.fresh and trial.number > newest}


def find_rates(trials: Sequence[Trial], *, fresh: bool | None = None) -> dict[int, list[Rate]]:
    """{number of the first trial: rates of all its runs} of the configurations that may be compared.

    `fresh`: only of runs for which a process of their own was asked, or only of the others.
    """
    rates = {
        number: [
            Rate(run.measurement.tokens_per_s, run.measurement.low, run.measurement.high)
            for run in runs
            if run.measurement is not None and run.is_candidate and fresh in (None, run.fresh)
        ]
        for number, runs in dependable_runs(trials).items()
    }
    return {number: found for number, found in rates.items() if found}


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
