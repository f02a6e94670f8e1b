"""What a run has done and learned so far, and the console line that says it.

`q_pre=3/4 q_hs=1/2 step 12/60 loss 7.931 accuracy 0.021 4.1 Ktok/s`. Knows nothing of where lines go.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import Any

from dflash.batch import WindowInfo
from dflash.window_figures import WindowFigures, slot_shares

recent_windows = 16


@dataclass(slots=True)
class Counters:
    """Totals over the windows that were stepped; written by one thread at a time, read by any."""

    total_steps: int
    steps: int = 0  # in this process
    tokens: int = 0
    documents: int = 0
    batches: int = 0
    supervised_tokens: int = 0
    states_absent: int = 0  # tokens trained without the target's states
    first_step: int = 0
    losses: list[float] = field(default_factory=list)
    latest: WindowFigures | None = None
    _ends: deque[tuple[float, int]] = field(default_factory=lambda: deque(maxlen=recent_windows))
    _recent: deque[WindowFigures] = field(default_factory=lambda: deque(maxlen=recent_windows))
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def window_done(self, window: WindowInfo, figures: WindowFigures) -> None:
        """Count a window whose step was made."""
        with self._lock:
            self.steps += 1
            self.tokens += window.tokens
            self.documents += window.documents
            self.batches += window.batches
            self.supervised_tokens += window.supervised_tokens
            self.states_absent += figures.states_absent
            self.losses.append(figures.loss)
            self.latest = figures
            self._recent.append(figures)
            self._ends.append((time.monotonic(), self.tokens))

    def recent_tokens_per_s(self) -> float | None:
        """Real tokens a second over the last windows; None before two of them ended."""
        with self._lock:
            if len(self._ends) < 2:
                return None
            (t0, n0), (t1, n1) = self._ends[0], self._ends[-1]
        return (n1 - n0) / (t1 - t0) if t1 > t0 else None

    def learned(self) -> dict[str, Any] | None:
        """Losses, and accuracy pooled over the last windows, for run.json; None before the first step."""
        with self._lock:
            if not self._recent:
                return None
            correct = tuple(map(sum, zip(*(each.slot_correct for each in self._recent), strict=True)))
            counted = tuple(map(sum, zip(*(each.slot_counted for each in self._recent), strict=True)))
            return {
                "first_loss": self.losses[0],
                "last_loss": self.losses[-1],
                "recent_windows": len(self._recent),
                "recent_loss": sum(each.loss for each in self._recent) / len(self._recent),
                "accuracy": sum(correct) / sum(counted) if sum(counted) else None,
                "slot_accuracy": list(slot_shares(correct, counted)),
            }

    def line(self, depths: list[tuple[str, int, int]]) -> str:
        """The console line; `depths` are (channel, depth, capacity)."""
        queues = " ".join(f"{name}={depth}/{capacity}" for name, depth, capacity in depths)
        parts = [queues, f"step {self.first_step + self.steps}/{self.total_steps}"]
        if self.latest is not None:
            accuracy = self.latest.accuracy
            shown = "n/a" if accuracy is None else f"{accuracy:.3f}"
            parts.append(f"loss {self.latest.loss:.3f} accuracy {shown}")
        rate = self.recent_tokens_per_s()
        parts.append("n/a Ktok/s" if rate is None else f"{rate / 1000:.1f} Ktok/s")
        return " ".join(parts)
