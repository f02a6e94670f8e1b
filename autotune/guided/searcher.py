"""The searcher with a model: measures what is expected to win, until it is unlikely that better was missed.

The start, and a probe that differs in all that matters; then the best promise by the model; every third run a
contender again; at last the winner's neighbours. docs/search.md tells the rules. A function of the history.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autotune.guided.economy import Economy
from autotune.guided.model import Frame, Model, Parts
from autotune.guided.outlook import Outlook
from autotune.guided.threads import one_thread
from autotune.history import History, explored
from autotune.searcher import Stop, Task
from autotune.space import Space
from autotune.telemetry import Values
from autotune.trial import Prediction, Trial

probe_knobs: Final = ("pipeline.split", "pipeline.token_budget", "transport.preset")
split_knob: Final = "pipeline.split"
sure_to_fit: Final = 0.9  # chance, for a probe
gap_limit: Final = 0.1  # chance of something better by the tolerance, below which the search may end
near_end: Final = 0.3  # the same, below which open neighbours are looked at before anything else
least_runs: Final = 6  # before a search may end by itself
repeat_every: Final = 3
repeat_worth: Final = 0.5  # of what the best promise is worth, from which on a contender runs again
normal_90: Final = 1.6449
_decided: Final = 3.0  # deviations between two rates that need no further run


class GuidedSearcher:
    """The default searcher. What it keeps between calls: the space as arrays, and what it last thought."""

    def __init__(self, parts: Parts | None = None) -> None:
        self._parts = parts or Parts()
        self._frame: tuple[Space, Frame] | None = None
        self._last: tuple[tuple[Trial, ...], float, Outlook] | None = None

    def next(self, history: History) -> Task | Stop:
        """The next run to make, or why there is none."""
        with one_thread():
            outlook = self._outlook(history)
            return _Choice(outlook, history, self._parts).next()

    def recommend(self, history: History) -> Trial | None:
        """The first trial of the configuration that is thought the fastest of those that ran well."""
        with one_thread():
            outlook = self._outlook(history)
            return None if outlook.incumbent is None else outlook.model.evidence.first[outlook.incumbent]

    def gap_chance(self, history: History) -> float | None:
        """The chance that something untried is better by more than the tolerance, whatever the end was."""
        with one_thread():
            outlook = self._outlook(history)
            return None if outlook.incumbent is None else outlook.gap

    def _outlook(self, history: History) -> Outlook:
        if self._frame is None or self._frame[0] is not history.space:
            self._frame, self._last = (history.space, Frame.of(history.space)), None
        trials, tolerance = tuple(history.trials), history.effort.tolerance
        if self._last is not None and self._last[1] == tolerance and _same(self._last[0], trials):
            return self._last[2]
        outlook = Outlook(Model(self._frame[1], trials, self._parts), tolerance)
        self._last = (trials, tolerance, outlook)
        return outlook


def _same(ours: Sequence[Trial], theirs: Sequence[Trial]) -> bool:
    """Whether they are the very same trials, which never change."""
    return len(ours) == len(theirs) and all(map(operator.is_, ours, theirs))


class _Choice:
    """Of the next task, for one history."""

    def __init__(self, outlook: Outlook, history: History, parts: Parts) -> None:
        self._outlook, self._history, self._parts = outlook, history, parts
        self._model, self._evidence = outlook.model, outlook.model.evidence
        self._table = outlook.model.table
        self._economy = Economy.of(self._table, history.trials)
        self._start = self._table.row(history.space.baseline)
        self._most_runs = 1 + history.effort.repeats

    def next(self) -> Task | Stop:
        tried = explored(self._history.trials)
        if self._start is not None and self._untried(self._start) and not tried:
            return self._task(self._start, "the starting configuration")
        if self._outlook.incumbent is None:
            return self._anything()
        again = self._again()
        if again is not None and self._is_turn_of_repeat(again):
            return again
        if len(tried) >= self._history.effort.trials:
            return again or self._finish("the effort is spent")
        if self._is_sure():
            return self._finish("nothing better is likely")
        return self._new() or again or self._finish("nothing promising is left")

    def _new(self) -> Task | None:
        """A configuration not tried before."""
        cured = self._remedy()
        if cured is not None:
            return cured
        probe = None if self._is_calibrated or self._evidence.starved else self._probe()
        if probe is not None:
            return self._task(probe, f"a probe unlike the start in all that matters ({self._told(probe)})")
        promise, near = self._outlook.promise, self._outlook.open_neighbours
        if near and self._parts.certificate and self._outlook.gap < near_end:
            among = np.zeros(len(self._table))
            among[near] = promise[near]
            row = self._economy.choose(among)
            return self._task(row, f"a neighbour of {self._leader}: {self._told(row)}")
        row = self._economy.choose(promise)
        if promise[row] <= 0.0:
            return None
        return self._task(row, f"expected {self._told(row)}")

    def _anything(self) -> Task | Stop:
        """Nothing ran well yet: what is surest to fit."""
        open_rows = self._outlook.untried
        if len(explored(self._history.trials)) >= self._history.effort.trials:
            return Stop("the effort is spent")
        if not open_rows.any():
            return Stop("nothing is left that might run")
        row = int(np.argmax(np.where(open_rows, self._model.fits, -1.0)))
        return self._task(
            row, f"nothing ran well yet; this is the surest to fit ({self._model.fits[row]:.0%})"
        )

    def _remedy(self) -> Task | None:
        """What diagnosis would change about the fastest: its dearest cause that knobs can cure, once."""
        best = self._outlook.incumbent
        first = None if best is None else self._evidence.first[best]
        if first is None or first.measurement is None:
            return None
        cures = [cause for cause in first.measurement.causes if cause.remedy]
        rows = [(cause, self._table.row({**first.values, **cause.remedy})) for cause in cures]
        if any(row is not None and row != best and not self._untried(row) for _, row in rows):
            return None
        for cause, row in rows:
            if row is not None and self._outlook.promise[row] > 0.0:
                return self._task(row, f"the remedy for {cause.name} in trial {first.number}")
        return None

    @property
    def _is_calibrated(self) -> bool:
        """Whether configurations ran that tell more than the start alone: one unlike it, or several."""
        seen = list(self._evidence.first)
        return len(seen) > 2 or (len(seen) > 1 and bool(self._unlike_start[seen].any()))

    @cached_property
    def _unlike_start(self) -> NDArray[np.bool_]:
        """Rows that differ from the start in split, budget and transport."""
        table, start = self._table, self._start
        knobs = [k for k, axis in enumerate(table.axes) if axis.path in probe_knobs and len(axis.choices) > 1]
        if start is None or not knobs:
            return np.zeros(len(table), dtype=bool)
        unlike: NDArray[np.bool_] = (table.codes[:, knobs] != table.codes[start, knobs]).all(axis=1)
        return unlike

    def _probe(self) -> int | None:
        """The most promising row that surely fits and is unlike the start in all that matters."""
        surely = self._unlike_start & (self._model.fits >= sure_to_fit)
        promise = np.where(surely, self._outlook.promise, 0.0)
        row = int(np.argmax(promise))
        return row if promise[row] > 0.0 else None

    def _again(self) -> Task | None:
        """A contender once more, where it is open who leads."""
        row = self._outlook.rival(self._most_runs)
        if row is None:
            return None
        return self._task(row, f"trial {self._evidence.first[row].number} again, to see who leads")

    def _is_turn_of_repeat(self, task: Task) -> bool:
        """Every third run is one of a contender again, from the fifth on; every sixth if that is a start."""
        row = self._table.row(task.values)
        every = repeat_every if row is None or self._economy.is_near(row) else 2 * repeat_every
        over = [trial for trial in self._history.trials if trial.state.is_over]
        recent = over[-(every - 1) :]
        pays = self._outlook.worth_of_repeat >= repeat_worth * float(self._outlook.promise.max())
        return pays and len(over) > every and all(trial.repeat_of is None for trial in recent)

    def _is_sure(self) -> bool:
        over = sum(trial.state.is_over for trial in self._history.trials)
        looked = not self._outlook.open_neighbours or not self._parts.certificate
        return over >= least_runs and self._outlook.gap < gap_limit and looked

    def _finish(self, reason: str) -> Task | Stop:
        """The winner's gain over the start is made sure; then the end."""
        best, start = self._outlook.incumbent, self._start
        if best is None or start is None or start not in self._evidence.first or start == best:
            return Stop(reason, self._outlook.gap)
        mean, deviation = self._outlook.ahead(start)
        if abs(mean) < _decided * deviation:
            pair = sorted((start, best), key=lambda row: (self._evidence.counts[row], row == best))
            if self._evidence.counts[pair[0]] < self._most_runs:
                first = self._evidence.first[pair[0]]
                return self._task(pair[0], f"trial {first.number} again, to make sure of the gain")
        return Stop(reason, self._outlook.gap)

    @property
    def _leader(self) -> str:
        best = self._outlook.incumbent
        return "the start" if best is None else f"trial {self._evidence.first[best].number}"

    def _told(self, row: int) -> str:
        """`+4 % over trial 3, give or take 5 %; fits 98 %`."""
        mean, deviation = self._outlook.ahead(row)
        gain, reach = math.expm1(mean), math.expm1(normal_90 * deviation)
        return f"{gain:+.1%} over {self._leader}, give or take {reach:.1%}; fits {self._model.fits[row]:.0%}"

    def _untried(self, row: int) -> bool:
        return bool(self._outlook.untried[row])

    def _task(self, row: int, why: str) -> Task:
        first = self._evidence.first.get(row)
        return Task(
            values=dict(self._table.configurations[row]),
            why=why,
            repeat_of=None if first is None else first.number,
            beside=self._beside(row),
            predicted=self._prediction(row),
        )

    def _beside(self, row: int) -> Values | None:
        """The best of the other configurations of the same split, where it is open who is faster.

        Two in turn take four runs: that pays for who runs again, and for two that the noise of a run does not
        tell from the fastest.
        """
        if (
            not self._parts.pairing
            or not self._economy.pairs_pay
            or not (row in self._evidence.first or self._is_close(row))
        ):
            return None
        splits = [knob for knob, axis in enumerate(self._table.axes) if axis.path == split_knob]
        codes, mean = self._table.codes, self._model.rates.mean
        alike = [
            other
            for other in self._evidence.first
            if other != row and (codes[other, splits] == codes[row, splits]).all()
        ]
        best = max(alike, key=lambda other: (mean[other], -other), default=None)
        if best is None or not (row in self._evidence.first or self._is_close(best)):
            return None
        return dict(self._table.configurations[best])

    def _is_close(self, row: int) -> bool:
        """Whether one run of it and one of the fastest might not tell who is faster."""
        if self._outlook.incumbent is None:
            return False
        mean, deviation = self._outlook.ahead(row)
        return abs(mean) <= normal_90 * math.hypot(deviation, self._model.rates.noise)

    def _prediction(self, row: int) -> Prediction | None:
        if not self._model.readings:
            return None
        rates = self._model.rates
        mean, reach = (
            float(rates.mean[row]),
            normal_90 * math.hypot(math.sqrt(rates.variance[row]), rates.noise),
        )
        return Prediction(
            tokens_per_s=math.exp(mean),
            low=math.exp(mean - reach),
            high=math.exp(mean + reach),
            fits=float(self._model.fits[row]),
        )
