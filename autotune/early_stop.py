"""Whether a trial in progress is hopeless: surely far slower than the fastest so far, once it is steady.

Steady by the rule that every throughput is measured by: warm-up cut by MSER, ten windows left. Knows nothing
of processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise

from autotune.interleaving import Segment

margin = 0.10  # its upper bound lies further below the lower bound of the fastest
late_windows = 3  # the last ones, of which none may come near: warm-up can outlast ten windows
look_again = 1.25  # times as many windows: each look may err, so there are few


@dataclass(slots=True)
class HopelessRun:
    """Fed with window ends as they come. `bar`: tokens/s that the fastest so far surely has."""

    bar: float
    seen: Segment | None = None  # what it came to when it was called hopeless
    _ends: list[tuple[int, int]] = field(default_factory=list)
    _next_look: int = 0

    def add(self, ends: list[tuple[int, int]]) -> str | None:
        """Take in further ends (CLOCK_MONOTONIC ns, tokens); why the run may be ended, or None."""
        from profiler.steady import min_windows

        self._ends += ends
        windows = len(self._ends) - 1  # the first has no beginning
        if windows < max(self._next_look, min_windows):
            return None
        self._next_look = int(look_again * windows) + 1
        found = self._measure()
        enough = (1 - margin) * self.bar
        if found is None or found.high >= enough or max(self._late_rates()) >= enough:
            return None
        self.seen = found
        return (
            f"hopeless after {windows} windows: at most {found.high:,.0f} tokens/s, "
            f"the fastest has {self.bar:,.0f} or more"
        )

    def _late_rates(self) -> list[float]:
        ends = self._ends[-late_windows - 1 :]
        return [1e9 * tokens / max(t - before, 1) for (before, _), (t, tokens) in pairwise(ends)]

    def _measure(self) -> Segment | None:
        """Of the steady windows; None while the run is not steady."""
        import numpy as np
        import pandas as pd

        from profiler.steady import find_warmup
        from profiler.throughput import bootstrap_interval

        times, tokens = (np.array(column, dtype=float) for column in zip(*self._ends, strict=True))
        windows = pd.DataFrame({"tokens": tokens[1:], "seconds": np.diff(times) / 1e9})
        windows = windows[windows["seconds"] > 0]
        rates = (windows["tokens"] / windows["seconds"]).to_numpy(dtype=float)
        cut, unsteady = find_warmup(rates)
        if unsteady is not None:
            return None
        used = windows.iloc[cut:]
        low, high = bootstrap_interval(used)
        pace = float(used["tokens"].sum() / used["seconds"].sum())
        return Segment(tokens_per_s=pace, low=low, high=high, windows=len(used))
