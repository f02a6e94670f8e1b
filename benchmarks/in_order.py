"""A searcher whose runs are known beforehand, for pages and tests that are about the search around it.

Knows nothing of what it measures.
"""

from __future__ import annotations

from collections import Counter

from autotune.history import History, explored, find_contenders
from autotune.searcher import Stop, Task


class InOrder:
    """The start, the others in the order of the space, then contenders again (A B C, C B A, …)."""

    def next(self, history: History) -> Task | Stop:
        """The next run to make, or why there is none."""
        space, effort = history.space, history.effort
        tried = explored(history.trials)
        if len(tried) < effort.trials:
            taken = {space.point(trial.values) for trial in tried}
            for values in (space.baseline, *space.configurations):
                if space.point(values) not in taken:
                    return Task(values=values, why="its turn")
        reason = "the space is exhausted" if len(tried) >= space.size else "the effort is spent"
        return _repeat(history) or Stop(reason)


def _repeat(history: History) -> Task | None:
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
