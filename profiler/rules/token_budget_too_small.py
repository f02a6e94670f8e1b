"""Batches are too small for the GPUs: some kernel always runs, and yet they draw little power.

Where power is unknown, time that a batch takes whatever its tokens shows it, and prices it.

Utilisation hides it, since it says only that a kernel was resident. What larger batches would bring cannot be
read off a run whose batches are all alike: then this cause has no price. Knows nothing of memory.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import pandas as pd

from dflash.contract.errors import ConfigError
from profiler.capacity import Loads, StageLoad, measure_loads
from profiler.cpu_waits import cpu_wait
from profiler.finding import Finding, Remedy, Scalar, Verdict
from profiler.gpus import full_work, power_of_little_work
from profiler.rules.verdicts import (
    healthy_efficiency,
    lacking,
    named_cost_share,
    no_forecast,
    percent,
    quantity,
    share,
    unjudged,
)
from profiler.timeline import Timeline

cause: Final = "token-budget-too-small"
small_batch_tokens: Final = 8192.0  # more fill a GPU: there, little power has another reason
mostly_fixed: Final = 0.4  # of a batch's time that no token explains, where waits for the GIL are unknown
left_fixed: Final = 0.1  # of it that larger batches may leave
least_batches: Final = 20  # through which a line is fitted
least_spread: Final = 0.05  # standard deviation of their tokens, of the mean
_unpriced: Final = "only a run with larger batches tells what they bring"
_confidence: Final = 0.8


@dataclass(frozen=True, slots=True)
class FixedCost:
    """Of a batch's time, what its tokens do not explain."""

    share: float  # as fitted, less what the stage waited meanwhile for the GIL
    least: float  # the same less three standard errors
    tokens: float  # of a batch in which it would be no more than `left_fixed`


def cost(timeline: Timeline, loads: Loads) -> float | None:
    """Share of the throughput lost to what a batch costs whatever its tokens; None where that is not sure."""
    load = _limiting(loads)
    gpus, fixed = timeline.gpus[timeline.gpus["role"] == load.stage], fixed_cost(timeline, load)
    unknown_power = power_of_little_work(gpus, load.stage) is None and not (gpus["work"] == full_work).any()
    sure = fixed is not None and fixed.least >= _least_named(timeline, load)
    small = (_batch_tokens(load) or np.inf) <= small_batch_tokens
    return fixed.share if fixed is not None and sure and small and unknown_power else None


def check(timeline: Timeline) -> list[Finding]:
    """Supported when the limiting stage works all the time, on small batches, and its GPUs do little."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    load = _limiting(loads)
    gpus = timeline.gpus[timeline.gpus["role"] == load.stage]
    tokens, fixed = _batch_tokens(load), fixed_cost(timeline, load)
    verdict, summary = _decide(timeline, loads, gpus, tokens, fixed)
    price = cost(timeline, loads)
    return [
        Finding(
            cause=cause,
            verdict=verdict,
            confidence=0.0 if verdict == "not_enough_evidence" else _confidence,
            summary=summary,
            range_s=timeline.range_s,
            evidence=(
                quantity("tokens a batch", tokens, "", "no work with token counts was recorded"),
                share(
                    f"time of a {load.stage}'s batch that no token explains, at least",
                    None if fixed is None else max(fixed.least, 0.0),
                    "its batches are too few, too alike, or not what it spends its time on",
                ),
                share(
                    f"power of {load.stage}s' GPUs while busy, of the limit", _mean(gpus, "busy_power_share")
                ),
                share(f"utilisation of {load.stage}s' GPUs, which hides it", _mean(gpus, "util_pct", 0.01)),
                share("SMs active on them", _mean(gpus, "sm_active_pct", 0.01)),
                share(f"{load.stage}s working or waiting for the GIL", load.busy + load.gil_wait),
            ),
            remedy=_remedy(timeline, tokens, fixed) if verdict == "supported" else None,
            condition="memory has room, and no slow fallback kernels are in use (they look the same)",
            is_sickness=True,
            measured_cost_share=price,
            measured_cost_reason=None if price is not None else _unpriced,
            predicted_cost_s=None,
            predicted_cost_reason=_unpriced,
            predicted_gain=None,
            predicted_gain_reason=no_forecast,
        )
    ]


def _limiting(loads: Loads) -> StageLoad:
    """The stage that has least time to wait for others."""
    return max((loads.target, loads.drafter), key=lambda load: load.busy + load.gil_wait)


def _batch_tokens(load: StageLoad) -> float | None:
    made = None if load.tokens_per_s is None else load.tokens_per_s * load.range_s
    return made / load.batches if made and load.batches else None


def _decide(
    timeline: Timeline, loads: Loads, gpus: pd.DataFrame, tokens: float | None, fixed: FixedCost | None
) -> tuple[Verdict, str]:
    lack, load = lacking(timeline), _limiting(loads)
    if lack is not None or tokens is None:
        return "not_enough_evidence", f"Not judged: {lack or 'the tokens of a batch are unknown'}."
    if tokens > small_batch_tokens:
        return "rejected", f"Rejected: {tokens:,.0f} tokens are no small batch."
    if (gpus["work"] == full_work).any():
        return "rejected", f"Rejected: GPUs of {load.stage}s that look busy draw power."
    power_share = power_of_little_work(gpus, load.stage)
    if cost(timeline, loads) is not None and fixed is not None:
        return "supported", (
            f"Batches of {tokens:,.0f} tokens are too small: {percent(fixed.least)} or more of the time "
            f"that a {load.stage} takes for one does not depend on its tokens."
        )
    if power_share is None:
        return "not_enough_evidence", f"Not judged: {_why_unknown(timeline, load)}."
    working = load.busy + load.gil_wait
    if working < healthy_efficiency:
        return "rejected", f"Rejected: {load.stage}s work only {percent(working)} of the time."
    found = (
        f"Batches of {tokens:,.0f} tokens are too small: GPUs of {load.stage}s look busy and draw "
        f"{percent(power_share)} of their power limit."
    )
    return "supported", found


def fixed_cost(timeline: Timeline, load: StageLoad) -> FixedCost | None:
    """The part of a batch's time that its tokens do not explain; None where that cannot be told.

    A line fitted through the batches of a stage that works all the time. Batches must differ in tokens, or no
    line can be told. Of targets alone: a drafter's work follows its anchors. A thread that waits for the
    GIL, or for a CPU, does so at every launch: the former have a cause of their own, and what the latter may
    explain is not told.
    """
    if load.stage != "target" or load.busy + load.gil_wait < healthy_efficiency:
        return None
    mine = timeline.batches[timeline.batches["stage"] == load.stage]
    level = mine["seconds"] / mine.groupby("index")["seconds"].transform("mean")  # some GPUs are slower
    tokens = mine["tokens"].to_numpy(dtype=float)
    took_s = level.to_numpy(dtype=float) * float(mine["seconds"].mean())
    if len(tokens) < least_batches or tokens.std() < least_spread * tokens.mean():
        return None
    slope, at_zero = np.polyfit(tokens, took_s, 1)
    noise = np.square(took_s - at_zero - slope * tokens).sum() / (len(tokens) - 2)
    error_s = np.sqrt(noise * (1 + np.square(tokens.mean() / tokens.std())) / len(tokens))
    part, error = (float(seconds / took_s.mean()) for seconds in (at_zero, error_s))
    own = part - load.gil_wait
    if own <= (cpu_wait(timeline, load) or 0.0):
        return FixedCost(share=0.0, least=0.0, tokens=0.0)
    own = min(own, 1.0)
    wanted = own / (1 - own) * (1 - left_fixed) / left_fixed * tokens.mean() if own < 1 else np.inf
    return FixedCost(share=own, least=own - 3 * error, tokens=float(wanted))


def _least_named(timeline: Timeline, load: StageLoad) -> float:
    """What the part without tokens must come to: more where waits for the GIL could be what it is."""
    known = timeline.gil.reason is None and cpu_wait(timeline, load) is not None
    return named_cost_share if known else mostly_fixed


def _why_unknown(timeline: Timeline, load: StageLoad) -> str:
    if timeline.emulated:
        return "logical devices draw no power"
    return f"power and utilisation of GPUs of {load.stage}s do not tell whether they do little work"


def _mean(gpus: pd.DataFrame, column: str, scale: float = 1.0) -> float | None:
    known = gpus[column].dropna()
    return float(known.mean()) * scale if len(known) else None


def _remedy(timeline: Timeline, tokens: float | None, fixed: FixedCost | None) -> Remedy:
    return Remedy(
        "Raise the token budget until tokens/s stops rising or memory says stop: a launch costs the same for "
        "few tokens and for many.",
        larger_batches(timeline, tokens, fixed),
    )


def larger_batches(timeline: Timeline, tokens: float | None, fixed: FixedCost | None) -> dict[str, Scalar]:
    """The budget that leaves little of the fixed cost, else twice what it is; less if a window lacks room."""
    if timeline.config is None:
        return {}
    now = timeline.config.pipeline.token_budget
    largest = timeline.config.window.tokens // timeline.config.split.drafters
    wanted = now * fixed.tokens / tokens if fixed and tokens else 2.0 * now
    budget = largest
    while budget // 2 >= max(wanted, now + 1):
        budget //= 2
    knobs: dict[str, Scalar] = {"pipeline.token_budget": budget}
    try:
        timeline.config.replacing(knobs)
    except ConfigError:
        return {}
    return knobs if budget > now else {}
