"""What arithmetic rules out is what the trainer's own plan would refuse, and never more."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

from autotune.arithmetic import Limits, MemoryArithmetic, least_tokens, likely_tokens, set_up_arithmetic
from autotune.machine import Gpu, Machine
from dflash.contract.config import load_config
from dflash.contract.memory_plan import host
from dflash.contract.model_shapes import UnknownShape
from dflash.memory_check import plan_run
from dflash.packing import pack

gpu_base = (
    "target.model=random:qwen3-8b",
    "drafter.layers=5",
    "drafter.tap_count=5",
    "drafter.block_size=16",
    "objective.anchors_per_document=512",
    "data.max_length=3072",
    "window.tokens=65536",
    "pipeline.token_budget=8192",
    "transport.preset=peer",
)


def on_gpus(gigabytes, count=8):
    gpus = tuple(Gpu("a GPU", f"GPU-{i}", round(gigabytes * 1e9)) for i in range(count))
    return Machine(cpu="a cpu", cpus=8, gpus=gpus)


def arithmetic_on(machine):
    found = set_up_arithmetic(load_config(None, list(gpu_base)), Limits.of(machine, emulated=False))
    assert isinstance(found, MemoryArithmetic), found
    return found


def fit(gigabytes, *assignments):
    config = load_config(None, [*gpu_base, *assignments])
    return arithmetic_on(on_gpus(gigabytes)).why_not(config)


@pytest.mark.parametrize(
    "assignments",
    [
        [],
        ["pipeline.token_budget=512", "transport.preset=pinned", "transport.depth=4"],
        ["drafter.checkpointing=layers", "pipeline.split=2-1", "objective.chunk_blocks=0"],
        ["pipeline.split=colocated-1", "window.tokens=4096", "pipeline.token_budget=2048"],
        ["data.max_length=200", "pipeline.token_budget=300"],
    ],
)
def test_the_least_is_never_more_than_the_trainer_plans(assignments):
    config = load_config(None, [*assignments, "devices.kind=logical"])
    arithmetic = set_up_arithmetic(config, Limits(emulated=True, host_bytes=10**12))
    assert isinstance(arithmetic, MemoryArithmetic)
    planned = plan_run(config)
    least = arithmetic.ledger(config, likely=False)
    assert least_tokens(config) <= planned.facts.batch.tokens
    assert 0 < least.needed_bytes(host) <= planned.ledger.needed_bytes(host)


def test_shapes_are_the_trainers_own():
    config = load_config(None, ["devices.kind=logical"])
    arithmetic = set_up_arithmetic(config, Limits(emulated=True))
    assert isinstance(arithmetic, MemoryArithmetic)
    ours, theirs = arithmetic._facts(config, likely=True), plan_run(config).facts
    same = (
        "target",
        "drafter",
        "targets",
        "drafters",
        "compiled_target",
        "compiled_drafter",
        "several_batches",
    )
    for name in (*same, "checkpointing", "chunk_blocks", "token_budget", "prefetch_depth", "longest"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert ours.batch.tokens == pytest.approx(theirs.batch.tokens, rel=0.35)
    ours_transport = dataclasses.replace(ours.transport, path=theirs.transport.path)
    assert ours_transport == theirs.transport


def test_a_small_gpu_is_ruled_out_with_the_figures():
    reason = fit(15)
    assert reason is not None
    assert reason.startswith("at least ")
    assert "which has 15.0 (most for" in reason
    assert fit(140) is None


@pytest.mark.parametrize("more", [[], ["drafter.checkpointing=layers"]])
def test_larger_budgets_need_more(more):
    at = arithmetic_on(on_gpus(80))
    configs = [
        load_config(None, [*gpu_base, f"pipeline.token_budget={b}", *more]) for b in (4096, 8192, 32768)
    ]
    needs = [at.needed_bytes(config)["cuda:1"] for config in configs]
    assert needs == sorted(set(needs))


def test_checkpointing_saves_memory():
    at, kept = arithmetic_on(on_gpus(80)), load_config(None, list(gpu_base))
    again = kept.replacing({"drafter.checkpointing": "layers"})
    assert at.needed_bytes(again)["cuda:1"] < at.needed_bytes(kept)["cuda:1"]


def test_likely_documents_need_more_than_the_least():
    config = load_config(None, [*gpu_base, "pipeline.token_budget=32768"])
    limit = 60
    at = arithmetic_on(on_gpus(limit))
    assert at.why_not(config) is None
    assert "needed on cuda:1" in (at.why_unlikely(config) or "")


def test_logical_devices_live_in_the_hosts_memory():
    machine = dataclasses.replace(on_gpus(15), host_bytes=10**12)
    assert Limits.of(machine, emulated=True) == Limits(emulated=True, host_bytes=10**12)
    assert Limits.of(machine, emulated=False).gpu_bytes == 15 * 10**9


def test_who_asks_for_a_warning_only_is_not_ruled_out():
    assert fit(15, "devices.memory_plan=warn") is None


def test_unknown_sizes_rule_nothing_out():
    machine = Machine(cpu="a cpu", cpus=2, gpus=(Gpu("integrated", "GPU-0", None),) * 2)
    assert arithmetic_on(machine).why_not(load_config(None, list(gpu_base))) is None


def test_too_little_data_for_a_window_bounds_nothing(tmp_path):
    chats = tmp_path / "chats.jsonl"
    chats.write_text("x" * 1000)
    config = load_config(None, [*gpu_base, f"data.path={chats}"])
    assert least_tokens(config) == 1
    chats.write_text("x" * 16 * 65536)
    assert least_tokens(config) > 4096


def test_batches_of_a_window_are_about_equally_full():
    config = load_config(None, [*gpu_base, "pipeline.token_budget=32768"])
    assert likely_tokens(config) == 22358  # 67,072 tokens in three
    assert least_tokens(config) == 21845


@pytest.mark.parametrize("budget", [256, 300, 511, 1000, 4096])
def test_no_window_is_packed_into_smaller_batches_than_the_least(budget):
    config = load_config(
        None, ["data.max_length=256", "window.tokens=4096", f"pipeline.token_budget={budget}"]
    )
    draw = np.random.default_rng(budget)
    for longest in (256, 200, 130, 129, 20):
        for _ in range(20):
            lengths = []
            while sum(lengths) < 4096:
                lengths.append(int(draw.integers(max(longest - 20, 8), longest + 1)))
            batches = pack(np.array(lengths), budget, "flat")
            assert max(sum(lengths[i] for i in batch) for batch in batches) >= least_tokens(config)


def test_a_model_that_cannot_be_counted_says_why(tmp_path):
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "mamba"}))
    config = load_config(None, [f"target.model={tmp_path}"])
    found = set_up_arithmetic(config, Limits())
    assert isinstance(found, UnknownShape)
    assert "'mamba'" in found.reason


def test_taps_past_the_target_are_a_reason_and_no_crash():
    found = set_up_arithmetic(load_config(None, ["drafter.taps=1,99"]), Limits())
    assert isinstance(found, UnknownShape)
    assert "drafter.taps" in found.reason
