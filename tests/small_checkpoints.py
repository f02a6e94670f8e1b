"""A checkpoint that takes milliseconds: of the smallest drafter that is one, without a training."""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from dflash.attention import full
from dflash.checkpoints.identity import Identity
from dflash.checkpoints.manifest import Manifest, read_manifest, write_manifest
from dflash.checkpoints.saving import CheckpointWriter
from dflash.contract.config import TrainConfig, load_config
from dflash.devices import open_devices
from dflash.drafter import DrafterSpec, init_drafter
from dflash.replicas import Replica, ReplicaGroup
from dflash.window import Course
from tests.small_training import on_logical_devices

spec = DrafterSpec(
    hidden=8,
    layers=1,
    heads=2,
    kv_heads=1,
    head_dim=4,
    intermediate=8,
    taps=(0, 1),
    block_size=4,
    layer_types=(full,),
    sliding_window=8,
    mask_token_id=3,
    rope_theta=1e6,
    rms_eps=1e-6,
    vocab=16,
    max_positions=64,
    target_layers=2,
)
course = Course(begins_at=0, by_epoch=(4, 4, 4), total_steps=12)
identity = Identity(
    model={"hidden": 8, "block_size": 4, "taps": [0, 1], "tokenizer": "a1", "chat_template": "b2"},
    data={"data.seed": 0, "window.tokens": 512, "documents": "96 documents"},
)


def configure(*changes: str) -> TrainConfig:
    return load_config(None, (*on_logical_devices, "run.checkpoint_every=1", *changes))


def make_group() -> ReplicaGroup:
    """One replica on a logical device, with its optimizer."""
    config = configure()
    (device,) = open_devices(config).drafters
    frozen = torch.zeros(spec.vocab, spec.hidden)
    replica = Replica(init_drafter(spec, 0), frozen, frozen, device, config)
    return ReplicaGroup([replica], config, course.total_steps)


def step(group: ReplicaGroup) -> None:
    """One optimizer step."""
    generator = torch.Generator().manual_seed(group.optimizer.steps_done)
    shapes = [parameter.shape for parameter in group.leader.drafter.parameters()]
    group.optimizer.step([torch.randn(shape, generator=generator) for shape in shapes])


def make_writer(directory: Path, *changes: str, **fields: Any) -> CheckpointWriter:
    defaults: dict[str, Any] = {
        "config": configure(*changes),
        "identity": identity,
        "course": course,
        "devices": ["logical device"],
        "saved_step": 0,
    }
    return CheckpointWriter(directory=directory, **{**defaults, **fields})


def write_steps(directory: Path, count: int, *changes: str) -> None:
    """step-1 to step-`count`, as far as they are kept."""
    writer, group = make_writer(directory, *changes), make_group()
    for _ in range(count):
        step(group)
        writer.save(group, last=False)


def edit(checkpoint: Path, change: Callable[[Manifest], Manifest]) -> None:
    """Let the state of a checkpoint say something else, with the checksum of that."""
    write_manifest(checkpoint, change(read_manifest(checkpoint)))


def moved_to(**place: int) -> Callable[[Manifest], Manifest]:
    """For `edit`: another position."""
    return lambda manifest: replace(manifest, position=replace(manifest.position, **place))


@contextmanager
def no_file_larger_than(limit_bytes: int) -> Iterator[None]:
    """What a full disk is to whoever writes: the system refuses further bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
