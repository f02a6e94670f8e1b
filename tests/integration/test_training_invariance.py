"""The update of a window does not depend on split, budget, layout or transport."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch

from dflash.contract.config import TrainConfig, load_config
from dflash.contract.events import Probe, event_schema
from dflash.trainer import TrainResult, prepare
from tests.small_training import on_logical_devices

small = (
    *on_logical_devices,
    "objective.anchors_per_document=4",
    "pipeline.token_budget=256",
    "transport=peer",
)


class ListLog:
    """Keeps event rows as dicts."""

    def __init__(self) -> None:
        self.rows: list[dict] = []

    def append(self, row: tuple) -> None:
        self.rows.append(dict(zip(event_schema.names, row, strict=True)))


def configure(*changes: str) -> TrainConfig:
    return load_config(None, (*small, *changes))


def train(*changes: str) -> TrainResult:
    return prepare(configure(*changes)).run()


@pytest.fixture(scope="module")
def reference() -> TrainResult:
    return train()


def assert_same_update(result: TrainResult, reference: TrainResult) -> None:
    """Equal to summation order: far below what one lost, doubled or re-anchored document would change."""
    assert result.steps_done == reference.steps_done == 3
    assert result.documents_trained == reference.documents_trained
    assert result.tokens_trained == reference.tokens_trained
    np.testing.assert_allclose(result.losses, reference.losses, rtol=2e-5)
    ours = result.weights()
    for name, tensor in reference.weights().items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-3, atol=2e-5, msg=name)


@pytest.mark.parametrize(
    ("split", "preset"),
    [
        *(("2-2", preset) for preset in ("host", "shared", "pinned", "peer", "auto")),
        *(("2-1", preset) for preset in ("host", "shared")),
        *(("1-2", preset) for preset in ("shared", "pinned", "peer")),
    ],
)
def test_splits_and_transports_give_the_same_update(split: str, preset: str, reference: TrainResult) -> None:
    """C110: what two drafters come to is what one does."""
    assert_same_update(train(f"split={split}", f"transport={preset}"), reference)


@pytest.mark.parametrize("shared", ["2-1 on 1", "1-2 on 2", "2-2 on 2", "2-2 on 1"])
def test_roles_that_share_devices_give_the_same_update(shared: str, reference: TrainResult) -> None:
    split, _, gpus = shared.split()
    assert_same_update(train(f"split={split}", f"devices.gpus={gpus}"), reference)


@pytest.mark.parametrize("split", ["colocated-1", "colocated-2", "colocated-3"])
def test_colocated_splits_give_the_same_update_and_copy_nothing(split: str, reference: TrainResult) -> None:
    log = ListLog()
    config = configure(f"split={split}", "pipeline.token_budget=128")
    assert_same_update(prepare(config, probe=Probe(log, "trainer")).run(), reference)
    assert [row for row in log.rows if row["name"] == "copy"] == []
    where = {(row["batch"], row["name"]): row["device"] for row in log.rows}
    assert all(
        where[batch, "forward"] == where[batch, "backward"] for batch, name in where if name == "backward"
    )


@pytest.mark.parametrize("split", ["3-1", "1-2", "2-2", "colocated-2"])
def test_lockstep_gives_the_same_update_and_never_works_in_both_phases_at_once(
    split: str, reference: TrainResult
) -> None:
    log = ListLog()
    config = configure(
        f"split={split}", "pipeline.schedule=lockstep", "pipeline.token_budget=128", "transport.depth=1"
    )
    assert_same_update(prepare(config, probe=Probe(log, "trainer")).run(), reference)
    work = [row for row in log.rows if row["name"] in ("forward", "backward", "optimizer")]
    work.sort(key=lambda row: row["t_ns"])
    ends = {"target": 0, "drafter": 0}
    for row in work:
        other = "drafter" if row["stage"] == "target" else "target"
        assert row["t_ns"] >= ends[other], "a phase began before the one before had ended"
        ends[row["stage"]] = max(ends[row["stage"]], row["t_ns"] + row["dur_ns"])
    assert {row["stage"] for row in log.rows if row["name"] == "barrier"} == {"target", "drafter"}


def sent_bytes(log: ListLog) -> int:
    return sum(row["bytes"] for row in log.rows if row["name"] == "dispatch")


@pytest.mark.parametrize(
    "change", ["split=1-1", "split=colocated-1", "target.layout=padded", "transport=pinned"]
)
def test_states_that_no_anchor_reads_may_be_left_out(change: str, reference: TrainResult) -> None:
    """Within tolerance, not to the bit: the drafter's products are shorter."""
    whole, short = ListLog(), ListLog()
    prepare(configure(change), probe=Probe(whole, "trainer")).run()
    result = prepare(configure("transport.trim=true", change), probe=Probe(short, "trainer")).run()
    assert_same_update(result, reference)
    assert sent_bytes(short) < 0.95 * sent_bytes(whole)


@pytest.mark.parametrize(
    ("layout", "budget"),
    [("packed", 64), ("packed", 512), ("padded", 128), ("padded", 512), ("flat", 64), ("flat", 128)],
)
def test_budgets_and_layouts_give_the_same_update(budget: int, layout: str, reference: TrainResult) -> None:
    attention = "varlen" if layout == "flat" else "sdpa"
    changes = (f"target.layout={layout}", f"target.attention={attention}")
    assert_same_update(train(f"pipeline.token_budget={budget}", *changes), reference)


@pytest.mark.parametrize("preset", ["host", "shared", "pinned"])
def test_transports_are_bit_identical_at_1_1(preset: str, reference: TrainResult) -> None:
    result = train(f"transport={preset}")
    assert result.losses == reference.losses
    ours = result.weights()
    for name, tensor in reference.weights().items():
        assert torch.equal(ours[name], tensor), name


def test_another_seed_gives_another_update(reference: TrainResult) -> None:
    assert train("data.seed=1").losses != reference.losses


def test_books_balance(reference: TrainResult) -> None:
    assert reference.batches_made == reference.batches_trained + reference.batches_dropped
    assert reference.batches_dropped == 0


def test_a_deterministic_run_brings_what_cublas_needs_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    # Without it the first matrix product on a GPU raises.
    monkeypatch.setitem(os.environ, "CUBLAS_WORKSPACE_CONFIG", "to be undone")
    del os.environ["CUBLAS_WORKSPACE_CONFIG"]
    try:
        prepare(configure("run.deterministic=true"))
        assert torch.are_deterministic_algorithms_enabled()
    finally:
        torch.use_deterministic_algorithms(False)
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
