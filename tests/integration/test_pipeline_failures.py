"""Whatever fails, wherever: the first cause is raised with its place, all threads end, nothing hangs."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from dflash.contract.config import load_config
from dflash.contract.errors import DFlashError, StageError
from dflash.links import Link
from dflash.replicas import Replica, ReplicaGroup
from dflash.target import Target
from dflash.trainer import StuckThreadsError, Trainer, prepare
from tests.small_training import on_logical_devices

small = (*on_logical_devices, "run.max_steps=1000")  # more than any test waits for


def make(*changes: str) -> Trainer:
    return prepare(load_config(None, (*small, *changes)))


class BoomError(Exception):
    """The planted failure."""


def fail_after(calls: int, method: Any) -> Any:
    """`method`, but the call after `calls` good ones raises."""
    lock, count = threading.Lock(), [0]

    def wrapped(*args: Any, **kwargs: Any) -> Any:
        with lock:
            count[0] += 1
            if count[0] > calls:
                raise BoomError("planted")
        return method(*args, **kwargs)

    return wrapped


earlier_threads: set[threading.Thread] = set()  # what other tests of this process left running


@pytest.fixture(autouse=True)
def tell_earlier_threads_apart() -> None:
    earlier_threads.clear()
    earlier_threads.update(threading.enumerate())


def stage_threads() -> list[str]:
    kinds = ("prefetch-", "target-", "drafter-", "link")
    started = set(threading.enumerate()) - earlier_threads
    return [thread.name for thread in started if thread.name.startswith(kinds)]


@pytest.mark.parametrize("preset", ["host", "shared", "pinned", "peer"])
@pytest.mark.parametrize(
    ("owner", "method", "stage"),
    [
        (Target, "forward", "target"),
        (Replica, "train", "drafter"),
        (ReplicaGroup, "complete", "drafter"),
    ],
)
@pytest.mark.parametrize("calls", [0, 3])
def test_a_failing_stage_ends_the_run_with_its_cause(
    monkeypatch: pytest.MonkeyPatch, preset: str, owner: type, method: str, stage: str, calls: int
) -> None:
    """C112."""
    trainer = make("split=2-2", f"transport={preset}", "transport.depth=1", "pipeline.prefetch_depth=1")
    monkeypatch.setattr(owner, method, fail_after(calls, getattr(owner, method)))
    with pytest.raises(StageError) as caught:
        trainer.run()
    assert isinstance(caught.value.cause, BoomError)
    assert caught.value.stage.startswith(stage)
    assert caught.value.device.startswith("logical:")
    assert caught.value.batch is not None
    assert stage_threads() == []


@pytest.mark.parametrize("preset", ["host", "shared", "pinned", "peer"])
@pytest.mark.parametrize("calls", [0, 3])
def test_a_failing_copy_ends_the_run_with_its_cause(
    monkeypatch: pytest.MonkeyPatch, preset: str, calls: int
) -> None:
    """C112, on a stage's own thread or on a link's."""
    trainer = make("split=2-2", f"transport={preset}", "transport.depth=1", "pipeline.prefetch_depth=1")
    monkeypatch.setattr(Link, "copy", fail_after(calls, Link.copy))
    with pytest.raises(StageError) as caught:
        trainer.run()
    assert isinstance(caught.value.cause, BoomError)
    assert stage_threads() == []


def test_a_consumer_that_dies_while_every_queue_is_full_ends_its_producers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C112."""
    trainer = make("split=2-2", "transport=peer", "transport.depth=1", "pipeline.prefetch_depth=1")

    def die(*_: Any) -> None:
        deadline = time.monotonic() + 30
        while any(depth < capacity for _, depth, capacity in trainer.depths()):
            assert time.monotonic() < deadline, "the queues never filled"
            time.sleep(0.002)
        raise BoomError("planted")

    monkeypatch.setattr(Replica, "train", die)
    with pytest.raises(StageError, match="planted") as caught:
        trainer.run()
    assert caught.value.stage.startswith("drafter")
    assert stage_threads() == []


def test_a_stage_that_runs_out_of_memory_says_what_it_had_in_hand_and_what_waited(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C118."""

    def full(*_: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.50 GiB")

    monkeypatch.setattr(Replica, "train", full)
    with pytest.raises(StageError) as caught:
        make("split=1-1").run()
    assert caught.value.found is not None
    assert "documents" in caught.value.found
    assert "anchors" in caught.value.found
    assert "waiting: q_pre " in caught.value.found
    assert "q_hs" in caught.value.found


def test_a_failing_prefetch_ends_the_run_while_everybody_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """C112, with every queue empty."""
    trainer = make("split=2-2")

    def broken(*_args: Any, **_kwargs: Any) -> Any:
        time.sleep(0.2)  # all others wait on empty queues by then
        raise BoomError("planted")
        yield

    monkeypatch.setattr("dflash.trainer.batches", broken)
    with pytest.raises(StageError, match="planted") as caught:
        trainer.run()
    assert caught.value.stage == "prefetch 0"
    assert stage_threads() == []


def test_a_loss_that_is_not_finite_stops_before_the_weights_are_harmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = make()
    before = {n: p.clone() for n, p in trainer.group.leader.drafter.state_dict().items()}
    forward = Target.forward

    def poisoned(self: Target, *args: Any) -> torch.Tensor:
        return forward(self, *args) * float("nan")

    monkeypatch.setattr(Target, "forward", poisoned)
    with pytest.raises(DFlashError, match="not finite"):
        trainer.run()
    for name, tensor in trainer.group.leader.drafter.state_dict().items():
        assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize("split", ["1-1", "2-2"])
def test_a_stop_request_ends_after_the_window_in_progress(split: str) -> None:
    trainer = make(f"split={split}")
    trainer.window_done = lambda window, figures: (
        trainer.state.request_stop("asked") if window.step == 2 else None
    )
    result = trainer.run()
    assert result.steps_done == 3
    assert result.stop_reason == "asked"
    assert result.batches_made == result.batches_trained + result.batches_dropped
    assert stage_threads() == []


def test_stopping_at_once_from_outside_never_hangs() -> None:
    for pause_s in (0.0, 0.05, 0.3):
        trainer = make("split=2-1", "transport=pinned")
        threading.Timer(pause_s, trainer.state.stop_now, ["now"]).start()
        result = trainer.run()
        assert result.stop_reason == "now"
        assert stage_threads() == []


def test_a_watch_that_fails_ends_the_threads_before_it_is_raised() -> None:
    trainer = make("split=2-2")
    with pytest.raises(BoomError):
        trainer.run(fail_after(2, lambda: None))
    assert stage_threads() == []


@pytest.mark.parametrize("asked", [False, True], ids=["failed", "stopped"])
def test_a_watch_that_fails_is_raised_even_from_a_run_that_was_stopped(asked: bool) -> None:
    trainer = make("split=1-1")

    def watch() -> None:
        if asked:
            trainer.state.stop_now("asked")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trainer.run(watch)
    assert stage_threads() == []


def test_what_a_broken_device_says_at_the_end_does_not_hide_the_first_cause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    trainer = make("split=1-1")
    finish = trainer.transport.finish

    def echo() -> None:
        finish()
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(trainer.transport, "finish", echo)
    monkeypatch.setattr(Replica, "train", fail_after(1, Replica.train))
    with pytest.raises(StageError, match="planted"):
        trainer.run()


def test_a_thread_that_is_stuck_holds_up_neither_a_stop_nor_a_failure(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("dflash.trainer.join_grace_s", 0.2)
    monkeypatch.setattr("dflash.trainer.stop_grace_s", 0.2)
    for end in ("stop_now", "abort"):
        trainer, freed = make("split=1-1"), threading.Event()
        call = functools.partial(getattr(trainer.state, end), "now" if end == "stop_now" else BoomError())

        def stick(*_: Any, freed: threading.Event = freed, call: Callable[[], None] = call) -> None:
            call()  # once it is there: what was ended before does not come here
            freed.wait()

        monkeypatch.setattr(Target, "forward", stick)
        with pytest.raises(StuckThreadsError) as caught:
            trainer.run()
        assert "target-0" in str(caught.value.where).split(", ")  # others may take more than 0.2 s to end
        freed.set()
        for thread in [t for t in threading.enumerate() if t.name.startswith("target-")]:
            thread.join(60)
