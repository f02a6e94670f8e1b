"""The page of a comparison: how much faster or slower, whether beyond noise, and what moved. One HTML file.

Everything shown comes from the Comparison; nothing is measured or judged here. Knows nothing of runs on disk.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from profiler.comparison import Comparison, Ratio
from profiler.stage_changes import StageChange, tell_change
from profiler.throughput import Throughput
from reports import style, text
from reports.change_chart import Move, draw_changes
from reports.charts import RateBar, draw_rates
from reports.comparison_rows import list_figures, list_stages, visible
from reports.page import render_page, write_page
from reports.parts import Badge, Tile, VerdictCard, emulated_badge

_roles: Final = {"work": "work", "copy": "copy", "unaccounted": "rest"}  # every other kind is a wait
_per_tokens: Final = 1000
_told: Final = 3  # changes named in the Why
_words: Final = {
    "faster": ("B is faster", "good"),
    "slower": ("B is slower", "bad"),
    "equal": ("equal within noise", ""),
    "unknown": ("not enough data", ""),
}


def write_comparison_report(comparison: Comparison, out: Path) -> Path:
    """Write the page of a comparison; its path. Raises RunError."""
    return write_page(out, render_comparison(comparison))


def render_comparison(comparison: Comparison) -> str:
    """The page of a comparison as HTML."""
    names = tuple(Path(path).resolve().name for path in (comparison.a, comparison.b))
    heading = f"{names[0]} → {names[1]}"
    rates = draw_rates([_bar("A", comparison.throughput_a), _bar("B", comparison.throughput_b)])
    moves = draw_changes([_move(change) for change in visible(comparison.stages)], "for 1,000 tokens")
    words, tone = _words[comparison.outcome]
    return render_page(
        "comparison.html.j2",
        title=f"{heading}: {words}",
        kind="Comparison of two training runs",
        heading=heading,
        badges=[Badge(words, tone), *emulated_badge(comparison.emulated)],
        card=_card(comparison),
        notices=comparison.warnings,
        tiles=_tiles(comparison),
        rates=rates,
        moves=moves,
        stages=list_stages(comparison.stages),
        stages_reason=text.missing(comparison.stages_reason or "no part of a stage takes a visible share"),
        figures=list_figures([*comparison.copies, *comparison.depths, *comparison.memory]),
        knobs=comparison.knobs,
        surroundings=comparison.surroundings,
        facts=[("A", comparison.a), ("B", comparison.b)],
        charts=[rates, *([moves] if comparison.stages else [])],
    )


def _card(comparison: Comparison) -> VerdictCard:
    told = [tell_change(change) for change in comparison.stages if change.is_told][:_told]
    moved = f"Beyond noise, the largest first: {'; '.join(told)}." if told else ""
    why = [_say_ratio(comparison.ratio, comparison.reason), moved]
    return VerdictCard(
        verdict=comparison.verdict,
        why=tuple(line for line in why if line),
        next=(_next_step(comparison),),
        bad=comparison.outcome == "slower",
    )


def _say_ratio(ratio: Ratio | None, reason: str | None) -> str:
    if ratio is None:
        return f"There is no ratio: {reason}."
    span = f"{ratio.mid:.3f} times as fast ({text.interval} {ratio.low:.3f} to {ratio.high:.3f})"
    if ratio.outcome == "equal":
        return (
            f"B trains {span}. 1 is within the interval: a difference of that size is noise within the runs."
        )
    return f"B trains {span}. 1 is outside of the interval: more than the noise within the runs explains."


def _next_step(comparison: Comparison) -> str:
    gate = comparison.gate
    if gate is not None:
        return f"The gate of {text.share(gate.limit)} ends with {gate.exit_code}: {gate.reason}."
    if comparison.outcome == "unknown":
        return "Record longer runs."
    return "One run of each cannot show what differs from start to start: record both once more to be sure."


def _tiles(comparison: Comparison) -> list[Tile]:
    ratio = comparison.ratio
    reason = comparison.reason
    return [
        _rate_tile("A", comparison.throughput_a),
        _rate_tile("B", comparison.throughput_b),
        Tile(
            "B over A",
            text.missing(reason) if ratio is None else f"{ratio.mid:.3f}",
            "" if ratio is None else f"{text.interval} {ratio.low:.3f} to {ratio.high:.3f}",
        ),
        Tile("knobs that differ", str(len(comparison.knobs))),
    ]


def _rate_tile(label: str, measured: Throughput) -> Tile:
    windows = text.count_of(measured.windows_used, "window")
    known = text.is_known(measured.low)
    span = f"{text.interval} {text.rate_range(measured.low, measured.high)}, {windows}" if known else windows
    return Tile(label, text.rate(measured.tokens_per_s, measured.reason), span)


def _bar(name: str, measured: Throughput) -> RateBar:
    return RateBar(
        name=name,
        tokens_per_s=measured.tokens_per_s,
        low=measured.low,
        high=measured.high,
        colour=style.accent if name == "B" else style.rest,
        reason=measured.reason,
    )


def _move(change: StageChange) -> Move:
    return Move(
        name=f"{change.stage}: {change.part}",
        role=_roles.get(change.kind, "wait"),
        seconds=(change.b_s_per_token - change.a_s_per_token) * _per_tokens,
        low=change.low * _per_tokens,
        high=change.high * _per_tokens,
        beyond_noise=change.beyond_noise,
    )
