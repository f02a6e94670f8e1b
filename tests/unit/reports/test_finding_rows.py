from __future__ import annotations

import dataclasses
import tomllib

from dflash.contract.knobs import flatten
from profiler.finding import Evidence, Finding, Remedy
from reports.finding_rows import count_verdicts, say_settings, say_toml, show_finding

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


def test_a_supported_cause_has_both_costs_and_the_numbers_that_decided() -> None:
    row = show_finding(finding)
    assert (row.verdict, row.tone) == ("supported", "bad")
    assert row.predicted_cost == "n/a: no link was measured"
    assert row.measured_cost.replace("\u00a0", " ") == "24 % of the throughput"
    assert row.decided == "copies 25 %"
    assert dict(row.evidence)["link"] == "n/a: not measured"
    assert row.summary == finding.summary


def test_a_healthy_state_is_not_painted_as_a_fault() -> None:
    assert show_finding(dataclasses.replace(finding, is_sickness=False)).tone == "good"


def test_a_rejected_cause_says_by_what() -> None:
    rejected = dataclasses.replace(
        finding, verdict="rejected", summary="Rejected: the queue is full 3 % of the time."
    )
    row = show_finding(rejected)
    assert (row.summary, row.range) == ("", "")
    assert row.decided == "The queue is full 3 % of the time."


def test_a_reason_that_decided_is_not_said_twice() -> None:
    unknown = dataclasses.replace(
        finding, verdict="not_enough_evidence", summary="Not judged: swap traffic was not sampled.",
        measured_cost_share=None, measured_cost_reason="swap traffic was not sampled",
    )  # fmt: skip
    row = show_finding(unknown)
    assert (row.measured_cost, row.decided) == ("n/a", "Swap traffic was not sampled.")
    elsewhere = dataclasses.replace(unknown, measured_cost_reason="no links")
    assert show_finding(elsewhere).measured_cost == "n/a: no links"


def test_toml_to_apply_is_what_a_configuration_reads() -> None:
    knobs: dict[str, str | int | float] = {
        "transport.preset": 'pe"er\n',
        "transport.depth": 2,
        "pipeline.split": "3-1",
    }
    assert flatten(tomllib.loads(say_toml(knobs))) == knobs


def test_settings_survive_a_shell() -> None:
    assert say_settings({"data.path": "a b;rm"}) == "--set 'data.path=a b;rm'"


def test_verdicts_are_counted_in_words() -> None:
    doubtful = dataclasses.replace(finding, verdict="not_enough_evidence")
    assert count_verdicts((finding, doubtful, doubtful)).replace("\u00a0", " ") == (
        "3 causes considered: 1 supported and 2 without enough evidence."
    )
