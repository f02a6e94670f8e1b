"""All faults by name. docs/fault-injection.md describes them."""

from __future__ import annotations

from dflash.faults import busy_python, slow_compiler, slow_copies, slow_stages
from dflash.faults.fault import Fault, Setting

healthy = Fault(
    name="none", cause="target-bound-healthy", does="the pace alone", plant=lambda _rig, _strength: None
)
_host: dict[str, Setting] = {"transport.preset": "host"}
_two_drafters: dict[str, Setting] = {"pipeline.split": "2-2"}

catalogue: dict[str, Fault] = {
    fault.name: fault
    for fault in (
        Fault(
            name="sync-copy",
            cause="sync-d2h-on-critical-path",
            does="targets copy states to host memory on their own thread",
            plant=slow_copies.slow_to_host,
            knobs=_host,
        ),
        Fault(
            name="python-packing",
            cause="python-packing-loop",
            does="targets gather states in a Python loop before sending",
            plant=busy_python.python_packing,
        ),
        Fault(
            name="shared-queue",
            cause="shared-queue-cross-device",
            does="drafters take batches that lie on another drafter's device and move them over a slow link",
            plant=slow_copies.slow_between_drafters,
            knobs={**_two_drafters, "transport.preset": "shared", "transport.depth": 4},
        ),
        Fault(
            name="upload",
            cause="h2d-on-drafter-critical-path",
            does="drafters copy states from host memory on their own thread",
            plant=slow_copies.slow_from_host,
            knobs=_host,
        ),
        Fault(
            name="deep-queue",
            cause="host-staging-queue-too-deep",
            does="the same behind a queue of 24 large batches, which it fills",
            strengths=(0.2, 0.4, 0.6),  # weaker ones fill no queue within seconds
            plant=slow_copies.slow_from_host,
            knobs={
                **_host,
                "transport.depth": 24,
                "pipeline.token_budget": 1024,
                "window.tokens": 1024,
                "drafter.taps": tuple(range(8)),
                "run.max_steps": 45,
            },
        ),
        Fault(
            name="gil-hog",
            cause="gil-contention",
            does="a thread of pure Python beside the stages",
            unit="share of the time that it runs",
            plant=busy_python.gil_hog,
            knobs={"pipeline.switch_interval_ms": 5.0},
        ),
        Fault(
            name="slow-data",
            cause="prefetch-starvation",
            does="packing takes longer than the targets need",
            plant=slow_stages.slow_data,
        ),
        Fault(
            name="slow-drafter",
            cause="drafter-too-slow",
            does="a drafter's step takes longer than two targets need",
            plant=slow_stages.slow_drafter,
            knobs={"window.tokens": 1536, "run.max_steps": 20},  # several drafters can share it evenly
        ),
        Fault(
            name="slow-target",
            cause="one-gpu-throttled",
            does="target 0 computes at a part of its sibling's pace",
            below=0.5,
            strengths=(0.12, 0.2, 0.35),
            plant=slow_stages.slow_target,
        ),
        Fault(
            name="recompiles",
            cause="recompiles-from-varying-shapes",
            does="targets compile anew for new shapes",
            plant=slow_compiler.recompiles,
        ),
        Fault(
            name="remote-buffers",
            cause="numa-remote-host-buffers",
            does="copies of target 0 to its host buffers are slow, its sibling's are not",
            below=0.5,
            strengths=(0.12, 0.2, 0.35),
            plant=slow_copies.remote_buffers,
            knobs=_host,
        ),
        Fault(
            name="straggling-link",
            cause="straggling-link",
            does="copies of target 0 to the first drafter are slow, its sibling's are not",
            plant=slow_copies.straggling_link,
            knobs={"transport.preset": "peer"},
        ),
        Fault(
            name="slow-links",
            cause="link-bound",
            does="copies of all targets to drafters are slow",
            plant=slow_copies.slow_links,
            knobs={"transport.preset": "peer"},
        ),
        Fault(
            name="scalar-sync",
            cause="per-step-scalar-sync",
            does="targets wait for their device after every forward, to read one number",
            plant=slow_stages.scalar_sync,
        ),
        Fault(
            name="small-batches",
            cause="token-budget-too-small",
            does="every forward has a fixed cost, whatever its tokens",
            unit="share of a forward of 256 tokens",
            plant=slow_stages.small_batches,
            knobs={"window.tokens": 4096, "run.max_steps": 15},  # there is room for larger ones
        ),
        Fault(
            name="slow-kernels",
            cause="slow-kernel-fallback",
            does="forwards take longer, with a fallback kernel",
            plant=slow_stages.slow_kernels,
        ),
        Fault(
            name="autotune-lock",
            cause="kernel-autotune-lock",
            does="a target tunes kernels under a lock that all launches take",
            plant=slow_compiler.autotune_lock,
        ),
        Fault(
            name="slow-gradients",
            cause="gradient-sync-wait",
            does="gradients of the second drafter arrive late at every window's end",
            plant=slow_copies.slow_gradients,
            knobs=_two_drafters,
        ),
    )
}
