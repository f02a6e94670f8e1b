"""A named cause in prose: what happens, who waits for whom, what its end would bring.

Knows nothing of how a cause is found, nor of how words are shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from profiler.capacity import Loads, StageLoad, measure_loads
from profiler.finding import Finding
from profiler.rules.verdicts import percent
from profiler.timeline import Timeline

least_share: Final = 0.05  # of a stage's time: a shorter wait explains nothing
least_gain: Final = 0.005  # less is none
clearly_less: Final = 0.9  # than all that is lost
_awaited: Final = {  # by stage and wait: what it waits for
    ("target", "get q_pre"): "the next packed batch from prefetch",
    ("target", "put q_hs"): "room in the queue to the drafters",
    ("target", "window_turn"): "the window before to be sent",
    ("target", "barrier"): "the drafters' half of the step",
    ("target", "device_wait"): "the drafter that shares their device",
    ("drafter", "get q_hs"): "the next batch from the targets",
    ("drafter", "window_wait"): "the others at the end of a window",
    ("drafter", "barrier"): "the targets' half of the step",
    ("drafter", "device_wait"): "the target that shares their device",
}


def explain(finding: Finding, timeline: Timeline) -> str:
    """One to three sentences on a supported finding."""
    loads = measure_loads(_stretch(timeline, finding))
    say = mechanisms.get(finding.cause)
    parts = ["" if loads is None or say is None else say(loads)]
    if loads is not None and finding.is_sickness:
        parts.append(_who_waits(loads))
    parts.append(_gain(finding))
    return " ".join(part for part in parts if part)


def _stretch(timeline: Timeline, finding: Finding) -> Timeline:
    """The part of a run that changed in which the finding held longest."""

    def shared(part: Timeline) -> float:
        return min(part.range_s[1], finding.range_s[1]) - max(part.range_s[0], finding.range_s[0])

    return max(timeline.segments, key=shared, default=timeline)


def _who_waits(loads: Loads) -> str:
    """The longest wait of targets or drafters for another stage; empty where nobody waits long."""
    waits = [
        (part, load, name)
        for load in (loads.target, loads.drafter)
        for name, part in load.waits.items()
        if part >= least_share and (load.stage, name) in _awaited
    ]
    if not waits:
        return ""
    part, load, name = max(waits, key=lambda wait: wait[0])
    what = _awaited[load.stage, name]
    return f"{_whole(load).capitalize()} wait{_s(load)} {percent(part)} of the time for {what}."


def _gain(finding: Finding) -> str:
    """What removing it is forecast to bring; what it costs stands in the headline."""
    gain = finding.predicted_gain
    if not finding.is_sickness:
        return ""
    if gain is None:
        return (
            ""
            if finding.measured_cost_share is not None
            else "What it costs, only a run without it can tell."
        )
    if gain < least_gain:
        return "The forecast expects no gain from removing it alone: something else would set the pace."
    text = f"Without it the forecast is {percent(gain)} more tokens per second"
    lost = finding.measured_cost_share
    if lost is not None and lost < 1 and gain < clearly_less * lost / (1 - lost):
        return f"{text}: not all that is lost, since something else would then set the pace."
    return f"{text}."


def _whole(load: StageLoad) -> str:
    return f"the {load.stage}" if load.threads == 1 else f"the {load.stage}s"


def _each(load: StageLoad) -> str:
    """A stage as the subject of a sentence in the singular."""
    return f"{'the' if load.threads == 1 else 'each'} {load.stage}"


def _s(load: StageLoad) -> str:
    return "s" if load.threads == 1 else ""


def _fetching(loads: Loads) -> str:
    mine = loads.drafter
    return (
        f"{_each(mine).capitalize()} spends {percent(mine.host_copies)} of its time fetching batches up from "
        f"host memory on its own thread, and trains nothing meanwhile.{_holding_up(loads)}"
    )


def _storing(loads: Loads) -> str:
    mine = loads.target
    return (
        f"{_each(mine).capitalize()} spends {percent(mine.host_copies)} of its time copying hidden states "
        f"down to host memory on its own thread, and computes nothing meanwhile.{_holding_up(loads)}"
    )


def _holding_up(loads: Loads) -> str:
    """On a GPU that roles share: what one's copies do to the other."""
    held = max((loads.target, loads.drafter), key=lambda load: load.held)
    if held.held < least_share:
        return ""
    other = loads.drafter if held is loads.target else loads.target
    return (
        f" Nobody else gets anything done on their GPU then: {_whole(held)} stand{_s(held)} still "
        f"{percent(held.held)} of the time while {_whole(other)} cop{'ies' if _s(other) else 'y'}."
    )


def _starving(loads: Loads) -> str:
    mine = loads.target
    return (
        f"The host packs batches more slowly than the targets forward them: {_each(mine)} waits "
        f"{percent(mine.wait('get q_pre'))} of its time for the next one."
    )


def _moving(loads: Loads) -> str:
    mine = loads.drafter
    return (
        "All drafters take from one queue, on whichever device a batch lives: "
        f"{_each(mine)} spends {percent(mine.peer_copies)} of its time moving batches that live elsewhere."
    )


def _packing(loads: Loads) -> str:
    mine = loads.target
    return (
        f"Between two forwards {_each(mine)} packs hidden states by the host, {percent(mine.gather)} of its "
        "time, while its device idles."
    )


def _syncing(loads: Loads) -> str:
    mine = max((loads.target, loads.drafter), key=lambda load: load.gpu_wait)
    return (
        f"In every step {_each(mine)} asks its device for a number and stands until it has come: "
        f"{percent(mine.gpu_wait)} of its time, in which it could have prepared the next step."
    )


def _outpaced(loads: Loads) -> str:
    target, drafter = loads.target, loads.drafter
    return (
        f"{_whole(drafter).capitalize()} work{_s(drafter)} {percent(drafter.busy)} of the time and still "
        f"fall{_s(drafter)} behind: "
        f"{_whole(target)} could deliver more than that, and work{_s(target)} only {percent(target.busy)}."
    )


def _link_bound(loads: Loads) -> str:
    target, drafter = loads.target, loads.drafter
    return (
        f"Hidden states take longer to arrive than to make or to train on: {_whole(target)} "
        f"wait{_s(target)} {percent(target.copy_wait)} of the time for a free send buffer, {_whole(drafter)} "
        f"{percent(drafter.copy_wait)} for the copy of the next batch."
    )


def _taking_turns(loads: Loads) -> str:
    target, drafter = loads.target, loads.drafter
    return (
        f"Every batch is forwarded, then trained on, and only then comes the next: {_whole(target)} "
        f"work{_s(target)} {percent(target.busy)} of the time, {_whole(drafter)} {percent(drafter.busy)}, "
        "and hardly ever both at once."
    )


def _in_turns(loads: Loads) -> str:
    target, drafter = loads.target.gil_wait, loads.drafter.gil_wait
    return (
        "Only one thread at a time runs Python: while another holds the GIL, stages with work to do stand "
        f"still (targets {percent(target)} of their time, drafters {percent(drafter)})."
    )


def _small(loads: Loads) -> str:
    mine = max((loads.target, loads.drafter), key=lambda load: load.occupied)
    return (
        f"{_whole(mine).capitalize()} never rest{_s(mine)} (at work {percent(mine.occupied)} of the time), "
        "but most of a batch's time goes to starting its work, which a larger batch would share among more "
        "tokens."
    )


def _fallback(loads: Loads) -> str:
    mine = max((loads.target, loads.drafter), key=lambda load: load.busy)
    return (
        f"{_whole(mine).capitalize()} work{_s(mine)} {percent(mine.busy)} of the time and set{_s(mine)} the "
        "pace, with kernels that stand in for faster ones."
    )


def _healthy(loads: Loads) -> str:
    mine = max((loads.target, loads.drafter), key=lambda load: load.occupied)
    other = loads.drafter if mine is loads.target else loads.target
    them = "it" if mine.threads == 1 else "them"
    busy = percent(mine.busy)
    if loads.device_work:
        return (
            f"The devices that both share are at work {percent(loads.device_work)} of the time, for one or "
            "the other; nothing holds them up."
        )
    if min(mine.turn_wait, other.turn_wait) >= least_share:
        return (
            f"{_whole(mine).capitalize()} work{_s(mine)} {busy} of the time, and in the rest the same device "
            f"works for {_whole(other)}, or {_whole(mine)} wait{_s(mine)} for a turn."
        )
    said = f"{_whole(mine).capitalize()} work{_s(mine)} {busy} of the time; nothing holds {them} up."
    if other.waiting < least_share:
        return said
    faster = f"{_whole(other)} wait{_s(other)} {percent(other.waiting)} of it, being faster"
    return f"{said} {faster[0].upper()}{faster[1:]}."


def _always(words: str) -> Callable[[Loads], str]:
    return lambda _: words


mechanisms: Final[Mapping[str, Callable[[Loads], str]]] = {
    "sync-d2h-on-critical-path": _storing,
    "h2d-on-drafter-critical-path": _fetching,
    "host-staging-queue-too-deep": _fetching,
    "shared-queue-cross-device": _moving,
    "python-packing-loop": _packing,
    "per-step-scalar-sync": _syncing,
    "drafter-too-slow": _outpaced,
    "lockstep-schedule": _taking_turns,
    "link-bound": _link_bound,
    "shared-device-wait": _always(
        "A device that targets and drafters share does one thing at a time: while it works for one, the "
        "other stands still, and elsewhere a device idles."
    ),
    "gil-contention": _in_turns,
    "token-budget-too-small": _small,
    "slow-kernel-fallback": _fallback,
    "target-bound-healthy": _healthy,
    "not-enough-data": _always("What was seen is too short, or too little of it was told, to name a cause."),
    "prefetch-starvation": _starving,
    "gradient-sync-wait": _always(
        "At the end of a window drafters that are done stand until the last one is: only then are gradients "
        "summed."
    ),
    "recompiles-from-varying-shapes": _always(
        "A batch of a new length is compiled before it runs, and the rest of the pipeline stands meanwhile."
    ),
    "kernel-autotune-lock": _always(
        "While one thread times kernels to choose from, it holds a lock that all others need."
    ),
    "allocator-fragmentation": _always(
        "Free memory of the GPU lies in pieces too small for the next batch: the allocator gives its cache "
        "back to the driver and asks anew, which stops the device."
    ),
    "host-memory-exhausted-swapping": _always(
        "The run no longer fits into host memory: pages go to disk and come back, and every copy through "
        "host memory waits for them."
    ),
    "numa-remote-host-buffers": _always(
        "Host buffers of some GPUs lie on the other memory node: their copies cross between the sockets, and "
        "their stages wait for them."
    ),
    "straggling-link": _always(
        "One link is far slower than those that should be its equals, and the stages at its ends wait for "
        "its copies."
    ),
    "one-gpu-throttled": _always(
        "One device is slower than its siblings, and the pipeline gets less from it than from each of them."
    ),
}
