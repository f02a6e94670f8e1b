"""One file per bottleneck; each rule is a pure function of a Timeline.

In the order of thought: enough data? → which queue is empty, which full, who waits → is the neighbour working
or copying → nothing wrong.
"""

from collections.abc import Callable

from profiler.finding import Finding
from profiler.rules import (
    allocator_fragmentation,
    drafter_too_slow,
    gil_contention,
    gradient_sync_wait,
    h2d_on_drafter_critical_path,
    host_memory_exhausted_swapping,
    host_staging_queue_too_deep,
    kernel_autotune_lock,
    link_bound,
    lockstep_schedule,
    not_enough_data,
    numa_remote_host_buffers,
    one_gpu_throttled,
    per_step_scalar_sync,
    prefetch_starvation,
    python_packing_loop,
    recompiles_from_varying_shapes,
    shared_device_wait,
    shared_queue_cross_device,
    slow_kernel_fallback,
    straggling_link,
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
    python_packing_loop.check,
    numa_remote_host_buffers.check,
    straggling_link.check,
    link_bound.check,
    per_step_scalar_sync.check,
    drafter_too_slow.check,
    gradient_sync_wait.check,
    lockstep_schedule.check,
    shared_device_wait.check,
    recompiles_from_varying_shapes.check,
    kernel_autotune_lock.check,
    allocator_fragmentation.check,
    host_memory_exhausted_swapping.check,
    gil_contention.check,
    one_gpu_throttled.check,
    slow_kernel_fallback.check,
    token_budget_too_small.check,
    target_bound_healthy.check,
)
