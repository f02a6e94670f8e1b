"""Two runs side by side as rows of words: stages, figures, what else differs. For terminal and page alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from reports import text

if TYPE_CHECKING:
    from profiler.side_figures import Figure
    from profiler.stage_changes import StageChange

least_share: Final = 0.005  # of a stage's time in either run: smaller parts are in the JSON only


@dataclass(frozen=True, slots=True, kw_only=True)
class StageRow:
    """One part of a stage's time in both runs."""

    stage: str
    part: str
    a: str  # a batch
    b: str
    change: str  # as a share of the stage's time in A
    noise: str
    told: bool  # worth a second look: its own time, beyond noise, not tiny


def list_stages(changes: Sequence[StageChange]) -> tuple[StageRow, ...]:
    """The parts that are large enough to see."""
    return tuple(
        StageRow(
            stage=change.stage,
            part=change.part,
            a=text.duration(change.a_s_per_batch, "no batches"),
            b=text.duration(change.b_s_per_batch, "no batches"),
            change=signed_share(change.stage_share),
            noise="beyond noise" if change.beyond_noise else "within noise",
            told=change.is_told,
        )
        for change in visible(changes)
    )


def visible(changes: Sequence[StageChange]) -> tuple[StageChange, ...]:
    """Those that take a visible part of their stage's time in either run."""
    whole: dict[str, list[float]] = {}
    for change in changes:
        sums = whole.setdefault(change.stage, [0.0, 0.0])
        sums[0] += change.a_s_per_token
        sums[1] += change.b_s_per_token
    return tuple(
        change
        for change in changes
        if max(
            change.a_s_per_token / (whole[change.stage][0] or 1),
            change.b_s_per_token / (whole[change.stage][1] or 1),
        )
        >= least_share
    )


def list_figures(figures: Iterable[Figure]) -> list[tuple[str, str, str]]:
    """Name, A and B of every figure that one run knows at least."""
    return [
        (figure.name, _value(figure.a, figure), _value(figure.b, figure))
        for figure in figures
        if figure.a is not None or figure.b is not None
    ]


def _value(value: float | None, figure: Figure) -> str:
    if value is None:
        return text.missing(figure.reason)
    if figure.unit == "s":
        return text.duration(value)
    if figure.unit == "bytes":
        return text.data_size(value)
    return text.share(value) if figure.unit == "share" else f"{text.significant(value)} {figure.unit}"


def signed_share(share: float) -> str:
    """`+3.2 %`, `−12.0 %`."""
    percent = round(100 * share, 1)
    return f"{'−' if percent < 0 else '+'}{abs(percent):.1f}{text.nbsp}%"
