"""Samples who holds the GIL of the trainer, with py-spy run beside it in segments.

py-spy reads the interpreter's state without pausing it (`--nonblocking`), so a share is an estimate: within
about 0.1 for a segment. It names holders; it cannot see who waits. Each segment costs about
0.13 s of CPU, nearly all of it py-spy's start: measured at 1.8 % of one core of a 2-core virtual machine,
beside a trainer with torch loaded. Knows nothing of stages beyond the names of their threads.
"""

from __future__ import annotations

import re
import shutil
import sysconfig
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from profiler.child import Child, Exit
from profiler.samplers.base import Reading, Sampler, everything

segment_s, rate_hz = 8, 25
hang_limit_s = 10.0  # beyond the length of a segment
start_attempts = 10  # the command may still be turning into the trainer

no_program = "py-spy is not installed"
no_permission = (
    "no permission (needs SYS_PTRACE): run as root, start the container with --cap-add SYS_PTRACE, "
    "or set kernel.yama.ptrace_scope to 0"
)
no_python = "the process is not a Python interpreter that py-spy knows"
no_version = "py-spy does not support this version of Python"
no_answer = f"py-spy hung and was ended after {segment_s + hang_limit_s:g} s"
no_sense = "py-spy's output is not understood"
no_holder = "no holder of the GIL seen so far: an idle interpreter, or py-spy cannot find its GIL"

_complaints = (  # what py-spy says, in lower case, and the reason that follows
    ("permission denied", no_permission),
    ("operation not permitted", no_permission),
    ("unsupported version", no_version),
    ("failed to find python version", no_python),
    ("python interpreter", no_python),
)
_gone = ("no such process", "check that the process is running", "no such file")
_stack = re.compile(r"thread \((?P<tid>\w+)\)(?:: (?P<name>[^;]*))?(?:;(?P<frames>.*))? (?P<count>\d+)")
_totals = re.compile(r"Samples: \d+ Errors: (?P<errors>\d+)")
Stacks = Counter[tuple[str, str]]  # samples by thread name and innermost frame, as "name (file:line)"


class GilSampler(Sampler):
    """Rows at the end of each segment, keyed by thread name; `find_pid` tells whom to look at."""

    name = "gil"
    metrics = ("gil_hold_share", "gil_held_share", "gil_samples")
    interval_s = 0.25

    def __init__(
        self, find_pid: Callable[[], int], program: Path | None = None, length_s: int = segment_s
    ) -> None:
        """`program`: py-spy, looked for when not given."""
        self._find_pid, self._program, self._length_s = find_pid, program, length_s
        self._segment: Segment | None = None
        self._failed_starts = 0
        self._given_up = False
        self._holders_seen: set[str] = set()

    def open(self) -> str | None:
        self._program = self._program or find_program()
        return no_program if self._program is None or not self._program.exists() else None

    def sample(self) -> Iterator[Reading]:
        if self._segment is None and not self._given_up and self._program is not None:
            self._segment = Segment(self._program, self._find_pid(), self._length_s)
        if self._segment is not None:
            yield from self._collect(self._segment, wait_s=0.0)

    def close(self) -> Iterator[Reading]:
        if self._segment is not None:
            # The trainer has ended, so py-spy ends too and writes what it has.
            yield from self._collect(self._segment, wait_s=2.0)
        if self._segment is not None:
            self._segment.close()
            self._segment = None

    def _collect(self, segment: Segment, wait_s: float) -> Iterator[Reading]:
        end = segment.end(wait_s)
        if end is None and segment.age_s() < self._length_s + hang_limit_s:
            return
        outcome = no_answer if end is None else segment.result(end)
        segment.close()
        self._segment = None
        self.helper_cpu_s += 0.0 if end is None else end.cpu_s or 0.0
        if isinstance(outcome, str):
            yield from self._fail(outcome)
        elif outcome is not None:
            stacks, samples = outcome
            yield from self._report(by_thread(stacks), samples)

    def _fail(self, reason: str) -> Iterator[Reading]:
        self._failed_starts += 1
        if reason == no_python and self._failed_starts < start_attempts:
            return
        self._given_up = True
        self.warning = reason
        for metric in self.metrics:
            yield Reading(time.monotonic_ns(), everything, metric, None, reason)

    def _report(self, holders: Counter[str], samples: float) -> Iterator[Reading]:
        t_ns = time.monotonic_ns()
        self._failed_starts = 0
        self._holders_seen |= holders.keys()
        yield Reading(t_ns, everything, "gil_samples", round(samples))
        if not self._holders_seen:
            # Without one holder ever seen, 0 could as well mean that py-spy is blind here.
            self.warning = no_holder
            yield Reading(t_ns, everything, "gil_held_share", None, no_holder)
            return
        self.warning = None
        yield Reading(t_ns, everything, "gil_held_share", min(1.0, holders.total() / samples))
        for name in sorted(self._holders_seen):
            yield Reading(t_ns, name, "gil_hold_share", min(1.0, holders[name] / samples))


class Segment:
    """One run of py-spy against one process."""

    def __init__(self, program: Path, pid: int, length_s: int, rate_hz: int = rate_hz) -> None:
        self._length_s, self._rate_hz = length_s, rate_hz
        self._folder = tempfile.TemporaryDirectory(prefix="gil-")
        self._stacks = Path(self._folder.name) / "stacks"
        self._talk: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - open for the segment's life
        self._started_s = time.monotonic()
        self._child = Child(
            [
                *(str(program), "record", "--gil", "--threads", "--nonblocking", "--format", "raw"),
                *("--rate", str(rate_hz), "--duration", str(length_s)),
                *("--pid", str(pid), "--output", str(self._stacks)),
            ],
            output=self._talk,
        )
        self._child.release()

    def age_s(self) -> float:
        return time.monotonic() - self._started_s

    def end(self, wait_s: float) -> Exit | None:
        return self._child.wait(wait_s)

    def result(self, end: Exit) -> tuple[Stacks, float] | str | None:
        """Who held it, and the number of samples; or why that is unknown; None: nothing to say."""
        talk = self._said()
        complaint = next((reason for words, reason in _complaints if words in talk.lower()), None)
        if end.code != 0:
            gone = any(words in talk.lower() for words in _gone)
            return complaint or (
                None if gone else f"py-spy failed: {_last_line(talk) or f'exit code {end.code}'}"
            )
        try:
            stacks = parse_stacks(self._stacks.read_text(encoding="utf-8", errors="replace"))
        except (OSError, ValueError):
            return no_sense
        found = _totals.search(talk)
        if found is None:
            return no_sense
        taken_s = min(self.age_s(), self._length_s) if "process exited" in talk else float(self._length_s)
        samples = self._rate_hz * taken_s - int(found["errors"])
        return (
            (stacks, samples) if samples >= self._rate_hz / 2 else None
        )  # less than half a second says nothing

    def close(self) -> None:
        self._child.close()
        self._talk.close()
        self._folder.cleanup()

    def _said(self) -> str:
        self._talk.seek(0)
        return self._talk.read().decode(errors="replace")


def parse_stacks(text: str) -> Stacks:
    """Samples by thread name and innermost frame from py-spy's raw format. Raises ValueError."""
    stacks: Stacks = Counter()
    for line in text.splitlines():
        if not line.strip():
            continue
        found = _stack.fullmatch(line.strip())
        if found is None:
            raise ValueError(f"not a stack: {line[:80]!r}")
        frame = (found["frames"] or "").rpartition(";")[2]
        stacks[found["name"] or f"thread {found['tid']}", frame] += int(found["count"])
    return stacks


def by_thread(stacks: Stacks) -> Counter[str]:
    """The same samples by thread name alone."""
    holders: Counter[str] = Counter()
    for (name, _), count in stacks.items():
        holders[name] += count
    return holders


def find_program() -> Path | None:
    """py-spy: the one installed with this Python, else the first on PATH."""
    beside = Path(sysconfig.get_path("scripts")) / "py-spy"
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    return None if found is None else Path(found)


def _last_line(text: str) -> str:
    """The last line that says something, without py-spy's own backtrace."""
    lines = [line for line in text.partition("Stack backtrace")[0].splitlines() if line.strip()]
    return lines[-1].strip()[:200] if lines else ""
