"""An export holds the published form, says where it is from, and is refused rather than wrong."""

import dataclasses
import json
import os
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError, safe_open

from dflash.attention import full, sliding
from dflash.checkpoints.files import facts_of_files, write_whole
from dflash.checkpoints.manifest import Manifest, Position, write_manifest
from dflash.contract.errors import CheckpointError, DFlashError, UsageError
from dflash.drafter import DrafterSpec, init_drafter
from dflash.drafter_files import open_drafter, write_drafter
from dflash.export import describe, doubts_of_servers, export_drafter
from tests.small_checkpoints import no_file_larger_than

spec = DrafterSpec(
    hidden=32,
    layers=2,
    heads=4,
    kv_heads=2,
    head_dim=12,
    intermediate=48,
    taps=(1, 4),
    block_size=8,
    layer_types=(sliding, full),
    sliding_window=6,
    mask_token_id=60,
    rope_theta=10_000.0,
    rms_eps=1e-6,
    vocab=61,
    max_positions=128,
    target_layers=8,
)


def save(run: Path, step: int, drafter=None) -> Path:
    """A checkpoint of a run, as the trainer leaves it."""
    manifest = Manifest(
        position=Position(step=step, data_begins_at=0, epoch=0, window=step),
        optimizer_updates=step,
        schedule={},
        random={},
        model={},
        data={},
        settings={"target.model": "random:tiny", "target.seed": 3, "target.tokenizer": "auto"},
        devices=[],
        files={},
    )

    def fill(into: Path) -> None:
        write_drafter(into, drafter or init_drafter(spec, step))
        write_manifest(into, dataclasses.replace(manifest, files=facts_of_files(into)))

    return write_whole(run / "checkpoints", step, fill)


@pytest.fixture
def run(tmp_path):
    for step in (10, 20):
        save(tmp_path / "run", step)
    return tmp_path / "run"


def test_of_a_run_the_newest_checkpoint_is_exported_as_bfloat16(run, tmp_path):
    document = export_drafter(str(run), tmp_path / "out")
    opened, original = open_drafter(tmp_path / "out"), init_drafter(spec, 20)
    assert (opened.spec, opened.dtype) == (spec, torch.bfloat16)
    assert all(torch.equal(opened.state_dict()[n], t.bfloat16()) for n, t in original.state_dict().items())
    assert document["source"] == {"checkpoint": str(run / "checkpoints" / "step-20"), "step": 20}
    assert document["target"] == {"model": "random:tiny", "seed": 3, "tokenizer": "auto"}


def test_a_checkpoint_may_be_named_and_float32_asked_for(run, tmp_path):
    export_drafter(str(run / "checkpoints" / "step-10"), tmp_path / "out", "float32")
    opened, original = open_drafter(tmp_path / "out"), init_drafter(spec, 10)
    assert all(torch.equal(opened.state_dict()[n], t) for n, t in original.state_dict().items())


def test_files_are_exactly_those_of_the_published_form(run, tmp_path):
    document = export_drafter(str(run), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "config.json",
        "export.json",
        "model.safetensors",
    ]
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert set(file.keys()) == set(init_drafter(spec, 0).state_dict())
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 10_000.0
    assert (config["block_size"], config["num_target_layers"]) == (8, 8)
    assert config["dflash_config"] == {"mask_token_id": 60, "target_layer_ids": [1, 4]}
    assert (config["use_sliding_window"], config["sliding_window"]) == (True, 6)
    assert config["dtype"] == "bfloat16"
    assert "auto_map" not in config
    kept = json.loads((tmp_path / "out" / "export.json").read_text())
    assert {"path": str(tmp_path / "out"), **kept} == document


def test_it_says_which_number_the_block_size_is(run, tmp_path):
    """C105: slots with the anchor's own; drafts and vLLM's number are one less."""
    document = export_drafter(str(run), tmp_path / "out")
    assert document["blocks"] == {
        "block_size": 8,
        "drafted_tokens": 7,
        "sglang_speculative_num_draft_tokens": 8,
        "vllm_num_speculative_tokens": 7,
    }
    told = describe(document)
    assert "8 slots: the anchor and 7 drafts" in told
    assert "--speculative-num-draft-tokens 8" in told
    assert '"num_speculative_tokens": 7' in told


def test_what_an_engine_may_not_take_is_warned_of():
    even = dataclasses.replace(spec, layer_types=(full, full))
    assert doubts_of_servers(even) == []
    assert "runner V2" in doubts_of_servers(spec)[0]
    assert "layer 7 is tapped" in doubts_of_servers(dataclasses.replace(even, taps=(1, 7)))[0]


@pytest.mark.parametrize("content", ["a file", "a directory that is not empty"])
def test_nothing_is_overwritten(content, run, tmp_path):
    out = tmp_path / "out"
    if content == "a file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="never overwrites") as caught:
        export_drafter(str(run), out)
    assert caught.value.found == content
    assert (out if out.is_file() else out / "notes.txt").read_text() == "mine"


def test_an_empty_directory_and_missing_parents_are_welcome(run, tmp_path):
    (tmp_path / "empty").mkdir()
    export_drafter(str(run), tmp_path / "empty")
    export_drafter(str(run), tmp_path / "a" / "b")
    assert (tmp_path / "empty" / "config.json").exists()
    assert (tmp_path / "a" / "b" / "config.json").exists()


@pytest.mark.parametrize("how", ["cut off", "empty", "flipped", "missing"])
def test_a_damaged_checkpoint_is_refused_by_name_and_no_older_one_taken(how, run, tmp_path):
    path = run / "checkpoints" / "step-20" / "model.safetensors"
    content = path.read_bytes()
    spoilt = {
        "cut off": content[:-9],
        "empty": b"",
        "flipped": content[:-9] + bytes([content[-9] ^ 1]) + content[-8:],
    }
    path.unlink()
    if how != "missing":
        path.write_bytes(spoilt[how])
    with pytest.raises(CheckpointError, match="damaged") as caught:
        export_drafter(str(run), tmp_path / "out")
    assert str(path) in caught.value.where
    assert "older step-N" in caught.value.remedy
    assert not (tmp_path / "out").exists()


def test_where_there_is_no_checkpoint_is_said(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoint to export"):
        export_drafter(str(tmp_path), tmp_path / "out")


def test_weights_that_are_not_finite_are_refused(tmp_path):
    drafter = init_drafter(spec, 0)
    drafter.layers[1].mlp.up_proj.weight.data[3, 2] = float("nan")
    save(tmp_path / "run", 5, drafter)
    with pytest.raises(CheckpointError, match="not all finite") as caught:
        export_drafter(str(tmp_path / "run"), tmp_path / "out")
    assert "layers.1.mlp.up_proj.weight" in caught.value.where
    assert not (tmp_path / "out").exists()


def test_a_write_that_fails_leaves_nothing(run, tmp_path, monkeypatch):
    def full_disk(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(DFlashError, match="No space left") as caught:
        export_drafter(str(run), tmp_path / "out")
    assert caught.value.exit_code == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_a_disk_that_fills_up_while_tensors_are_written_is_told(run, tmp_path):
    """Of the tensors' file it is safetensors that says so."""
    with (
        no_file_larger_than(10_000),
        pytest.raises(DFlashError, match=r"the export cannot be written: .*too large") as caught,
    ):
        export_drafter(str(run), tmp_path / "out")
    assert (type(caught.value), type(caught.value.__cause__)) == (DFlashError, SafetensorError)
    assert (caught.value.exit_code, caught.value.where) == (1, str(tmp_path / "out"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]


def test_an_empty_working_directory_is_filled_and_stays_the_same_one(run, tmp_path, monkeypatch):
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert export_drafter(str(run), Path())["path"] == "."
    # Asked of the directory that the process stands in, not of what has its name now.
    assert sorted(path.name for path in Path().iterdir()) == [
        "config.json",
        "export.json",
        "model.safetensors",
    ]
    assert open_drafter(Path()).spec == spec
    with pytest.raises(UsageError, match="never overwrites"):
        export_drafter(str(run), Path())
    (tmp_path / "here" / "sub").mkdir()
    monkeypatch.chdir(tmp_path / "here" / "sub")
    export_drafter(str(run), Path("../../there"))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["here", "run", "there"]


def test_the_command_tells_people_or_machines(run, tmp_path, capfd):
    from dflash.__main__ import main

    assert main(["export", str(run), "--to", str(tmp_path / "one")]) == 0
    assert "step 20" in capfd.readouterr().out
    assert main(["export", str(run), "--to", str(tmp_path / "two"), "--dtype", "float32", "--json"]) == 0
    told = json.loads(capfd.readouterr().out)
    assert (told["dtype"], told["path"]) == ("float32", str(tmp_path / "two"))
    assert main(["export", str(run), "--to", str(tmp_path / "two")]) == 2
    assert "never overwrites" in capfd.readouterr().err
