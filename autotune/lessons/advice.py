"""What to do next when no configuration can be recommended, from how the trials ended.

Sentences for people, the most common trouble first. Pure functions; knows nothing of rendering.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from autotune.telemetry import FailureKind, MemoryFigures
from autotune.trial import Trial, TrialState

host: Final = "host"
giga: Final = 1e9
# Searched or not, what lowers memory most without another machine, dearest in speed last.
smaller: Final = "a smaller pipeline.token_budget or data.max_length, drafter.checkpointing=layers"
kinds_told: Final = 2


def advise(trials: Sequence[Trial]) -> tuple[str, ...]:
    """What to try, for each of the commonest ways in which the trials failed."""
    over = [trial for trial in trials if trial.state.is_over]
    if not over:
        return ("No trial has ended yet: the same line goes on.",)
    failed = [trial for trial in over if trial.state is TrialState.failed]
    kinds = Counter(trial.failure for trial in failed if trial.failure is not None)
    told = [
        _advice.get(kind, _look)([trial for trial in failed if trial.failure is kind])
        for kind, _ in kinds.most_common(kinds_told)
    ]
    unhealthy = [trial for trial in over if trial.unhealthy is not None]
    return (*told, *([_distrust(unhealthy)] if unhealthy else []))


def _shrink(failed: Sequence[Trial]) -> str:
    """Out of memory: what the least of them took, against what there is."""
    known = [(trial, *place) for trial in failed if (place := _fullest(trial)) is not None]
    remedy = f"Try {smaller}, or GPUs with more memory."
    if not known:
        return f"Every configuration needs more memory than there is. {remedy}"
    trial, name, figures = min(known, key=lambda each: _need(each[2]))
    limit = f", which has {figures.limit_bytes / giga:.1f} GB" if figures.limit_bytes else ""
    need = (
        f"needs {figures.planned_bytes / giga:.1f} GB by plan"
        if figures.planned_bytes is not None
        else f"took {figures.peak_bytes / giga:.1f} GB before it failed"
    )
    return f"The smallest that ran out of memory, trial {trial.number}, {need} on {name}{limit}. {remedy}"


def _fullest(trial: Trial) -> tuple[str, MemoryFigures] | None:
    """The place that the trial filled most; GPUs before the host."""
    places: Mapping[str, MemoryFigures] = trial.memory
    cards = {name: figures for name, figures in places.items() if name != host} or places
    return max(cards.items(), key=lambda place: _need(place[1]), default=None)


def _need(figures: MemoryFigures) -> float:
    return figures.peak_bytes if figures.planned_bytes is None else figures.planned_bytes


def _lengthen(failed: Sequence[Trial]) -> str:
    return (
        f"Trials of {failed[-1].seconds:g} s show too few windows. Try longer ones (--seconds), or a smaller "
        "window.tokens in a study of its own."
    )


def _more_data(_failed: Sequence[Trial]) -> str:
    return "The data ends before a trial does: raise run.epochs, lower window.tokens, or give more data."


def _reset(failed: Sequence[Trial]) -> str:
    lost = f"A GPU was lost ({_first_line(failed[0])})"
    return f"{lost}: reset it (nvidia-smi -r) or reboot, then the same line goes on."


def _correct(failed: Sequence[Trial]) -> str:
    return f"The trainer refused what was asked: {_first_line(failed[0])}."


def _look(failed: Sequence[Trial]) -> str:
    first = failed[0]
    directory = first.run_path.removesuffix("/run")
    return (
        f"Trial {first.number} ended with: {_first_line(first)}. Its whole output is in {directory}/run/"
        f"trainer.log; it runs alone with: dflash-train run {directory}/config.toml."
    )


def _distrust(unhealthy: Sequence[Trial]) -> str:
    first = unhealthy[0]
    return (
        f"Trial {first.number} ran and did not train soundly ({first.unhealthy}): look at the losses of its "
        "run before anything is made faster."
    )


def _first_line(trial: Trial) -> str:
    return ((trial.reason or "no reason given").splitlines() or ["no reason given"])[0].rstrip(".")


_advice: Final[Mapping[FailureKind, Callable[[Sequence[Trial]], str]]] = {
    FailureKind.out_of_memory: _shrink,
    FailureKind.too_short: _lengthen,
    FailureKind.data_used_up: _more_data,
    FailureKind.lost_gpu: _reset,
    FailureKind.refused: _correct,
}
