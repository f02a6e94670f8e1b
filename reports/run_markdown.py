"""The diagnosis of a run as Markdown, to paste into an issue tracker: verdict, numbers, hypotheses, remedies.

What comes from a run is escaped (see markdown.py). Knows nothing of HTML pages.
"""

from __future__ import annotations

from collections.abc import Sequence

from profiler.examination import Examination
from profiler.finding import Diagnosis
from profiler.run import Run
from reports import text
from reports.finding_rows import count_verdicts, show_finding
from reports.markdown import escape, fenced, folded, table
from reports.provenance import list_facts, show_command
from reports.what_if import ChangeRow, list_changes


def describe_run(examined: Examination) -> str:
    """The whole text, ending with a line break."""
    run, diagnosis = examined.run, examined.diagnosis
    primary = diagnosis.primary
    changes = list_changes(examined.forecast, diagnosis)
    first = next((row for row in changes if primary is not None and row.cause == primary.cause), None)
    blocks = [
        f"## {escape(run.path.resolve().name)}: {escape(diagnosis.headline)}",
        f"**Why:** {escape(diagnosis.why)}",
        f"**Numbers:** {escape(diagnosis.numbers)}" if diagnosis.numbers else "",
        f"**Next:** {escape(diagnosis.next_step)}",
        fenced(first.toml, "toml") if first is not None and first.toml else "",
        _emulation(run.emulated),
        table(("figure", "value"), _numbers(diagnosis)),
        "### Hypotheses\n\n" + escape(count_verdicts(diagnosis.findings) or "No cause was considered."),
        _hypotheses(diagnosis),
        *(_what_if(changes) if changes else []),
        "".join(f"- left out: {escape(warning)}\n" for warning in diagnosis.warnings).rstrip(),
        _provenance(run),
    ]
    return "\n\n".join(block for block in blocks if block) + "\n"


def _emulation(emulated: bool | None) -> str:
    if emulated is None:
        return "*Emulated or not: n/a, the run does not say.*"
    return "*Emulated on logical devices: says nothing of GPU speed.*" if emulated else ""


def _numbers(diagnosis: Diagnosis) -> list[tuple[str, str]]:
    measured, capacities = diagnosis.throughput, diagnosis.capacities
    rate = text.rate(measured.tokens_per_s, measured.reason)
    if text.is_known(measured.low):
        windows = text.count_of(measured.windows_used, "window")
        rate += f" ({text.interval} {text.rate_range(measured.low, measured.high)}, {windows})"
    return [
        ("throughput", rate),
        ("pipeline efficiency", text.share(capacities.pipeline_efficiency, capacities.reason)),
        ("targets alone", text.rate(capacities.targets_alone, capacities.reason)),
        ("drafters alone", text.rate(capacities.drafters_alone, capacities.reason)),
        ("limit of the devices", text.rate(diagnosis.limit.tokens_per_s, diagnosis.limit.reason)),
    ]


def _hypotheses(diagnosis: Diagnosis) -> str:
    rows = [show_finding(finding) for finding in diagnosis.findings]
    cells = [(row.cause, row.predicted_cost, row.measured_cost, row.verdict, row.decided) for row in rows]
    return (
        table(("cause", "predicted cost", "measured cost", "verdict", "the number that decided"), cells)
        if cells
        else ""
    )


def _what_if(changes: Sequence[ChangeRow]) -> list[str]:
    rows = [
        (
            f"{row.reason}: {row.words}",
            row.gain + (f", {row.rate}" if row.rate else ""),
            row.settings or "no knob does it",
            row.condition or "–",
        )
        for row in changes
    ]
    return ["### What if", table(("change", "predicted gain", "options", "pays when"), rows)]


def _provenance(run: Run) -> str:
    rows = [("command", show_command(run)), *list_facts(run)]
    return folded("Provenance", table(("fact", "value"), rows))
