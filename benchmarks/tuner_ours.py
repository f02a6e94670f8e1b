"""Our own searches in the contest: the default one and the same without a part; and how right its model is.

Knows nothing of scores.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

import autotune.guided
from autotune.guided.model import Frame, Model, Parts
from autotune.guided.searcher import GuidedSearcher
from autotune.searcher import Searcher
from autotune.space import Space
from autotune.trial import Trial
from benchmarks.tuner_suite import Problem

believed: Final = 0.5  # the chance from which on a configuration is believed to fit


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A search of ours. `paired`: the runner interleaves two configurations where it is asked to."""

    make: Callable[[], Searcher]
    paired: bool = True
    parts: Parts | None = None  # of its model; None: it has none
    told: str  # what it is, in a few words


def guided(told: str, *, paired: bool = True, **parts: bool) -> Entry:
    """The default search with some of its parts."""
    chosen = Parts(**parts)
    return Entry(make=lambda: GuidedSearcher(chosen), paired=paired, parts=chosen, told=told)


entries: Final[dict[str, Entry]] = {
    "ours": guided("the default search; interleaved comparisons, 1 % noise"),
    "ours-unpaired": guided(
        "on a machine that cannot interleave: all comparisons at full noise", paired=False
    ),
    "ours-no-physics": guided("without the forecast", physics=False),
    "ours-no-memory": guided("without the memory model", memory=False),
    "ours-no-pairing": guided("that does not ask for interleaved comparisons", pairing=False),
    "ours-no-certificate": guided("that stops without the winner's neighbours", certificate=False),
}


def _read_version() -> int:
    sources = sorted(Path(autotune.guided.__file__).parent.glob("*.py"))
    return zlib.crc32(b"".join(source.read_bytes() for source in sources))


guided_version: Final = _read_version()  # as imported: the sources may be edited while a contest runs


def version_of(tuner: str) -> int:
    """Changes when the search behind a name does, so that rows of an earlier one do not count."""
    return guided_version if tuner in entries and entries[tuner].parts is not None else 0


def check_model(problem: Problem, space: Space, trials: Sequence[Trial], parts: Parts) -> dict[str, Any]:
    """How wrong its model is: of rates after the first two runs that went well, of memory after all.

    Shares are of all configurations: `missed_memory` of those that never fit and are believed to,
    `pruned_memory` of those that always fit and are not.
    """
    frame = Frame.of(space)
    found: dict[str, Any] = {}
    finished = [number for number, trial in enumerate(trials, 1) if trial.failure is None]
    if len(finished) >= 2:
        forecast = Model(frame, trials[: finished[1]], parts).rates.mean
        errors = np.abs(np.expm1(forecast - np.log(problem.rates)))[~problem.can_fail]
        found["two_run_error"] = round(float(np.median(errors)), 4)
    fits = Model(frame, trials, parts).fits >= believed
    found["missed_memory"] = round(float((fits & (problem.fullness > 1)).mean()), 5)
    found["pruned_memory"] = round(float((~fits & ~problem.can_fail).mean()), 5)
    return found
