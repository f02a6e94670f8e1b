"""A checkpoint's drafter as inference engines load it: two files of the published form, one of its origin.

DIR/
  model.safetensors    tensors by their published names, in the wanted dtype
  config.json          see dflash/drafter_config.py
  export.json          source, target, and what block size means to each engine; loaders do not look at it

The directory appears whole or not at all, and never takes the place of one that holds anything; into the
working directory config.json comes last, without which nothing loads the rest. Knows nothing of optimizers.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError

from dflash.attention import full, sliding
from dflash.checkpoints.files import facts_of_files
from dflash.checkpoints.reading import FoundCheckpoint, find_checkpoint
from dflash.contract.errors import CheckpointError, DamagedError, DFlashError, RunError, UsageError
from dflash.contract.rundir import utc_now, write_json
from dflash.contract.versions import own_name
from dflash.drafter import Drafter, DrafterSpec
from dflash.drafter_config import config_name
from dflash.drafter_files import open_drafter, write_drafter

export_name: Final = "export.json"
# What tokens and the choice of what is held out depend on, and what must go together with that.
settings_of_texts: Final = (
    "data.turns",
    "data.thinking",
    "data.max_length",
    "data.too_long",
    "data.seed",
    "data.held_out",
    "drafter.block_size",
    "pipeline.token_budget",
    "window.tokens",
)
dtypes: Final = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def export_drafter(source: str, to: Path, dtype: str = "bfloat16") -> dict[str, Any]:
    """Write the newest checkpoint of a run, or the one named, to `to`; returns what export.json says.

    Raises CheckpointError for a checkpoint that is not there, is damaged or is not finite, UsageError for a
    directory that holds something, DFlashError when it cannot be written.
    """
    told, to = to, to.resolve()
    _check_free(to)
    found = find_whole(source)
    drafter = open_drafter(found.path)
    check_finite(drafter, found.path)
    drafter = drafter.to(dtypes[dtype])
    temporary = to.with_name(f".{to.name}.{os.getpid()}")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        temporary.mkdir()
        write_drafter(temporary, drafter)
        document = describe_export(found, drafter, temporary)
        write_json(temporary / export_name, document)
        _sync(temporary)
        _take_place(temporary, to)
    except (OSError, SafetensorError, RunError) as error:
        reason = error.what if isinstance(error, RunError) else error
        raise DFlashError(f"the export cannot be written: {reason}", where=str(to)) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    return {"path": str(told), **document}


def _take_place(temporary: Path, to: Path) -> None:
    """What is written becomes `to`. The shell's own directory must stay the one that it is."""
    if to != Path.cwd():
        temporary.rename(to)
        return
    for path in sorted(temporary.iterdir(), key=lambda path: path.name == config_name):
        path.rename(to / path.name)


def _check_free(to: Path) -> None:
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise UsageError(
            "an export never overwrites anything",
            where=str(to),
            found="a directory that is not empty" if to.is_dir() else "a file",
            expected="a new or empty directory",
            remedy="name another directory with --to",
        )


def find_whole(source: str, purpose: str = "export") -> FoundCheckpoint:
    """The checkpoint meant, and no older one in its place. Raises CheckpointError."""
    try:
        return find_checkpoint(source, older=False, purpose=purpose)
    except DamagedError as error:
        parts = {**error.fields(), "remedy": "name an older step-N directory of the same run"}
        del parts["what"]
        raise CheckpointError(error.what, **parts) from None


def check_finite(drafter: Drafter, path: Path) -> None:
    """Raises CheckpointError for weights that would only draft nonsense."""
    for name, tensor in drafter.state_dict().items():
        if (wrong := int((~tensor.isfinite()).sum())) > 0:
            raise CheckpointError(
                "the drafter's weights are not all finite",
                where=f"{path}: {name}",
                found=f"{wrong} of {tensor.numel()} values are infinite or not a number",
                remedy="use a checkpoint from before the training went wrong",
            )


def describe_export(found: FoundCheckpoint, drafter: Drafter, files: Path) -> dict[str, Any]:
    """export.json of `drafter`, whose files lie in `files`."""
    spec, settings = drafter.spec, found.manifest.settings
    tensors = drafter.state_dict().values()
    return {
        "schema": 1,
        "written_utc": utc_now(),
        "written_by": own_name(),
        "source": {"checkpoint": str(found.path.absolute()), "step": found.manifest.position.step},
        "target": {
            "model": settings.get("target.model"),
            "seed": settings.get("target.seed"),
            "tokenizer": settings.get("target.tokenizer"),
        },
        **tokenizer_facts(found.manifest.model),
        "documents": found.manifest.data.get("documents"),
        "settings": {name: settings[name] for name in settings_of_texts if name in settings},
        "dtype": str(drafter.dtype).removeprefix("torch."),
        "parameters": sum(tensor.numel() for tensor in tensors),
        "tensors": len(tensors),
        "blocks": count_drafts(spec),
        "warnings": doubts_of_servers(spec),
        "files": facts_of_files(files),
    }


def tokenizer_facts(known: Mapping[str, Any]) -> dict[str, Any]:
    """Of what a checkpoint or an export is known by: checksums of tokenizer and chat template."""
    return {name: known[name] for name in ("tokenizer", "chat_template") if name in known}


def count_drafts(spec: DrafterSpec) -> dict[str, int]:
    """What the block size means: slots, the anchor's own included; and under which name to which engine."""
    return {
        "block_size": spec.block_size,
        "drafted_tokens": spec.block_size - 1,
        "sglang_speculative_num_draft_tokens": spec.block_size,
        "vllm_num_speculative_tokens": spec.block_size - 1,
    }


def doubts_of_servers(spec: DrafterSpec) -> list[str]:
    """What an engine may not take; docs/serving.md tells more."""
    doubts = []
    if set(spec.layer_types) == {full, sliding}:
        doubts.append("sliding and full layers are mixed: vLLM needs its model runner V2 for that")
    if spec.taps[-1] >= spec.target_layers - 1:
        doubts.append(
            f"layer {spec.taps[-1]} is tapped, the last of the target: SGLang takes layers before it only"
        )
    return doubts


def describe(document: dict[str, Any]) -> str:
    """The same for people."""
    blocks, source = document["blocks"], document["source"]
    sizes = f"{document['parameters'] / 1e6:.4g} M parameters in {document['tensors']} tensors"
    lines = [
        f"{document['path']}: step {source['step']} of {source['checkpoint']}",
        f"drafter     {sizes} of {document['dtype']}",
        f"target      {document['target']['model']}",
        f"block size  {blocks['block_size']} slots: the anchor and {blocks['drafted_tokens']} drafts",
        f"SGLang      --speculative-num-draft-tokens {blocks['sglang_speculative_num_draft_tokens']}",
        f'vLLM        "num_speculative_tokens": {blocks["vllm_num_speculative_tokens"]}',
        *(f"warning: {doubt}" for doubt in document["warnings"]),
    ]
    return "\n".join(lines)


def _sync(directory: Path) -> None:
    for path in (*directory.iterdir(), directory):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
