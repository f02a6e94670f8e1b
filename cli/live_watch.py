"""A run under watch: looks at it now and then, no more often than is cheap, until it is over.

The only part of the live view that knows what time it is. Knows nothing of how a view is shown.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Final

from profiler.live.attach import is_finishing
from profiler.live.follower import Recent, RunFollower
from profiler.live.observation import Judgement, judge, observe
from profiler.live.view import LiveView

least_interval_s: Final = 1.0  # between looks
cost_share: Final = 0.08  # of a core, for looking; as much again for judging, which costs more
judged_every_s: Final = 5.0  # at the least


class Watch:
    """`look` from one thread at a time. Raises RunError when there is no run, or it is not one of ours."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._follower = RunFollower(path)
        self._judgement: Judgement | None = None
        self._judge_after_s = 0.0
        self.interval_s = least_interval_s  # to wait before the next look

    def look(self) -> LiveView:
        """The run as it is now."""
        began_s = time.thread_time()
        now_ns = time.monotonic_ns()  # before reading, for what is written meanwhile may be missed
        recent = self._follower.poll()
        status = recent.run.status
        running = status.status == "running"
        looked_s = time.thread_time() - began_s
        judgement = self._judge(recent, at_once=not running)
        began_s = time.thread_time()
        view = observe(
            recent,
            judgement,
            status,
            now_ns=now_ns if running else None,
            finishing=is_finishing(recent.run.manifest),
        )
        looked_s += time.thread_time() - began_s
        self.interval_s = max(least_interval_s, looked_s / cost_share)
        return view

    def _judge(self, recent: Recent, *, at_once: bool) -> Judgement:
        """What the rules say, or said some seconds ago."""
        began_s = time.thread_time()
        if self._judgement is None or at_once or time.monotonic() >= self._judge_after_s:
            self._judgement = judge(recent)
            cost_s = time.thread_time() - began_s
            self._judge_after_s = time.monotonic() + max(judged_every_s, cost_s / cost_share)
        return self._judgement
