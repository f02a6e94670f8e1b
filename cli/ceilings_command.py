"""`dflash-profile ceilings`: what this machine's GPUs can do at best, for the limit that reports show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.child import ask_trainer, read_answer
from cli.console import print_json, say, show
from cli.install_check import check_install
from cli.layout import facts, plain, table
from cli.options import AsJson
from dflash.contract.ceilings import Ceilings
from dflash.contract.rundir import RunDir, write_json

if TYPE_CHECKING:
    from dflash.contract.ceilings import DeviceCeilings

limit_s = 180.0  # eight GPUs on a crowded machine, torch's import included


def measure_ceilings(
    run: Annotated[
        Path | None,
        typer.Option("--run", metavar="RUN", help="A run's directory: ceilings.json goes there, too."),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Measure what this machine's GPUs can do at best.

    Matrix products, memory, copies: seconds, with nothing else on the GPUs. Reports of runs on these GPUs
    then tell how far they are from the limit.
    """
    check_install()
    from profiler.ceilings import keep_ceilings, machine_file

    run_dir = None if run is None else RunDir(run)
    if run_dir is not None:
        run_dir.manifest()
    if not as_json:
        say("measuring …")
    code, told = ask_trainer(["ceilings"], limit_s=limit_s)
    if code != 0:
        raise typer.Exit(code if code > 0 else 128 - code)
    found = read_answer(Ceilings, told, "ceilings")
    places = [machine_file()]
    keep_ceilings(found, places[0])
    if run_dir is not None:
        places.append(run_dir.ceilings_path)
        write_json(places[1], found.to_json())
    if as_json:
        print_json(found.to_json())
    else:
        show(describe_ceilings(found, places))


def describe_ceilings(found: Ceilings, places: list[Path]) -> str:
    """A row for each GPU, what could not be measured, and where it is kept."""
    rows = [(str(number), device.model, *_figures(device)) for number, device in enumerate(found.devices)]
    head = ("GPU", "model", "products", "memory", "to host", "from host", "to a GPU")
    lacking = [(f"GPU {n}", d.reason) for n, d in enumerate(found.devices) if d.reason]
    kept = [("kept in", str(place)) for place in places]
    return plain("\n\n".join([table(head, rows), facts([*lacking, *kept])]))


def _figures(device: DeviceCeilings) -> tuple[str, ...]:
    from reports import text

    rates = (device.memory_gb_per_s, device.down_gb_per_s, device.up_gb_per_s, device.peer_gb_per_s)
    products = device.matmul_tflops
    return (
        text.missing() if products is None else f"{text.significant(products)} TFLOP/s",
        *(text.missing() if rate is None else f"{text.significant(rate)} GB/s" for rate in rates),
    )
