"""Tells of torch.compile at work: a span `compile` on the stage whose thread compiled, a gauge `recompiles`.

Costs nothing while nothing compiles, and never imports the compiler itself. A gauge `autotune_s` is the time
that torch's compiler has spent timing kernels to choose from. What it cannot see: waits for the locks of its
autotuner (torch has no hook; they are held while it compiles and while it tunes, no longer), kernels that
Triton tunes by itself, and backward graphs compiled on autograd's own threads, which are told as stage
`trainer`. Knows nothing of what is compiled.
"""

from __future__ import annotations

import sys
import threading
import time
from collections import Counter
from types import ModuleType
from typing import Any

from dflash.contract.events import Probe

_hooks_module = "torch._dynamo.callback"
_times_module, _times_name = "torch._dynamo.utils", "compilation_time_metrics"  # {phase: [seconds, …]}
_tuner = "CachingAutotuner."
_choosing = ("benchmark_all_configs", "coordinate_descent_tuning", "combo_sequential_autotune")


class CompileWatch:
    """Listens to torch's compile hooks from `install` to `remove`.

    A compilation lies inside whatever its thread was doing: its span nests in `forward` or `backward`.
    """

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._probes: dict[int, Probe] = {}  # by thread ident
        self._began_ns: dict[int, int] = {}
        self._compiled: set[tuple[tuple[str, int], str]] = set()
        self._recompiles: Counter[tuple[str, int]] = Counter()
        self._hooks: ModuleType | None = None
        self._tuned_s: float | None = None  # as last told

    def add_thread(self, thread: threading.Thread, probe: Probe) -> None:
        """Compilations of this thread, which has been started, are told through `probe`."""
        if thread.ident is not None:
            self._probes[thread.ident] = probe

    def install(self) -> bool:
        """Listen, if the compiler has been imported by now; whether we do. Cheap to call again and again."""
        if self._hooks is None and (hooks := sys.modules.get(_hooks_module)) is not None:
            hooks.on_compile_start(self._begin)
            hooks.on_compile_end(self._end)
            self._hooks = hooks
        return self._hooks is not None

    def look(self) -> None:
        """Listen if that is possible by now, and tell of autotuning since the last look."""
        if self.install() and (tuned_s := _tuning_s()) is not None and tuned_s != self._tuned_s:
            self._tuned_s = tuned_s
            self._probe.gauge("autotune_s", tuned_s)

    def remove(self) -> None:
        """Stop listening."""
        if self._hooks is not None:
            self._hooks.callback_handler.remove_start_callback(self._begin)
            self._hooks.callback_handler.remove_end_callback(self._end)
            self._hooks = None

    def _begin(self, _what: Any) -> None:
        self._began_ns[threading.get_ident()] = time.monotonic_ns()

    def _end(self, what: Any) -> None:
        ident = threading.get_ident()
        began_ns = self._began_ns.pop(ident, None)
        if began_ns is None:  # two threads compiled at once: torch tells the first start and the last end
            return
        probe = self._probes.get(ident, self._probe)
        compile_id = str(what.compile_id)
        probe.emit_span("compile", began_ns, time.monotonic_ns(), note=compile_id)
        # Ids are FUNCTION/ATTEMPT. Attempts are not what counts here: of several equal stages each compiles
        # the function once for its own device, and torch counts all of them.
        stage, function = (probe.stage, probe.index), compile_id.rpartition("/")[0]
        if (stage, function) in self._compiled:
            self._recompiles[stage] += 1
            probe.gauge("recompiles", self._recompiles[stage])
        self._compiled.add((stage, function))


def _tuning_s() -> float | None:
    """Seconds that the compiler has spent timing kernels in this process; None where it does not count."""
    times = getattr(sys.modules.get(_times_module), _times_name, None)
    if not isinstance(times, dict):
        return None
    return float(sum(sum(times.get(_tuner + phase, ())) for phase in _choosing))
