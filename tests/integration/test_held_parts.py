"""Runs that take over what a run before them loaded: as if each had loaded for itself."""

from __future__ import annotations

import gc

import pytest
import torch

from dflash.batch import HiddenStates
from dflash.contract.config import TrainConfig, load_config
from dflash.contract.errors import UsageError
from dflash.drafter import Drafter
from dflash.held_parts import HeldParts, release
from dflash.trainer import TrainResult, prepare
from dflash.window import batches
from tests.small_training import on_logical_devices as small

ways = (
    ("pipeline.token_budget=256", "transport=pinned", "transport.depth=1"),
    ("pipeline.token_budget=64", "transport=host", "pipeline.prefetch_depth=2", "objective.chunk_blocks=8"),
    ("pipeline.schedule=lockstep", "transport=peer", "drafter.checkpointing=layers"),
    ("target.layout=padded", "transport.trim=true", "pipeline.switch_interval_ms=1"),
)


def configure(*changes: str) -> TrainConfig:
    return load_config(None, (*small, "run.max_steps=4", *changes))


def run(config: TrainConfig, parts: HeldParts | None = None) -> TrainResult:
    return prepare(config, parts=parts).run()


@pytest.fixture(scope="module", params=["1-1", "1-2"])
def split(request: pytest.FixtureRequest) -> str:
    return f"split={request.param}"


def test_a_run_in_place_trains_exactly_as_a_fresh_one(split: str) -> None:
    parts = HeldParts(configure(split), keep=True)
    run(configure(split), parts)
    for changes in ways:
        config = configure(split, *changes)
        fresh, again = run(config), run(config, parts)
        assert again.steps_done == fresh.steps_done == 4
        # Two drafters may add up in another order from run to run.
        exact = split.endswith("1-1")
        assert again.losses == (fresh.losses if exact else pytest.approx(fresh.losses, rel=1e-5))
        ours = again.weights()
        for name, weight in fresh.weights().items():
            torch.testing.assert_close(ours[name], weight, rtol=0, atol=0 if exact else 1e-5)


def test_a_run_that_was_stopped_in_a_window_leaves_nothing_to_the_next() -> None:
    parts = HeldParts(configure(), keep=True)
    stopped = prepare(configure("run.max_steps=50"), parts=parts)
    stopped.window_done = lambda *_: stopped.state.stop_now("enough")
    stopped.run()
    assert run(configure(), parts).losses == run(configure()).losses


def test_the_end_of_a_run_moves_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a drafter of the Qwen3-8B shape took 2.4 s through pageable memory, at every trial's end."""

    def moved(*_: object, **__: object) -> None:
        raise AssertionError("the drafter's weights were asked for")

    monkeypatch.setattr(Drafter, "state_dict", moved)
    assert run(configure("run.checkpoint_every=-1")).steps_done == 4


def test_a_drafter_that_begins_again_is_as_a_new_one() -> None:
    parts = HeldParts(configure(), keep=True)
    trainer = prepare(configure(), parts=parts)
    replica, target = trainer.group.leader, trainer.targets[0]
    batch = next(batches(trainer.documents, trainer.config, layout=trainer.layout))
    replica.train(HiddenStates(batch=replica.plan(batch), taps=target.forward(batch)))
    with torch.no_grad():
        replica.parameters[0].add_(1.0)
    assert parts.roles is not None
    assert parts.roles.first_weights is not None
    replica.begin_again(parts.roles.first_weights, configure("drafter.checkpointing=layers"))
    assert replica.take_figures() is None
    assert all(gradient is None for gradient in replica.take_gradients())
    assert replica.drafter.runner.checkpointing
    for name, weight in replica.drafter.named_parameters():
        assert torch.equal(weight, parts.roles.first_weights[name])


def test_what_a_run_made_is_gone_before_the_next_begins() -> None:
    parts = HeldParts(configure(), keep=True)
    held = []
    for changes in ((), *ways, ("pipeline.token_budget=512", "transport=pinned", "transport.depth=8")):
        run(configure(*changes), parts)
        release(parts.devices)
        held.append(live_bytes())
    assert max(held) < 1.02 * min(held), held


def live_bytes() -> int:
    """Of all tensors that the interpreter knows, each storage once."""
    storages = {}
    for thing in gc.get_objects():
        if issubclass(type(thing), torch.Tensor) and not thing.is_meta:
            storage = thing.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def test_a_run_that_would_load_something_else_is_refused() -> None:
    parts = HeldParts(configure(), keep=True)
    for change, says in (("split=2-1", "pipeline.split 1-1 → 2-1"), ("drafter.seed=7", "drafter.seed 0 → 7")):
        with pytest.raises(UsageError, match="loads other things") as caught:
            prepare(configure(change), parts=parts)
        assert says in str(caught.value.found)


def test_memory_that_is_taken_over_counts_as_free() -> None:
    parts = HeldParts(configure(), keep=True)
    assert parts.held_bytes() == {}
    trainer = prepare(configure(), parts=parts)
    weights = sum(p.nbytes for p in trainer.targets[0].body.parameters())
    assert parts.held_bytes()["host"] > weights
    trainer.run()
