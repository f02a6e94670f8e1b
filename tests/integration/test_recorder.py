"""Recording small real programs: every way they can end, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from dflash.contract.arrowlog import read_log
from dflash.contract.errors import RunError, UsageError
from dflash.contract.rundir import RunDir
from profiler.diagnosis import diagnose
from profiler.recorder import Recording, RecordOptions, record
from profiler.recorder_settings import apply_settings
from profiler.run import Run
from profiler.run_status import RunStatus, effective_status
from profiler.samplers.gpu import GpuSampler
from profiler.samplers.host import HostSampler
from profiler.timeline import Timeline
from tests.until_sampled import until_sampled

quiet = RecordOptions(gpu="none", gil=False, host_interval_s=0.05, grace_s=20)
patience_s = 60.0

# What our trainer does to run.json: it takes it over when it starts, and says how it ended.
trainer = """
import json, os, signal, sys, time
from pathlib import Path
sys.path.insert(0, {repository!r})
from dflash.contract.rundir import RunDir
run = RunDir(Path(os.environ["DFLASH_RUN_DIR"]))
run.update(config={{"a": 1}}, pids={{**run.manifest()["pids"], "trainer": os.getpid()}})
"""


def python(code: str, repository: Path | None = None) -> list[str]:
    prefix = "" if repository is None else trainer.format(repository=str(repository))
    return [sys.executable, "-c", prefix + textwrap.dedent(code)]


def eventually(condition: Callable[[], bool]) -> bool:
    deadline = time.monotonic() + patience_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.02)
    return False


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def options(**changes: Any) -> RecordOptions:
    base = {name: getattr(quiet, name) for name in RecordOptions.__dataclass_fields__}
    return RecordOptions(**{**base, **changes})


def manifest_of(recording: Recording) -> dict[str, Any]:
    manifest = recording.run.manifest()
    assert manifest["status"] == recording.status
    assert manifest["reason"] == recording.reason
    assert manifest["ended_utc"] is not None
    return manifest


def test_plain_command_is_recorded_whole(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = f"replay:{data_dir / 'cases' / 'nvml' / 'c057_util100_low_power.json'}"
    wait = until_sampled(monkeypatch, tmp_path / "enough", {HostSampler: 4, GpuSampler: 8})
    recording = record(
        python("b = bytearray(20_000_000)\n" + wait),
        tmp_path / "run",
        options(gpu=replay, gpu_interval_s=0.02),
    )
    manifest = manifest_of(recording)
    assert (recording.status, recording.exit_code, recording.reason) == ("finished", 0, None)
    assert manifest["exit_code"] == 0
    assert manifest["pids"]["recorder"] == os.getpid()
    assert len(manifest["hardware"]["gpus"]) == 2
    assert manifest["usage"]["peak_rss_bytes"] > 20_000_000
    statuses = {name: entry["status"] for name, entry in manifest["samplers"].items()}
    assert (statuses["host"], statuses["gpu"], statuses["gil"]) == ("ok", "ok", "n/a")
    assert statuses["numa"] in ("ok", "n/a")  # as many nodes as this machine has
    assert manifest["samplers"]["gil"]["reason"] == "switched off"
    for name, least in (("host", 20), ("gpu", 16)):
        table, torn = read_log(recording.run.samples / f"{name}.arrow")
        assert not torn
        assert table.num_rows >= least
        assert set(table["source"].to_pylist()) == {name}


def test_a_replayed_straggler_is_named_in_the_run_that_was_recorded(
    tmp_path: Path, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    replay = f"replay:{data_dir / 'cases' / 'nvml' / 'c070_throttled_straggler.json'}"
    chosen = apply_settings(options(gpu_interval_s=0.02), [f"sensors.gpu={replay}"])
    wait = until_sampled(monkeypatch, tmp_path / "enough", {HostSampler: 1, GpuSampler: 12})
    recording = record(python(wait), tmp_path / "run", chosen)
    timeline = Timeline.of(Run.open(recording.run.path))
    gpus = timeline.gpus.set_index("key")
    assert len(gpus) == 4
    assert (gpus["own_bytes"] - 30e9).abs().max() < 1
    energy = timeline.samples[timeline.samples["metric"] == "energy_j"]
    assert energy.groupby("key", observed=True).size().eq(2).all()  # at the start and at the end
    (finding,) = [f for f in diagnose(timeline).findings if f.cause == "one-gpu-throttled"]
    assert "780 MHz, thermal (hardware), 93 °C, 310 of 600 W" in finding.summary


def test_samplers_that_find_nothing_do_not_stop_the_command(tmp_path: Path, data_dir: Path) -> None:
    replay = f"replay:{data_dir / 'cases' / 'nvml' / 'c063_lib_missing.json'}"
    recording = record(python("raise SystemExit(0)"), tmp_path / "run", options(gpu=replay))
    manifest = manifest_of(recording)
    assert recording.status == "finished"
    assert manifest["samplers"]["gpu"]["status"] == "n/a"
    assert "NVML_ERROR_LIBRARY_NOT_FOUND" in manifest["samplers"]["gpu"]["reason"]
    assert manifest["hardware"]["gpus"] == []
    assert manifest["hardware"]["no_gpus"] == manifest["samplers"]["gpu"]["reason"]


@pytest.mark.parametrize(
    ("code", "exit_code", "reason"),
    [
        ("raise SystemExit(3)", 3, "ended with exit code 3"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", 139, "killed by SIGSEGV"),
        ("import os; os.abort()", 134, "killed by SIGABRT"),
    ],
)
def test_failure_of_the_command_is_its_own(tmp_path: Path, code: str, exit_code: int, reason: str) -> None:
    recording = record(python(code), tmp_path / "run", quiet)
    assert (recording.status, recording.exit_code, recording.reason) == ("failed", exit_code, reason)
    assert manifest_of(recording)["exit_code"] == exit_code


def test_log_takes_both_streams_and_its_end_is_the_reason(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "train.log"
    code = "import sys; print('hello\\x1b[31m'); print('boom', file=sys.stderr); sys.exit(1)"
    recording = record(python(code), tmp_path / "run", options(log=log))
    assert "hello" in log.read_text()
    assert recording.reason == r"ended with exit code 1; it last said: hello\x1b[31m | boom"


def test_trainers_own_words_are_kept(tmp_path: Path, repository: Path) -> None:
    code = "run.update(status='failed', reason='no usable rows'); sys.exit(2)"
    recording = record(python(code, repository), tmp_path / "run", quiet)
    assert (recording.status, recording.reason, recording.exit_code) == ("failed", "no usable rows", 2)
    assert manifest_of(recording)["config"] == {"a": 1}


def test_trainer_that_vanishes_has_failed(tmp_path: Path, repository: Path) -> None:
    recording = record(python("os._exit(0)", repository), tmp_path / "run", quiet)
    assert (recording.status, recording.exit_code) == ("failed", 1)


def test_run_directory_is_told_by_an_absolute_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    code = "import os; open('told', 'w').write(os.environ['DFLASH_RUN_DIR'])"
    record(python(code), Path("run"), quiet)
    assert Path((tmp_path / "told").read_text()) == tmp_path / "run"


def test_pid_is_on_record_before_the_command_runs(tmp_path: Path) -> None:
    code = """
        import json, os, sys
        pids = json.load(open(os.environ["DFLASH_RUN_DIR"] + "/run.json"))["pids"]
        sys.exit(pids["trainer"] != os.getpid())
    """
    assert record(python(code), tmp_path / "run", quiet).exit_code == 0


def test_time_limit_ends_a_command_that_ignores_sigterm(tmp_path: Path) -> None:
    code = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(120)"
    recording = record(python(code), tmp_path / "run", options(time_limit_s=0.5, grace_s=0.3))
    assert recording.status == "failed"
    assert recording.exit_code == 124
    assert recording.reason is not None
    assert recording.reason.startswith("time limit of 0.5 s")


def test_stop_event_ends_the_command_politely(tmp_path: Path, repository: Path) -> None:
    code = """
        def end(*_):
            run.update(status="stopped", reason="SIGTERM at step 3")
            sys.exit(143)
        signal.signal(signal.SIGTERM, end)
        (run.path / "ready").touch()
        while True:  # a handler does not run while a sleep lasts that began just after its signal
            time.sleep(0.05)
    """
    stop = threading.Event()
    run_path = tmp_path / "run"

    def stop_when_ready() -> None:
        eventually((run_path / "ready").exists)
        stop.set()

    helper = threading.Thread(target=stop_when_ready)
    helper.start()
    recording = record(python(code, repository), run_path, quiet, stop=stop)
    helper.join()
    assert (recording.status, recording.reason, recording.exit_code) == ("stopped", "SIGTERM at step 3", 143)


def test_record_works_outside_the_main_thread(tmp_path: Path) -> None:
    found: list[Recording] = []
    worker = threading.Thread(target=lambda: found.append(record(python("pass"), tmp_path / "run", quiet)))
    worker.start()
    worker.join(patience_s)
    assert found[0].status == "finished"


def test_leftover_processes_are_ended_and_mentioned(tmp_path: Path) -> None:
    code = """
        import subprocess, sys
        sleep = [sys.executable, "-c", "import time; time.sleep(120)"]
        child = subprocess.Popen(sleep, start_new_session=True)
        open(sys.argv[1], "w").write(str(child.pid))
    """
    pid_file = tmp_path / "pid"
    recording = record([*python(code), str(pid_file)], tmp_path / "run", quiet)
    assert recording.status == "finished"
    assert not is_alive(int(pid_file.read_text()))
    (warning,) = manifest_of(recording)["warnings"]
    assert warning.startswith("1 process")


def test_unreadable_manifest_does_not_lose_the_result(tmp_path: Path) -> None:
    code = "import os; open(os.environ['DFLASH_RUN_DIR'] + '/run.json', 'w').write('{'); raise SystemExit(4)"
    recording = record(python(code), tmp_path / "run", quiet)
    assert (recording.status, recording.exit_code) == ("failed", 4)
    assert manifest_of(recording)["exit_code"] == 4


@pytest.mark.parametrize("name", [None, "no-such-command-anywhere", "not-executable"])
def test_command_that_does_not_exist_leaves_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str | None
) -> None:
    (tmp_path / "not-executable").touch(mode=0o644)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError):
        record([] if name is None else [name], tmp_path / "run", quiet)
    assert not (tmp_path / "run").exists()


def test_command_that_cannot_be_executed_is_a_failed_run(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    with pytest.raises(UsageError):
        record([str(script)], tmp_path / "run", quiet)
    manifest = RunDir(tmp_path / "run").manifest()
    assert (manifest["status"], manifest["reason"]) == ("failed", "the command cannot be started")


def test_existing_run_is_never_overwritten(tmp_path: Path) -> None:
    record(python("pass"), tmp_path / "run", quiet)
    before = (tmp_path / "run" / "run.json").read_bytes()
    with pytest.raises(RunError):
        record(python("pass"), tmp_path / "run", quiet)
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def start_recorder(repository: Path, run_path: Path, code: str) -> subprocess.Popen[bytes]:
    """A recorder in a process of its own, which exits as its recording says."""
    main = f"""
        import sys
        from pathlib import Path
        sys.path.insert(0, {str(repository)!r})
        from profiler.recorder import RecordOptions, record
        options = RecordOptions(gpu="none", gil=False, host_interval_s=0.05, grace_s=20)
        sys.exit(record({python(code)!r}, Path({str(run_path)!r}), options).exit_code)
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(main)])
    assert eventually((run_path / "ready").exists)
    return process


sleeper = """
    import os, signal, subprocess, sys, time
    from pathlib import Path
    {handler}
    sleep = [sys.executable, "-c", "import time; time.sleep(120)"]
    pids = [os.getpid(), subprocess.Popen(sleep).pid, subprocess.Popen(sleep, start_new_session=True).pid]
    ready = Path(os.environ["DFLASH_RUN_DIR"], "ready")
    ready.with_suffix(".new").write_text(" ".join(map(str, pids)))
    ready.with_suffix(".new").rename(ready)
    while True:  # a handler does not run while a sleep lasts that began just after its signal
        time.sleep(0.05)
"""


def rows_in(path: Path) -> int:
    """Whole rows of a log that may not be there yet."""
    try:
        return int(read_log(path)[0].num_rows)
    except RunError:
        return 0


def started_pids(run_path: Path) -> list[int]:
    return [int(pid) for pid in (run_path / "ready").read_text().split()]


@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_to_the_recorder_ends_the_run_properly(
    tmp_path: Path, repository: Path, number: signal.Signals, exit_code: int
) -> None:
    run_path = tmp_path / "run"
    recorder = start_recorder(repository, run_path, sleeper.format(handler=""))
    recorder.send_signal(number)
    assert recorder.wait(patience_s) == exit_code
    manifest = RunDir(run_path).manifest()
    assert (manifest["status"], manifest["reason"]) == ("stopped", f"stopped by {number.name}")
    _, torn = read_log(run_path / "samples" / "host.arrow")
    assert not torn
    assert not any(is_alive(pid) for pid in started_pids(run_path))


def test_second_signal_does_not_wait_for_the_whole_grace(tmp_path: Path, repository: Path) -> None:
    run_path = tmp_path / "run"
    deaf = "signal.signal(signal.SIGINT, signal.SIG_IGN)"
    recorder = start_recorder(repository, run_path, sleeper.format(handler=deaf))
    recorder.send_signal(signal.SIGINT)
    time.sleep(0.5)
    assert recorder.poll() is None
    recorder.send_signal(signal.SIGINT)
    started_s = time.monotonic()
    assert recorder.wait(patience_s) == 130
    assert time.monotonic() - started_s < 15  # the grace alone would be 20 s
    assert RunDir(run_path).manifest()["reason"] == "stopped by SIGINT; killed when the grace was over"


def test_killed_recorder_leaves_no_orphan_and_readable_samples(tmp_path: Path, repository: Path) -> None:
    run_path = tmp_path / "run"
    recorder = start_recorder(repository, run_path, sleeper.format(handler=""))
    host = run_path / "samples" / "host.arrow"
    assert eventually(lambda: rows_in(host) > 0)  # a batch is written in pieces
    pids = started_pids(run_path)
    assert all(is_alive(pid) for pid in pids)
    assert effective_status(RunDir(run_path).manifest()).status == "running"
    recorder.kill()
    recorder.wait()
    assert eventually(lambda: not any(is_alive(pid) for pid in pids))
    table, torn = read_log(host)
    assert torn
    assert table.num_rows > 0
    assert json.loads((run_path / "run.json").read_text())["status"] == "running"
    assert effective_status(RunDir(run_path).manifest()) == RunStatus("failed", "the recorder was killed")


def test_handlers_of_the_caller_are_restored(tmp_path: Path) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)]
    record(python("pass"), tmp_path / "run", quiet)
    assert [signal.getsignal(n) for n in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)] == before
