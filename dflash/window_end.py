"""The end of a window: a step that is enqueued, and what the window came to once the device has made it.

Knows nothing of who waits for it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dflash.batch import WindowInfo
from dflash.contract.errors import DFlashError
from dflash.contract.events import Probe
from dflash.devices import Moment, Timing
from dflash.optimizer import StepResult
from dflash.window_figures import WindowFigures, WindowSums


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

        Raises DFlashError when it could not be made: loss, gradient or states that are not finite, no states
        at all, or no slot that counts. The weights then are as before the window, and no later step changes
        them.
        """
        self.moment.wait()
        self._held = None
        for name, timing in self._timings:
            if timing is not None:
                probe.emit_span(name, *timing.ends_ns(), clock="gpu", window=self.window.step)
        *row, grad_norm, skipped = self._told.tolist()
        if skipped:
            raise self._failure(row, grad_norm)
        sums = WindowSums.of(row)
        return WindowFigures(
            loss=sums.numerator / self.window.denominator,
            slot_correct=sums.slot_correct,
            slot_counted=sums.slot_counted,
            grad_norm=grad_norm,
            lr=self._lr,
            states_absent=sums.absent,
            states=sums.states,
        )

    def _failure(self, row: list[float], grad_norm: float) -> DFlashError:
        where = f"step {self.window.step}"
        trouble = WindowSums.of(row).trouble()
        if trouble is not None:
            what, found = trouble
            return DFlashError(
                what, where=where, found=found, remedy="look at the target and at the links between devices"
            )
        return DFlashError(
            "the loss or its gradient is not finite, training stops before the weights are harmed",
            where=where,
            found=f"loss numerator {row[0]}, gradient norm {grad_norm}",
            remedy="lower optimizer.lr, or train in float32 to see whether precision is the cause",
        )


def tell(sums: Tensor, result: StepResult) -> Tensor:
    """A window's row of sums, gradient norm and skipped on their way to the host: [n + 2] float32.

    `sums`: see `dflash/window_figures.py`. On CUDA the copy is only enqueued.
    """
    values = torch.cat([sums, result.grad_norm.float().view(1), result.skipped.view(1)])
    host = torch.empty(values.shape, dtype=values.dtype, pin_memory=values.is_cuda)
    return host.copy_(values, non_blocking=True)
