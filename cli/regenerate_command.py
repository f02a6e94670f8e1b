"""`dflash-train regenerate`: the target answers the prompts of a data file itself."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.child import become_trainer, hand_over
from cli.install_check import check_install
from cli.options import AsJson, ConfigFile, DataFile, Settings, configure
from dflash.contract.regeneration import RegenerationChoice


def regenerate(
    to: Annotated[Path, typer.Option(metavar="FILE", help="JSONL file to write; goes on where it ended.")],
    config_file: ConfigFile = None,
    settings: Settings = None,
    data: DataFile = None,
    max_new_tokens: Annotated[int, typer.Option(help="Tokens of an answer, at most.")] = 1024,
    temperature: Annotated[float, typer.Option(help="0: the likeliest token each time.")] = 0.0,
    top_p: Annotated[
        float, typer.Option(help="Draw from the likeliest tokens that come to this share.")
    ] = 1.0,
    seed: Annotated[int, typer.Option(help="Of what is drawn, together with row and turn.")] = 0,
    cut: Annotated[
        str, typer.Option(help="Answers that --max-new-tokens cut off: refuse or keep.")
    ] = "refuse",
    limit: Annotated[int, typer.Option(help="Rows to take, from the beginning; 0: all.")] = 0,
    engine: Annotated[
        str, typer.Option(help="transformers: the target here; openai: behind an endpoint.")
    ] = "transformers",
    batch_tokens: Annotated[
        int, typer.Option(help="Prompt and answer tokens side by side in a batch; 0: what fits.")
    ] = 0,
    url: Annotated[str, typer.Option(help="Of an OpenAI-compatible endpoint, up to and with /v1.")] = "",
    model: Annotated[str, typer.Option(help="The target's name at the endpoint.")] = "",
    key_variable: Annotated[
        str, typer.Option(metavar="NAME", help="Environment variable that holds the endpoint's key.")
    ] = "OPENAI_API_KEY",
    concurrency: Annotated[int, typer.Option(help="Requests to the endpoint at once.")] = 32,
    as_json: AsJson = False,
) -> None:
    """Let the target answer the prompts of a data file.

    Each user's turn is answered anew, with the new answers before it as history; answers in the data are left
    out. Rows that have their answers are kept when the command is stopped, and not asked for again.
    """
    check_install()
    config = configure(config_file, settings, {"data.path": data})
    choice = RegenerationChoice(
        to=str(to.absolute()),
        engine=engine,
        url=url,
        model=model,
        key_variable=key_variable,
        concurrency=concurrency,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_p=top_p,
        seed=seed,
        cut=cut,
        batch_tokens=batch_tokens,
        limit=limit,
    )
    told = ["--choice", choice.to_json(), *(["--json"] if as_json else [])]
    become_trainer(["regenerate", hand_over(config.to_toml()), *told])
