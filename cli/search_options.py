"""The options of a search, as the command line takes them, and what they come to."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dflash.contract.config import TrainConfig, all_knobs
from dflash.contract.errors import ConfigError, UsageError
from dflash.contract.knobs import parse_assignments

if TYPE_CHECKING:
    from autotune.machine import Machine
    from autotune.space import SearchSpace
    from autotune.space_file import Wishes

default_study = Path("dflash-study")

StudyDir = Annotated[
    Path, typer.Option(help="Where the study lives. The same line goes on with it.", metavar="DIR")
]
Study = Annotated[Path, typer.Argument(metavar="STUDY", help="A study's directory.")]
SpaceToml = Annotated[
    Path | None,
    typer.Option("--space", help="TOML file: [space] with choices of knobs.", metavar="FILE"),
]
Fixed = Annotated[
    list[str] | None,
    typer.Option("--fix", metavar="KNOB=VALUE", help="Hold a knob; may be given again and again."),
]
Trials = Annotated[int, typer.Option(min=1, help="Configurations to try, over all calls.")]
TrialsInAll = Annotated[
    int | None, typer.Option("--trials", min=1, help="Configurations in all. [default: as before]")
]
Repeats = Annotated[int, typer.Option(min=0, help="Further runs of each contender.")]
Seconds = Annotated[float, typer.Option(min=1, max=86400, help="Training time of a trial.", metavar="S")]
Minutes = Annotated[
    float | None, typer.Option(help="Time for trials, over all calls. [default: no limit]", metavar="M")
]
GpuHours = Annotated[
    float | None,
    typer.Option(help="GPU-hours for trials, all GPUs counted. [default: no limit]", metavar="H"),
]
Tolerance = Annotated[
    float, typer.Option(min=0, max=0.99, help="A gain below this share is none.", metavar="SHARE")
]
Plan = Annotated[bool, typer.Option("--plan", help="Only say what would be done, and what it costs.")]
Gpus = Annotated[
    int | None, typer.Option("--gpus", min=1, max=1024, help="With --plan: as if there were so many GPUs.")
]
GpuMemory = Annotated[
    float | None,
    typer.Option(
        "--gpu-memory-gb", min=1, max=10000, metavar="GB", help="With --plan: as if each had so much."
    ),
]


def parse_wishes(space_file: Path | None, fixed: list[str] | None) -> Wishes:
    """`--space` and `--fix`. Raises ConfigError."""
    from autotune.space_file import Wishes, read_space_file

    for text in fixed or []:
        if "=" not in text:
            raise ConfigError(
                f"--fix needs knob=value, not {text!r}", remedy="for example --fix pipeline.split=3-1"
            )
    file = None if space_file is None else read_space_file(space_file)
    return Wishes(file, parse_assignments(fixed or [], all_knobs))


def find_machine(plan: bool, gpus: int | None, gpu_memory_gb: float | None) -> Machine:
    """What is here, or what was declared to plan for. Raises UsageError where that is to be searched on."""
    from autotune.machine import read_machine
    from autotune.plan import declare_machine

    machine = read_machine()
    if gpus is None and gpu_memory_gb is None:
        return machine
    if not plan:
        raise UsageError(
            "a machine can be declared for a plan only",
            where="--gpus" if gpus is not None else "--gpu-memory-gb",
            remedy="add --plan, or leave it out: a search runs on what is there",
        )
    return declare_machine(machine, gpus, gpu_memory_gb)


def shape(base: TrainConfig, machine: Machine, wishes: Wishes, *, declared: bool) -> SearchSpace:
    """The space that is searched. Raises ConfigError and DeviceError."""
    from autotune.space_file import shape_space

    if declared and base.devices.kind == "logical":
        raise UsageError(
            "GPUs were declared for a configuration that asks for logical devices",
            where="devices.kind",
            found="logical",
            remedy="add --set devices.kind=auto",
        )
    return shape_space(base, machine, wishes)
