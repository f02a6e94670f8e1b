"""What is worth measuring after a history: the incumbent, who might beat it, and how sure the end would be.

Pure; knows nothing of tasks.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from autotune.guided.acquisition import Difference
from autotune.guided.certificate import gap_chance
from autotune.guided.model import Model

Floats = NDArray[np.float64]
worthwhile: Final = 0.75  # of the tolerance: who may lead by less is not looked for
least_fits: Final = 0.3  # chance to fit, below which nothing is tried
open_chance: Final = (
    0.05  # of a neighbour to beat the incumbent by the tolerance, above which it is looked at
)
rival_chance: Final = 0.1  # of a measured row to beat the incumbent, above which it is measured again
memory_knobs: Final = ("pipeline.token_budget", "transport.depth")  # more of these never takes less
shape_knobs: Final = ("pipeline.split", "pipeline.token_budget")  # what makes a batch's work
memory_free: Final = "pipeline.prefetch_depth"  # batches of token numbers: nothing beside hidden states


class Outlook:
    """Of one model."""

    def __init__(self, model: Model, tolerance: float) -> None:
        self.model, self._tolerance = model, tolerance
        self._worthwhile = worthwhile * math.log1p(tolerance)
        first, mean = model.evidence.first, model.rates.mean
        # By the posterior over all runs: the fastest of several noisy readings is in part the luckiest.
        self.incumbent = max(first, key=lambda row: (mean[row], -first[row].number), default=None)

    @cached_property
    def barred(self) -> NDArray[np.bool_]:
        """Rows that are not tried: they failed, or ask for no less memory than one that had too little."""
        found = np.zeros(len(self.model.table), dtype=bool)
        found[list(self.model.evidence.failed)] = True
        for row in self.model.evidence.starved:
            found |= self._asks_no_less(row)
        found[list(self.model.evidence.first)] = False
        return found

    @cached_property
    def untried(self) -> NDArray[np.bool_]:
        """Rows that may be tried."""
        found = ~self.barred
        found[list(self.model.evidence.first)] = False
        return found

    @cached_property
    def promise(self) -> Floats:
        """Of untried rows: improvement beyond the worthwhile times squared chance to fit; else 0."""
        fits = self.model.fits
        useful = self.untried & (fits >= least_fits)
        return np.where(useful, self._ahead.improvement(self._worthwhile) * fits**2, 0.0)

    @cached_property
    def gap(self) -> float:
        """The chance that something else is better by more than the tolerance."""
        if self.incumbent is None:
            return 1.0
        model = self.model
        rows = np.flatnonzero(~self.barred & (model.fits >= least_fits))
        return gap_chance(model.rates, model.memory, model.fits, rows, self.incumbent, self._tolerance)

    @cached_property
    def open_neighbours(self) -> list[int]:
        """Neighbours of the incumbent that were not looked at and that nothing rules out.

        Another token budget is ruled out by a run of that budget and split alone: how efficiency bends with a
        batch's size is what the belief is most often wrong about.
        """
        if self.incumbent is None:
            return []
        chance = self._ahead.exceeds(math.log1p(self._tolerance)) * self.model.fits
        near = [row for row in self.model.table.neighbours(self.incumbent) if self.promise[row] > 0]
        return [row for row in near if chance[row] > open_chance or self._is_of_unseen_budget(row)]

    def rival(self, most_runs: int) -> int | None:
        """The measured row that is to be run again to see who leads; None where that is clear."""
        if self.incumbent is None:
            return None
        evidence, variance = self.model.evidence, self.model.rates.variance
        chance = self._ahead.exceeds(self._worthwhile)
        rows = [row for row in evidence.first if row != self.incumbent and chance[row] > rival_chance]
        free = [row for row in rows if evidence.counts[row] < most_runs]
        own = evidence.counts[self.incumbent]
        if free:
            best = max(free, key=lambda row: (chance[row], -row))
            return self.incumbent if own < most_runs and variance[self.incumbent] > variance[best] else best
        return self.incumbent if own < min(2, most_runs) else None

    @cached_property
    def worth_of_repeat(self) -> float:
        """The expected improvement of the closest rival that was measured."""
        rows = [row for row in self.model.evidence.first if row != self.incumbent]
        return float(self._ahead.improvement(self._worthwhile)[rows].max()) if rows else 0.0

    def ahead(self, row: int) -> tuple[float, float]:
        """How far a row is thought to be ahead of the incumbent, and how sure that is: logarithms."""
        return float(self._ahead.mean[row]), float(self._ahead.deviation[row])

    @cached_property
    def _ahead(self) -> Difference:
        if self.incumbent is None:
            raise ValueError("nothing ran well yet")
        return Difference.to(self.model.rates, self.incumbent)

    def _is_of_unseen_budget(self, row: int) -> bool:
        """Whether a row has another budget than the incumbent, and nothing ran with that and its split."""
        table, best = self.model.table, self.incumbent
        knobs = [k for k, axis in enumerate(table.axes) if axis.path in shape_knobs]
        budgets = [k for k in knobs if table.axes[k].path == memory_knobs[0]]
        if best is None or (table.codes[row, budgets] == table.codes[best, budgets]).all():
            return False
        seen = table.codes[np.array(list(self.model.evidence.first))][:, knobs]
        return not (seen == table.codes[row, knobs]).all(axis=1).any()

    def _asks_no_less(self, row: int) -> NDArray[np.bool_]:
        """Rows with as much or more of what takes memory, and equal to `row` elsewhere."""
        table = self.model.table
        found = np.ones(len(table), dtype=bool)
        for knob, axis in enumerate(table.axes):
            if axis.path == memory_free:
                continue
            codes, mine = table.codes[:, knob], table.codes[row, knob]
            if axis.path in memory_knobs and axis.is_ordered:
                amounts = np.array(axis.choices, dtype=float)
                found &= amounts[codes] >= amounts[mine]
            else:
                found &= codes == mine
        return found
