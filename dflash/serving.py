"""A trainer that stays: it holds models and data, and carries out one run after another in place.

    python -m dflash serve --socket PATH

It connects to PATH, where somebody listens, and is told in JSON lines what to do:

    {"run": RUN_DIR, "config": TOML_FILE, "log": FILE or null, "worst_case": bool}    train; RUN_DIR exists
    {"stop": REASON}                                        end the run in progress after its window

It answers {"windows": [[t_ns, tokens], …]} while it trains (CLOCK_MONOTONIC, window ends), and at a run's end
{"ended": EXIT_CODE, "memory": {place: {"used_bytes", "limit_bytes"}}}, what it still holds then. Each run has
a Session, so it leaves all that one in a process of its own leaves. A run that failed after it had begun to
train takes the process with it: nobody knows what it left behind. Knows nothing of what is searched for.
"""

from __future__ import annotations

import os
import socket
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import torch

from dflash.batch import WindowInfo
from dflash.contract.cgroup import MemoryCgroup
from dflash.contract.config import TrainConfig, load_config
from dflash.contract.events import Probe, silent
from dflash.contract.json_socket import JsonSocket, Message, PeerGone
from dflash.contract.memory_plan import host
from dflash.contract.rundir import RunDir, write_text
from dflash.held_parts import HeldParts, release
from dflash.session import Session
from dflash.trainer import Trainer, prepare
from dflash.window_figures import WindowFigures


def serve(path: Path) -> int:
    """Carry out what is asked for until the other end hangs up. Returns the exit code of the process."""
    connected = socket.socket(socket.AF_UNIX)
    connected.connect(str(path))
    with JsonSocket(connected) as control, suppress(PeerGone):
        return _Server(control).attend()
    return 0


@dataclass(slots=True)
class _Server:
    """One run after another."""

    control: JsonSocket
    parts: HeldParts | None = None

    def attend(self) -> int:
        """Returns when a run has failed."""
        while True:
            request = self.control.receive()
            assert request is not None
            if "run" not in request:
                continue  # a word to stop what has ended meanwhile
            code, trained = self._carry_out(request)
            if self.parts is not None and self.parts.roles is not None:
                release(self.parts.devices)
            self.control.send({"ended": code, "memory": self._memory()})
            if code and trained:
                return code

    def _carry_out(self, request: Message) -> tuple[int, bool]:
        """Exit code of the run, and whether it came to training."""
        if request.get("log"):
            _write_to(Path(request["log"]))
        run, config = RunDir(Path(request["run"])), load_config(Path(request["config"]))
        write_text(run.config_path, config.to_toml())
        attendance = _Attendance(self.control)
        prepared = partial(self._prepare, attendance, worst_case=bool(request.get("worst_case")))
        session = Session(run, config, prepare_trainer=prepared, attend=attendance.attend)
        try:
            code, _ = session.carry_out()
        finally:
            session.interruption.remove()
        attendance.tell()
        return code, attendance.trains

    def _prepare(
        self,
        attendance: _Attendance,
        config: TrainConfig,
        *,
        run_path: Path,
        probe: Probe = silent,
        worst_case: bool,
    ) -> Trainer:
        if self.parts is None:
            self.parts = HeldParts(config, keep=True)
        trainer = prepare(config, run_path=run_path, probe=probe, parts=self.parts, worst_case=worst_case)
        trainer.window_done = attendance.window_done
        attendance.trains = True
        return trainer

    def _memory(self) -> dict[str, Any]:
        used = {host: {"used_bytes": psutil.Process().memory_info().rss, "limit_bytes": _host_limit()}}
        if self.parts is not None and self.parts.roles is not None and not self.parts.devices.emulated:
            for device in self.parts.devices.all:
                _, limit_bytes = torch.cuda.mem_get_info(device.torch_device)
                reserved_bytes = torch.cuda.memory_reserved(device.torch_device)
                used[device.name] = {"used_bytes": reserved_bytes, "limit_bytes": limit_bytes}
        return used


@dataclass(slots=True)
class _Attendance:
    """What passes between a run and who asked for it."""

    control: JsonSocket
    trains: bool = False
    _ends: deque[tuple[int, int]] = field(default_factory=deque)  # filled by other threads

    def window_done(self, window: WindowInfo, _figures: WindowFigures) -> None:
        """Remember the end of a window."""
        self._ends.append((time.monotonic_ns(), window.tokens))

    def attend(self, trainer: Trainer) -> None:
        """Tell of windows, and listen. When nobody is there any more, the run is of no use."""
        try:
            self.tell()
            message = self.control.receive(0.0)
        except PeerGone:
            trainer.state.stop_now("who asked for the run is gone")
            return
        if message is not None and "stop" in message:
            trainer.state.request_stop(str(message["stop"]))

    def tell(self) -> None:
        """Say which windows ended since the last time."""
        ends = [self._ends.popleft() for _ in range(len(self._ends))]
        if ends:
            self.control.send({"windows": ends})


def _write_to(log: Path) -> None:
    """From now on stdout and stderr are appended to that file."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
    for number in (1, 2):
        os.dup2(file, number)
    os.close(file)


def _host_limit() -> int:
    total = psutil.virtual_memory().total
    return min(total, MemoryCgroup.of_process().limit_bytes() or total)
