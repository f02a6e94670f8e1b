"""Memory limits as containers set them: versions 1 and 2, nested, hidden and absent."""

from __future__ import annotations

from pathlib import Path

from dflash.contract.cgroup import MemoryCgroup

GiB = 1 << 30


def machine(root: Path, cgroup: str, mountinfo: str, files: dict[str, str]) -> MemoryCgroup:
    """A file system with just what is read, seen by process 7."""
    for name, text in {"proc/7/cgroup": cgroup, "proc/7/mountinfo": mountinfo, **files}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return MemoryCgroup.of_process(7, root)


def v2_mount(mount_root: str = "/") -> str:
    return f"30 23 0:26 {mount_root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate"


def test_version_2_limit_is_the_least_of_the_chain(tmp_path: Path) -> None:
    group = machine(
        tmp_path,
        "0::/user.slice/job.scope",
        v2_mount(),
        {
            "sys/fs/cgroup/user.slice/memory.max": str(2 * GiB),
            "sys/fs/cgroup/user.slice/job.scope/memory.max": str(3 * GiB),
            "sys/fs/cgroup/user.slice/job.scope/memory.current": "4096",
            "sys/fs/cgroup/user.slice/job.scope/memory.events": "low 0\nmax 9\noom 3\noom_kill 2",
        },
    )
    assert (group.limit_bytes(), group.usage_bytes(), group.oom_kills()) == (2 * GiB, 4096, 2)


def test_max_is_no_limit(tmp_path: Path) -> None:
    group = machine(tmp_path, "0::/a", v2_mount(), {"sys/fs/cgroup/a/memory.max": "max"})
    assert group.limit_bytes() is None


def test_version_1_limit_and_its_way_of_saying_none(tmp_path: Path) -> None:
    group = machine(
        tmp_path,
        "9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/",
        "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
        "36 31 0:33 / /sys/fs/cgroup/cpuset rw,relatime - cgroup cgroup rw,cpuset",
        {
            "sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/docker/memory.limit_in_bytes": str(GiB),
            "sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes": "9223372036854771712",
            "sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes": "8192",
            "sys/fs/cgroup/memory/docker/abc/memory.oom_control": "under_oom 0\noom_kill 4",
        },
    )
    assert (group.limit_bytes(), group.usage_bytes(), group.oom_kills()) == (GiB, 8192, 4)


def test_container_sees_its_group_at_the_mount_point(tmp_path: Path) -> None:
    # The host's path is told, but only the container's own part of the hierarchy is mounted.
    group = machine(
        tmp_path, "0::/docker/abc", v2_mount("/docker/abc"), {"sys/fs/cgroup/memory.max": str(2 * GiB)}
    )
    assert group.limit_bytes() == 2 * GiB


def test_path_that_is_not_mounted_falls_back_to_the_mount_point(tmp_path: Path) -> None:
    group = machine(tmp_path, "0::/elsewhere", v2_mount(), {"sys/fs/cgroup/memory.max": str(GiB)})
    assert group.limit_bytes() == GiB


def test_hybrid_takes_the_least_of_both_versions(tmp_path: Path) -> None:
    group = machine(
        tmp_path,
        "4:memory:/\n0::/",
        v2_mount() + "\n35 31 0:32 / /sys/fs/v1 rw - cgroup cgroup rw,memory",
        {"sys/fs/cgroup/memory.max": str(2 * GiB), "sys/fs/v1/memory.limit_in_bytes": str(GiB)},
    )
    assert group.limit_bytes() == GiB


def test_without_cgroups_nothing_is_known(tmp_path: Path) -> None:
    group = MemoryCgroup.of_process(7, tmp_path)
    assert (group.limit_bytes(), group.usage_bytes(), group.oom_kills()) == (None, None, None)


def test_room_is_what_the_fullest_group_leaves_and_idle_file_pages_are_room(tmp_path: Path) -> None:
    group = machine(
        tmp_path,
        "0::/user.slice/job.scope",
        v2_mount(),
        {
            "sys/fs/cgroup/user.slice/memory.max": str(4 * GiB),
            "sys/fs/cgroup/user.slice/memory.current": str(3 * GiB),
            "sys/fs/cgroup/user.slice/memory.stat": f"anon 7\ninactive_file {GiB // 2}",
            "sys/fs/cgroup/user.slice/job.scope/memory.max": str(2 * GiB),
            "sys/fs/cgroup/user.slice/job.scope/memory.current": "0",
        },
    )
    assert group.free_bytes() == 3 * GiB // 2
    (tmp_path / "sys/fs/cgroup/user.slice/memory.max").write_text("max")
    assert group.free_bytes() == 2 * GiB


def test_no_limit_leaves_room_unknown(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/a/memory.max": "max", "sys/fs/cgroup/a/memory.current": "4096"}
    assert machine(tmp_path, "0::/a", v2_mount(), files).free_bytes() is None


def test_an_overrun_group_has_no_room(tmp_path: Path) -> None:
    files = {"sys/fs/cgroup/a/memory.max": "4096", "sys/fs/cgroup/a/memory.current": "8192"}
    assert machine(tmp_path, "0::/a", v2_mount(), files).free_bytes() == 0
