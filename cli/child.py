"""Starting the trainer: commands that need torch or a tokenizer become `python -m dflash …`.

They replace themselves, so exit codes, signals and streams of the trainer are those of the command.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from dflash.contract.rundir import python_command


def become_trainer(arguments: Sequence[str]) -> NoReturn:
    """Replace this process by the trainer's, with `arguments`."""
    sys.stdout.flush()
    sys.stderr.flush()
    command = [*python_command(), *arguments]
    os.execv(command[0], command)


def hand_over(text: str) -> str:
    """A path under which the process that this one becomes can read `text`; it vanishes with that process."""
    descriptor = os.memfd_create("dflash-config", 0)  # 0: stays open across exec
    with os.fdopen(descriptor, "w", encoding="utf-8", closefd=False) as file:
        file.write(text)
    return f"/proc/self/fd/{descriptor}"
