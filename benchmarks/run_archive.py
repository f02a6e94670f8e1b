"""Many small runs as few archives, none larger than a limit, and back.

Knows nothing of what a run holds.
"""

from __future__ import annotations

import tarfile
from collections.abc import Iterable
from pathlib import Path

kept = ("run", "truth.json", "case.json")  # of a run's folder, the last written last: all a diagnosis needs
archive_bytes = 14_000_000  # of what goes into one, before it is packed: it does not grow by that


def pack(folders: Iterable[Path], prefix: Path) -> list[Path]:
    """Write what is kept of every folder to PREFIX-1.tar.gz and so on; the archives."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    groups: list[list[Path]] = []
    room = 0
    for folder in folders:
        size = sum(f.stat().st_size for part in kept for f in _files(folder / part))
        if size > room:
            groups.append([])
            room = archive_bytes
        groups[-1].append(folder)
        room -= size
    archives = []
    for number, group in enumerate(groups, 1):
        archives.append(prefix.with_name(f"{prefix.name}-{number}.tar.gz"))
        with tarfile.open(archives[-1], "w:gz", compresslevel=6) as tar:
            for folder in group:
                for part in kept:
                    tar.add(folder / part, arcname=f"{folder.name}/{part}")
    return archives


def unpack(archive: Path, folder: Path) -> None:
    """Everything of an archive into `folder`."""
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")


def _files(path: Path) -> Iterable[Path]:
    return [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
