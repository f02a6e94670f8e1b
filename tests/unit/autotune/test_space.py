"""What may be varied, and which combinations cannot run."""

import pytest

from autotune.space import Dimension, default_space
from dflash.contract.errors import ConfigError, DeviceError


def test_knob_that_changes_the_training_signal_is_refused():
    with pytest.raises(ConfigError, match="changes what is trained"):
        Dimension("window.tokens", (1024, 2048))


def test_choices_are_checked_as_the_knob_is():
    with pytest.raises(ConfigError, match=r"transport\.preset"):
        Dimension("transport.preset", ("peer", "pear"))


def test_start_outside_the_space_is_refused(space_of):
    with pytest.raises(ConfigError, match="outside the search space"):
        space_of(transport__preset=("peer", "pinned"))


def test_impossible_combinations_say_why_and_are_not_among_the_configurations(space):
    too_big = {"pipeline.split": "1-2", "pipeline.token_budget": 4096, "transport.preset": "peer"}
    assert "a window must hold" in space.why_not(too_big)
    assert too_big not in space.configurations
    assert space.size == 32  # 36 less the four transports of that split and budget
    assert all(space.why_not(values) is None for values in space.configurations)


def test_logical_space_keeps_to_few_devices(machine, base_of):
    space = default_space(base_of(), machine)
    splits, budgets, *_ = space.dimensions
    assert splits.choices == ("colocated-1", "1-1", "colocated-2", "2-1", "1-2", "colocated-3")
    assert budgets.choices == (256, 512, 1024, 2048, 4096)
    assert space.baseline in space.configurations


def test_gpu_space_uses_every_device(gpu_machine, base_of):
    config = base_of("devices.kind=auto")
    space = default_space(config, gpu_machine(4))
    apart = {"1-1", "2-1", "1-2", "3-1", "2-2", "1-3"}
    assert set(space.dimensions[0].choices) == apart | {f"colocated-{n}" for n in (1, 2, 3, 4)}


def test_a_colocated_split_is_tried_with_one_transport_only(gpu_machine, base_of):
    space = default_space(base_of("devices.kind=auto", "transport.preset=host"), gpu_machine(2))
    colocated = [v for v in space.configurations if v["pipeline.split"] == "colocated-2"]
    assert {values["transport.preset"] for values in colocated} == {"peer"}
    assert "makes no difference" in space.why_not({**colocated[0], "transport.preset": "host"})


def test_a_colocated_start_keeps_its_transport(gpu_machine, base_of):
    config = base_of("devices.kind=auto", "transport.preset=host", "pipeline.split=colocated-1")
    space = default_space(config, gpu_machine(1))
    assert space.dimensions[0].choices == ("colocated-1",)
    assert space.baseline in space.configurations


def test_roles_that_share_devices_need_no_more_of_them(gpu_machine, base_of):
    space = default_space(
        base_of("devices.kind=auto", "pipeline.split=2-1", "devices.gpus=1"), gpu_machine(1)
    )
    assert space.baseline["pipeline.split"] == "2-1"


def test_odd_starting_values_join_the_choices(machine, base_of):
    config = base_of("pipeline.token_budget=1000", "transport.depth=3", "pipeline.prefetch_depth=5")
    space = default_space(config, machine)
    assert space.baseline["pipeline.token_budget"] == 1000
    assert 3 in dict(space.describe())["transport.depth"]


def test_overridden_transport_is_not_searched_by_preset(machine, base_of):
    config = base_of("transport.path=pinned")
    assert default_space(config, machine).describe()["transport.preset"] == ["host"]


def test_a_start_with_auto_is_not_tried_again_as_peer(machine, base_of):
    presets = {
        base: default_space(base_of(f"transport.preset={base}"), machine).describe()["transport.preset"]
        for base in ("host", "auto")
    }
    assert presets == {
        "host": ["host", "shared", "pinned", "peer"],
        "auto": ["host", "shared", "pinned", "auto"],
    }


def test_start_that_needs_more_gpus_than_there_are_is_refused(gpu_machine, base_of):
    config = base_of("pipeline.split=3-1")
    with pytest.raises(DeviceError, match="needs 4 devices, 2 are there"):
        default_space(config, gpu_machine(2))


def test_cuda_without_gpus_is_refused_with_the_reason(machine, base_of):
    with pytest.raises(DeviceError, match="none here"):
        default_space(base_of("devices.kind=cuda"), machine)


def test_numbers_step_to_their_neighbours_and_words_to_all_others():
    assert Dimension("transport.depth", (4, 1, 2)).steps_from(2) == (4, 1)
    assert Dimension("transport.depth", (4, 1, 2)).steps_from(4) == (2,)
    assert Dimension("transport.preset", ("host", "peer", "pinned")).steps_from("peer") == ("host", "pinned")
