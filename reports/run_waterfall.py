"""The steps from a run's measured rate to its limit, by the stage that allows least.

Arithmetic on the closing sums: a stage that works for the share b of its time at a rate r allows r / b alone,
and each wait or copy is a share of the same time. From there the ceilings of the hardware lead to the limit.
Knows nothing of how steps are drawn.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from profiler.capacity import Capacities, Loads, StageLoad
from profiler.hardware_limit import Limit
from profiler.throughput import Throughput
from profiler.waits import awaited
from reports import text
from reports.waterfall import Step

_least_share: Final = 0.003  # of the stage's time: smaller parts are one step
_words: Final = {"target": "targets", "drafter": "drafters"}


def step_to_limit(
    measured: Throughput, capacities: Capacities, loads: Loads | None, limit: Limit
) -> tuple[Step, ...]:
    """Measured, each loss of the limiting stage, that stage alone, its kernels, and the devices' limit."""
    first = Step(
        name="measured",
        role="work",
        reaches=measured.tokens_per_s,
        low=measured.low,
        high=measured.high,
        reason=measured.reason,
    )
    between = _between(measured.tokens_per_s, capacities, loads)
    last = Step(name="limit of the devices", role="rest", reaches=limit.tokens_per_s, reason=limit.reason)
    return (first, *between, *_beyond(between[-1].reaches, limit), last)


def _beyond(alone: float | None, limit: Limit) -> tuple[Step, ...]:
    """From what the stages allow at their own speed to what their GPUs do."""
    if alone is None or limit.as_split is None or limit.tokens_per_s is None:
        return ()
    steps = [_lost("kernels below the ceilings", "rest", alone, limit.as_split)]
    if limit.split is not None:
        name = f"split {limit.split}, the best of {text.count_of(limit.gpus or 0, 'GPU')}"
        steps.append(_lost(name, "rest", limit.as_split, limit.tokens_per_s))
    return tuple(steps)


def _between(rate: float | None, capacities: Capacities, loads: Loads | None) -> tuple[Step, ...]:
    targets, drafters = capacities.targets_alone, capacities.drafters_alone
    reason = capacities.reason or "the pace of a stage is unknown"
    if loads is None or targets is None or drafters is None:
        return (Step(name="stages alone", role="work", reaches=None, reason=reason),)
    if capacities.limit == "shared device":
        alone = capacities.allowed_tokens_per_s
        assert alone is not None
        step = Step(name="targets and drafters in turn", role="work", reaches=alone)
        lost = [] if rate is None else [_lost("everything but their work", "wait", rate, alone)]
        return (*lost, step)
    load, alone = (loads.target, targets) if targets <= drafters else (loads.drafter, drafters)
    end = Step(name=f"{_words[load.stage]} alone", role="work", reaches=alone)
    return (*([] if rate is None else _losses(load, rate)), end)


def _losses(load: StageLoad, rate: float) -> list[Step]:
    """Largest first. What is left between counting by windows and by batches comes before them."""
    pace = load.tokens_per_s
    assert pace is not None
    steps = []
    if abs(pace - rate) > _least_share * pace:
        steps.append(_lost("not yet in a window", "rest", rate, pace))
    removed, reached = 0.0, pace if steps else rate
    for name, role, share in _parts(load):
        removed += share
        after = pace / max(1.0 - removed, 1e-9)
        steps.append(_lost(name, role, reached, after))
        reached = after
    return steps


def _parts(load: StageLoad) -> list[tuple[str, str, float]]:
    """What the stage's time holds beside work: name, role, share."""
    waits: dict[str, float] = {}
    for name, share in load.waits.items():  # queues of one kind are one wait
        words = f"waits: {awaited(load.stage, name.partition(' ')[0])}"
        waits[words] = waits.get(words, 0.0) + share
    parts = [(words, "wait", share) for words, share in waits.items()]
    parts += [
        ("waits: the GIL", "wait", load.gil_wait),
        ("own copies via host", "copy", load.host_copies),
        ("own peer copies", "copy", load.peer_copies),
        ("waits: copies", "copy", load.copy_wait),
        ("not accounted for", "rest", load.unaccounted),
    ]
    shown = sorted((part for part in parts if part[2] >= _least_share), key=lambda part: -part[2])
    small = 1.0 - load.busy - sum(share for _, _, share in shown)
    return [*shown, *([("all else", "rest", small)] if small >= _least_share else [])]


def _lost(name: str, role: str, before: float, after: float) -> Step:
    return Step(name=name, role=role, reaches=after, gained=after - before)


def explain_limit(limit: Limit) -> str:
    """Where the limit comes from, for the line below the steps; empty where there is none."""
    each = limit.ceilings
    if limit.tokens_per_s is None or each is None:
        return ""
    figures = [
        (each.matmul_tflops, "TFLOP/s in bfloat16 products"),
        (each.memory_gb_per_s, "GB/s of memory"),
        (each.peer_gb_per_s, "GB/s to another GPU"),
        (each.down_gb_per_s, "GB/s to the host"),
    ]
    told = [f"{text.significant(value)}{text.nbsp}{words}" for value, words in figures if value]
    return (
        f"The limit takes every stage at the ceilings of {each.model} ({each.source}): "
        f"{', '.join(told)}, "
        "and nothing waiting. It is a bound that nothing reaches: docs/forecast.md says how it is made. "
        + "".join(f"{note[:1].upper()}{note[1:]}. " for note in limit.notes)
    ).rstrip()


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkRow:
    """How near a stage comes to the ceiling of products, for people."""

    stage: str
    per_token: str
    tflops: str
    working: str
    whole: str


def mark_rows(limit: Limit) -> list[MarkRow]:
    """A row for each stage whose operations are known."""
    return [
        MarkRow(
            stage=f"{_words[mark.stage]} ({text.count_of(mark.gpus, 'GPU')})",
            per_token=f"{text.significant(mark.per_token / 1e9)}{text.nbsp}GFLOP",
            tflops=text.missing()
            if mark.tflops is None
            else f"{text.significant(mark.tflops)}{text.nbsp}TFLOP/s",
            working=text.share(mark.working_share),
            whole=text.share(mark.whole_share),
        )
        for mark in limit.marks
    ]


def explain_steps(capacities: Capacities) -> str:
    """What the steps are, for the line above the chart."""
    said = (
        "Each step takes one kind of time away from the stage that allows least, those above it gone. "
        "Where another stage is nearly as slow, it comes into the way first."
    )
    if capacities.prefetch_alone is not None and capacities.limit == "prefetch":
        said += f" Prefetch allows less than both: {text.rate(capacities.prefetch_alone)}."
    return said
