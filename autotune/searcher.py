"""What proposes the next run: the seam between a study and whatever has an opinion on configurations.

A searcher is a pure function of the history, so that a search that was stopped anywhere goes on as if it had
not been. Knows nothing of running or storing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from autotune.history import History
from autotune.telemetry import Values
from autotune.trial import Prediction, Trial


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """One run to make."""

    values: Values
    why: str
    seconds: float | None = None  # of training; None: the effort's
    repeat_of: int | None = None  # the trial whose configuration is measured again
    retry_of: int | None = None  # the trial in whose place it runs
    fresh: bool = False  # in a new process, nothing reused
    soak: bool = False  # over the worst mix of lengths, to see the memory's peak
    beside: Values | None = None  # interleaved with this configuration, where the runner can
    predicted: Prediction | None = None


@dataclass(frozen=True, slots=True)
class Stop:
    """The search is done."""

    reason: str
    gap_probability: float | None = None  # that something untried is better by more than the tolerance


class Searcher(Protocol):
    """Proposes runs. The same history always gives the same answer."""

    def next(self, history: History) -> Task | Stop:
        """The next run to make, or why there is none."""
        ...


@runtime_checkable
class Recommending(Protocol):
    """A searcher with an opinion of its own on what should be recommended."""

    def recommend(self, history: History) -> Trial | None:
        """The first trial of the recommended configuration; None while there is nothing to recommend."""
        ...


@runtime_checkable
class Doubting(Protocol):
    """A searcher that knows how likely it is that something better was missed, whatever ended the search."""

    def gap_chance(self, history: History) -> float | None:
        """That something untried is better by more than the tolerance; None while that cannot be said."""
        ...
