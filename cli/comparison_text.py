"""A comparison of two runs in words. Knows nothing of streams: it is given a Comparison and returns text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from cli.layout import facts, plain, table
from reports import text
from reports.comparison_rows import StageRow, list_figures, list_stages

if TYPE_CHECKING:
    from profiler.comparability import Difference
    from profiler.comparison import Comparison
    from profiler.throughput import Throughput


def describe_comparison(comparison: Comparison) -> str:
    """The verdict, then the figures behind it."""
    blocks = [_card(comparison)]
    if comparison.stages:
        blocks.append("STAGES\n" + _stages(list_stages(comparison.stages)))
    figures = list_figures([*comparison.copies, *comparison.depths, *comparison.memory])
    if figures:
        blocks.append("COPIES, QUEUES, MEMORY\n" + table(("figure", "A", "B"), figures))
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


def _stages(rows: Sequence[StageRow]) -> str:
    cells = [(row.stage, row.part, row.a, row.b, row.change, row.noise) for row in rows]
    return table(("stage", "part", "A, a batch", "B, a batch", "of stage", ""), cells)


def _differences(found: Sequence[Difference]) -> str:
    return table(("name", "A", "B"), [(item.name, item.a, item.b) for item in found])
