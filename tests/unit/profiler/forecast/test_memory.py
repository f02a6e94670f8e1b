"""Memory of another setting: the plan made again from run.json, raised where more was seen."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dflash.contract.activations import BatchShape, DrafterShape, TargetShape
from dflash.contract.config import TrainConfig, from_values
from dflash.contract.memory_plan import Facts, plan_memory
from profiler.forecast.memory import forecast_memory, read_facts, refit_facts
from profiler.run import Run
from tests.run_builder import RunBuilder

values: dict[str, Any] = {
    "pipeline.split": "1-1",
    "pipeline.token_budget": 1024,
    "data.max_length": 256,
    "window.tokens": 8192,
    "transport.depth": 2,
}
config = from_values(values)


def facts_of(config: TrainConfig) -> Facts:
    target = TargetShape(
        hidden=64,
        layers=4,
        heads=4,
        kv_heads=2,
        head_dim=16,
        inner=128,
        vocab=512,
        tied=True,
        body_parameters=200_000,
        loaded_parameters=250_000,
        each_bytes=2,
    )
    drafter = DrafterShape(
        hidden=64,
        layers=2,
        heads=4,
        kv_heads=2,
        head_dim=16,
        intermediate=128,
        taps=3,
        block_size=8,
        kinds=1,
        vocab=512,
        each_bytes=2,
    )
    return Facts(
        target=target,
        drafter=drafter,
        batch=BatchShape(documents=((256, 8),) * 4, rows=1, width=1024, masked=False),
        targets=("cuda:0",),
        drafters=("cuda:1",),
        transport=config.transport_choice,
        several_batches=True,
        compiled_target=False,
        compiled_drafter=False,
        checkpointing=False,
        chunk_blocks=config.objective.chunk_blocks,
        token_budget=1024,
        longest=256,
        data_tokens=100_000,
        prefetch_depth=config.pipeline.prefetch_depth,
        checkpoints=True,
    )


def write_run(path: Path, facts: Facts | None, peak: float | None = None) -> Run:
    builder = RunBuilder(path, config, emulated=False)
    if peak is not None:
        for place in ("cuda:0", "cuda:1"):
            size = peak * plan_memory(facts_of(config)).allocated_bytes(place)
            builder.gauge("trainer", 0, "allocated_bytes", 1.0, size, device=place)
    plan = {} if facts is None else {"memory_plan": json.loads(json.dumps({"facts": asdict(facts)}))}
    return Run.open(builder.finish(**plan))


def test_facts_survive_run_json(tmp_path: Path) -> None:
    facts = facts_of(config)
    assert read_facts(write_run(tmp_path / "run", facts)) == facts
    assert read_facts(write_run(tmp_path / "old", None)) is None


def test_the_same_setting_has_the_same_plan(tmp_path: Path) -> None:
    facts = facts_of(config)
    assert refit_facts(facts, config) == facts
    memory = forecast_memory(write_run(tmp_path / "run", facts), config)
    now = plan_memory(facts)
    assert {p.place: p.planned_bytes for p in memory.places} == {
        place: now.needed_bytes(place) for place in now.places
    }
    assert all(place.corrected_bytes is None for place in memory.places)


def test_another_split_and_depth_and_budget_need_other_memory() -> None:
    facts = facts_of(config)
    wide = refit_facts(facts, from_values({**values, "pipeline.split": "3-1"}))
    assert wide.targets == ("cuda:0", "cuda:1", "cuda:2")
    assert wide.drafters == ("cuda:3",)
    deep = plan_memory(refit_facts(facts, from_values({**values, "transport.depth": 9})))
    assert deep.needed_bytes("cuda:1") > plan_memory(facts).needed_bytes("cuda:1")
    half = refit_facts(facts, from_values({**values, "pipeline.token_budget": 512}))
    assert half.batch.tokens == half.batch.width == 512


def test_more_than_planned_raises_the_plan_and_less_leaves_it(tmp_path: Path) -> None:
    facts = facts_of(config)
    wide = config.replacing({"pipeline.split": "2-1"})
    raised = forecast_memory(write_run(tmp_path / "more", facts, peak=1.5), wide)
    kept = forecast_memory(write_run(tmp_path / "less", facts, peak=0.5), wide)
    gpus = [place for place in raised.places if place.place != "host"]
    assert len(gpus) == 3
    for place in gpus:
        assert place.corrected_bytes is not None
        assert place.corrected_bytes > place.planned_bytes
    for place in (place for place in kept.places if place.place != "host"):
        assert place.corrected_bytes == place.planned_bytes


def test_without_facts_the_reason_is_given(tmp_path: Path) -> None:
    memory = forecast_memory(write_run(tmp_path / "old", None), config)
    assert memory.places == ()
    assert memory.reason
    spoilt = asdict(replace(facts_of(config))) | {"targets": 3}
    builder = RunBuilder(tmp_path / "spoilt", config, emulated=False)
    run = Run.open(builder.finish(memory_plan={"facts": json.loads(json.dumps(spoilt))}))
    assert forecast_memory(run, config).reason
