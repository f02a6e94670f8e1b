"""Where a run comes from: command, versions, hardware, git state, books and settings, as rows of text."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from typing import Final

from dflash.contract.config import all_knobs
from profiler.run import Run
from reports import text
from reports.parts import say

_facts: Final = (
    "status", "reason", "exit_code", "started_utc", "ended_utc", "versions", "kernels", "hardware", "devices",
    "links", "git", "books",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Setting:
    """A knob of the run; `changed` where it differs from the default."""

    name: str
    value: str
    changed: bool
    help: str


def show_command(run: Run) -> str:
    """What was started, as a shell takes it."""
    return shlex.join(str(part) for part in run.manifest.get("command") or []) or text.missing()


def list_facts(run: Run) -> list[tuple[str, str]]:
    """All but the settings."""
    facts = [("run directory", str(run.path.resolve()))]
    facts += [(name.replace("_", " "), say(run.manifest.get(name))) for name in _facts]
    emulated = {True: "yes: logical devices", False: "no", None: text.missing("the run does not say")}
    return [*facts, ("emulated", emulated[run.emulated])]


def list_settings(run: Run) -> list[Setting]:
    """Every knob that the run names."""
    knobs = {knob.path: knob for knob in all_knobs}
    rows = []
    for name, value in run.config_values.items():
        knob = knobs.get(name)
        default = list(knob.default) if knob is not None and knob.is_list else knob.default if knob else None
        changed = knob is None or value != default
        rows.append(Setting(name, say(value), changed, knob.meta.help if knob else ""))
    return rows
