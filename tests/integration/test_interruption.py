"""SIGINT and SIGTERM at any stage of a run: a readable run, a whole checkpoint, the right exit code, soon."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from dflash.checkpoints.reading import find_checkpoint
from dflash.contract.config import load_config
from profiler.run import Run
from tests.forked_commands import ForkedCommand, loading_stands_still
from tests.small_training import on_logical_devices

pytestmark = pytest.mark.slow

small = (
    *on_logical_devices,
    "transport=peer",
    "run.max_steps=1000",  # more than any test waits for
    "run.checkpoint_every=0",
    "console_every_s=0.1",
)


@contextmanager
def started(folder: Path, *changes: str, before: Callable[[], None] | None = None) -> Iterator[ForkedCommand]:
    (folder / "run.toml").write_text(load_config(None, (*small, *changes)).to_toml())
    with ForkedCommand(folder, ["run", "run.toml", "--run-dir", "run", "--json"], before) as process:
        yield process


def wait_for_steps(process: ForkedCommand) -> None:
    process.wait_for(lambda: re.search(r"step \d+/", process.err) is not None)


def end(process: ForkedCommand) -> tuple[int, dict[str, object]]:
    """Exit code and closing document; the run must be readable and not running."""
    code = process.end(60)
    document = json.loads(process.out)
    run = Run.open(process.folder / "run")
    assert run.manifest["status"] == document["status"]
    assert run.torn == ()
    return code, document


def test_one_signal_ends_after_the_window_with_a_checkpoint(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        wait_for_steps(process)
        process.signal(signal.SIGTERM)  # test_commands.py sends SIGINT
        returned, document = end(process)
    assert (returned, document["status"], document["reason"]) == (143, "stopped", "SIGTERM")
    books = document["books"]
    assert isinstance(books, dict)
    assert books["batches_made"] == books["batches_trained"] + books["batches_dropped"]
    saved = [path.name for path in (tmp_path / "run/checkpoints").iterdir()]
    assert saved == [f"step-{books['steps_done']}"]
    manifest = find_checkpoint(str(tmp_path / "run"), older=False).manifest
    assert manifest.position.step == manifest.optimizer_updates == books["steps_done"]
    assert f"stopped at step {books['steps_done']} (SIGTERM)" in process.err


def test_two_signals_end_it_too_and_leave_nothing_half(tmp_path: Path) -> None:
    with started(tmp_path, "transport=host", "devices.pageable_gigabytes_per_s=0.0005") as process:
        wait_for_steps(process)
        process.signal(signal.SIGINT)
        time.sleep(0.5)
        with suppress(ProcessLookupError):  # the window was at its end: one signal was enough
            process.signal(signal.SIGINT)
        returned, document = end(process)
    assert (returned, document["status"]) == (130, "stopped")
    books = document["books"]
    assert isinstance(books, dict)
    (saved,) = (tmp_path / "run/checkpoints").iterdir()
    assert saved.name == f"step-{books['steps_done']}", (
        "of the last step made: no work is lost but the window's"
    )
    assert find_checkpoint(str(saved)).path == saved


def test_a_signal_while_loading_is_no_traceback(tmp_path: Path) -> None:
    with started(tmp_path, before=loading_stands_still) as process:
        process.wait_for((tmp_path / "loading").exists)
        process.signal(signal.SIGINT)
        returned, document = end(process)
    assert (returned, document["status"], document["reason"]) == (130, "stopped", "SIGINT")
    assert "Traceback" not in process.err
    assert "before the first step" in process.err
