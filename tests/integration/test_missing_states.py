"""C018: a target whose states are missing never trains in silence: all of them, some, or broken ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from dflash.contract.config import load_config
from dflash.contract.errors import DFlashError
from dflash.contract.events import Probe, event_schema
from dflash.trainer import Trainer, TrainResult, prepare
from tests.small_training import on_logical_devices

Spoil = Callable[[int, Tensor], Tensor]  # the number of a forward pass and its states


class Rows(list[dict[str, Any]]):
    def append(self, row: Any) -> None:
        super().append(dict(zip(event_schema.names, row, strict=True)))

    def notes(self, name: str) -> list[str]:
        return [row["note"] for row in self if row["name"] == name]


def spoiled(spoil: Spoil, *changes: str) -> tuple[Trainer, Rows]:
    """A trainer whose targets' states go through `spoil`."""
    rows = Rows()
    trainer = prepare(load_config(None, (*on_logical_devices, *changes)), probe=Probe(rows, "trainer"))
    for target in trainer.targets:
        target.forward = _through(target.forward, spoil)  # type: ignore[method-assign]
    return trainer, rows


def _through(forward: Callable[[Any], Tensor], spoil: Spoil) -> Callable[[Any], Tensor]:
    passes = iter(range(10**6))
    return lambda batch: spoil(next(passes), forward(batch))


def first_weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in trainer.group.leader.drafter.named_parameters()}


def every_nth_row(n: int) -> Spoil:
    def spoil(number: int, states: Tensor) -> Tensor:
        states[::n] = 0
        return states

    return spoil


def with_nan(number: int, states: Tensor) -> Tensor:
    states[0, 3] = float("nan")
    return states


@pytest.mark.parametrize("split", ["1-1", "1-2"])
def test_a_run_without_any_states_fails_before_its_first_step(split: str) -> None:
    trainer, _ = spoiled(lambda _, states: states.zero_(), f"split={split}")
    before = first_weights(trainer)
    with pytest.raises(DFlashError) as raised:
        trainer.run()
    told = raised.value.render()
    assert "the target gave no states" in told
    assert "step 0" in told
    assert "0 of 5" in told, "found and expected: a window of at least 512 tokens"
    assert trainer.group.optimizer.updates_made() == 0
    for replica in trainer.group.replicas:
        for name, parameter in replica.drafter.named_parameters():
            assert torch.equal(parameter, before[name]), name


def test_states_that_are_not_finite_are_named_and_nothing_is_learned_from_them() -> None:
    trainer, _ = spoiled(with_nan)
    before = first_weights(trainer)
    with pytest.raises(DFlashError, match="the target's states are not finite") as raised:
        trainer.run()
    assert "states of" in raised.value.render()
    assert "with infinities or NaN" in raised.value.render()
    assert "optimizer.lr" not in raised.value.render()
    for name, parameter in trainer.group.leader.drafter.named_parameters():
        assert torch.equal(parameter, before[name]), name


@pytest.mark.parametrize("n", [2, 10])
def test_some_missing_states_are_counted_and_told_and_training_goes_on(n: int) -> None:
    trainer, rows = spoiled(every_nth_row(n))
    result: TrainResult = trainer.run()
    notes = [json.loads(note) for note in rows.notes("window")]
    assert [note["states_absent"] > 0 for note in notes] == [True] * 3
    assert result.states_absent == sum(note["states_absent"] for note in notes)
    assert abs(result.states_absent / result.tokens_trained - 1 / n) < 0.1 / n
    (warning,) = rows.notes("warning")
    assert warning.startswith("step 0: the target gave no states for ")
    assert (result.steps_done, result.optimizer_updates) == (3, 3)
    assert result.books()["states_absent"] == result.states_absent


def test_windows_whose_states_go_missing_later_end_the_run_with_the_last_good_weights() -> None:
    """The 700 steps that changed nothing: here the first of them is the last."""
    trainer, _ = spoiled(lambda number, states: states if number < 8 else states.zero_(), "run.max_steps=50")
    with pytest.raises(DFlashError, match="the target gave no states") as raised:
        trainer.run()
    step = int(str(raised.value.where or raised.value).split("step ")[1].split()[0].rstrip(",):"))
    assert step > 0
    assert trainer.counters.steps == step
    assert trainer.group.optimizer.updates_made() == step


def test_sound_states_are_not_suspected() -> None:
    trainer, rows = spoiled(lambda _, states: states)
    result = trainer.run()
    assert (result.states_absent, rows.notes("warning")) == (0, [])
    assert (result.steps_done, result.optimizer_updates) == (3, 3)
    assert result.learned is not None
    accuracies = [json.loads(note)["slot_accuracy"] for note in rows.notes("window")]
    assert [len(slots) for slots in accuracies] == [3, 3, 3]
