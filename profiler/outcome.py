"""How a recording ends: which signal the command gets next, and what its end is called.

Pure decisions on times and exit codes that are handed in. Knows nothing of processes or files.
"""

from __future__ import annotations

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass

from profiler.child import Exit

second_grace_s = 2.0  # after a second request
give_up_s = 15.0  # after SIGKILL: then the process is stuck in the kernel
time_limit_code = 124  # as timeout(1) has it


class Ending:
    """Turns requests to stop into signals: politely first, by SIGKILL when the grace is over."""

    def __init__(self, grace_s: float) -> None:
        self._grace_s = grace_s
        self._deadline_s = math.inf
        self._give_up_after_s = math.inf
        self._pending: list[int] = []
        self.cause: str | None = None  # why it was asked to stop, the first time
        self.exit_code: int | None = None  # what follows from that
        self.killed = False

    def request(self, cause: str, number: int, now_s: float, exit_code: int | None = None) -> None:
        """Ask the command to stop. A second request shortens the grace."""
        if self.cause is None:
            self.cause, self.exit_code = cause, exit_code or 128 + number
            self._deadline_s = now_s + self._grace_s
        else:
            self._deadline_s = min(self._deadline_s, now_s + second_grace_s)
        self._pending.append(number)

    def due(self, now_s: float) -> list[int]:
        """The signals to send now."""
        numbers, self._pending = self._pending, []
        if now_s >= self._deadline_s and not self.killed:
            numbers.append(signal.SIGKILL)
            self.killed, self._give_up_after_s = True, now_s + give_up_s
        return numbers

    def is_hopeless(self, now_s: float) -> bool:
        """Whether even SIGKILL has not helped for long."""
        return now_s >= self._give_up_after_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What goes into run.json, and the exit code of the recording."""

    status: str
    reason: str | None
    exit_code: int


def judge(
    end: Exit,
    ending: Ending,
    *,
    said_status: str,
    said_reason: str | None,
    took_over: bool,
    oom_kills: int,
    last_lines: Sequence[str] = (),
) -> Verdict:
    """Status and reason of an ended run.

    `said_*`: what the trainer wrote into run.json; "running" when it did not get to it. `took_over`: whether
    it wrote there at all, as only our trainer does. `oom_kills`: by how much the cgroup's counter rose.
    """
    if said_status == "finished" and end.code == 0:
        return Verdict(status="finished", reason=said_reason, exit_code=0)
    if ending.cause is not None:
        return _judge_stopped(ending, said_status, said_reason)
    if said_status in ("failed", "stopped"):
        code = end.shell_code or int(said_status == "failed")
        return Verdict(status=said_status, reason=said_reason, exit_code=code)
    if end.code == 0 and not took_over:
        return Verdict(status="finished", reason=None, exit_code=0)
    reason = describe_end(end, oom_kills)
    if end.code == 0:
        reason += " without having said that it finished"
    if last_lines:
        reason += "; it last said: " + " | ".join(last_lines)
    return Verdict(status="failed", reason=reason, exit_code=end.shell_code or 1)


def _judge_stopped(ending: Ending, said_status: str, said_reason: str | None) -> Verdict:
    assert ending.cause is not None
    assert ending.exit_code is not None
    forced = "; killed when the grace was over" if ending.killed else ""
    if ending.exit_code == time_limit_code:
        return Verdict(status="failed", reason=ending.cause + forced, exit_code=time_limit_code)
    if said_status in ("stopped", "failed"):
        return Verdict(status=said_status, reason=said_reason, exit_code=ending.exit_code)
    return Verdict(status="stopped", reason=ending.cause + forced, exit_code=ending.exit_code)


def describe_end(end: Exit, oom_kills: int) -> str:
    """The end of a process in words; memory is blamed only on the kernel's own count."""
    if end.signal_name is None:
        return f"ended with exit code {end.code}"
    text = f"killed by {end.signal_name}"
    if end.code == -signal.SIGKILL and oom_kills > 0:
        text += f": out of memory (the kernel killed {oom_kills} process(es) of this cgroup meanwhile)"
    return text
