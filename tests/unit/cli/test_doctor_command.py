"""`dflash-profile doctor`: a real check-up of this machine, and what broken essentials come to."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from cli.doctor_command import describe_checks
from dflash.contract.errors import DFlashError, UsageError
from profiler.checkup import Check, groups
from profiler.child import Child
from profiler.samplers.base import Reading
from profiler.samplers.host import HostSampler

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(autouse=True)
def short_practice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cli.doctor_command.practice_s", 0.6)


@pytest.fixture
def seen_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """The practice command begins once the host has been looked at, or it may be over before that."""
    seen, look, begin = threading.Event(), HostSampler.sample, Child.release

    def sample(self: HostSampler) -> Iterator[Reading]:
        yield from look(self)
        seen.set()

    def release(self: Child) -> None:
        assert seen.wait(60)
        begin(self)

    monkeypatch.setattr(HostSampler, "sample", sample)
    monkeypatch.setattr(Child, "release", release)


def fake_torch(
    monkeypatch: pytest.MonkeyPatch, code: int = 0, told: str = '{"torch": "2", "gpus": []}'
) -> None:
    monkeypatch.setattr("cli.doctor_command.ask_trainer", lambda arguments, limit_s: (code, told))


@pytest.mark.usefixtures("seen_first")
def test_this_machine_is_checked_and_nothing_is_left_behind(call: Call, tmp_path: Path) -> None:
    code, out, err = call("dflash-profile", "doctor", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert document["broken"] is False
    checks = {(check["group"], check["name"]): check for check in document["checks"]}
    assert checks["install", "import names"]["status"] == "ok"
    assert checks["torch", "torch"]["status"] == "ok"
    assert checks["disk", "runs can be written"]["status"] == "ok"
    assert checks["host", "CPU time by thread"]["status"] == "ok"
    assert all(check["detail"] for check in checks.values())
    assert list(dict.fromkeys(check["group"] for check in document["checks"])) == list(groups)
    assert list(tmp_path.iterdir()) == []


def test_people_get_one_line_a_check(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch)
    code, out, _ = call("dflash-profile", "doctor")
    assert code == 0
    assert "runs can be written" in out
    assert "n/a: this torch is built without CUDA" in out
    assert "remedy: for GPUs, install a CUDA build of torch" in out


@pytest.mark.parametrize(("code", "told"), [(1, ""), (0, "nonsense"), (-11, "")])
def test_torch_that_cannot_be_imported_is_broken(
    call: Call, monkeypatch: pytest.MonkeyPatch, code: int, told: str
) -> None:
    fake_torch(monkeypatch, code, told)
    ended, out, _ = call("dflash-profile", "doctor", "--json")
    assert ended == 1
    assert json.loads(out)["broken"] is True


def test_torch_that_hangs_is_broken(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(arguments: Sequence[str], limit_s: float) -> tuple[int, str]:
        raise DFlashError(f"took longer than {limit_s:g} s")

    monkeypatch.setattr("cli.doctor_command.ask_trainer", hang)
    code, out, _ = call("dflash-profile", "doctor")
    assert code == 1
    assert "broken: took longer than 60 s" in out


def test_names_claimed_by_another_distribution_are_broken(
    call: Call, monkeypatch: pytest.MonkeyPatch
) -> None:
    def collide() -> None:
        raise UsageError("the import name 'dflash' is claimed", found="dflash", remedy="a fresh environment")

    fake_torch(monkeypatch)
    monkeypatch.setattr("cli.doctor_command.check_install", collide)
    code, out, _ = call("dflash-profile", "doctor")
    assert code == 1
    assert "broken: the import name 'dflash' is claimed (dflash)" in out
    assert "remedy: a fresh environment" in out


def test_a_practice_that_fails_is_broken(call: Call, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_torch(monkeypatch)
    monkeypatch.setattr("cli.doctor_command.practice_module", "profiler.no_such_module")
    code, out, _ = call("dflash-profile", "doctor")
    assert code == 1
    assert "broken: the practice command failed" in out


def test_remedies_stand_below_what_they_cure() -> None:
    checks = [
        Check(group="gpu", name="power", status="ok", detail="read"),
        Check(
            group="gil", name="holder", status="n/a", detail="py-spy is not installed", remedy="pip install"
        ),
    ]
    lines = describe_checks(checks).splitlines()
    assert lines[1].split() == ["gpu", "power", "ok"]
    assert lines[2].endswith("n/a: py-spy is not installed")
    assert lines[3].strip() == "remedy: pip install"
