"""A comparison of two runs in words. Knows nothing of streams: it is given a Comparison and returns text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cli.layout import facts, plain, table
from reports import text

if TYPE_CHECKING:
    from profiler.comparability import Difference
    from profiler.comparison import Comparison
    from profiler.side_figures import Figure
    from profiler.stage_changes import StageChange
    from profiler.throughput import Throughput

least_share = 0.005  # of a stage's time in either run: smaller parts are in the JSON only


def describe_comparison(comparison: Comparison) -> str:
    """The verdict, then the figures behind it."""
    blocks = [_card(comparison)]
    if comparison.stages:
        blocks.append("STAGES\n" + _stages(comparison.stages))
    figures = [*comparison.copies, *comparison.depths, *comparison.memory]
    if any(figure.a is not None or figure.b is not None for figure in figures):
        blocks.append("COPIES, QUEUES, MEMORY\n" + _figures(figures))
    for title, found in (("KNOBS", comparison.knobs), ("SURROUNDINGS", comparison.surroundings)):
        if found:
            blocks.append(f"{title} THAT DIFFER\n" + _differences(found))
    return plain("\n\n".join(blocks))


def _card(comparison: Comparison) -> str:
    ratio = comparison.ratio
    times = (
        text.missing(comparison.reason)
        if ratio is None
        else f"{ratio.mid:.3f} (90 % interval {ratio.low:.3f} to {ratio.high:.3f})"
    )
    rows = [
        ("verdict", comparison.verdict),
        ("A", f"{comparison.a}: {_rate(comparison.throughput_a)}"),
        ("B", f"{comparison.b}: {_rate(comparison.throughput_b)}"),
        ("B over A", times),
    ]
    if comparison.gate is not None:
        rows.append(("gate", f"exit {comparison.gate.exit_code}: {comparison.gate.reason}"))
    if comparison.stages_reason is not None:
        rows.append(("stages", text.missing(comparison.stages_reason)))
    if comparison.emulated:
        rows.append(("emulated", "both on logical devices: this says nothing of the speed of GPUs"))
    return facts([*rows, *(("left out", warning) for warning in comparison.warnings)])


def _rate(measured: Throughput) -> str:
    rate = text.rate(measured.tokens_per_s, measured.reason)
    return (
        rate
        if measured.tokens_per_s is None
        else f"{rate} over {text.count_of(measured.windows_used, 'window')}"
    )


def _stages(changes: Sequence[StageChange]) -> str:
    totals: dict[str, list[float]] = {}
    for change in changes:
        total = totals.setdefault(change.stage, [0.0, 0.0])
        total[0] += change.a_s_per_token
        total[1] += change.b_s_per_token
    rows = [
        (
            change.stage,
            change.part,
            text.duration(change.a_s_per_batch, "no batches"),
            text.duration(change.b_s_per_batch, "no batches"),
            f"{100 * change.stage_share:+.1f} %",
            "beyond noise" if change.beyond_noise else "within noise",
        )
        for change in changes
        if max(
            change.a_s_per_token / (totals[change.stage][0] or 1),
            change.b_s_per_token / (totals[change.stage][1] or 1),
        )
        >= least_share
    ]
    return table(("stage", "part", "A, a batch", "B, a batch", "of stage", ""), rows)


def _figures(figures: Sequence[Figure]) -> str:
    rows = [
        (figure.name, _value(figure.a, figure), _value(figure.b, figure))
        for figure in figures
        if figure.a is not None or figure.b is not None
    ]
    return table(("figure", "A", "B"), rows)


def _value(value: float | None, figure: Figure) -> str:
    if value is None:
        return text.missing(figure.reason)
    if figure.unit == "s":
        return text.duration(value)
    if figure.unit == "bytes":
        return text.data_size(value)
    return text.share(value) if figure.unit == "share" else f"{text.significant(value)} {figure.unit}"


def _differences(found: Sequence[Difference]) -> str:
    return table(("name", "A", "B"), [(item.name, item.a, item.b) for item in found])
