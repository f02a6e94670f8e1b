"""A search before it runs: what it says is what the search would do."""

from __future__ import annotations

import json

import pytest

from autotune.default_space import default_space, named_only
from autotune.effort import Effort
from autotune.plan import declare_machine, outline
from dflash.contract.errors import UsageError

big = (
    "target.model=random:qwen3-8b",
    "drafter.layers=5",
    "objective.anchors_per_document=512",
    "data.max_length=3072",
    "window.tokens=65536",
    "pipeline.token_budget=4096",
    "drafter.checkpointing=layers",
    "transport.preset=peer",
    "devices.kind=auto",
)


def plan_for(machine, base, **more):
    return outline(default_space(base, machine), machine, Effort(), **more)


def test_combinations_add_up(gpu_machine, base_of):
    told = plan_for(declare_machine(gpu_machine(2), 2, 30), base_of(*big)).to_json()
    assert told["size"] + sum(out["count"] for out in told["ruled_out"]) == told["combinations"]
    assert {"does not fit into memory", "the same as another one"} <= {
        out["kind"] for out in told["ruled_out"]
    }
    assert set(told["space"]) == set(told["start"])
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def test_what_would_only_do_with_short_documents_is_told_and_not_ruled_out(gpu_machine, base_of):
    machine = declare_machine(gpu_machine(2), 2, 40)
    space = default_space(base_of(*big), machine)
    unlikely = outline(space, machine, Effort()).memory.unlikely
    assert unlikely is not None
    assert unlikely.example in space.configurations
    counted = sum(
        space.arithmetic.why_unlikely(space.config(values)) is not None for values in space.configurations
    )
    assert unlikely.count == counted, "asking few of them gives the same answer as asking all"


def test_a_model_that_cannot_be_counted_rules_nothing_out_and_says_so(gpu_machine, base_of):
    told = plan_for(gpu_machine(2), base_of("devices.kind=auto", "target.model=some/model")).to_json()
    assert "some/model is no local directory" in told["memory"]["reason"]
    assert told["memory"]["start_needs_bytes"] == {}
    assert "does not fit into memory" not in {out["kind"] for out in told["ruled_out"]}


def test_the_first_run_is_the_start(machine, base_of):
    told = plan_for(machine, base_of()).to_json()
    assert told["order"][0]["values"] == told["start"]
    assert len(told["order"]) > 1
    assert told["emulated"]


def test_what_is_searched_only_when_named_is_listed(machine, base_of):
    assert set(plan_for(machine, base_of()).held) == set(named_only)


def test_another_machine_has_the_gpus_that_were_declared(machine, gpu_machine):
    other = declare_machine(machine, 8, 80)
    assert [gpu.memory_bytes for gpu in other.gpus] == [80 * 10**9] * 8
    assert (other.peers, other.host_bytes, other.gpu_reason) == (None, None, None)
    same = declare_machine(gpu_machine(2), 4, None)
    assert {(gpu.name, gpu.memory_bytes) for gpu in same.gpus} == {("NVIDIA H200", 140 << 30)}
    assert len({gpu.uuid for gpu in same.gpus}) == 4
    assert declare_machine(gpu_machine(2), None, 24).gpus[1].memory_bytes == 24 * 10**9
    assert declare_machine(machine, 2, None).gpus[0].memory_bytes is None
    with pytest.raises(UsageError, match="--gpus 8"):
        declare_machine(machine, None, 80)
