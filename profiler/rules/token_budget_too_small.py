"""Batches are too small for the GPUs: some kernel always runs, and yet they draw little power.

Where power is unknown, times that hardly depend on a batch's tokens show it.

Utilisation hides it, since it says only that a kernel was resident. What larger batches would bring cannot be
read off a run whose batches are all alike, so this cause has no price. Knows nothing of memory.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pandas as pd

from dflash.contract.errors import ConfigError
from profiler.capacity import Loads, StageLoad, measure_loads
from profiler.finding import Finding, Remedy, Scalar, Verdict
from profiler.gpus import full_work, power_of_little_work
from profiler.rules.verdicts import (
    healthy_efficiency,
    lacking,
    no_forecast,
    percent,
    quantity,
    share,
    unjudged,
)
from profiler.timeline import Timeline

cause: Final = "token-budget-too-small"
small_batch_tokens: Final = 8192.0  # more fill a GPU: there, little power has another reason
mostly_fixed: Final = 0.4  # of a batch's time that does not depend on its tokens: launches, not work
least_batches: Final = 20  # through which a line is fitted
least_spread: Final = 0.05  # standard deviation of their tokens, of the mean
_unpriced: Final = "only a run with larger batches tells what they bring"
_confidence: Final = 0.8


def check(timeline: Timeline) -> list[Finding]:
    """Supported when the limiting stage works all the time, on small batches, and its GPUs do little."""
    loads = measure_loads(timeline)
    if loads is None:
        return [unjudged(cause, timeline)]
    load = _limiting(loads)
    gpus = timeline.gpus[timeline.gpus["role"] == load.stage]
    tokens = _batch_tokens(load)
    verdict, summary = _decide(timeline, load, gpus, tokens)
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
                    f"power of {load.stage}s' GPUs while busy, of the limit", _mean(gpus, "busy_power_share")
                ),
                share(f"utilisation of {load.stage}s' GPUs, which hides it", _mean(gpus, "util_pct", 0.01)),
                share("SMs active on them", _mean(gpus, "sm_active_pct", 0.01)),
                share(f"{load.stage}s working or waiting for the GIL", load.busy + load.gil_wait),
            ),
            remedy=_remedy(timeline) if verdict == "supported" else None,
            condition="memory has room, and no slow fallback kernels are in use (they look the same)",
            is_sickness=True,
            measured_cost_share=None,
            measured_cost_reason=_unpriced,
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
    timeline: Timeline, load: StageLoad, gpus: pd.DataFrame, tokens: float | None
) -> tuple[Verdict, str]:
    lack = lacking(timeline)
    if lack is not None or tokens is None:
        return "not_enough_evidence", f"Not judged: {lack or 'the tokens of a batch are unknown'}."
    if tokens > small_batch_tokens:
        return "rejected", f"Rejected: {tokens:,.0f} tokens are no small batch."
    if (gpus["work"] == full_work).any():
        return "rejected", f"Rejected: GPUs of {load.stage}s that look busy draw power."
    power_share = power_of_little_work(gpus, load.stage)
    if power_share is None and (fixed := fixed_share(timeline, load)) is not None:
        return "supported", (
            f"Batches of {tokens:,.0f} tokens are too small: {percent(fixed)} or more of the time that a "
            f"{load.stage} takes for one does not depend on its tokens."
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


def fixed_share(timeline: Timeline, load: StageLoad) -> float | None:
    """The least part of a batch's time that its tokens do not explain, where that is most of it; else None.

    A line fitted through the batches of a stage that works all the time, less three standard errors of where
    it meets the axis. Batches must differ in tokens, or no line can be told. Of targets alone: a
    drafter's work follows its anchors.
    """
    if load.stage != "target" or load.busy + load.gil_wait < healthy_efficiency:
        return None
    mine = timeline.batches[timeline.batches["stage"] == load.stage]
    tokens, took_s = (mine[name].to_numpy(dtype=float) for name in ("tokens", "seconds"))
    if len(tokens) < least_batches or tokens.std() < least_spread * tokens.mean():
        return None
    slope, at_zero = np.polyfit(tokens, took_s, 1)
    noise = np.square(took_s - at_zero - slope * tokens).sum() / (len(tokens) - 2)
    error_s = np.sqrt(noise * (1 + np.square(tokens.mean() / tokens.std())) / len(tokens))
    least = float((at_zero - 3 * error_s) / took_s.mean())
    return min(least, 1.0) if least >= mostly_fixed else None


def _why_unknown(timeline: Timeline, load: StageLoad) -> str:
    if timeline.emulated:
        return "logical devices draw no power"
    return f"power and utilisation of GPUs of {load.stage}s do not tell whether they do little work"


def _mean(gpus: pd.DataFrame, column: str, scale: float = 1.0) -> float | None:
    known = gpus[column].dropna()
    return float(known.mean()) * scale if len(known) else None


def _remedy(timeline: Timeline) -> Remedy:
    return Remedy(
        "Raise the token budget until tokens/s stops rising or memory says stop: a launch costs the same for "
        "few tokens and for many.",
        _larger_batches(timeline),
    )


def _larger_batches(timeline: Timeline) -> dict[str, Scalar]:
    """Twice the budget, where the configuration allows it."""
    if timeline.config is None:
        return {}
    knobs: dict[str, Scalar] = {"pipeline.token_budget": timeline.config.pipeline.token_budget * 2}
    try:
        timeline.config.replacing(knobs)
    except ConfigError:  # a window would hold too few batches for the drafters
        return {}
    return knobs
