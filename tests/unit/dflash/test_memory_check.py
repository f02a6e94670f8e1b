"""The plan of a run against what training it really holds, and the refusal of what cannot fit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from dflash.batch import Batch, HiddenStates
from dflash.contract.activations import target_forward, total
from dflash.contract.config import TrainConfig, load_config
from dflash.contract.errors import DeviceError, ran_out_of_memory
from dflash.contract.memory_plan import host, plan_memory
from dflash.memory_check import MemoryPlan, plan_run
from dflash.target_weights import read_config
from dflash.trainer import Trainer, prepare
from dflash.window import batches
from tests.live_bytes import LiveBytes
from tests.small_training import few_talks


def configure(*assignments: str) -> TrainConfig:
    few = (*few_talks, "objective.anchors_per_document=48", "run.max_steps=3")
    return load_config(None, [*few, *assignments])


def largest_batch(trainer: Trainer) -> Batch:
    block = trainer.config.drafter.block_size
    stream = batches(trainer.documents, trainer.config, layout=trainer.layout)
    return max(stream, key=lambda batch: batch.tokens + batch.anchors.numel() * block)


def second_batch_peak(trainer: Trainer, batch: Batch) -> int:
    """Most bytes that live while a drafter trains its second batch of a window, but for what it was given."""
    replica, taps = trainer.group.leader, trainer.targets[0].forward(batch)
    with LiveBytes() as live:
        live.ignore(taps, *replica.parameters, replica.embedding, replica.head)
        replica.train(HiddenStates(batch=batch, taps=taps))
        live.peak = live.now
        replica.train(HiddenStates(batch=batch, taps=taps))
    return live.peak


@pytest.mark.parametrize(
    "assignments",
    [
        ["objective.chunk_blocks=16"],
        [  # few anchors: CPUs multiply slowly in bfloat16
            "objective.chunk_blocks=0",
            "drafter.dtype=bfloat16",
            "target.dtype=bfloat16",
            "objective.anchors_per_document=12",
        ],
        ["objective.chunk_blocks=8", "drafter.checkpointing=layers", "drafter.layers=4"],
        ["objective.chunk_blocks=64", "drafter.layer_types=mixed", "pipeline.token_budget=512"],
    ],
)
def test_a_step_holds_what_the_plan_says(assignments: list[str]) -> None:
    config = configure(*assignments)
    plan, trainer = plan_run(config), prepare(config)
    names = ("gradients", "activations", "logits", "gradients in the making")
    lines = {line.name: line.bytes for line in plan.ledger.lines if line.role == "drafter"}
    planned = sum(lines.get(name, 0) for name in names)
    held = second_batch_peak(trainer, largest_batch(trainer))
    assert planned == pytest.approx(held, rel=0.05)


@pytest.mark.parametrize("layout", ["packed", "padded"])
def test_a_forward_holds_what_the_plan_says(layout: str) -> None:
    config = configure(f"target.layout={layout}")
    facts, trainer = plan_run(config).facts, prepare(config)
    target = trainer.targets[0]
    stream = batches(trainer.documents, config, layout=trainer.layout)
    batch = max(stream, key=lambda batch: batch.layout.processed_tokens)
    with LiveBytes() as live:
        live.ignore(*target._body.parameters())
        target.forward(batch)
    planned = total(target_forward(facts.target, facts.batch, compiled=False)) + facts.item_bytes
    assert planned == pytest.approx(live.peak, rel=0.05)


def test_slabs_are_planned_only_where_a_pair_goes_through_the_host() -> None:
    def path(*assignments: str) -> str:
        return plan_run(configure("transport=auto", *assignments)).facts.transport.path

    slow_peers = ("devices.link_gigabytes_per_s=1", "devices.pinned_gigabytes_per_s=9")
    assert path() == "peer"
    assert path(*slow_peers) == "pinned"
    assert path(*slow_peers, "devices.gpus=1") == "peer"


def test_states_of_documents_held_out_are_counted_on_the_host() -> None:
    knobs = ("data.held_out=0.3", "run.evaluate_documents=3", "run.evaluate_every=1")
    plan, held_out = plan_run(configure(*knobs)), prepare(configure(*knobs)).evaluations.held_out
    assert held_out is not None
    (line,) = [line for line in plan.ledger.lines if line.name == "states of documents held out"]
    assert (line.place, line.bytes) == ("host", held_out.state_bytes)
    for unkept in ("data.held_out=0", "run.evaluate_every=0"):
        assert plan_run(configure(*knobs, unkept)).facts.held_out_bytes == 0


def test_weights_are_counted_without_being_loaded() -> None:
    config = configure()
    plan, trainer = plan_run(config), prepare(config)
    body = sum(parameter.numel() for parameter in trainer.targets[0]._body.parameters())
    assert plan.facts.target.body_parameters == body
    assert plan.facts.several_batches  # a window of the embedded configuration is more than its budget
    drafter = sum(parameter.numel() for parameter in trainer.group.leader.parameters)
    assert plan.facts.drafter.parameters == drafter


def test_a_run_that_cannot_fit_is_refused_before_weights_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash.memory_check._host_free_bytes", lambda: 1_000_000)
    monkeypatch.setattr("dflash.held_parts.load_target", lambda *_, **__: pytest.fail("weights were loaded"))
    with pytest.raises(DeviceError) as caught:
        prepare(configure())
    error = caught.value
    assert ran_out_of_memory(error.render())  # a search rules out what needs more
    assert (error.exit_code, error.where, error.expected) == (2, host, "at most 0.00 GB, which is free there")
    found = str(error.found).splitlines()
    sizes = [float(line.split()[0]) for line in found[1:]]
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == pytest.approx(float(found[0].split()[0]), abs=0.01)


def test_a_warning_is_enough_where_that_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dflash.memory_check._host_free_bytes", lambda: 1_000_000)
    trainer = prepare(configure("devices.memory_plan=warn"))
    assert trainer.memory.lacking() == (host,)


def test_the_remedy_names_the_first_setting_that_is_enough() -> None:
    facts = replace(plan_run(configure("objective.chunk_blocks=0")).facts, chunk_blocks=0)
    small = plan_memory(replace(facts, chunk_blocks=32)).needed_bytes(host)
    assert small < plan_memory(facts).needed_bytes(host)
    plan = MemoryPlan(facts, plan_memory(facts), {host: small})
    with pytest.raises(DeviceError) as caught:
        plan.check()
    assert caught.value.remedy == "set objective.chunk_blocks=32, which trains the same"


def test_a_place_that_does_not_say_what_is_free_is_not_refused() -> None:
    plan = plan_run(configure())
    silent_place = MemoryPlan(plan.facts, plan.ledger, {host: None})
    silent_place.check()
    assert silent_place.lacking() == ()
    assert MemoryPlan(plan.facts, plan.ledger, {host: 0}).lacking() == (host,)


def test_a_directory_is_planned_from_its_configuration_alone(tmp_path: Path) -> None:
    read_config("random:tiny").save_pretrained(tmp_path)
    again = read_config(str(tmp_path))
    assert (again.hidden_size, again.num_hidden_layers) == (160, 8)
    assert not list(tmp_path.glob("*.safetensors"))


def test_half_precision_halves_the_weights() -> None:
    halves = plan_run(configure("target.dtype=bfloat16")).facts.target.each_bytes
    assert (halves, torch.bfloat16.itemsize) == (2, 2)
