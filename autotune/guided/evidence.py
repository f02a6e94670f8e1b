"""What the trials of a history say, as plain data over the rows of a table.

Knows nothing of models.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from autotune.guided.belief import Reading
from autotune.guided.table import Table
from autotune.history import dependable_runs, explored
from autotune.telemetry import FailureKind, MemoryFigures, Telemetry
from autotune.trial import Trial

_normal_90: Final = 1.6449
unsaid_deviation: Final = 0.005  # of a rate within its run, where the run does not say
full_share: Final = 0.95  # of a place's memory: a soak that took more is too close to the edge


@dataclass(frozen=True, slots=True)
class Run:
    """One comparable run of a row."""

    row: int
    told: Telemetry


@dataclass(frozen=True)
class Evidence:
    """All trials that are over, by what they say."""

    runs: tuple[Run, ...]
    counts: Mapping[int, int]  # comparable runs of each row
    first: Mapping[int, Trial]  # of each row that may be recommended, the trial its repeats belong to
    starved: Mapping[
        int, Mapping[str, MemoryFigures]
    ]  # rows that ran out of memory, with what they held then
    failed: frozenset[int]  # rows that failed or were unhealthy, for whatever reason
    memories: tuple[Mapping[str, MemoryFigures], ...]

    @classmethod
    def of(cls, table: Table, trials: Sequence[Trial]) -> Evidence:
        """From trials in the order of their numbers."""
        known = [(row, trial) for trial in trials if (row := table.row(trial.values)) is not None]
        runs = [Run(row, t.measurement) for row, t in known if t.is_candidate and t.measurement is not None]
        counts: dict[int, int] = {}
        for run in runs:
            counts[run.row] = counts.get(run.row, 0) + 1
        soaks = {row: _took(trial) for row, trial in known if trial.soak and trial.state.is_over}
        crowded = {row for row, share in soaks.items() if share is None or share > full_share}
        dependable = [run[0] for run in dependable_runs(trials).values()]
        first = {
            row: t for t in dependable if (row := table.row(t.values)) is not None and row not in crowded
        }
        tried = {row for t in explored(trials) if (row := table.row(t.values)) is not None}
        return cls(
            runs=tuple(runs),
            counts=counts,
            first=first,
            starved={
                row: t.memory for row, t in known if t.failure is FailureKind.out_of_memory and not t.soak
            },
            failed=frozenset(tried - set(first)),
            memories=tuple(t.measurement.memory if t.measurement else t.memory for _, t in known),
        )

    def readings(self, table: Table) -> list[Reading]:
        """Every rate, and every ratio to a configuration beside."""
        found = []
        for run in self.runs:
            found.append(Reading(run.row, math.log(run.told.tokens_per_s), _within(run.told)))
            beside = run.told.beside
            other = table.row(beside.values) if beside is not None else None
            if beside is not None and other is not None and other != run.row:
                found.append(Reading(run.row, beside.log_ratio, beside.deviation, other))
        return found


def _within(told: Telemetry) -> float:
    if told.low is None or told.high is None or not 0 < told.low < told.high:
        return unsaid_deviation
    return math.log(told.high / told.low) / (2 * _normal_90)


def _took(soak: Trial) -> float | None:
    """The fullest place's share of its memory, 0 where no limit is known; None: it failed."""
    if soak.measurement is None:
        return None
    figures = soak.measurement.memory.values()
    return max((each.peak_bytes / each.limit_bytes for each in figures if each.limit_bytes), default=0.0)
