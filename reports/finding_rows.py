"""Findings as the rows of a table: verdict, evidence with units, remedy to copy, condition.

Knows nothing of how causes are found or of how a table is drawn.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from profiler.finding import Evidence, Finding
from reports import text

_verdicts: Final = {
    "supported": "supported",
    "rejected": "rejected",
    "not_enough_evidence": "not enough evidence",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow:
    """A finding as its table row shows it."""

    verdict: str
    tone: str
    open: bool  # its evidence is shown at once
    cause: str
    summary: str
    range: str
    evidence: tuple[tuple[str, str], ...]
    remedy: str
    settings: str
    condition: str


def say_settings(knobs: Mapping[str, object]) -> str:
    """Knobs as `--set` options, quoted for a shell."""
    return " ".join(f"--set {shlex.quote(f'{path}={value}')}" for path, value in knobs.items())


def count_verdicts(findings: tuple[Finding, ...]) -> str:
    """How many causes came to which verdict, in words."""
    counts: Counter[str] = Counter(finding.verdict for finding in findings)
    words = {**_verdicts, "not_enough_evidence": "without enough evidence"}
    said = [f"{counts[verdict]} {words[verdict]}" for verdict in words if counts[verdict]]
    return f"{text.count_of(len(findings), 'cause')} considered: {text.joined(said)}." if said else ""


def show_finding(finding: Finding) -> FindingRow:
    """The row of one finding. Remedies of rejected causes are not offered."""
    tones = {"rejected": "off", "not_enough_evidence": ""}
    remedy = finding.remedy
    shown = finding.supported or finding.verdict == "not_enough_evidence"
    start, end = finding.range_s
    return FindingRow(
        verdict=_verdicts[finding.verdict],
        tone="bad" if finding.supported and finding.is_sickness else tones.get(finding.verdict, "good"),
        open=finding.supported,
        cause=finding.cause,
        summary=finding.summary,
        range=f"{text.duration(start)} to {text.duration(end)}" if finding.supported else "",
        evidence=(*((e.name, _evidence(e)) for e in finding.evidence), *_costs(finding)),
        remedy=remedy.text if remedy is not None and shown else "",
        settings=say_settings(remedy.knobs) if remedy is not None and shown else "",
        condition=(finding.condition or "") if shown else "",
    )


def _evidence(evidence: Evidence) -> str:
    return evidence.text if evidence.value is not None else text.missing(evidence.reason)


def _costs(finding: Finding) -> list[tuple[str, str]]:
    if not finding.supported:
        return []
    return [
        (
            "measured cost, share of the throughput",
            text.share(finding.measured_cost_share, finding.measured_cost_reason),
        ),
        (
            "predicted cost a batch",
            text.duration(finding.predicted_cost_s, finding.predicted_cost_reason),
        ),
        ("predicted gain", text.share(finding.predicted_gain, finding.predicted_gain_reason)),
    ]
