"""`dflash-tune export` and `replay`: take a configuration out of a study, or run one of its trials again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.console import print_json, say, show
from cli.install_check import check_install
from cli.layout import facts, plain
from cli.options import AsJson
from cli.search_options import Study, default_study
from reports import text

if TYPE_CHECKING:
    from autotune.replay import Replay


def export_trial(
    study_dir: Study = default_study,
    trial: Annotated[
        int | None, typer.Option(min=0, help="Which one. [default: the recommended one]", metavar="N")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Write it there. [default: to stdout]", metavar="FILE")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Give out the whole configuration of a trial, as TOML.

    `dflash-train run` takes it as it is.
    """
    from autotune.export import export
    from autotune.result import load_study
    from dflash.contract.rundir import write_text

    exported = export(load_study(study_dir), trial)
    if out is not None:
        write_text(out, exported.toml)
    if as_json:
        values = {
            path: list(v) if isinstance(v, tuple) else v for path, v in exported.config.values().items()
        }
        print_json({"trial": exported.trial.number, "out": out and str(out), "config": values})
    elif out is None:
        show(exported.toml.rstrip("\n"))
    else:
        show(f"trial {exported.trial.number} is in {out}")


def replay_trial(
    study_dir: Annotated[Path, typer.Argument(metavar="STUDY", help="A study's directory.")],
    trial: Annotated[int, typer.Argument(metavar="TRIAL", help="The trial's number.", min=0)],
    as_json: AsJson = False,
) -> None:
    """Run a trial again and compare it with what was recorded.

    Exits with 1 when it differs beyond the noise that the study's repeats show.
    """
    check_install()
    from autotune.gpus import watch_gpus
    from autotune.machine import read_machine
    from autotune.replay import replay
    from autotune.runner import RecordedRunner

    told = replay(study_dir, trial, RecordedRunner(gpus=watch_gpus(say)), read_machine(), say)
    if as_json:
        print_json(told.to_json())
    else:
        show(_describe(told))
    if not told.same:
        raise typer.Exit(1)


def _describe(told: Replay) -> str:
    then, now = told.recorded, told.now
    rows = [
        ("verdict", f"{'same' if told.same else 'different'}: {told.why}"),
        ("then", f"trial {then.number}: {text.rate(then.tokens_per_s, then.reason)}"),
        ("now", text.rate(now.tokens_per_s, now.reason)),
    ]
    if told.ratio is not None:
        low, high = f"{told.ratio.low:.2f}", f"{told.ratio.high:.2f}"
        runs = text.count_of(told.runs, "recorded run")
        rows.append(("ratio", f"{told.ratio.mid:.2f} times {runs}, 90 % interval {low} to {high}"))
    if told.conditions:
        rows.append(("conditions", "\n".join(("not as they were:", *told.conditions))))
    rows.append(("run", str(told.directory)))
    return plain(facts(rows))
