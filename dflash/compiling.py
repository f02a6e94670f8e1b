"""torch.compile and FX traces in a process full of threads.

FX keeps the state of a symbolic trace in the process. While any thread traces, compiled functions refuse to
run in all others, and so do ordinary modules, whose `__call__` the trace has replaced. So stages compute
inside `working`, and after `guard_traces` a trace by anybody waits until nobody does, while nobody begins.

All first compilations belong before the stages start (`warm_up`). Later ones, for arguments not seen before,
are made where they are needed; Dynamo makes one at a time. A function that cannot be compiled, or only again
and again, runs as it stands from then on, with one warning that says why. Knows nothing of what is compiled.
"""

from __future__ import annotations

import functools
import os
import threading
import time
import types
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, ParamSpec, TypeVar

import torch

from dflash.contract.errors import DFlashError
from dflash.contract.model_shapes import worth_compiling_hidden
from dflash.devices import Device

P = ParamSpec("P")
R = TypeVar("R")

backend = "inductor"
trace_wait_s = 120.0  # a trace that meets a compiled call may take so long
trace_retry_s = 0.002
refusal = "FX to symbolically trace"  # what a compiled function says while somebody traces


class CompilationWarning(UserWarning):
    """Something that was to be compiled runs as it stands."""


class TraceGate:
    """Many threads compute at once, or one traces. A trace that waits holds back those who would begin."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._working = 0
        self._tracing = False
        self._traces_waiting = 0
        self._inside = threading.local()

    @contextmanager
    def working(self, *, yielding: bool = True) -> Iterator[None]:
        """Compute inside; nests. Waits for a trace in progress and, if `yielding`, for those that wait.

        A thread that others wait for must not yield: one of autograd's, for which a stage waits in `working`.
        """
        if getattr(self._inside, "it", False):
            yield
            return
        with self._changed:
            while self._tracing or (yielding and self._traces_waiting):
                self._changed.wait()
            self._working += 1
        self._inside.it = True
        try:
            yield
        finally:
            self._inside.it = False
            with self._changed:
                self._working -= 1
                self._changed.notify_all()

    @contextmanager
    def tracing(self) -> Iterator[None]:
        """Trace inside, while nobody computes.

        A thread that computes, compiles or traces already goes on at once: its traces are the compiler's own,
        which leave other threads' modules alone, and those who compute may be waiting for it.
        """
        if getattr(self._inside, "it", False) or _compiling():
            yield
            return
        with self._changed:
            self._traces_waiting += 1
            try:
                while self._tracing or self._working:
                    self._changed.wait()
            finally:  # an interrupt must not hold back those who would begin for ever
                self._traces_waiting -= 1
                self._changed.notify_all()
            self._tracing = True
        self._inside.it = True
        try:
            yield
        finally:
            self._inside.it = False
            with self._changed:
                self._tracing = False
                self._changed.notify_all()


_gate = TraceGate()
_guarding = threading.Lock()
working = _gate.working


def _compiling() -> bool:
    """Whether the calling thread is inside a compilation."""
    return torch._guards.CompileContext.try_get() is not None


def is_worth_compiling(hidden: int, device_type: str) -> bool:
    """Whether layers of that width are compiled on such devices when it is left to us."""
    return device_type == "cuda" and hidden >= worth_compiling_hidden


def compiler_switch() -> str | None:
    """The debugging switch in the environment that turns torch.compile off, if one does."""
    for name in ("TORCHDYNAMO_DISABLE", "TORCH_COMPILE_DISABLE"):
        if os.environ.get(name, "0") == "1":  # the one value that torch takes for yes
            return f"{name}=1"
    return None


def guard_traces() -> None:
    """From now on every FX trace in this process waits its turn at the gate. Again and again does no harm."""
    with _guarding:
        trace = torch.fx.Tracer.trace
        if hasattr(trace, "waits_its_turn"):
            return

        @functools.wraps(trace)
        def trace_in_turn(self: torch.fx.Tracer, *args: Any, **kwargs: Any) -> torch.fx.Graph:
            with _gate.tracing():
                return trace(self, *args, **kwargs)

        trace_in_turn.waits_its_turn = True  # type: ignore[attr-defined]
        torch.fx.Tracer.trace = trace_in_turn  # type: ignore[method-assign]


class Compiled(Generic[P, R]):
    """A function compiled on its first call; see `compiled`."""

    def __init__(self, function: Callable[P, R], *, dynamic: bool | None) -> None:
        self._plain = function
        # Else every float of a module (a norm's epsilon) becomes a tensor and a number again in each call.
        torch._dynamo.config.specialize_float = True
        self._run = torch.compile(
            _with_own_cache(function),
            dynamic=dynamic,
            fullgraph=True,
            backend=backend,
            options=_options_for_any_size() if backend == "inductor" else None,
        )
        self._giving_up = threading.Lock()
        self.failure: str | None = None  # why it runs as it stands

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """The function's result; see `compiled`."""
        deadline_s = time.monotonic() + trace_wait_s
        while self.failure is None:
            try:
                with _gate.working(yielding=False):
                    return self._run(*args, **kwargs)
            except Exception as error:
                if type(error) is RuntimeError and refusal in str(error):
                    self._wait_for_trace(deadline_s)
                elif (reason := _why_not_compiled(error)) is not None:
                    self._give_up(reason)
                else:
                    raise
        return self._plain(*args, **kwargs)

    def _wait_for_trace(self, deadline_s: float) -> None:
        """Somebody traces outside the gate, or compiles; the call was refused before it began."""
        if time.monotonic() > deadline_s:
            raise DFlashError(
                "a compiled function cannot run, since another thread of this process traces with torch.fx",
                where=self._plain.__qualname__,
                found=f"a trace that lasted over {trace_wait_s:g} s, or whose state was left behind",
                remedy="trace before training starts, or set target.compile=off and drafter.attention=sdpa",
            )
        time.sleep(trace_retry_s)

    def _give_up(self, reason: str) -> None:
        with self._giving_up:
            if self.failure is None:
                self.failure = reason
                text = f"{self._plain.__qualname__} runs uncompiled, which is slower: {reason}"
                warnings.warn(text, CompilationWarning, stacklevel=3)


def compiled(function: Callable[P, R], *, dynamic: bool | None = True) -> Compiled[P, R]:
    """`function` as a compiled callable that any thread may call. It must have no effects but its result.

    It is compiled as a whole or not at all. Each one has compiled graphs of its own, so that the limit on
    recompilations (torch's, 8) counts it alone. With `dynamic`, sizes may change without another compilation;
    None: those that were marked. Raises DFlashError when a foreign trace keeps it from running.
    """
    return Compiled(function, dynamic=dynamic)


def warm_up(calls: Iterable[tuple[Device, Callable[[], object]]]) -> float:
    """Make the calls one after the other on this thread, each to its end on its device. Returns seconds.

    What they compile and allocate need not be when the stages run.
    """
    start_s = time.monotonic()
    for device, call in calls:
        with device.active():
            call()
            device.record().wait()
            if device.torch_device.type == "cuda":
                torch.cuda.empty_cache()  # what this thread's stream leaves, no stage's stream could take
    return time.monotonic() - start_s


def _options_for_any_size() -> dict[str, str | int | bool | Callable[..., Any]]:
    """Keeps Inductor from choices that hold for some sizes only, which it would guard.

    Whether two reductions of one tensor in different orders become one kernel it decides by the number of
    rows: a batch of 40 tiles of rows was another compilation than one of 39, in the midst of training.
    """
    known = hasattr(torch._inductor.config.triton, "mix_order_reduction")
    return {"triton.mix_order_reduction": False} if known else {}


def _with_own_cache(function: Callable[P, R]) -> Callable[P, R]:
    """A copy whose code is an object of its own: Dynamo keeps compiled graphs, and counts them, by code."""
    if not isinstance(function, types.FunctionType):
        return function
    copy = types.FunctionType(
        function.__code__.replace(),
        function.__globals__,
        function.__name__,
        function.__defaults__,
        function.__closure__,
    )
    copy.__kwdefaults__ = function.__kwdefaults__
    copy.__qualname__ = function.__qualname__
    return copy


def _why_not_compiled(error: Exception) -> str | None:
    """In one line, when it was the compiler that failed rather than what it compiled."""
    from torch._dynamo import exc

    if isinstance(error, exc.FailOnRecompileLimitHit):
        limit = torch._dynamo.config.recompile_limit
        return f"compiled {limit} times already, for arguments that keep changing in more than their sizes"
    if not isinstance(error, exc.TorchDynamoException):
        return None
    cause = error.__cause__ or error
    lines = [line.strip() for line in str(cause).splitlines() if line.strip()]
    return f"{type(cause).__name__}: {' '.join(lines[:2])[:300]}"
