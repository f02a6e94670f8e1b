"""A run that is tracked: TensorBoard reads back what the run's own events say, and nothing else changes."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dflash.contract.arrowlog import read_log
from dflash.contract.config import load_config
from dflash.contract.rundir import create_run
from dflash.session import Session
from dflash.trackers import feed
from tests.small_training import on_logical_devices

small = (
    *on_logical_devices,
    "run.checkpoint_every=0",
    "data.held_out=0.3",
    "run.evaluate_documents=3",
    "run.evaluate_every=1",
    "run.max_steps=2",
    "window.tokens=128",
    "target.layout=packed",  # needs no probe
)


@pytest.fixture
def sessions() -> Iterator[list[Session]]:
    opened: list[Session] = []
    yield opened
    for session in opened:
        session.interruption.remove()


def carry_out(path: Path, sessions: list[Session], *changes: str) -> dict[str, object]:
    config = load_config(None, (*small, *changes))
    session = Session(create_run(path, command=["test"]), config)
    sessions.append(session)
    code, document = session.carry_out()
    return {**document, "code": code}


def events_of(run: Path) -> list[dict[str, object]]:
    (log,) = (run / "events").glob("*.arrow")
    return read_log(log)[0].to_pylist()


def scalars(run: Path) -> dict[str, list[tuple[int, float]]]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    read = EventAccumulator(str(run / "trackers" / "tensorboard"))
    read.Reload()
    return {tag: [(e.step, e.value) for e in read.Scalars(tag)] for tag in read.Tags()["scalars"]}


def test_tensorboard_holds_what_the_events_hold_and_a_resumed_run_goes_on_at_its_step(
    tmp_path: Path, sessions: list[Session], capfd: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("tensorboard")
    first = carry_out(tmp_path / "first", sessions, "run.trackers=tensorboard")
    assert first["code"] == 0
    told = scalars(tmp_path / "first")
    windows = [json.loads(str(e["note"])) for e in events_of(tmp_path / "first") if e["name"] == "window"]
    assert told["train/loss"] == [(n, pytest.approx(note["loss"])) for n, note in enumerate(windows, start=1)]
    assert [step for step, _ in told["held_out/acceptance_length"]] == [1, 2]
    assert {
        "train_slots/accuracy_01",
        "held_out_slots/accuracy_03",
        "speed/tokens_per_s",
        "queues/q_pre",
    } <= set(told)
    second = carry_out(
        tmp_path / "second",
        sessions,
        "run.trackers=tensorboard",
        "run.max_steps=4",
        f"run.resume={tmp_path / 'first'}",
    )
    assert second["code"] == 0
    assert [step for step, _ in scalars(tmp_path / "second")["train/loss"]] == [3, 4]
    assert "warning: tracker" not in capfd.readouterr().err


def test_a_broken_tracker_is_one_warning_and_the_same_run(
    tmp_path: Path,
    sessions: list[Session],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("raise SystemExit('the server said 403')")
    monkeypatch.setattr(feed, "python_command", lambda: [sys.executable, str(broken)])
    tracked = carry_out(tmp_path / "tracked", sessions, "run.trackers=tensorboard")
    monkeypatch.undo()
    alone = carry_out(tmp_path / "alone", sessions)
    assert tracked["code"] == alone["code"] == 0
    for key in ("books", "learned"):
        assert tracked[key] == alone[key]
    told = [line for line in capfd.readouterr().err.splitlines() if "warning: tracker" in line]
    assert [line.partition(";")[0] for line in told] == [
        "warning: tracker tensorboard failed: the server said 403"
    ]
    warnings = [e["note"] for e in events_of(tmp_path / "tracked") if e["name"] == "warning"]
    assert len([text for text in warnings if "403" in str(text)]) == 1


def test_a_missing_package_is_refused_before_anything_is_loaded(
    tmp_path: Path,
    sessions: list[Session],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(feed, "find_spec", lambda name: None)
    document = carry_out(tmp_path / "run", sessions, "run.trackers=wandb")
    assert document["code"] == 2
    err = capfd.readouterr().err
    assert "dflash-tune[wandb]" in err
    assert "prepared" not in err
    assert json.loads((tmp_path / "run" / "run.json").read_text())["status"] == "failed"
