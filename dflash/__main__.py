"""The trainer as a child process: `python -m dflash run | serve | check-data | plan | links | …`.

Started by the commands in `cli`, which check the configuration first and need no torch. Everything for people
goes to stderr; with --json one document goes to stdout.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable
from functools import partial
from math import inf
from pathlib import Path

from dflash.contract.config import TrainConfig, load_config
from dflash.contract.errors import DFlashError, UsageError
from dflash.contract.regeneration import RegenerationChoice
from dflash.contract.rundir import (
    RunDir,
    create_run,
    environment_variable,
    new_run_path,
    printable,
    write_text,
)
from dflash.contract.steps import StepRange
from dflash.contract.streams import write_line
from dflash.contract.tracker_names import known_trackers


def main(argv: list[str] | None = None) -> int:
    """Run one subcommand; returns the exit code."""
    arguments = _parser().parse_args(argv)
    try:
        return _commands[arguments.command](arguments)
    except DFlashError as error:
        write_line(sys.stderr, error.render())
        return error.exit_code
    except KeyboardInterrupt:  # of what has no run directory to close
        write_line(sys.stderr, "interrupted")
        return 130


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m dflash", allow_abbrev=False)
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="train")
    run.add_argument(
        "config", nargs="?", type=Path, help="TOML file; default: config.toml of the run directory"
    )
    run.add_argument("--run-dir", type=Path)
    run.add_argument("--trace", metavar="FIRST:LAST", help="optimizer steps to look at with torch.profiler")
    run.add_argument("--inject", metavar="FAULT:STRENGTH", help="plant a fault: see docs/fault-injection.md")
    run.add_argument("--worst-case", action="store_true", help="on documents that need the most memory")
    serve = commands.add_parser("serve", help="train what one asks for, again and again; dflash/serving.py")
    serve.add_argument("--socket", type=Path, required=True)
    check = commands.add_parser("check-data", help="what the data would give")
    check.add_argument("config", type=Path)
    plan = commands.add_parser("plan", help="what the run would hold in memory")
    plan.add_argument("config", type=Path)
    export = commands.add_parser("export", help="a checkpoint's drafter for inference engines")
    export.add_argument("source", help="run or checkpoint")
    export.add_argument("--to", type=Path, required=True)
    export.add_argument("--dtype", default="bfloat16", choices=("bfloat16", "float32"))
    evaluate = commands.add_parser("evaluate", help="acceptance lengths of a drafter")
    evaluate.add_argument("source", help="run, checkpoint or export")
    evaluate.add_argument("--set", dest="settings", action="append", default=[], metavar="KNOB=VALUE")
    evaluate.add_argument("--answers", default="greedy", choices=("greedy", "data"))
    evaluate.add_argument("--prompts", type=int, default=64)
    evaluate.add_argument("--max-new-tokens", type=int, default=256)
    evaluate.add_argument("--batch", type=int, default=8)
    regenerate = commands.add_parser("regenerate", help="let the target answer the prompts of a data file")
    regenerate.add_argument("config", type=Path)
    regenerate.add_argument("--choice", required=True, metavar="JSON", help="contract/regeneration.py")
    track = commands.add_parser("track", help="feed a tracker with what comes on stdin; dflash/trackers/")
    track.add_argument("tracker", choices=known_trackers)
    links = commands.add_parser("links", help="speed and correctness of copies, as JSON")
    links.add_argument("config", type=Path)
    links.add_argument("--mb", type=int, required=True, help="size of a copy, 10^6 bytes")
    links.add_argument("--only", action="append", default=[], metavar="SRC,DST,PATH", help="this way alone")
    links.add_argument("--seconds", type=float, default=inf, help="start no further way after so long")
    commands.add_parser("ceilings", help="what every GPU can do at best, as JSON")
    commands.add_parser("gpus", help="what torch sees, as JSON")
    for command in (run, check, plan, export, evaluate, regenerate):
        command.add_argument("--json", action="store_true", help="one JSON document on stdout")
    return parser


def _run(arguments: argparse.Namespace) -> int:
    trace = None if arguments.trace is None else StepRange.parse(arguments.trace)
    run, config = open_run(arguments.run_dir, arguments.config)
    from dflash.session import Session, print_document

    session = Session(run, config, trace)
    if arguments.inject is not None:
        from dflash.faults.injection import prepare_injected

        session.prepare_trainer = partial(prepare_injected, arguments.inject)
    elif arguments.worst_case:
        from dflash.trainer import prepare

        session.prepare_trainer = partial(prepare, worst_case=True)
    code, document = session.carry_out()
    if arguments.json:
        print_document(document)
    return code


def _track(arguments: argparse.Namespace) -> int:
    from dflash.trackers.child import track

    return track(arguments.tracker)


def _serve(arguments: argparse.Namespace) -> int:
    from dflash.serving import serve

    return serve(arguments.socket)


def open_run(run_dir: Path | None, config_path: Path | None) -> tuple[RunDir, TrainConfig]:
    """The run directory (given, from the recorder, or new) and the configuration, both on disk afterwards."""
    recorded = os.environ.get(environment_variable)
    if run_dir and recorded and run_dir.resolve() != Path(recorded).resolve():
        raise UsageError(
            "the recorder and --run-dir name different run directories",
            found=str(run_dir),
            expected=recorded,
            remedy="leave --run-dir to `dflash-profile record`",
        )
    path = run_dir or (Path(recorded) if recorded else new_run_path())
    run = RunDir(path)
    if config_path is None and not run.config_path.is_file():
        raise UsageError("no configuration", where=str(run.config_path), remedy="name a TOML file")
    config = load_config(config_path or run.config_path)
    if not run.manifest_path.exists():
        run = create_run(path, command=sys.argv)
    write_text(run.config_path, config.to_toml())
    return run, config


def _check_data(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.config)
    from dflash.check_data import check_data, describe, refusals_shown
    from dflash.session import print_document, say

    document = check_data(config, most_refused=None if arguments.json else refusals_shown)
    if arguments.json:
        print_document(document)
    else:
        say(describe(document))
    return 0


def _plan(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.config)
    from dflash.memory_check import plan_run
    from dflash.session import print_document

    plan = plan_run(config)
    if arguments.json:
        print_document(plan.to_json())
    else:
        write_line(sys.stdout, plan.describe())
    plan.check()
    return 0


def _export(arguments: argparse.Namespace) -> int:
    from dflash.export import describe, export_drafter
    from dflash.session import print_document

    document = export_drafter(arguments.source, arguments.to, arguments.dtype)
    if arguments.json:
        print_document(document)
    else:
        write_line(sys.stdout, printable(describe(document)))
    return 0


def _evaluate(arguments: argparse.Namespace) -> int:
    from dflash.evaluation.evaluate import evaluate
    from dflash.evaluation.outcome import Request, describe
    from dflash.session import print_document, say

    request = Request(
        answers=arguments.answers,
        prompts=arguments.prompts,
        max_new_tokens=arguments.max_new_tokens,
        batch=arguments.batch,
    )
    document = evaluate(arguments.source, arguments.settings, request, say)
    if arguments.json:
        print_document(document)
    else:
        write_line(sys.stdout, printable(describe(document)))
    return 0


def _regenerate(arguments: argparse.Namespace) -> int:
    config, choice = load_config(arguments.config), RegenerationChoice.from_json(arguments.choice)
    from dflash.regeneration.regenerate import describe, regenerate

    code, document = regenerate(config, choice)  # an endpoint needs no torch
    if arguments.json:
        write_line(sys.stdout, json.dumps(document, allow_nan=False))
    else:
        write_line(sys.stderr, describe(document))
    return code


def _links(arguments: argparse.Namespace) -> int:
    config = load_config(arguments.config)
    from dflash.link_probe import measure_links

    ways = [(src, dst, path) for src, dst, path in (way.split(",") for way in arguments.only)]
    facts = measure_links(config, arguments.mb * 1_000_000, ways, arguments.seconds)
    write_line(sys.stdout, json.dumps(facts.to_json(), allow_nan=False))
    return 0


def _ceilings(_arguments: argparse.Namespace) -> int:
    from dflash.ceiling_probe import measure_ceilings

    write_line(sys.stdout, json.dumps(measure_ceilings().to_json(), allow_nan=False))
    return 0


def _gpus(_arguments: argparse.Namespace) -> int:
    from dflash.cuda import describe_torch

    write_line(sys.stdout, json.dumps(describe_torch()))
    return 0


_commands: dict[str, Callable[[argparse.Namespace], int]] = {
    "run": _run,
    "serve": _serve,
    "track": _track,
    "check-data": _check_data,
    "plan": _plan,
    "export": _export,
    "evaluate": _evaluate,
    "regenerate": _regenerate,
    "links": _links,
    "ceilings": _ceilings,
    "gpus": _gpus,
}

if __name__ == "__main__":
    sys.exit(main())
