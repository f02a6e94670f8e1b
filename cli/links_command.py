"""`dflash-profile links`: how fast and how faithful every link of this machine is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli.child import ask_trainer, read_answer
from cli.console import print_json, say, show
from cli.install_check import check_install
from cli.options import AsJson, Settings
from dflash.contract.config import load_config
from dflash.contract.link_facts import LinkFacts
from dflash.contract.rundir import RunDir, write_json

limit_s = 300.0  # eight GPUs on a crowded machine, torch's import included


def measure_links(
    settings: Settings = None,
    copy_mb: Annotated[
        int, typer.Option("--mb", min=1, max=256, help="Size of a copy in MB; buffers take four of it.")
    ] = 256,
    run: Annotated[
        Path | None,
        typer.Option(
            "--run", metavar="RUN", help="A run's directory: its configuration; links.json goes there."
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure every link of this machine.

    Bandwidth, latency and correctness between all GPUs, and between each and host memory. Without GPUs: the
    paced links of logical devices. Exit code 1 when something arrived wrong.
    """
    check_install()
    run_dir = None if run is None else RunDir(run)
    if run_dir is not None:
        run_dir.manifest()
    own = run_dir.config_path if run_dir is not None and run_dir.config_path.is_file() else None
    config = load_config(own, settings or [])
    if not as_json:
        say("measuring …")
    arguments = ["links", "/dev/stdin", "--mb", str(copy_mb)]
    code, told = ask_trainer(arguments, text=config.to_toml(), limit_s=limit_s)
    if code != 0:
        raise typer.Exit(code if code > 0 else 128 - code)
    facts = read_answer(LinkFacts, told, "links")
    if run_dir is not None:
        write_json(run_dir.links_path, facts.to_json())
    if as_json:
        print_json(facts.to_json())
    else:
        from cli.links_text import describe_links

        show(describe_links(facts))
    raise typer.Exit(1 if facts.corrupt else 0)
