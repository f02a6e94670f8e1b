"""A diagnosis in words: the verdict card, the findings with their evidence, the time of each thread.

Knows nothing of streams or runs: it is given a Diagnosis and returns text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from cli.layout import facts, plain, table
from reports import text

if TYPE_CHECKING:
    from profiler.finding import ClosingSum, Diagnosis, Finding
    from profiler.throughput import Throughput

verdict_words = {
    "supported": "supported",
    "rejected": "rejected",
    "not_enough_evidence": "not enough evidence",
}
parts_shown = 6  # of a thread's time; smaller ones are added up


def verdict_card(diagnosis: Diagnosis, more: Iterable[tuple[str, str]] = ()) -> str:
    """Verdict, why, next, and the throughput it is about; `more` labelled facts come last."""
    rows = [
        ("verdict", diagnosis.headline),
        ("why", diagnosis.why),
        *([("numbers", diagnosis.numbers)] if diagnosis.numbers else []),
        ("next", diagnosis.next_step),
        ("throughput", _throughput(diagnosis.throughput)),
    ]
    if diagnosis.emulated:
        rows.append(("emulated", "on logical devices: times say nothing of GPUs"))
    rows += [("left out", warning) for warning in diagnosis.warnings]
    return plain(facts([*rows, *more]))


def full_diagnosis(diagnosis: Diagnosis) -> str:
    """The card, every cause that was considered, and the closing sum of every thread."""
    blocks = [verdict_card(diagnosis)]
    if diagnosis.findings:
        blocks.append("CAUSES CONSIDERED\n" + "\n".join(map(_finding, diagnosis.findings)))
    if diagnosis.closing_sums:
        blocks.append("WHERE THE TIME WENT\n" + _closing_sums(diagnosis.closing_sums))
    return plain("\n\n".join(blocks))


def _throughput(measured: Throughput) -> str:
    rate = text.rate(measured.tokens_per_s, measured.reason)
    if measured.tokens_per_s is None:
        return rate
    windows = text.count_of(measured.windows_used, "window")
    interval = f"90 % interval {text.rate_range(measured.low, measured.high)}"
    return f"{rate}, {interval}, {windows} after {text.duration(measured.warmup_s)} of warm-up"


def _finding(finding: Finding) -> str:
    start, end = finding.range_s
    head = f"{verdict_words[finding.verdict]}: {finding.cause} (sure {finding.confidence:.2f})"
    rows = [
        ("from", f"{text.duration(start)} to {text.duration(end)}"),
        *((evidence.name, evidence.text) for evidence in finding.evidence),
        ("measured cost", text.share(finding.measured_cost_share, finding.measured_cost_reason)),
        ("predicted cost", _a_batch(finding)),
        ("predicted gain", text.share(finding.predicted_gain, finding.predicted_gain_reason)),
    ]
    if finding.remedy is not None and finding.verdict != "rejected":
        settings = " ".join(f"--set {path}={value}" for path, value in finding.remedy.knobs.items())
        rows += [("remedy", finding.remedy.text), *([("as options", settings)] if settings else [])]
        rows += [("pays when", finding.condition)] if finding.condition else []
    lines = facts(rows).splitlines()
    return "\n".join([head, f"  {finding.summary}", *(f"    {line}" for line in lines)])


def _a_batch(finding: Finding) -> str:
    cost = text.duration(finding.predicted_cost_s, finding.predicted_cost_reason)
    return cost if finding.predicted_cost_s is None else f"{cost} a batch"


def _closing_sums(sums: tuple[ClosingSum, ...]) -> str:
    rows = [
        (f"{closing.stage} {closing.index}", closing.device, text.duration(closing.range_s), _parts(closing))
        for closing in sums
    ]
    return table(("thread", "device", "time", "of which"), rows)


def _parts(closing: ClosingSum) -> str:
    ordered = sorted(closing.parts, key=lambda part: -part.seconds)
    shown = [f"{part.name or part.kind} {text.share(part.share)}" for part in ordered[:parts_shown]]
    rest = sum(part.share for part in ordered[parts_shown:])
    return ", ".join([*shown, *([f"the rest {text.share(rest)}"] if rest else [])])
