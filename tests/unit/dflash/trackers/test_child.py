"""The process of a tracker: what it is told reaches the tracker's own interface.

TensorBoard's files are written and read with the real package. wandb and trackio are stood in for by modules
that take down the calls of their public interface.
"""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from dflash.trackers.child import track

points = [
    {"step": step, "time_s": 1e9 + step, "values": {"train/loss": 8.0 - step, "held_out/loss": 0.5}}
    for step in (5, 6, 7)
]


@pytest.fixture(autouse=True)
def _signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def lines(run: Path, *, end: str | None = "finished") -> list[str]:
    messages: list[dict[str, Any]] = [{"run": str(run), "config": {"run.epochs": 2}}, *points]
    return [json.dumps(m) for m in (*messages, *([] if end is None else [{"end": end}]))]


def test_tensorboard_reads_back_what_was_said(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    assert track("tensorboard", lines(tmp_path)) == 0
    read = EventAccumulator(str(tmp_path / "trackers" / "tensorboard"))
    read.Reload()
    assert sorted(read.Tags()["scalars"]) == ["held_out/loss", "train/loss"]
    losses = read.Scalars("train/loss")
    assert [(e.step, e.wall_time, e.value) for e in losses] == [
        (5, 1e9 + 5, 3.0),
        (6, 1e9 + 6, 2.0),
        (7, 1e9 + 7, 1.0),
    ]


class Calls(list[Any]):
    """Takes down calls by name, and answers with an object that does the same."""

    def module(self) -> SimpleNamespace:
        def called(name: str) -> Any:
            def take(*args: Any, **kwargs: Any) -> Any:
                self.append((name, args, kwargs))
                return module

            return take

        module = SimpleNamespace(**{name: called(name) for name in ("init", "log", "finish")})
        return module


@pytest.mark.parametrize(("end", "code"), [("finished", 0), ("stopped", 0), ("failed", 1), (None, 1)])
def test_wandb_is_told_steps_config_and_how_it_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, end: str | None, code: int
) -> None:
    calls = Calls()
    monkeypatch.setitem(sys.modules, "wandb", calls.module())
    assert track("wandb", lines(tmp_path, end=end)) == 0
    start, *logged, finish = calls
    assert start[2]["name"] == tmp_path.name
    assert start[2]["config"] == {"run.epochs": 2}
    assert start[2]["dir"] == str(tmp_path / "trackers")
    assert [(call[2]["step"], call[1][0]["train/loss"]) for call in logged] == [(5, 3.0), (6, 2.0), (7, 1.0)]
    assert finish == ("finish", (), {"exit_code": code})


def test_trackio_is_told_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    monkeypatch.setitem(sys.modules, "trackio", calls.module())
    assert track("trackio", lines(tmp_path)) == 0
    start, *logged, finish = calls
    assert (start[2]["name"], start[2]["config"]) == (tmp_path.name, {"run.epochs": 2})
    assert [(call[2]["step"], call[1][0]["held_out/loss"]) for call in logged] == [
        (5, 0.5),
        (6, 0.5),
        (7, 0.5),
    ]
    assert finish[0] == "finish"


def test_a_torn_line_ends_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls = Calls()
    monkeypatch.setitem(sys.modules, "wandb", calls.module())
    assert track("wandb", [*lines(tmp_path, end=None), '{"step": 8, "val']) == 0
    assert [call[0] for call in calls] == ["init", "log", "log", "log", "finish"]


def test_nothing_at_all_is_nothing(tmp_path: Path) -> None:
    assert track("tensorboard", []) == 0
    assert list(tmp_path.iterdir()) == []
