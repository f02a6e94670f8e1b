"""Somebody else's trainer tells of its queues and stages, exactly and without ever being harmed by it."""

from __future__ import annotations

import itertools
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pandas as pd
import pytest

from dflash.contract.arrowlog import ArrowLog
from dflash.contract.errors import RunError, UsageError
from dflash.contract.instrument import Instrument
from dflash.contract.rundir import RunDir, create_run, environment_variable
from profiler.run import Run
from profiler.timeline import Timeline


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDir:
    """A run being recorded, as far as the process in it can see."""
    made = create_run(tmp_path / "run", command=["train"])
    monkeypatch.setenv(environment_variable, str(made.path))
    monkeypatch.setattr("dflash.contract.gil_range.learn_gil_range", lambda: (0x1000, 0x1030))
    return made


@pytest.fixture
def instrument(run: RunDir) -> Iterator[Instrument]:
    made = Instrument()
    yield made
    made.close()


def events_of(run: RunDir, instrument: Instrument) -> pd.DataFrame:
    instrument.close()
    return Run.open(run.path).events


def test_unrecorded_it_does_nothing_and_imports_nothing(tmp_path: Path, repository: Path) -> None:
    code = (
        "import sys, queue\n"
        "from dflash.contract.instrument import Instrument\n"
        "i = Instrument(); plain = queue.Queue(2); assert i.watch_queue(plain, 'q') is plain\n"
        "with i.stage('target') as s:\n"
        "    with s.work('forward', tokens=1), s.copy('peer'), s.wait('get'): plain.put(plain)\n"
        "    s.took(home=True); i.window_done(1, loss=0.5); i.depth('q', 1)\n"
        "i.close()\n"
        "assert not i.recorded\n"
        "print([m for m in ('pyarrow', 'numpy', 'torch', 'ctypes') if m in sys.modules])"
    )
    environment = {**os.environ, "PYTHONPATH": str(repository)}
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "[]", done.stderr
    assert list(tmp_path.iterdir()) == []


def test_waits_go_to_the_stage_of_the_thread(run: RunDir, instrument: Instrument) -> None:
    q_hs: queue.Queue[int] = instrument.watch_queue(queue.Queue(3), "q_hs")

    def produce() -> None:
        with instrument.stage("target", 1, "cuda:1"):
            q_hs.put(5)

    thread = threading.Thread(target=produce, name="feeder")
    thread.start()
    assert q_hs.get() == 5  # by this thread, which is in no stage
    thread.join()
    events = events_of(run, instrument)
    spans = events[events["kind"] == "span"].set_index("name")
    assert spans.loc["put", ["stage", "index", "device", "channel"]].tolist() == [
        "target",
        1,
        "cuda:1",
        "q_hs",
    ]
    assert spans.loc["get", "stage"] == "MainThread"
    assert spans.loc["put", "tid"] != spans.loc["get", "tid"]
    gauges = events[events["kind"] == "gauge"]
    assert gauges[["name", "value"]].values.tolist() == [["capacity", 3.0], ["depth", 1.0], ["depth", 0.0]]


def test_depths_are_in_their_true_order_whatever_the_threads_do(run: RunDir, instrument: Instrument) -> None:
    for kind in (queue.Queue, queue.LifoQueue, queue.PriorityQueue):
        watched: queue.Queue[int] = instrument.watch_queue(kind(4), kind.__name__)
        threads = [
            threading.Thread(target=lambda q=watched: [q.put(i) for i in range(200)]) for _ in range(3)
        ]
        threads += [
            threading.Thread(target=lambda q=watched: [q.get() for _ in range(200)]) for _ in range(3)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    events = events_of(run, instrument)
    for channel, mine in events[events["name"] == "depth"].groupby("channel", observed=True):
        values = mine["value"].tolist()
        assert len(values) == 1200, channel
        steps = [after - before for before, after in zip([0.0, *values], values, strict=False)]
        assert {abs(step) for step in steps} == {1.0}
        assert 0 <= min(values) <= max(values) <= 4
        assert values[-1] == 0


def test_refused_puts_and_gets_tell_their_wait_and_no_depth(run: RunDir, instrument: Instrument) -> None:
    watched: queue.Queue[int] = instrument.watch_queue(queue.Queue(1), "q")
    with pytest.raises(queue.Empty):
        watched.get_nowait()
    watched.put_nowait(1)
    with pytest.raises(queue.Full):
        watched.put(2, timeout=0.01)
    events = events_of(run, instrument)
    assert events.loc[events["kind"] == "span", "name"].tolist() == ["get", "put", "put"]
    assert events.loc[events["name"] == "depth", "value"].tolist() == [1.0]


class SlowCount:
    """Counts, and lets other threads in between a number and whatever is done with it."""

    def __init__(self) -> None:
        self._count = itertools.count()

    def __next__(self) -> int:
        number = next(self._count)
        time.sleep(1e-4 * (number % 3))
        return number


def test_windows_are_numbered_in_the_order_of_their_times(
    run: RunDir, instrument: Instrument, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(instrument, "_windows", SlowCount())

    def finish() -> None:
        for _ in range(200):
            instrument.window_done(10, loss=float("nan"), lr=0.1)

    threads = [threading.Thread(target=finish) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    marks = events_of(run, instrument)
    marks = marks[marks["name"] == "window"]
    assert marks["window"].tolist() == list(range(800))
    assert set(marks["note"]) == {'{"loss": null, "lr": 0.1}'}


def test_a_pipeline_of_unknown_stages_has_closing_sums_and_waits(run: RunDir, instrument: Instrument) -> None:
    with instrument.stage("encoder", 2) as stage:
        with stage.work("encode", tokens=7):
            pass
        with stage.wait("get", "q_raw"):
            pass
        instrument.depth("q_raw", 1, capacity=8)
    instrument.close()
    timeline = Timeline.of(Run.open(run.path))
    assert set(timeline.threads["stage"]) == {"encoder"}
    assert {"work", "wait", "unaccounted"} <= set(timeline.threads["kind"])
    lo_ns, hi_ns = timeline.range_ns
    assert timeline.threads["ns"].sum() == hi_ns - lo_ns
    assert timeline.service.loc[0, "tokens"] == pytest.approx(7)


def test_copies_and_takes_are_as_rules_read_them(run: RunDir, instrument: Instrument) -> None:
    with instrument.stage("drafter", 0, "cuda:1") as stage:
        stage.took(home=False, size_bytes=10)
        with stage.copy("peer", 10, src="cuda:0", dst="cuda:1"):
            pass
    events = events_of(run, instrument).set_index("name")
    assert events.loc["take", ["note", "bytes"]].tolist() == ["away", 10]
    assert events.loc["copy", ["path", "src", "dst", "bytes"]].tolist() == ["peer", "cuda:0", "cuda:1", 10]


def test_the_manifest_learns_of_the_process_once(run: RunDir) -> None:
    first, second = Instrument(workload={"model": "tiny"}), Instrument(workload={"model": "other"})
    first.close()
    second.close()
    manifest = run.manifest()
    assert manifest["pids"]["trainer"] == os.getpid()
    assert manifest["workload"] == {"model": "tiny"}
    assert manifest["gil"]["futex_low"] == 0x1000
    assert len(list(run.events.iterdir())) == 2


def test_a_run_that_cannot_be_written_to_is_told_and_training_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment_variable, str(tmp_path / "gone"))
    with pytest.warns(RuntimeWarning, match="not recorded from inside"):
        instrument = Instrument()
    assert not instrument.recorded
    assert instrument.watch_queue(queue.Queue(), "q").empty()


def test_events_lost_at_the_end_are_told(instrument: Instrument, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(log: ArrowLog) -> None:
        raise RunError("the log could not be written")

    with monkeypatch.context() as patch:
        patch.setattr(ArrowLog, "close", fail)
        with pytest.warns(RuntimeWarning, match="events were lost"):
            instrument.close()


def test_what_cannot_be_watched_is_refused_recorded_or_not(instrument: Instrument) -> None:
    with pytest.raises(UsageError, match="cannot be watched"):
        instrument.watch_queue([], "q")  # type: ignore[type-var]
    watched: queue.Queue[int] = instrument.watch_queue(queue.Queue(), "q")
    with pytest.raises(UsageError, match="watched already"):
        instrument.watch_queue(watched, "q2")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # 3.12: forking with threads
def test_a_forked_child_falls_silent(run: RunDir, instrument: Instrument) -> None:
    watched: queue.Queue[int] = instrument.watch_queue(queue.Queue(), "q")
    stage = instrument.stage("target")
    child = os.fork()
    if child == 0:
        try:
            watched.put(1)
            with stage, stage.work("forward"):
                instrument.window_done(1)
            os._exit(int(instrument.recorded))
        finally:
            os._exit(3)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert instrument.recorded
    assert len(events_of(run, instrument)) == 0


def test_a_stage_within_a_stage_gives_the_thread_back(run: RunDir, instrument: Instrument) -> None:
    watched: queue.Queue[int] = instrument.watch_queue(queue.Queue(), "q")
    with instrument.stage("outer"):
        with instrument.stage("inner"):
            watched.put(1)
        watched.put(2)
    events = events_of(run, instrument)
    assert events.loc[events["name"] == "put", "stage"].tolist() == ["inner", "outer"]


def test_an_instrument_that_another_thread_closes_during_a_call_is_no_trouble(run: RunDir) -> None:
    class Fading(Instrument):
        looks = itertools.count()

        @property
        def recorded(self) -> bool:
            return next(self.looks) % 2 == 0  # gone at the second look, whenever that is

    instrument = Fading()
    for _ in range(2):
        with instrument.stage("target") as stage:
            for _ in range(2):
                with stage.work("forward", tokens=1), stage.wait("get"), stage.copy("peer"):
                    stage.took(home=True)
            next(instrument.looks)  # now every call meets the other of its two looks
    instrument.close()
