"""The space that a machine suggests."""

from __future__ import annotations

import dataclasses

import pytest

from autotune.default_space import default_choices, default_space, named_only
from autotune.space import no_difference
from dflash.contract.config import all_knobs
from dflash.contract.errors import DeviceError
from dflash.contract.knobs import find_knob

recipe = (
    "target.model=random:qwen3-8b",
    "drafter.layers=5",
    "drafter.tap_count=5",
    "drafter.block_size=16",
    "objective.anchors_per_document=512",
    "data.max_length=3072",
    "window.tokens=65536",
    "pipeline.token_budget=8192",
    "devices.kind=auto",
)


def test_logical_space_keeps_to_few_devices(machine, base_of):
    space = default_space(base_of(), machine)
    splits, budgets, *_ = space.dimensions
    assert splits.choices == ("colocated-1", "1-1", "colocated-2", "2-1", "1-2", "colocated-3")
    assert budgets.choices == (256, 512, 1024, 2048, 4096)
    assert space.baseline in space.configurations


def test_gpu_space_uses_every_device_alone_and_shared(gpu_machine, base_of):
    space = default_space(base_of("devices.kind=auto"), gpu_machine(4))
    apart = {"1-1", "2-1", "1-2", "3-1", "2-2", "1-3"}
    shared = {"4-4", "4-2", "2-4"}
    assert set(space.dimensions[0].choices) == apart | shared | {f"colocated-{n}" for n in (1, 2, 3, 4)}
    gpus = {v["pipeline.split"]: v["devices.gpus"] for v in space.configurations}
    assert {split for split, count in gpus.items() if count == 4} == shared


@pytest.mark.parametrize(
    ("count", "low", "high"), [(1, 50, 1000), (2, 300, 1500), (4, 1000, 3000), (8, 1000, 3000)]
)
@pytest.mark.parametrize("preset", ["auto", "peer", "host"])
def test_a_search_can_rank_the_whole_space(gpu_machine, base_of, count, low, high, preset):
    split = "colocated-1" if count == 1 else "1-1"
    base = base_of(*recipe, f"transport.preset={preset}", f"pipeline.split={split}")
    assert low <= default_space(base, gpu_machine(count)).size <= high


def test_many_gpus_are_not_left_idle(gpu_machine, base_of):
    splits = default_choices(base_of(*recipe), gpu_machine(8))["pipeline.split"]
    assert "7-1" in splits
    assert "6-1" in splits
    assert "4-1" not in splits
    assert "1-1" in splits, "the start's own"


def test_a_single_gpu_is_shared_in_turns_or_colocated(gpu_machine, base_of):
    space = default_space(base_of("devices.kind=auto", "pipeline.split=colocated-1"), gpu_machine(1))
    tried = {(v["pipeline.split"], v["devices.gpus"]) for v in space.configurations}
    assert tried == {("colocated-1", 0), ("1-1", 1)}


def test_who_limits_the_devices_gets_no_more(gpu_machine, base_of):
    base = base_of("devices.kind=auto", "pipeline.split=2-1", "devices.gpus=1")
    space = default_space(base, gpu_machine(1))
    assert space.baseline["pipeline.split"] == "2-1"
    assert "devices.gpus" not in space.paths


def test_a_colocated_split_is_tried_with_one_transport_only(gpu_machine, base_of):
    space = default_space(base_of("devices.kind=auto", "transport.preset=host"), gpu_machine(2))
    colocated = [v for v in space.configurations if v["pipeline.split"] == "colocated-2"]
    assert {values["transport.preset"] for values in colocated} == {"peer"}
    assert "makes no difference" in space.why_not({**colocated[0], "transport.preset": "host"})


def test_odd_starting_values_join_the_choices(machine, base_of):
    config = base_of("pipeline.token_budget=1000", "transport.depth=3", "pipeline.prefetch_depth=5")
    space = default_space(config, machine)
    assert space.baseline["pipeline.token_budget"] == 1000
    assert 3 in space.describe()["transport.depth"]


def test_overridden_transport_is_not_searched_by_preset(machine, base_of):
    assert "transport.preset" not in default_space(base_of("transport.path=pinned"), machine).paths


def test_a_start_with_auto_is_not_tried_again_as_peer(machine, base_of):
    presets = {
        base: default_space(base_of(f"transport.preset={base}"), machine).describe()["transport.preset"]
        for base in ("host", "auto")
    }
    assert presets == {
        "host": ["host", "shared", "pinned", "peer"],
        "auto": ["host", "shared", "pinned", "auto"],
    }


@pytest.mark.parametrize(
    ("peers", "own", "presets"),
    [
        (None, "peer", ("shared", "pinned", "peer")),
        ({(0, 1), (0, 2), (1, 2)}, "peer", ("shared", "pinned", "peer")),
        ({(0, 1), (0, 2), (1, 2)}, "auto", ("shared", "pinned", "auto")),
        ({(0, 1)}, "pinned", ("shared", "pinned", "auto")),  # two islands: only auto goes round the gap
        (set(), "pinned", ("pinned",)),  # nobody reaches another
        (set(), "host", ("host", "pinned")),
    ],
)
def test_transports_follow_who_reaches_whom(gpu_machine, base_of, peers, own, presets):
    machine = dataclasses.replace(gpu_machine(3), peers=None if peers is None else frozenset(peers))
    base = base_of("devices.kind=auto", f"transport.preset={own}")
    assert default_choices(base, machine)["transport.preset"] == presets


def test_start_that_needs_more_gpus_than_there_are_is_refused(gpu_machine, base_of):
    with pytest.raises(DeviceError, match="needs 4 devices, 2 are there"):
        default_space(base_of("devices.kind=auto", "pipeline.split=3-1"), gpu_machine(2))


def test_cuda_without_gpus_is_refused_with_the_reason(machine, base_of):
    with pytest.raises(DeviceError, match="none here"):
        default_space(base_of("devices.kind=cuda"), machine)


def test_knobs_to_be_named_are_neutral_and_not_searched_unasked(gpu_machine, base_of):
    assert all(find_knob(path, all_knobs).meta.neutral for path in named_only)
    assert not set(named_only) & set(default_choices(base_of(*recipe), gpu_machine(8)))


def test_what_differs_in_name_only_is_counted(gpu_machine, base_of):
    space = default_space(base_of(*recipe), gpu_machine(8))
    out = {each.kind: each.count for each in space.ruled_out}
    assert out[no_difference] > 0
    assert sum(out.values()) + space.size == space.points
