"""The barrier between windows."""

from __future__ import annotations

import random
import threading
import time

import pytest

from dflash.batch import WindowInfo
from dflash.contract.events import silent
from dflash.window_progress import WindowProgress


def window(step: int, batches: int) -> WindowInfo:
    return WindowInfo(
        step=step, epoch=0, batches=batches, documents=1, tokens=1,
        supervised_tokens=1, processed_tokens=1, denominator=1.0,
    )  # fmt: skip


def test_no_batch_trains_before_the_step_of_the_window_before_it() -> None:
    """Four drafters, batches taken in order: every step sees exactly its window's batches."""
    for round_ in range(200):
        rng = random.Random(round_)
        plan = [window(step, rng.randint(1, 5)) for step in range(4)]
        todo = [w for w in plan for _ in range(w.batches)]
        progress, lock = WindowProgress(), threading.Lock()
        trained: list[int] = []
        steps: list[tuple[int, int]] = []

        def drafter(
            todo: list[WindowInfo] = todo, progress: WindowProgress = progress,
            lock: threading.Lock = lock, trained: list[int] = trained, steps: list[tuple[int, int]] = steps,
            rng: random.Random = rng,
        ) -> None:  # fmt: skip
            while True:
                with lock:
                    if not todo:
                        return
                    own = todo.pop(0)
                    pause_s = 1e-4 * rng.random()
                time.sleep(pause_s)
                progress.wait_for(own, silent)
                with lock:
                    trained.append(own.step)
                if progress.batch_trained(own):
                    with lock:
                        steps.append((own.step, len(trained)))
                    progress.advance()

        threads = [threading.Thread(target=drafter) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert trained == sorted(trained)
        total = 0
        for (step, seen), w in zip(steps, plan, strict=True):
            total += w.batches
            assert (step, seen) == (w.step, total)
        assert progress.step == 4


def test_an_abort_wakes_who_waits_with_the_first_error() -> None:
    progress, caught = WindowProgress(first_step=3), []

    def wait() -> None:
        try:
            progress.wait_for(window(4, 1), silent)
        except OSError as error:
            caught.append(str(error))

    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.02)
    progress.abort(OSError("first"))
    progress.abort(OSError("second"))
    thread.join(5)
    assert caught == ["first"]
    with pytest.raises(OSError, match="first"):
        progress.wait_for(window(3, 1), silent)
