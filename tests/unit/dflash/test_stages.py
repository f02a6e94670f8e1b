"""In which order stages take, dispatch, wait for their device and give back.

Everything a stage touches writes into one journal; a device here has finished nothing until it is waited for.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dflash.batch import HiddenStates
from dflash.channel import Channel, ChannelClosed
from dflash.contract.events import silent
from dflash.devices import LogicalDevice
from dflash.pipeline import PipelineState
from dflash.schedule import Overlapped, Schedule, overlapped
from dflash.stages import DrafterStep, TargetForward

Journal = list[str]


class BehindDevice(LogicalDevice):
    """Runs behind Python: a moment is reached when somebody waits for it."""

    def __init__(self, journal: Journal) -> None:
        super().__init__(0)
        self.journal, self.recorded = journal, 0

    def record(self) -> Any:
        number, self.recorded = self.recorded, self.recorded + 1
        reached: list[bool] = []

        def wait() -> None:
            reached.append(True)
            self.journal.append(f"waited {number}")

        return SimpleNamespace(done=lambda: bool(reached), wait=wait, order_stream=wait)


def make_batches(*windows: int) -> list[Any]:
    """Batches of windows of those many batches."""
    infos = [SimpleNamespace(step=step, batches=count) for step, count in enumerate(windows)]
    owners = [info for info in infos for _ in range(info.batches)]
    return [SimpleNamespace(id=number, tokens=1, window=info) for number, info in enumerate(owners)]


class ScriptedTransport:
    """Gives out some items; tells what is sent and done."""

    def __init__(self, journal: Journal, batches: list[Any] = ()) -> None:  # type: ignore[assignment]
        self.journal = journal
        self.items = [HiddenStates(batch=batch, taps=torch.zeros(1)) for batch in batches]

    def recv(self, drafter: int, probe: object) -> HiddenStates:
        if not self.items:
            raise ChannelClosed
        self.journal.append(f"recv {self.items[0].batch.id}")
        return self.items.pop(0)

    def send(self, item: HiddenStates, target: int, probe: object) -> None:
        self.journal.append(f"send {item.batch.id}")

    def done(self, item: HiddenStates) -> None:
        self.journal.append(f"done {item.batch.id}")

    def close(self) -> None:
        self.journal.append("close")


class Turns:
    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def wait(self, batch: Any, probe: object) -> None:
        self.journal.append(f"turn {batch.id}")

    def sent(self, batch: Any) -> None:
        self.journal.append(f"sent {batch.id}")


class Progress:
    def __init__(self, journal: Journal) -> None:
        self.journal, self.trained = journal, 0

    def wait_for(self, window: Any, probe: object) -> None:
        self.journal.append(f"window {window.step}")

    def batch_trained(self, window: Any) -> bool:
        self.trained += 1
        return self.trained == window.batches


def run_drafter(*windows: int, schedule: Schedule = overlapped) -> Journal:
    journal: Journal = []
    device = BehindDevice(journal)
    transport, progress = ScriptedTransport(journal, make_batches(*windows)), Progress(journal)

    def complete(window: Any, probe: object) -> Any:
        journal.append(f"complete {window.step}")
        progress.trained = 0
        return SimpleNamespace(wait=lambda: journal.append(f"stepped {window.step}"))

    replica = SimpleNamespace(
        device=device,
        await_weights=lambda: journal.append("await weights"),
        train=lambda item: journal.append(f"train {item.batch.id}"),
    )
    DrafterStep(
        0, replica, transport, progress, complete, PipelineState([]), silent, schedule,  # type: ignore[arg-type]
    ).work()  # fmt: skip
    return journal


def run_target(*windows: int) -> Journal:
    journal: Journal = []
    source: Channel[Any] = Channel("q_pre", 100)
    source.add_writer()
    for batch in make_batches(*windows):
        source.put(batch, silent)
    source.close()
    target = SimpleNamespace(forward=lambda batch: journal.append(f"forward {batch.id}") or torch.zeros(1))
    TargetForward(
        0, BehindDevice(journal), target, source,  # type: ignore[arg-type]
        ScriptedTransport(journal), Turns(journal), PipelineState([]), silent,  # type: ignore[arg-type]
    ).work()  # fmt: skip
    return journal


def test_an_item_is_done_when_its_device_has_finished_with_it() -> None:
    journal = run_drafter(3, 2)
    for number in range(5):  # the device's moments are numbered as the batches are
        assert journal.index(f"train {number}") < journal.index(f"waited {number}")
        assert journal.index(f"waited {number}") < journal.index(f"done {number}")
        assert journal.count(f"done {number}") == 1


def test_batches_train_only_in_their_windows_time_and_behind_the_weights_of_the_step_before() -> None:
    journal = run_drafter(2, 1)
    training = [event for event in journal if event.startswith(("window", "await", "train"))]
    assert training == [
        "window 0", "await weights", "train 0",
        "window 0", "await weights", "train 1",
        "window 1", "await weights", "train 2",
    ]  # fmt: skip


def test_a_windows_step_is_enqueued_behind_its_last_batch_and_nobody_waits_for_either() -> None:
    journal = run_drafter(3, 2)
    assert journal.index("train 2") < journal.index("complete 0") < journal.index("recv 3")
    assert journal.index("train 3") < journal.index("waited 2"), "the next window is dispatched at once"
    assert journal.index("train 4") < journal.index("complete 1")
    assert not [line for line in journal if line.startswith("stepped")]


def test_in_lockstep_a_round_ends_when_the_step_is_made() -> None:
    journal: Journal = []

    class Rounds(Overlapped):
        in_phases = True

        def stepped(self) -> None:
            journal.append("round")

    journal += run_drafter(1, 1, schedule=Rounds())
    for number in range(2):
        assert journal.index(f"waited {number}") < journal.index(f"stepped {number}")
    assert journal.index("stepped 0") < journal.index("recv 1")


@pytest.mark.parametrize(("stage", "word"), [(run_drafter, "train"), (run_target, "forward")])
def test_a_stage_dispatches_one_batch_ahead_of_its_device(stage: Any, word: str) -> None:
    journal = stage(6)
    for number in range(2, 6):
        assert journal.index(f"waited {number - 2}") < journal.index(f"{word} {number}")
    for number in range(1, 6):  # and no less than one: it does not wait for the batch in hand
        assert journal.index(f"{word} {number}") < journal.index(f"waited {number - 1}")


def test_a_target_sends_in_its_turn_tells_so_after_and_closes_last() -> None:
    journal = [line for line in run_target(2, 1) if line.split()[0] in ("turn", "send", "sent", "close")]
    assert journal == [f"{word} {n}" for n in range(3) for word in ("turn", "send", "sent")] + ["close"]
