"""Faults of the way from targets to drafters: links that take longer than the configuration declares.

Each needs a transport that uses those links at all (`Fault.knobs`); with another, as a remedy gives it, it
has nothing to act on.
"""

from __future__ import annotations

from functools import partial

from dflash.faults.rig import Rig


def slow_to_host(rig: Rig, lost: float) -> None:
    """Targets copy to host memory on their own thread, for that share of their time."""
    rig.slow_links(rig.is_target, rig.pace.forward_loss_s(lost))


def slow_from_host(rig: Rig, lost: float) -> None:
    """Drafters copy from host memory on their own thread, until they are the limit."""
    rig.slow_links(rig.is_drafter, rig.pace.slow_step_s(lost) - rig.pace.step_s)


def slow_between_drafters(rig: Rig, lost: float) -> None:
    """Drafters move what lies on another drafter's device: all but one in as many takes as drafters."""
    moved = 1 - 1 / rig.pace.drafters
    rig.slow_links(rig.is_between_drafters, (rig.pace.slow_step_s(lost) - rig.pace.step_s) / moved)


def remote_buffers(rig: Rig, lost: float) -> None:
    """The buffers of target 0 lie far away: its copies to the host take longer than its forwards.

    Drafters take batches in the order in which they were sent, so that all wait for these.
    """
    rig.slow_links(partial(rig.is_target, index=0), rig.pace.forward_s / (1 - lost))
