"""What a run loads, and what the next run in the same process may take over: data, targets, drafters.

A drafter that is taken over has its first weights again and is told of the new configuration. Everything else
of a run (queues, transport, optimizer, schedule) is made anew. Knows nothing of threads.
"""

from __future__ import annotations

import copy
import gc
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from dflash.contract.config import TrainConfig
from dflash.contract.errors import UsageError
from dflash.contract.held_knobs import held_values, name_changes
from dflash.contract.memory_plan import host
from dflash.data.documents import Documents
from dflash.data.loading import load_documents
from dflash.data.slices import hold_out
from dflash.data.tokenizer import ChatTokenizer, open_tokenizer
from dflash.devices import DeviceSet, open_devices
from dflash.drafter import Drafter, DrafterSpec, init_drafter
from dflash.leak_probe import choose_layout
from dflash.mask_token import resolve_mask_token
from dflash.packing import LayoutKind
from dflash.replicas import Replica
from dflash.stopwatch import Stopwatch
from dflash.target import LoadedTarget, Target, load_target
from dflash.target_shapes import TargetSpec
from dflash.weight_sample import sample_weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Roles:
    """The loaded models of one split."""

    spec: TargetSpec
    taps: tuple[int, ...]
    each_bytes: int  # of a value of the hidden states
    target_sample: str  # what its weights are known by
    targets: list[Target]
    replicas: list[Replica]
    first_weights: Mapping[str, Tensor] | None  # of the drafter, on the CPU; None: not kept


@dataclass
class HeldParts:
    """Loads at first use. `keep`: another run will follow, so that first weights are remembered."""

    config: TrainConfig  # of the run that loaded, and of those that may take over
    keep: bool = False
    roles: Roles | None = field(init=False, default=None)
    _layouts: dict[str, LayoutKind] = field(init=False, default_factory=dict)
    _warm: set[tuple[Any, ...]] = field(init=False, default_factory=set)

    @cached_property
    def devices(self) -> DeviceSet:
        """The devices of the split. Raises DeviceError."""
        return open_devices(self.config)

    @cached_property
    def tokenizer(self) -> ChatTokenizer:
        return open_tokenizer(self.config.target, self.config.data)

    @cached_property
    def documents(self) -> Documents:
        """Those to train on. Raises DataError."""
        return self._sides[0]

    @property
    def held_out(self) -> Documents | None:
        """Those kept out of training; None: none are."""
        return self._sides[1]

    @cached_property
    def _sides(self) -> tuple[Documents, Documents | None]:
        return hold_out(load_documents(self.config, self.tokenizer), self.config)

    def check(self, config: TrainConfig) -> None:
        """Raises UsageError for a run that would have to load something else."""
        changes = name_changes(held_values(self.config), held_values(config))
        if changes:
            raise UsageError(
                "this run loads other things than the one before it",
                where="the process that holds models between runs",
                found=changes,
                remedy="start it in a process of its own",
            )

    def take_roles(self, config: TrainConfig, taken: Stopwatch) -> Roles:
        """Targets and drafters as a run of `config` begins with them."""
        if self.roles is None:
            self.roles = self._load(config, taken)
        else:
            assert self.roles.first_weights is not None
            with taken.part("drafters"):
                for replica in self.roles.replicas:
                    replica.begin_again(self.roles.first_weights, config)
        return self.roles

    def layout(self, config: TrainConfig) -> LayoutKind:
        """The rows that targets are given, proven once for each choice."""
        assert self.roles is not None
        choice = config.target.layout
        if choice not in self._layouts:
            self._layouts[choice] = choose_layout(config, self.roles.targets[0])
        return self._layouts[choice]

    def is_warm(self, config: TrainConfig, layout: LayoutKind) -> bool:
        """Whether a run before compiled all that this one runs; from now on it counts as such a run.

        Sizes may change without another compilation; yet kernels may be chosen anew for far larger ones.
        """
        drafter, budget = config.drafter, config.pipeline.token_budget
        kernels = (
            layout,
            drafter.attention,
            drafter.checkpointing,
            config.objective,
            config.transport.trim,
            budget,
        )
        warm = kernels in self._warm
        self._warm.add(kernels)
        return warm

    def held_bytes(self) -> dict[str, int]:
        """What this process has at each place and a run may take over or reuse. Empty before it loads."""
        if self.roles is None:
            return {}
        if not self.devices.emulated:
            places = {device.name: device.torch_device for device in self.devices.all}
            return {name: torch.cuda.memory_reserved(place) for name, place in places.items()}
        modules = [target.body for target in self.roles.targets]
        tensors: list[Tensor] = [p for module in modules for p in module.parameters()]
        tensors += [p for replica in self.roles.replicas for p in replica.parameters]
        first = self.roles.replicas[0]
        tensors += [first.embedding, first.head]
        return {host: sum(size for size in {t.data_ptr(): t.nbytes for t in tensors}.values())}

    def _load(self, config: TrainConfig, taken: Stopwatch) -> Roles:
        with taken.part("target"):
            loaded = load_target(config, device_type=self.devices.targets[0].torch_device.type)
        mask = resolve_mask_token(config.drafter.mask_token_id, self.tokenizer, loaded.spec.vocab)
        with taken.part("drafters"):
            spec = DrafterSpec.of(config.drafter, loaded.spec, loaded.taps, mask_token_id=mask)
            replicas = _replicas(config, init_drafter(spec, config.drafter.seed), loaded, self.devices)
        with taken.part("target"):
            targets = [Target(loaded, device.torch_device) for device in self.devices.targets]
        return Roles(
            spec=loaded.spec,
            taps=loaded.taps,
            each_bytes=loaded.embedding.element_size(),
            target_sample=_sample(loaded),
            targets=targets,
            replicas=replicas,
            first_weights=_copied(replicas[0].drafter) if self.keep else None,
        )


def release(devices: DeviceSet) -> None:
    """Give back what an ended run left behind: what only cycles hold, and what allocators keep for later."""
    gc.collect()
    if not devices.emulated:
        # A workspace for each stream that products were computed on; the threads of every run have new ones.
        torch._C._cuda_clearCublasWorkspaces()
        torch.cuda.empty_cache()


def _sample(loaded: LoadedTarget) -> str:
    """What the target's weights are known by; of the layers up to the last tap."""
    return sample_weights([*loaded.body.parameters(), loaded.embedding, loaded.head])


def _copied(drafter: Drafter) -> dict[str, Tensor]:
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in drafter.named_parameters()}


def _replicas(config: TrainConfig, first: Drafter, loaded: LoadedTarget, devices: DeviceSet) -> list[Replica]:
    """A replica for each drafter device, all with the weights of `first`."""
    copies = [copy.deepcopy(first) for _ in devices.drafters[1:]]
    return [
        Replica(drafter, loaded.embedding, loaded.head, device, config)
        for drafter, device in zip([first, *copies], devices.drafters, strict=True)
    ]
