"""Notices training that runs but learns nothing: no supervision, a loss of zero, a loss that stands still.

A loss or gradient that is not finite already ends the run, and so does a window without any states
(`dflash/window_end.py`). Each kind of trouble is told once. Knows nothing of why.
"""

from __future__ import annotations

from collections import deque

from dflash.batch import WindowInfo
from dflash.window_figures import WindowFigures

flat_windows = 50  # a loss that has stood still for so long
flat_spread = 1e-5  # relative to it
absent_share = 0.01  # of a window's tokens whose states are missing


class LossHealth:
    """Fed with every window in order."""

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._losses: deque[float] = deque(maxlen=flat_windows)

    def check(self, window: WindowInfo, figures: WindowFigures) -> list[str]:
        """What is wrong and was not told before."""
        found = {}
        if window.supervised_tokens == 0:
            found["unsupervised"] = f"step {window.step}: no token of the window is supervised"
        elif figures.loss == 0:
            found["zero"] = f"step {window.step}: the loss is exactly 0"
        if figures.states_absent > absent_share * figures.states:
            found["absent"] = (
                f"step {window.step}: the target gave no states for {figures.states_absent} of "
                f"{figures.states} tokens: they are all zero; run.json counts such tokens as states_absent"
            )
        if figures.lr > 0 and figures.grad_norm == 0:
            found["no gradient"] = (
                f"step {window.step}: the gradient is exactly 0, so the step changes nothing"
            )
        if figures.lr > 0:  # with none, as in the first step of a warm-up, nothing can move
            self._losses.append(figures.loss)
        if len(self._losses) == flat_windows and figures.loss != 0:
            spread = (max(self._losses) - min(self._losses)) / abs(figures.loss)
            if spread < flat_spread:
                found["flat"] = (
                    f"step {window.step}: the loss has stood at {figures.loss:.4g} for {flat_windows} steps"
                )
        news = [text for kind, text in found.items() if kind not in self._told]
        self._told |= found.keys()
        return news
