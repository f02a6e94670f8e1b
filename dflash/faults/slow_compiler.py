"""Faults of the compiler: new shapes that compile anew, kernel tuning that holds a lock others need.

Both use torch's own machinery, so that what is told of them is what a real run would tell.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable

import torch

from dflash.batch import Batch
from dflash.faults.rig import Rig

tuning_s = 0.1  # of one tuning
most_ahead_s = 0.1  # of compiling, before it is owed: the first one takes long, and is warm-up
batches_per_shape = 3  # of a target: tracing holds the GIL for some 50 ms, which drafters feel every time


def recompiles(rig: Rig, lost: float) -> None:
    """Targets meet new shapes all the time, and compile for each: really, but generating code is sleep."""
    from torch._dynamo import config  # before the stages start, so that its hooks are there

    due = threading.local()

    def generate(graph: torch.fx.GraphModule, _inputs: list[torch.Tensor]) -> Callable[..., object]:
        time.sleep(max(due.s - time.monotonic(), 0.0))
        return graph.forward

    function = torch.compile(_double, backend=generate, dynamic=False)
    shapes = itertools.count(2)
    more_s = rig.pace.forward_loss_s(lost)
    owed_s, met = [0.0] * rig.pace.targets, [0] * rig.pace.targets

    def act(index: int, batch: Batch) -> None:
        # Of each thread in some versions of torch; in others of all, and what `dynamic=False` sets while one
        # thread compiles another unsets: then a shape is taken as variable, and nothing compiles again.
        config.automatic_dynamic_shapes, config.assume_static_by_default = False, True
        config.recompile_limit = config.accumulated_recompile_limit = 1 << 30
        owed_s[index] += more_s * batch.tokens
        met[index] += 1
        if owed_s[index] > 0 and met[index] % batches_per_shape == 0:
            start_s = time.monotonic()
            due.s = start_s + owed_s[index]
            function(torch.zeros(next(shapes)))
            owed_s[index] = max(owed_s[index] - (time.monotonic() - start_s), -most_ahead_s)

    rig.forwarding.append(act)


def autotune_lock(rig: Rig, lost: float) -> None:
    """One target tunes kernels again and again under a lock that every launch takes."""
    import torch._dynamo.utils as dynamo

    lock = threading.Lock()
    more_s = rig.pace.interval_s * lost / (1 - lost)
    owed_s = 0.0
    tuned = dynamo.compilation_time_metrics.setdefault("CachingAutotuner.benchmark_all_configs", [])

    def act(_index: int, batch: Batch) -> None:
        nonlocal owed_s
        with lock:
            owed_s += more_s * batch.tokens
            if owed_s >= tuning_s:
                time.sleep(owed_s)
                tuned.append(owed_s)
                owed_s = 0.0

    rig.forwarding.append(act)


def _double(values: torch.Tensor) -> torch.Tensor:
    return values * 2
