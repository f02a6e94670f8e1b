"""Rows that teach nothing are never in a batch: what is trained is what it would be without them."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dflash.batch import HiddenStates
from dflash.contract.config import TrainConfig, load_config
from dflash.contract.errors import DataError, DFlashError
from dflash.contract.events import Probe, event_schema
from dflash.trainer import TrainResult, prepare
from tests.small_training import on_logical_devices


class ListLog:
    """Keeps event rows as dicts."""

    def __init__(self) -> None:
        self.rows: list[dict] = []

    def append(self, row: tuple) -> None:
        self.rows.append(dict(zip(event_schema.names, row, strict=True)))


def configure(path: Path, *changes: str) -> TrainConfig:
    more = (f"data.path={path}", "run.epochs=2", "run.max_steps=0", "window.tokens=200")
    return load_config(None, (*on_logical_devices, "pipeline.token_budget=64", *more, *changes))


def train(path: Path, *changes: str) -> tuple[TrainResult, list[dict], Counter[tuple[int, int]]]:
    """The result, the notes of its steps, and how often each document was trained in each epoch."""
    log, ledger = ListLog(), Counter[tuple[int, int]]()
    trainer = prepare(configure(path, *changes), probe=Probe(log, "trainer"))
    for drafter in trainer.group.replicas:
        step = drafter.train

        def trained(states, step=step):
            batch = states.batch
            ledger.update((batch.window.epoch, document) for document in batch.documents)
            return step(states)

        drafter.train = trained
    result = trainer.run()
    return result, [json.loads(row["note"]) for row in log.rows if row["name"] == "window"], ledger


def row(name: str, question: str, answer: str) -> str:
    turns = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return json.dumps({"id": name, "messages": turns}) + "\n"


good = [
    row(f"good-{i}", f"what is {i}?", f"it is {i}, as it was before, and {i * 7} after") for i in range(12)
]
# The answer begins past data.max_length: no token of it is left to learn.
bad = [row(f"bad-{i}", f"why {i} " * 80, "so") for i in range(12)]


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> tuple[TrainResult, list[dict]]:
    path = tmp_path_factory.mktemp("clean") / "rows.jsonl"
    path.write_text("".join(good))
    result, notes, _ = train(path)
    return result, notes


@pytest.mark.parametrize("how", ["between good rows", "a block of them", "refused for their length"])
def test_rows_whose_answer_is_cut_off_change_no_weight(tmp_path: Path, clean, how: str) -> None:
    """Case C004: no step is made for them, and nothing is learned from them or moved by them."""
    mixed = tmp_path / "mixed.jsonl"
    if how == "a block of them":
        mixed.write_text("".join([*good[:6], *bad, *good[6:]]))
    else:
        mixed.write_text("".join(a + b for a, b in zip(good, bad, strict=True)))
    changes = ("data.too_long=refuse",) if how == "refused for their length" else ()
    expected, notes = clean
    result, mixed_notes, ledger = train(mixed, *changes)
    assert (result.steps_done, result.documents_trained) == (expected.steps_done, 24)
    assert result.steps_done == len(mixed_notes) > 3
    assert result.losses == expected.losses
    assert all(loss == loss and loss > 0 for loss in result.losses)  # neither n/a nor nothing
    assert mixed_notes == notes
    ours = result.weights()
    assert all(torch.equal(ours[name], weight) for name, weight in expected.weights().items())
    assert ledger == Counter({(epoch, document): 1 for epoch in range(2) for document in range(12)})


def test_nothing_but_such_rows_is_refused_before_a_step(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(bad))
    with pytest.raises(DataError, match="0 usable of 12 rows") as caught:
        prepare(configure(path))
    assert caught.value.expected == "an answer within data.max_length (64 tokens)"
    assert caught.value.remedy.startswith("raise data.max_length past ")


@pytest.mark.parametrize("loss", ["dflash", "dpace"])
def test_a_window_without_a_slot_that_counts_makes_no_step(tmp_path: Path, loss: str) -> None:
    """Cases C004 and C017: should one come after good ones all the same, no weight moves, no loss is told."""
    path, log = tmp_path / "rows.jsonl", ListLog()
    path.write_text("".join(good))
    config = configure(path, f"objective.loss={loss}", "optimizer.weight_decay=0.5")
    trainer = prepare(config, probe=Probe(log, "trainer"))
    (drafter,) = trainer.group.replicas
    train_one, before = drafter.train, dict[str, torch.Tensor]()

    def train_spoiled(states: HiddenStates) -> None:
        if states.batch.window.step == 3:
            before.update({name: p.detach().clone() for name, p in drafter.drafter.named_parameters()})
            states.batch = replace(states.batch, weights=torch.zeros_like(states.batch.weights))
        train_one(states)

    drafter.train = train_spoiled  # type: ignore[method-assign]
    with pytest.raises(DFlashError, match="nothing is learned from this window") as caught:
        trainer.run()
    assert str(caught.value.where).endswith("step 3")
    assert (caught.value.found, caught.value.exit_code) == ("0 counted slots", 1)
    assert trainer.counters.steps == trainer.group.optimizer.updates_made() == 3
    after = dict(drafter.drafter.named_parameters())
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    told = [json.loads(row["note"])["loss"] for row in log.rows if row["name"] == "window"]
    assert len(told) == 3
    assert min(told) > 0


def test_rows_of_equal_text_are_each_trained_once_an_epoch_by_several(tmp_path: Path) -> None:
    """Case C020: by several targets and drafters too."""
    path = tmp_path / "rows.jsonl"
    path.write_text("".join([*good[:6], *good[:6], *good[3:6]]))
    result, _, ledger = train(path, "split=2-2")
    assert result.documents_trained == 30
    assert ledger == Counter({(epoch, document): 1 for epoch in range(2) for document in range(15)})
