"""Checkpoints: going on equals going straight, and nothing damaged or foreign is trained on."""

from __future__ import annotations

import errno
import json
import shutil
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from benchmarks.training_ledger import Leg, keeping_ledger, settle
from dflash.batch import WindowInfo
from dflash.checkpoints.manifest import read_manifest
from dflash.contract.config import TrainConfig, load_config
from dflash.contract.errors import CheckpointError, ConfigError, DFlashError
from dflash.contract.rundir import RunDir, create_run
from dflash.replicas import ReplicaGroup
from dflash.session import Session
from dflash.trainer import Trainer, TrainResult, prepare
from dflash.window_end import WindowEnd
from tests.small_checkpoints import no_file_larger_than
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


@dataclass(frozen=True)
class Straight:
    """The run of six that nothing stopped."""

    result: TrainResult
    checkpoint: Path  # its step-6


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    result = prepare(configure(), run_path=tmp_path_factory.mktemp("straight")).run()
    assert result.checkpoint is not None
    return Straight(result, result.checkpoint)


def test_the_newest_are_kept_and_nothing_else_is_left(stopped: Path) -> None:
    names = sorted(path.name for path in (stopped / "checkpoints").iterdir())
    assert names == ["step-2", "step-3", "step-4"]


@pytest.mark.parametrize("source", ["", "checkpoints/step-4", "checkpoints/step-2"])
def test_resuming_equals_the_straight_run_bit_for_bit(
    stopped: Path, straight: Straight, tmp_path: Path, source: str
) -> None:
    rest = prepare(configure(f"run.resume={stopped / source}"), run_path=tmp_path).run()
    assert (rest.steps_done, rest.optimizer_updates) == (6, 6)
    assert rest.losses == straight.result.losses[-len(rest.losses) :]
    assert rest.checkpoint == tmp_path / "checkpoints/step-6"
    for name in ("model.safetensors", "optimizer.safetensors", "config.json"):
        assert (rest.checkpoint / name).read_bytes() == (straight.checkpoint / name).read_bytes(), name
    ours, theirs = read_manifest(rest.checkpoint), read_manifest(straight.checkpoint)
    assert ours.settings["run.resume"] == str(stopped / source)
    assert replace(ours, settings={}) == replace(theirs, settings={})


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        (
            ("split=2-1", "pipeline.token_budget=64"),
            "pipeline.split 1-1 → 2-1, pipeline.token_budget 256 → 64",
        ),
        (
            ("split=1-2", "pipeline.token_budget=128", "transport=host"),
            "pipeline.split 1-1 → 1-2, pipeline.token_budget 256 → 128, transport.preset peer → host",
        ),
        (
            ("transport=pinned", "target.layout=padded"),
            "target.layout auto → padded, transport.preset peer → pinned",
        ),
    ],
)
def test_another_split_budget_or_transport_trains_what_is_left_and_is_told(
    stopped: Path, straight: Straight, changes: tuple[str, ...], told: str
) -> None:
    trainer = prepare(configure(f"run.resume={stopped}", *changes))
    assert trainer.resumption is not None
    assert (trainer.resumption.changes, trainer.resumption.warnings) == ((told,), ())
    assert trainer.run().losses == pytest.approx(straight.result.losses[4:], rel=1e-4)


def test_past_a_damaged_newest_the_run_equals_the_straight_one(
    stopped: Path, straight: Straight, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(stopped, tmp_path / "run"))
    (run / "checkpoints/step-4/optimizer.safetensors").write_bytes(b"")
    trainer = prepare(configure(f"run.resume={run}"), run_path=run)
    assert trainer.first_step == 3
    result = trainer.run()
    assert result.losses == straight.result.losses[3:]
    names = sorted(path.name for path in (run / "checkpoints").iterdir())
    assert names == ["damaged.step-4", "step-4", "step-5", "step-6"]


def test_other_data_begin_anew_behind_the_steps_that_were_made(stopped: Path, tmp_path: Path) -> None:
    rows = f"data.path={few_rows(tmp_path)}"
    other = (f"run.resume={stopped}", "run.resume_data=other", rows, "run.max_steps=0", "run.epochs=1")
    first = prepare(configure(*other), run_path=tmp_path / "a")
    windows = first.course.by_epoch
    assert (first.first_step, first.course.begins_at, first.total_steps) == (4, 4, 4 + sum(windows))
    with keeping_ledger(tmp_path / "a.ledger"):
        stop_after(first, 6)
    # A run that was resumed with other data goes on like any: its own data are the same.
    again = configure(*other[1:], f"run.resume={tmp_path / 'a'}")
    second = prepare(again, run_path=tmp_path / "b")
    assert (second.first_step, second.course.begins_at) == (6, 4)
    with keeping_ledger(tmp_path / "b.ledger"):
        second.run()
    legs = [Leg(tmp_path / "a.ledger", 4), Leg(tmp_path / "b.ledger", 6)]
    account = settle(legs, second.total_steps)
    assert sorted(account.steps) == list(range(4, second.total_steps))
    assert (account.lost(len(second.documents.lengths), 1), account.repeated()) == (0, 0)


@pytest.mark.parametrize(
    "later", [(), ("split=2-1", "pipeline.token_budget=64")], ids=["same split", "other split"]
)
def test_c107_batches_in_every_queue_of_a_killed_run_are_trained_once(
    tmp_path: Path, later: tuple[str, ...]
) -> None:
    shape = (
        "transport=host",
        "pipeline.token_budget=64",
        "run.max_steps=0",
        "run.epochs=2",
        f"data.path={few_rows(tmp_path)}",
    )
    killed = prepare(configure(*shape), run_path=tmp_path / "a")
    windows, full, dead = killed.course.by_epoch[0], threading.Event(), threading.Event()

    def all_wait() -> bool:
        """Batches are in every queue, and those of the next epoch are on their way."""
        latest = killed._prefetch.batch
        assert latest is not None
        return latest.window.epoch == 1 and all(depth for _, depth, _ in killed.depths())

    def hold(window: WindowInfo, _figures: object) -> None:
        # Nothing is trained until then; and then the trainer dies, before the last window of the epoch.
        if window.step == windows - 2:
            until_s = time.monotonic() + 60
            while not all_wait() and time.monotonic() < until_s:
                time.sleep(0.001)
            full.set()
            assert dead.wait(60)

    def die_when_full() -> None:
        if full.is_set():
            assert all_wait()
            dead.set()
            raise Killed

    killed.window_done = hold
    with keeping_ledger(tmp_path / "a.ledger"), pytest.raises(Killed):
        killed.run(die_when_full)
    rest = prepare(configure(*shape, *later, f"run.resume={tmp_path / 'a'}"), run_path=tmp_path / "b")
    assert rest.first_step in (windows - 2, windows - 1, windows)
    with keeping_ledger(tmp_path / "b.ledger"):
        result = rest.run()
    account = settle(
        [Leg(tmp_path / "a.ledger", 0), Leg(tmp_path / "b.ledger", rest.first_step)], rest.total_steps
    )
    assert (account.lost(len(rest.documents.lengths), 2), account.repeated()) == (0, 0)
    assert sorted(account.steps) == list(range(rest.total_steps))
    # Steps, updates and the name of the next checkpoint follow each other (C102).
    assert result.steps_done == result.optimizer_updates == rest.total_steps == 2 * windows
    assert result.checkpoint == tmp_path / f"b/checkpoints/step-{rest.total_steps}"


class Killed(Exception):
    """What a killed trainer does as far as its checkpoints go: it ends between any two windows."""


def few_rows(directory: Path) -> Path:
    """A third of the small text, for several epochs in little time."""
    source = next(change for change in on_logical_devices if change.startswith("data.path="))
    rows = Path(source.partition("=")[2]).read_text(encoding="utf-8").splitlines(keepends=True)[:32]
    path = directory / "few.jsonl"
    path.write_text("".join(rows), encoding="utf-8")
    return path


def test_a_run_says_from_where_it_goes_on_and_what_has_changed(
    stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = Path(shutil.copytree(stopped, tmp_path / "before"))
    damaged = before / "checkpoints/step-4/model.safetensors"
    damaged.write_bytes(damaged.read_bytes()[:-1])
    config = configure(f"run.resume={before}", "split=2-1", "pipeline.token_budget=64")
    code, _ = Session(create_run(tmp_path / "run", command=["test"]), config).carry_out()
    assert code == 0
    resumed = RunDir(tmp_path / "run").manifest()["resumed"]
    assert resumed["from"] == str(before / "checkpoints/step-3")
    assert (resumed["step"], resumed["epoch"], resumed["window"], resumed["steps_lost"]) == (3, 0, 3, 1)
    err = capsys.readouterr().err
    assert f"resuming at step 3 (epoch 0, window 3) from {before}/checkpoints/step-3" in err
    assert "changed since: pipeline.split 1-1 → 2-1, pipeline.token_budget 256 → 64" in err
    assert f"warning: a checkpoint is damaged: {damaged}" in err
    assert "warning: going on from step-3: 1 step lost, to be trained again" in err


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


def test_nothing_left_to_train_is_refused(stopped: Path) -> None:
    with pytest.raises(ConfigError, match="nothing is left"):
        prepare(configure(f"run.resume={stopped}", "run.max_steps=4"))


def test_leftovers_of_a_killed_writer_go_when_a_run_starts(stopped: Path, tmp_path: Path) -> None:
    before = Path(shutil.copytree(stopped, tmp_path / "before"))
    here = tmp_path / "here"
    for run in (before, here):
        (run / "checkpoints/.step-9.123").mkdir(parents=True)
    prepare(configure(f"run.resume={before}"), run_path=here)
    assert not list(tmp_path.rglob(".step-*"))


def test_a_save_that_fails_costs_a_run_nothing_when_the_next_one_succeeds(
    straight: Straight, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer, warnings = prepare(configure(), run_path=tmp_path), []
    trainer.warned = warnings.append
    tries = iter((False, True, False, True, True, True))  # whether the disk is full at step 1, 2, 3, …

    def fill_disk(*arguments: Any) -> None:
        if not next(tries):
            raise OSError(errno.ENOSPC, "No space left on device")
        save_file(*arguments)

    monkeypatch.setattr("dflash.checkpoints.saving.save_file", fill_disk)
    result = trainer.run()
    assert result.losses == straight.result.losses
    assert (len(warnings), result.checkpoint) == (2, tmp_path / "checkpoints/step-6")
    assert all("No space left on device" in warning for warning in warnings)


def test_a_disk_that_stays_full_ends_the_run_in_words_and_keeps_what_was_saved(
    stopped: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(shutil.copytree(stopped, tmp_path / "run"))
    trainer = prepare(configure(f"run.resume={run}"), run_path=run)
    # Room for the weights, not for the three times as large optimizer state behind them.
    limit_bytes = 2 * (run / "checkpoints/step-4/model.safetensors").stat().st_size
    with no_file_larger_than(limit_bytes), pytest.raises(DFlashError, match="cannot be written") as caught:
        trainer.run()
    assert caught.value.exit_code == 1
    assert str(run / "checkpoints/step-6") in str(caught.value.where)
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
