"""The last comparison of a search: finalists run in fresh processes, in turn, until it is clear who leads.

What a process has of its own (where its memory lies, what it compiled) is part of what a recommendation will
meet, and a process that stays shows one of it. The recommended configuration, its closest rival and the start
run once each, then in reversed order, and so on; those runs decide the gain. Pure functions; knows nothing of
how they are run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from autotune.comparison import compare, measure_fresh_noise, measure_noise
from autotune.history import History, find_start
from autotune.recommendation import finals_since_last_new, find_rates, rank
from autotune.searcher import Task
from autotune.trial import Trial

most_finalists = 4  # since something new was tried: a lead that keeps changing hands is no lead


def plan_final(history: History, recommended: Trial | None) -> Task | None:
    """The next run of a finalist; None where nothing is open, or there is nobody to be compared with."""
    if recommended is None:
        return None
    finalists = find_finalists(history, recommended)
    late = finals_since_last_new(history.trials)
    if len(finalists) < 2 or (recommended.number not in late and len(late) >= most_finalists):
        return None
    done = Counter(t.repeat_of for t in history.trials if t.fresh and t.state.is_over)
    for turn in range(history.effort.repeats):
        # Only after whole rounds, so that a drift of the machine weighs on all alike.
        if (
            turn
            and all(done[trial.number] == turn for trial in finalists)
            and _is_decided(history, finalists)
        ):
            return None
        for trial in finalists[:: -1 if turn % 2 else 1]:
            if done[trial.number] <= turn:
                why = f"trial {trial.number} in a fresh process, round {turn + 1} of the finals"
                return Task(values=trial.values, why=why, repeat_of=trial.number, fresh=True)
    return None


def find_finalists(history: History, recommended: Trial) -> tuple[Trial, ...]:
    """The recommended one, the fastest that the search's noise does not tell from it, and the start."""
    rates = find_rates(history.trials, fresh=False)
    noise = measure_noise(rates)
    finalists = [recommended]
    for standing in rank(history.trials, rates, noise):
        number = standing.trial.number
        known = number != recommended.number and recommended.number in rates
        if known and not compare(rates[recommended.number], rates[number], noise).excludes(1.0):
            finalists.append(standing.trial)
            break
    start = find_start(history.space, history.trials)
    if start is not None and start.number in rates and start not in finalists:
        finalists.append(start)
    return tuple(finalists)


def _is_decided(history: History, finalists: Sequence[Trial]) -> bool:
    """Whether the first is told from each of the others, or is as fast but for less than the tolerance."""
    rates = find_rates(history.trials, fresh=True)
    noise = measure_fresh_noise(rates)
    if any(trial.number not in rates for trial in finalists):
        return False
    first, *others = (rates[trial.number] for trial in finalists)
    ratios = [compare(first, theirs, noise) for theirs in others]
    most = 1 + history.effort.tolerance
    return all(ratio.excludes(1.0) or (ratio.high < most and 1 / ratio.low < most) for ratio in ratios)
