"""Starting the trainer: commands that need torch or a tokenizer become `python -m dflash …`.

They replace themselves, so exit codes, signals and streams of the trainer are those of the command.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import NoReturn, TypeVar

from dflash.contract.errors import DFlashError
from dflash.contract.rundir import python_command

T = TypeVar("T")


def become_trainer(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by the trainer's, with `arguments`."""
    sys.stdout.flush()
    sys.stderr.flush()
    command = [*python_command(), *arguments]
    os.execv(command[0], command)


def ask_trainer(
    arguments: Sequence[str], *, text: str = "", limit_s: float, environ: Mapping[str, str] | None = None
) -> tuple[int, str]:
    """Run the trainer with `arguments`, `text` on its stdin; its exit code and what it wrote to stdout.

    It talks on our stderr. `environ`: its environment, ours without it. Raises DFlashError when it takes
    longer than `limit_s`; it is then killed.
    """
    command = [*python_command(), *arguments]
    try:
        done = subprocess.run(
            command,
            input=text,
            stdout=subprocess.PIPE,
            text=True,
            encoding="utf-8",
            timeout=limit_s,
            check=False,
            env=environ,
        )
    except subprocess.TimeoutExpired:
        raise DFlashError(
            f"the process that needs torch took longer than {limit_s:g} s and was ended",
            where=" ".join(command),
        ) from None
    return done.returncode, done.stdout


def read_answer(kind: type[T], told: str, what: str) -> T:
    """What a process that measured `what` wrote, as records of that kind. Raises DFlashError."""
    from profiler.records import RecordError, decode

    try:
        return decode(kind, json.loads(told))
    except (RecordError, ValueError) as error:
        raise DFlashError(
            f"the process that measures {what} gave no sound answer", found=f"{error}; {told[:200]!r}"
        ) from None


def hand_over(text: str) -> str:
    """A path under which the process that this one becomes can read `text`; it vanishes with that process."""
    descriptor = os.memfd_create("dflash-config", 0)  # 0: stays open across exec
    with os.fdopen(descriptor, "w", encoding="utf-8", closefd=False) as file:
        file.write(text)
    return f"/proc/self/fd/{descriptor}"
