"""What the drafter for SmolLM2 is made from: wheels that are not installed, and the target in its GGUF."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

root = Path(__file__).resolve().parents[1]
weights_name = "model.safetensors"


def unpack_wheels(folder: Path | None, to: Path) -> tuple[Path, Path]:
    """(helpers, peer): directories for PYTHONPATH; the wheel dflash alone is in the second."""
    helpers, peer = to / "helpers", to / "peer"
    for place in (helpers, peer):
        place.mkdir(parents=True, exist_ok=True)
    for wheel in sorted((folder or Path("/nonexistent")).glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(peer if wheel.name.startswith("dflash-0") else helpers)
    installed = root / ".venv/peers/dflash"
    if not (peer / "dflash").exists() and installed.is_dir():
        shutil.copytree(installed, peer / "dflash")
    return helpers, peer


def find_lacks(gguf: Sequence[Path], target: Path, peer: Path) -> list[str]:
    """What is not there and how to get it, one sentence each; helpers are on `sys.path` by now."""
    from dflash.contract.errors import UsageError
    from dflash.model_source import find_model, gguf_readers

    lacks = [f"{name}: pip install {name}" for name in ("torch", "transformers") if not find_spec(name)]
    if not (peer / "dflash/model.py").is_file():
        lacks.append(
            "z-lab's wheel dflash 0.1.0: `make .venv/peers/installed`, or `pip download --no-deps "
            "dflash==0.1.0 --dest DIR` and --wheels DIR"
        )
    if (target / weights_name).exists():  # kept by an earlier call
        return lacks
    if not gguf:
        try:
            find_model("smollm2")
        except UsageError as error:
            lacks.append(f"{error.what}: {error.remedy}, or name the file with --gguf")
        return lacks
    absent = [str(part) for part in find_parts(gguf) if not part.is_file()]
    unread = [name for name in gguf_readers if not find_spec(name)]
    lacks += [f"{part}: there is no such file for --gguf" for part in absent]
    return lacks + [f"{name}, to read the GGUF file: pip install {name}, or --wheels DIR" for name in unread]


def find_parts(given: Sequence[Path]) -> list[Path]:
    """The files in order: those given, or the parts that lie beside a file that is not there itself."""
    if len(given) == 1 and not given[0].exists():
        return sorted(given[0].parent.glob(given[0].name + ".part*")) or list(given)
    return list(given)


def join_parts(given: Sequence[Path], to: Path) -> str:
    """What `target.model` is to be: the file, one joined of its parts, or the package's."""
    if not given:
        return "smollm2"
    parts = find_parts(given)
    if len(parts) == 1:
        return str(parts[0].absolute())
    joined = to / "SmolLM2-135M-Instruct.gguf"
    with joined.open("wb") as file:
        for part in parts:
            with part.open("rb") as source:
                shutil.copyfileobj(source, file)
    return str(joined)


def convert(name: str, to: Path) -> dict[str, Any]:
    """The GGUF as a directory that the wheel reads too: float32 as dequantized, with its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from dflash.model_source import find_model
    from dflash.target_weights import read_model

    source = find_model(name)
    model = read_model(name, dtype=torch.float32)
    settings = {k: v for k, v in model.config.to_dict().items() if k != "quantization_config"}
    plain = AutoModelForCausalLM.from_config(type(model.config)(**settings))
    plain.load_state_dict(model.state_dict())
    plain.generation_config = model.generation_config
    plain.save_pretrained(to)
    AutoTokenizer.from_pretrained(source.place, **source.options).save_pretrained(to)
    file = Path(source.place) / str(source.gguf_file)
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {
        "gguf": file.name,
        "gguf_sha256": digest,
        "parameters": sum(p.numel() for p in plain.parameters()),
    }
