"""`dflash-train export`: a checkpoint's drafter in the form that inference engines load."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cli.child import become_trainer
from cli.install_check import check_install
from cli.options import AsJson


class Dtype(StrEnum):
    """Of the exported weights."""

    bfloat16 = "bfloat16"
    float32 = "float32"


def export_drafter(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_CHECKPOINT",
            help="A run's directory (its newest checkpoint), or a step-N directory.",
        ),
    ],
    to: Annotated[
        Path, typer.Option("--to", metavar="DIR", help="New or empty directory; nothing is ever overwritten.")
    ],
    dtype: Annotated[Dtype, typer.Option("--dtype", help="Of the weights.")] = Dtype.bfloat16,
    as_json: AsJson = False,
) -> None:
    """Export a drafter for serving.

    Writes config.json and model.safetensors in the form that z-lab's dflash, SGLang and vLLM load, and says
    which number of tokens to give to which.
    """
    check_install()
    become_trainer(
        ["export", str(source), "--to", str(to), "--dtype", dtype.value, *(["--json"] if as_json else [])]
    )
