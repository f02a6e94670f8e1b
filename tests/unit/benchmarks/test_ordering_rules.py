"""The table of ordering rules follows the code: each rule stands where it says, and its tests exist."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import pytest

from benchmarks import ordering_mutations
from benchmarks.ordering_mutations import Outcome, copy_tree, run_tests
from benchmarks.ordering_rules import Rule, TextNotFoundError, cpu_rules, gpu_rules

every_rule = pytest.mark.parametrize("rule", [*cpu_rules, *gpu_rules], ids=lambda rule: rule.name)


@every_rule
def test_a_rule_stands_in_the_code_and_can_be_removed(rule: Rule, repository: Path) -> None:
    broken = rule.check_in(repository).replace(rule.text, rule.broken)
    assert broken != (repository / rule.file).read_text()
    compile(broken, rule.file, "exec")


@every_rule
def test_the_tests_of_a_rule_exist(rule: Rule, repository: Path) -> None:
    assert rule.tests
    for test in rule.tests:
        file, _, function = test.partition("::")
        assert f"def {function.partition('[')[0]}" in (repository / file).read_text()


def test_a_text_that_is_not_there_is_refused(repository: Path) -> None:
    rule = Rule("no such rule", "dflash/channel.py", "no such text", "", ("none",))
    with pytest.raises(TextNotFoundError, match="stands 0 times"):
        rule.check_in(repository)


@pytest.mark.parametrize(
    ("body", "verdict", "limit_s"),
    [
        ("from dflash.channel import Channel; assert Channel('q', 1).capacity == 1", "green", 60),
        ("from dflash.channel import Channel; assert Channel('q', 1).capacity == 2", "red", 60),
        ("no_such_name", "broken", 60),
        ("import time; time.sleep(60)", "red", 3),
    ],
)
def test_a_verdict_is_what_the_tests_on_the_copy_came_to(
    tmp_path: Path, body: str, verdict: str, limit_s: float
) -> None:
    copy_tree(tmp_path)
    test = tmp_path / "test_once.py"
    test.write_text(f"def test_it():\n    {body}\n")
    assert run_tests(tmp_path, [str(test)], limit_s).verdict == verdict


def test_rows_are_written_as_they_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, rules = tmp_path / "ordering.json", cpu_rules[:2]
    seen = []

    def try_rule(rule: Rule | None, tests: object, limit_s: float) -> Outcome:
        if rule is rules[1]:
            while not out.exists() or not json.loads(out.read_text())["rules"]:
                time.sleep(0.01)
            seen.append(json.loads(out.read_text()))
        return Outcome("green" if rule is None else "red", 1.0, "")

    monkeypatch.setattr(ordering_mutations, "try_rule", try_rule)
    monkeypatch.setattr(ordering_mutations, "cpu_rules", rules)
    monkeypatch.setattr(sys, "argv", ["ordering_mutations.py", "--out", str(out)])
    assert ordering_mutations.main() == 0
    assert [row["rule"] for row in seen[0]["rules"]] == [rules[0].name]
    assert not seen[0]["every_rule_is_held"]
    assert json.loads(out.read_text())["every_rule_is_held"]


def test_a_name_of_no_rule_tries_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["ordering_mutations.py", "--only", "no such rule"])
    assert ordering_mutations.main() == 2
