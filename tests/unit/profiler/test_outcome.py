"""What the end of a command is called, and which signals lead to it."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from profiler.child import Exit
from profiler.outcome import Ending, Verdict, give_up_s, judge, second_grace_s, time_limit_code


def verdict_on(code: int, ending: Ending | None = None, **facts: Any) -> Verdict:
    said: dict[str, Any] = {"said_status": "running", "said_reason": None, "took_over": True, "oom_kills": 0}
    return judge(Exit(code=code), ending or Ending(10), **{**said, **facts})


def test_first_request_is_passed_on_and_grace_ends_in_sigkill() -> None:
    ending = Ending(grace_s=10)
    assert ending.due(0) == []
    ending.request("stopped by SIGINT", signal.SIGINT, now_s=100)
    assert ending.due(100) == [signal.SIGINT]
    assert ending.due(109.9) == []
    assert ending.due(110) == [signal.SIGKILL]
    assert ending.due(111) == []
    assert (ending.cause, ending.exit_code, ending.killed) == ("stopped by SIGINT", 130, True)


def test_second_request_shortens_the_grace_and_keeps_the_first_cause() -> None:
    ending = Ending(grace_s=10)
    ending.request("stopped by SIGINT", signal.SIGINT, now_s=100)
    ending.request("stopped by SIGTERM", signal.SIGTERM, now_s=101)
    assert ending.due(101) == [signal.SIGINT, signal.SIGTERM]
    assert ending.due(101 + second_grace_s) == [signal.SIGKILL]
    assert ending.cause == "stopped by SIGINT"


def test_a_second_request_never_lengthens_the_grace() -> None:
    ending = Ending(grace_s=1)
    ending.request("a", signal.SIGTERM, now_s=100)
    ending.request("b", signal.SIGTERM, now_s=100.9)
    assert signal.SIGKILL in ending.due(101)


def test_a_process_stuck_after_sigkill_is_given_up() -> None:
    ending = Ending(grace_s=1)
    ending.request("a", signal.SIGTERM, now_s=0)
    assert not ending.is_hopeless(1e9)
    ending.due(1)
    assert not ending.is_hopeless(0.9 + give_up_s)
    assert ending.is_hopeless(1 + give_up_s)


def test_trainer_that_said_it_finished_has_finished() -> None:
    assert verdict_on(0, said_status="finished") == Verdict(status="finished", reason=None, exit_code=0)


def test_finished_and_then_crashed_is_failed() -> None:
    verdict = verdict_on(-11, said_status="finished")
    assert verdict == Verdict(status="failed", reason="killed by SIGSEGV", exit_code=139)


@pytest.mark.parametrize(("code", "exit_code"), [(1, 1), (0, 1), (-6, 134)])
def test_trainers_own_failure_keeps_its_reason(code: int, exit_code: int) -> None:
    verdict = verdict_on(code, said_status="failed", said_reason="out of memory on cuda:0")
    assert verdict == Verdict(status="failed", reason="out of memory on cuda:0", exit_code=exit_code)


def test_trainers_own_stop_may_exit_zero() -> None:
    verdict = verdict_on(0, said_status="stopped", said_reason="max_seconds")
    assert verdict == Verdict(status="stopped", reason="max_seconds", exit_code=0)


def test_trainer_that_vanished_has_failed_even_with_exit_code_zero() -> None:
    verdict = verdict_on(0)
    assert (verdict.status, verdict.exit_code) == ("failed", 1)
    assert verdict.reason == "ended with exit code 0 without having said that it finished"


def test_foreign_command_that_exits_zero_has_finished() -> None:
    assert verdict_on(0, took_over=False) == Verdict(status="finished", reason=None, exit_code=0)


def test_last_lines_of_the_log_are_quoted() -> None:
    verdict = verdict_on(3, last_lines=["loading", "KeyError: 'x'"])
    assert verdict.reason == "ended with exit code 3; it last said: loading | KeyError: 'x'"


def test_memory_is_blamed_only_when_the_kernel_counted_it() -> None:
    assert verdict_on(-9).reason == "killed by SIGKILL"
    assert "out of memory" in str(verdict_on(-9, oom_kills=1).reason)
    assert "out of memory" not in str(verdict_on(-11, oom_kills=1).reason)


def ended_by(number: int, *, after_s: float = 0, code: int | None = None) -> Ending:
    ending = Ending(grace_s=10)
    ending.request("the cause", number, 0, code)
    ending.due(after_s)
    return ending


@pytest.mark.parametrize("said", ["running", "finished"])
def test_stopped_command_is_stopped_whatever_its_exit_code(said: str) -> None:
    verdict = verdict_on(-2, ended_by(signal.SIGINT), said_status=said)
    assert verdict == Verdict(status="stopped", reason="the cause", exit_code=130)


def test_stopped_trainers_own_words_are_kept() -> None:
    verdict = verdict_on(
        143, ended_by(signal.SIGTERM), said_status="stopped", said_reason="SIGTERM at step 5"
    )
    assert verdict == Verdict(status="stopped", reason="SIGTERM at step 5", exit_code=143)


def test_the_grace_that_ran_out_is_told() -> None:
    verdict = verdict_on(-9, ended_by(signal.SIGTERM, after_s=10))
    assert verdict.reason == "the cause; killed when the grace was over"


def test_time_limit_is_a_failure_whatever_the_trainer_said() -> None:
    ending = ended_by(signal.SIGTERM, code=time_limit_code)
    verdict = verdict_on(143, ending, said_status="stopped", said_reason="SIGTERM at step 5")
    assert verdict == Verdict(status="failed", reason="the cause", exit_code=124)


def test_a_trainer_that_finished_just_before_the_limit_has_finished() -> None:
    ending = ended_by(signal.SIGTERM, code=time_limit_code)
    assert verdict_on(0, ending, said_status="finished").status == "finished"
