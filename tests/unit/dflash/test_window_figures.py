"""Sums of a window: what a batch adds to them is only enqueued."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dflash.objective import ObjectiveTerms
from dflash.window_figures import gather_sums

# Numbers of the host that become a tensor, which on a GPU waits for it; numbers of the device that come here.
waiting = {"aten::lift_fresh", "aten::_local_scalar_dense"}


class Operations(TorchDispatchMode):
    """The names of all operations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()

    def __torch_dispatch__(self, function: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.add(function.name().partition(".")[0])
        return function(*args, **(kwargs or {}))


def test_a_batch_is_counted_without_a_wait_for_its_device() -> None:
    terms = ObjectiveTerms(torch.tensor(6.0), torch.tensor([0.0, 3.0]), torch.tensor([0.0, 4.0]))
    taps = torch.ones(5, 8)
    taps[1] = 0
    taps[2, 3] = torch.nan
    with Operations() as operations:
        sums = gather_sums(terms, taps)
    assert sums.tolist() == [6.0, 1.0, 1.0, 5.0, 0.0, 3.0, 0.0, 4.0]
    assert operations.names.isdisjoint(waiting)
    with Operations() as told:
        float(torch.tensor(1.0))
    assert told.names >= waiting, "it would be seen"
