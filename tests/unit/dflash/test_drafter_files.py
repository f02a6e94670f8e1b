import dataclasses
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from dflash.attention import full, sliding
from dflash.contract.errors import CheckpointError
from dflash.drafter import init_drafter
from dflash.drafter_files import open_drafter, read_drafter, write_drafter
from tests.small_drafters import golden_spec

golden = Path(__file__).parents[2] / "data" / "golden"

spec = golden_spec
mixed = dataclasses.replace(spec, layer_types=(sliding, sliding, full))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_what_was_written_is_read_back_bit_for_bit(dtype, tmp_path):
    drafter = init_drafter(spec, 1).to(dtype)
    write_drafter(tmp_path, drafter)
    read = read_drafter(tmp_path, spec)
    assert read.keys() == drafter.state_dict().keys()
    assert all(torch.equal(read[name], tensor) for name, tensor in drafter.state_dict().items())
    assert json.loads((tmp_path / "config.json").read_text())["dtype"] == str(dtype).split(".")[1]


def test_names_are_those_of_a_published_checkpoint(tmp_path):
    write_drafter(tmp_path, init_drafter(spec, 0))
    published = load_file(golden / "draft_weights.safetensors")
    written = load_file(tmp_path / "model.safetensors")
    assert {n: t.shape for n, t in written.items()} == {n: t.shape for n, t in published.items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_drafter_is_opened_from_its_files_alone(dtype, tmp_path):
    drafter = init_drafter(mixed, 1).to(dtype)
    write_drafter(tmp_path, drafter)
    opened = open_drafter(tmp_path)
    assert (opened.spec, opened.dtype) == (mixed, dtype)
    assert all(torch.equal(opened.state_dict()[name], it) for name, it in drafter.state_dict().items())
    assert not any(p.requires_grad for p in opened.parameters())


def test_tensors_of_several_dtypes_come_to_one(tmp_path):
    write_drafter(tmp_path, init_drafter(spec, 1).bfloat16())
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "norm.weight": tensors["norm.weight"].float()}, path)
    assert {p.dtype for p in open_drafter(tmp_path).parameters()} == {torch.bfloat16}


def damaged(tmp_path, change):
    write_drafter(tmp_path, init_drafter(spec, 0))
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)
    with pytest.raises(CheckpointError) as caught:
        read_drafter(tmp_path, spec)
    assert caught.value.exit_code == 2
    return caught.value


def test_missing_tensor_is_named(tmp_path):
    error = damaged(tmp_path, lambda tensors: tensors.pop("layers.1.mlp.up_proj.weight"))
    assert "layers.1.mlp.up_proj.weight" in error.what
    assert error.expected == "[96, 64]"


def test_wrong_shape_names_the_tensor_and_both_shapes(tmp_path):
    error = damaged(tmp_path, lambda tensors: tensors.update({"fc.weight": torch.zeros(64, 128)}))
    assert "fc.weight" in error.what
    assert (error.found, error.expected) == ("[64, 128]", "[64, 192]")


def test_unknown_tensor_is_named(tmp_path):
    error = damaged(tmp_path, lambda tensors: tensors.update(embed=torch.zeros(2)))
    assert error.found == "embed"


@pytest.mark.parametrize("kept", [0, 5, 0.5, 0.999])
def test_cut_off_weights_are_refused(kept, tmp_path):
    write_drafter(tmp_path, init_drafter(spec, 0))
    path = tmp_path / "model.safetensors"
    content = path.read_bytes()
    path.write_bytes(content[: kept if isinstance(kept, int) else int(len(content) * kept)])
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_drafter(tmp_path, spec)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_missing_file_is_refused(name, tmp_path):
    write_drafter(tmp_path, init_drafter(spec, 0))
    (tmp_path / name).unlink()
    with pytest.raises(CheckpointError, match=name):
        read_drafter(tmp_path, spec)


@pytest.mark.parametrize("text", ["", "{", "[]"])
def test_broken_config_is_refused(text, tmp_path):
    write_drafter(tmp_path, init_drafter(spec, 0))
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match="config"):
        read_drafter(tmp_path, spec)


@pytest.mark.parametrize(
    "change",
    [
        {"block_size": 8},
        {"taps": (1, 3, 6)},
        {"mask_token_id": 95},
        {"layer_types": (sliding, sliding, full)},
        {"rope_theta": 10000.0},
    ],
)
def test_what_shapes_do_not_show_must_agree_too(change, tmp_path):
    write_drafter(tmp_path, init_drafter(spec, 0))
    with pytest.raises(CheckpointError, match="another"):
        read_drafter(tmp_path, dataclasses.replace(spec, **change))
