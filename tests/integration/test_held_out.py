"""Evaluation on documents held out: what it says, and that training is none the wiser."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from dflash.batch import HiddenStates
from dflash.contract.config import load_config
from dflash.contract.errors import CheckpointError
from dflash.contract.events import Probe, event_schema
from dflash.held_out import Evaluation, HeldOut
from dflash.trainer import Trainer, TrainResult, prepare
from dflash.window_figures import WindowSums
from tests.small_training import on_logical_devices

small = (
    *on_logical_devices,
    "data.held_out=0.3",
    "run.evaluate_documents=5",
    "data.max_length=48",
    "pipeline.token_budget=96",
    "window.tokens=256",
    "target.layout=packed",  # needs no probe
)


class Rows(list[dict[str, Any]]):
    def append(self, row: Any) -> None:
        super().append(dict(zip(event_schema.names, row, strict=True)))


def make(*changes: str, rows: Rows | None = None) -> Trainer:
    probe = Probe(Rows() if rows is None else rows, "trainer")
    return prepare(load_config(None, (*small, *changes)), probe=probe)


def same_training(some: TrainResult, other: TrainResult) -> bool:
    theirs = other.weights()
    return some.losses == other.losses and all(
        torch.equal(tensor, theirs[name]) for name, tensor in some.weights().items()
    )


@pytest.fixture(scope="module")
def unwatched() -> TrainResult:
    result = make("run.evaluate_every=0").run()
    assert result.evaluations == ()
    return result


@pytest.fixture(scope="module")
def last(watched: tuple[TrainResult, Rows]) -> Evaluation:
    return watched[0].evaluations[-1]


@pytest.fixture(scope="module")
def watched() -> tuple[TrainResult, Rows]:
    rows = Rows()
    trainer = make("run.evaluate_every=1", rows=rows)
    torch.manual_seed(1)
    before = torch.get_rng_state()
    result = trainer.run()
    assert torch.equal(torch.get_rng_state(), before)
    return result, rows


def test_training_is_the_same_to_the_bit_with_and_without(
    unwatched: TrainResult, watched: tuple[TrainResult, Rows]
) -> None:
    result, rows = watched
    assert same_training(result, unwatched)
    assert [each.step for each in result.evaluations] == [1, 2, 3]
    marks = [row for row in rows if row["name"] == "evaluation"]
    assert [json.loads(row["note"]) for row in marks] == [each.to_json() for each in result.evaluations]
    spans = [row for row in rows if row["name"] == "evaluate"]
    assert [row["window"] for row in spans] == [0, 1, 2]
    assert len({each.loss for each in result.evaluations}) == 3, "the drafter has moved in between"


@pytest.mark.parametrize("split", ["1-2", "colocated-2"])
def test_other_splits_say_the_same(split: str, last: Evaluation) -> None:
    (other,) = make("run.evaluate_every=3", f"split={split}").run().evaluations
    assert other.step == last.step
    assert other.loss == pytest.approx(last.loss, rel=1e-4)
    assert other.documents == last.documents == 5
    assert other.acceptance.tokens == last.acceptance.tokens


def test_nothing_that_is_held_out_is_trained() -> None:
    large = ("window.tokens=1024", "pipeline.token_budget=512")
    trainer = make("run.epochs=1", "run.max_steps=0", "run.evaluate_every=0", *large)
    apart = trainer.documents
    whole = prepare(load_config(None, (*small, "data.held_out=0", "run.evaluate_every=0"))).documents
    result = trainer.run()
    trained = {item.ids.tobytes() for item in apart.items}
    assert result.documents_trained == len(apart.items) < len(whole.items)
    rest = {item.ids.tobytes() for item in whole.items} - trained
    assert 0.1 < len(rest) / len(whole.items) < 0.5


@pytest.mark.parametrize("loss", ["dflash", "dpace"])
def test_loss_and_accuracy_are_those_of_training_on_these_documents(loss: str) -> None:
    """The row that a training step would add, divided by what it would be divided by."""
    trainer = make("run.evaluate_every=3", f"objective.loss={loss}", "data.held_out=0.5")
    held_out, replica = trainer.evaluations.held_out, trainer.group.leader
    assert held_out is not None
    evaluation = held_out.evaluate(replica, 0, trainer.probe)
    assert evaluation is not None
    rows, denominators = [], set()
    for part in held_out._parts:
        assert torch.equal(part.taps, trainer.targets[0].forward(part.batch))
        replica.train(HiddenStates(batch=replica.plan(part.batch), taps=part.taps))
        denominators.add(part.batch.window.denominator)
        row = replica.take_figures()
        assert row is not None
        rows.append(row.double())
        replica.take_gradients()
    sums = WindowSums.of(torch.stack(rows).sum(0).tolist())
    (denominator,) = denominators
    assert evaluation.loss == pytest.approx(sums.numerator / denominator, rel=1e-5)
    assert evaluation.slot_correct == sums.slot_correct
    assert evaluation.slot_counted == sums.slot_counted
    answered = sum(a.end - a.start - 1 for part in held_out._parts for each in part.answers for a in each)
    assert evaluation.acceptance.tokens == answered > 20
    assert evaluation.acceptance.pooled is not None
    assert 1 <= evaluation.acceptance.pooled <= 4


def test_a_drafter_that_has_learned_a_text_is_accepted_more_on_it() -> None:
    """Evaluated on what it is trained on, for once."""
    trainer = make("run.max_steps=12", "optimizer.lr=0.02", "data.held_out=0", "run.evaluate_every=0")
    trained_on = HeldOut.of(
        trainer.documents, trainer.config, trainer.targets[0], taps=2, layout=trainer.layout
    )
    before = trained_on.evaluate(trainer.group.leader, 0, trainer.probe)
    trainer.run()
    after = trained_on.evaluate(trainer.group.leader, 12, trainer.probe)
    assert before is not None
    assert after is not None
    assert before.acceptance.pooled is not None
    assert after.acceptance.pooled is not None
    assert before.loss is not None
    assert after.loss is not None
    assert after.loss < before.loss - 1
    assert after.acceptance.pooled > before.acceptance.pooled


def test_what_says_nothing_is_an_error_and_what_is_not_finite_is_unknown(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A learning rate that is too high, a target in trouble: never NaN in a document, never a traceback."""
    trainer = make("run.evaluate_every=1")
    held_out, leader = trainer.evaluations.held_out, trainer.group.leader
    assert held_out is not None
    measure = leader.measure
    monkeypatch.setattr(
        leader, "measure", lambda item: torch.cat([torch.tensor([torch.inf]), measure(item)[1:]])
    )
    evaluation = held_out.evaluate(leader, 1, trainer.probe)
    assert evaluation is not None
    assert evaluation.loss is None
    assert json.loads(json.dumps(evaluation.to_json(), allow_nan=False))["loss"] is None
    assert "loss n/a, accuracy 0." in evaluation.line()
    held_out._parts[0].taps[1] = torch.nan
    with pytest.raises(RuntimeError, match="of the documents held out: states of 1 of"):
        held_out.evaluate(leader, 1, trainer.probe)
    monkeypatch.undo()
    warnings: list[str] = []
    trainer.warned = warnings.append
    assert trainer.run().evaluations == ()
    (warning,) = warnings
    assert "infinities or NaN" in warning


def test_a_signal_leaves_the_evaluation_at_the_end_and_the_run_is_finished() -> None:
    trainer = make("run.evaluate_every=100", "run.max_steps=1")
    trainer.interrupted = lambda: True
    result = trainer.run()
    assert (result.steps_done, result.stop_reason, result.evaluations) == (1, None, ())


def test_an_evaluation_that_fails_ends_evaluations_and_not_the_run(
    monkeypatch: pytest.MonkeyPatch, unwatched: TrainResult
) -> None:
    def fail(*_: object) -> Evaluation:
        raise RuntimeError("CUDA out of memory.\nTried to allocate")

    rows = Rows()
    trainer = make("run.evaluate_every=1", rows=rows)
    monkeypatch.setattr(HeldOut, "evaluate", fail)
    result = trainer.run()
    assert same_training(result, unwatched)
    (warning,) = [row["note"] for row in rows if row["name"] == "warning"]
    assert warning == "step 1: the evaluation failed, there will be no more: CUDA out of memory."


def test_a_run_that_is_told_to_stop_does_not_evaluate_and_one_whose_time_is_over_does() -> None:
    told = make("run.evaluate_every=100", "run.max_steps=1000")
    told.window_done = lambda window, figures: told.state.request_stop("SIGINT")
    stopped = told.run()
    assert (stopped.stop_reason, stopped.evaluations) == ("SIGINT", ())
    over = make("run.evaluate_every=100", "run.max_steps=1000", "run.max_seconds=0.01").run()
    assert over.stop_reason == "run.max_seconds = 0.01"
    assert [each.step for each in over.evaluations] == [over.steps_done]


def test_no_more_states_are_kept_than_there_is_room_for(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = make("run.evaluate_every=3").evaluations.held_out
    assert whole is not None
    monkeypatch.setattr("dflash.held_out.most_state_bytes", whole.state_bytes // 2)
    less = make("run.evaluate_every=3").evaluations.held_out
    assert less is not None
    assert 0 < less.documents < whole.documents
    assert less.state_bytes <= whole.state_bytes // 2


def test_a_checkpoint_belongs_to_what_was_held_out(tmp_path: Path) -> None:
    keeping = ("run.checkpoint_every=0", "run.evaluate_every=1")
    config = load_config(None, (*small, *keeping, "run.max_steps=1"))
    first = prepare(config, run_path=tmp_path / "first").run()
    resumed = config.replacing({"run.resume": str(tmp_path / "first"), "run.max_steps": 2})
    second = prepare(resumed, run_path=tmp_path / "second").run()
    assert [e.step for e in (*first.evaluations, *second.evaluations)] == [1, 2]
    assert first.evaluations[0].slot_counted == second.evaluations[0].slot_counted, "the same documents"
    with pytest.raises(CheckpointError, match="other data"):
        prepare(resumed.replacing({"data.held_out": 0.2}), run_path=tmp_path / "third")
