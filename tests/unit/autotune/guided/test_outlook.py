"""What keeps a search from ending: a gap that is likely, and token budgets that nothing ran with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from autotune.guided.certificate import gap_chance
from autotune.guided.model import Frame, Model, Parts
from autotune.guided.outlook import Outlook
from autotune.study import Study

split, budget = "pipeline.split", "pipeline.token_budget"


def look(box: Callable[..., Any], study: Callable[..., Study], runs: int) -> tuple[Outlook, Study]:
    search = study(box(1))
    for _ in range(runs):
        search.step()
    model = Model(Frame.of(search.history.space), search.history.trials, Parts())
    return Outlook(model, 0.02), search


def test_a_budget_that_nothing_ran_with_is_no_closed_neighbour(
    box: Callable[..., Any], study: Callable[..., Study]
) -> None:
    outlook, search = look(box, study, 4)
    table, best = outlook.model.table, outlook.incumbent
    assert best is not None
    ran = {(trial.values[split], trial.values[budget]) for trial in search.trials}
    for row in table.neighbours(best):
        values = table.configurations[row]
        shape = (values[split], values[budget])
        if values[budget] != table.configurations[best][budget] and outlook.promise[row] > 0:
            assert shape in ran or row in outlook.open_neighbours, values


def test_a_gap_is_likelier_the_less_is_demanded(box: Callable[..., Any], study: Callable[..., Study]) -> None:
    outlook, _ = look(box, study, 6)
    model, best = outlook.model, outlook.incumbent
    assert best is not None
    rows = np.flatnonzero(~outlook.barred)
    chances = [
        gap_chance(model.rates, model.memory, model.fits, rows, best, tolerance)
        for tolerance in (0.0, 0.02, 0.2, 3.0)
    ]
    assert chances == sorted(chances, reverse=True)
    assert chances[0] > chances[-1] == 0.0
    assert gap_chance(model.rates, model.memory, model.fits, rows[:0], best, 0.02) == 0.0
