"""The searcher without a model: the order of new configurations and repeats.

Everything follows from the trials alone, so a search that was stopped anywhere goes on as if it had not
been. Pure functions; knows nothing of running or storing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from autotune.effort import Effort
from autotune.history import History, explored, find_contenders
from autotune.proposals import propose
from autotune.searcher import Stop, Task
from autotune.space import Space
from autotune.trial import Trial


class Agenda:
    """The searcher without a model: remedies, neighbours, TPE, then repeats."""

    def next(self, history: History) -> Task | Stop:
        """The next run to make, or why there is none."""
        space, effort = history.space, history.effort
        tried = explored(history.trials)
        if len(tried) < effort.trials:
            proposal = propose(space, tried)
            if proposal is not None:
                return Task(values=proposal.values, why=proposal.why)
        return _repeat(history) or Stop(_describe_stop(space, tried, effort))


def _describe_stop(space: Space, tried: Sequence[Trial], effort: Effort) -> str:
    if len(tried) >= space.size:
        return "the space is exhausted"
    if len(tried) < effort.trials:
        left = space.size - len(tried)
        return f"the space is exhausted: {left} more would run out of memory, as smaller ones did"
    return "the effort is spent"


def _repeat(history: History) -> Task | None:
    """Repeats in mirrored order (A B C, C B A, …), so that a drift of the machine weighs on all alike."""
    contenders = find_contenders(history.space, history.trials)
    if len(contenders) < 2:
        return None
    done = Counter(trial.repeat_of for trial in history.trials if trial.state.is_over)
    for turn in range(history.effort.repeats):
        for trial in contenders[:: -1 if turn % 2 else 1]:
            if done[trial.number] <= turn:
                why = f"repeat {turn + 1} of trial {trial.number}"
                return Task(values=trial.values, why=why, repeat_of=trial.number)
    return None
