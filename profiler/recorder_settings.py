"""`--set` for the recorder: `sensors.gpu=replay:FILE`, `sensors.gil_holders=true`, onto RecordOptions.

Spelled as knobs are, but no part of the trainer's configuration: how a run is watched does not change it.
Knows nothing of command lines.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from dflash.contract.errors import UsageError, nearest
from profiler.recorder import RecordOptions

settings: Final = {"sensors.gpu": "gpu", "sensors.gil_holders": "gil_holders"}  # field of RecordOptions
_booleans: Final = {"true": True, "false": False}


def apply_settings(options: RecordOptions, assignments: Sequence[str]) -> RecordOptions:
    """`options` with NAME=VALUE assignments, of which the last of a name counts. Raises UsageError."""
    changes: dict[str, Any] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals or not value:
            raise UsageError("not a setting", where="--set", found=assignment, expected="NAME=VALUE")
        if name not in settings:
            near = nearest(name, settings)
            raise UsageError(
                f"the recorder has no setting {name!r}",
                where="--set",
                expected=", ".join(settings),
                remedy=f"did you mean {near!r}?"
                if near
                else "settings of the trainer belong behind --, to the command that is recorded",
            )
        field = settings[name]
        changes[field] = _switch(name, value) if isinstance(getattr(options, field), bool) else value
    return replace(options, **changes)


def _switch(name: str, value: str) -> bool:
    if value not in _booleans:
        raise UsageError("not a value of this setting", where=name, found=value, expected="true or false")
    return _booleans[value]
