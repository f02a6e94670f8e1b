"""`dflash-train evaluate`: acceptance lengths of a drafter at temperature 0."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cli.child import become_trainer
from cli.install_check import check_install
from cli.options import AsJson, DataFile, Settings
from dflash.contract.config import all_knobs
from dflash.contract.knobs import parse_assignments


class Answers(StrEnum):
    """Whose answers are measured."""

    greedy = "greedy"
    data = "data"


def evaluate_drafter(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="RUN_OR_CHECKPOINT_OR_EXPORT",
            help="A run (its newest checkpoint), a step-N directory, or an export.",
        ),
    ],
    settings: Settings = None,
    data: DataFile = None,
    answers: Annotated[
        Answers,
        typer.Option(
            "--answers",
            help="greedy: the target answers the prompts; data: the answers of the data as they are.",
        ),
    ] = Answers.greedy,
    prompts: Annotated[
        int, typer.Option("--prompts", min=1, metavar="N", help="At most so many, spread over the data.")
    ] = 64,
    max_new_tokens: Annotated[
        int, typer.Option("--max-new-tokens", min=1, metavar="N", help="Of a greedy answer.")
    ] = 256,
    batch: Annotated[
        int, typer.Option("--batch", min=1, metavar="N", help="Prompts that the target answers at a time.")
    ] = 8,
    as_json: AsJson = False,
) -> None:
    """Measure how many tokens a drafter's blocks bring.

    The acceptance length at temperature 0, from one pass of the target over each finished text.
    """
    check_install()
    parse_assignments(settings or [], all_knobs)
    given = [*(settings or []), *([] if data is None else [f"data.path={Path(data).absolute()}"])]
    become_trainer(
        [
            "evaluate",
            str(source),
            *(word for knob in given for word in ("--set", knob)),
            *("--answers", answers.value, "--prompts", str(prompts)),
            *("--max-new-tokens", str(max_new_tokens), "--batch", str(batch)),
            *(["--json"] if as_json else []),
        ]
    )
