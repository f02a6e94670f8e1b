"""How fast crossings are, alone and together: medians over rounds, after a round that does not count.

Knows nothing of devices: it is given crossings.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from statistics import median

from dflash.crossings import Crossing

round_s = 0.005  # a round is at least so long, if 16 copies are
most_copies = 16
least_rounds, most_rounds = 3, 7
enough_s = 0.3  # after this much, the least number of rounds will do
latency_rounds = 25


def measure_rates(
    crossings: Sequence[Crossing], clock_s: Callable[[], float] = time.monotonic
) -> list[float]:
    """GB/s of each crossing while all of them are in use."""
    _take_round(crossings, 1)  # first touches, and peer access that the driver switches on
    once_s = max(_take_round(crossings, 1))
    copies = max(1, min(most_copies, round(round_s / once_s))) if once_s > 0 else most_copies
    began_s, rounds = clock_s(), [_take_round(crossings, copies)]
    while len(rounds) < most_rounds and (len(rounds) < least_rounds or clock_s() - began_s < enough_s):
        rounds.append(_take_round(crossings, copies))
    return [
        copies * crossing.copy_bytes / 1e9 / median(seconds[i] for seconds in rounds)
        for i, crossing in enumerate(crossings)
    ]


def measure_latency(crossing: Crossing) -> float:
    """Microseconds of one copy; to be called with a crossing of a few bytes."""
    _take_round([crossing], 1)
    return 1e6 * median(_take_round([crossing], 1)[0] for _ in range(latency_rounds))


def _take_round(crossings: Sequence[Crossing], copies: int) -> list[float]:
    for crossing in crossings:
        crossing.begin(copies)
    return [crossing.end() for crossing in crossings]
