"""Records a command: starts it as a child, samples it from outside, and writes down how it ended.

The child's result is never lost to a failing sampler, and nothing that the child started outlives the
recording. Knows nothing of what the command does, beyond the run directory it is pointed to.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from dflash.contract.arrowlog import ArrowLog, compact_log
from dflash.contract.cgroup import MemoryCgroup
from dflash.contract.errors import RunError, UsageError
from dflash.contract.events import sample_schema
from dflash.contract.processes import identify
from dflash.contract.rundir import (
    RunDir,
    create_run,
    environment_variable,
    new_manifest,
    printable,
    utc_now,
    write_json,
)
from profiler.child import Child, Exit, Watched, log_tail
from profiler.machine import describe_git, describe_hardware, own_versions
from profiler.outcome import Ending, Verdict, judge, time_limit_code
from profiler.samplers.base import Sampler, SamplerThread
from profiler.samplers.gil import GilSampler
from profiler.samplers.gil_wait import GilWaitSampler
from profiler.samplers.gpu import GpuSampler, open_sensors
from profiler.samplers.gpu_processes import descends_from
from profiler.samplers.host import HostSampler
from profiler.samplers.numa import NumaSampler
from profiler.samplers.sensors import GpuSensors

sample_flush_s = 2.0  # a batch costs 0.9 kB and 0.3 ms; samples need not be on disk as soon as events
poll_s = 0.2  # between looks at the stop event, the time limit and received signals
forwarded = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
switched_off = {"status": "n/a", "reason": "switched off", "cpu_s": 0.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordOptions:
    """How to record."""

    gpu: str = "nvml"  # nvml | none | replay:FILE
    gil: bool = True  # who waits for the GIL
    gil_holders: bool = False  # and who holds it: py-spy all the time, at 2 to 8 % of a core
    host_interval_s: float = 1.0
    gpu_interval_s: float = 0.2
    time_limit_s: float | None = None
    grace_s: float = 10.0  # between the request to stop and SIGKILL
    log: Path | None = None  # takes the child's stdout and stderr; they are inherited without it


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """A run that has ended. `exit_code` is what a command that recorded it should exit with."""

    run: RunDir
    exit_code: int
    status: str  # finished | failed | stopped
    reason: str | None


default_options = RecordOptions()


def record(
    command: Sequence[str],
    run_path: Path,
    options: RecordOptions = default_options,
    *,
    stop: threading.Event | None = None,
    start: Callable[..., Watched] = Child,
) -> Recording:
    """Run `command` to its end and record it at `run_path`.

    Setting `stop` ends it early; `start` is how the command becomes a process. In the main thread SIGINT,
    SIGTERM and SIGHUP are passed on to the command meanwhile, and the recording still ends properly. Raises
    UsageError when the command cannot be started and RunError when the run directory cannot be written.
    """
    _check_command(command)
    sensors = open_sensors(options.gpu)
    with _received_signals() as received:  # before anybody can see the run and whom to stop
        run = create_run(run_path, command=list(command))
        return _Session(run, list(command), options, sensors, start).conduct(received, stop)


@dataclass(slots=True)
class _Session:
    """One recording from the first line of the manifest to the last."""

    run: RunDir
    command: list[str]
    options: RecordOptions
    sensors: GpuSensors | None
    start: Callable[..., Watched]
    threads: dict[str, SamplerThread] = field(default_factory=dict)

    def conduct(self, received: list[int], stop: threading.Event | None) -> Recording:
        self._describe()
        memory = MemoryCgroup.of_process()
        kills_before = memory.oom_kills() or 0
        ending = Ending(self.options.grace_s)
        try:
            with contextlib.ExitStack() as open_things:
                child = self._start(open_things)
                end = self._wait(child, ending, received, stop)
        except UsageError as error:
            self._finish(Verdict(status="failed", reason=error.what, exit_code=error.exit_code), None)
            raise
        finally:
            reports = {name: thread.stop().entry() for name, thread in self.threads.items()}
        self._compact()
        manifest = self._manifest()
        verdict = judge(
            end,
            ending,
            said_status=manifest["status"],
            said_reason=manifest["reason"],
            took_over=manifest["config"] is not None,
            oom_kills=(memory.oom_kills() or 0) - kills_before,
            last_lines=[] if self.options.log is None else _printable_lines(log_tail(self.options.log)),
        )
        may_be_off = dict.fromkeys(("gpu", "gil", "gil_wait"), switched_off)
        self._finish(verdict, end, samplers={**may_be_off, **reports})
        return Recording(
            run=self.run, exit_code=verdict.exit_code, status=verdict.status, reason=verdict.reason
        )

    def _compact(self) -> None:
        """Nobody writes any more: the same rows in fewer bytes. What cannot be compacted stays as it is."""
        for path in (*self.run.events.glob("*.arrow"), *self.run.samples.glob("*.arrow")):
            with contextlib.suppress(RunError):
                compact_log(path)

    def _describe(self) -> None:
        """Fill in what is known before the start."""
        no_gpus = "switched off" if self.sensors is None else self.sensors.open()
        gpus = self.sensors.devices() if self.sensors is not None and no_gpus is None else ()
        self.run.update(
            pids={"recorder": os.getpid(), "trainer": None},
            processes={"recorder": identify(os.getpid()), "trainer": None},
            versions=own_versions(),
            hardware=describe_hardware(gpus, no_gpus),
            git=describe_git(Path.cwd()),
        )

    def _start(self, open_things: contextlib.ExitStack) -> Watched:
        """The child, let go once its pid is on record and the samplers run."""
        output = None
        env = {**os.environ, environment_variable: str(self.run.path.resolve())}
        if self.options.log is not None:
            output = open_things.enter_context(_open_log(self.options.log))
            env.setdefault("PYTHONUNBUFFERED", "1")  # the last words before a crash are in the log
        child = self.start(self.command, env=env, output=output)
        open_things.callback(child.close)
        # The trainer writes run.json from here on, until it has ended.
        self.run.update(
            pids={"recorder": os.getpid(), "trainer": child.pid},
            processes={"recorder": identify(os.getpid()), "trainer": identify(child.pid)},
        )
        self.threads.update(start_samplers(self.run, child, self.options, self.sensors, self.run.samples))
        child.release()
        return child

    def _wait(
        self, child: Watched, ending: Ending, received: list[int], stop: threading.Event | None
    ) -> Exit:
        limit_s = self.options.time_limit_s
        limit_at_s = None if limit_s is None else time.monotonic() + limit_s
        while (end := child.wait(poll_s)) is None:
            now_s = time.monotonic()
            while received:
                number = received.pop(0)
                ending.request(f"stopped by {signal.Signals(number).name}", number, now_s)
            if stop is not None and stop.is_set():
                ending.request("stopped by the caller", signal.SIGTERM, now_s)
                stop = None
            if limit_at_s is not None and now_s >= limit_at_s:
                ending.request(f"time limit of {limit_s:g} s", signal.SIGTERM, now_s, time_limit_code)
                limit_at_s = None
            for number in ending.due(now_s):
                child.signal(number)
            if ending.is_hopeless(now_s):
                return Exit(code=-signal.SIGKILL, left=(child.pid,))
        return end

    def _manifest(self) -> dict[str, Any]:
        """run.json as the trainer left it, or a new one when it left none that can be read."""
        try:
            return self.run.manifest()
        except RunError:
            manifest = new_manifest(self.command)
            write_json(self.run.manifest_path, manifest)
            return manifest

    def _finish(self, verdict: Verdict, end: Exit | None, **entries: object) -> None:
        left_over = [] if end is None else _describe_left(end)
        self.run.update(
            status=verdict.status,
            reason=verdict.reason,
            exit_code=verdict.exit_code if end is None else end.shell_code,
            ended_utc=utc_now(),
            warnings=left_over,
            usage=None if end is None else {"cpu_s": end.cpu_s, "peak_rss_bytes": end.peak_rss_bytes},
            **entries,
        )


def start_samplers(
    run: RunDir, child: Watched, options: RecordOptions, sensors: GpuSensors | None, logs: Path
) -> Iterator[tuple[str, SamplerThread]]:
    """Start every sampler that `options` ask for; each writes into its own file in `logs`.

    `run` is asked for what the trainer publishes of itself. Yields (name, thread), started.
    """
    for sampler in _choose_samplers(run, child, options, sensors):
        log = ArrowLog(logs / f"{sampler.name}.arrow", sample_schema, flush_s=sample_flush_s)
        thread = SamplerThread(sampler, log)
        thread.start()
        yield sampler.name, thread


def _choose_samplers(
    run: RunDir, child: Watched, options: RecordOptions, sensors: GpuSensors | None
) -> Iterator[Sampler]:
    yield HostSampler(child.launcher_pid, options.host_interval_s)
    yield NumaSampler(child.launcher_pid)
    if sensors is not None:
        is_own = descends_from(child.launcher_pid)
        yield GpuSampler(sensors, options.gpu_interval_s, is_own=is_own)
    published = _Published(run)
    if options.gil_holders:
        yield GilSampler(lambda: _trainer_pid(published, child.pid))
    if options.gil:
        yield GilWaitSampler(lambda: published.entry("gil"), child.launcher_pid)


def _trainer_pid(published: _Published, started_pid: int) -> int:
    """The trainer's own pid: the command may be a wrapper that started it."""
    pids = published.entry("pids")
    pid = pids.get("trainer") if isinstance(pids, dict) else None
    return pid if isinstance(pid, int) and Path(f"/proc/{pid}").exists() else started_pid


class _Published:
    """What the trainer says of itself in run.json, which is understood again only once its bytes changed.

    Neither its inode nor its time of change tells: the first is used again, the second may be coarse.
    """

    def __init__(self, run: RunDir) -> None:
        self._run = run
        self._seen: tuple[bytes, dict[str, Any]] | None = None

    def entry(self, key: str) -> object:
        """An entry of run.json as it stands; None when it is not there. Safe from several threads."""
        try:
            told, seen = self._run.manifest_path.read_bytes(), self._seen
            if seen is None or seen[0] != told:
                self._seen = seen = told, self._run.manifest()
        except (OSError, RunError):
            return None
        return seen[1].get(key)


def _check_command(command: Sequence[str]) -> None:
    if not command:
        raise UsageError("there is no command to record", remedy="write it after --")
    if shutil.which(command[0]) is None:
        raise UsageError(
            "there is no such command",
            where=command[0],
            expected="an executable file, or a name that is found on PATH",
        )


def _open_log(path: Path) -> IO[bytes]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")
    except OSError as error:
        raise RunError(f"the log cannot be written: {error}", where=str(path)) from None


def _printable_lines(lines: Sequence[str]) -> list[str]:
    """Lines from a child, safe for a terminal and for JSON."""
    return [printable(line)[:300] for line in lines]


def _describe_left(end: Exit) -> list[str]:
    """What has to be said of processes that did not end by themselves."""
    said = []
    if end.killed:
        said.append(f"{end.killed} process(es) were still there after the command had ended and were killed")
    if end.left:
        said.append(f"could not be killed: process {', '.join(map(str, end.left))}")
    return said


@contextlib.contextmanager
def _received_signals() -> Iterator[list[int]]:
    """Collect stop signals instead of dying of them. Outside the main thread the list stays empty."""
    received: list[int] = []
    previous = {}
    if threading.current_thread() is threading.main_thread():
        for number in forwarded:
            if signal.getsignal(number) is not signal.SIG_IGN:  # nohup means it
                previous[number] = signal.signal(number, lambda n, _: received.append(n))
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
