"""state.json: what was written is read, and nothing else is."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from dflash.checkpoints.manifest import read_manifest
from dflash.contract.errors import CheckpointError, DamagedError
from tests.small_checkpoints import edit, moved_to, write_steps


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    write_steps(tmp_path, 1, "data.path=läufe/\udcff.jsonl")  # a path that is not UTF-8
    return tmp_path / "step-1"


def test_it_says_where_it_stands_and_what_it_is(checkpoint: Path) -> None:
    manifest = read_manifest(checkpoint)
    place = manifest.position
    assert (place.step, place.data_begins_at, place.epoch, place.window) == (1, 0, 0, 1)
    assert manifest.optimizer_updates == 1
    assert manifest.schedule["total_steps"] == 12
    assert manifest.schedule["next_lr"] > 0
    assert manifest.random == {"generator": "Philox 4x64", "data.seed": 0, "epoch": 0}
    assert manifest.settings["data.path"] == "läufe/\udcff.jsonl"
    assert sorted(manifest.files) == ["config.json", "model.safetensors", "optimizer.safetensors"]


def test_no_flipped_bit_of_it_makes_another_checkpoint(checkpoint: Path) -> None:
    path, manifest = checkpoint / "state.json", read_manifest(checkpoint)
    data = path.read_bytes()
    passed = 0
    for index in range(0, len(data), 9):
        flipped = bytearray(data)
        flipped[index] ^= 1 << (index % 8)
        path.write_bytes(flipped)
        try:
            assert read_manifest(checkpoint) == manifest  # 1e-05 and 1E-05 are one number
            passed += 1
        except DamagedError as error:
            assert error.where == str(path)  # noqa: PT017 - of every one of them
    assert passed < len(data) / 900


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"steps_done": 4}', '{"version": 3, "sha256": 1}'])
def test_what_is_no_state_is_told_in_words(checkpoint: Path, text: str) -> None:
    (checkpoint / "state.json").write_text(text)
    with pytest.raises(DamagedError, match="damaged") as caught:
        read_manifest(checkpoint)
    assert caught.value.where == str(checkpoint / "state.json")
    assert (caught.value.found == "an empty file") == (not text)


def test_a_directory_without_one_is_not_complete(checkpoint: Path) -> None:
    (checkpoint / "state.json").unlink()
    with pytest.raises(DamagedError) as caught:
        read_manifest(checkpoint)
    assert caught.value.found == "missing"


def test_another_format_is_no_damage(checkpoint: Path) -> None:
    before = {"version": 2, "steps_done": 1, "identity": {}, "sha256": {"model.safetensors": "ab"}}
    (checkpoint / "state.json").write_text(json.dumps(before))
    with pytest.raises(CheckpointError, match="format of another version") as caught:
        read_manifest(checkpoint)
    assert not isinstance(caught.value, DamagedError)
    assert (caught.value.found, caught.value.expected) == ("2", "3")


def test_what_is_changed_on_purpose_is_read_again(checkpoint: Path) -> None:
    edit(checkpoint, moved_to(step=7))
    edit(checkpoint, lambda manifest: replace(manifest, optimizer_updates=5))
    assert (read_manifest(checkpoint).position.step, read_manifest(checkpoint).optimizer_updates) == (7, 5)
