"""C118: who runs out of memory is told whether it was fragmentation, and what was in hand and waiting."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dflash.contract.errors import StageError
from dflash.contract.events import silent
from dflash.devices import LogicalDevice
from dflash.out_of_memory import asked_bytes, explain
from dflash.pipeline import PipelineState
from dflash.stages import Stage

torch_says = "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 139.72 GiB"
full = {"allocated_bytes": 138e9, "reserved_bytes": 139e9, "alloc_retries": 3.0}
torn = {"allocated_bytes": 120e9, "reserved_bytes": 139e9, "alloc_retries": 41.0}
batch: Any = SimpleNamespace(
    id=7,
    documents=(1, 2, 3),
    tokens=900,
    anchors=torch.zeros(12),
    layout=SimpleNamespace(processed_tokens=1024),
)
depths = [("q_pre", 8, 8), ("q_hs.0", 2, 2)]


def test_memory_that_is_free_in_pieces_is_fragmentation() -> None:
    text = explain(torch_says, torn, None, [])
    assert text.startswith(
        "fragmentation: 2.68 GB wanted, 120.00 GB in use of 139.00 GB reserved, 41 retries"
    )


def test_memory_that_is_not_there_is_true_need() -> None:
    assert explain(torch_says, full, None, []).startswith("true need: 2.68 GB wanted, 138.00 GB in use")


@pytest.mark.parametrize(
    ("error", "figures", "words"),
    [
        ("CUDA out of memory", torn, "how much was wanted is unknown"),
        (torch_says, {}, "is unknown: the device has no allocator"),
    ],
)
def test_what_cannot_be_told_is_not_guessed(error: str, figures: dict[str, float], words: str) -> None:
    text = explain(error, figures, batch, depths)
    assert words in text
    assert "fragmentation:" not in text
    assert "true need" not in text


def test_the_batch_and_the_queues_are_named() -> None:
    text = explain(torch_says, torn, batch, depths)
    assert "3 documents, 900 tokens (1024 with padding), 12 anchors" in text
    assert "waiting: q_pre 8/8, q_hs.0 2/2" in text


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("Tried to allocate 20.00 MiB (GPU 0; 79.15 GiB total)", 20 << 20),
        ("Tried to allocate 1.50 GiB.", 3 << 29),
        ("you tried to allocate 8 bytes. Error code 12", 8),
        ("out of memory", None),
    ],
)
def test_the_size_is_read_from_what_torch_says(text: str, asked: int | None) -> None:
    assert asked_bytes(text) == asked


class TornDevice(LogicalDevice):
    def memory_figures(self) -> dict[str, float]:
        return torn


class Failing(Stage):
    kind = "drafter"

    def __init__(self, error: Exception, state: PipelineState) -> None:
        super().__init__(0, TornDevice(3), state, silent)
        self.error = error

    def work(self) -> None:
        self.batch = batch
        raise self.error


def fail_with(error: Exception) -> StageError:
    state = PipelineState([])
    state.depths = lambda: depths
    stage = Failing(error, state)
    stage.thread.start()
    stage.thread.join(30)
    assert isinstance(state.first_error, StageError)
    return state.first_error


def test_a_stage_that_runs_out_of_memory_says_so_in_its_error() -> None:
    error = fail_with(torch.OutOfMemoryError(torch_says))
    assert (error.where, error.batch) == ("drafter 0 on logical:3, batch 7", 7)
    assert error.found is not None
    assert error.found.startswith("fragmentation: 2.68 GB wanted")
    assert "q_hs.0 2/2" in error.found
    assert "pipeline.token_budget" in str(error.remedy)


def test_a_device_that_refuses_its_figures_hides_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: TornDevice) -> dict[str, float]:
        raise RuntimeError("CUDA error: unspecified launch failure")

    monkeypatch.setattr(TornDevice, "memory_figures", refuse)
    error = fail_with(torch.OutOfMemoryError(torch_says))
    assert "Tried to allocate 2.50 GiB" in error.what
    assert error.found is None


def test_other_failures_are_not_told_as_memory() -> None:
    error = fail_with(ValueError("no anchor"))
    assert error.found is None
    assert error.remedy is None
