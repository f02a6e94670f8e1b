"""Which files `data.path` means, and all their rows in order, streamed: never more than a piece in memory.

A path is a file (JSONL, a JSON array, Parquet, Arrow IPC), a directory of such files, or a directory that
`datasets.save_to_disk` has written. All files are looked at before the first row is given: a file that cannot
be read is an error, since its rows could be neither trained nor refused. Knows nothing of what a row means.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from dflash.contract.errors import DataError
from dflash.data.raw_rows import RawRow
from dflash.data.table_rows import check_table, read_arrow, read_parquet
from dflash.data.text_rows import line_suffixes, read_text_rows

__all__ = ["RawRow", "read_raw", "source_files"]

data_suffixes = (*line_suffixes, ".json", ".parquet", ".arrow")
_packings = (".gz", ".zst", ".bz2", ".xz", ".zip")
_described = "a JSONL, JSON, Parquet or Arrow file, or a directory of such files"
# What `datasets` writes beside its data.
_not_data = ("dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json")
_manifest_ending = ".manifest.json"  # what `dflash-train regenerate` writes beside its answers
_signatures = {
    b"PAR1": "parquet",
    b"ARROW1": "arrow",
    b"\xff\xff\xff\xff": "arrow",  # how an Arrow stream begins
    b"\x1f\x8b": "gzip",
    b"PK\x03\x04": "zip",
    b"\x28\xb5\x2f\xfd": "zstd",
}
_readers: dict[str, Callable[[Path], Iterator[RawRow]]] = {
    "text": read_text_rows,
    "parquet": read_parquet,
    "arrow": read_arrow,
}
_files_named = 10


def read_raw(path: Path) -> Iterator[RawRow]:
    """Every row of `path` once, in order, unjudged. Raises DataError when a file cannot be read."""
    files = source_files(path)
    kinds = [_kind_of(file) for file in files]
    for file, kind in zip(files, kinds, strict=True):
        if kind != "text":
            check_table(file, kind)
    for file, kind in zip(files, kinds, strict=True):
        try:
            yield from _readers[kind](file)
        except OSError as error:
            raise DataError(f"the data file cannot be read: {error}", where=str(file)) from None


def source_files(path: Path) -> list[Path]:
    """The files whose rows `path` means, in the order in which they are read. Raises DataError.

    All of them can be read when this returns.
    """
    if not path.is_dir():
        trouble = _trouble(path)
        if trouble:
            known = not path.exists() and not path.is_symlink()
            what = "there is no such data file" if known else "the data file cannot be read"
            raise DataError(what, where="data.path", found=f"{path}: {trouble}", expected=_described)
        return [path]
    files = _saved_files(path) if (path / "state.json").is_file() else _listed_files(path)
    troubles = {file: trouble for file in files if (trouble := _trouble(file))}
    if troubles:
        raise _unreadable(path, files, troubles)
    return files


def _trouble(path: Path) -> str:
    """Why a file cannot be read; empty when it can."""
    if path.is_symlink() and not path.exists():
        return f"a link to {path.readlink()}, which is not there"
    if not path.exists():
        return "nothing of that name"
    if not path.is_file():
        return "neither a file nor a directory"
    try:
        with path.open("rb") as file:
            file.read(1)
    except OSError as error:
        return error.strerror or str(error)
    return ""


def _unreadable(path: Path, files: list[Path], troubles: dict[Path, str]) -> DataError:
    named = [f"{file.name} ({trouble})" for file, trouble in troubles.items()][:_files_named]
    more = f" and {len(troubles) - len(named)} more" if len(troubles) > len(named) else ""
    count = "none of the" if len(troubles) == len(files) else f"{len(troubles)} of"
    verb = "can" if len(troubles) == len(files) else "cannot"
    return DataError(
        f"{count} {len(files)} data files {verb} be read",
        where=str(path),
        found=f"unreadable: {', '.join(named)}{more}",
        expected=f"{len(files)} readable files, so that every row is accounted for",
        remedy="fetch the missing files, or take their names out of the directory",
    )


def _listed_files(folder: Path) -> list[Path]:
    """The data files of a directory by name. What begins with . or _ is none, nor a cache of `datasets`."""
    entries = sorted(folder.iterdir())
    if (folder / "dataset_dict.json").is_file():
        splits = [entry.name for entry in entries if entry.is_dir()]
        raise DataError(
            "the directory holds several splits of a dataset",
            where=str(folder),
            found=", ".join(splits) or "none of them",
            expected="one split",
            remedy=f"name one, such as {folder / splits[0]}" if splits else None,
        )
    files = [entry for entry in entries if _is_data(entry, entry.name)]
    packed = [e for e in entries if e.suffix.lower() in _packings and _is_data(e, e.stem)]
    if packed:
        names = ", ".join(entry.name for entry in packed[:_files_named])
        raise DataError(
            "packed data files are not read",
            where=str(folder),
            found=names + f" and {len(packed) - _files_named} more" * (len(packed) > _files_named),
            expected="files that end in " + ", ".join(data_suffixes),
            remedy="unpack them, or take them out of the directory",
        )
    if not files:
        found = [entry.name + "/" * entry.is_dir() for entry in entries]
        raise DataError(
            "the directory holds no data file",
            where=str(folder),
            found=(", ".join(found[:_files_named]) + (", …" if len(found) > _files_named else ""))
            or "nothing",
            expected="files that end in " + ", ".join(data_suffixes),
            remedy="subdirectories are not looked into: name one of them"
            if any(map(Path.is_dir, entries))
            else None,
        )
    return files


def _is_data(entry: Path, name: str) -> bool:
    """Whether an entry of a directory would be a data file if that were its name."""
    hidden = name.startswith((".", "_")) or name in _not_data or name.endswith(_manifest_ending)
    suffix = Path(name).suffix
    cached = name.startswith("cache-") and suffix == ".arrow"
    return suffix.lower() in data_suffixes and not hidden and not cached and not entry.is_dir()


def _saved_files(folder: Path) -> list[Path]:
    """The files that `datasets.save_to_disk` lists in state.json, in its order."""
    path = folder / "state.json"
    try:
        state = json.loads(path.read_bytes())
        files = [folder / str(entry["filename"]) for entry in state["_data_files"]]
        selected: Any = state.get("_indices_data_files")
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise DataError(
            "the directory's list of data files cannot be read",
            where=str(path),
            found=f"{type(error).__name__}: {error}",
            expected="state.json as datasets.save_to_disk writes it",
        ) from None
    if selected or not files:
        raise DataError(
            "the saved dataset is a selection from its files"
            if selected
            else "the saved dataset has no file",
            where=str(path),
            remedy="call flatten_indices() and save it again" if selected else None,
        )
    return files


def _kind_of(path: Path) -> str:
    with path.open("rb") as file:
        head = file.read(8)
    kind = next((name for signature, name in _signatures.items() if head.startswith(signature)), "text")
    wanted = path.suffix.lower().removeprefix(".")
    if kind not in _readers or (kind == "text" and wanted in ("parquet", "arrow")):
        text = (
            kind if kind != "text" else "an empty file" if not head else f"a file that begins with {head!r}"
        )
        raise DataError(
            f"{kind} files are not read" if kind not in _readers else f"this is no {wanted} file",
            where=str(path),
            found=text,
            expected=_described,
            remedy="unpack or convert the file first",
        )
    return kind
