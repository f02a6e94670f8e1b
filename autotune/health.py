"""Whether a fast trial also trained: the checks that keep a broken configuration from winning.

Searched knobs do not change what is trained, so at equal windows every trial must show the losses of the
starting configuration up to summation order. That is a far sharper test than "the loss falls": a drafter
fed zeros still learns a little. Pure functions; knows nothing of runs or of how trials are chosen.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from statistics import fmean

from autotune.telemetry import Telemetry

# Summation order and reduced precision move early losses by well under a percent a window and drift apart
# slowly; a drafter that receives wrong states is tens of percent away within a few windows.
loss_tolerance = 0.10
rise_limit = 1.5
shortest_comparison = 5  # windows


def find_illness(measured: Telemetry, reference: Sequence[float | None] = ()) -> str | None:
    """Why the trial must not win, or None when it is healthy.

    `reference` holds the losses of the starting configuration on the same first windows; empty when there
    are none to compare with. What is not known (supervised tokens not counted, no losses) is no illness.
    """
    if measured.supervised_tokens is not None and measured.supervised_tokens <= 0:
        return "no token was supervised"
    if not measured.losses:
        return "no loss was recorded, and the starting configuration shows some" if reference else None
    losses = [loss for loss in measured.losses if loss is not None]
    known = list(itertools.takewhile(lambda loss: loss is not None, reference))
    return _compare(losses, [loss for loss in known if loss is not None]) or _find_rise(losses)


def _compare(losses: Sequence[float], reference: Sequence[float]) -> str | None:
    pairs = list(zip(losses, reference, strict=False))
    if len(pairs) < shortest_comparison:
        return None
    tail = pairs[len(pairs) // 2 :]  # early losses are near log(vocabulary) whatever the drafter sees
    ours, theirs = fmean(loss for loss, _ in tail), fmean(loss for _, loss in tail)
    if abs(ours - theirs) <= loss_tolerance * abs(theirs):
        return None
    return (
        f"the loss is not that of the starting configuration on the same windows: {ours:.3f} against"
        f" {theirs:.3f} over steps {len(pairs) - len(tail)} to {len(pairs) - 1}"
    )


def _find_rise(losses: Sequence[float]) -> str | None:
    third = max(1, len(losses) // 3)
    before, after = fmean(losses[:third]), fmean(losses[-third:])
    if len(losses) >= shortest_comparison and after > rise_limit * before:
        return f"the loss rises from {before:.3f} to {after:.3f}"
    return None
