"""Faults by which a stage takes more time than it should, all of it spent without the GIL."""

from __future__ import annotations

import time
from functools import partial

from dflash.batch import Batch, HiddenStates
from dflash.contract.events import Probe
from dflash.faults.pace import Pace
from dflash.faults.rig import Rig

full_batch_tokens = 256.0  # of the batches that costs a batch are declared for


def slow_data(rig: Rig, lost: float) -> None:
    """Packing takes longer than the targets need for a batch."""
    seconds = rig.pace.interval_s / (1 - lost)
    rig.packing.append(lambda batch: time.sleep(seconds * batch.tokens))


def slow_drafter(rig: Rig, lost: float) -> None:
    """Every drafter's step takes longer than two targets need for a batch, whatever the split is now."""
    rig.step_s = [Pace(targets=2, drafters=1).slow_step_s(lost)] * rig.pace.drafters


def slow_target(rig: Rig, lost: float) -> None:
    """Target 0 computes at a part of its siblings' pace."""
    more_s = rig.pace.forward_s * (rig.pace.straggling(lost) - 1)
    rig.forwarding.append(partial(_sleep_on, 0, more_s))


def slow_kernels(rig: Rig, lost: float) -> None:
    """Every forward takes longer, with a kernel that run.json calls a fallback."""
    more_s = rig.pace.forward_loss_s(lost)
    for target in rig.trainer.targets:
        target.kernel = f"{target.kernel}, as a fallback: slow"
    rig.forwarding.append(lambda _index, batch: time.sleep(more_s * batch.tokens))


def small_batches(rig: Rig, lost: float) -> None:
    """Every forward has a cost that does not depend on its tokens: that share of a full batch's time."""
    each_s = rig.pace.forward_loss_s(lost) * full_batch_tokens
    rig.forwarding.append(lambda _index, _batch: time.sleep(each_s))


def scalar_sync(rig: Rig, lost: float) -> None:
    """After every forward the target's thread reads one number back and waits for the device to give it."""
    more_s = rig.pace.forward_loss_s(lost)
    devices = rig.trainer.devices.targets

    def act(index: int, item: HiddenStates, probe: Probe) -> None:
        fields = {"batch": item.batch.id, "window": item.batch.window.step}
        with probe.span("gpu_wait", **fields):
            time.sleep(more_s * item.batch.tokens)
        edge = {"src": devices[index].name, "dst": "host", "path": "pageable", "bytes": 4}
        with probe.span("copy", **edge, **fields, note="on_critical_path"):
            float(item.taps.flatten()[0])

    rig.sending.append(act)


def _sleep_on(chosen: int, seconds_per_token: float, index: int, batch: Batch) -> None:
    if index == chosen:
        time.sleep(seconds_per_token * batch.tokens)
