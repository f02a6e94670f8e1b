"""One file per bottleneck; each rule is a pure function of a Timeline.

In the order of thought: enough data? → which queue is empty, which full, who waits → is the neighbour working
or copying → nothing wrong.
"""

from collections.abc import Callable

from profiler.finding import Finding
from profiler.rules import (
    drafter_too_slow,
    drafters_wait_at_window_end,
    gil_contention,
    h2d_on_drafter_critical_path,
    host_memory_exhausted_swapping,
    host_staging_queue_too_deep,
    not_enough_data,
    one_gpu_throttled,
    prefetch_starvation,
    recompiles_from_varying_shapes,
    shared_queue_cross_device,
    sync_d2h_on_critical_path,
    target_bound_healthy,
    token_budget_too_small,
)
from profiler.timeline import Timeline

Rule = Callable[[Timeline], list[Finding]]

all_rules: tuple[Rule, ...] = (
    not_enough_data.check,
    prefetch_starvation.check,
    shared_queue_cross_device.check,
    host_staging_queue_too_deep.check,
    h2d_on_drafter_critical_path.check,
    sync_d2h_on_critical_path.check,
    drafter_too_slow.check,
    drafters_wait_at_window_end.check,
    recompiles_from_varying_shapes.check,
    host_memory_exhausted_swapping.check,
    gil_contention.check,
    one_gpu_throttled.check,
    token_budget_too_small.check,
    target_bound_healthy.check,
)
