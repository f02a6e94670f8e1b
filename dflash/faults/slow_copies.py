"""Faults of the ways between devices: links that take longer than the configuration declares.

Those of hidden states need a transport that uses such links at all (`Fault.knobs`); with another, as a remedy
gives it, they have nothing to act on.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from functools import partial

from torch import Tensor

from dflash.devices import Moment, ReachedMoment
from dflash.faults.rig import Rig
from dflash.transport.dispatch import Ledger

_quick_share = 0.02  # of a forward, that a copy near by takes


def slow_to_host(rig: Rig, lost: float) -> None:
    """Targets copy to host memory on their own thread, for that share of their time."""
    rig.slow_links(rig.is_target, rig.pace.forward_loss_s(lost))


def slow_from_host(rig: Rig, lost: float) -> None:
    """Drafters copy from host memory on their own thread, until they are the limit."""
    rig.slow_links(rig.is_drafter, rig.pace.slow_step_s(lost) - rig.pace.step_s)


def slow_between_drafters(rig: Rig, lost: float) -> None:
    """Drafters move what lies on another drafter's device: all but one in as many takes as drafters.

    Homes are drawn: given out in turn, drafters that fall into step with them would find their own batches.
    """
    moved = 1 - 1 / rig.pace.drafters
    if rig.trainer.config.transport_choice.queue == "shared":
        rig.trainer.transport._dispatch = _Drawn(rig.pace.drafters)
    rig.slow_links(rig.is_between_drafters, (rig.pace.slow_step_s(lost) - rig.pace.step_s) / moved)


class _Drawn(Ledger):
    """Any of the drafters, however much is under way to each."""

    def __init__(self, drafters: int) -> None:
        super().__init__(drafters)
        self._random = random.Random(0)

    def _choose(self, reserved_tokens: Sequence[int], target: int) -> int:  # noqa: ARG002 - all alike
        return self._random.randrange(len(reserved_tokens))


def remote_buffers(rig: Rig, lost: float) -> None:
    """The buffers of target 0 lie far away: its copies to the host are slow, its siblings' are not."""
    rig.slow_links(rig.is_target, _quick_share * rig.pace.forward_s)
    rig.slow_links(partial(rig.is_target, index=0), rig.pace.forward_s * (rig.pace.straggling(lost) - 1))


def straggling_link(rig: Rig, lost: float) -> None:
    """The link of target 0 to the first drafter is slow, its siblings' are not."""
    rig.slow_links(rig.is_to_drafter, _quick_share * rig.pace.forward_s)
    # Its copies run beside the forwards, and are the pace of that target where they take longer. As windows
    # are sent one after the other, it is then the others' pace, too.
    slow_s = rig.pace.forward_s / (1 - lost)
    rig.slow_links(partial(rig.is_to_drafter, target=0, drafter=0), slow_s)
    rig.go_round(0, 0)


def slow_links(rig: Rig, lost: float) -> None:
    """All links from targets to drafters are slow: copies beside the forwards take longer than these do."""
    rig.slow_links(rig.is_to_drafter, rig.pace.forward_s / (1 - lost))
    for target in range(rig.pace.targets):
        for drafter in range(rig.pace.drafters):
            rig.go_round(target, drafter)


def slow_gradients(rig: Rig, lost: float) -> None:
    """Gradients of all drafters but the first arrive late at every window's end, and all wait for them."""
    trained_s = rig.pace.step_s / rig.pace.drafters
    late_s = rig.window_tokens * (rig.pace.interval_s / (1 - lost) - trained_s)
    for link in rig.trainer.group._links:
        link.bring = partial(_bring_late, late_s, link.bring)  # type: ignore[method-assign]


Tensors = Sequence[Tensor | None]


def _bring_late(
    late_s: float,
    bring: Callable[[Tensors, Moment], tuple[list[Tensor | None], Moment]],
    tensors: Tensors,
    after: Moment,
) -> tuple[list[Tensor | None], Moment]:
    brought, _ = bring(tensors, after)
    return brought, _LateMoment(time.monotonic() + late_s)


class _LateMoment(ReachedMoment):
    """The end of a copy that takes until a time of the monotonic clock."""

    def __init__(self, due_s: float) -> None:
        self._due_s = due_s

    def done(self) -> bool:
        return time.monotonic() >= self._due_s

    def wait(self) -> None:
        time.sleep(max(self._due_s - time.monotonic(), 0.0))

    def order_stream(self) -> None:
        self.wait()
