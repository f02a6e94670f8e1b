"""Findings as rows of the table of hypotheses: costs, verdict, the number that decided; knobs as text.

Knows nothing of how causes are found or of how a table is drawn.
"""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from profiler.finding import Evidence, Finding
from reports import text

verdict_words: Final = {
    "supported": "supported",
    "rejected": "rejected",
    "not_enough_evidence": "not enough evidence",
}
_prefixes: Final = ("Rejected: ", "Not judged: ")  # the verdict stands in a column of its own
_deciding: Final = 2  # numbers beside the cost that a supported cause is told by


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingRow:
    """A finding as a row of the table of hypotheses."""

    cause: str
    summary: str  # of a supported one; of others the verdict says all
    range: str
    predicted_cost: str
    measured_cost: str
    verdict: str
    tone: str
    sure: str
    decided: str  # the number that decided
    evidence: tuple[tuple[str, str], ...]


def say_settings(knobs: Mapping[str, object]) -> str:
    """Knobs as `--set` options, quoted for a shell."""
    return " ".join(f"--set {shlex.quote(f'{path}={value}')}" for path, value in knobs.items())


def say_toml(knobs: Mapping[str, str | int | float]) -> str:
    """Knobs as the sections of a configuration file."""
    sections: dict[str, list[str]] = {}
    for path, value in knobs.items():
        section, _, leaf = path.rpartition(".")
        sections.setdefault(section, []).append(f"{leaf} = {json.dumps(value, ensure_ascii=True)}")
    return "\n\n".join("\n".join([f"[{section}]", *lines]) for section, lines in sections.items())


def count_verdicts(findings: Sequence[Finding]) -> str:
    """How many causes came to which verdict, in words."""
    counts: Counter[str] = Counter(finding.verdict for finding in findings)
    words = {**verdict_words, "not_enough_evidence": "without enough evidence"}
    said = [f"{counts[verdict]} {words[verdict]}" for verdict in words if counts[verdict]]
    return f"{text.count_of(len(findings), 'cause')} considered: {text.joined(said)}." if said else ""


def show_finding(finding: Finding) -> FindingRow:
    """The row of one finding."""
    tones = {"rejected": "off", "not_enough_evidence": ""}
    cost = text.duration(finding.predicted_cost_s, finding.predicted_cost_reason)
    start, end = finding.range_s
    return FindingRow(
        cause=finding.cause,
        summary=finding.summary if finding.supported else "",
        range=f"{text.duration(start)} to {text.duration(end)}" if finding.supported else "",
        predicted_cost=cost if finding.predicted_cost_s is None else f"{cost} a batch",
        measured_cost=_measured_cost(finding),
        verdict=verdict_words[finding.verdict],
        tone="bad" if finding.supported and finding.is_sickness else tones.get(finding.verdict, "good"),
        sure=f"sure {text.share(finding.confidence)}" if finding.confidence else "",
        decided=_decided(finding),
        evidence=tuple((e.name, _evidence(e)) for e in finding.evidence),
    )


def _measured_cost(finding: Finding) -> str:
    if finding.measured_cost_share is None:
        reason = finding.measured_cost_reason
        told = reason is not None and reason.lower() in finding.summary.lower()
        return text.missing(None if told else reason)
    return f"{text.share(finding.measured_cost_share)} of the throughput"


def _decided(finding: Finding) -> str:
    if finding.supported:
        told = [item for item in finding.evidence if item.value is not None]
        others = [item for item in told if item.value != finding.measured_cost_share][:_deciding]
        return "; ".join(f"{item.name} {item.text}" for item in others) or finding.summary
    for prefix in _prefixes:
        if finding.summary.startswith(prefix):
            said = finding.summary.removeprefix(prefix)
            return said[:1].upper() + said[1:]
    return finding.summary


def _evidence(evidence: Evidence) -> str:
    return evidence.text if evidence.value is not None else text.missing(evidence.reason)
