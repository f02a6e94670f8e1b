"""The memory limit that a process really has: the least along its cgroup chain, versions 1 and 2.

Linux only; elsewhere, and where nothing is mounted, every answer is None. Knows nothing of runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

no_limit_bytes = 1 << 60  # version 1 writes "no limit" as a number near 2^63


@dataclass(frozen=True, slots=True)
class MemoryCgroup:
    """The memory cgroups of one process, from its own up to the root of what is mounted."""

    chains: tuple[tuple[Path, ...], ...]  # one for each mounted hierarchy

    @classmethod
    def of_process(cls, pid: int | str = "self", root: Path = Path("/")) -> MemoryCgroup:
        """Of a process by pid. `root`: where /proc and the mounts are found."""
        try:
            memberships = (root / f"proc/{pid}/cgroup").read_text().splitlines()
            mounts = (root / f"proc/{pid}/mountinfo").read_text().splitlines()
        except OSError:
            return cls(())
        paths = {  # controllers ("" for version 2) to the path of the group
            controllers: group
            for _, controllers, group in (line.split(":", 2) for line in memberships)
            if controllers == "" or "memory" in controllers.split(",")
        }
        chains = []
        for line in mounts:
            before, _, after = line.partition(" - ")
            mount_root, mount_point = before.split()[3:5]
            kind, _, options = after.split(maxsplit=2)
            for controllers, group in paths.items():
                if kind == ("cgroup" if controllers else "cgroup2") and (
                    not controllers or "memory" in options.split(",")
                ):
                    chains.append(_chain(root / mount_point.lstrip("/"), mount_root, group))
        return cls(tuple(chains))

    def limit_bytes(self) -> int | None:
        """The least limit of the chain, or None when there is none."""
        found = [
            limit
            for chain in self.chains
            for directory in chain
            for name in ("memory.max", "memory.limit_in_bytes")
            if (limit := _number(directory / name)) is not None and limit < no_limit_bytes
        ]
        return min(found, default=None)

    def usage_bytes(self) -> int | None:
        """What the process's own group holds, page cache included, or None when nobody counts."""
        found = (
            _number(chain[0] / name)
            for chain in self.chains
            for name in ("memory.current", "memory.usage_in_bytes")
        )
        return next((usage for usage in found if usage is not None), None)

    def free_bytes(self) -> int | None:
        """What is left below every limit of the chain; idle page cache counts as free. None: no limit."""
        found = []
        for chain in self.chains:
            for directory in chain:
                for names in (
                    ("memory.max", "memory.current"),
                    ("memory.limit_in_bytes", "memory.usage_in_bytes"),
                ):
                    limit, usage = (_number(directory / name) for name in names)
                    if limit is not None and usage is not None and limit < no_limit_bytes:
                        found.append(max(0, limit - usage + _reclaimable(directory)))
        return min(found, default=None)

    def oom_kills(self) -> int | None:
        """Processes of the group that the kernel has killed for memory, or None when nobody counts."""
        for chain in self.chains:
            for name in ("memory.events", "memory.oom_control"):
                try:
                    lines = (chain[0] / name).read_text().splitlines()
                except (OSError, IndexError):
                    continue
                counts = dict(line.split(maxsplit=1) for line in lines)
                if "oom_kill" in counts:
                    return int(counts["oom_kill"])
        return None


def _chain(mount_point: Path, mount_root: str, group: str) -> tuple[Path, ...]:
    """Directories from the group up to the mount point.

    In a container the mount may show only part of the hierarchy, and the group's path may be the host's.
    """
    parts = PurePosixPath(group)
    relative = parts.relative_to(mount_root) if parts.is_relative_to(mount_root) else PurePosixPath()
    directory = mount_point / str(relative).lstrip("/")
    if not directory.is_dir():
        directory = mount_point
    chain = [directory]
    while chain[-1] != mount_point:
        chain.append(chain[-1].parent)
    return tuple(chain)


def _number(path: Path) -> int | None:
    """The number in a file; None when it is absent or says "max"."""
    try:
        return int(path.read_text())
    except (OSError, ValueError):
        return None


def _reclaimable(directory: Path) -> int:
    """Bytes of file pages that the kernel gives up first."""
    try:
        lines = (directory / "memory.stat").read_text().splitlines()
    except OSError:
        return 0
    counts = dict(line.split(maxsplit=1) for line in lines)
    return int(counts.get("total_inactive_file", counts.get("inactive_file", 0)))
