"""`dflash-tune search` and `resume`: look for the fastest configuration, or say what that would take."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from cli.console import print_json, say, show
from cli.install_check import check_install
from cli.options import AsJson, ConfigFile, DataFile, Settings, configure, tell_small_default
from cli.search_options import (
    Fixed,
    GpuHours,
    GpuMemory,
    Gpus,
    Minutes,
    Plan,
    Repeats,
    Seconds,
    SpaceToml,
    Study,
    StudyDir,
    Tolerance,
    Trials,
    TrialsInAll,
    default_study,
    find_machine,
    parse_wishes,
    shape,
)

if TYPE_CHECKING:
    from autotune.effort import Effort
    from autotune.machine import Machine
    from autotune.space import SearchSpace


def search(
    config_file: ConfigFile = None,
    settings: Settings = None,
    data: DataFile = None,
    space_file: SpaceToml = None,
    fixed: Fixed = None,
    study_dir: StudyDir = default_study,
    trials: Trials = 8,
    repeats: Repeats = 2,
    seconds: Seconds = 12.0,
    minutes: Minutes = None,
    gpu_hours: GpuHours = None,
    tolerance: Tolerance = 0.02,
    plan: Plan = False,
    gpus: Gpus = None,
    gpu_memory_gb: GpuMemory = None,
    as_json: AsJson = False,
) -> None:
    """Find the fastest configuration.

    Measures configurations in real training runs, starting from CONFIG, and recommends one. Only knobs
    that leave the training signal alone are varied, unless --space names others: split, token budget,
    transport, depths. With --plan nothing runs.
    """
    base = configure(config_file, settings, {"data.path": data})
    tell_small_default(config_file, base)
    wishes = parse_wishes(space_file, fixed)
    from autotune.effort import Effort

    effort = Effort(
        trials=trials,
        repeats=repeats,
        seconds=seconds,
        tolerance=tolerance,
        minutes=minutes,
        gpu_hours=gpu_hours,
    )
    machine = find_machine(plan, gpus, gpu_memory_gb)
    declared = gpus is not None or gpu_memory_gb is not None
    space = shape(base, machine, wishes, declared=declared)
    if plan:
        _show_plan(space, machine, effort, study_dir, declared=declared, as_json=as_json)
    else:
        check_install()
        run_search(space, machine, effort, study_dir, as_json=as_json)


def resume(
    study_dir: Study = default_study,
    trials: TrialsInAll = None,
    minutes: Minutes = None,
    gpu_hours: GpuHours = None,
    as_json: AsJson = False,
) -> None:
    """Go on with a study, under the conditions that it was begun with.

    Needs neither the line nor the configuration: both are in the study. Budgets count over all calls.
    """
    check_install()
    from autotune.identity import read_identity
    from autotune.machine import read_machine
    from autotune.result import read_effort

    identity, before = read_identity(study_dir), read_effort(study_dir)
    effort = replace(
        before,
        seconds=identity.seconds,
        trials=trials or before.trials,
        minutes=before.minutes if minutes is None else minutes,
        gpu_hours=before.gpu_hours if gpu_hours is None else gpu_hours,
    )
    run_search(identity.search_space(), read_machine(), effort, study_dir, as_json=as_json)


def run_search(
    space: SearchSpace, machine: Machine, effort: Effort, study_dir: Path, *, as_json: bool
) -> None:
    """Search and show what was found. Exits with 1 when nothing can be recommended."""
    from autotune import search as searching
    from autotune.gpus import watch_gpus
    from autotune.in_place import InPlaceRunner
    from cli.study_presentation import present
    from cli.study_text import SearchTalk

    plan = searching.SearchPlan(study_dir=study_dir, space=space, machine=machine, effort=effort)
    talk = SearchTalk(plan, say)
    try:
        with InPlaceRunner(gpus=watch_gpus(say), notice=say) as runner:
            result = searching.search(plan, runner, talk.tell)
    except KeyboardInterrupt:
        say(f"stopped; the same line goes on, and so does `dflash-tune resume {study_dir}`")
        raise
    present(result, as_json=as_json)
    if result.best is None:
        raise typer.Exit(1)


def _show_plan(
    space: SearchSpace, machine: Machine, effort: Effort, study_dir: Path, *, declared: bool, as_json: bool
) -> None:
    from autotune.plan import outline
    from cli.plan_text import describe_outline

    told = outline(space, machine, effort, study_dir=study_dir, declared=declared)
    if as_json:
        print_json(told.to_json())
    else:
        show(describe_outline(told))
