"""Checkpoints: going on equals going straight, and nothing damaged or foreign is trained on."""

from __future__ import annotations

import json
import resource
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

from dflash.checkpoints.reading import find_checkpoint
from dflash.contract.config import TrainConfig, load_config
from dflash.contract.errors import CheckpointError, ConfigError, DFlashError
from dflash.replicas import ReplicaGroup
from dflash.trainer import Trainer, TrainResult, prepare
from dflash.window_end import WindowEnd
from tests.small_training import on_logical_devices

small = (
    *on_logical_devices,
    "objective.anchors_per_document=4",
    "window.tokens=256",
    "pipeline.token_budget=256",
    "transport=peer",
    "run.max_steps=6",
    "run.checkpoint_every=1",
    "run.keep_checkpoints=3",
)


def configure(*changes: str) -> TrainConfig:
    return load_config(None, (*small, *changes))


def stop_after(trainer: Trainer, steps: int) -> TrainResult:
    trainer.window_done = lambda window, figures: (
        trainer.state.request_stop("test") if window.step + 1 == steps else None
    )
    return trainer.run()


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run directory that holds step-2, step-3 and step-4 of a run of six."""
    path = tmp_path_factory.mktemp("run")
    result = stop_after(prepare(configure(), run_path=path), 4)
    assert result.steps_done == 4
    return path


@pytest.fixture(scope="module")
def straight() -> TrainResult:
    """The run of six that nothing stopped."""
    return prepare(configure()).run()


@pytest.fixture
def checkpoint(stopped: Path, tmp_path: Path) -> Path:
    """A copy of the newest checkpoint, to be harmed."""
    return Path(shutil.copytree(stopped / "checkpoints/step-4", tmp_path / "step-4"))


def test_the_newest_are_kept_and_nothing_else_is_left(stopped: Path) -> None:
    names = sorted(path.name for path in (stopped / "checkpoints").iterdir())
    assert names == ["step-2", "step-3", "step-4"]


@pytest.mark.parametrize("source", ["", "checkpoints", "checkpoints/step-4"])
def test_resuming_equals_the_straight_run_bit_for_bit(
    stopped: Path, straight: TrainResult, source: str
) -> None:
    rest = prepare(configure(f"run.resume={stopped / source}")).run()
    assert rest.steps_done == 6
    assert rest.losses == straight.losses[4:]
    for name, tensor in straight.weights.items():
        assert torch.equal(rest.weights[name], tensor), name


def test_resuming_under_another_split_trains_what_is_left(stopped: Path, straight: TrainResult) -> None:
    rest = prepare(configure(f"run.resume={stopped}", "split=2-1", "pipeline.token_budget=64")).run()
    assert rest.losses == pytest.approx(straight.losses[4:], rel=1e-4)


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors", "config.json"])
@pytest.mark.parametrize("damage", ["empty", "cut", "flipped", "gone"])
def test_damage_is_found_and_named_before_training(checkpoint: Path, name: str, damage: str) -> None:
    file = checkpoint / name
    data = file.read_bytes()
    if damage == "gone":
        file.unlink()
    else:
        flipped = bytes([*data[:-1], data[-1] ^ 1])
        file.write_bytes({"empty": b"", "cut": data[: len(data) // 2], "flipped": flipped}[damage])
    with pytest.raises(CheckpointError, match="damaged") as caught:
        prepare(configure(f"run.resume={checkpoint}"))
    assert caught.value.where == str(file)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"steps_done": 4}'])
def test_an_unreadable_state_is_said_in_words(checkpoint: Path, text: str) -> None:
    (checkpoint / "state.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"state\.json"):
        prepare(configure(f"run.resume={checkpoint}"))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ("drafter.block_size=8", "block_size"),
        ("drafter.layers=2", "layers"),
        ("drafter.mask_token_id=7", "mask_token_id"),
        ("drafter.taps=0,3", "taps"),
        ("data.seed=1", "data.seed"),
        ("window.tokens=512", "window.tokens"),
        ("target.seed=1", "target.seed"),
        ("data.max_length=60", "documents"),
    ],
)
def test_another_model_or_other_data_is_refused_by_name(stopped: Path, change: str, named: str) -> None:
    with pytest.raises(CheckpointError, match=r"belongs to (another|other)") as caught:
        prepare(configure(f"run.resume={stopped}", change))
    assert str(caught.value.where).endswith(named)


def test_what_was_read_is_known_again_whatever_its_file_is_called(tmp_path: Path) -> None:
    texts = ["The sky is blue today.", "Water boils at a hundred degrees."] * 4
    talks = [[{"role": "user", "content": "Go on"}, {"role": "assistant", "content": text}] for text in texts]
    written, changed = tmp_path / "talks.jsonl", tmp_path / "changed.jsonl"
    written.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    talks[3][1]["content"] = "Water freezes at zero degrees."
    changed.write_text("".join(json.dumps({"messages": talk}) + "\n" for talk in talks))
    run = tmp_path / "run"
    stop_after(prepare(configure("run.epochs=9", f"data.path={written}"), run_path=run), 1)
    moved = written.rename(tmp_path / "moved.jsonl")
    again = ("run.epochs=9", f"run.resume={run}")
    assert prepare(configure(*again, f"data.path={moved}")).first_step == 1
    with pytest.raises(CheckpointError, match="belongs to other data") as caught:
        prepare(configure(*again, f"data.path={changed}"))
    assert str(caught.value.found).startswith("8 documents, ")
    assert str(caught.value.expected).startswith("8 documents, ")


def test_a_checkpoint_of_another_format_is_refused(checkpoint: Path) -> None:
    state = json.loads((checkpoint / "state.json").read_text())
    (checkpoint / "state.json").write_text(json.dumps({**state, "version": 99}))
    with pytest.raises(CheckpointError, match="format") as caught:
        prepare(configure(f"run.resume={checkpoint}"))
    assert caught.value.found == "99"


def test_nothing_left_to_train_is_refused(stopped: Path) -> None:
    with pytest.raises(ConfigError, match="nothing is left"):
        prepare(configure(f"run.resume={stopped}", "run.max_steps=4"))


def test_leftovers_of_a_killed_writer_are_neither_found_nor_kept(tmp_path: Path) -> None:
    leftover = tmp_path / "checkpoints/.step-9.123"
    leftover.mkdir(parents=True)
    (leftover / "state.json").write_text(json.dumps({}))
    with pytest.raises(CheckpointError, match="no checkpoint"):
        find_checkpoint(str(tmp_path))
    stop_after(prepare(configure(), run_path=tmp_path), 1)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["step-1"]


@contextmanager
def no_file_larger_than(limit_bytes: int) -> Iterator[None]:
    """What a full disk is to whoever writes: the system refuses further bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("every", [1, 0], ids=["between windows", "at the end"])
def test_a_full_disk_ends_the_run_in_words_and_keeps_what_was_saved(
    stopped: Path, tmp_path: Path, every: int
) -> None:
    run = Path(shutil.copytree(stopped, tmp_path / "run"))
    # Room for the weights, not for the three times as large optimizer state behind them.
    limit_bytes = 2 * (run / "checkpoints/step-4/model.safetensors").stat().st_size
    trainer = prepare(configure(f"run.resume={run}", f"run.checkpoint_every={every}"), run_path=run)
    with no_file_larger_than(limit_bytes), pytest.raises(DFlashError, match="cannot be written") as caught:
        trainer.run()
    assert caught.value.exit_code == 1
    assert str(run / "checkpoints") in str(caught.value.where)
    assert sorted(path.name for path in (run / "checkpoints").iterdir()) == ["step-2", "step-3", "step-4"]
    assert prepare(configure(f"run.resume={run}")).first_step == 4


class SoonMoment:
    """A step that a device makes a little later."""

    def __init__(self) -> None:
        self._reached = threading.Event()
        threading.Timer(0.05, self._reached.set).start()

    def done(self) -> bool:
        return self._reached.is_set()

    def wait(self) -> None:
        assert self._reached.wait(30)

    def order_stream(self) -> None:
        """Nothing is enqueued here."""


def test_a_checkpoint_waits_for_the_step_that_it_keeps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = prepare(configure("run.max_steps=3"), run_path=tmp_path)
    told_when_saved = []
    complete, writer = trainer.group.complete, trainer.checkpoints

    def complete_later(*arguments: Any) -> WindowEnd:
        end = complete(*arguments)
        end.moment = SoonMoment()
        return end

    assert writer is not None
    save = writer.save

    def note_and_save(group: ReplicaGroup, *, last: bool) -> None:
        told_when_saved.append(trainer.counters.steps)
        save(group, last=last)

    monkeypatch.setattr(trainer.group, "complete", complete_later)
    monkeypatch.setattr(writer, "save", note_and_save)
    result = trainer.run()
    assert told_when_saved == [1, 2, 3, 3]
    assert len(result.losses) == 3


def test_a_step_that_was_not_finite_is_no_good_end_of_a_run_that_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The stop comes first, and what the device says of the last step after it.
    trainer = prepare(configure("run.checkpoint_every=0"), run_path=tmp_path)
    complete = trainer.group.complete

    def complete_badly(*arguments: Any) -> WindowEnd:
        end = complete(*arguments)
        end.moment, end._told[-1] = SoonMoment(), 1.0
        trainer.state.request_stop("asked")
        return end

    monkeypatch.setattr(trainer.group, "complete", complete_badly)
    with pytest.raises(DFlashError, match="not finite"):
        trainer.run()
    assert not list(tmp_path.rglob("step-*"))
