"""The switch of the overhead benchmark: what is off leaves no event, and progress is noted either way."""

from __future__ import annotations

import queue
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.overhead_switch import Progress, Switch, SwitchedInstrument, SwitchedProbe, save_progress
from dflash.contract.events import event_schema
from dflash.contract.rundir import create_run, environment_variable
from profiler.run import Run


class Rows:
    """A log that keeps rows in memory."""

    def __init__(self) -> None:
        self.rows: list[tuple[Any, ...]] = []

    def append(self, row: tuple[Any, ...]) -> None:
        self.rows.append(row)


def test_both_sides_see_one_switch(tmp_path: Path) -> None:
    ours, theirs = Switch(tmp_path / "switch", create=True), Switch(tmp_path / "switch")
    seen = []
    for state in (Switch.on, Switch.off, Switch.over):
        ours.set(state)
        seen.append((theirs.is_on(), theirs.is_over()))
    assert seen == [(True, False), (False, False), (False, True)]
    assert not ours.is_ready()
    theirs.tell_ready()
    assert ours.is_ready()
    assert theirs.is_over()


def test_a_switched_probe_emits_while_on_also_once_bound(tmp_path: Path) -> None:
    switch, log = Switch(tmp_path / "switch", create=True), Rows()
    probe = SwitchedProbe(switch, log, "trainer").bind("drafter", 2, "cuda:1")
    for number, state in enumerate((Switch.on, Switch.off, Switch.on)):
        switch.set(state)
        with probe.span("backward", batch=number):
            pass
        probe.mark("take", batch=number)
        probe.gauge("depth", 1, batch=number)
    rows = [dict(zip(event_schema.names, row, strict=True)) for row in log.rows]
    assert [row["batch"] for row in rows] == [0, 0, 0, 2, 2, 2]
    assert {(row["stage"], row["index"], row["device"]) for row in rows} == {("drafter", 2, "cuda:1")}


def test_a_switched_instrument_tells_while_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = create_run(tmp_path / "run", command=["train"])
    monkeypatch.setenv(environment_variable, str(run.path))
    monkeypatch.setattr("dflash.contract.gil_range.learn_gil_range", lambda: (0x1000, 0x1030))
    switch = Switch(tmp_path / "switch", create=True)
    instrument = SwitchedInstrument(switch, {"launches": 1})
    watched = instrument.watch_queue(queue.Queue[int](2), "q_hs")
    with instrument.stage("drafter") as stage:
        for number, state in enumerate((Switch.on, Switch.off, Switch.on)):
            switch.set(state)
            watched.put(number)
            watched.get()
            with stage.work("backward", batch=number):
                pass
            instrument.window_done(1)
    instrument.close()
    events = Run.open(run.path).events
    assert events[events["name"] == "backward"]["batch"].tolist() == [0, 2]
    assert (events["stage"].isin(["drafter", "trainer"])).all()
    for name in ("put", "get", "window"):
        assert (events["name"] == name).sum() == 2, name


def test_progress_is_one_table_of_all_workers(tmp_path: Path) -> None:
    workers = [Progress(0), Progress(1)]
    for amount in (5, 7):
        workers[1].add(amount)
    workers[0].add(3)
    save_progress(tmp_path, workers)
    table = np.load(tmp_path / "progress.npy")
    assert table[:, [0, 2]].tolist() == [[0, 3], [1, 5], [1, 12]]
    assert (np.diff(table[1:, 1]) >= 0).all()
