"""A drafter on disk in the form that DFlash servers load: model.safetensors and config.json side by side.

Knows nothing of optimizers, steps or of which checkpoint is newest.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from dflash.contract.errors import CheckpointError
from dflash.contract.rundir import write_json
from dflash.drafter import Drafter, DrafterSpec
from dflash.drafter_config import config_name, drafter_config, read_config, read_spec

weights_name = "model.safetensors"


def write_drafter(directory: Path, drafter: Drafter) -> None:
    """Both files, into an existing directory; weights in the drafter's dtype. Raises OSError, RunError."""
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in drafter.state_dict().items()}
    save_file(tensors, str(directory / weights_name), metadata={"format": "pt"})
    dtype = str(drafter.dtype).removeprefix("torch.")
    write_json(directory / config_name, drafter_config(drafter.spec, dtype))


def read_drafter(directory: Path, spec: DrafterSpec) -> dict[str, Tensor]:
    """The state dict of a drafter of that shape, as stored. Raises CheckpointError when it is not one."""
    _check_config(directory / config_name, spec)
    return _read_tensors(directory, spec)


def open_drafter(directory: Path) -> Drafter:
    """The drafter that lies there, ours or a published one, on the CPU, in its dtype.

    Raises CheckpointError.
    """
    spec = read_spec(directory / config_name)
    tensors = _read_tensors(directory, spec)
    with torch.device("meta"):
        drafter = Drafter(spec)
    drafter.load_state_dict(tensors, assign=True)
    return drafter.to(drafter.dtype).requires_grad_(False).eval()


def _read_tensors(directory: Path, spec: DrafterSpec) -> dict[str, Tensor]:
    path = directory / weights_name
    if not path.is_file():
        raise CheckpointError("the drafter weights are missing", where=str(path))
    try:
        tensors = load_file(str(path))
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"the drafter weights cannot be read: {error}",
            where=str(path),
            found=f"{path.stat().st_size} bytes",
            remedy="the file is damaged or cut off; use another checkpoint",
        ) from None
    _check_tensors(path, tensors, spec)
    return tensors


def _check_config(path: Path, spec: DrafterSpec) -> None:
    """What tensor shapes do not show must agree too: a wrong window or tap trains and serves, but badly."""
    stored = read_config(path)
    expected = drafter_config(spec, dtype="")
    for key in ("block_size", "dflash_config", "layer_types", "sliding_window", "rope_theta", "rms_norm_eps"):
        if stored.get(key) != expected[key]:
            raise CheckpointError(
                f"the drafter was made with another {key}",
                where=str(path),
                found=stored.get(key),
                expected=expected[key],
                remedy="use the configuration it was trained with",
            )


def _check_tensors(path: Path, tensors: dict[str, Tensor], spec: DrafterSpec) -> None:
    shapes = _shapes(spec)
    for name, shape in shapes.items():
        if name not in tensors or tensors[name].shape != shape:
            raise CheckpointError(
                f"tensor {name} does not fit the drafter",
                where=str(path),
                found=list(tensors[name].shape) if name in tensors else "no such tensor",
                expected=list(shape),
                remedy="use the configuration it was trained with",
            )
    if unknown := sorted(tensors.keys() - shapes.keys()):
        raise CheckpointError(
            "the file holds tensors that the drafter does not have",
            where=str(path),
            found=", ".join(unknown[:4]) + (" …" if len(unknown) > 4 else ""),
            remedy="use the configuration it was trained with",
        )


def _shapes(spec: DrafterSpec) -> dict[str, torch.Size]:
    with torch.device("meta"):
        return {name: tensor.shape for name, tensor in Drafter(spec).state_dict().items()}
