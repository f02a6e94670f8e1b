"""Reads a metrics file line by line: strict, and telling of all that it could not use.

A line that is no JSON object with a time is left out and named by its number. A value that cannot be used is
missing, never 0. Knows nothing of runs.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd

from dflash.contract.errors import UsageError
from profiler.metrics_trace.fields import (
    Field,
    gpu_fields,
    gpu_link_field,
    line_fields,
    most_threads,
    other_paths,
    roles,
    tables,
)

gap_factor: Final = 1.5  # a step that much longer than the usual one leaves a gap
_often: Final = 0.25  # of the lines before the one that they follow: the file is in no order
_same_place: Final = 0.6  # of the usual step: nearer than that two lines tell of the same interval
_listed: Final = 5  # lines or fields named in one note
_known = {f.path: f for f in line_fields}
_gpu_known = {f.path: f for f in gpu_fields}
_gpu_columns = [*_gpu_known, "d2h_gbps"]


@dataclass(frozen=True, slots=True)
class BadLine:
    """A line that was left out."""

    line: int
    reason: str


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class MetricsTrace:
    """What a metrics file says.

    rows     start_s (since the first), length_s, segment (a new number after each gap), and every known field
             by its dotted name; missing values are NaN
    gpus     row, gpu (the file's key), every field of a GPU, and d2h_gbps
    roles    the file's key of a GPU to `target` or `drafter`; None where it does not say
    split    numbers of targets and drafters; None where the file does not say
    notes    all that was left out or not understood, in sentences
    """

    sha256: str  # of the file as it lies there
    rows: pd.DataFrame
    gpus: pd.DataFrame
    roles: Mapping[str, str | None]
    split: tuple[int, int] | None
    bad_lines: tuple[BadLine, ...]
    notes: tuple[str, ...]


def read_metrics(path: Path) -> MetricsTrace:
    """The trace in `path`; what ends in .gz is unpacked. Raises UsageError when nothing in it can be used."""
    found = _Collector()
    for number, line in _lines(path, found):
        found.take(number, line)
    if not found.rows:
        said = f"line {found.bad[0].line}: {found.bad[0].reason}" if found.bad else "no line"
        raise _unusable(path, said, 'JSON objects, one a line, each with at least "t" (seconds)')
    places = found.put_in_order()
    rows = pd.DataFrame(found.rows, columns=list(_known), dtype=float).iloc[places]
    rows = _with_lengths(rows.reset_index(drop=True), path)
    gpus = pd.DataFrame(found.gpus, columns=["row", "gpu", *_gpu_columns])
    gpus = gpus[gpus["row"].isin(places)]
    gpus = gpus.assign(row=gpus["row"].map({row: place for place, row in enumerate(places)}))
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return MetricsTrace(
        sha256=digest,
        rows=rows,
        gpus=gpus.astype(dict.fromkeys(_gpu_columns, float)),
        roles=found.roles,
        split=found.split,
        bad_lines=tuple(found.bad),
        notes=tuple(found.notes(gaps=int(rows["segment"].iloc[-1]))),
    )


def _unusable(path: Path, found: str, expected: str | None = None) -> UsageError:
    return UsageError(
        "the file holds no interval that can be used",
        where=str(path),
        found=found,
        expected=expected,
        remedy="docs/import.md lists the fields",
    )


def _lines(path: Path, found: _Collector) -> Iterator[tuple[int, bytes]]:
    """Numbered lines that are not empty. A packed file that breaks off keeps what came before."""
    number = 0
    try:
        with gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield number, line
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        found.bad.append(BadLine(number + 1, f"the packed file breaks off: {error}"))
    except OSError as error:
        raise UsageError(
            f"the file cannot be read: {error.strerror or error}",
            where=str(path),
            expected="a metrics file: JSON lines, packed by gzip where its name ends in .gz",
        ) from None


@dataclass(slots=True)
class _Collector:
    """Takes lines one after the other, and remembers what was wrong with them."""

    rows: list[tuple[float | None, ...]] = field(default_factory=list)
    gpus: list[tuple[Any, ...]] = field(default_factory=list)
    roles: dict[str, str | None] = field(default_factory=dict)
    split: tuple[int, int] | None = None
    bad: list[BadLine] = field(default_factory=list)
    _numbers: list[int] = field(default_factory=list)  # the line of each row
    _backwards: list[int] = field(default_factory=list)
    _moved: int = 0
    _not_finite: int = 0
    _unusable: Counter[str] = field(default_factory=Counter)  # field to lines
    _unknown: dict[str, int] = field(default_factory=dict)  # field to its first line
    _other_splits: int = 0

    def take(self, number: int, line: bytes) -> None:
        try:
            text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            data = json.loads(text, parse_constant=self._no_number)
        except UnicodeDecodeError:
            self.bad.append(BadLine(number, "not UTF-8"))
            return
        except (ValueError, RecursionError) as error:
            self.bad.append(BadLine(number, f"not JSON: {error}"))
            return
        reason = self._take_object(number, data)
        if reason is not None:
            self.bad.append(BadLine(number, reason))

    def _no_number(self, _name: str) -> None:
        """NaN, Infinity or -Infinity, which JSON does not have."""
        self._not_finite += 1

    def _take_object(self, number: int, data: object) -> str | None:
        """Why the line is of no use, or None."""
        if not isinstance(data, dict):
            return "not a JSON object"
        t_s = _known["t"].accept(data.get("t"))
        if t_s is None:
            return f'"t" is {data.get("t")!r:.40}' if "t" in data else 'no "t"'
        split = self._read_split(data.get("split"))
        if split is not None and split != (self.split or split):
            self._other_splits += 1
            return None
        self.split = self.split or split
        self._note_unknown(number, data)
        self._numbers.append(number)
        self.rows.append(tuple(self._read(data, f) for f in line_fields))
        self._take_gpus(data)
        return None

    def put_in_order(self) -> list[int]:
        """The rows by time: a line that came late is put in its place, unless one is there already.

        So a file in any order is read, and nothing of a second run that was appended is mixed into the first.
        """
        times = np.array([row[0] for row in self.rows], dtype=float)
        rising = times > np.r_[-np.inf, np.maximum.accumulate(times)[:-1]]
        late = np.flatnonzero(~rising)
        if not len(late):
            return list(range(len(times)))
        steps = np.abs(np.diff(times))
        if (np.diff(times) < 0).sum() > _often * len(times):  # no order at all
            steps = np.diff(np.unique(times))
        near_s = _same_place * float(np.median(steps)) if len(steps) else 0.0
        places = list(np.flatnonzero(rising))
        taken = list(times[places])
        for row in late:
            at = bisect_left(taken, times[row])
            beside = taken[max(at - 1, 0) : at + 1]
            if min(abs(times[row] - other) for other in beside) <= near_s:
                self._backwards.append(self._numbers[row])
                continue
            taken.insert(at, float(times[row]))
            places.insert(at, row)
            self._moved += 1
        return [int(row) for row in places]

    def _read(self, data: Mapping[str, Any], spec: Field, path: str | None = None) -> float | None:
        raw: Any = data
        for key in (path or spec.path).split("."):
            raw = raw.get(key) if isinstance(raw, dict) else None
        value = spec.accept(raw)
        if raw is not None and value is None:
            self._unusable[spec.path] += 1
        return value

    def _read_split(self, raw: object) -> tuple[int, int] | None:
        if isinstance(raw, list) and len(raw) == 2 and all(type(n) is int for n in raw):
            targets, drafters = raw
            if 1 <= targets <= most_threads and 1 <= drafters <= most_threads:
                return targets, drafters
        if raw is not None:
            self._unusable["split"] += 1
        return None

    def _take_gpus(self, data: Mapping[str, Any]) -> None:
        """The GPUs of a line; one that is named only where its copies are told has nothing but that."""
        listed = data.get("gpu")
        copies = data.get("copies")
        rates = copies.get("per_gpu_d2h_gbps") if isinstance(copies, dict) else None
        for path, table in (("gpu", listed), (gpu_link_field.path, rates)):
            if table is not None and not isinstance(table, dict):
                self._unusable[path] += 1
        rates = rates if isinstance(rates, dict) else {}
        gpus = listed if isinstance(listed, dict) else {}
        for key in dict.fromkeys([*gpus, *rates]):
            gpu = gpus.get(key, {})
            if not isinstance(gpu, dict):
                self._unusable["gpu"] += 1
                continue
            role = gpu.get("role")
            if self.roles.get(key) is None:
                self.roles[key] = role if role in roles else None
            values = [self._read(gpu, f) for f in gpu_fields]
            rate = self._read({"rate": rates.get(key)}, gpu_link_field, "rate")
            self.gpus.append((len(self.rows) - 1, key, *values, rate))

    def _note_unknown(self, number: int, data: Mapping[str, Any]) -> None:
        gpus = data.get("gpu")
        inner = [gpu for gpu in gpus.values() if isinstance(gpu, dict)] if isinstance(gpus, dict) else []
        names = {name for name in _paths(data) if name not in _known and name not in other_paths}
        names |= {f"gpu.*.{key}" for gpu in inner for key in gpu if key != "role" and key not in _gpu_known}
        for name in names:
            self._unknown.setdefault(name, number)

    def notes(self, gaps: int) -> Iterator[str]:
        """What was left out or not understood."""
        if self.bad:
            yield f"{_lines_of([b.line for b in self.bad])} left out: {self.bad[0].reason}"
        if self._backwards:
            yield f"{_lines_of(self._backwards)} set aside: the clock went backwards or stood still"
        if self._moved:
            yield f"{self._moved} lines came late: put where their time says"
        if self._other_splits:
            yield f"{self._other_splits} lines set aside: their split is not that of the first line"
        if self._not_finite:
            yield f"{self._not_finite} values are NaN or infinite: taken as missing"
        for name, count in sorted(self._unusable.items()):
            yield f"{name} cannot be used in {count} lines: taken as missing"
        if self._unknown:
            names = sorted(self._unknown)
            more = f" and {len(names) - _listed} more" if len(names) > _listed else ""
            yield f"fields not known here, and not used: {', '.join(names[:_listed])}{more}"
        if gaps:
            yield f"{gaps} gaps: no interval covers them, and nothing is told of them"


def _paths(table: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and path in tables:
            yield from _paths(value, f"{path}.")
        elif path not in tables or value is not None:
            yield path


def _lines_of(numbers: list[int]) -> str:
    named = ", ".join(map(str, numbers[:_listed]))
    more = f" and {len(numbers) - _listed} more" if len(numbers) > _listed else ""
    return f"line{'s' if len(numbers) > 1 else ''} {named}{more}"


def _with_lengths(rows: pd.DataFrame, path: Path) -> pd.DataFrame:
    """With start_s, length_s and segment: an interval lasts until the next, unless that is long in coming."""
    start = (rows["t"] - rows["t"].iloc[0]).to_numpy()
    steps = np.diff(start)
    told = rows["dt"].where(rows["dt"] > 0).to_numpy()
    usual = float(np.median(steps)) if len(steps) else np.nan
    lengths = np.where(np.isnan(told), usual, told)
    if np.isnan(lengths).any():
        raise _unusable(path, "one interval, whose length is not known", 'two lines, or "dt" (seconds)')
    if len(steps):
        is_near = steps <= gap_factor * np.where(np.isnan(told[:-1]), usual, told[:-1])
        lengths[:-1] = np.where(is_near, steps, np.minimum(lengths[:-1], steps))
        segment = np.append(0, np.cumsum(~is_near))
    else:
        segment = np.zeros(1, dtype=int)
    return rows.assign(start_s=start, length_s=lengths, segment=segment)
