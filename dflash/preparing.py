"""Parts of a run's preparation: memory, drafters and their place in the data, evaluations, compilation.

Each may refuse; none starts anything. Knows nothing of their order.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

import torch

from dflash.batch import Batch
from dflash.checkpoints.identity import identify
from dflash.checkpoints.reading import FoundCheckpoint
from dflash.checkpoints.resumption import Resumption, resume
from dflash.checkpoints.saving import CheckpointWriter, name_devices
from dflash.compiling import guard_traces, warm_up
from dflash.contract.config import TrainConfig
from dflash.data.documents import Documents
from dflash.devices import DeviceSet
from dflash.evaluations import Evaluations
from dflash.held_out import HeldOut
from dflash.held_parts import HeldParts, Roles
from dflash.memory_check import MemoryPlan, make_plan
from dflash.packing import LayoutKind
from dflash.replicas import ReplicaGroup
from dflash.routes import Route
from dflash.target import Target
from dflash.window import Course

warm_up_batches = 2  # the second one shows that sizes may change


def find_place(
    config: TrainConfig,
    parts: HeldParts,
    roles: Roles,
    documents: Documents,
    found: FoundCheckpoint | None,
    run_path: Path | None,
) -> tuple[Course, Resumption | None, CheckpointWriter | None]:
    """The steps of the run, how it goes on from `found`, and what writes its checkpoints, if any."""
    writes = run_path is not None and config.run.checkpoint_every >= 0
    if found is None and not writes:
        return Course.of(documents.lengths, config), None, None
    spec, kinds = roles.replicas[0].drafter.spec, name_devices(parts.devices)
    identity = identify(config, spec, documents, parts.tokenizer, roles.target_sample)
    resumption = None if found is None else resume(found, identity, config, kinds)
    begins_at = 0 if resumption is None else resumption.position.data_begins_at
    course = Course.of(documents.lengths, config, begins_at)
    if run_path is None or not writes:
        return course, resumption, None
    writer = CheckpointWriter(
        directory=run_path / "checkpoints",
        config=config,
        identity=identity,
        course=course,
        devices=kinds,
        saved_step=0 if resumption is None else resumption.step,
    )
    writer.clean()
    if resumption is not None:
        resumption.clear_way(writer.directory)
    return course, resumption, writer


def check_memory(
    config: TrainConfig, parts: HeldParts, documents: Documents, routes: Sequence[Route]
) -> MemoryPlan:
    """What the run will hold. Raises DeviceError where it cannot fit and devices.memory_plan says refuse."""
    held = parts.held_bytes()
    plan = make_plan(config, parts.devices, documents, parts.tokenizer, routes, held, held_out=parts.held_out)
    if config.devices.memory_plan == "refuse":
        plan.check()
    return plan


def join_replicas(
    config: TrainConfig,
    roles: Roles,
    course: Course,
    resumption: Resumption | None,
    routes: Sequence[Route],
) -> ReplicaGroup:
    """The drafters with their optimizer, as the run begins or goes on with them."""
    ways = {(route.src, route.dst): route.path for route in routes}
    group = ReplicaGroup(roles.replicas, config, course.total_steps, ways)
    if resumption is not None:
        resumption.restore(group, course)
    return group


def open_evaluations(
    config: TrainConfig, parts: HeldParts, roles: Roles, layout: LayoutKind, *, worst_case: bool
) -> Evaluations:
    """On documents held out; their states are made now. Without any for a worst case, which has none."""
    every, documents = config.run.evaluate_every, parts.held_out
    if worst_case or documents is None or every == 0:
        return Evaluations(None, every)
    held_out = HeldOut.of(documents, config, roles.targets[0], taps=len(roles.taps), layout=layout)
    return Evaluations(held_out, every)


def set_up_torch(config: TrainConfig, devices: DeviceSet) -> None:
    """What holds for the whole process."""
    guard_traces()
    if devices.emulated:
        torch.set_num_threads(config.devices.cpu_threads)
    if config.run.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it matrix products refuse
        torch.use_deterministic_algorithms(True)


def most_bytes(config: TrainConfig, documents: Documents, roles: Roles) -> int:
    """Of the states of a batch, whatever its documents."""
    tokens = min(config.pipeline.token_budget, int(documents.lengths.sum()))
    return tokens * len(roles.taps) * roles.spec.hidden * roles.each_bytes


def warm_up_on(
    stream: Iterator[Batch], devices: DeviceSet, targets: list[Target], group: ReplicaGroup
) -> None:
    """Compile what is compiled on the first batches of a run, before there are threads."""
    calls = [
        *((d, t.forward) for d, t in zip(devices.targets, targets, strict=True) if t.compiled),
        *((replica.device, replica.rehearse) for replica in group.replicas if replica.compiled),
    ]
    if calls:
        first = islice(stream, warm_up_batches)
        warm_up((device, partial(call, batch)) for batch in first for device, call in calls)
