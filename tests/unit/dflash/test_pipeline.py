"""How a pipeline ends."""

from __future__ import annotations

import threading

import pytest

from dflash.contract.errors import StageError
from dflash.pipeline import PipelineState, PipelineStopped


class Part:
    def __init__(self) -> None:
        self.errors: list[BaseException] = []

    def abort(self, error: BaseException) -> None:
        self.errors.append(error)


def test_the_first_failure_reaches_every_part_and_its_echoes_do_not() -> None:
    parts = [Part(), Part()]
    state = PipelineState(parts)
    cause = ValueError("broken")
    state.fail(cause, stage="target 1", device="cuda:1", batch=7)
    state.fail(KeyError("echo"), stage="drafter 0", device="cuda:0", batch=3)
    first = state.first_error
    assert isinstance(first, StageError)
    assert (first.cause, first.stage, first.device, first.batch) == (cause, "target 1", "cuda:1", 7)
    assert first.__cause__ is cause
    assert [part.errors for part in parts] == [[first], [first]]


def test_of_many_failures_at_once_all_parts_hear_the_same_one() -> None:
    for _ in range(300):
        parts = [Part(), Part(), Part()]
        state = PipelineState(parts)
        gate = threading.Barrier(4)

        def fail(number: int, state: PipelineState = state, gate: threading.Barrier = gate) -> None:
            gate.wait()
            state.fail(ValueError(str(number)), stage="s", device="d", batch=number)

        threads = [threading.Thread(target=fail, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        heard = {id(error) for part in parts for error in part.errors}
        assert heard == {id(state.first_error)}


def test_what_is_said_after_the_first_error_reaches_nobody() -> None:
    part = Part()
    state = PipelineState([part])
    first = ValueError("first")
    state.abort(first)
    state.abort(ValueError("second"))
    assert part.errors == [first, first]


def test_a_stop_is_not_an_error_and_keeps_its_first_reason() -> None:
    part = Part()
    state = PipelineState([part])
    state.request_stop("asked")
    assert part.errors == []
    state.stop_now("again")
    state.fail(ValueError("late"), stage="s", device="d", batch=None)
    assert state.stop_reason == "asked"
    assert state.first_error is None
    assert [type(error) for error in part.errors] == [PipelineStopped]


class OutOfMemoryError(RuntimeError):
    """Called as torch calls it."""


@pytest.mark.parametrize(
    "cause",
    [
        OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes"),
        OSError(12, "Cannot allocate memory"),
        MemoryError(),
    ],
)
def test_who_ran_out_of_memory_is_told_what_to_lower(cause: Exception) -> None:
    error = StageError(cause, stage="drafter 0", device="cuda:3", batch=7)
    assert "pipeline.token_budget" in str(error.remedy)
    assert StageError(ValueError("broken"), stage="drafter 0", device="cuda:3").remedy is None
