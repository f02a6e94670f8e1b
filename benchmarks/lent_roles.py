"""Targets and drafters that are built once a device and lent to one trainer after another.

For pages that run many configurations of one work in one process: weights are drawn on the device and layers
are compiled once, so that a trainer is ready in seconds. A drafter keeps what it learned, which no throughput
depends on. Knows nothing of how runs are timed.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor, nn

import dflash.held_parts
import dflash.target
import dflash.target_weights
from benchmarks.contest import free_memory
from dflash.contract.config import TrainConfig
from dflash.contract.events import Probe
from dflash.data.documents import Documents
from dflash.devices import Device, reached
from dflash.drafter import Drafter, DrafterSpec
from dflash.replicas import Replica
from dflash.target import LoadedTarget, Target
from dflash.target_weights import TargetWeights, read_target
from dflash.trainer import Trainer, prepare

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Stands for a drafter until it is known whether its device has one already."""

    spec: DrafterSpec


@dataclass(slots=True)
class LentRoles:
    """What there is, by torch device and how many of the kind are there. `place`: where weights are drawn."""

    place: torch.device
    targets: dict[tuple[str, int], Target] = field(default_factory=dict)
    replicas: dict[tuple[str, int], Replica] = field(default_factory=dict)
    _weights: TargetWeights | None = None  # of the one model there is
    _lent_now: Counter[tuple[str, str]] = field(default_factory=Counter)

    def prepare(
        self, config: TrainConfig, documents: Documents, *, probe: Probe, run_path: Path | None = None
    ) -> Trainer:
        """A trainer of these roles. The one before must have ended."""
        free_memory()
        self._lent_now.clear()
        with self._lent(documents):
            return prepare(config, run_path=run_path, probe=probe)

    @contextmanager
    def _lent(self, documents: Documents) -> Iterator[None]:
        """While a trainer is prepared, its parts come from here."""
        parts, weights = dflash.held_parts, dflash.target_weights
        with ExitStack() as stack:
            for owner, name, ours in (
                (parts, "load_documents", lambda *_: documents),
                (dflash.target, "read_target", self._read),
                (weights, "build_seeded", self._draw_module),
                (weights, "draw_seeded", self._draw_matrix),
                (parts, "init_drafter", lambda spec, _seed: _Wanted(spec)),
                (parts, "Replica", self._replica),
                (parts, "Target", self._target),
            ):
                stack.enter_context(patch.object(owner, name, ours))
            yield

    def _read(self, name: str, *, seed: int, dtype: torch.dtype, attention: str) -> TargetWeights:
        """New modules around the same tensors, since a loaded target is cut."""
        if self._weights is None:
            self._weights = read_target(name, seed=seed, dtype=dtype, attention=attention)
        body = self._weights.body
        shared: dict[int, Any] = {id(tensor): tensor for tensor in (*body.parameters(), *body.buffers())}
        return replace(self._weights, body=copy.deepcopy(body, shared))

    def _next(self, kind: str, device: torch.device) -> tuple[str, int]:
        number = self._lent_now[kind, str(device)]
        self._lent_now[kind, str(device)] += 1
        return str(device), number

    def _target(self, loaded: LoadedTarget, device: torch.device) -> Target:
        which = self._next("target", device)
        if which not in self.targets:
            self.targets[which] = Target(loaded, device)
        return self.targets[which]

    def _replica(
        self, wanted: _Wanted, embedding: Tensor, head: Tensor, device: Device, config: TrainConfig
    ) -> Replica:
        which = self._next("drafter", device.torch_device)
        if which not in self.replicas:
            drafter = self._draw_module(lambda: Drafter(wanted.spec), std=0.02, dtype=torch.float32)
            self.replicas[which] = Replica(drafter, embedding, head, device, config)
        replica = self.replicas[which]
        replica.device, replica.config, replica.settled = device, config, reached
        replica.take_gradients()  # of a window that the last trainer did not end
        replica.take_figures()
        return replica

    def _draw_module(self, build: Callable[[], M], *, std: float, dtype: torch.dtype, **_: Any) -> M:
        """As `dflash.seeded_weights.build_seeded`, but with whatever numbers come."""
        with torch.device("meta"):
            module = build().to(dtype)
        module.to_empty(device=str(self.place))
        for parameter in module.parameters():
            _fill(parameter.data, std)
        return module

    def _draw_matrix(
        self, _name: str, shape: tuple[int, ...], *, std: float, dtype: torch.dtype, **_: Any
    ) -> Tensor:
        matrix = torch.empty(shape, dtype=dtype, device=self.place)
        _fill(matrix, std)
        return matrix


def _fill(tensor: Tensor, std: float) -> None:
    if tensor.ndim == 1:
        tensor.fill_(1.0)
    else:
        tensor.normal_(0.0, std)
