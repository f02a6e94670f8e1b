"""Nothing is wrong: the pipeline runs at nearly the pace of its targets (or both sides are balanced)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from profiler.capacity import Loads, measure_loads
from profiler.device_places import places_of
from profiler.finding import Evidence, Finding, Remedy, Verdict
from profiler.gpus import little_work, power_of_little_work
from profiler.rules import (
    allocator_fragmentation,
    drafter_too_slow,
    gil_contention,
    gradient_sync_wait,
    host_copies,
    kernel_autotune_lock,
    link_bound,
    lockstep_schedule,
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
    token_budget_too_small,
)
from profiler.rules.remedies import moved_device
from profiler.rules.verdicts import (
    compared_cost_share,
    healthy_efficiency,
    lacking,
    named_cost_share,
    no_forecast,
    percent,
    quantity,
    queue_evidence,
    share,
    unjudged,
)
from profiler.timeline import Timeline

cause: Final = "target-bound-healthy"
_balanced = 0.9  # of the targets' pace from which the drafters count as equally busy


def check(timeline: Timeline) -> list[Finding]:
    """Supported when work fills the time of the stage that limits and no sickness is worth naming."""
    loads = measure_loads(timeline)
    if loads is None:
        return [replace(unjudged(cause, timeline), is_sickness=False)]
    verdict, confidence, summary = _decide(timeline, loads)
    target, drafter = loads.target, loads.drafter
    healthy = "a healthy state has no cost"
    return [
        Finding(
            cause=cause,
            verdict=verdict,
            confidence=confidence,
            summary=summary,
            range_s=timeline.range_s,
            evidence=(
                share("efficiency", efficiency(timeline, loads), "a stage's own pace is unknown"),
                share("targets working", target.busy),
                share("drafters working", drafter.busy),
                share(
                    "drafters waiting for targets",
                    drafter.wait("get q_hs"),
                    "no spans of drafters",
                ),
                queue_evidence(timeline, "q_hs", "low_share"),
                *_split_evidence(timeline, loads),
            ),
            remedy=_remedy(timeline, loads) if verdict == "supported" else None,
            condition="the targets' forward itself is as fast as the hardware allows",
            is_sickness=False,
            measured_cost_share=None,
            measured_cost_reason=healthy,
            predicted_cost_s=None,
            predicted_cost_reason=healthy,
            predicted_gain=None,
            predicted_gain_reason=no_forecast,
        )
    ]


def efficiency(timeline: Timeline, loads: Loads) -> float | None:
    """Today's pace over what work alone would allow: the share of time that the limiting stage works.

    Where both stages have the same devices, what it waits for its turn while they do other work is work, too.
    """
    stages = (loads.target, loads.drafter)
    limiting = max(stages, key=lambda load: load.busy)
    if any(load.tokens_per_s is None for load in stages):
        return None
    places = places_of(timeline)
    if not places.all_shared:
        return limiting.busy
    if loads.device_work:
        return loads.device_work
    of_a_device = sum(load.busy * load.threads for load in stages) / places.both
    return limiting.busy + max(min(limiting.turn_wait, of_a_device - limiting.busy), 0.0)


def _decide(timeline: Timeline, loads: Loads) -> tuple[Verdict, float, str]:
    reached = efficiency(timeline, loads)
    lack = lacking(timeline)
    if lack is not None or reached is None:
        return "not_enough_evidence", 0.0, f"Not judged: {lack or 'a stage’s own pace is unknown'}."
    if (sickness := _sickness(timeline, loads)) is not None:
        return "rejected", 0.9, sickness
    blocked = loads.target.wait("put q_hs")
    sharing = places_of(timeline).all_shared
    if blocked >= named_cost_share and loads.drafter.busy < healthy_efficiency and not sharing:
        return (
            "rejected",
            0.7,
            (
                f"Rejected: targets wait {percent(blocked)} of the time for room, and yet drafters work only "
                f"{percent(loads.drafter.busy)}."
            ),
        )
    if reached < healthy_efficiency:
        return (
            "rejected",
            0.7,
            f"Rejected: work fills only {percent(reached)} of the time of the busiest stage.",
        )
    if (idle_work := _little_work(timeline, loads)) is not None:
        return "rejected", 0.7, idle_work
    certainty = 0.6 + 0.35 * (reached - healthy_efficiency) / (1.0 - healthy_efficiency)
    if sharing:
        worked = f"{percent(loads.target.busy)} and {percent(loads.drafter.busy)}"
        text = f"Healthy: targets and drafters share their devices, and are at work {worked} of the time."
        return "supported", certainty, text
    balanced = loads.drafter.busy >= _balanced * loads.target.busy
    return (
        "supported",
        certainty,
        (
            f"Healthy and balanced: targets work {percent(loads.target.busy)} of the time, drafters "
            f"{percent(loads.drafter.busy)}."
            if balanced
            else f"Healthy and target-bound: targets work {percent(loads.target.busy)} of the time; that "
            f"drafters wait ({percent(loads.drafter.waiting)}) is as it should be."
        ),
    )


def _sickness(timeline: Timeline, loads: Loads) -> str | None:
    """What another rule has a cost or a name for; None when nothing is worth naming."""
    costs = {
        "waiting for input": prefetch_starvation.cost(timeline, loads),
        "drafters' work": drafter_too_slow.cost(timeline, loads),
        "waits for copies": link_bound.cost(timeline, loads),
        "copies through host memory": host_copies.cost(timeline, loads),
        "waits for a shared device": shared_device_wait.cost(timeline, loads),
        "taking turns": lockstep_schedule.cost(timeline, loads),
        "waits at window ends": gradient_sync_wait.cost(timeline, loads),
        "recompilations": recompiles_from_varying_shapes.cost(timeline, loads),
        "swapping": timeline.host_memory.lost_share,
        "waits for the GIL": gil_contention.cost(timeline, loads),
        "moves between drafters": shared_queue_cross_device.cost(timeline, loads),
        "waits for the own device": per_step_scalar_sync.cost(timeline, loads),
        "packing in Python": python_packing_loop.cost(timeline, loads),
        "tuning of kernels": kernel_autotune_lock.cost(timeline, loads),
        "time of batches that no token explains": token_budget_too_small.cost(timeline, loads),
    }
    worst = max(costs, key=lambda name: costs[name] or 0.0)
    if (lost := costs[worst] or 0.0) >= named_cost_share:
        return f"Rejected: {worst} cost {percent(lost)} of the throughput."
    goes_on = allocator_fragmentation.goes_on(timeline)
    retries = allocator_fragmentation.cost(timeline, loads) if goes_on else 0.0
    compared = {
        "slow copies of some GPUs": numa_remote_host_buffers.cost(timeline, loads) or 0.0,
        "a slow link": straggling_link.cost(timeline, loads) or 0.0,
        "a GPU held down": one_gpu_throttled.cost(timeline, loads) or 0.0,
        "retries of the allocator": retries or 0.0,
    }
    worst = max(compared, key=lambda name: compared[name])
    if compared[worst] >= compared_cost_share:
        return f"Rejected: {worst} cost {percent(compared[worst])} of the throughput."
    if slow := slow_kernel_fallback.hampered(timeline, loads):
        return f"Rejected: it runs on slow fallback kernels ({', '.join(slow)})."
    return None


def _little_work(timeline: Timeline, loads: Loads) -> str | None:
    """Why a busy limiting stage is no sign of health; None where its GPUs draw power, or are unknown."""
    stage = "target" if loads.target.busy >= loads.drafter.busy else "drafter"
    power_share = power_of_little_work(timeline.gpus, stage)
    if power_share is None:
        return None
    return (
        f"Rejected: GPUs of {stage}s look busy and draw {percent(power_share)} of their limit: {little_work}."
    )


def _faster_split(timeline: Timeline, loads: Loads) -> tuple[dict[str, str | int | float], float | None]:
    """A split with one more target, where by proportion it is faster than now."""
    knobs, bound = moved_device(timeline, loads, to_drafters=-1)
    now = loads.target.tokens_per_s
    return (knobs, bound) if bound and now and bound > (1 + named_cost_share) * now else ({}, None)


def _split_evidence(timeline: Timeline, loads: Loads) -> list[Evidence]:
    knobs, bound = _faster_split(timeline, loads)
    return (
        [quantity(f"split {knobs['pipeline.split']} at most, by proportion", bound, "tokens/s")]
        if knobs
        else []
    )


def _remedy(timeline: Timeline, loads: Loads) -> Remedy:
    knobs, _ = _faster_split(timeline, loads)
    if knobs:
        return Remedy(
            f"Nothing to fix. By proportion, pipeline.split={knobs['pipeline.split']} could be faster.", knobs
        )
    if places_of(timeline).all_shared:
        return Remedy("Nothing to fix; more devices, or a faster forward or step, would help.")
    return Remedy("Nothing to fix; more targets, or a faster forward, would help.")
