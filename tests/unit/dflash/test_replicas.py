"""What a window's end does with gradients, devices and time; drafters here are single matrices."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from dflash.batch import WindowInfo
from dflash.contract.config import load_config
from dflash.contract.errors import DFlashError
from dflash.contract.events import Probe, event_schema, silent
from dflash.devices import LogicalDevice, Moment, reached
from dflash.replicas import Replica, ReplicaGroup
from dflash.trainer import prepare
from tests.small_training import on_logical_devices

window = WindowInfo(
    step=3,
    epoch=0,
    batches=2,
    documents=2,
    tokens=8,
    supervised_tokens=8,
    processed_tokens=8,
    denominator=4.0,
)


class LateMoment:
    """Reached when it is waited for; `at_wait` sees the moment before. Counts who is ordered behind it."""

    def __init__(self, at_wait: Callable[[], None] = lambda: None) -> None:
        self.at_wait, self.is_reached, self.orders = at_wait, False, 0

    def done(self) -> bool:
        return self.is_reached

    def wait(self) -> None:
        self.at_wait()
        self.is_reached = True

    def order_stream(self) -> None:
        self.orders += 1


class AsynchronousDevice(LogicalDevice):
    """A device that has done nothing of what was enqueued until its moments are waited for."""

    def __init__(self, index: int, at_wait: Callable[[], None] = lambda: None) -> None:
        super().__init__(index)
        self.at_wait = at_wait

    def record(self) -> Moment:
        return LateMoment(self.at_wait)


class OneMatrix:
    """The part of a Replica that a window's end needs."""

    def __init__(self, device: LogicalDevice, gradient: Tensor) -> None:
        self.device, self.drafter = device, nn.Linear(2, 2, bias=False)
        nn.init.zeros_(self.drafter.weight)
        self.parameters = list(self.drafter.parameters())
        self._gradient: Tensor | None = gradient
        self.settled: Moment = reached
        self.handed_out = weakref.ref(gradient)

    def take_gradients(self) -> list[Tensor | None]:
        gradient, self._gradient = self._gradient, None
        return [gradient]

    def take_figures(self) -> Tensor:
        # 2 of loss, states of 8 tokens, 1 of 2 slots correct.
        return torch.tensor([2.0, 0.0, 0.0, 8.0, 0.0, 1.0, 0.0, 2.0])


class Rows:
    """Keeps events as dictionaries."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def append(self, row: tuple[Any, ...]) -> None:
        self.events.append(dict(zip(event_schema.names, row, strict=True)))


def group_of(*replicas: OneMatrix) -> ReplicaGroup:
    return ReplicaGroup(cast(list[Replica], list(replicas)), load_config(None), total_steps=10)


def test_gradients_live_until_the_device_that_reads_them_is_done() -> None:
    # Freed before, their memory goes back to the owner's stream, which knows nothing of the readers:
    # a drafter that already receives the next window's states would have them written over gradients.
    alive: list[bool] = []
    leader = OneMatrix(AsynchronousDevice(0), torch.ones(2, 2))
    other = OneMatrix(AsynchronousDevice(1), torch.ones(2, 2))
    leader.device.at_wait = lambda: alive.append(other.handed_out() is not None)  # type: ignore[attr-defined]
    end = group_of(leader, other).complete(window, [reached, reached], silent)
    assert other.handed_out() is not None
    end.figures(silent)
    assert alive
    assert all(alive)
    assert other.handed_out() is None


def test_gradients_of_a_single_drafter_are_free_for_the_next_window_at_once() -> None:
    # They are read on the stream that made them; held, there would be two sets of them.
    leader = OneMatrix(AsynchronousDevice(0), torch.ones(2, 2))
    end = group_of(leader).complete(window, [LateMoment()], silent)
    assert not end.moment.done()
    assert leader.handed_out() is None


def test_waiting_for_the_other_drafters_devices_is_a_span() -> None:
    rows = Rows()
    moments: list[Moment] = [LateMoment() for _ in range(2)]
    replicas = [OneMatrix(LogicalDevice(i), torch.ones(2, 2)) for i in range(2)]
    group_of(*replicas).complete(window, moments, Probe(rows, "drafter"))
    assert all(moment.done() for moment in moments)
    assert all(moment.orders for moment in moments), "sums are ordered behind what they add"  # type: ignore[attr-defined]
    assert [event["name"] for event in rows.events] == ["window_wait", "sum", "optimizer"]
    assert {event["window"] for event in rows.events} == {3}


def test_no_wait_is_told_where_there_was_none() -> None:
    rows = Rows()
    replica = OneMatrix(LogicalDevice(0), torch.ones(2, 2))
    end = group_of(replica).complete(window, [LogicalDevice(0).record()], Probe(rows, "drafter"))
    figures = end.figures(silent)
    assert [event["name"] for event in rows.events] == ["sum", "optimizer"]
    assert (figures.loss, figures.accuracy, figures.grad_norm) == (0.5, 0.5, 2.0)


def test_an_idle_replica_adds_nothing_and_gets_the_weights_all_the_same() -> None:
    working, idle = (
        OneMatrix(LogicalDevice(0), torch.ones(2, 2)),
        OneMatrix(LogicalDevice(1), torch.ones(2, 2)),
    )
    idle.take_gradients()
    idle.take_figures = lambda: None  # type: ignore[method-assign,return-value]
    end = group_of(working, idle).complete(window, [LogicalDevice(0).record(), None], silent)
    figures = end.figures(silent)
    assert (figures.loss, figures.grad_norm) == (0.5, 2.0)
    assert torch.equal(idle.drafter.weight, working.drafter.weight)
    assert bool(idle.drafter.weight.any())


def test_the_next_step_waits_until_the_weights_before_have_been_read() -> None:
    leader, other = (OneMatrix(LogicalDevice(i), torch.ones(2, 2)) for i in range(2))
    group = group_of(leader, other)
    still_reading = LateMoment()
    other.settled = still_reading
    group.complete(window, [], silent)
    assert still_reading.orders == 1
    assert other.settled is not still_reading


def test_sums_have_the_same_bits_every_time() -> None:
    gradients = [torch.rand(2, 2, generator=torch.Generator().manual_seed(i)) * 10.0**i for i in range(4)]
    found = set()
    for _ in range(5):
        replicas = [OneMatrix(LogicalDevice(i), gradient.clone()) for i, gradient in enumerate(gradients)]
        group_of(*replicas).complete(window, [], silent)
        found.add(replicas[-1].drafter.weight.detach().numpy().tobytes())
    assert len(found) == 1


def test_nothing_waits_for_the_step_of_a_single_drafter() -> None:
    waited: list[str] = []
    leader = OneMatrix(AsynchronousDevice(0, at_wait=lambda: waited.append("step")), torch.ones(2, 2))
    end = group_of(leader).complete(window, [LateMoment(lambda: waited.append("trained"))], silent)
    assert waited == []
    assert leader.settled is end.moment, "the next window trains behind the step"
    end.figures(silent)
    assert waited == ["step"]


def test_after_a_gradient_that_is_not_finite_no_step_changes_the_weights() -> None:
    # The windows behind it are enqueued before anybody on the host can know.
    leader = OneMatrix(LogicalDevice(0), torch.full((2, 2), float("nan")))
    group = group_of(leader)
    poisoned = group.complete(window, [], silent)
    leader._gradient = torch.ones(2, 2)
    following = group.complete(window, [], silent)
    assert not leader.drafter.weight.any()
    for end in (poisoned, following):
        with pytest.raises(DFlashError, match="not finite"):
            end.figures(silent)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_replica_that_nobody_needs_gives_its_weights_back(dtype: str) -> None:
    # Gigabytes of a GPU stayed with every trainer of a process.
    trainer = prepare(load_config(None, (*on_logical_devices, f"drafter.dtype={dtype}", "run.max_steps=2")))
    trainer.run()
    weights = [weakref.ref(parameter) for parameter in trainer.group.leader.parameters]
    del trainer
    gc.collect()
    assert not [weight for weight in weights if weight() is not None]
