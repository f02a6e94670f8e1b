"""The end of a window: a step that is enqueued, and what the window came to once the device has made it.

Knows nothing of who waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dflash.batch import WindowInfo
from dflash.contract.errors import DFlashError
from dflash.contract.events import Probe
from dflash.devices import Moment, Timing
from dflash.optimizer import StepResult


@dataclass(frozen=True, slots=True)
class WindowFigures:
    """What a window came to, as host numbers."""

    loss: float  # numerator / denominator over the whole window
    accuracy: float  # correct argmax over counted slots, unweighted
    grad_norm: float  # before clipping
    lr: float


class WindowEnd:
    """A window whose step has been enqueued. Its figures are there once `moment` is reached."""

    def __init__(
        self,
        window: WindowInfo,
        moment: Moment,
        told: Tensor,
        lr: float,
        *,
        timings: Sequence[tuple[str, Timing | None]] = (),
        held: object = None,
    ) -> None:
        """`told`: see `tell`; `held`: what the device may read until then."""
        self.window, self.moment = window, moment
        self._told, self._lr, self._timings, self._held = told, lr, timings, held

    def figures(self, probe: Probe) -> WindowFigures:
        """Wait until the step is made, emit its device times, and say what the window came to.

        Raises DFlashError when loss or gradient was not finite; the weights then are as before the window,
        and no later step changes them.
        """
        self.moment.wait()
        self._held = None
        for name, timing in self._timings:
            if timing is not None:
                probe.emit_span(name, *timing.ends_ns(), clock="gpu", window=self.window.step)
        numerator, correct, counted, grad_norm, skipped = self._told.tolist()
        if skipped:
            raise DFlashError(
                "the loss or its gradient is not finite, training stops before the weights are harmed",
                where=f"step {self.window.step}",
                found=f"loss numerator {numerator}, gradient norm {grad_norm}",
                remedy="lower optimizer.lr, or train in float32 to see whether precision is the cause",
            )
        return WindowFigures(
            loss=numerator / self.window.denominator,
            accuracy=correct / counted if counted else 0.0,
            grad_norm=grad_norm,
            lr=self._lr,
        )


def tell(figures: Tensor, result: StepResult) -> Tensor:
    """Numerator, correct, counted, gradient norm and skipped on their way to the host: [5] float32.

    `figures` [3] float32. On CUDA the copy is only enqueued.
    """
    values = torch.cat([figures, result.grad_norm.float().view(1), result.skipped.view(1)])
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
    return host.copy_(values, non_blocking=True)
