from __future__ import annotations

import dataclasses

from profiler.finding import Evidence, Finding, Remedy
from reports.finding_rows import count_verdicts, say_settings, show_finding

finding = Finding(
    cause="sync-d2h-on-critical-path",
    verdict="supported",
    confidence=0.9,
    summary="Targets copy on their own thread.",
    range_s=(2.0, 62.0),
    evidence=(
        Evidence("copies", 0.25, "share", "25 %"),
        Evidence("link", None, "GB/s", "n/a: not measured", "not measured"),
    ),
    remedy=Remedy("Use peer copies.", {"transport.preset": "peer"}),
    condition="where devices reach each other",
    is_sickness=True,
    measured_cost_share=0.24,
    measured_cost_reason=None,
    predicted_cost_s=None,
    predicted_cost_reason="no link was measured",
    predicted_gain=None,
    predicted_gain_reason="no forecast",
)


def test_a_supported_cause_shows_evidence_costs_and_remedy() -> None:
    row = show_finding(finding)
    assert (row.verdict, row.tone, row.open) == ("supported", "bad", True)
    numbers = dict(row.evidence)
    assert numbers["copies"] == "25 %"
    assert numbers["link"] == "n/a: not measured"
    assert numbers["predicted gain"] == "n/a: no forecast"
    assert row.settings == "--set transport.preset=peer"
    assert row.condition == "where devices reach each other"


def test_a_healthy_state_is_not_painted_as_a_fault() -> None:
    assert show_finding(dataclasses.replace(finding, is_sickness=False)).tone == "good"


def test_a_rejected_cause_offers_no_remedy() -> None:
    row = show_finding(dataclasses.replace(finding, verdict="rejected"))
    assert (row.remedy, row.settings, row.condition) == ("", "", "")
    assert row.open is False
    assert "predicted gain" not in dict(row.evidence)


def test_settings_survive_a_shell() -> None:
    assert say_settings({"data.path": "a b;rm"}) == "--set 'data.path=a b;rm'"


def test_verdicts_are_counted_in_words() -> None:
    doubtful = dataclasses.replace(finding, verdict="not_enough_evidence")
    assert count_verdicts((finding, doubtful, doubtful)).replace("\u00a0", " ") == (
        "3 causes considered: 1 supported and 2 without enough evidence."
    )
