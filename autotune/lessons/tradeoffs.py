"""Speed against memory against energy, of every configuration that may be compared.

A configuration is best at something where no other is at least as good in all that is known of every one and
better in some of it. What some do not show is compared for none, and the reason is said. Knows nothing of how
configurations were chosen.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Final

from autotune.comparison import Interval
from autotune.history import group_runs
from autotune.recommendation import Standing
from autotune.telemetry import MemoryFigures
from autotune.trial import Trial

host: Final = "host"


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeOff:
    """A configuration's place among the others."""

    trial: int  # its first
    tokens_per_s: Interval
    place: str | None  # the fullest: a GPU, or the host where there is none
    peak_bytes: float | None  # there, the most over its runs
    peak_share: float | None  # of what there is
    energy_j_per_token: float | None  # mean over its runs
    is_best: bool  # on the Pareto front


@dataclass(frozen=True, slots=True, kw_only=True)
class TradeOffs:
    """All of them, fastest first, and what could not be compared."""

    configurations: tuple[TradeOff, ...]
    memory_reason: str | None = None  # why memory is not compared
    energy_reason: str | None = None


def weigh(standings: Sequence[Standing], trials: Sequence[Trial], *, emulated: bool | None) -> TradeOffs:
    """The trade-offs of `standings`, from all their runs."""
    runs = group_runs(trials)
    rows = [_measure(standing, runs[standing.trial.number]) for standing in standings]
    with_memory = bool(rows) and all(row.peak_bytes is not None for row in rows)
    by_share = all(row.peak_share is not None for row in rows)
    with_energy = bool(rows) and all(row.energy_j_per_token is not None for row in rows)

    def costs(row: TradeOff) -> tuple[float, ...]:
        told = [-row.tokens_per_s.mid]
        told += [(row.peak_share if by_share else row.peak_bytes) or 0.0] if with_memory else []
        told += [row.energy_j_per_token or 0.0] if with_energy else []
        return tuple(told)

    front = [not any(_dominates(costs(other), costs(row)) for other in rows) for row in rows]
    return TradeOffs(
        configurations=tuple(replace(row, is_best=best) for row, best in zip(rows, front, strict=True)),
        memory_reason=None if with_memory else _why_none("memory", [row.peak_bytes for row in rows]),
        energy_reason=None if with_energy else _why_no_energy(rows, emulated),
    )


def _measure(standing: Standing, runs: Sequence[Trial]) -> TradeOff:
    measured = [run.measurement for run in runs if run.measurement is not None]
    place, figures = _fullest([each.memory for each in measured])
    energy = [each.energy_j_per_token for each in measured if each.energy_j_per_token is not None]
    return TradeOff(
        trial=standing.trial.number,
        tokens_per_s=standing.tokens_per_s,
        place=place,
        peak_bytes=figures.peak_bytes if figures else None,
        peak_share=_share(figures) if figures else None,
        energy_j_per_token=fmean(energy) if energy else None,
        is_best=False,
    )


def _fullest(readings: Sequence[Mapping[str, MemoryFigures]]) -> tuple[str | None, MemoryFigures | None]:
    """The place nearest to its limit, GPUs before the host, over several runs."""
    every = [(place, figures) for each in readings for place, figures in each.items()]
    cards = [pair for pair in every if pair[0] != host] or every
    known = all(_share(figures) is not None for _, figures in cards)
    return max(
        cards,
        key=lambda pair: (_share(pair[1]) or 0.0) if known else pair[1].peak_bytes,
        default=(None, None),
    )


def _share(figures: MemoryFigures) -> float | None:
    return figures.peak_bytes / figures.limit_bytes if figures.limit_bytes else None


def _dominates(ours: tuple[float, ...], theirs: tuple[float, ...]) -> bool:
    return ours != theirs and all(a <= b for a, b in zip(ours, theirs, strict=True))


def _why_none(what: str, figures: Sequence[float | None]) -> str:
    missing = sum(figure is None for figure in figures)
    if not figures:
        return "no trial may be compared"
    if missing == len(figures):
        return f"no trial shows its {what}"
    return f"{missing} of {len(figures)} configurations do not show their {what}"


def _why_no_energy(rows: Sequence[TradeOff], emulated: bool | None) -> str:
    figures = [row.energy_j_per_token for row in rows]
    if rows and emulated and all(figure is None for figure in figures):
        return "logical devices have no power readings"
    return _why_none("energy", figures)
