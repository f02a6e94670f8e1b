"""When there is an evaluation, and that none of its failures is the run's."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from dflash.contract.errors import DFlashError
from dflash.contract.events import Probe, event_schema
from dflash.evaluations import Evaluations
from dflash.held_out import HeldOut
from dflash.replicas import ReplicaGroup

group = cast(ReplicaGroup, SimpleNamespace(leader=None, optimizer=SimpleNamespace(steps_done=4)))


class Rows(list[dict[str, Any]]):
    def append(self, row: Any) -> None:
        super().append(dict(zip(event_schema.names, row, strict=True)))


class Documents:
    """Evaluates to the step that it is asked for."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error

    def evaluate(self, _replica: object, step: int, _probe: Probe, wanted: Callable[[], bool]) -> Any:
        if self.error is not None:
            raise self.error
        return SimpleNamespace(step=step, to_json=lambda: {"step": step}) if wanted() else None


def of(documents: Documents, every: int = 2) -> Evaluations:
    return Evaluations(cast(HeldOut, documents), every)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (RuntimeError("CUDA out of memory.\nTried to allocate"), "CUDA out of memory."),
        (MemoryError(), "MemoryError"),
        (DFlashError("no such kernel", where="a layer"), "no such kernel"),
    ],
)
def test_whatever_fails_is_one_warning_and_the_last_evaluation(error: Exception, words: str) -> None:
    evaluations, warnings, probe = of(Documents(error)), list[str](), Probe(Rows(), "trainer")
    evaluations.warn = warnings.append
    evaluations.evaluate(group, 2, probe, lambda: True)
    evaluations.evaluate(group, 4, probe, lambda: True)
    evaluations.close(group, probe, lambda: True)
    (warning,) = warnings
    assert warning.startswith("step 2: the evaluation failed, there will be no more: ")
    assert words in warning
    assert evaluations.done == []
    assert not evaluations.are_due(6)


@pytest.mark.parametrize(("before", "spans"), [(2, 1), (4, 0)])
def test_the_last_step_is_evaluated_once(before: int, spans: int) -> None:
    rows = Rows()
    evaluations, probe = of(Documents()), Probe(rows, "trainer")
    evaluations.evaluate(group, before, probe, lambda: True)
    evaluations.close(group, probe, lambda: True)
    assert [each.step for each in evaluations.done] == sorted({before, 4})
    assert len([row for row in rows if row["name"] == "evaluate"]) == spans


def test_the_last_one_is_left_when_nobody_wants_it_any_more() -> None:
    evaluations = of(Documents(), every=100)
    evaluations.close(group, Probe(Rows(), "trainer"), lambda: False)
    assert evaluations.done == []
