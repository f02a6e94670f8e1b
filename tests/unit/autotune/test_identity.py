"""When a study may be gone on with, and what is said when it may not."""

import json

import pytest

from autotune.default_space import default_space
from autotune.identity import fingerprint, identify, read_identity, settle_identity
from autotune.machine import Machine
from dflash.contract.errors import RunError, UsageError


@pytest.fixture
def settled(tmp_path, machine, base_of):
    """Settle an identity of the default space with changes; the first call makes the study."""

    def settle(*assignments, machine=machine, seconds=12.0):
        space = default_space(base_of(*assignments), machine)
        return settle_identity(tmp_path, identify(space, machine, seconds))

    settle()
    return settle


def test_the_same_line_matches(settled):
    assert settled() == settled()


@pytest.mark.parametrize(
    ("assignments", "differs"),
    [
        (["target.model=random:qwen3-8b"], "target.model: random:tiny, now random:qwen3-8b"),
        (["data.max_length=128"], "data.max_length: 256, now 128"),
        (["devices.link_gigabytes_per_s=9"], "now 9.0"),
        (["pipeline.token_budget=1000"], "config.pipeline.token_budget: 1024, now 1000"),
        (["window.tokens=16384"], "window.tokens: 4096, now 16384"),
    ],
)
def test_what_differs_is_named(settled, assignments, differs):
    with pytest.raises(UsageError) as caught:
        settled(*assignments)
    assert differs in str(caught.value)
    assert "another --study-dir" in str(caught.value)


def test_another_machine_is_refused(settled, gpu_machine):
    other = Machine(cpu="another cpu", cpus=2)
    with pytest.raises(UsageError, match="a cpu, now another cpu"):
        settled(machine=other)
    with pytest.raises(UsageError, match="NVIDIA H200"):
        settled("devices.kind=auto", machine=gpu_machine(4))


def test_another_trial_length_is_refused(settled):
    with pytest.raises(UsageError, match=r"seconds: 12\.0, now 20"):
        settled(seconds=20.0)


def test_a_changed_space_is_written_down_and_what_else_differs_is_refused(tmp_path, machine, space_of):
    narrow, wide = space_of(transport__preset=("host", "peer")), space_of()
    first = settle_identity(tmp_path, identify(narrow, machine, 12.0))
    now = identify(wide, machine, 12.0)
    assert first.space != now.space
    assert settle_identity(tmp_path, now).space == now.space
    assert read_identity(tmp_path).search_space().size == wide.size
    assert read_identity(tmp_path).created_utc == first.created_utc
    with pytest.raises(UsageError, match=r"cpus: 2, now 3"):
        settle_identity(tmp_path, identify(narrow, Machine(cpu="a cpu", cpus=3), 12.0))
    assert read_identity(tmp_path).space == now.space


def test_changed_data_under_the_same_name_is_refused(tmp_path, machine, base_of):
    data = tmp_path / "data.jsonl"
    data.write_text("a\n" * 100)
    space = default_space(base_of(f"data.path={data}"), machine)
    settle_identity(tmp_path, identify(space, machine, 12.0))
    data.write_text("b\n" * 100)
    with pytest.raises(UsageError, match=r"inputs\.data"):
        settle_identity(tmp_path, identify(space, machine, 12.0))


def test_fingerprints_tell_contents_apart_also_at_the_end_of_large_files(tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    for directory, last in ((one, b"x"), (two, b"y")):
        directory.mkdir()
        (directory / "weights").write_bytes(b"\0" * (3 << 20) + last)
    assert fingerprint(str(one)) != fingerprint(str(two))
    assert fingerprint("random:tiny") == "random:tiny"


def test_study_describes_its_own_space(tmp_path, settled, base_of):
    space = read_identity(tmp_path).search_space()
    assert space == default_space(base_of(), Machine(cpu="a cpu", cpus=2))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "holds no study.json"),
        ("{", "cannot be read"),
        ("{}", "not a study"),
        ('{"schema": 99}', "newer"),
    ],
)
def test_what_is_no_study_is_said(tmp_path, text, says):
    if text is not None:
        (tmp_path / "study.json").write_text(text)
    with pytest.raises(RunError, match=says):
        read_identity(tmp_path)


def test_study_json_is_strict(tmp_path, settled):
    document = json.loads((tmp_path / "study.json").read_text(), parse_constant=pytest.fail)
    assert document["schema"] == 1
