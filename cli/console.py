"""How commands speak: results on stdout, talk and errors on stderr, exit codes by kind of failure.

All output is plain text without colour or markup, so brackets in paths and messages survive and nothing
depends on the terminal. This is the only place that renders errors and ends the process. Knows nothing
of what any command does.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated, Any, NoReturn

import typer

from dflash.contract.errors import DFlashError
from dflash.contract.rundir import printable
from dflash.contract.streams import write_line

interrupted_exit_code = 130


class Program:
    """One installed command: a typer app, its `--debug` flag, and the boundary where errors end."""

    def __init__(self, name: str, description: str) -> None:
        self.name = name
        self.debug = False
        self.app = typer.Typer(
            name=name,
            help=description,
            add_completion=False,
            no_args_is_help=True,
            pretty_exceptions_enable=False,
            rich_markup_mode=None,
            context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
        )
        self.app.callback()(self._options)

    def _options(
        self,
        debug: Annotated[
            bool, typer.Option("--debug", help="Show the traceback of an unexpected error.")
        ] = False,
    ) -> None:
        self.debug = debug

    def run(self, arguments: Sequence[str] | None = None) -> NoReturn:
        """Run with `arguments` (None: of this process) and exit: 0, 1 failure, 2 usage, 130 interrupted."""
        try:
            self.app(args=arguments, prog_name=self.name)
        except DFlashError as error:
            say(f"{self.name}: {error.render()}")
            sys.exit(error.exit_code)
        except KeyboardInterrupt:
            say(f"{self.name}: interrupted")
            sys.exit(interrupted_exit_code)
        except Exception as error:  # noqa: BLE001 - the process boundary: a person gets one line
            if self.debug:
                traceback.print_exc()
            hint = "" if self.debug else f"; `{self.name} --debug …` shows where"
            say(f"{self.name}: {type(error).__name__}: {error}\n  this is a bug in dflash-tune{hint}")
            sys.exit(1)
        sys.exit(0)


def say(text: str) -> None:
    """Talk, progress or an error: one message on stderr."""
    write_line(sys.stderr, printable(text))


def show(text: str) -> None:
    """A result for people: text on stdout."""
    write_line(sys.stdout, printable(text))


def print_json(document: Any) -> None:
    """A result for machines: one strict JSON document on stdout, in ASCII so that any locale can carry it."""
    write_line(sys.stdout, json.dumps(document, indent=1, allow_nan=False))


@contextmanager
def stdout_kept_for_result() -> Iterator[None]:
    """While in the block, whatever this process or its children write to stdout arrives on stderr."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(kept, 1)
        os.close(kept)
