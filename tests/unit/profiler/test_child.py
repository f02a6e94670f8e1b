"""A command behind the launcher: its end is reported, and nothing that it started outlives us."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from dflash.contract.errors import UsageError
from profiler.child import Child, Exit, log_tail
from profiler.launcher import descendants

patience_s = 60.0


def python(code: str) -> list[str]:
    return [sys.executable, "-I", "-S", "-c", textwrap.dedent(code)]


@contextmanager
def running(command: list[str], output: Path | None = None) -> Iterator[Child]:
    with (output or Path("/dev/null")).open("wb") as file:
        child = Child(command, output=file)
    try:
        child.release()
        yield child
    finally:
        child.close()


def end_of(command: list[str]) -> Exit:
    with running(command) as child:
        end = child.wait(patience_s)
        assert end is not None
        return end


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


def read_pids(path: Path, count: int) -> list[int]:
    assert eventually(lambda: path.exists() and len(path.read_text().splitlines()) == count)
    return [int(line) for line in path.read_text().splitlines()]


def test_exit_code_is_reported() -> None:
    assert end_of(python("raise SystemExit(7)")).code == 7


def test_death_by_signal_is_reported() -> None:
    end = end_of(python("import os; os.kill(os.getpid(), 11)"))
    assert (end.code, end.signal_name, end.shell_code) == (-11, "SIGSEGV", 139)


def test_resources_are_reported() -> None:
    end = end_of(python("block = bytearray(60_000_000)"))
    assert end.peak_rss_bytes is not None
    assert end.peak_rss_bytes > 60_000_000
    assert end.cpu_s is not None
    assert end.cpu_s > 0


def test_command_waits_for_its_release(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    child = Child(python(f"open({str(mark)!r}, 'w').close()"))
    try:
        assert is_alive(child.pid)
        assert child.wait(0.3) is None
        assert not mark.exists()
        child.release()
        assert child.wait(patience_s) == child.wait(0)
        assert mark.exists()
    finally:
        child.close()


def test_unreleased_command_ends_on_close() -> None:
    child = Child(python("pass"))
    child.close()
    assert eventually(lambda: not is_alive(child.pid))


def test_file_that_cannot_be_executed_is_a_usage_error(tmp_path: Path) -> None:
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    child = Child([str(script)])
    with pytest.raises(UsageError) as caught:
        child.release()
    assert caught.value.where == str(script)
    assert caught.value.found == "No such file or directory"


def test_output_is_captured(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with running(python("import sys; print('out', flush=True); print('err', file=sys.stderr)"), log) as child:
        child.wait(patience_s)
    assert log.read_text() == "out\nerr\n"


def test_command_has_the_signal_dispositions_of_a_fresh_program() -> None:
    # Python ignores SIGPIPE; a program started by it must not.
    assert end_of(["sh", "-c", "kill -PIPE $$"]).signal_name == "SIGPIPE"


def test_signals_reach_the_command(tmp_path: Path) -> None:
    ready = tmp_path / "ready"
    code = f"""
        import signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        open({str(ready)!r}, "w").close()
        while True:  # a handler does not run while a sleep lasts that began just after its signal
            time.sleep(0.05)
    """
    with running(python(code)) as child:
        assert eventually(ready.exists)
        child.signal(signal.SIGTERM)
        end = child.wait(patience_s)
    assert end is not None
    assert end.code == 5


family = """
    import os, subprocess, sys, time
    sleep = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(120)"]
    same = subprocess.Popen(sleep)
    apart = subprocess.Popen(sleep, start_new_session=True)
    middle = subprocess.run(
        [sys.executable, "-I", "-S", "-c",
         "import subprocess;"
         f"print(subprocess.Popen({sleep!r}, start_new_session=True, stdout=-3, stderr=-3).pid)"],
        stdout=subprocess.PIPE, text=True,
    )
    open(sys.argv[1] + ".new", "w").write(f"{same.pid}\\n{apart.pid}\\n{int(middle.stdout)}\\n")
    os.rename(sys.argv[1] + ".new", sys.argv[1])
"""


def test_what_a_command_leaves_behind_is_killed(tmp_path: Path) -> None:
    # One child, one in a session of its own, and one whose parent is gone as well.
    pids = tmp_path / "pids"
    end = end_of([*python(family), str(pids)])
    assert (end.code, end.killed, end.left) == (0, 3, ())
    assert not any(is_alive(pid) for pid in read_pids(pids, 3))


def test_sigkill_ends_the_whole_family(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with running([*python(family + "\n    time.sleep(120)"), str(pids)]) as child:
        started = read_pids(pids, 3)
        assert set(started) < set(descendants(child.launcher_pid))
        child.signal(signal.SIGKILL)
        end = child.wait(patience_s)
    assert end is not None
    assert end.signal_name == "SIGKILL"
    assert not any(is_alive(pid) for pid in started)


def test_command_dies_with_a_killed_owner(tmp_path: Path) -> None:
    # The owner is a process of its own here, so that it can be killed the hard way.
    pids = tmp_path / "pids"
    owner_code = f"""
        import sys, time
        sys.path.insert(0, {str(Path(__file__).parents[3])!r})
        from profiler.child import Child
        child = Child({[*python(family + chr(10) + "    time.sleep(120)"), str(pids)]!r})
        child.release()
        print(child.pid, flush=True)
        time.sleep(120)
    """
    owner = subprocess.Popen([sys.executable, "-c", textwrap.dedent(owner_code)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    with owner.stdout:
        command_pid = int(owner.stdout.readline())
    started = [command_pid, *read_pids(pids, 3)]
    assert all(is_alive(pid) for pid in started)
    owner.kill()
    owner.wait()
    assert eventually(lambda: not any(is_alive(pid) for pid in started))


def test_command_dies_with_a_killed_launcher() -> None:
    with running(python("import time; time.sleep(120)")) as child:
        psutil.Process(child.launcher_pid).kill()
        end = child.wait(patience_s)
        assert end is not None
        assert end.signal_name == "SIGKILL"
        assert eventually(lambda: not is_alive(child.pid))


def test_whenever_it_is_closed_nothing_stays() -> None:
    # From before the exec to after the end of a command that takes about as long as an interpreter's start.
    pids: list[int] = []
    for cycle in range(24):
        child = Child(["sleep", "0.02"])
        pids += [child.pid, child.launcher_pid]
        if cycle % 4:
            child.release()
        if cycle % 3 == 0:
            child.signal(signal.SIGTERM)
        time.sleep(cycle % 10 * 0.004)
        child.close()
    assert eventually(lambda: not any(is_alive(pid) for pid in pids))


def test_log_tail_gives_the_last_lines_that_say_something(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_bytes(b"x" * 20_000 + b"\nfirst\n\nsecond \xff\n\n")
    assert log_tail(log, lines=2) == ["first", "second �"]
    assert log_tail(tmp_path / "none") == []


dying_between_looks = """
import os, signal, socket
from profiler import launcher

def die_first(root):
    if launch.status is None:
        os.kill(launch.pid, signal.SIGKILL)
        os.waitid(os.P_PID, launch.pid, os.WEXITED | os.WNOWAIT)
    return look(root)

look, launcher.descendants = launcher.descendants, die_first
ours, theirs = socket.socketpair()
ours.send(bytes(1))  # the word to go
launch = launcher._Launch(theirs, ["sleep", "60"])
launch.begin()
print(*launch.sweep(), launch.status)
"""


def test_who_dies_between_two_looks_of_the_launcher_is_not_left_as_a_zombie(repository: Path) -> None:
    command = [sys.executable, "-c", dying_between_looks]
    ended = subprocess.run(command, cwd=repository, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stdout == f"0 [] {int(signal.SIGKILL)}\n", ended.stderr
