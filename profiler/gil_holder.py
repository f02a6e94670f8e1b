"""Names who holds the GIL of a running process, and at which line: py-spy looks for a second or more.

For people who ask on the spot; the recorder keeps shares by thread (profiler/samplers/gil.py). The process is
not paused. Knows nothing of runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from profiler.samplers import gil

look_hz = 100
gone = "the process ended, or has only just begun"
nobody = "nobody held the GIL in that time: an idle interpreter, or py-spy cannot find its GIL"
hung = "py-spy hung and was ended"
_late_s = 5.0  # beyond the time asked for, after which py-spy is ended


@dataclass(frozen=True, slots=True)
class Holder:
    """One line of one thread, and the share of the time in which it held the GIL."""

    thread: str
    line: str  # "function (file:line)"; empty where py-spy does not say
    share: float


@dataclass(frozen=True, slots=True)
class HolderReport:
    """Holders with the largest share first; none, and a reason, when that is unknown."""

    holders: tuple[Holder, ...] = ()
    held_share: float | None = None  # of the time in which anybody held it
    reason: str | None = None


def name_holder(pid: int, *, seconds: int = 1, program: Path | None = None) -> HolderReport:
    """Look at process `pid` for `seconds`; comes back 5 s later at the latest. `program`: py-spy."""
    program = program or gil.find_program()
    if program is None or not program.exists():
        return HolderReport(reason=gil.no_program)
    segment = gil.Segment(program, pid, seconds, look_hz)
    try:
        end = segment.end(seconds + _late_s)
        outcome = hung if end is None else segment.result(end) or gone
    finally:
        segment.close()
    if isinstance(outcome, str):
        return HolderReport(reason=outcome)
    stacks, samples = outcome
    if not stacks:
        return HolderReport(reason=nobody)
    holders = tuple(Holder(*key, min(count / samples, 1.0)) for key, count in stacks.most_common())
    return HolderReport(holders, min(stacks.total() / samples, 1.0))
