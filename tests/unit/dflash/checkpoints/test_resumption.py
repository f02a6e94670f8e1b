"""What must be equal to go on, what may change and is told, what is given up on purpose (C104)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dflash.checkpoints.identity import Identity
from dflash.checkpoints.manifest import Manifest, read_manifest
from dflash.checkpoints.reading import find_checkpoint
from dflash.checkpoints.resumption import Resumption, find_named, resume
from dflash.contract.errors import CheckpointError, ConfigError
from dflash.window import Course
from tests.small_checkpoints import configure, course, edit, identity, make_group, moved_to, step, write_steps

# Names of the casebook's manifests: ours, and what becomes of a checkpoint in which they differ.
model_keys = {
    "target_layer_ids": "taps",
    "hidden_size": "hidden",
    "vocab_size": "vocab",
    "block_size": "block_size",
    "mask_token_id": "mask_token_id",
    "tokenizer_sha": "tokenizer",
    "template_sha": "chat_template",
}
cases = Path(__file__).parents[3] / "data/cases/checkpoint"
good = json.loads((cases / "c104_manifest_good.json").read_text())


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A run directory that holds step-2 and step-3."""
    write_steps(tmp_path / "run/checkpoints", 3)
    return tmp_path / "run"


def go_on(
    run: Path, *changes: str, identity: Identity = identity, devices: str = "logical device"
) -> Resumption:
    config = configure(f"run.resume={run}", *changes)
    found = find_named(config)
    assert found is not None
    return resume(found, identity, config, [devices])


def test_the_same_world_has_nothing_to_tell(run: Path) -> None:
    resumption = go_on(run)
    assert (resumption.step, resumption.changes, resumption.warnings) == (3, (), ())
    assert resumption.lines() == [f"resuming at step 3 (epoch 0, window 3) from {run}/checkpoints/step-3"]
    assert find_named(configure()) is None


def read_case(name: str) -> tuple[str, Any]:
    """The one key in which a manifest of another world differs, and its value there."""
    other = json.loads((cases / f"c104_manifest_diff_{name}.json").read_text())
    (key,) = (key for key in good if good[key] != other[key])
    return key, other[key]


@pytest.mark.parametrize(
    "name", ["target_layer_ids", "hidden_size", "vocab_size", "block_size", "mask_token_id", "template_sha"]
)
def test_c104_another_model_is_refused_by_name(run: Path, name: str) -> None:
    key, value = read_case(name)
    world = Identity(model={ours: good[theirs] for theirs, ours in model_keys.items()}, data=identity.data)
    for checkpoint in (run / "checkpoints").iterdir():
        edit(checkpoint, lambda manifest: replace(manifest, model={**world.model, model_keys[key]: value}))
    with pytest.raises(CheckpointError, match="belongs to another model") as caught:
        go_on(run, identity=world)
    assert str(caught.value.where).endswith(f": {model_keys[key]}")
    assert (caught.value.found, caught.value.expected) == (
        None if value is None else str(value),
        str(good[key]),
    )


def test_c104_other_data_are_refused_by_name_or_begun_anew(run: Path) -> None:
    _, value = read_case("data_sha")
    for checkpoint in (run / "checkpoints").iterdir():
        edit(checkpoint, lambda manifest: replace(manifest, data={**manifest.data, "documents": value}))
    with pytest.raises(CheckpointError, match="belongs to other data") as caught:
        go_on(run)
    assert str(caught.value.where).endswith(": documents")
    assert "run.resume_data=other" in str(caught.value.remedy)
    resumption = go_on(run, "run.resume_data=other")
    place = resumption.position
    assert (place.step, place.data_begins_at, place.epoch, place.window) == (3, 3, 0, 0)
    (warning,) = resumption.warnings
    assert "from their beginning, as step 3 and on" in warning


def test_asking_for_other_data_changes_nothing_where_they_are_the_same(run: Path) -> None:
    resumption = go_on(run, "run.resume_data=other")
    assert (resumption.position.data_begins_at, resumption.position.window) == (0, 3)
    assert resumption.warnings == ()


def test_c104_another_split_and_budget_are_allowed_and_told(run: Path) -> None:
    assert read_case("split")[0] == "split"
    assert read_case("token_budget")[0] == "token_budget"
    (change,) = go_on(run, "split=2-2", "pipeline.token_budget=64", "transport=peer").changes
    for part in (
        "pipeline.split 1-1 → 2-2",
        "pipeline.token_budget 128 → 64",
        "transport.preset host → peer",
    ):
        assert part in change
    assert "run.resume" not in change


def test_other_devices_and_settings_are_told(run: Path) -> None:
    resumption = go_on(run, "optimizer.lr=0.5", "drafter.taps=0,3", devices="NVIDIA H200")
    knobs, devices = resumption.changes
    assert "optimizer.lr 0.0006 → 0.5" in knobs
    assert "drafter.taps [] → [0, 3]" in knobs
    assert devices == "devices logical device → NVIDIA H200"
    assert resumption.lines()[1] == f"changed since: {knobs}, {devices}"


@pytest.mark.parametrize(("updates", "told"), [(2, "1 step taught nothing"), (5, "more than steps")])
def test_c104_updates_that_are_not_the_steps_are_told(run: Path, updates: int, told: str) -> None:
    key, value = read_case("optimizer_steps")
    assert (key, value) == ("optimizer_steps", 14300)
    assert good["step"] == 15000
    edit(run / "checkpoints/step-3", lambda manifest: replace(manifest, optimizer_updates=updates))
    resumption = go_on(run)
    (warning,) = resumption.warnings
    assert f"is of step 3, but its optimizer made {updates} updates" in warning
    assert told in warning
    group = make_group()
    resumption.restore(group, course)
    step(group)
    assert (group.optimizer.steps_done, group.optimizer.updates_made()) == (4, updates + 1)


def test_damage_is_told_with_the_steps_that_are_lost(run: Path) -> None:
    (run / "checkpoints/step-3/model.safetensors").write_bytes(b"")
    resumption = go_on(run)
    first, second = resumption.warnings
    assert first.startswith(
        f"a checkpoint is damaged: {run}/checkpoints/step-3/model.safetensors: an empty file"
    )
    assert second == "going on from step-2: 1 step lost, to be trained again"
    assert resumption.to_json()["steps_lost"] == 1
    with pytest.raises(CheckpointError, match="damaged"):
        go_on(run, "run.resume_damaged=refuse")


def test_leftovers_beside_the_checkpoint_are_removed(run: Path) -> None:
    leftover = run / "checkpoints/.step-9.123"
    leftover.mkdir()
    go_on(run)
    assert not leftover.exists()


def test_a_run_without_a_step_left_is_refused(run: Path) -> None:
    with pytest.raises(ConfigError, match="nothing is left"):
        go_on(run).restore(make_group(), replace(course, total_steps=3))


def test_a_place_that_the_step_does_not_have_is_refused(run: Path) -> None:
    edit(run / "checkpoints/step-3", moved_to(window=2))
    with pytest.raises(CheckpointError, match="elsewhere in the data") as caught:
        go_on(run).restore(make_group(), course)
    assert (caught.value.found, caught.value.expected) == ("epoch 0, window 2", "epoch 0, window 3")


def test_into_its_own_directory_damaged_ones_are_set_aside_and_whole_ones_are_not_passed(run: Path) -> None:
    checkpoints = run / "checkpoints"
    named = checkpoints / "step-2"
    with pytest.raises(CheckpointError, match="later checkpoints"):
        go_on(named).clear_way(checkpoints)
    (checkpoints / "step-3/config.json").unlink()
    go_on(run).clear_way(checkpoints)
    assert sorted(path.name for path in checkpoints.iterdir()) == ["damaged.step-3", "step-2"]
    assert find_checkpoint(str(run)).damaged == ()


def test_a_course_places_steps_also_behind_other_data() -> None:
    epochs = Course(begins_at=0, by_epoch=(4, 3), total_steps=7)
    assert [epochs.place(step) for step in (0, 3, 4, 6, 7)] == [(0, 0), (0, 3), (1, 0), (1, 2), (2, 0)]
    assert replace(epochs, begins_at=10).place(14) == (1, 0)


def test_what_is_saved_is_what_is_restored(run: Path) -> None:
    manifest: Manifest = read_manifest(run / "checkpoints/step-3")
    straight, resumed = make_group(), make_group()
    for _ in range(4):
        step(straight)
    go_on(run).restore(resumed, course)
    step(resumed)
    assert manifest.optimizer_updates == 3
    for name, tensor in straight.state().items():
        assert tensor.equal(resumed.state()[name]), name
