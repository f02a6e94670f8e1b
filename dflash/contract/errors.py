"""Errors written for people: what happened, where, what was found, what was expected, what to do.

DFlashError            a failure of the work itself                (exit 1)
├── StageError         a pipeline stage failed; carries stage, device and batch
└── UsageError         the request cannot be carried out as given  (exit 2)
    ├── ConfigError    a knob, its value, or a combination of knobs
    ├── DataError      the training data
    ├── DeviceError    the machine lacks what was asked for
    ├── CheckpointError  a checkpoint that cannot be used
    │   └── DamagedError  its files are not as they were written
    └── RunError       a run directory that cannot be read or written

Only command entry points render errors and exit. Knows nothing of terminals or colours.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_memory_words = re.compile(
    r"out of memory|OutOfMemory|OUT_OF_MEMORY|STATUS_ALLOC_FAILED|MemoryError|[Cc]an(?:no|')t allocate memory"
)
_memory_remedy = "lower pipeline.token_budget, transport.depth or, for a drafter, objective.chunk_blocks"


def ran_out_of_memory(text: str) -> bool:
    """Whether an error, with the name of its type, tells of memory that was not to be had."""
    return _memory_words.search(text) is not None


class DFlashError(Exception):
    """A failure with its remedy. `what` is a full sentence without a trailing period."""

    exit_code = 1

    def __init__(
        self,
        what: str,
        *,
        where: str | None = None,
        found: object = None,
        expected: object = None,
        remedy: str | None = None,
    ) -> None:
        self.what, self.where, self.remedy = what, where, remedy
        self.found = None if found is None else str(found)
        self.expected = None if expected is None else str(expected)
        super().__init__(self.render())

    def __reduce__(self) -> tuple[object, ...]:
        return (_rebuild, (type(self), self.fields(), self.__dict__))

    def fields(self) -> dict[str, str | None]:
        """The parts by name, for JSON."""
        return {
            "what": self.what,
            "where": self.where,
            "found": self.found,
            "expected": self.expected,
            "remedy": self.remedy,
        }

    def render(self) -> str:
        """One message: the sentence, then one indented line for each part that is known."""
        lines = [self.what]
        lines += [f"  {k}: {v}" for k, v in self.fields().items() if v is not None and k != "what"]
        return "\n".join(lines)


def _rebuild(cls: type[DFlashError], fields: dict[str, str], state: dict[str, object]) -> DFlashError:
    error = cls.__new__(cls)
    DFlashError.__init__(
        error,
        fields["what"],
        **{k: v for k, v in fields.items() if k != "what"},
    )
    error.__dict__.update(state)
    return error


class StageError(DFlashError):
    """The first cause of a stopped pipeline, with the stage, device and batch it struck."""

    def __init__(
        self,
        cause: BaseException,
        *,
        stage: str,
        device: str,
        batch: int | None = None,
        found: str | None = None,
    ) -> None:
        self.cause, self.stage, self.device, self.batch = cause, stage, device, batch
        at = f"{stage} on {device}" + ("" if batch is None else f", batch {batch}")
        if isinstance(cause, DFlashError):
            parts = {k: v for k, v in cause.fields().items() if k not in ("what", "where")}
            super().__init__(cause.what, where=f"{at}; {cause.where}" if cause.where else at, **parts)
        else:
            text = f"{type(cause).__name__}: {cause}"
            remedy = _memory_remedy if ran_out_of_memory(text) else None
            super().__init__(text, where=at, found=found, remedy=remedy)
        self.__cause__ = cause  # so that --debug and tests show where it came from


class UsageError(DFlashError):
    """The request cannot be carried out as given."""

    exit_code = 2


class ConfigError(UsageError):
    """A knob, its value, or a combination of knobs is not acceptable."""


class DataError(UsageError):
    """The training data cannot be used."""


class DeviceError(UsageError):
    """The machine lacks what the configuration asks for."""


class CheckpointError(UsageError):
    """A checkpoint cannot be read or does not fit."""


class DamagedError(CheckpointError):
    """The files of a checkpoint are not as they were written."""


class RunError(UsageError):
    """A run directory cannot be read or written."""


def nearest(name: str, candidates: Iterable[str]) -> str | None:
    """The candidate most like `name`, or None when nothing is close."""
    close = difflib.get_close_matches(name, list(candidates), n=1, cutoff=0.5)
    return close[0] if close else None
