"""Windows are told in order, once, as soon as their steps are made; whoever waits is woken."""

from __future__ import annotations

import threading

import pytest
import torch

from dflash.batch import WindowInfo
from dflash.contract.errors import DFlashError
from dflash.contract.events import silent
from dflash.window_books import WindowBooks
from dflash.window_end import WindowEnd
from dflash.window_figures import WindowFigures


class EventMoment:
    """Reached when `set` is called."""

    def __init__(self, *, reached: bool = False) -> None:
        self._event = threading.Event()
        if reached:
            self.set()

    def set(self) -> None:
        self._event.set()

    def done(self) -> bool:
        return self._event.is_set()

    def wait(self) -> None:
        assert self._event.wait(30)

    def order_stream(self) -> None:
        """Nothing is enqueued here."""


def window(step: int) -> WindowInfo:
    return WindowInfo(
        step=step,
        epoch=0,
        batches=1,
        documents=1,
        tokens=8,
        supervised_tokens=8,
        processed_tokens=8,
        denominator=2.0,
    )


def end(step: int, moment: EventMoment, *, skipped: bool = False) -> WindowEnd:
    row = [step * 2.0, 0.0, 0.0, 8.0, 0.0, 1.0, 0.0, 4.0]  # blocks of two slots: 1 of 4 correct
    return WindowEnd(window(step), moment, torch.tensor([*row, 3.0, float(skipped)]), 0.1)


class Told:
    """Keeps what is told, and failures."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.figures: list[WindowFigures] = []
        self.failures: list[Exception] = []
        self.threads: set[str] = set()

    def tell(self, info: WindowInfo, figures: WindowFigures) -> None:
        self.steps.append(info.step)
        self.figures.append(figures)
        self.threads.add(threading.current_thread().name)

    def books(self) -> WindowBooks:
        return WindowBooks(self.tell, self.failures.append)


def test_a_step_that_is_made_is_told_at_once_and_without_a_thread() -> None:
    told = Told()
    books = told.books()
    books.add(end(3, EventMoment(reached=True)), silent)
    (figures,) = told.figures
    assert (figures.loss, figures.accuracy, figures.grad_norm) == (3.0, 0.25, 3.0)
    assert (figures.slot_accuracy, figures.lr, figures.states) == ((0.25,), 0.1, 8)
    assert told.threads == {threading.current_thread().name}
    assert books.close()


def test_windows_are_told_in_their_order_whichever_is_known_first() -> None:
    for _ in range(200):
        told, moments = Told(), [EventMoment() for _ in range(4)]
        books = told.books()
        for step, moment in enumerate(moments):
            books.add(end(step, moment), silent)
        for moment in reversed(moments):
            moment.set()
        books.add(end(4, EventMoment(reached=True)), silent)
        books.settle()
        assert told.steps == [0, 1, 2, 3, 4]
        assert books.close()


def test_settling_waits_for_steps_that_are_not_made() -> None:
    for _ in range(200):
        told, moment = Told(), EventMoment()
        books = told.books()
        books.add(end(0, moment), silent)
        threading.Timer(0.001, moment.set).start()
        books.settle()
        assert told.steps == [0]
        assert books.close()


def test_closing_tells_what_is_left_also_of_a_run_that_was_stopped() -> None:
    for _ in range(200):
        told, moments = Told(), [EventMoment(), EventMoment()]
        books = told.books()
        for step, moment in enumerate(moments):
            books.add(end(step, moment), silent)
        books.abort(KeyboardInterrupt())
        threading.Timer(0.001, lambda: [m.set() for m in moments]).start()  # noqa: B023 - runs in its round
        assert books.close()
        assert told.steps == [0, 1]


def test_an_abort_wakes_who_settles() -> None:
    books = Told().books()
    moment = EventMoment()
    books.add(end(0, moment), silent)
    threading.Timer(0.02, books.abort, [DFlashError("stopped")]).start()
    with pytest.raises(DFlashError, match="stopped"):
        books.settle()
    moment.set()
    assert books.close()


def test_a_step_that_failed_is_told_once_and_ends_the_telling() -> None:
    told, moment = Told(), EventMoment()
    books = told.books()
    books.add(end(0, moment, skipped=True), silent)
    books.add(end(1, moment), silent)
    moment.set()
    with pytest.raises(DFlashError, match="not finite"):
        books.settle()
    books.add(end(2, moment), silent)
    assert books.close()
    assert told.steps == []
    assert [failure.where for failure in told.failures if isinstance(failure, DFlashError)] == ["step 0"]


def test_a_failure_that_is_known_at_once_is_raised() -> None:
    told = Told()
    with pytest.raises(DFlashError, match="not finite"):
        told.books().add(end(0, EventMoment(reached=True), skipped=True), silent)
    assert told.failures == []
