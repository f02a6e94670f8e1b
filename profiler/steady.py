"""Windows of a run, and which of them are steady: warm-up is cut by MSER.

MSER (White 1997) drops the first d windows, with d chosen so that the standard error of the mean rate of the
rest is smallest, at most half of them. Where most of them are like the rest, only the start that is not is
dropped. Knows nothing of stages or queues.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

min_windows = 10  # steady windows below which there is no number
unsettled_ratio = 4.0  # squared standard errors: above it, keeping ten windows would keep warm-up too
unlike_percentiles = (10.0, 90.0)  # of the later windows: outside of them a window is unlike them
method_text = (
    "real tokens from window end to window end; warm-up cut where the standard error of the mean window rate "
    "is smallest (MSER), at most half of the windows, and most of them unlike later ones; 90 % interval by a "
    "moving-block bootstrap over windows"
)
_note_counts = ("documents", "supervised_tokens", "processed_tokens")


@dataclass(frozen=True)
class SteadyRange:
    """The windows that count: from the end of the last warm-up window to the end of the last window."""

    start_ns: int
    end_ns: int
    windows_seen: int  # windows with a sound beginning and end
    warmup_windows: int
    warmup_s: float
    set_aside: int  # window marks with a missing count or a time not after the previous one
    reason: str | None = None  # why there are not enough steady windows; None: there are

    @property
    def windows_used(self) -> int:
        return self.windows_seen - self.warmup_windows


def read_windows(events: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """Windows whose beginning and end are both sound, and how many marks were not.

    Columns: window, start_ns, end_ns, seconds, tokens, documents, supervised_tokens, processed_tokens.
    The first window of a run has no beginning (nothing ended before it) and is not among them.
    """
    marks = events[(events["kind"] == "mark") & (events["name"] == "window")]
    ends = marks[["window", "t_ns", "tokens"]].reset_index(drop=True)
    notes = [_counts_of(note) for note in marks["note"]]
    ends = ends.join(pd.DataFrame(notes, columns=list(_note_counts), dtype=float))
    ends = ends.sort_values("window", kind="stable", ignore_index=True)
    before = ends["t_ns"].cummax().shift()
    again = ends["window"].duplicated()
    sound = ends["window"].notna() & (ends["tokens"] > 0) & ~(ends["t_ns"] <= before) & ~again
    set_aside = int((~sound).sum())
    ends = ends[sound]
    follows = ends["window"].diff() == 1
    windows = ends.assign(start_ns=ends["t_ns"].shift(), end_ns=ends["t_ns"])[follows]
    windows = windows.astype({"start_ns": "int64", "window": "int64"})
    windows["seconds"] = (windows["end_ns"] - windows["start_ns"]) / 1e9
    columns = ["window", "start_ns", "end_ns", "seconds", "tokens", *_note_counts]
    return windows[columns].reset_index(drop=True), set_aside


def _counts_of(note: str | None) -> list[float]:
    try:
        told = json.loads(note or "{}")
    except ValueError:
        told = {}
    if not isinstance(told, dict):
        told = {}
    values = (told.get(name) for name in _note_counts)
    return [float(v) if isinstance(v, int | float) and np.isfinite(v) and v >= 0 else np.nan for v in values]


def find_steady_range(windows: pd.DataFrame, set_aside: int = 0) -> SteadyRange:
    """The steady part of `windows`. With too few of them, all of them and the reason."""
    seen = len(windows)
    if seen == 0:
        return SteadyRange(0, 0, 0, 0, 0.0, set_aside, _too_few(0))
    rates = (windows["tokens"] / windows["seconds"]).to_numpy(dtype=float)
    cut, reason = find_warmup(rates) if seen >= min_windows else (0, _too_few(seen))
    first = int(windows["start_ns"].iloc[0])
    start = int(windows["start_ns"].iloc[cut])
    end = int(windows["end_ns"].iloc[-1])
    return SteadyRange(start, end, seen, cut, (start - first) / 1e9, set_aside, reason)


def _too_few(seen: int) -> str:
    return f"{seen} whole windows were seen; at least {min_windows} are needed"


def find_warmup(rates: NDArray[np.float64]) -> tuple[int, str | None]:
    """How many leading windows are warm-up, and why the rest is no basis (None: it is one).

    Ten windows are kept if that does not keep warm-up with them.
    """
    errors = squared_errors(rates)[: len(rates) // 2 + 1]
    best = _unlike_the_rest(rates, int(np.argmin(errors)))
    keepable = len(rates) - min_windows
    if best <= keepable:
        return best, None
    bounded = int(np.argmin(errors[: keepable + 1]))
    if errors[bounded] <= unsettled_ratio * errors[best]:
        return bounded, None
    return best, (
        f"warm-up took {best} of {len(rates)} windows; {len(rates) - best} steady ones are left, "
        f"at least {min_windows} are needed"
    )


def _unlike_the_rest(rates: NDArray[np.float64], cut: int) -> int:
    """The longest start within the cut of which most windows are slower (or faster) than later ones.

    A pause or a stall draws the cut behind it, and is no warm-up: most windows before it are like the rest.
    """
    low, high = np.percentile(rates[cut:], unlike_percentiles)
    start, places = rates[:cut], np.arange(1, cut + 1)
    slow, fast = np.cumsum(start < low), np.cumsum(start > high)
    lasting = np.flatnonzero(2 * np.maximum(slow, fast) > places)
    return int(lasting[-1]) + 1 if len(lasting) else 0


def squared_errors(rates: NDArray[np.float64]) -> NDArray[np.float64]:
    """For every d: the squared standard error of the mean of rates[d:] (MSER's statistic)."""
    centred = rates - rates.mean()
    kept = np.arange(len(rates), 0, -1)
    sums = np.cumsum(centred[::-1])[::-1]
    squares = np.cumsum(centred[::-1] ** 2)[::-1]
    errors: NDArray[np.float64] = np.maximum(squares - sums**2 / kept, 0.0) / kept.astype(float) ** 2
    return errors
